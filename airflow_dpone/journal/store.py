"""The journal as the engine knows it: ``open_journal`` and :class:`SqlJournal`, a ``JournalPort``.

What a method has returned from survives a crash and the loss of power; what it has raised from has not
happened. No method leaves half of anything. One error leaves open whether all of it has happened:
``dpone.journal.unavailable``, when a server's answer to the commit was lost. Every write may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, String, column, inspect, select, table

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import effect
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import JournalError
from airflow_dpone.host_identity import host_id
from airflow_dpone.journal import custody, event_log, projection, publications
from airflow_dpone.journal import lease as leases
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.address import JournalAddress, SqliteFile, refuse_network_filesystem
from airflow_dpone.journal.database import Database
from airflow_dpone.journal.delivery_view import DeliveryView, read_delivery
from airflow_dpone.journal.owner_process import OwnerProcess

WRITERS: Mapping[type, Callable[[leases.Guarded, Any], None]] = {
    jr.OpenInvocation: projection.open_invocation,
    jr.AppendDelivery: event_log.append_delivery,
    jr.AppendAttempt: event_log.append_attempt,
    jr.HoldCustody: custody.hold,
    jr.ReleaseCustody: custody.release,
    jr.PutTask: projection.put_task,
    jr.PutNote: projection.put_note,
    jr.PutEvidence: projection.put_evidence,
    jr.PutCheckpoint: projection.put_checkpoint,
}


def open_journal(where: str | Path | JournalAddress, *, host: str | None = None) -> SqlJournal:
    """Opens a migrated journal. It is never created or migrated here.

    :param where: the file's path, or a SQLAlchemy URL.
    :param host: this machine, where ``/etc/machine-id`` does not name it: ``[dpone] host_id``.

    Raises ConfigurationError for an address of another kind, and JournalError: missing, not a database, not
    migrated, of a newer version, on a network file system, of another machine, or on a server that does not
    answer or cannot keep a journal.
    """
    address = JournalAddress.of(where)
    here = host or host_id()
    database = open_database(address)
    try:
        with database.read() as connection:
            journal_id, owner_host = identify(connection, address, here)
    except BaseException:
        database.close()
        raise
    return SqlJournal(database, journal_id=journal_id, host_id=owner_host, here=here)


def open_database(address: JournalAddress) -> Database:
    """The database of an address; a file must exist and be on a local disk. Raises JournalError."""
    if isinstance(address, SqliteFile):
        if not address.path.is_file():
            message = (
                f"There is no journal at {address}. If there was one, restore it; a new one starts empty and "
                "must adopt each target of the old one (recovery adopt-target)."
            )
            raise JournalError(
                "dpone.journal.missing",
                message,
                next_action=f"Run `{address.migrate_command()}`, then clear the task.",
                journal=str(address),
            )
        refuse_network_filesystem(address)
    return Database(address)


def read_revision(connection: Connection) -> str | None:
    """The newest migration that the database has seen; None when it has none of our tables."""
    if not inspect(connection).has_table(t.VERSION_TABLE):
        return None
    version = table(t.VERSION_TABLE, column("version_num", String()))
    revision: str | None = connection.execute(select(version.c.version_num)).scalar()
    return revision


def refuse_newer(revision: str | None, address: JournalAddress) -> None:
    """Raises JournalError for a journal that a newer version of this package has migrated."""
    if revision is not None and revision not in t.REVISIONS:
        message = f"The journal {address} is at revision {revision}; this version knows {t.HEAD} and older."
        raise JournalError(
            "dpone.journal.newer", message, journal=str(address), revision=revision, head=t.HEAD
        )


def refuse_other_host(owner_host: str | None, address: JournalAddress, host: str) -> None:
    """Raises JournalError for a SQLite file that belongs to another machine."""
    if owner_host is not None and owner_host != host:
        message = f"The journal {address} belongs to the machine {owner_host}; this one is {host}."
        raise JournalError(
            "dpone.journal.other_host", message, journal=str(address), host_id=owner_host, this_host_id=host
        )


def identify(connection: Connection, address: JournalAddress, host: str) -> tuple[str, str | None]:
    """journal_id and host_id of a journal at the newest revision, of this machine. Raises JournalError."""
    revision = read_revision(connection)
    refuse_newer(revision, address)
    if revision != t.HEAD:
        found = (
            "has no tables yet"
            if revision is None
            else f"is at revision {revision}, this version needs {t.HEAD}"
        )
        raise JournalError(
            "dpone.journal.not_migrated",
            f"The journal {address} {found}.",
            next_action=f"Run `{address.migrate_command()}`, then clear the task.",
            journal=str(address),
            revision=revision,
            head=t.HEAD,
        )
    row = connection.execute(select(t.journal)).one_or_none()
    if row is None:
        raise JournalError("dpone.journal.damaged", f"The journal {address} does not say which one it is.")
    refuse_other_host(row.host_id, address, host)
    return row.journal_id, row.host_id


class SqlJournal:
    """A ``JournalPort`` on a SQL database. Safe to use from several threads, and in a forked process.

    :param journal_id: which journal this is; the target's gate remembers it.
    :param host_id: the machine that a SQLite file belongs to; None on a server.
    :param here: this machine, as leases name it.
    """

    def __init__(self, database: Database, *, journal_id: str, host_id: str | None, here: str) -> None:
        self.journal_id = journal_id
        self.host_id = host_id
        self._here = here
        self._database = database

    def __enter__(self) -> SqlJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection. The journal can be used again afterwards."""
        self._database.close()

    # ---- reading -------------------------------------------------------------------------------------------

    def newest_invocation(self, delivery_key: str) -> jr.Invocation | None:
        """The newest generation of a requester."""
        with self._database.read() as connection:
            return projection.read_newest(connection, delivery_key)

    def invocation(self, invocation_key: str) -> jr.Invocation | None:
        """One generation."""
        with self._database.read() as connection:
            return projection.read_invocation(connection, invocation_key)

    def events(self, invocation_key: str) -> tuple[jr.Event, ...]:
        """The delivery stream, then every attempt stream, each proved whole; none for an unknown invocation.

        Raises JournalError naming stream, sequence and rule
        (:class:`~airflow_dpone.journal.chain.ChainRule`).
        """
        with self._database.read() as connection:
            return event_log.read_events(connection, invocation_key)

    def custody(self, target_key: str) -> jr.Custody:
        """Who owns the target; epoch 0 and clear when nobody ever did."""
        with self._database.read() as connection:
            return custody.read_custody(connection, target_key)

    def holder(self, target_key: str) -> dict[str, Any]:
        """Whom the target belongs to now, as JSON: ids, state, ``since``, ``age_sec``. Empty: nobody."""
        with self._database.read() as connection:
            return custody.read_holder(connection, target_key)

    def unfinished(self) -> list[dict[str, Any]]:
        """Every delivery that owns a target now, the longest first, as JSON: ``target_key``, the fields of
        :meth:`holder`, ``window``, ``last_error_code``, ``reason``, ``next_action``."""
        with self._database.read() as connection:
            return custody.read_unfinished(connection)

    def fence(self, target_key: str) -> int:
        """The greatest fence that was ever given for the target; 0 when none was."""
        with self._database.read() as connection:
            return leases.read_fence(connection, target_key)

    def task(self, delivery_key: str, task_id: str) -> jr.TaskRecord | None:
        """What the task said of itself when it last acted."""
        with self._database.read() as connection:
            return projection.read_task(connection, delivery_key, task_id)

    def checkpoint(self, target_key: str, route_scope: str, window_key: str) -> jr.Checkpoint | None:
        """The checkpoint row of a window."""
        with self._database.read() as connection:
            return projection.read_checkpoint(connection, target_key, route_scope, window_key)

    def delivered(self, target_key: str, asked: Window, route_scope: str | None = None) -> list[Window]:
        """Windows of the target with a checkpoint that overlap ``asked``, in order."""
        with self._database.read() as connection:
            return projection.read_delivered(connection, target_key, asked, route_scope)

    def evidence(self, evidence_sha256: str) -> bytes | None:
        """A stored evidence document, its hash checked."""
        with self._database.read() as connection:
            return projection.read_evidence(connection, evidence_sha256)

    def targets(self) -> list[tr.TargetRef]:
        """Every target that the journal knows, by name."""
        with self._database.read() as connection:
            return publications.read_targets(connection)

    def publications(self, target_key: str) -> Iterator[jr.Publication]:
        """Everything that was recorded as published into a target, in no order that means anything. Each page
        is one moment of the journal. Raises JournalError for an event that is not as it was written."""
        after: str | None = ""
        while after is not None:
            with self._database.read() as connection:
                page, after = publications.read_publications(connection, target_key, after)
            yield from page

    def view(self, invocation_key: str) -> DeliveryView | None:
        """One generation with everything around it, for whoever shows it; None for an unknown one.

        Raises JournalError as :meth:`events` does.
        """
        with self._database.read() as connection:
            return read_delivery(connection, self.journal_id, invocation_key)

    # ---- writing -------------------------------------------------------------------------------------------

    @effect
    def acquire(
        self, target_key: str, requester: r.Requester, *, ttl_sec: float, gate_fence: int
    ) -> jr.Lease:
        """Takes the lease with fence = max(journal, gate) + 1, in one transaction.

        Raises CustodyHeld when an unfinished invocation of another requester owns the target, and LeaseHeld
        while the lease's owner may still work; both leave the lease as it was. A crash after it has returned
        costs the next one nothing: a process that is gone is taken over at once.
        """
        leases.check_terms(ttl_sec, gate_fence)
        here = OwnerProcess.current(self._here)
        with self._database.write() as connection:
            row = leases.lock_row(connection, target_key)
            custody.refuse_other_holder(connection, target_key, requester.delivery_key, row.now)
            return leases.take(connection, row, requester, here, ttl_sec=ttl_sec, gate_fence=gate_fence)

    @effect
    def raise_fence(self, lease: jr.Lease, *, gate_fence: int = 0) -> jr.Lease:
        """A new, greater fence for the same owner; the lease given here guards nothing any more.

        Raises Fenced.
        """
        leases.check_terms(lease.ttl_sec, gate_fence)
        with self._database.write() as connection:
            return leases.raise_fence(connection, lease, gate_fence)

    def renew(self, lease: jr.Lease) -> None:
        """The lease lasts for another ``ttl_sec`` from now. Raises Fenced when it is not ours any more."""
        with self._database.write() as connection:
            leases.guard(connection, lease)

    @effect
    def release(self, lease: jr.Lease) -> None:
        """Gives the lease back; its fence stays. No change when it is not ours any more."""
        with self._database.write() as connection:
            leases.give_back(connection, lease)

    @effect
    def append(self, lease: jr.Lease, *writes: jr.JournalWrite) -> None:
        """All writes in one transaction whose first statement renews the lease ``WHERE fence = mine``.

        Raises Fenced when the lease is not ours any more, and
        JournalError for a write that contradicts what is stored; then none of the writes has landed. Each
        write may be repeated after it has landed. Opening and moving a delivery and its custody agree at the
        end of each transaction.
        """
        with self._database.write() as connection:
            tx = leases.guard(connection, lease)
            for write in writes:
                WRITERS[type(write)](tx, write)
            for write in writes:
                if isinstance(write, jr.OpenInvocation):
                    projection.check_opened(tx, write.invocation_key)
                if isinstance(
                    write, jr.OpenInvocation | jr.AppendDelivery | jr.HoldCustody | jr.ReleaseCustody
                ):
                    custody.check_agrees(tx, write.invocation_key)
