"""The engine's tests run on the real journal and the real spool, a scripted source and a SQLite target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.world import World


@pytest.fixture(scope="session")
def fresh_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Made once and copied: migrating a journal takes longer than a delivery."""
    return World.create(tmp_path_factory.mktemp("fresh") / "world")


@pytest.fixture
def world(fresh_world: World, tmp_path: Path) -> World:
    """Six orders of one day, two chunks, an empty target: small enough to deliver in each test."""
    return fresh_world.copy(tmp_path / "world")
