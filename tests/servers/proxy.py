"""A TCP proxy that breaks: what lies between a worker and a server, for tests."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Literal

Break = Literal["fin", "reset", "stall"]


class Proxy:
    """Forwards to one port of this machine, each connection by two threads.

    :param break_after_bytes: of the server's answers, over all connections; None: never. It happens once.
    :param kind: ``fin`` ends the connection, ``reset`` resets it, ``stall`` keeps it open and forwards no
        answer any more. :param bytes_per_sec: of the server's answers; None: as fast as it goes.
    """

    def __init__(
        self,
        port: int,
        *,
        break_after_bytes: int | None = None,
        kind: Break = "fin",
        bytes_per_sec: int | None = None,
    ) -> None:
        self._target, self.kind = port, kind
        self.break_after_bytes, self.bytes_per_sec = break_after_bytes, bytes_per_sec
        self.forwarded_bytes = self.breaks = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()
                threading.Thread(target=self._down, args=(server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        # Never blocked in recv: a socket that another thread waits on is not reset when it is closed.
        poll = select.poll()  # select() takes no descriptor above 1023, and a long suite has more
        with suppress(OSError, ValueError):
            poll.register(client, select.POLLIN)
            while client.fileno() >= 0:
                if poll.poll(50):
                    data = client.recv(65_536)
                    if not data:
                        break
                    server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(self.bytes_per_sec // 20 if self.bytes_per_sec else 65_536):
                if self.break_after_bytes is not None:
                    room = self.break_after_bytes - self.forwarded_bytes
                    if len(data) > room:
                        client.sendall(data[: max(0, room)])
                        self.break_after_bytes, self.breaks = None, self.breaks + 1
                        self._break(server, client)
                        return
                client.sendall(data)
                self.forwarded_bytes += len(data)
                if self.bytes_per_sec:
                    time.sleep(len(data) / self.bytes_per_sec)
        client.close()

    def _break(self, server: socket.socket, client: socket.socket) -> None:
        if self.kind == "stall":
            return
        if self.kind == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            client.shutdown(socket.SHUT_RDWR)
        client.close()
        server.close()
