"""One Airflow for all tests of this folder: starting it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.standalone.airflow_server import Standalone
from tests.standalone.world import Home


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """``airflow standalone`` with the DAGs of this folder."""
    server = Standalone(tmp_path_factory.mktemp("standalone") / "airflow")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def new_home(tmp_path: Path) -> Callable[[str], Home]:
    """Makes homes on the embedded engines."""
    return lambda name: Home.of_engines(tmp_path / name)


@pytest.fixture
def new_fakes(tmp_path: Path) -> Callable[[str], Home]:
    """Makes homes on the fakes."""
    return lambda name: Home.of_fakes(tmp_path / name)
