"""Several chunks at once: threads that take turns at the journal and the target, and write at the same time.

The journal has one lease and one writer, and a target one session; what takes long is the bulk writer. So a
thread does everything in its turn, and gives the turn away while its writer works or it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.errors import TargetBusy

T = TypeVar("T")


class Turn:
    """One thread's turn to work on a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Mine inside the block."""
        with self._lock:
            yield

    @contextmanager
    def given_away(self) -> Iterator[None]:
        """Others' inside the block; mine again after it, which may have to be waited for."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()


def for_each(
    items: Iterable[T], work: Callable[[T, Cancel], None], *, at_once: int, turn: Turn, outer: Cancel
) -> None:
    """Works on all items, each in one thread, at most ``at_once`` at the same time; returns when all ended.

    The first failure stops the rest: nothing new begins, and ``work``'s cancel is set, which ends the writers
    that watch it. That failure is raised, after every thread has ended. With 1 it is the caller's own thread.
    """
    stop, left, failed = Cancel(outer), iter(items), list[BaseException]()

    def in_turns() -> None:
        with turn.taken():
            for item in left:
                if stop.is_set:
                    return
                try:
                    work(item, stop)
                except BaseException as error:
                    failed.append(error)
                    stop.set(_stopped())
                    raise

    if at_once == 1:
        in_turns()
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="dpone-chunk") as pool:
        try:
            wait([pool.submit(in_turns) for _ in range(at_once)])
        except BaseException:  # this thread is told to end; it does not leave the others behind
            stop.set(_stopped())
            raise
    outer.check()
    if failed:
        raise failed[0]


STOPPED = "dpone.target.write_stopped"


def _stopped() -> TargetBusy:
    return TargetBusy(STOPPED, "The write of a chunk was stopped, because that of another chunk has failed.")
