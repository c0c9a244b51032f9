"""Every mutation of ``make mutants`` still fits the code that it is made for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mutants import MUTANTS, Mutant, main, problem_of


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_to_replace_is_there_exactly_once(mutant: Mutant) -> None:
    assert problem_of(mutant) is None
    assert mutant.old != mutant.new


def test_code_that_has_moved_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    one = MUTANTS[0]
    assert problem_of(replace(one, old="no such text")) == f"its text is 0 times in {one.file}"
    assert problem_of(replace(one, old="\n")) != problem_of(one)
    assert problem_of(replace(one, file="airflow_dpone/gone.py")) == "airflow_dpone/gone.py is not there"
    assert problem_of(replace(one, tests=("tests/gone.py",))) == "there are no tests tests/gone.py"
    assert main(["no mutation has this name"]) == 1
    assert "no mutation" in capsys.readouterr().out
