"""The framed protocol: what is admitted, and every way in which bytes are refused."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import jsonschema
import pytest
import rfc8785

from airflow_dpone.bulk_writer import messages
from airflow_dpone.bulk_writer.messages import MAX_BYTES, Diagnostic, Kind, Outcome, ProtocolFault
from tests.architecture.package_source import PACKAGE, ROOT

SHARED = ROOT / "companion" / "protocol"
SHIPPED = ROOT / PACKAGE / "bulk_writer" / "schemas"
HEX = "0123456789abcdef" * 4

BODIES: dict[Kind, dict[str, Any]] = {
    Kind.WRITE_REQUEST: {
        "schema_version": 1,
        "protocol": "dpone.tds-writer.v1",
        "proof_capability": "tds-session-applock-v1",
        "stage_schema": "dpone_stage",
        "stage_name": "r_1",
        "object_id": 7,
        "owner": HEX,
        "grant_token_sha256": HEX,
        "layout_sha256": HEX,
        "columns": [{"ordinal": 0, "target_name": "ключ", "target_type": "bigint", "nullable": False}],
        "deadline_budget_ms": 1000,
    },
    Kind.CREDENTIALS: {
        "schema_version": 1,
        "server": "db.example",
        "port": 1433,
        "database": "shop",
        "user": "dpone",
        "password": "a;b{c}'\"\u20ac",
        "access_token": "",
        "encrypt": "yes",
        "trust_server_certificate": False,
        "host_name_in_certificate": "",
        "login_timeout_sec": 15,
    },
    Kind.END_OF_ROWS: {"schema_version": 1, "rows": 3},
    Kind.WRITE_RESULT: {
        "schema_version": 1,
        "protocol": "dpone.tds-writer.v1",
        "grant_token_sha256": HEX,
        "classification": "success",
        "diagnostic_code": None,
        "input_rows_consumed": 3,
        "session": {"spid": 51, "login_time": "2025-01-02T03:04:05.678"},
        "metrics": {"connect_ms": 1, "write_ms": 2, "dispose_ms": None},
    },
}
EACH = pytest.mark.parametrize("kind", list(Kind))


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def payload_of(kind: Kind) -> bytes:
    return rfc8785.dumps(BODIES[kind])


@EACH
def test_a_frame_comes_back_as_it_was_sent(kind: Kind) -> None:
    data = messages.encode(kind, BODIES[kind])
    assert data == framed(payload_of(kind))
    assert messages.decode(kind, data) == BODIES[kind]
    assert messages.read(kind, io.BytesIO(data)) == BODIES[kind]


@EACH
def test_the_schemas_are_the_published_ones(kind: Kind) -> None:
    name = f"{kind}.schema.json"
    assert (SHIPPED / name).read_bytes() == (SHARED / name).read_bytes()


def test_no_schema_is_forgotten() -> None:
    names = sorted(f"{kind}.schema.json" for kind in Kind)
    assert sorted(path.name for path in SHIPPED.iterdir()) == names
    assert sorted(path.name for path in SHARED.iterdir()) == names


@EACH
def test_every_object_of_a_schema_is_closed_and_names_all_its_fields(kind: Kind) -> None:
    def objects(schema: Any) -> Any:
        if isinstance(schema, dict):
            if "additionalProperties" in schema:
                yield schema
            for value in schema.values():
                yield from objects(value)
        elif isinstance(schema, list):
            for value in schema:
                yield from objects(value)

    schema = json.loads((SHARED / f"{kind}.schema.json").read_text())
    found = list(objects(schema))
    assert found
    for one in found:
        assert one["additionalProperties"] is False
        assert sorted(one["required"]) == sorted(one["properties"])


def test_the_outcomes_and_diagnostics_of_the_schema_are_those_of_the_code() -> None:
    properties = json.loads((SHARED / "write_result.schema.json").read_text())["properties"]
    assert properties["classification"]["enum"] == list(Outcome)
    by_the_supervisor = {
        *(Diagnostic.REQUEST, Diagnostic.NOT_STARTED, Diagnostic.PROCESS_LOST),
        *(Diagnostic.PROTOCOL, Diagnostic.NOT_REAPED),
    }
    said = [code for code in Diagnostic if code not in by_the_supervisor]
    assert properties["diagnostic_code"]["enum"] == [None, *said]


REFUSED = {
    "nothing": (b"", "cut off in its length"),
    "half a length": (b"\0\0\1", "cut off in its length"),
    "no length": (framed(b""), "its length"),
    "a length and no payload": (b"\0\0\0\5", "cut off"),
    "the longest length": (b"\xff\xff\xff\xff" + b"x" * 8, "its length"),
    "no UTF-8": (framed(b'{"rows":"\xff"}'), "no UTF-8"),
    "a surrogate as UTF-8": (framed(b'{"rows":"\xed\xa0\x80"}'), "no UTF-8"),
    "no JSON": (framed(b"rows"), "no JSON"),
    "nested without an end": (framed(b"[" * 1000), "no JSON"),
    "NaN": (framed(b'{"rows":NaN,"schema_version":1}'), "no JSON"),
    "two documents": (framed(b"{}{}"), "no JSON"),
    "no object": (framed(b"[1]"), "type is broken"),
    "a number": (framed(b"3"), "type is broken"),
    "blanks": (framed(b'{"rows": 3,"schema_version":1}'), "not canonical"),
    "another order": (framed(b'{"schema_version":1,"rows":3}'), "not canonical"),
    "a byte order mark": (framed(b'\xef\xbb\xbf{"rows":3,"schema_version":1}'), "no JSON"),
    "3.0 for 3": (framed(b'{"rows":3.0,"schema_version":1}'), "not canonical"),
    "3e0 for 3": (framed(b'{"rows":3e0,"schema_version":1}'), "not canonical"),
    "an escape that is not needed": (framed(b'{"r\\u006fws":3,"schema_version":1}'), "not canonical"),
    "a key twice": (framed(b'{"rows":3,"rows":3,"schema_version":1}'), "twice"),
    "a key twice, other values": (framed(b'{"rows":4,"rows":3,"schema_version":1}'), "twice"),
    "a field too many": (framed(b'{"extra":0,"rows":3,"schema_version":1}'), "additionalProperties"),
    "a field too few": (framed(b'{"rows":3}'), "required is broken"),
    "another type": (framed(b'{"rows":"3","schema_version":1}'), "type is broken at rows"),
    "true for 1": (framed(b'{"rows":3,"schema_version":true}'), "const is broken"),
    "below its bound": (framed(b'{"rows":-1,"schema_version":1}'), "minimum is broken"),
    "above its bound": (framed(b'{"rows":9007199254740992,"schema_version":1}'), "maximum is broken"),
    "another version": (framed(b'{"rows":3,"schema_version":2}'), "const is broken"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_frame_is_refused(name: str) -> None:
    data, why = REFUSED[name]
    for how in (lambda: messages.decode(Kind.END_OF_ROWS, data), lambda: _read(Kind.END_OF_ROWS, data)):
        with pytest.raises(ProtocolFault, match=why):
            how()


def _read(kind: Kind, data: bytes) -> dict[str, Any]:
    return messages.read(kind, io.BytesIO(data))


@EACH
def test_one_byte_less_or_more_is_refused(kind: Kind) -> None:
    data = messages.encode(kind, BODIES[kind])
    for read in (messages.decode, _read):
        with pytest.raises(ProtocolFault, match="cut off"):
            read(kind, data[:-1])
        with pytest.raises(ProtocolFault, match="followed by more bytes"):
            read(kind, data + b"\n")
        with pytest.raises(ProtocolFault, match="followed by more bytes"):
            read(kind, data + data)


@EACH
def test_a_frame_of_another_kind_is_refused(kind: Kind) -> None:
    for other in set(Kind) - {kind}:
        with pytest.raises(ProtocolFault):
            messages.decode(kind, framed(payload_of(other)))


@EACH
def test_every_field_is_needed_and_no_other_is_known(kind: Kind) -> None:
    body = BODIES[kind]
    for name in body:
        with pytest.raises(ProtocolFault, match="required is broken"):
            messages.encode(kind, {key: value for key, value in body.items() if key != name})
    with pytest.raises(ProtocolFault, match="additionalProperties is broken"):
        messages.encode(kind, {**body, "more": 1})


class _Endless(io.RawIOBase):
    """A sender that never stops; it counts what is taken from it."""

    def __init__(self, size: int) -> None:
        self.head, self.taken = size.to_bytes(4, "big"), 0

    def read(self, size: int = -1) -> bytes:
        head, self.head = self.head[:size], self.head[size:]
        self.taken += size
        return head or b"x" * size


@EACH
def test_not_more_than_the_longest_frame_is_ever_held(kind: Kind) -> None:
    just, over = _Endless(MAX_BYTES[kind]), _Endless(MAX_BYTES[kind] + 1)
    for stream, most in ((just, 4 + MAX_BYTES[kind] + 1), (over, 4 + 1)):
        with pytest.raises(ProtocolFault):
            messages.read(kind, stream)
        assert stream.taken <= most


def test_a_body_that_is_too_long_is_not_sent() -> None:
    column = {"ordinal": 0, "target_name": "\u20ac" * 128, "target_type": "x" * 64, "nullable": False}
    request = {**BODIES[Kind.WRITE_REQUEST], "columns": [column] * 1024}
    assert messages.decode(Kind.WRITE_REQUEST, messages.encode(Kind.WRITE_REQUEST, request)) == request
    credentials = {**BODIES[Kind.CREDENTIALS], "access_token": "\u20ac" * 32_000}
    with pytest.raises(ProtocolFault, match="more than 65536"):
        messages.encode(Kind.CREDENTIALS, credentials)


def test_half_a_surrogate_is_not_sent() -> None:
    with pytest.raises(ProtocolFault, match="no canonical form"):
        messages.encode(Kind.CREDENTIALS, {**BODIES[Kind.CREDENTIALS], "password": "\ud800"})


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"input_rows_consumed": None}, "success says how many rows"),
        ({"diagnostic_code": "dpone.writer.load"}, "success has no diagnostic"),
        ({"session": None}, "success had a session"),
        ({"classification": "failure"}, "a failure says no rows, and why"),
        ({"classification": "failure", "input_rows_consumed": None}, "a failure says why"),
        ({"classification": "failure", "diagnostic_code": "dpone.writer.load"}, "a failure says no rows"),
        ({"classification": "maybe"}, "the outcomes are closed"),
        ({"session": {"spid": 51, "login_time": "now; DROP"}}, "a moment is digits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_result_says_neither_more_nor_less_than_its_outcome(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(ProtocolFault):
        messages.encode(Kind.WRITE_RESULT, BODIES[Kind.WRITE_RESULT] | changed)


@EACH
def test_another_library_reads_the_schemas_as_we_do(kind: Kind) -> None:
    judge = jsonschema.Draft202012Validator(json.loads((SHARED / f"{kind}.schema.json").read_text()))
    body = BODIES[kind]
    assert judge.is_valid(body)
    others: list[Any] = [None, True, -1, 0, 1.5, 2**53, "", "x" * 200, [], {}, [None], {"spid": 1}]
    for name, other in itertools.product(body, others):
        changed = {**body, name: other}
        try:
            messages.encode(kind, changed)
            admitted = True
        except ProtocolFault as fault:
            admitted = "is broken" not in str(fault)
        assert admitted == judge.is_valid(changed), (name, other)


def test_a_fault_never_shows_what_was_sent() -> None:
    """The frames carry a password; a message of it would end in a log."""
    for body in (
        {**BODIES[Kind.CREDENTIALS], "password": 4711},
        {**BODIES[Kind.CREDENTIALS], "geheim-4711": 1},
        {**BODIES[Kind.CREDENTIALS], "password": "4711" * 1000},
    ):
        with pytest.raises(ProtocolFault) as caught:
            messages.encode(Kind.CREDENTIALS, body)
        assert "4711" not in str(caught.value)
    with pytest.raises(ProtocolFault) as caught:
        messages.decode(Kind.CREDENTIALS, framed(b'{"4711":1,"4711":1}'))
    assert "4711" not in str(caught.value)
