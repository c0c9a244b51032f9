"""``python -m airflow_dpone recovery ...`` on a DuckDB target: what is said and done, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.cli.arguments import main
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.target_embedded.target import EmbeddedTarget
from tests.fakes.embedded_shop import Shop
from tests.fakes.world import HOST, SCHEMA, TABLE


class Died(BaseException):
    """The process ends here."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.create(tmp_path / "shop")


def run(
    shop: Shop, capsys: pytest.CaptureFixture[str], command: str, *more: str, journal: str = "journal.db"
) -> tuple[int, dict[str, Any], str]:
    places = ("--journal", str(shop.world.root / journal), "--target", f"duckdb://{shop.path}")
    spool = ("--spool", str(shop.world.root / "spool"), "--host-id", HOST)
    code = main(["recovery", command, *places, *spool, *more])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out.splitlines()[-1]), err


def unfinished(shop: Shop, method: str) -> str:
    """A delivery whose process died before this method of the target; returns its key."""

    class Dies(EmbeddedTarget):
        def __getattribute__(self, name: str) -> Any:
            if name == method:
                raise Died
            return super().__getattribute__(name)

    with pytest.raises(Died):
        shop.deliver(Dies(shop.path))
    return shop.world.invocation().invocation_key


def test_a_table_of_another_journal_is_adopted_only_with_yes(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ("--target-table", SCHEMA, TABLE)
    shop.deliver(EmbeddedTarget(shop.path))
    code, said, err = run(shop, capsys, "adopt-target", *table)
    assert (code, said["needed"], said["done"]) == (0, False, False)
    assert "governed by this journal already" in err
    migrate(shop.world.root / "new.db", host=HOST)
    code, said, err = run(shop, capsys, "adopt-target", *table, journal="new.db")
    assert (code, said["needed"], said["done"]) == (1, True, False)
    assert "--yes" in err
    code, said, err = run(shop, capsys, "adopt-target", *table, "--yes", journal="new.db")
    assert (code, said["done"], said["schema"]) == (0, True, "dpone.recovery.v1")
    assert said["journal_before"] in err
    assert said["journal_id"] in err
    code, said, _ = run(shop, capsys, "adopt-target", *table, "--yes", journal="new.db")
    assert (code, said["needed"]) == (0, False)


@pytest.mark.parametrize("method", ["create_stage", "build_prepared", "publish"])
def test_a_delivery_is_given_up_and_the_next_one_delivers(
    shop: Shop, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    before = shop.rows()
    key = unfinished(shop, method)
    code, said, err = run(shop, capsys, "retire", "--delivery", key)
    assert (code, said["done"]) == (1, False)
    assert "DAG shop, run run-1, task deliver_orders, generation 1" in err
    code, said, err = run(shop, capsys, "retire", "--delivery", key, "--yes")
    assert (code, said["done"], said["delivery"]["state_after"]) == (0, True, "RETIRED")
    assert "clear its task" in err
    assert shop.rows() == before
    assert shop.untidy() == []
    code, said, _ = run(shop, capsys, "retire", "--delivery", key, "--yes")
    assert (code, said["code"]) == (2, "dpone.recovery.nothing_to_retire")
    assert shop.deliver(EmbeddedTarget(shop.path)).generation == 2


def test_another_database_is_not_taken_for_the_target(
    shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = unfinished(shop, "publish")
    other = Shop.create(tmp_path / "other")
    other.deliver(EmbeddedTarget(other.path))
    mine, shop.path = shop.path, other.path
    code, said, _ = run(shop, capsys, "retire", "--delivery", key, "--yes")
    assert (code, said["code"]) == (2, "dpone.recovery.target_unknown")
    shop.path = mine
    assert run(shop, capsys, "retire", "--delivery", key, "--yes")[0] == 0
