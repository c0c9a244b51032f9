"""The target changes while a delivery is open: it ends with the difference, and the next call goes on."""

from __future__ import annotations

import pytest

from airflow_dpone.delivery.drift import differences
from airflow_dpone.delivery.target_records import TargetColumn
from airflow_dpone.errors import TargetRejected
from tests.fakes import target_storage as storage
from tests.fakes.target import SqliteTarget
from tests.fakes.world import SCHEMA, TABLE, TARGET_COLUMNS, World, as_set, orders, requester

NAME = storage.table_name(SCHEMA, TABLE)
RETRY = requester(try_number=2, ti_id="run-1-try-2")


class Stopped(BaseException):
    """The process ends here."""


def stop_at(world: World, point: str) -> None:
    def stop(passed: str) -> None:
        if passed == point:
            raise Stopped

    with pytest.raises(Stopped):
        world.deliver(observer=stop)


def add_column(world: World) -> None:
    world.target.execute(f'ALTER TABLE {NAME} ADD COLUMN added "blob int"')


@pytest.mark.parametrize(
    "point", ["before_target_create_stage", "before_target_build_prepared", "before_journal_raise_fence"]
)
def test_a_change_before_the_publication_ends_the_delivery_with_the_difference(
    world: World, point: str
) -> None:
    """Extracted, staged, prepared: what is left to do would be in vain."""
    stop_at(world, point)
    add_column(world)
    with pytest.raises(TargetRejected) as caught:
        world.deliver(RETRY)
    assert (caught.value.code, caught.value.state_after) == ("dpone.target.drift", "FAILED")
    assert "added is new (int NULL)" in caught.value.message
    assert world.untidy() == []
    assert world.target.calls().count("publish") == 0
    world.target.execute(f"ALTER TABLE {NAME} DROP COLUMN added")
    assert world.deliver(RETRY).generation == 2
    assert world.rows() == as_set(orders(6))


def test_a_change_in_the_last_moment_is_told_by_the_publication(world: World) -> None:
    def change(passed: str) -> None:
        if passed == "before_target_publish":
            world.target.execute(f"ALTER TABLE {NAME} RENAME COLUMN note TO remark")

    with pytest.raises(TargetRejected) as caught:
        world.deliver(observer=change)
    assert (caught.value.code, caught.value.state_after) == ("dpone.publish.target_changed", "FAILED")
    assert (
        "note is gone (it was nvarchar(max) NULL); remark is new (nvarchar(max) NULL)" in caught.value.message
    )


def test_a_table_that_is_gone_in_the_last_moment_is_told(world: World) -> None:
    def drop(passed: str) -> None:
        if passed == "before_target_publish":
            world.target.execute(f"DROP TABLE {NAME}")

    with pytest.raises(TargetRejected) as caught:
        world.deliver(observer=drop)
    assert "the table is gone" in caught.value.message


def test_a_target_that_does_not_answer_takes_nothing_from_the_proof(world: World) -> None:
    """The publication is proved rolled back; how the table differs nobody can tell."""

    class Silent(SqliteTarget):
        def publish(self, request):  # type: ignore[no-untyped-def]
            world.target.execute(f'ALTER TABLE {NAME} ADD COLUMN added "blob int"')
            answer = super().publish(request)
            self.arm("describe", "unreachable")
            return answer

    world.target = Silent(world.target.path)
    with pytest.raises(TargetRejected) as caught:
        world.deliver()
    assert (caught.value.code, caught.value.state_after) == ("dpone.publish.target_changed", "FAILED")
    assert "added" not in caught.value.message


def test_what_was_planned_is_no_difference() -> None:
    columns = [TargetColumn(*column) for column in TARGET_COLUMNS]
    assert differences(columns, columns) == []
    assert differences(columns, [*columns, TargetColumn("x", "int", False)]) == ["x is new (int NOT NULL)"]
    assert differences(columns, []) == [
        f"{c.name} is gone (it was {c.type} {'NULL' if c.nullable else 'NOT NULL'})" for c in columns
    ]
