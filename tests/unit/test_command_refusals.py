"""A refusal of a command speaks of the command, not of a DAG and its tasks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from airflow_dpone.cli.arguments import main, run
from airflow_dpone.cli.commands import Answer
from airflow_dpone.errors import CATALOGUE, error_of

OF_A_TASK = {
    "dpone.config.other_request",
    "dpone.config.target_changed_while_held",
    "dpone.config.window",
}
"""What only a delivery says, about its task or its run."""


def refused(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The next action that a command prints for an error."""

    def command(_: argparse.Namespace) -> Answer:
        raise error_of(code, "no")

    run(argparse.Namespace(run=command))
    out, err = capsys.readouterr()
    next_action: str = json.loads(out)["next_action"]
    assert f"Next: {next_action} [{code}]" in err
    return next_action


@pytest.mark.parametrize(
    "code",
    sorted(c for c, row in CATALOGUE.items() if row.error == "ConfigurationError" and c not in OF_A_TASK),
)
def test_no_refusal_speaks_of_a_dag_to_correct_or_a_task_to_clear(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(code, capsys)
    assert "in the DAG" not in said
    assert "clear the task" not in said
    assert "let the delivery make it" not in said


@pytest.mark.parametrize("code", sorted(c for c, row in CATALOGUE.items() if row.retry == "backoff"))
def test_a_command_is_not_tried_again_by_itself(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "; the task tries again by itself" not in refused(code, capsys)


def test_advice_about_a_delivery_stays(capsys: pytest.CaptureFixture[str]) -> None:
    code = "dpone.recovery.nothing_to_retire"
    assert refused(code, capsys) == CATALOGUE[code].next_action


def test_a_wrong_argument_is_called_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, target = f"{tmp_path}/journal.db", f"duckdb://{tmp_path}/target.duckdb"
    places = ("--journal", journal, "--target", target, "--host-id", "here")
    code = main(["recovery", "writer", *places, "--delivery", "0" * 64])
    out, err = capsys.readouterr()
    assert (code, json.loads(out)["code"]) == (2, "dpone.config.field")
    assert json.loads(out)["message"].startswith("The command was refused, 1 problem:")
    assert err.startswith("The command was refused, 1 problem:")
    assert "Next: Correct the named argument and run the command again. [dpone.config.field]" in err


def test_a_connection_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused("dpone.config.connection", capsys)
    assert said.startswith("Make the connection, correct its id")
    assert said.endswith("and run the command again.")
