"""The frames between a delivery and its writer process, and everything that is refused in one.

A frame is its length (four bytes, big-endian) and so many bytes of canonical JSON (RFC 8785) that its schema
admits. The schemas are ``schemas/*.schema.json``. Who reads a frame takes its bytes until the pipe's end, so
that nothing can follow it; only ``end_of_rows`` comes after something else, the Arrow stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, NoReturn, Protocol

import rfc8785
from jsonschema_rs import Draft202012Validator

PROTOCOL = "dpone.tds-writer.v1"
PROOF_CAPABILITY = "tds-session-applock-v1"
HEAD_BYTES = 4


class Kind(StrEnum):
    """The kinds of frames; each is the name of its schema."""

    WRITE_REQUEST = "write_request"
    CREDENTIALS = "credentials"
    END_OF_ROWS = "end_of_rows"
    WRITE_RESULT = "write_result"


MAX_BYTES: Mapping[Kind, int] = {
    Kind.WRITE_REQUEST: 1 << 20,
    Kind.CREDENTIALS: 1 << 16,
    Kind.END_OF_ROWS: 1 << 10,
    Kind.WRITE_RESULT: 1 << 16,
}
"""The longest payload of each kind."""


class Outcome(StrEnum):
    """How a write ended. Only ``success`` says how many rows; all others leave open what is in the stage."""

    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    LOST_ACK = "lost_ack"
    CLEANUP_FAILED = "cleanup_failed"
    CUSTODY_LOST = "custody_lost"


class Diagnostic(StrEnum):
    """Why a write is no success. Tokens only: no message of a driver leaves the process that caught it."""

    # said by the writer process
    CONNECT = "dpone.writer.connect"
    SESSION = "dpone.writer.session"
    LOCK_REFUSED = "dpone.writer.lock_refused"
    GRANT_REVOKED = "dpone.writer.grant_revoked"
    SESSION_CHANGED = "dpone.writer.session_changed"
    SESSION_LOST = "dpone.writer.session_lost"
    ROWS_CUT_OFF = "dpone.writer.rows_cut_off"
    LOAD = "dpone.writer.load"
    ROW_COUNT = "dpone.writer.row_count"
    PANIC = "dpone.writer.panic"
    FAULT = "dpone.writer.fault"
    DEADLINE = "dpone.writer.deadline"
    DISCONNECT = "dpone.writer.disconnect"
    # said by its supervisor
    REQUEST = "dpone.writer.request"
    NOT_STARTED = "dpone.writer.not_started"
    PROCESS_LOST = "dpone.writer.process_lost"
    PROTOCOL = "dpone.writer.protocol"
    NOT_REAPED = "dpone.writer.not_reaped"


class ProtocolFault(Exception):
    """Bytes that are no frame of the protocol. Its text names the rule, never what the bytes were."""


class Readable(Protocol):
    """A blocking stream of bytes whose ``read`` is short only at its end."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, or what is left."""


def encode(kind: Kind, body: Mapping[str, Any]) -> bytes:
    """One frame.

    :raises ProtocolFault: the schema does not admit the body, or it is too long.
    """
    _check(kind, body)
    try:
        payload = rfc8785.dumps(dict(body))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise ProtocolFault(f"{kind}: it has no canonical form ({type(error).__name__})") from None
    if len(payload) > MAX_BYTES[kind]:
        raise ProtocolFault(f"{kind}: {len(payload)} bytes, more than {MAX_BYTES[kind]}")
    return len(payload).to_bytes(HEAD_BYTES, "big") + payload


def decode(kind: Kind, data: bytes | bytearray) -> dict[str, Any]:
    """The body of the only frame in these bytes.

    :raises ProtocolFault: it is empty, too long, cut off, followed by something, no UTF-8, no JSON, not
        canonical, names a key twice, or the schema does not admit it.
    """
    if len(data) < HEAD_BYTES:
        raise ProtocolFault(f"{kind}: cut off in its length")
    size = _admitted(kind, data[:HEAD_BYTES])
    if len(data) != HEAD_BYTES + size:
        what = "cut off" if len(data) < HEAD_BYTES + size else "followed by more bytes"
        raise ProtocolFault(f"{kind}: {what}")
    return _body(kind, bytes(data[HEAD_BYTES:]))


def read(kind: Kind, stream: Readable) -> dict[str, Any]:
    """The body of the next frame, which must be the last thing in the stream.

    :raises ProtocolFault: as :func:`decode`. Not more than the longest frame is ever held.
    """
    head = stream.read(HEAD_BYTES)
    size = _admitted(kind, head) if len(head) == HEAD_BYTES else 0
    return decode(kind, head + stream.read(size) + stream.read(1))


def _admitted(kind: Kind, head: bytes | bytearray) -> int:
    size = int.from_bytes(head, "big")
    if not 0 < size <= MAX_BYTES[kind]:
        raise ProtocolFault(f"{kind}: its length is not in 1..{MAX_BYTES[kind]}")
    return size


def _body(kind: Kind, payload: bytes) -> dict[str, Any]:
    try:
        body = json.loads(
            payload.decode("utf-8"), object_pairs_hook=_no_key_twice, parse_constant=_no_constant
        )
    except UnicodeDecodeError:
        raise ProtocolFault(f"{kind}: no UTF-8") from None
    except (ValueError, RecursionError):
        raise ProtocolFault(f"{kind}: no JSON") from None
    _check(kind, body)
    try:
        canonical = rfc8785.dumps(body)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        canonical = b""
    if canonical != payload:
        raise ProtocolFault(f"{kind}: not canonical")
    return dict(body)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise ProtocolFault("a key stands in it twice")
    return body


def _no_constant(_: str) -> NoReturn:
    raise ValueError("NaN and infinities are no JSON")


def _check(kind: Kind, body: object) -> None:
    """A message of the library would hold what it found, so only the rule and the place are told."""
    validator = _validator(kind)
    if validator.is_valid(body):
        return
    found = next(validator.iter_errors(body))
    place = "/".join(map(str, found.instance_path)) or "its top"
    raise ProtocolFault(f"{kind}: {found.kind.name} is broken at {place}")


@cache
def _validator(kind: Kind) -> Draft202012Validator:
    schema = resources.files("airflow_dpone.bulk_writer").joinpath(f"schemas/{kind}.schema.json")
    return Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))
