"""Types that are refused, as the whole engine sees them: everything at once, and nothing was done."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone.errors import ConfigurationError, SourceMoved
from airflow_dpone.settings import Limits
from tests.fakes.world import SOURCE_COLUMNS, World

WIDE = ["Int128", "UInt128", "Int256", "Decimal256(10)"]
ENUM, OTHER_ENUM = "Enum8('a' = 1, 'b' = -2)", "Enum8('a' = 1, 'b' = 2)"


def with_columns(world: World, columns: list[tuple[str, str, str, Any]]) -> None:
    """More columns on both sides: name, source type, target type, value."""
    for name, _, target, _ in columns:
        world.target.execute(f'ALTER TABLE "dbo.orders" ADD COLUMN "{name}" "blob {target}"')
    script = world.source.script
    script.columns += [(name, source) for name, source, *_ in columns]
    script.rows = [[*row, *(value for *_, value in columns)] for row in script.rows]
    world.source.write(script)


def test_wide_numbers_are_refused_all_at_once_before_anything_is_made(world: World) -> None:
    """B16: no read, no staging table, no delivery in the journal; B19, B20 in the same answer."""
    columns = [(f"wide{n}", source, "decimal(38,10)", 0) for n, source in enumerate(WIDE)]
    columns += [("rounded", "Decimal(18, 4)", "decimal(18,2)", 0), ("text", "Float64", "nvarchar(10)", 0.087)]
    with_columns(world, columns)
    with pytest.raises(ConfigurationError) as raised:
        world.deliver()
    found = {problem.where: problem.code for problem in raised.value.problems}
    assert found == {
        **{f"wide{n}": "dpone.types.unsupported" for n in range(len(WIDE))},
        "rounded": "dpone.types.scale",
        "text": "dpone.types.pair",
    }
    assert world.source.script.reads == 0
    assert "create_stage" not in world.target.calls()
    with pytest.raises(LookupError):
        world.invocation()
    assert (world.rows(), world.untidy()) == ([], [])


def test_labels_arrive_and_another_enum_between_plan_and_read_is_a_source_that_moved(world: World) -> None:
    """B33: the label of a number would silently be another one."""
    with_columns(world, [("kind", ENUM, "nvarchar(10)", "b")])
    world.limits = Limits(max_rows=4, extraction_attempts=1)
    script = world.source.script

    def alter(point: str) -> None:
        if point == "after_journal_open_invocation" or point.startswith("before_source_read"):
            columns = [*SOURCE_COLUMNS, ("kind", OTHER_ENUM)]
            world.source.edit(columns=columns)

    with pytest.raises(SourceMoved):
        world.deliver(observer=alter)
    assert world.rows() == []
    world.source.edit(columns=script.columns)
    assert world.deliver().rows == 6
    assert {row[-1] for row in world.rows()} == {"b"}
