"""A SQLite journal that loses its last transactions, at the exact boundary that a lost disk cache leaves.

While a :class:`JournalTail` is open, nothing is moved from the write-ahead log into the file: the log holds
every transaction since then, one behind the other. Cutting it behind one of them is the loss of all later.
"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24


def commit_ends(wal: bytes) -> list[int]:
    """Where each committed transaction ends in a write-ahead log that was never begun anew.

    Frames are a header and a page; the header's second word is not zero in the last frame of a transaction.
    """
    if len(wal) < HEADER_BYTES:
        return []
    page = struct.unpack(">I", wal[8:12])[0]
    salt, frame = wal[16:24], FRAME_HEADER_BYTES + page
    ends = []
    for start in range(HEADER_BYTES, len(wal) - frame + 1, frame):
        if wal[start + 8 : start + 16] != salt:
            break
        if struct.unpack(">I", wal[start + 4 : start + 8])[0]:
            ends.append(start + frame)
    return ends


class JournalTail:
    """Keeps the log of one journal whole, from a moment at which nobody else has the journal open."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._wal, self._shm = (self.path.with_name(self.path.name + end) for end in ("-wal", "-shm"))
        self._open()

    def _open(self) -> None:
        # A reader that began before the first frame keeps every checkpoint from moving one.
        self._reader = sqlite3.connect(self.path, isolation_level=None)
        self._reader.execute("BEGIN")
        self._reader.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def close(self) -> None:
        """Lets the journal be as any other."""
        self._reader.close()

    def _log(self) -> bytes:
        return self._wal.read_bytes() if self._wal.exists() else b""

    @property
    def transactions(self) -> int:
        """How many transactions could be lost now."""
        return len(commit_ends(self._log()))

    def keep(self, transactions: int) -> None:
        """The journal as it was after that many transactions. Nobody else may have it open."""
        file, log = self.path.read_bytes(), self._log()
        ends = [HEADER_BYTES, *commit_ends(log)]
        self.close()
        self.path.write_bytes(file)
        self._shm.unlink(missing_ok=True)
        self._wal.write_bytes(log[: ends[transactions]] if log else b"")
        self._open()
