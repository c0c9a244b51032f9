"""A window's bounds as texts in exactly the type of their column. [E12]"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.target_sqlserver.window_bounds import WindowBounds
from airflow_dpone.wire.sql_type import SqlType

DAY = Window(datetime(2025, 1, 2, tzinfo=UTC), datetime(2025, 1, 3, tzinfo=UTC))
ODD = Window(datetime(2025, 1, 2, 0, 0, 0, 123_456, tzinfo=UTC), datetime(2025, 1, 3, tzinfo=UTC))


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("date", "2025-01-02"),
        ("datetime2(0)", "2025-01-02T00:00:00"),
        ("datetime2(3)", "2025-01-02T00:00:00.000"),
        ("datetime2(6)", "2025-01-02T00:00:00.000000"),
        ("datetime2(7)", "2025-01-02T00:00:00.000000"),
    ],
)
def test_a_bound_is_naive_iso_text_of_the_column_s_own_scale(kind: str, start: str) -> None:
    found = WindowBounds.of("ts", SqlType.parse(kind), DAY)
    assert found.texts[0] == start
    text = found.count("[shop].[orders]")
    style = 23 if kind == "date" else 126
    assert f"@from {kind} = CONVERT({kind}, ?, {style})" in text
    assert "[ts] >= @from AND [ts] < @to" in text


@pytest.mark.parametrize("kind", ["date", "datetime2(0)", "datetime2(5)"])
def test_a_bound_that_the_column_cannot_hold_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WindowBounds.of("ts", SqlType.parse(kind), ODD)
    assert caught.value.code == "dpone.config.window_column"


def test_a_finer_column_takes_it_whole() -> None:
    assert WindowBounds.of("ts", SqlType.parse("datetime2(6)"), ODD).texts[0] == "2025-01-02T00:00:00.123456"


@pytest.mark.parametrize(("column", "window"), [(None, DAY), ("ts", Window.full())])
def test_a_window_without_its_column_is_no_full_refresh(column: str | None, window: Window) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WindowBounds.of(column, SqlType.parse("datetime2(6)"), window)
    assert caught.value.code == "dpone.config.window"


def test_a_full_refresh_has_no_bounds() -> None:
    found = WindowBounds.of(None, None, Window.full())
    assert found.texts == ()
    assert found.count("[a].[b]") == "SELECT COUNT_BIG(*) FROM [a].[b];"
