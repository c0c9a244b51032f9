"""Names of things: every key is SHA-256 over RFC 8785 canonical JSON; all but attempt ids and chunk lists
begin with a domain label.

Nothing secret, no path and no host ever enters a key. Integers in canonical JSON stay below 2**53 by
construction; greater ones are written as decimal strings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import rfc8785

CONTRACT_VERSION = 1


def canonical(document: Any) -> bytes:
    """RFC 8785 bytes of a JSON document. Raises if an integer is 2**53 or more, or a value is no JSON."""
    return rfc8785.dumps(document)


def sha256_hex(data: bytes) -> str:
    """64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def key_of(document: Any) -> str:
    """SHA-256 of the canonical bytes, lower-case hex."""
    return sha256_hex(canonical(document))


def target_key(installation_id: str, schema: str, table: str) -> str:
    """The target table, by the GUID inside its database and its names as stored in the catalog."""
    return key_of(["dpone.target.v1", installation_id.lower(), schema, table])


def delivery_key(dag_id: str, run_id: str, delivery_task_id: str, map_index: int) -> str:
    """Who asked. Stable across retries and clears; neither target nor window is part of it."""
    return key_of(["dpone.delivery.v1", dag_id, run_id, delivery_task_id, map_index])


def route_scope(source_name: str, database: str, table: str, window_column: str | None) -> str:
    """Which route owns a target. The column mapping is not part of it, so a route may gain columns."""
    return key_of(["dpone.route.v1", source_name, database, table, window_column])


def invocation_key(identity_fields: Mapping[str, Any]) -> str:
    """One generation of one delivery with everything that its content depends on."""
    return key_of({"contract": "dpone.invocation.v1", **identity_fields})


def operation_id(invocation: str, generation: int) -> str:
    """The publication of one generation: the same for every try, and the receipt's primary key."""
    return key_of(["dpone.operation.v1", invocation, generation, "publish"])


def attempt_id(invocation: str, ordinal: int, nonce: str) -> str:
    """One attempt to write one chunk."""
    return key_of([invocation, ordinal, nonce])


def stage_name(invocation: str, extraction_epoch: int, ordinal: int | str, nonce: str) -> str:
    """``r_``/``p_`` and 40 hex digits: never used twice, because the 256-bit nonce is part of it."""
    digest = key_of(["dpone.stage.v1", invocation, extraction_epoch, ordinal, nonce])
    return ("p_" if ordinal == "prepared" else "r_") + digest[:40]


def owner_binding(invocation: str, name: str, nonce: str) -> str:
    """What the owner mark of a staging table says: only who knows the journal can make it."""
    return key_of(["dpone.owner.v1", invocation, name, nonce])


def chunk_list_sha256(chunks: Sequence[Mapping[str, Any]]) -> str:
    """The exact ordered list of an extraction's chunks: ordinal, file hash, digest."""
    return key_of([[chunk["ordinal"], chunk["file_sha256"], chunk["digest"]] for chunk in chunks])
