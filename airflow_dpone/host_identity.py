"""Which machine this is: a SQLite journal and a local spool belong to one."""

from __future__ import annotations

import socket
from pathlib import Path

MACHINE_ID = Path("/etc/machine-id")


def host_id() -> str:
    """``/etc/machine-id``, else the host name.

    A container gets a new one with each start unless its image or its mounts keep it; then give the journal
    and the spool an id of their own.
    """
    try:
        text = MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    return text or socket.gethostname()
