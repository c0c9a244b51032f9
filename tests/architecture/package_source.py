"""The package as text and syntax trees: what the tests of this folder look at."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "airflow_dpone"


@dataclass(frozen=True)
class Module:
    """One module of the package.

    :param name: dotted; a package is named without ``__init__``.
    :param where: its path from the root of the repository, for messages.
    """

    name: str
    where: str
    text: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The part of the layout it belongs to: ``delivery``, ``errors`` ... or ``__init__`` for the root."""
        return self.name.split(".")[1] if "." in self.name else "__init__"


@dataclass(frozen=True)
class Import:
    """One imported module or name, fully dotted, wherever it stands: at the top, in a function, for types."""

    module: Module
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.module.where}:{self.line} imports {self.target}"


def read(path: Path, root: Path = ROOT) -> Module:
    """One file as a module."""
    where = path.relative_to(root)
    parts = where.with_suffix("").parts
    text = path.read_text(encoding="utf-8")
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, where.as_posix(), text, ast.parse(text))


@cache
def package_modules() -> tuple[Module, ...]:
    """Every module of the package."""
    return tuple(read(path) for path in sorted((ROOT / PACKAGE).rglob("*.py")))


def imports(module: Module) -> list[Import]:
    """Every import of a module, also relative ones and ``import_module("literal")``."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found += [Import(module, alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            found += [Import(module, f"{source}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found += [
                Import(module, argument.value, node.lineno)
                for argument in node.args
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            ]
    return found


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.name.split(".")
    if not module.where.endswith("/__init__.py"):
        package = package[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])
