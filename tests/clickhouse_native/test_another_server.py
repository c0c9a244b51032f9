"""The contract of the source once more, over a server that is not this repository's.

DPONE_TEST_CLICKHOUSE_NATIVE=127.0.0.1:PORT names it: a recent ClickHouse engine behind the native protocol,
on this machine, that lets anybody in. Without it the same tests run in the suite ``contract`` only, over the
test server of this repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_dpone.source_clickhouse.address import ServerAddress
from airflow_dpone.source_clickhouse.session import Session
from tests.contract.native_world import NativeSource, NativeWorld
from tests.contract.source_cases import EngineSourceWorld
from tests.contract.test_source_contract import *  # noqa: F403 - every test of it, over the world below
from tests.contract.test_source_port_contract import (  # noqa: F401
    test_a_query_depends_on_its_window_and_columns_only,
    test_a_read_after_its_deadline_does_not_end_normally,
    test_a_source_that_is_not_open_says_so,
    test_a_stream_that_breaks_is_never_the_end_of_the_data,
    test_an_insert_does_not_move_a_read_a_mutation_and_an_altered_table_do,
    test_every_value_arrives_exactly_and_duplicates_arrive_twice,
    test_the_window_is_half_open_and_rows_without_a_time_are_outside,
)

OTHER_SERVER = "DPONE_TEST_CLICKHOUSE_NATIVE"
OF_THE_PORT = "test_source_port_contract"

pytestmark = pytest.mark.skipif(not os.environ.get(OTHER_SERVER), reason=f"{OTHER_SERVER} names no server")


class OtherWorld(NativeWorld):
    """A database of the server that is named."""

    @staticmethod
    def where() -> ServerAddress:
        """From the environment."""
        host, _, port = os.environ[OTHER_SERVER].rpartition(":")
        return ServerAddress(host, int(port))

    def source_after(self, statement: str) -> NativeSource:
        """It has no profiles: each connection runs the statement."""

        class WithProfile(NativeSource):
            def _new_session(self) -> Session:
                session = super()._new_session()
                session.rows(statement)
                return session

        return WithProfile(self.where())


class OtherSourceWorld(EngineSourceWorld):
    """The same for the contract of the port."""

    kind = OtherWorld


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OtherWorld | OtherSourceWorld]:
    """What the test's own module would give it for the native protocol."""
    of_the_port = request.function.__module__.endswith(OF_THE_PORT)
    made = OtherSourceWorld(tmp_path) if of_the_port else OtherWorld()
    yield made
    made.drop()
