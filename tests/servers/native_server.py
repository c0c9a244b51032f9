"""A ClickHouse server for tests: the native TCP protocol in front of chDB, with faults on demand.

    python tests/servers/native_server.py --directory DIR [--user NAME:PASSWORD] [--tls CERT KEY]

It prints ``ready PORT`` and serves until its standard input ends. chDB is ClickHouse's engine, so types,
settings, errors and tables are real; the packets are made here. What it speaks is the protocol at revision
54451, which the product asks for whatever a server offers: a client that asks for more is refused.

A query asks for a fault in a comment, ``/* fault: NAME N */``. N is the number of blocks that arrive before:

    cut N        half of the next block, then the connection ends
    reset N      the connection is reset
    silent N     nothing more comes, and nothing ends
    progress N   only reports of progress come from then on
    garbage N    a packet of a kind that does not exist
    lose N       the next block is left out; everything else is as it should be
    totals N     blocks of totals and extremes come after the data
    no_profile N, no_end N   the packet with the count of rows, or the end of the stream, is left out

``PROFILE name: SET ...`` is no statement of ClickHouse: every later connection of that user, who needs no
password, begins with the SET, as with a settings profile.

Compression (LZ4) and TLS work. Left out: settings in the packet, external tables, parameters, INSERT with
data, logs. chDB sends LowCardinality as such, where a server is told not to.
"""

from __future__ import annotations

import argparse
import re
import select
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import lz4.block
from chdb.session import Session
from clickhouse_cityhash.cityhash import CityHash128

SPOKEN, OFFERED = 54_451, 54_484
FROM_CLIENT = {"hello": 0, "query": 1, "data": 2, "cancel": 3, "ping": 4}
TO_CLIENT = {
    "hello": 0,
    "data": 1,
    "exception": 2,
    "progress": 3,
    "pong": 4,
    "end": 5,
    "profile": 6,
    "totals": 7,
    "extremes": 8,
    "garbage": 99,
}
NO_BUCKET = b"\1\0\2" + struct.pack("<i", -1) + b"\0"
PROFILE = re.compile(r"PROFILE (\w+): (SET .*)", re.DOTALL)
FAULT = re.compile(r"/\* fault: (\w+) (\d+) \*/")
KILL_BY_ID = re.compile(r"query_id = '([^']*)'")
UNSUPPORTED, AUTHENTICATION, STOPPED = 48, 516, 394


class Refused(Exception):
    """Something to say to the client with ClickHouse's number."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @classmethod
    def of(cls, error: RuntimeError) -> Refused:
        """What the engine said; without a number it is 1002."""
        said = str(error)
        number = re.search(r"Code: (\d+)", said)
        return cls(int(number[1]) if number else 1002, said)


class Gone(Exception):
    """The client hung up, or a fault says that we do."""


def number(value: int) -> bytes:
    """LEB128, as everywhere in the protocol."""
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def text(value: str) -> bytes:
    """A string with its length before it."""
    raw = value.encode("utf-8", "surrogateescape")
    return number(len(raw)) + raw


def packet(kind: str, *parts: bytes) -> bytes:
    """A packet from the server."""
    return number(TO_CLIENT[kind]) + b"".join(parts)


class Wire:
    """One client's connection, read bit by bit and written whole."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket, self._pending = connected, bytearray()

    def take(self, size: int) -> bytes:
        """So many bytes."""
        while len(self._pending) < size:
            arrived = self.socket.recv(65_536)
            if not arrived:
                raise Gone
            self._pending += arrived
        taken = bytes(self._pending[:size])
        del self._pending[:size]
        return taken

    def number(self) -> int:
        """The reverse of :func:`number`."""
        value = shift = 0
        while (byte := self.take(1)[0]) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def text(self) -> str:
        """The reverse of :func:`text`."""
        return self.take(self.number()).decode("utf-8", "surrogateescape")

    def send(self, *parts: bytes) -> None:
        """All of it."""
        self.socket.sendall(b"".join(parts))

    def waits_for_us(self) -> bool:
        """Whether a byte of the client is here already."""
        return bool(self._pending)

    def next_byte(self) -> bytes:
        """One byte, or none if the client is gone. For the thread that watches while a query runs."""
        try:
            return self.take(1)
        except (Gone, OSError):
            return b""


class Watch:
    """While a query runs, listens for the client: Cancel, or the end of the connection, end the query."""

    def __init__(self, wire: Wire, end_query: Any) -> None:
        self._wire, self._end_query = wire, end_query
        self.cancelled = self.gone = False
        self._over, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.close()
        self._thread.join()
        self._over.close()

    def wait(self) -> None:
        """Until the client has had enough."""
        while not (self.cancelled or self.gone):
            threading.Event().wait(0.02)

    def _listen(self) -> None:
        if not self._wire.waits_for_us():
            readable, _, _ = select.select([self._wire.socket, self._over], [], [])
            if self._over in readable:
                return
        byte = self._wire.next_byte()
        self.gone = byte == b""
        self.cancelled = byte == bytes([FROM_CLIENT["cancel"]])
        if self.gone:
            with suppress(OSError):
                self._wire.socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that is sending
        # The query may have yet to begin.
        while not select.select([self._over], [], [], 0.05)[0]:
            self._end_query()


class Talk(threading.Thread):
    """One client: hello, then one query after the other, all in one session of the engine."""

    def __init__(self, server: NativeServer, connected: socket.socket) -> None:
        super().__init__(daemon=True)
        self._server, self._wire = server, Wire(connected)
        self._engine = Session(server.directory)
        self._engine.query("SET implicit_select = 0")  # chDB's own default, not a server's

    def run(self) -> None:
        """Until the client leaves."""
        try:
            self._hello()
            while True:
                kind = self._wire.number()
                if kind == FROM_CLIENT["ping"]:
                    self._wire.send(packet("pong"))
                elif kind == FROM_CLIENT["query"]:
                    self._query()
                elif kind != FROM_CLIENT["cancel"]:
                    raise Gone
        except (Gone, OSError):
            pass
        except Refused as refusal:
            self._last_words(refusal)
        finally:
            self._wire.socket.close()
            self._engine.close()

    def _last_words(self, refusal: Refused) -> None:
        """Before hanging up: what is still unread would otherwise reset the connection."""
        with suppress(OSError, Gone):
            self._say(refusal)
            self._wire.socket.shutdown(socket.SHUT_WR)
            self._wire.socket.settimeout(1)
            while True:
                self._wire.take(1)

    def _say(self, refusal: Refused) -> None:
        said = text(f"DB::Exception: {refusal}")
        self._wire.send(
            packet("exception", struct.pack("<i", refusal.code), text("DB::Exception"), said, text(""), b"\0")
        )

    def _hello(self) -> None:
        wire = self._wire
        if wire.number() != FROM_CLIENT["hello"]:
            raise Gone
        wire.text(), wire.number(), wire.number()
        revision, database, user, password = wire.number(), wire.text(), wire.text(), wire.text()
        if self._server.passwords.get(user) != password:
            raise Refused(AUTHENTICATION, f"{user}: Authentication failed")
        if revision != SPOKEN:
            raise Refused(UNSUPPORTED, f"this test server speaks revision {SPOKEN} only, not {revision}")
        if database:
            try:
                self._engine.query(f"USE `{database}`")
            except RuntimeError as error:
                raise Refused.of(error) from None
        if user in self._server.profiles:
            self._engine.query(self._server.profiles[user])
        version = (number(part) for part in self._server.version)
        wire.send(packet("hello", text("ClickHouse"), next(version), next(version), number(OFFERED)))
        wire.send(text("UTC"), text("native_server"), next(version))

    def _query(self) -> None:
        """One Query packet and the answer to it."""
        wire = self._wire
        query_id = wire.text()
        self._skip_client_info()
        if wire.text():
            raise Refused(UNSUPPORTED, "settings in the packet")
        wire.text(), wire.number()
        compressed, statement = bool(wire.number()), wire.text()
        if wire.number() != FROM_CLIENT["data"]:
            raise Refused(UNSUPPORTED, "no end of external tables")
        wire.text()
        if compressed:
            wire.take(16 + 1)
            size, _ = struct.unpack("<II", wire.take(8))
            wire.take(size - 9)
        else:
            wire.take(len(NO_BUCKET) + 2)
        if profile := PROFILE.fullmatch(statement):
            self._server.passwords[profile[1]] = ""
            self._server.profiles[profile[1]] = profile[2]
            wire.send(packet("end"))
            return
        try:
            Answer(self._server, self._engine, wire, query_id, statement, compressed).give()
        except Refused as refusal:
            self._say(refusal)

    def _skip_client_info(self) -> None:
        wire = self._wire
        if wire.take(1) == b"\0":
            return
        for _ in range(3):  # initial user, id, address
            wire.text()
        wire.take(8 + 1)  # start, interface
        for _ in range(3):  # system user, host, client name
            wire.text()
        for _ in range(3):  # version, revision
            wire.number()
        wire.text()  # quota key
        wire.number(), wire.number()  # depth, patch
        if wire.take(1) == b"\1":
            wire.take(24), wire.text(), wire.take(1)


class Answer:
    """What one query gets."""

    def __init__(
        self, server: NativeServer, engine: Any, wire: Wire, query_id: str, statement: str, compressed: bool
    ) -> None:
        self._server, self._engine, self._wire, self._compressed = server, engine, wire, compressed
        asked = FAULT.search(statement)
        self._fault, self._at = (asked[1], int(asked[2])) if asked else ("", 0)
        self._tag = f"/* {query_id or id(self)} */ "
        if statement.startswith("KILL QUERY"):  # the engine gives ids of its own; ours is in the text
            statement = KILL_BY_ID.sub(r"startsWith(query, '/* \1 */')", statement)
        self._statement = self._tag + statement.replace("serverUUID()", f"toUUID('{server.uuid}')")
        self._rows = self._blocks = self._bytes = 0

    def give(self) -> None:
        """All packets up to the end of the stream.

        :raises Refused: the engine's error. :raises Gone: the connection ends.
        """
        with Watch(self._wire, self._end_query) as watch:
            try:
                for block in self._data():
                    if watch.cancelled:
                        break
                    self._send(block, watch)
            except RuntimeError as error:
                refusal = Refused.of(error)
                if not (watch.cancelled and refusal.code == STOPPED):
                    raise refusal from None
            if watch.gone:
                raise Gone
        self._end()

    def _end_query(self) -> None:
        self._server.end_queries(self._tag)

    def _data(self) -> Iterator[bytes]:
        """The header as an empty block, then every block, as the engine makes them."""
        try:
            # First of all: another query on the session would end the stream.
            header = self._engine.query(f"DESCRIBE (\n{self._statement}\n)", "TSVRaw").bytes().decode()
        except RuntimeError as error:
            if Refused.of(error).code != 62:
                raise
            # Not a SELECT. Its answer, if there is one, is one block.
            answer = self._engine.query(self._statement, "Native").bytes()
            if answer:
                yield answer
            return
        columns = [line.split("\t")[:2] for line in header.splitlines()]
        if self._fault == "nothing":
            yield b"\0\0"
        yield number(len(columns)) + b"\0" + b"".join(text(name) + text(kind) for name, kind in columns)
        stream = self._engine.send_query(self._statement, "Native")
        try:
            while (block := stream.fetch()) is not None:
                yield block.bytes()
        finally:
            stream.cancel()

    def _send(self, block: bytes, watch: Watch) -> None:
        rows = _rows_of(block)
        if self._fault and rows and self._blocks == self._at:
            self._break(block, watch)
        if rows:
            self._rows, self._blocks, self._bytes = (
                self._rows + rows,
                self._blocks + 1,
                self._bytes + len(block),
            )
            self._wire.send(packet("progress", number(rows), number(len(block)), b"\0\0\0"))
            if self._fault == "lose" and self._blocks == self._at + 1:
                return
        self._wire.send(packet("data", text("")), self._framed(block))

    def _break(self, block: bytes, watch: Watch) -> None:
        if self._fault == "cut":
            framed = packet("data", text("")) + self._framed(block)
            self._wire.send(framed[: len(framed) // 2])
            raise Gone
        if self._fault == "reset":
            self._wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise Gone
        if self._fault == "silent":
            watch.wait()
        elif self._fault == "progress":
            while not (watch.cancelled or watch.gone):
                self._wire.send(packet("progress", b"\0\0\0\0\0"))
                threading.Event().wait(0.05)
        elif self._fault == "garbage":
            self._wire.send(packet("garbage"))

    def _end(self) -> None:
        if self._fault == "totals":
            block = self._engine.query("SELECT toInt64(1) AS c0", "Native").bytes()
            for kind in ("totals", "extremes"):
                self._wire.send(packet(kind, text("")), self._framed(block))
        if self._fault != "no_profile":
            counts = (number(self._rows), number(self._blocks), number(self._bytes), b"\0\0\0")
            self._wire.send(packet("profile", *counts))
        self._wire.send(packet("data", text("")), self._framed(b"\0\0"))
        if self._fault == "no_end":
            raise Gone
        self._wire.send(packet("end"))

    def _framed(self, block: bytes) -> bytes:
        whole = NO_BUCKET + block
        if not self._compressed:
            return whole
        packed = lz4.block.compress(whole, store_size=False)
        frame = b"\x82" + struct.pack("<II", len(packed) + 9, len(whole)) + packed
        checksum = CityHash128(frame)
        return struct.pack("<QQ", checksum >> 64, checksum & (1 << 64) - 1) + frame


def _rows_of(block: bytes) -> int:
    """The second number of a block."""
    values, at = [], 0
    while len(values) < 2:
        value = shift = 0
        while block[at] & 0x80:
            value |= (block[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        values.append(value | block[at] << shift)
        at += 1
    return values[1]


class NativeServer:
    """Listens on 127.0.0.1.

    :param directory: of the engine; one process may open one. :param passwords: by user.
    :param uuid: what ``serverUUID()`` says; the engine has none.
    """

    def __init__(
        self,
        directory: str,
        passwords: dict[str, str],
        uuid: str,
        tls: tuple[str, str] | None = None,
    ) -> None:
        self.directory, self.passwords, self.uuid = directory, passwords, uuid
        self.profiles: dict[str, str] = {}
        self._admin, self._admin_lock = Session(directory), threading.Lock()
        said = self._admin.query("SELECT version()", "TSVRaw").bytes().decode()
        self.version = [int(part) for part in said.strip().split(".")[:3]]
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        if self._tls and tls:
            self._tls.load_cert_chain(*tls)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def serve(self) -> None:
        """One thread for each client, for ever."""
        while True:
            connected, _ = self._listener.accept()
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                if self._tls:
                    connected = self._tls.wrap_socket(connected, server_side=True)
            except (OSError, ssl.SSLError):
                connected.close()
                continue
            Talk(self, connected).start()

    def end_queries(self, tag: str) -> None:
        """Ends the running query whose text begins like that."""
        with self._admin_lock, suppress(RuntimeError):
            self._admin.query(f"KILL QUERY WHERE startsWith(query, '{tag}') ASYNC")


def main() -> None:
    """See the head of the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True)
    parser.add_argument("--user", action="append", default=[], metavar="NAME:PASSWORD")
    parser.add_argument("--uuid", default="00000000-0000-4000-8000-000000000001")
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"))
    given = parser.parse_args()
    passwords = {"default": "", **dict(one.split(":", 1) for one in given.user)}
    server = NativeServer(given.directory, passwords, given.uuid, tuple(given.tls) if given.tls else None)
    threading.Thread(target=server.serve, daemon=True).start()
    print(f"ready {server.port}", flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main()
