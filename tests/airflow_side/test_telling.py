"""What Airflow keeps of a failure: small, whatever letters it is told in."""

from __future__ import annotations

import json

import pytest

from airflow_dpone.errors import CATALOGUE, error_of
from airflow_dpone.operators import telling


@pytest.mark.parametrize("letter", ["x", "\u0436", "\u4e2d", "\U0001f600", "\x00", '"', "\\"])
@pytest.mark.parametrize("code", ["dpone.config.field", max(CATALOGUE, key=len)])
def test_a_failure_is_below_2_kb_as_json_whatever_it_says(letter: str, code: str) -> None:
    error = error_of(code, letter * 5_000, next_action=letter * 5_000)
    error.state_after = "CHECKPOINTED"
    told = telling.failure(error)
    assert len(json.dumps(told)) < 2_048
    assert error.message.startswith(told["reason"])
    assert len(told["reason"]) > 50


def test_what_fits_is_told_whole() -> None:
    error = error_of("dpone.config.field", "column \u0438\u043c\u044f is missing", next_action="Name it.")
    told = telling.failure(error)
    assert (told["reason"], told["next_action"]) == (error.message, "Name it.")
