"""How one thread tells all others of a process that the work must stop."""

from __future__ import annotations

import threading

from airflow_dpone.errors import DponeError, error_of


class Cancel:
    """Says once, to every thread, that this process must stop working, and why.

    The lease's renewal sets it when another process has taken over; whoever works for long asks it.

    :param outer: the work that this one is a part of: when that must stop, so must this.
    """

    def __init__(self, outer: Cancel | None = None) -> None:
        self._event = threading.Event()
        self._reason: DponeError | None = None
        self._outer = outer

    @property
    def is_set(self) -> bool:
        """Whether the work must stop."""
        return self._event.is_set() or (self._outer is not None and self._outer.is_set)

    def set(self, reason: DponeError) -> None:
        """Stops the work. The first reason stays."""
        if not self._event.is_set():
            self._reason = reason
            self._event.set()

    def check(self) -> None:
        """Raises the reason, as a new error, when the work must stop."""
        if self._outer is not None:
            self._outer.check()
        if self._event.is_set() and self._reason is not None:
            raise error_of(self._reason.code, self._reason.message, **self._reason.fields)
