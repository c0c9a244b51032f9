"""Phase 2: ONE source query is one extraction epoch; its end is journaled only when the source said that it
is the end.

Whatever breaks before EXTRACTED abandons the whole epoch: its files are removed and a new query starts.
Nothing is ever resumed by offset, and no chunk of a dead epoch can reach the target.
"""

from __future__ import annotations

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.chunk_cutter import ChunkCutter
from airflow_dpone.delivery.leased_run import Said
from airflow_dpone.delivery.run import DeliveryRun, Phase
from airflow_dpone.delivery.states import DeliveryEvent, DeliveryState
from airflow_dpone.errors import DponeError, SourceDataError, SourceMoved, SourceUnavailable
from airflow_dpone.wire.digest import DigestSum

BACKOFF_SEC = (1.0, 5.0)


def abandon_open_epoch(run: DeliveryRun) -> None:
    """An epoch that a dead process left open is thrown away whole."""
    epoch = run.chain.open_epoch
    if epoch is not None:
        _abandon(run, epoch, "the process that read it ended before the end of the data")


def read_window(run: DeliveryRun) -> None:
    """Reads the window, up to ``extraction_attempts`` times when the source moves or goes away."""
    attempts = run.frozen.limits.extraction_attempts
    for attempt in range(1, attempts + 1):
        try:
            read_epoch(run)
            return
        except (SourceMoved, SourceUnavailable) as error:
            if attempt == attempts or error.retry != "backoff":
                raise
            run.ports.clock.sleep(BACKOFF_SEC[min(attempt, len(BACKOFF_SEC)) - 1])


def read_epoch(run: DeliveryRun) -> None:
    """One query from its first block to its end, sealed and journaled."""
    query, source = run.frozen.query, run.ports.source
    epoch, nonce = run.chain.next_epoch, run.ports.clock.nonce()
    with source:
        before = source.snapshot(query)
        _same_table(run, before)
        opened = {
            "extraction_epoch": epoch,
            "nonce": nonce,
            "source": before.to_json(),
        }
        run.record((DeliveryEvent.EPOCH_OPENED, opened))
        cutter = ChunkCutter(run, epoch)
        try:
            for batch in source.read(query, nonce=nonce, deadline=run.deadline):
                run.cancel.check()
                cutter.add(batch)
            chunks = cutter.finish()
            after = source.snapshot(query)
            reason = after.moved_since(before)
            if reason is not None:
                text = f"{query.database}.{query.table} moved while it was read: {reason}"
                raise SourceMoved("dpone.source.moved", text)
        except SourceDataError as error:
            cutter.discard()
            _abandon(run, epoch, error.code)
            raise _with_hint(run, error) from None
        except DponeError as error:
            cutter.discard()
            _abandon(run, epoch, error.code)
            raise
        finally:
            cutter.close()
    extracted = _extracted(epoch, chunks, after)
    run.record((DeliveryState.EXTRACTED, {**extracted, "spool_host_id": run.ports.spool.host_id}))


def _same_table(run: DeliveryRun, now: r.SourceSnapshot) -> None:
    """The plan was made for this table with these columns; the next call plans anew."""
    planned = (run.frozen.source_uuid, run.frozen.source_schema_sha256)
    if (now.table_uuid, now.schema_sha256) != planned:
        query = run.frozen.query
        text = f"{query.database}.{query.table} was replaced or altered after the plan was made"
        raise SourceMoved("dpone.source.moved", text)


def _with_hint(run: DeliveryRun, error: SourceDataError) -> SourceDataError:
    """The same error, with a query for the rows that it means if there is one."""
    column = next((c.source for c in run.frozen.columns if c.wire.name == error.fields.get("column")), None)
    hint = run.ports.source.find_rows_hint(run.frozen.query, column, error.code) if column else ""
    action = (
        f"Count or measure them with: {hint.rstrip('.')}. Mend them in the source, then clear the task."
        if hint
        else None
    )
    return SourceDataError(error.code, error.message, next_action=action, **error.fields)


def _extracted(epoch: int, chunks: list[r.SealedChunk], after: r.SourceSnapshot) -> r.Json:
    total = sum((chunk.digest_sum for chunk in chunks), DigestSum.zero())
    listed = [chunk.to_json() for chunk in chunks]
    return {
        "extraction_epoch": epoch,
        "chunks": len(chunks),
        "rows": total.rows,
        "encoded_bytes": sum(chunk.encoded_bytes for chunk in chunks),
        "limbs": [str(limb) for limb in total.limbs],
        "digest": total.digest,
        "chunk_list_sha256": identity.chunk_list_sha256(listed),
        "source": after.to_json(),
    }


def _abandon(run: DeliveryRun, epoch: int, reason: str) -> None:
    run.ports.spool.discard_epoch(run.chain.invocation_key, epoch)
    run.record(abandoned(epoch, reason))


def abandoned(epoch: int, reason: str) -> Said:
    """The event that makes every chunk of an extraction epoch worthless. Its files are gone already."""
    return DeliveryEvent.EPOCH_ABANDONED, {"extraction_epoch": epoch, "reason": reason}


PHASE = Phase("extract", frozenset({DeliveryState.PLANNED}), (abandon_open_epoch, read_window))
