"""Text hygiene: the repository is read by strangers on other machines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.package_source import ROOT, package_modules

# Folders that a tool made, whatever they hold.
NOT_OURS = {
    ".git",
    ".venv",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    "build",
    "dist",
}

# In pieces, so that this file does not match itself.
REGISTRY_HOSTS = re.compile(
    "|".join([r"py" + r"pi\.", r"python" + r"hosted\.", r"npm" + r"js\.", r"deb" + r"ian\.org"])
)
MACHINE_PATHS = re.compile(
    "|".join([r"(?<![\w.])/ro" + "ot/", r"(?<![\w.])/wo" + "rk/", r"(?<![\w.])/Us" + "ers/"])
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")


def _files() -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.endswith(".egg-info")]
        for name in names:
            path = Path(folder, name)
            try:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def _lines_that_match(pattern: re.Pattern[str], files: Iterator[tuple[str, str]]) -> list[str]:
    return [
        f"{where}:{number}: {line.strip()}"
        for where, text in files
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_a_package_registry() -> None:
    """Whoever installs decides where packages come from."""
    assert _lines_that_match(REGISTRY_HOSTS, _files()) == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert _lines_that_match(MACHINE_PATHS, _files()) == []


def test_the_package_is_finished() -> None:
    assert _lines_that_match(UNFINISHED, ((module.where, module.text) for module in package_modules())) == []


def test_the_patterns_match_what_they_forbid() -> None:
    """A pattern that matches nothing would pass for ever."""
    bad = iter([("f", "https://" + "py" + "pi.org/simple\n/ro" + "ot/.cache\nok.example/root/x")])
    text = list(bad)
    assert len(_lines_that_match(REGISTRY_HOSTS, iter(text))) == 1
    assert len(_lines_that_match(MACHINE_PATHS, iter(text))) == 1
    assert len(_lines_that_match(UNFINISHED, iter([("f", "# TO" + "DO: later\n")]))) == 1
