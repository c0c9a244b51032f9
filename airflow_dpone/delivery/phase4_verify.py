"""Phase 4: one prepared table, equal to the sum of all verified chunks, and the quality checks of the route.

The sum is of multisets: a row that is missing, doubled, changed or in the wrong column makes it differ.
Nothing is visible yet; a failed check leaves the target as it is.
"""

from __future__ import annotations

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.owned import drop_prepared, is_there
from airflow_dpone.delivery.quality import check_quality
from airflow_dpone.delivery.run import DeliveryRun, Phase
from airflow_dpone.delivery.states import DeliveryEvent, DeliveryState
from airflow_dpone.errors import TargetRejected
from airflow_dpone.wire.digest import DigestSum


def expected_content(run: DeliveryRun) -> DigestSum:
    """The sum of the sealed chunks: what the prepared table must hold."""
    return sum((chunk.digest_sum for chunk in run.chain.chunks), DigestSum.zero())


def prepare(run: DeliveryRun) -> None:
    """Builds and proves the prepared table, runs the checks, journals PREPARED."""
    with run.open_target() as target:
        drop_prepared(run)
        intent, expected, layout = _intent(run), expected_content(run), run.frozen.layout
        name, owner = intent["stage_name"], intent["owner_binding_sha256"]
        raw = _raw(run)
        run.step(
            [(DeliveryEvent.PREPARE_INTENT, intent)],
            lambda: target.build_prepared(name, owner, layout, raw, expected.rows, claim=run.claim),
            lambda built: [(DeliveryState.PREPARED, _prepared(run, *built, expected))],
            undo=lambda built: target.drop_stage(built[0]),
        )
    run.progress("verify", expected.rows, expected.rows, "rows")


def _prepared(run: DeliveryRun, stage: tr.StageRef, seen: tr.StageObservation, expected: DigestSum) -> r.Json:
    """Payload of PREPARED; raises when the content is not the sealed one, or a quality check says no."""
    if not seen.proves(expected):
        text = f"the prepared table holds {seen.rows} rows that are not the {expected.rows} sealed ones"
        raise TargetRejected("dpone.target.prepared_not_proved", text, rows=seen.rows, expected=expected.rows)
    return {
        "stage_name": stage.name,
        "owner_binding_sha256": stage.owner,
        "object_id": str(stage.object_id),
        "rows": expected.rows,
        "limbs": [str(limb) for limb in expected.limbs],
        "digest": expected.digest,
        "quality": check_quality(run, stage, expected.rows),
        "proof": None,
    }


def _intent(run: DeliveryRun) -> r.Json:
    invocation, nonce = run.chain.invocation_key, run.ports.clock.nonce()
    epoch = run.chain.required(DeliveryState.EXTRACTED)["extraction_epoch"]
    name = identity.stage_name(invocation, epoch, "prepared", nonce)
    return {
        "stage_name": name,
        "nonce": nonce,
        "owner_binding_sha256": identity.owner_binding(invocation, name, nonce),
    }


def _raw(run: DeliveryRun) -> list[tr.StageRef]:
    found = []
    for chunk in run.chain.chunks:
        attempt = run.chain.verified(chunk)
        stage = attempt.stage if attempt else None
        if stage is None or not is_there(run, stage):
            text = f"the proved raw table of chunk {chunk.ordinal} is gone"
            raise TargetRejected("dpone.target.stage_lost", text, ordinal=chunk.ordinal)
        found.append(stage)
    return found


PHASE = Phase("verify", frozenset({DeliveryState.STAGED}), (prepare,))
