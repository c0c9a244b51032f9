"""Phase 4: one prepared table, equal to the sum of all verified chunks, and the quality checks of the route.

The sum is of multisets: a row that is missing, doubled, changed or in the wrong column makes it differ.
Nothing is visible yet; a failed check leaves the target as it is.
"""

from __future__ import annotations

import logging

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.owned import drop_prepared, is_there
from airflow_dpone.delivery.run import DeliveryRun, Phase
from airflow_dpone.delivery.states import DeliveryEvent, DeliveryState
from airflow_dpone.errors import QualityFailed, TargetRejected
from airflow_dpone.wire.digest import DigestSum

log = logging.getLogger(__name__)


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


def check_quality(run: DeliveryRun, prepared: tr.StageRef, rows: int) -> list[r.Json]:
    """All checks of the route; raises one QualityFailed that names every failed one."""
    results = [*_row_count(run, rows), *_not_null(run, prepared), *_on_empty(run, rows)]
    failed = [result for result in results if not result["passed"]]
    if failed:
        told = "; ".join(f"{result['check']}: {result['said']}" for result in failed)
        raise QualityFailed("dpone.quality.failed", told, checks=[result["check"] for result in failed])
    return results


def _result(check: str, passed: bool, said: str) -> r.Json:
    return {"check": check, "passed": passed, "said": said}


def _row_count(run: DeliveryRun, rows: int) -> list[r.Json]:
    bounds = run.frozen.quality.row_count
    if bounds is None:
        return []
    low, high = bounds.min_rows, bounds.max_rows
    passed = (low is None or rows >= low) and (high is None or rows <= high)
    return [
        _result("row_count", passed, f"{rows} rows, allowed {low or 0}..{'any' if high is None else high}")
    ]


def _not_null(run: DeliveryRun, prepared: tr.StageRef) -> list[r.Json]:
    columns = run.frozen.quality.not_null
    if not columns:
        return []
    nulls = run.ports.target.count_nulls(prepared, columns)
    return [_result(f"not_null({name})", nulls[name] == 0, f"{nulls[name]} NULLs") for name in columns]


def _on_empty(run: DeliveryRun, rows: int) -> list[r.Json]:
    """What an empty window does (option ``on_empty``)."""
    if rows > 0:
        return []
    plan = run.frozen
    there = run.ports.target.count_window(plan.target, plan.target_window_column, plan.window)
    rule = plan.options.on_empty
    passed = rule == "publish" or (rule == "fail_if_target_has_rows" and there == 0)
    said = f"the source has 0 rows, the target has {there}; option on_empty={rule!r}"
    if passed and there:
        log.warning("the window is empty in the source: the publication will delete %s rows", there)
    return [_result("on_empty", passed, said)]


PHASE = Phase("verify", frozenset({DeliveryState.STAGED}), (prepare,))
