"""A server's sessions of bulk writers, in memory; the database behind them is the world's target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.lost_writers import WriterSession, WriterSessions
from airflow_dpone.errors import ConfigurationError
from tests.fakes.world import World


class FakeSessions:
    """The port of ``recovery writer``. ``found`` is what the server has now; ``ended`` what was ended."""

    def __init__(self, world: World) -> None:
        self._target = world.target
        self.found: list[WriterSession] = []
        self.ended: list[int] = []
        self.asked = 0
        self.installation_id: str | None = None
        """Another database's than the world's."""
        self._is_open = False

    def __enter__(self) -> FakeSessions:
        self._is_open = True
        self._target.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._is_open = False
        self._target.__exit__(*exc)

    def identify(
        self, schema: str, table: str, *, initialise: bool, may_be_missing: bool = False
    ) -> tr.TargetIdentity:
        """The world's."""
        found = self._target.identify(schema, table, initialise=initialise, may_be_missing=may_be_missing)
        return replace(found, installation_id=self.installation_id or found.installation_id)

    def writer_sessions(self) -> WriterSessions:
        """All of them."""
        assert self._is_open
        self.asked += 1
        return WriterSessions("loader", True, tuple(self.found))

    def end_writer(self, session: WriterSession) -> None:
        """Only one that is still there as it was."""
        assert self._is_open
        if session not in self.found:
            raise ConfigurationError("dpone.recovery.session_changed", "It is another one.")
        self.found.remove(session)
        self.ended.append(session.session_id)


def session_of(token_sha256: str, session_id: int = 57) -> WriterSession:
    """The session of the writer with this grant, as SQL Server shows it: 128 bytes of context."""
    return WriterSession(
        session_id=session_id,
        login_time="2026-03-02T02:00:00.123",
        context_info=token_sha256 + "00" * 96,
        program_name="airflow-dpone writer",
        host_name="worker-3",
        login_name="loader",
        status="sleeping",
        kill=f"KILL {session_id};",
    )
