"""The network between a client and the server, as something that a test can cut, hold still, or let lie."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from airflow_dpone.target_sqlserver.connection import SqlServerConnection

_BLOCK = 65_536


class Cable:
    """Accepts on this machine and carries bytes to the server and back.

    :param where: the server.
    :param swallows_the_end: the server is not told of a client that goes away, as by a lost host.
    """

    def __init__(self, where: SqlServerConnection, *, swallows_the_end: bool = False) -> None:
        self._swallows_the_end = swallows_the_end
        self._server = (where.server, where.port or 1433)
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.where = replace(where, server="127.0.0.1", port=self._listener.getsockname()[1])
        """The server, through this cable."""
        self.connections = 0
        self.flows = threading.Event()
        """Clear it, and what is sent waits."""
        self.flows.set()
        self._start(self._accept)

    def __enter__(self) -> Cable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._listener)  # shut down first: a close alone does not wake who accepts
        self.cut()

    def cut(self) -> None:
        """Every connection ends now, on both sides; new ones are carried as before."""
        ends, self._ends = self._ends, []
        self.flows.set()
        for end in ends:
            _end(end)

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._ends += [client, server]
                self.connections += 1
                self._start(self._carry, client, server, self._swallows_the_end)
                self._start(self._carry, server, client, False)

    def _carry(self, source: socket.socket, sink: socket.socket, swallows: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_BLOCK):
                self.flows.wait()
                sink.sendall(data)
        if not swallows:
            _end(sink)
            _end(source)

    @staticmethod
    def _start(target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
