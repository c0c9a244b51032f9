"""Every effect of every port is a crash point, and nothing else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_dpone.delivery import ports as p
from airflow_dpone.delivery.crash_points import CrashPoint, observe
from airflow_dpone.delivery.deliver import PHASES
from airflow_dpone.errors import DponeError
from airflow_dpone.journal.store import SqlJournal
from airflow_dpone.spool.chunk_file import ChunkFile
from airflow_dpone.spool.local import LocalSpool
from airflow_dpone.spool.object_storage import ObjectChunk, ObjectSpool
from tests.fakes.source import ReadFault, ScriptedSource
from tests.fakes.spool import MemorySink, MemorySpool
from tests.fakes.target import SqliteTarget
from tests.fakes.world import World

EFFECTS = {
    "source": ["read"],
    "spool": ["begin", "discard_epoch", "discard"],
    "chunk": ["seal"],
    "target": [
        "create_table", "claim_gate", "adopt_gate", "create_stage", "grant", "verify_stage", "build_prepared",
        "publish", "probe", "drop_stage",
    ],
    "writer": ["write"],
    "journal": ["acquire", "raise_fence", "release", "append"],
}  # fmt: skip
"""Written out, so that an effect that loses its mark is missed."""


def test_crash_points_are_exactly_before_and_after_each_effect() -> None:
    expected = {
        f"{when}_{port}_{method}"
        for port, methods in EFFECTS.items()
        for method in methods
        for when in ("before", "after")
    }
    assert {str(point) for point in CrashPoint} == expected


@pytest.mark.parametrize(
    ("port", "made"),
    [
        (p.SourcePort, ScriptedSource),
        (p.SpoolPort, LocalSpool),
        (p.SpoolPort, ObjectSpool),
        (p.SpoolPort, MemorySpool),
        (p.ChunkSink, ChunkFile),
        (p.ChunkSink, ObjectChunk),
        (p.ChunkSink, MemorySink),
        (p.TargetPort, SqliteTarget),
        (p.WriterPort, SqliteTarget),
        (p.JournalPort, SqlJournal),
    ],
    ids=lambda cls: cls.__name__,
)
def test_every_port_is_implemented_whole(port: type, made: type) -> None:
    methods = [name for name, member in vars(port).items() if callable(member) and not name.startswith("_")]
    assert [name for name in methods if not callable(getattr(made, name, None))] == []


def test_one_delivery_passes_its_points_in_pairs_and_in_the_order_of_the_phases(world: World) -> None:
    passed: list[str] = []
    world.deliver(observer=lambda point: passed.append(str(point)))
    counts = Counter(point.partition("_")[::2] for point in passed)
    for when, effect in counts:
        assert counts[(when, effect)] == counts[("before" if when == "after" else "after", effect)]
    firsts = [
        "before_journal_acquire", "before_target_claim_gate", "before_source_read", "before_spool_begin",
        "after_chunk_seal", "after_source_read", "before_target_create_stage", "before_target_grant",
        "before_writer_write", "before_target_verify_stage", "before_target_build_prepared",
        "before_target_publish", "before_target_drop_stage", "before_spool_discard", "after_journal_release",
    ]  # fmt: skip
    assert [passed.index(point) for point in firsts] == sorted(passed.index(point) for point in firsts)
    assert passed[-1] == "after_journal_release"
    assert [phase.name for phase in PHASES] == [
        "admit", "extract", "stage", "verify", "publish", "evidence", "checkpoint",
    ]  # fmt: skip


def test_a_read_is_over_when_its_last_batch_was_taken(world: World) -> None:
    passed: list[str] = []
    world.source.edit(batch_rows=2)

    def watch(point: str) -> None:
        passed.append(str(point))

    world.deliver(observer=watch)
    assert passed.index("after_source_read") > passed.index("before_chunk_seal")


def test_an_effect_that_fails_has_no_point_behind_it(world: World) -> None:
    passed: list[str] = []
    world.source.edit(faults=[ReadFault("ends_early", 1)] * 3)
    with pytest.raises(DponeError):
        world.deliver(observer=lambda point: passed.append(str(point)))
    assert passed.count("before_source_read") == 3
    assert "after_source_read" not in passed


def test_without_an_observer_the_ports_are_used_as_they_are(world: World) -> None:
    with world.open_journal() as journal:
        ports = world.ports(journal)
        assert observe(ports) is ports


def test_whoever_stops_reading_gets_no_end(world: World) -> None:
    class TwoBatches(ScriptedSource):
        def read(self, *args: object, **kwargs: object) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
            return iter([1, 2])

    passed: list[str] = []
    with world.open_journal() as journal:
        ports = world.ports(journal, source=TwoBatches(world.source.path), observer=passed.append)
        batches = observe(ports).source.read(None, nonce="", deadline=None)  # type: ignore[arg-type]
        assert next(batches) == 1
        assert passed == ["before_source_read"]
        assert list(batches) == [2]
        assert passed == ["before_source_read", "after_source_read"]
