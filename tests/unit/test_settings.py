"""What a person may ask for, and how it is refused: all problems at once, each with its field."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from airflow_dpone import Limits, Options, Route
from airflow_dpone.errors import CATALOGUE, ConfigurationError, DponeError, Problem, error_of
from airflow_dpone.settings import Quality, readable_route

GOOD: dict[str, Any] = {
    "source": "chdb:///data/shop",
    "source_table": ("shop", "orders"),
    "target": "duckdb:///data/warehouse.duckdb",
    "target_table": ("sales", "orders"),
    "window_column": "ordered_at",
}


def problems_of(**changed: Any) -> dict[str, str]:
    """Where -> message of the refusal."""
    with pytest.raises(ConfigurationError) as caught:
        Route(**{**GOOD, **changed})
    return {problem.where: problem.message for problem in caught.value.problems}


def test_a_good_route_has_the_documented_defaults() -> None:
    route = Route(**GOOD)
    assert route.limits == Limits()
    assert route.limits.max_rows == 250_000
    assert route.limits.max_bytes == 64 * 1024 * 1024
    assert route.options == Options(on_empty="publish", embedded_lock_wait_sec=30.0)
    assert route.quality == Quality()
    assert route.effective_source_name == "chdb"
    assert Route(**{**GOOD, "source": "shop_db"}).effective_source_name == "shop_db"


def test_every_problem_is_in_one_error() -> None:
    found = problems_of(
        source="chdb://relative",
        source_table="shop.orders",
        target="oracle:///x",
        window_column=None,
        columns="id",
        limits={"max_rows": 0, "max_speed": 1},
        quality={"row_count": {"min_rows": 5, "max_rows": 4}},
        options={"on_empty": "sometimes"},
        writer="carrier pigeon",
    )
    assert set(found) == {
        "source",
        "source_table",
        "target",
        "window_column",
        "columns",
        "limits.max_rows",
        "limits.max_speed",
        "quality.row_count.max_rows",
        "options.on_empty",
        "writer",
    }
    assert "('shop', 'orders')" in found["source_table"]
    assert "absolute" in found["source"]


@pytest.mark.parametrize(
    ("changed", "where", "said"),
    [
        ({"columns": []}, "columns", "empty"),
        ({"columns": ["ordered_at", "ordered_at"]}, "columns", "twice"),
        ({"columns": {"ordered_at": "x", "id": "x"}}, "columns", "twice"),
        ({"target": "duckdb:///a?x=1"}, "target", "parameters"),
        ({"source": "chdb:///"}, "source", "absolute"),
        ({"target_table": ("sales", "")}, "target_table.1", "at least 1"),
        ({"target_table": ("a", "b", "c")}, "target_table", "at most 2"),
        ({"limits": {"max_bytes": 2 << 20, "max_row_bytes": 3 << 20}}, "limits.max_row_bytes", "max_bytes"),
    ],
)
def test_a_wrong_field_is_named(changed: dict[str, Any], where: str, said: str) -> None:
    found = problems_of(**changed)
    assert list(found) == [where]
    assert said in found[where]


def test_a_route_is_readable_without_its_wrong_fields() -> None:
    fields = {**GOOD, "source": "x://y", "strategy": "sideways", "limits": {"max_rows": 0, "parallelism": 3}}
    with pytest.raises(ConfigurationError) as caught:
        Route(**fields)
    found = readable_route(fields, caught.value.problems)
    assert found is not None
    assert (found.limits.parallelism, found.limits.max_rows) == (3, Limits().max_rows)
    assert (found.strategy, found.target) == ("window_replace", GOOD["target"])


def test_columns_may_be_a_list_or_a_mapping() -> None:
    assert Route(**GOOD, columns=["ordered_at", "id"]).columns == (("ordered_at", "ordered_at"), ("id", "id"))
    assert Route(**GOOD, columns={"ordered_at": "at"}).columns == (("ordered_at", "at"),)


def test_a_password_in_a_uri_is_refused_and_never_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Route(**{**GOOD, "source": "clickhouse://me:hunter2@host/db"})
    assert caught.value.problems[0].code == "dpone.config.secret_in_uri"
    assert "hunter2" not in str(caught.value) + repr(caught.value) + repr(caught.value.fields)


def test_a_route_is_frozen_and_survives_pickling() -> None:
    route = Route(**GOOD, limits={"max_rows": 10})
    assert pickle.loads(pickle.dumps(route)) == route
    with pytest.raises(Exception, match="frozen"):
        route.strategy = "full_refresh"


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_error_pickles_and_tells_what_to_do(code: str) -> None:
    error = error_of(code, "It happened.", column="c", row=3, state_after="FAILED")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, DponeError)
    assert (type(again), again.code, again.fields) == (type(error), code, {"column": "c", "row": 3})
    assert (again.message, again.next_action, again.state_after) == (
        "It happened.",
        error.next_action,
        "FAILED",
    )
    assert str(again) == f"It happened. State: FAILED. Next: {error.next_action} [{code}]"
    assert error.next_action.endswith(".")


def test_a_code_belongs_to_one_class() -> None:
    with pytest.raises(TypeError, match="is a code of SourceDataError"):
        ConfigurationError("dpone.source.nan", "x")


def test_one_problem_keeps_its_own_code() -> None:
    one = ConfigurationError.of([Problem("dpone.config.window", "window", "is empty")])
    assert one.code == "dpone.config.window"
    two = ConfigurationError.of([*one.problems, Problem("dpone.config.uri", "source", "is wrong")])
    assert two.code == "dpone.config.invalid"
    assert str(two).count("\n  - ") == 2


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("limits", {"max_row": 5}, "limits.max_row: there is no such setting; did you mean max_rows"),
        ("quality", {"not_nul": ["id"]}, "quality.not_nul: there is no such setting; did you mean not_null?"),
        ("quality", {"row_count": {"mini": 1}}, "there are: min_rows, max_rows"),
        ("options", {"zzz": 1}, "options.zzz: there is no such setting; there are: on_empty"),
        ("windowcolumn", "at", "windowcolumn: there is no such setting; did you mean window_column"),
    ],
)
def test_a_setting_that_does_not_exist_is_told_with_close_names(field: str, value: object, said: str) -> None:
    given = {"source": "chdb:///s", "source_table": ("a", "b"), "target": "duckdb:///t.duckdb"}
    with pytest.raises(ConfigurationError) as raised:
        Route(**given, target_table=("c", "d"), window_column="at", **{field: value})  # type: ignore[arg-type]
    assert said in raised.value.message
