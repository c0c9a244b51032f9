"""Triggers that read the journal, which an Airflow connection names, or a path or URL without a password."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_dpone.triggers.polling import JOURNAL_THREADS, PollingTrigger, in_thread

if TYPE_CHECKING:
    from airflow_dpone.journal.store import SqlJournal

Answer = TypeVar("Answer")


class JournalTrigger(PollingTrigger):
    """Looks into the journal.

    :param journal_conn_id: the Airflow connection of the journal, or None.
    :param journal: its path or URL, or None; used when there is no connection.
    :param host_id: this machine's name for a SQLite journal; default: ``[dpone] host_id``.

    A SQLite journal belongs to one machine: with it the triggerer runs on the workers' machine.
    """

    def __init__(
        self,
        *,
        journal_conn_id: str | None,
        journal: str | None,
        deadline: float,
        poll_interval: float,
        host_id: str | None = None,
    ) -> None:
        super().__init__(deadline=deadline, poll_interval=poll_interval)
        self.journal_conn_id = journal_conn_id
        self.journal = journal
        self.host_id = host_id

    def arguments(self) -> dict[str, Any]:
        """Names only: the connection's secrets are read in the triggerer, at every look."""
        return {"journal_conn_id": self.journal_conn_id, "journal": self.journal, "host_id": self.host_id}

    async def ask(self, question: Callable[[SqlJournal], Answer]) -> Answer:
        """Opens the journal in a thread, asks, closes it."""
        from airflow_dpone import airflow_config
        from airflow_dpone.hooks.journal import async_journal_address
        from airflow_dpone.journal.address import JournalAddress
        from airflow_dpone.journal.store import open_journal

        where: str | JournalAddress = self.journal or ""
        if self.journal_conn_id:
            where = await async_journal_address(self.journal_conn_id)

        host = self.host_id or airflow_config.host_id()

        def asked() -> Answer:
            with open_journal(where, host=host) as journal:
                return question(journal)

        return await in_thread(JOURNAL_THREADS, asked)
