"""What Airflow's own commands show of this provider, and ``airflow dpone``, in real processes."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from airflow_dpone.cli import audit
from airflow_dpone.cli.arguments import TREE
from airflow_dpone.cli.commands import Command
from tests.servers.airflow_home import AirflowHome

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    """Starting one costs seconds; what the tests store does not meet."""
    return AirflowHome.create(tmp_path_factory.mktemp("provider"))


def answer(done: subprocess.CompletedProcess[str]) -> tuple[int, dict[str, Any]]:
    """Exit code, and the one line that a command of ours leaves on stdout."""
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stdout + done.stderr
    return done.returncode, json.loads(lines[0])


def add(home: AirflowHome, conn_id: str, conn_type: str, host: str, **more: Any) -> None:
    named = {"conn_type": conn_type, "host": host, **more}
    home.said("connections", "add", conn_id, "--conn-json", json.dumps(named))


def test_the_provider_and_its_connection_types_are_listed(home: AirflowHome) -> None:
    listed = {row["package_name"]: row for row in home.rows("providers", "list")}
    assert "with proof" in listed["airflow-dpone"]["description"]
    hooks = {row["connection_type"]: row for row in home.rows("providers", "hooks")}
    for kind, name, conn_id in (
        ("dponejournal", "JournalHook", "journal_conn_id"),
        ("dponeembedded", "EmbeddedHook", "embedded_conn_id"),
    ):
        assert hooks[kind]["class"].endswith(f".{name}")
        assert (hooks[kind]["conn_id_attribute_name"], hooks[kind]["package_name"]) == (
            conn_id,
            "airflow-dpone",
        )


def test_the_plugin_and_the_extra_link_are_listed(home: AirflowHome) -> None:
    plugins = {row["name"]: row for row in home.rows("plugins")}
    assert "/dpone" in str(plugins["dpone"]["fastapi_apps"])
    assert "airflow-dpone" in str(plugins["dpone"]["source"])
    links = [row["extra_link_class_name"] for row in home.rows("providers", "links")]
    assert "airflow_dpone.links.delivery.DeliveryLink" in links


def test_the_configuration_shows_our_section_with_its_defaults(home: AirflowHome) -> None:
    assert home.said("config", "get-value", "dpone", "journal_conn_id").split() == ["dpone_journal"]
    listed = home.said("config", "list", "--section", "dpone", "--include-descriptions", "--include-sources")
    for word in ("journal_conn_id", "spool_path", "lease_ttl_sec", "host_id"):
        assert word in listed


def test_commands_see_connections_of_airflows_database(home: AirflowHome, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    add(home, "dpone_journal", "dponejournal", str(path))
    assert home.rows("connections", "get", "dpone_journal")[0]["conn_type"] == "dponejournal"
    code, said = answer(home.run("dpone", "db", "status"))
    assert (code, said["code"]) == (2, "dpone.journal.missing")
    assert "--journal-conn-id dpone_journal" in said["next_action"]
    code, said = answer(home.run("dpone", "db", "migrate", "--journal-conn-id", "dpone_journal"))
    assert (code, said["status"], said["journal"]) == (0, "at_head", str(path))
    code, again = answer(home.run("dpone", "db", "status"))
    assert (code, again["journal_id"]) == (0, said["journal_id"])
    assert "Connection success!" in home.said("connections", "test", "dpone_journal")


def test_the_groups_exit_codes_and_usage_are_those_of_the_program(home: AirflowHome) -> None:
    code, said = answer(home.run("dpone", "types", "--source", "Int64", "--target", "int"))
    assert (code, said["admitted"]) == (1, False)
    code, said = answer(home.run("dpone", "db", "status", "--journal-conn-id", "nobody"))
    assert (code, said["code"]) == (2, "dpone.config.connection")
    wrong = home.run("dpone", "recovery", "retire", "--target", "duckdb:///x", "--journal", "/x")
    assert wrong.returncode == 2
    assert "--delivery" in wrong.stderr


def texts_of(command: Command) -> list[str]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return [action.help for action in parser._actions if action.help and action.dest != "help"]


def test_airflows_help_shows_every_word_of_ours(home: AirflowHome) -> None:
    """Airflow reads square brackets in a help text as markup, and leaves them out."""
    commands = [command for node in TREE for command in getattr(node, "commands", (node,))]
    for text in [text for command in commands for text in (command.description, *texts_of(command))]:
        assert Text.from_markup(text).plain == text
    told = "".join(home.said("dpone", "audit", "--help").split())
    for text in texts_of(audit.COMMAND):
        assert "".join(text.split()) in told, text
