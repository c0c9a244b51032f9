"""The catalogue of errors: what the code raises, what is listed and what is documented are the same."""

from __future__ import annotations

import ast
import pickle
import re

import pytest

from airflow_dpone import errors
from airflow_dpone.bulk_writer.messages import Diagnostic
from airflow_dpone.delivery.states import DiagnosticCode
from airflow_dpone.errors import CATALOGUE, DponeError, ErrorCode
from tests.architecture.package_source import package_modules

CODE = re.compile(r"dpone\.[a-z_]+\.(?!v\d+$)[a-z0-9_]+")  # dpone.target.v1 names a format, not an error


def _codes_in_the_source() -> dict[str, list[str]]:
    """Every string literal that is a code, outside the catalogue, with the places where it stands."""
    found: dict[str, list[str]] = {}
    for module in package_modules():
        if module.part == "errors":
            continue
        # Of chunk attempts and of their writers: observations, not errors.
        diagnostics = {code.value for code in (*DiagnosticCode, *Diagnostic)}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                if node.value in diagnostics:
                    continue
                found.setdefault(node.value, []).append(f"{module.where}:{node.lineno}")
    return found


def test_every_code_that_the_package_names_is_in_the_catalogue() -> None:
    unknown = {code: places for code, places in _codes_in_the_source().items() if code not in CATALOGUE}
    assert unknown == {}


def test_every_code_of_the_catalogue_is_raised_somewhere() -> None:
    """A documented error that cannot happen misleads. (ConfigurationError.of raises one itself.)"""
    assert sorted(set(CATALOGUE) - set(_codes_in_the_source()) - {"dpone.config.invalid"}) == []


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=lambda row: row.code)
def test_a_row_of_the_catalogue_is_complete(row: ErrorCode) -> None:
    assert CODE.fullmatch(row.code)
    assert CATALOGUE[row.code] is row
    for sentence in (row.summary, row.next_action):
        assert sentence.endswith(".")
        assert sentence[0].isupper() or sentence[0] == "`"
    error_class = getattr(errors, row.error)
    assert issubclass(error_class, DponeError)
    assert error_class is not DponeError


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=lambda row: row.code)
def test_an_error_survives_the_way_between_processes(row: ErrorCode) -> None:
    error = getattr(errors, row.error)(row.code, "what happened.", state_after="FAILED", column="c", row=7)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.code, again.retry, again.message, again.next_action, again.state_after, again.fields) == (
        row.code,
        row.retry,
        "what happened.",
        row.next_action,
        "FAILED",
        {"column": "c", "row": 7},
    )
    assert str(again) == str(error)


def test_every_class_of_errors_has_a_code() -> None:
    classes = {cls.__name__ for cls in DponeError.__subclasses__()}
    assert {row.error for row in CATALOGUE.values()} == classes
