"""One template of a world for each test module; each test gets a machine on a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import shop
from tests.machine.machine import Machine
from tests.machine.rules import scratch


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with the template."""
    with scratch() as directory:
        shop.create_shop(directory / "template")
        yield directory


@pytest.fixture
def machine(place: Path) -> Iterator[Machine]:
    """A machine that has done nothing."""
    made = Machine(place / "world", place / "template")
    yield made
    made.close()
