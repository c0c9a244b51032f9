"""By the number only."""

from __future__ import annotations

import pickle

import pytest

from airflow_dpone.errors import CATALOGUE
from airflow_dpone.source_clickhouse.error_map import ERROR_CODES, error_by_number, error_of, number_of

TEXT = "Code: {n}. DB::Exception: Cannot parse 'secret (FAKE_NAME)' here: while x. (REAL_{n}) (version 26.9)"


@pytest.mark.parametrize(
    ("number", "kind", "code", "retry"),
    [
        (60, "SourceMoved", "dpone.source.gone", "backoff"),
        (47, "SourceMoved", "dpone.source.gone", "backoff"),
        (241, "SourceUnavailable", "dpone.source.limit", "backoff"),
        (159, "SourceUnavailable", "dpone.source.limit", "backoff"),
        (394, "SourceUnavailable", "dpone.source.stopped", "backoff"),
        (210, "SourceUnavailable", "dpone.source.unavailable", "backoff"),
        (40, "SourceDataError", "dpone.source.corrupt", "never"),
        (497, "ConfigurationError", "dpone.source.access", "never"),
        (115, "ConfigurationError", "dpone.source.setting", "never"),
        (395, "SourceUnavailable", "dpone.source.failed", "never"),
        (99_999, "SourceUnavailable", "dpone.source.failed", "never"),
        (None, "SourceUnavailable", "dpone.source.failed", "never"),
    ],
)
def test_the_number_decides(number: int | None, kind: str, code: str, retry: str) -> None:
    """[B66] An unknown number is never retried by itself."""
    error = error_by_number(number, "text")
    assert (type(error).__name__, error.code, error.retry) == (kind, code, retry)
    assert error.fields["clickhouse_code"] == number
    assert pickle.loads(pickle.dumps(error)).code == code


def test_every_row_has_a_class_of_its_own_side() -> None:
    assert {CATALOGUE[code].error for code in ERROR_CODES.values()} == {
        "ConfigurationError",
        "SourceDataError",
        "SourceMoved",
        "SourceUnavailable",
    }
    for number in ERROR_CODES:
        error_by_number(number, "text")


def test_nothing_of_the_text_is_kept() -> None:
    error = error_of(TEXT.format(n=60), "reading")
    assert "secret" not in str(error) + str(error.fields)
    assert "60" in str(error)


def test_the_text_alone_decides_nothing() -> None:
    assert error_of("TIMEOUT_EXCEEDED timeout memory limit", "reading").code == "dpone.source.failed"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Code: 395. DB::Exception: x", 395),
        ("Streaming query failed: Code: 241. DB::Exception: Code: 60. x", 241),
        ("nothing", None),
        ("Barcode: 12", None),
    ],
)
def test_the_first_number_is_the_error(text: str, number: int | None) -> None:
    assert number_of(text) == number
