"""Keeps a lease alive from a thread, and stops the work when that fails.

Liveness only: without it a long load would let its lease expire and be replaced, which costs a retry and
never a row. What may land is decided by the fence, in the journal and in the target.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.errors import DponeError, Fenced

log = logging.getLogger(__name__)


class LeaseRenewal:
    """Renews one process's lease every third of its time, from :meth:`start` to :meth:`stop`.

    :param cancel: set when the lease is another process's (Fenced), or could not be renewed for as long as it
        lasts; whoever watches it, or a deadline that carries it, stops.
    """

    def __init__(self, journal: JournalPort, cancel: Cancel) -> None:
        self._journal, self._cancel = journal, cancel
        self._changing = threading.Lock()
        self._stopped = threading.Event()
        self._lease: jr.Lease | None = None
        self._thread: threading.Thread | None = None

    def start(self, lease: jr.Lease) -> None:
        """Begins to renew this lease."""
        self._lease = lease
        self._stopped.clear()
        work = threading.Thread(target=self._run, args=(lease.ttl_sec,), name="dpone-lease", daemon=True)
        self._thread = work
        work.start()

    def change(self, new_lease: Callable[[], jr.Lease]) -> jr.Lease:
        """Takes a new fence while nothing is being renewed: the old one would look like a lost lease."""
        with self._changing:
            self._lease = new_lease()
            return self._lease

    def stop(self) -> None:
        """Ends the thread and waits for it. The lease stays as it is."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, ttl_sec: float) -> None:
        renewed_at = time.monotonic()
        wait = ttl_sec / 3
        while not self._stopped.wait(wait):
            try:
                self._renew()
            except Fenced as error:
                self._cancel.set(error)
                return
            except DponeError as error:
                log.warning("the lease could not be renewed: %s", error.code)
                if time.monotonic() - renewed_at >= ttl_sec:
                    self._cancel.set(_lost(ttl_sec, error))
                    return
                wait = ttl_sec / 12
            else:
                renewed_at, wait = time.monotonic(), ttl_sec / 3

    def _renew(self) -> None:
        with self._changing:
            if self._lease is not None:
                self._journal.renew(self._lease)


def _lost(ttl_sec: float, error: DponeError) -> Fenced:
    text = f"the lease could not be renewed for {ttl_sec:g} s ({error.code}): another process may work by now"
    return Fenced("dpone.lease.not_renewed", text)
