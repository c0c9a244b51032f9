"""A proxy in front of PostgreSQL that loses the answer to a COMMIT: it happened, and nobody was told."""

from __future__ import annotations

import contextlib
import socket
import threading


class CuttingProxy:
    """Passes everything on. Once armed, the answer to the next COMMIT is lost, and the connection with it."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.armed = threading.Event()
        self.cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            lost = threading.Event()
            for one, other, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(one, other, is_answer, lost), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, is_answer: bool, lost: threading.Event) -> None:
        try:
            while data := one.recv(65536):
                if is_answer and lost.is_set():
                    self.cut.set()
                    break
                if not is_answer and self.armed.is_set() and b"COMMIT\0" in data:
                    self.armed.clear()
                    lost.set()
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
