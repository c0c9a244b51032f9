"""A writer that lies is found out by what the target holds, and nothing of it is ever published (B76).

The embedded target is the real one but for its writer; the source is a script. Each lie says that every row
arrived, so only count and digest of the raw table can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import TargetRejected
from airflow_dpone.settings import Limits
from airflow_dpone.target_embedded import stages, storage
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.target import EmbeddedTarget
from airflow_dpone.wire.types import WireLayout
from tests.fakes import lies
from tests.fakes.embedded_shop import Shop
from tests.fakes.world import SCHEMA, TABLE


class LyingTarget(EmbeddedTarget):
    """The embedded target with a writer that writes something else.

    :param lie: what it makes of the rows. :param only: the writes that lie, counted from 0; None for all.
    """

    def __init__(self, path: str, lie: lies.Lie, only: Sequence[int] | None = None) -> None:
        super().__init__(path, lock_wait_sec=0)
        self._lie, self._only = lie, only
        self.writes = 0

    def write(
        self,
        stage: tr.StageRef,
        layout: WireLayout,
        batches: Iterator[pa.RecordBatch],
        *,
        token_sha256: str,
        deadline: Deadline,
    ) -> tr.WriterObservation:
        """Writes the lie, and says that all went well."""
        rows = [row for batch in batches for row in batch.to_pylist()]
        told = self._lie(rows) if self._only is None or self.writes in self._only else rows
        self.writes += 1
        with self._session.transaction():
            assert stages.is_granted(self._session, stage, token_sha256)
            self._session.register(sql.BATCH_VIEW, _batch(told, layout))
            self._session.number(sql.write_batch(stage.name, storage.stage_columns(layout)))
        self._session.unregister(sql.BATCH_VIEW)
        return tr.WriterObservation("success", len(rows))


def _batch(rows: list[lies.Row], layout: WireLayout) -> pa.RecordBatch:
    """As a writer registers it; bytes of any length, since a lie may cut them."""
    schema = layout.arrow_schema
    at = schema.get_field_index("mark")
    batch = pa.RecordBatch.from_pylist(rows, schema=schema.set(at, pa.field("mark", pa.binary())))
    return batch.rename_columns([f"c{i}" for i in range(batch.num_columns)])


@pytest.fixture(scope="module")
def fresh_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Made once and copied."""
    return Shop.create(tmp_path_factory.mktemp("lies") / "shop")


@pytest.fixture
def shop(fresh_shop: Shop, tmp_path: Path) -> Shop:
    """A shop that nothing was delivered from."""
    return fresh_shop.copy(tmp_path / "shop")


def honest(rows: list[lies.Row]) -> list[lies.Row]:
    """No lie at all."""
    return rows


def test_without_a_lie_the_same_rows_are_published(shop: Shop) -> None:
    """B24: NULL stays NULL in a column that has a default. B35: the text of a GUID is equal on both sides."""
    target = LyingTarget(shop.path, honest)
    result = shop.deliver(target)
    assert (result.rows, result.deleted_rows, target.writes) == (6, 1, 1)
    found = shop.query(
        f"SELECT * EXCLUDE (ref), ref::VARCHAR FROM {SCHEMA}.{TABLE} WHERE id < 900 ORDER BY id"
    )
    wanted = [
        (*(row[name] for name, *_ in lies.COLUMNS if name != "ref"), str(UUID(bytes=row["ref"])))
        for row in lies.ROWS
    ]
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize("lie", lies.LIES.values(), ids=lies.LIES.keys())
def test_what_a_lying_writer_wrote_is_never_published(shop: Shop, lie: lies.Lie) -> None:
    """B76, and B03, B24, B28, B31, B35, B73 as what a writer did: never proved; target untouched and free."""
    before = shop.rows()
    target = LyingTarget(shop.path, lie)
    with pytest.raises(TargetRejected) as raised:
        shop.deliver(target, Limits(chunk_attempts=1))
    assert (raised.value.code, raised.value.state_after) == ("dpone.target.chunk_not_proved", "FAILED")
    assert raised.value.fields == {"ordinal": 0, "rows": 6}
    assert shop.rows() == before
    assert shop.untidy() == []


def test_one_chunk_of_several_is_named_and_none_is_published(shop: Shop) -> None:
    """B76: the sums of a whole window would hide a row that moved between chunks; each chunk is proved."""
    before = shop.rows()
    target = LyingTarget(shop.path, lies.LIES["two columns of equal type are swapped"], only=(1, 2, 3))
    with pytest.raises(TargetRejected) as raised:
        shop.deliver(target, Limits(max_rows=2))
    assert raised.value.fields == {"ordinal": 1, "rows": 2}
    assert target.writes == 4, "the first chunk once, the second as often as it may be tried"
    assert shop.rows() == before
    assert shop.untidy() == []


def test_a_writer_that_lied_once_is_asked_again(shop: Shop) -> None:
    """B55: in a stage of its own; what the lie left is never appended to."""
    target = LyingTarget(shop.path, lies.LIES["a row is doubled"], only=(0,))
    assert shop.deliver(target).rows == 6
    assert target.writes == 2
    assert shop.query(f"SELECT count(*) FROM {SCHEMA}.{TABLE} WHERE id < 900") == [(6,)]
    assert [what for what in shop.untidy() if not what.startswith("receipt")] == []
