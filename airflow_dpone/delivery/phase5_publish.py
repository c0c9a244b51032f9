"""Phase 5: the window becomes visible in one transaction that carries a receipt.

Every send has a fence of its own, journaled in its PUBLISHING event before the first byte leaves.
``committed`` counts only when another session has read the receipt; ``rolled_back`` is proof; anything else
is UNKNOWN and goes to the probe (``recover``). Nothing unknown is ever sent again.
"""

from __future__ import annotations

from airflow_dpone.delivery import drift, identity, recover
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.owned import is_there
from airflow_dpone.delivery.run import DeliveryRun, Phase
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import DponeError, TargetBusy, TargetRejected, error_of
from airflow_dpone.wire.digest import DigestSum

S = DeliveryState


SENDS_PER_TRY = 3


def publish(run: DeliveryRun) -> None:
    """Sends the publication and settles its answer; sends again only what is proved not effective.

    What admission would refuse is looked for once more: nobody has watched the table since.
    """
    with run.open_target():
        drift.refuse_obstacles(run)
        for _ in range(SENDS_PER_TRY):
            outcome = send_once(run)
            if run.state is not S.PREPARED:
                return
    why = f"error {outcome.error_number}" if outcome.error_number else outcome.code
    told = f"; about the last one the target said {why}" if why else ""
    text = f"{SENDS_PER_TRY} publications were sent and each is proved not effective{told}"
    raise TargetBusy("dpone.publish.not_effective", text, operation_id=run.frozen.operation_id)


def send_once(run: DeliveryRun) -> tr.PublishOutcome:
    """One send with a fence of its own, journaled before its first byte leaves; what it was answered."""
    intent, request = make_request(run)
    rows = request.expected.rows
    sent = {
        "operation_id": request.draft.operation_id,
        "fence": str(request.draft.fence),
        "intent": intent,
        "intent_sha256": request.draft.intent_sha256,
        "receipt": request.draft.to_json(),
        "receipt_sha256": request.draft.sha256,
        **({"after_image_digest": True} if request.after_image_digest else {}),
    }
    run.progress("publish", 0, rows, "rows")
    outcome = run.step([(S.PUBLISHING, sent)], lambda: _send(run, request))
    settle_outcome(run, outcome)
    run.progress("publish", rows, rows, "rows")
    return outcome


def _send(run: DeliveryRun, request: tr.PublishRequest) -> tr.PublishOutcome:
    try:
        return run.ports.target.publish(request)
    except DponeError as error:
        return tr.PublishOutcome("ended_early", error.code)


def settle_outcome(run: DeliveryRun, outcome: tr.PublishOutcome) -> None:
    """Journals what the sentinel proves; without proof the target is asked."""
    if outcome.kind in ("committed", "already"):
        recover.confirm_receipt(run)
    elif outcome.kind == "rolled_back":
        code = outcome.code or "dpone.publish.failed"
        run.record((S.PREPARED, recover.not_effective(run, "rolled_back", code, outcome.error_number)))
        text = outcome.detail or "the target refused the publication"
        if code == "dpone.publish.target_changed":
            told = drift.explained(run.frozen, run.ports.target)
            text = f"{text}: {told}" if told else text
        raise error_of(code, f"{text}; rolled back, nothing changed", error_number=outcome.error_number)
    else:
        recover.settle_publication(run)


def prepared_stage(run: DeliveryRun) -> tuple[tr.StageRef, DigestSum]:
    """The prepared table and its content, as journaled; raises TargetRejected when the table is gone."""
    body = run.chain.required(S.PREPARED)
    stage = tr.StageRef(body["stage_name"], body["owner_binding_sha256"], int(body["object_id"]))
    if not is_there(run, stage):
        raise TargetRejected("dpone.target.stage_lost", "the proved prepared table is gone")
    return stage, DigestSum(body["rows"], tuple(int(limb) for limb in body["limbs"]))


def make_request(run: DeliveryRun) -> tuple[r.Json, tr.PublishRequest]:
    """Intent and request of one send, with a new fence. The intent is the same for every send of a
    generation."""
    plan = run.frozen
    stage, content = prepared_stage(run)
    intent = {
        "operation_id": plan.operation_id,
        "target": plan.target.to_json(),
        "window": plan.window.key,
        "prepared": [stage.name, str(stage.object_id)],
        "rows": content.rows,
        "limbs": [str(limb) for limb in content.limbs],
        "wire_layout_sha256": plan.layout.sha256,
    }
    draft = tr.ReceiptDraft(
        operation_id=plan.operation_id,
        target_key=plan.target.target_key,
        delivery_key=plan.delivery_key,
        generation=plan.generation,
        invocation_key=run.chain.invocation_key,
        route_scope=plan.route_scope,
        journal_id=run.ports.journal.journal_id,
        intent_sha256=identity.key_of(intent),
        strategy=plan.strategy,
        window_key=plan.window.key,
        row_count=content.rows,
        digest=content.digest,
        wire_layout_sha256=plan.layout.sha256,
        fence=run.new_fence(),
        lock_mode=run.ports.target.lock_mode,
    )
    request = tr.PublishRequest(
        target=plan.target,
        prepared=stage,
        expected=content,
        layout=plan.layout,
        window=plan.window,
        window_column=plan.target_window_column,
        draft=draft,
        after_image_digest=plan.options.proves_after_image,
    )
    return intent, request


PHASE = Phase("publish", frozenset({S.PREPARED}), (publish,))
