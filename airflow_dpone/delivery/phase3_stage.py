"""Phase 3: every sealed chunk is proved inside the target, in a raw table of its own that no reader sees.

A verified chunk is kept across crashes. What a dead process left is settled first: its writer is proved gone,
then its content is judged, and only what the target itself counted and hashed as equal is kept. Several
writers may work at once (``import_parallelism``), each on a chunk of its own.
"""

from __future__ import annotations

import logging

from airflow_dpone.delivery import attempts, identity
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.phase2_extract import BACKOFF_SEC, abandoned
from airflow_dpone.delivery.run import DeliveryRun, Phase
from airflow_dpone.delivery.states import AttemptEvent, DeliveryState, DiagnosticCode
from airflow_dpone.delivery.turns import for_each
from airflow_dpone.errors import DponeError, JournalError, SpoolError, TargetRejected

log = logging.getLogger(__name__)
LOST = frozenset({"dpone.spool.missing", "dpone.spool.damaged"})
"""A sealed chunk is gone for good. Anything else (another host, a store that does not answer) is no loss."""


def check_chunk_list(run: DeliveryRun) -> None:
    """The chunks in the chain must be exactly the list that the end of the extraction named, on this host."""
    extracted = run.chain.required(DeliveryState.EXTRACTED)
    listed = identity.chunk_list_sha256([chunk.to_json() for chunk in run.chain.chunks])
    if listed != extracted["chunk_list_sha256"]:
        text = "the sealed chunks are not the ones that the end of the extraction listed"
        raise JournalError("dpone.journal.chain_broken", text, invocation_key=run.chain.invocation_key)


def stage_chunks(run: DeliveryRun) -> None:
    """Settles what is left, then writes what is missing. A chunk that is lost before it was proved in the
    target ends the whole extraction: the delivery is PLANNED again and reads the window anew."""
    chunks = run.chain.chunks
    at_once = max(1, min(run.frozen.limits.import_writers, len(chunks)))
    staged_chunks: set[int] = set()

    def stage(chunk: r.SealedChunk, stop: Cancel) -> None:
        stage_chunk(run, chunk, stop)
        staged_chunks.add(chunk.ordinal)
        run.progress("stage", len(staged_chunks), len(chunks), "chunks")

    with run.open_target():
        try:
            for_each(chunks, stage, at_once=at_once, turn=run.turn, outer=run.cancel)
        except SpoolError as loss:
            if loss.code not in LOST:
                raise
            give_up_extraction(run, loss)
            return
    staged = [
        {"ordinal": chunk.ordinal, "attempt_id": verified.attempt_id}
        for chunk in chunks
        if (verified := run.chain.verified(chunk)) is not None
    ]
    rows = sum(chunk.rows for chunk in chunks)
    run.record((DeliveryState.STAGED, {"chunks": staged, "rows": rows}))


def stage_chunk(run: DeliveryRun, chunk: r.SealedChunk, stop: Cancel) -> None:
    """One chunk to VERIFIED, in at most ``chunk_attempts`` writes.

    :param stop: set when another chunk has failed: then nothing is written again.
    """
    allowed = run.frozen.limits.chunk_attempts
    for attempt in range(allowed + 1):
        _settle_left(run, chunk)
        if run.chain.verified(chunk) is not None:
            return
        if attempt == allowed:
            break
        try:
            _check_host(run)
            attempts.write_chunk(run, chunk, stop)
        except DponeError as error:
            if error.retry != "backoff" or isinstance(error, JournalError) or attempt + 1 == allowed:
                raise
            with run.turn.given_away():
                run.ports.clock.sleep(BACKOFF_SEC[min(attempt, len(BACKOFF_SEC) - 1)])
            if stop.is_set:
                raise
    text = f"chunk {chunk.ordinal} was written {allowed} times and never held what was sealed"
    raise TargetRejected("dpone.target.chunk_not_proved", text, ordinal=chunk.ordinal, rows=chunk.rows)


def give_up_extraction(run: DeliveryRun, loss: SpoolError) -> None:
    """Proves every writer of the epoch gone, retires its stages, and makes the epoch worthless: the state is
    PLANNED again. Raises ``loss`` when that happened ``extraction_attempts`` times in this call.

    A crash in between leaves EXTRACTED; the next call misses the same chunk and ends here again.
    """
    run.lost_extractions += 1
    if run.lost_extractions >= run.frozen.limits.extraction_attempts:
        raise loss
    log.warning("%s Everything of this extraction is given up and the window is read again.", loss.message)
    for attempt in list(run.chain.attempts.values()):
        if not attempt.is_over:
            attempts.retire(run, attempt, DiagnosticCode.SPOOL_LOST)
    epoch = run.chain.required(DeliveryState.EXTRACTED)["extraction_epoch"]
    run.ports.spool.discard_epoch(run.chain.invocation_key, epoch)
    plan = run.chain.required(DeliveryState.PLANNED)
    run.record(abandoned(epoch, loss.code), (DeliveryState.PLANNED, plan))


def _settle_left(run: DeliveryRun, chunk: r.SealedChunk) -> None:
    """Attempts of dead processes, and of the write before, come to a verdict; only a proved one is kept. What
    was abandoned is left to the end of the delivery."""
    for attempt in run.chain.attempts_of(chunk):
        if attempt.attempt_id in run.chain.abandoned:
            continue
        settled = attempts.settle_or_abandon(run, attempt)
        if settled.attempt_id in run.chain.abandoned:
            continue
        if settled.event is not AttemptEvent.VERIFIED:
            attempts.retire(run, settled, DiagnosticCode.NOT_THE_SEALED_CONTENT)


def _check_host(run: DeliveryRun) -> None:
    sealed_on = run.chain.required(DeliveryState.EXTRACTED)["spool_host_id"]
    here = run.ports.spool.host_id
    if sealed_on != here:
        text = f"the chunks were sealed on host {sealed_on}, this is {here}"
        raise SpoolError("dpone.spool.on_other_host", text)


PHASE = Phase("stage", frozenset({DeliveryState.EXTRACTED}), (check_chunk_list, stage_chunks))
