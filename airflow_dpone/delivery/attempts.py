"""The life of one chunk attempt: a raw table of its own, one writer, and a verdict from inside the target.

``write_chunk`` walks the good road; ``settle`` finds out what became of an attempt whose process died;
``retire`` removes an attempt's table once it is certain that nobody writes to it any more.
"""

from __future__ import annotations

import logging

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.history import Attempt, advanced
from airflow_dpone.delivery.leased_run import LeasedRun
from airflow_dpone.delivery.lost_writers import COMMAND, WRITER_LIVES, command_line
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DiagnosticCode, may_continue
from airflow_dpone.errors import DponeError, Incident, TargetBusy

log = logging.getLogger(__name__)
A = AttemptEvent


def new_attempt(run: DeliveryRun, chunk: r.SealedChunk) -> Attempt:
    """An attempt that is not journaled yet: name, nonce and owner mark are decided before anything exists."""
    invocation, nonce = run.chain.invocation_key, run.ports.clock.nonce()
    name = identity.stage_name(invocation, chunk.extraction_epoch, chunk.ordinal, nonce)
    return Attempt(
        attempt_id=identity.attempt_id(invocation, chunk.ordinal, nonce),
        ordinal=chunk.ordinal,
        event=A.INTENT,
        next_sequence=0,
        stage_binding={
            "stage_name": name,
            "stage_id_sha256": identity.key_of(["dpone.stage-id.v1", name]),
            "nonce": nonce,
            "owner_binding_sha256": identity.owner_binding(invocation, name, nonce),
            "object_id": None,
            "schema_sha256": run.frozen.layout.sha256,
        },
        artifact_binding={
            "extraction_epoch": chunk.extraction_epoch,
            "ordinal": chunk.ordinal,
            "rows": chunk.rows,
            "encoded_bytes": chunk.encoded_bytes,
            "file_sha256": chunk.file_sha256,
            "typed_digest": chunk.digest_sum.digest,
        },
        writer_binding=None,
        observation=None,
    )


def write_chunk(run: DeliveryRun, chunk: r.SealedChunk, stop: Cancel) -> Attempt:
    """A new attempt from INTENT to a verdict; VERIFIED, or PARTIAL_PROVED when the content is not the
    chunk's, or UNKNOWN when it was abandoned.

    The sealed file is hashed again first: a damaged one is never granted to a writer. While the writer
    writes, other chunks have their turn.

    :param stop: ends the writer when another chunk has failed.
    """
    layout, target, spool = run.frozen.layout, run.ports.target, run.ports.spool
    spool.verify(run.chain.invocation_key, chunk)
    intent = new_attempt(run, chunk)
    name, owner = intent.stage_binding["stage_name"], intent.stage_binding["owner_binding_sha256"]
    stage = run.step(
        [intent],
        lambda: target.create_stage(name, owner, layout, claim=run.claim),
        lambda made: [_owned(_now(run, intent), made)],
        undo=target.drop_stage,
    )
    token = identity.sha256_hex(bytes.fromhex(run.ports.clock.nonce()))
    granted = advanced(_now(run, intent), A.GRANTED, writer_binding=_writer_binding(run, token))
    run.step(
        [granted],
        lambda: target.grant(stage, token),
        lambda _: [advanced(_now(run, intent), A.WRITING)],
    )
    try:
        batches = spool.read(run.chain.invocation_key, chunk, layout)
        deadline = Deadline(run.deadline.expires_at, stop)
        with run.turn.given_away():
            said = run.ports.writer.write(stage, layout, batches, token_sha256=token, deadline=deadline)
    except DponeError as error:
        run.record(
            advanced(_now(run, intent), A.UNKNOWN, observation=_observation("failure", code=error.code))
        )
        raise
    after = A.WRITER_TERMINAL if said.outcome == "success" else A.UNKNOWN
    told = _observation(said.outcome, said.rows, code=said.diagnostic_code)
    run.record(advanced(_now(run, intent), after, observation=told))
    return settle_or_abandon(run, _now(run, intent))


def settle_or_abandon(run: DeliveryRun, attempt: Attempt) -> Attempt:
    """Brings an attempt to a verdict, or leaves it behind when its writer cannot be proved gone in time.

    Whatever that writer still does, it can only do to its own table, which is part of nothing from now on. A
    new attempt may start on a new table; this one stays UNKNOWN, and custody stays, until it is retired.
    """
    try:
        return settle(run, attempt)
    except TargetBusy as busy:
        if busy.code != WRITER_LIVES or run.deadline.remaining_sec() <= 0:
            raise
        log.warning(
            "%s It is left behind, and the chunk is written anew. The session: %s",
            busy.message,
            command_line(run.chain.invocation_key),
        )
    last, said = _now(run, attempt), {"attempt_id": attempt.attempt_id, "reason": WRITER_LIVES}
    unknown = advanced(last, A.UNKNOWN, observation=_coded(last, WRITER_LIVES))
    run.record(*([] if last.event is A.UNKNOWN else [unknown]), (DeliveryEvent.ATTEMPT_ABANDONED, said))
    return _now(run, attempt)


def _now(run: LeasedRun, attempt: Attempt) -> Attempt:
    return run.chain.attempts[attempt.attempt_id]


def settle(run: LeasedRun, attempt: Attempt) -> Attempt:
    """Brings an attempt to a verdict. Only the target's own count and digest under its barrier decide.

    INTENT is looked up by name and owner; an attempt without a granted writer is retirable; after WRITING the
    barrier proves that no writer lives, then the content is compared with the sealed chunk. When the target
    holds another object under its name, the attempt is INCIDENT_RETAINED and never touched again.
    """
    try:
        return _settle(run, attempt)
    except TargetBusy as busy:
        if busy.code == WRITER_LIVES:
            named = command_line(run.chain.invocation_key)
            busy.next_action = busy.next_action.replace(COMMAND, named)
        raise
    except Incident:
        last = _now(run, attempt)
        if may_continue(last.event, A.INCIDENT_RETAINED):
            _say(run, last, A.INCIDENT_RETAINED, _coded(last, DiagnosticCode.STAGE_NOT_OURS))
        raise


def _settle(run: LeasedRun, attempt: Attempt) -> Attempt:
    if attempt.event is A.INTENT:
        attempt = _find_or_give_up(run, attempt)
    if attempt.event in (A.STAGE_OWNED, A.GRANTED):
        attempt = _say(run, attempt, A.FAILED_RETIRABLE, _observation(None, code=DiagnosticCode.NO_WRITER))
    if attempt.event is A.WRITING:
        attempt = _say(run, attempt, A.UNKNOWN, _observation("lost_ack"))
    if attempt.event in (A.WRITER_TERMINAL, A.UNKNOWN, A.QUIESCENT):
        attempt = _verdict(run, attempt)
    return attempt


def retire(run: LeasedRun, attempt: Attempt, code: DiagnosticCode) -> None:
    """Drops the attempt's table and ends its chain. A published stage goes straight from VERIFIED to RETIRED.

    :param code: why; it becomes the observation's ``diagnostic_code``.
    """
    attempt = settle(run, attempt)
    if attempt.is_over:
        return
    is_published = attempt.event is A.VERIFIED and code is DiagnosticCode.PUBLISHED_CLEANUP
    if attempt.event is not A.FAILED_RETIRABLE and not is_published:
        attempt = _say(run, attempt, A.FAILED_RETIRABLE, _coded(attempt, code))
    stage = attempt.stage
    if stage is not None:
        run.ports.target.drop_stage(stage)
    _say(run, attempt, A.RETIRED, _coded(attempt, code))


def _find_or_give_up(run: LeasedRun, attempt: Attempt) -> Attempt:
    stage = _find(run, attempt)
    if stage is None:
        return _say(run, attempt, A.FAILED_RETIRABLE, _observation(None, code=DiagnosticCode.NOT_CREATED))
    run.record(_owned(attempt, stage))
    return _now(run, attempt)


def _find(run: LeasedRun, attempt: Attempt) -> tr.StageRef | None:
    binding = attempt.stage_binding
    return run.ports.target.find_stage(binding["stage_name"], binding["owner_binding_sha256"])


def _verdict(run: LeasedRun, attempt: Attempt) -> Attempt:
    stage = _find(run, attempt)
    if stage is None:
        gone = _coded(attempt, DiagnosticCode.STAGE_GONE)
        quiescent = [] if attempt.event is A.QUIESCENT else [advanced(attempt, A.QUIESCENT, observation=gone)]
        run.record(*quiescent, advanced(attempt, A.PARTIAL_PROVED, observation=gone))
        return _now(run, attempt)
    chunk = int(attempt.artifact_binding["rows"]), str(attempt.artifact_binding["typed_digest"])
    seen = run.ports.target.verify_stage(stage, run.frozen.layout, *chunk, deadline=run.deadline)
    matches = seen.holds(*chunk)
    told = _seen(attempt, seen)
    quiescent = [] if attempt.event is A.QUIESCENT else [advanced(attempt, A.QUIESCENT, observation=told)]
    run.record(*quiescent, advanced(attempt, A.VERIFIED if matches else A.PARTIAL_PROVED, observation=told))
    return _now(run, attempt)


def _owned(attempt: Attempt, stage: tr.StageRef) -> Attempt:
    binding = {**attempt.stage_binding, "object_id": str(stage.object_id)}
    return advanced(attempt, A.STAGE_OWNED, stage_binding=binding)


def _say(run: LeasedRun, attempt: Attempt, event: AttemptEvent, observation: r.Json) -> Attempt:
    run.record(advanced(attempt, event, observation=observation))
    return _now(run, attempt)


def _writer_binding(run: DeliveryRun, token_sha256: str) -> r.Json:
    writer = run.ports.writer
    return {
        "import_backend": writer.backend,
        "proof_capability": writer.proof_capability,
        "protocol_sha256": identity.key_of(["dpone.writer-protocol.v1", writer.backend]),
        "package_sha256": identity.key_of(dict(writer.versions())),
        "capability_sha256": identity.key_of(["dpone.writer-capability.v1", writer.proof_capability]),
        "grant_token_sha256": token_sha256,
        "timeout_policy_sha256": identity.key_of(["dpone.timeouts.v1", int(run.request.deadline_sec)]),
    }


def _observation(outcome: str | None, rows: int | None = None, *, code: str | None = None) -> r.Json:
    return {
        "writer_outcome": outcome,
        "input_rows_consumed": rows,
        "count": None,
        "overflow": None,
        "limbs": None,
        "quiescence": "unverified",
        "diagnostic_code": code,
    }


def _seen(attempt: Attempt, seen: tr.StageObservation) -> r.Json:
    told = dict(attempt.observation or _observation(None))
    limbs = [str(limb) for limb in seen.digest_sum.limbs] if seen.digest_sum else None
    return {**told, "count": seen.rows, "overflow": seen.overflow, "limbs": limbs, "quiescence": "proved"}


def _coded(attempt: Attempt, code: str) -> r.Json:
    return {**dict(attempt.observation or _observation(None)), "diagnostic_code": code}
