"""Phase 6: one evidence document, bound to the exact receipt, stored under its own hash.

It says what was read, what was sealed, what the target counted and hashed, which receipt it carries, and how
the proof was made. It holds no business value, no path, no host and no secret. Writing it again is no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.planning import SOURCE_OPTIONS, TARGET_OPTIONS
from airflow_dpone.delivery.run import DeliveryRun, Phase
from airflow_dpone.delivery.states import DeliveryEvent, DeliveryState

S = DeliveryState
MAX_CHUNK_LIST_BYTES = 4 * 1024 * 1024


def store_evidence(run: DeliveryRun) -> None:
    """Assembles the document from the chain and stores it with EVIDENCED in one journal transaction."""
    document = assemble(run)
    body = identity.canonical(document)
    sha256 = identity.sha256_hex(body)
    receipt_sha256 = document["receipt"]["receipt_sha256"]
    run.record(
        jr.PutEvidence(sha256, run.chain.invocation_key, run.frozen.operation_id, body),
        (S.EVIDENCED, {"evidence_sha256": sha256, "receipt_sha256": receipt_sha256}),
    )


def assemble(run: DeliveryRun) -> r.Json:
    """The evidence document, version 1."""
    chain, plan = run.chain, run.frozen
    extracted, prepared = chain.required(S.EXTRACTED), chain.required(S.PREPARED)
    receipt = chain.required(S.PUBLISHED)["receipt"]
    embedded = run.ports.target.environment == "embedded"
    return {
        "schema": "dpone.delivery-evidence.v1",
        "invocation": {"invocation_key": chain.invocation_key, **plan.identity_fields},
        "requester": run.requester.to_json(),
        "plan_sha256": identity.key_of(dict(chain.required(S.PLANNED))),
        "window": plan.window.key,
        "source": _source(run, extracted),
        "epoch": _epoch(run, extracted),
        "raw": _raw(run),
        "prepared": {"n": prepared["rows"], "limbs": prepared["limbs"]},
        "after_image": {"n": receipt["row_count"], "limbs": _after_image_limbs(run, receipt)},
        "quality": prepared["quality"],
        "receipt": receipt,
        "timings": {name: f"{seconds:.3f}" for name, seconds in run.timings.items()},
        "environment": run.ports.target.environment,
        "package": _version(),
        "business_rows_read_back": prepared["rows"] if embedded else 0,
        "attempts": len(chain.attempts),
        "unknown_outcomes": _unknown_outcomes(run),
        **({"target_options": allowed} if (allowed := _target_options(run)) else {}),
    }


def _source(run: DeliveryRun, extracted: Mapping[str, Any]) -> r.Json:
    opened = run.chain.required(DeliveryEvent.EPOCH_OPENED)
    after = extracted["source"]
    return {
        "tables": [
            {
                "database": run.frozen.query.database,
                "table": run.frozen.query.table,
                "uuid": after["table_uuid"],
            }
        ],
        "server_id": after["server_id"],
        "parts": opened["source"]["parts"],
        "read_at": opened["source"]["read_at"],
        "read_until": after["read_at"],
        "query_nonce": opened["nonce"],
        "settings": after["settings"],
        **({"read_parts": after["read_parts"]} if "read_parts" in after else {}),
        **{name: True for name in SOURCE_OPTIONS if getattr(run.frozen.options, name)},
    }


def _epoch(run: DeliveryRun, extracted: Mapping[str, Any]) -> r.Json:
    """The chunks; only their list's hash when they would make the document too large."""
    listed = [
        {
            "ordinal": chunk.ordinal,
            "rows": chunk.rows,
            "bytes": chunk.file_bytes,
            "sha256": chunk.file_sha256,
            "digest": chunk.digest_sum.digest,
        }
        for chunk in run.chain.chunks
    ]
    return {
        "extraction_epoch": extracted["extraction_epoch"],
        "chunks": listed if len(identity.canonical(listed)) <= MAX_CHUNK_LIST_BYTES else None,
        "chunk_list_sha256": extracted["chunk_list_sha256"],
    }


def _raw(run: DeliveryRun) -> r.Json:
    """What the target itself counted and hashed in the raw tables, summed."""
    seen = [
        attempt.observation
        for chunk in run.chain.chunks
        if (attempt := run.chain.verified(chunk)) is not None and attempt.observation is not None
    ]
    limbs = [sum(int(one["limbs"][i]) for one in seen) for i in range(8)]
    return {"n": sum(one["count"] for one in seen), "limbs": [str(limb) for limb in limbs]}


def _after_image_limbs(run: DeliveryRun, receipt: Mapping[str, Any]) -> list[str] | None:
    """What the window hashed to before it was committed, if the send that was effective asked for it: then it
    is what was prepared, or nothing would have been committed."""
    sent = [one for one in run.chain.all(S.PUBLISHING) if one["fence"] == receipt["fence"]]
    limbs: list[str] = run.chain.required(S.PREPARED)["limbs"]
    return limbs if any("after_image_digest" in one for one in sent) else None


def _target_options(run: DeliveryRun) -> list[str]:
    return [name for name in (*TARGET_OPTIONS, "unmapped_columns") if getattr(run.frozen.options, name)]


def _unknown_outcomes(run: DeliveryRun) -> int:
    """A writer that was left behind is one, whatever it has said of itself."""
    abandoned = run.chain.abandoned
    chunks = sum(
        1
        for a in run.chain.attempts.values()
        if a.attempt_id in abandoned
        or (a.observation and a.observation["writer_outcome"] not in (None, "success"))
    )
    return chunks + len(run.chain.all(S.UNKNOWN))


def _version() -> str:
    try:
        return version("airflow-dpone")
    except PackageNotFoundError:
        return "unknown"


PHASE = Phase("evidence", frozenset({S.PUBLISHED}), (store_evidence,))
