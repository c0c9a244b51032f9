"""A way to the server on which a test holds requests or answers back, or loses them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from airflow_dpone.target_sqlserver import publication_statements as batches
from airflow_dpone.target_sqlserver.connection import SqlServerConnection


def is_sent(text: str, parameters: Sequence[object]) -> bool:
    """Whether this batch is a publication, and no rehearsal of one."""
    is_publication = "dpone.publish.transaction_open" in text and "DELETE FROM" in text
    return is_publication and parameters[batches.PLACES["rehearsal"]] == 0


class Way:
    """Accepts on this machine and passes bytes on. :param where: the server, reached directly."""

    def __init__(self, where: SqlServerConnection) -> None:
        self._server = (where.server, where.port or 1433)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.where = replace(where, server="127.0.0.1", port=self._listener.getsockname()[1])
        """The server, by this way."""
        self.requests, self.answers = threading.Event(), threading.Event()
        """Cleared: what comes from the client, or from the server, waits here."""
        self.requests.set()
        self.answers.set()
        self.waiting = threading.Event()
        """Set as soon as something waits."""
        self.lets_half_through = False
        """The first half of a request that waits has gone on to the server already."""
        self.answered_bytes = 0
        """What the server has said."""
        self._ends: list[socket.socket] = []
        self._left: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Way:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()

    def leave_behind(self) -> threading.Event:
        """Every client loses its connection, and what waits for the server stays on its way until the event
        is set. New connections are carried as before."""
        held, self.requests = self.requests, threading.Event()
        self.requests.set()
        self._left |= set(self._ends[::2])
        for client in self._left:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        return held

    def cut(self) -> None:
        """Everything that waits is lost, and every connection ends on both sides."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.requests.set()
        self.answers.set()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._ends += [client, server]
                for one, other, gate in ((client, server, self.requests), (server, client, self.answers)):
                    threading.Thread(target=self._carry, args=(one, other, gate), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, gate: threading.Event) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                if not gate.is_set():
                    if self.lets_half_through and gate is self.requests:
                        half = len(data) // 2
                        other.sendall(data[:half])
                        data = data[half:]
                    self.waiting.set()
                    gate.wait()
                if gate is self.answers:
                    self.answered_bytes += len(data)
                other.sendall(data)
        if one in self._left:
            return  # the server is not told that its client has gone
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
