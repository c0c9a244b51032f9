"""What every process has in common that this product starts: little of its parent's environment, and its end.

It is a new interpreter, never a fork and never ``multiprocessing``: see ``encoder_process``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "LANG", "LC_ALL"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),  # for the process that talks to a server
)


def child_environment() -> dict[str, str]:
    """Where Python finds its modules, and nothing that could be a secret."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**kept, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}


def end_with(parent: int) -> bool:
    """Ask the kernel for SIGKILL at the parent's end; False if it has ended before it was asked.

    (The kernel ends a child when the *thread* that started it ends, not only the process.)
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
