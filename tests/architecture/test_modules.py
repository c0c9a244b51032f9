"""Sizes, names, docstrings: what keeps a module readable for the next person."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.package_source import PACKAGE, ROOT, Module, package_modules

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "manager", "base", "core", "misc"}
PHASES = ("admit", "extract", "stage", "verify", "publish", "evidence", "checkpoint")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(module: Module) -> Iterator[Function]:
    return (
        node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_no_module_is_too_long() -> None:
    long = {
        module.where: n for module in package_modules() if (n := module.text.count("\n")) > MAX_MODULE_LINES
    }
    assert long == {}


def test_no_function_is_too_long() -> None:
    long = {
        f"{module.where}:{function.lineno} {function.name}": _lines(function)
        for module in package_modules()
        for function in _functions(module)
        if _lines(function) > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_every_module_has_a_name_that_says_something() -> None:
    assert [m.where for m in package_modules() if NAMES_THAT_SAY_NOTHING & set(m.name.split("."))] == []


def test_no_assert_guards_the_product() -> None:
    """``python -O`` removes them."""
    asserts = [
        f"{module.where}:{node.lineno}"
        for module in package_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []


def test_every_module_and_public_name_is_described() -> None:
    missing = [
        module.where for module in package_modules() if module.text and not ast.get_docstring(module.tree)
    ]
    for module in package_modules():
        missing += [
            f"{module.where}:{node.lineno} {node.name}"
            for node in module.tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ]
    assert missing == []


def test_the_file_names_tell_the_order_of_the_phases() -> None:
    files = sorted(path.stem for path in (ROOT / PACKAGE / "delivery").glob("phase*.py"))
    assert files == [f"phase{number}_{name}" for number, name in enumerate(PHASES, start=1)]


def test_nothing_waits_by_a_call_that_knows_a_thousand_files_only() -> None:
    """``select.select`` refuses descriptors above 1023; a worker with an embedded engine has more."""
    files = [*(ROOT / PACKAGE).rglob("*.py"), ROOT / "tests" / "servers" / "proxy.py"]
    assert [path.name for path in files if "select.select(" in path.read_text()] == []
