"""What a source tells about inserts and mutations once more, over a server that is not this repository's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.clickhouse_native.test_another_server import OTHER_SERVER, OtherWorld
from tests.contract.test_source_activity import *  # noqa: F403 - every test of it, over the world below

pytestmark = pytest.mark.skipif(not os.environ.get(OTHER_SERVER), reason=f"{OTHER_SERVER} names no server")


@pytest.fixture
def world() -> Iterator[OtherWorld]:
    """A database of the server that is named."""
    made = OtherWorld()
    yield made
    made.drop()
