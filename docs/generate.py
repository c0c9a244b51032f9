"""Write the pages of docs/reference that only repeat what the code says: ``make docs``.

tests/architecture/test_docs_in_step.py fails when a page differs from what is rendered here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from airflow_dpone.delivery import states
from airflow_dpone.errors import CATALOGUE
from airflow_dpone.settings import Limits, MinMax, Options, Quality, Route, RowCount
from airflow_dpone.target_embedded.storage import default_type
from airflow_dpone.wire.matrix import ExactPairs, exact_pairs, refused_sources
from airflow_dpone.wire.sql_type import FRAMING, REFUSED_TARGETS

REFERENCE = Path(__file__).resolve().parent / "reference"
_STORED = (
    "UTINYINT SMALLINT INTEGER BIGINT BOOLEAN FLOAT DOUBLE DECIMAL(18,4) DATE TIMESTAMP_S TIMESTAMP_MS "
    "TIMESTAMP VARCHAR BLOB UUID"
).split()
_VALUE_CODES = ("null", "nan", "infinite", "subnormal", "utf8", "too_long", "decimal", "range")
_MADE = "<!-- Made by `make docs` from {source}; edit that file. -->\n"


def errors_page() -> str:
    """Every error code, what to do about it, and whether a retry helps."""
    retry = {
        "never": "no: asking again changes nothing",
        "backoff": "yes: by itself, with a growing delay",
        "after_clear": "after a person cleared the task",
    }
    text = [
        "# Errors",
        _MADE.format(source="airflow_dpone/error_codes.toml"),
        "Every error names its code, what happened and what to do next. Codes never change their meaning and "
        "are never used again. No error holds a value of a row, a password or a connection string.\n",
    ]
    for error in dict.fromkeys(row.error for row in CATALOGUE.values()):
        rows = [row for row in CATALOGUE.values() if row.error == error]
        text.append(f"## {error}\n")
        text.append(
            _table(
                ("code", "what happened", "what to do", "retried"),
                ((f"`{row.code}`", row.summary, row.next_action, retry[row.retry]) for row in rows),
            )
        )
    return "\n".join(text)


def states_page() -> str:
    """The states of a delivery and of a chunk attempt, with every permitted move."""
    rules = (
        (
            f"`{state}`",
            rule.meaning,
            rule.writer,
            rule.custody,
            "yes" if rule.resumes_by_itself else "no",
            rule.way_out,
        )
        for state, rule in states.RULES.items()
    )
    return "\n".join(
        [
            "# States",
            _MADE.format(source="airflow_dpone/delivery/states.py"),
            "A delivery's state is the last boundary that would survive if every process died now.\n",
            "## Delivery\n",
            _table(
                ("state", "what is true", "written by", "custody", "goes on by itself", "what to do"), rules
            ),
            _diagram(states.MOVES),
            "## Chunk attempt\n",
            "One attempt to write one chunk into one raw table of the target.\n",
            _diagram(states.ATTEMPT_MOVES),
        ]
    )


def settings_page() -> str:
    """The settings: units, defaults and bounds."""
    text = [
        "# Settings",
        _MADE.format(source="airflow_dpone/settings.py"),
        "Units are in the names. Limits and options are tuning, not identity: a resumed delivery uses the "
        "newest values. Only `fail_on_null` is identity: a resumed delivery keeps the value it was planned "
        "with.\n",
    ]
    for model in (Route, Limits, Quality, RowCount, MinMax, Options):
        text += [f"## {model.__name__}\n", _settings(model)]
    return "\n".join(text)


def types_page() -> str:
    """The matrix of types: what is exact, what stops at a value, what is refused and what to do instead."""
    values = [CATALOGUE[f"dpone.source.{name}"] for name in _VALUE_CODES]
    return "\n".join(
        [
            "# Types",
            _MADE.format(
                source="airflow_dpone/wire (matrix, types, sql_type, source_type) and target_embedded/storage"
            ),
            "Each pair of a source and a target type is exact, or refused at admission, before anything is "
            "read. Nothing is rounded, cut, converted or replaced by NULL. `python -m airflow_dpone types` "
            "prints the same, and says of one pair whether it is exact: "
            "`types --source 'Decimal(38, 10)' --target 'decimal(38,10)'`.\n",
            "## Exact pairs\n",
            "Numbers in parentheses are examples. `Nullable(T)` and `LowCardinality(T)` count as `T`; "
            "`Nullable(T)` needs a target column that admits NULL, or `options.fail_on_null=True`, with "
            "which the first NULL stops the delivery. Instants are UTC. `Arrow` is the type of the column in "
            "a sealed chunk.\n",
            _table(("ClickHouse", "SQL Server", "Arrow"), map(_pairs, exact_pairs())),
            "## Columns of the embedded target\n",
            "What a DuckDB column counts as. A comment on the column may name another T-SQL type that the "
            "column holds: `COMMENT ON COLUMN sales.orders.status IS 'nvarchar(20)'`. Other DuckDB types are "
            "refused.\n",
            _table(("DuckDB", "counts as"), ((f"`{n}`", f"`{default_type(n)}`") for n in _STORED)),
            "## Values that stop a delivery\n",
            "The pair is fine, one value is not. The error names column and row, never the value.\n",
            _table(("code", "what happened"), ((f"`{row.code}`", row.summary) for row in values)),
            "## Source types that are refused\n",
            "Where a text says *view*: this version reads plain MergeTree tables only. Write the expression "
            "into a table of its own, and deliver that table.\n",
            _table(("ClickHouse", "why, and what to do"), map(_refused, refused_sources().items())),
            "## Target types that are refused\n",
            _table(("SQL Server", "why, and what to do"), map(_refused, REFUSED_TARGETS.items())),
            "## How a cell is written\n",
            "`native_rows v1`: a row is its cells in column order, and the digest hashes these bytes. The "
            "prefix is the payload's length in bytes, unsigned little-endian; all its bytes are FF for NULL. "
            "Golden bytes are in [the vectors](../../companion/vectors/README.md).\n",
            _table(("type", "payload", "payload bytes", "prefix of NULL", "prefix of NOT NULL"), _framing()),
        ]
    )


def calls_page() -> str:
    """The parameters of the operator and of the two functions, with their defaults."""
    from airflow_dpone import wiring
    from airflow_dpone.delivery.records import Requester
    from airflow_dpone.operators import (
        DeliverWindowOperator,
        DeliveryRetryPolicy,
        Rolling,
        deliver_window,
        target_asset,
        windows_between,
    )
    from airflow_dpone.operators.seven_tasks import OPERATORS
    from airflow_dpone.sensors import (
        CustodyClearSensor,
        SourceSettledSensor,
        WindowDeliveredSensor,
        WindowsCoveredSensor,
    )
    from airflow_dpone.sensors.waiting import JournalSensor

    text = [
        "# Calls",
        _MADE.format(source="the docstrings of the operators and sensors, deliver, plan and Requester"),
        f"Templated fields of the operators: `{'`, `'.join(DeliverWindowOperator.template_fields)}`.\n",
    ]
    for title, of in (
        ("DeliverWindowOperator", DeliverWindowOperator),
        ("deliver_window", deliver_window),
        ("Rolling", Rolling),
        ("windows_between", windows_between),
        ("DeliveryRetryPolicy", DeliveryRetryPolicy),
        ("target_asset", target_asset),
        ("Sensors that read the journal", JournalSensor),
        ("CustodyClearSensor", CustodyClearSensor),
        ("WindowsCoveredSensor", WindowsCoveredSensor),
        ("WindowDeliveredSensor", WindowDeliveredSensor),
        ("SourceSettledSensor", SourceSettledSensor),
        ("deliver", wiring.deliver),
        ("plan", wiring.plan),
        ("Requester", Requester),
    ):
        doc = inspect.cleandoc(of.__doc__ or "")
        defaults = _defaults(of)
        text += [f"## {title}\n", doc.partition(":param")[0].strip() + "\n"]
        rows = [(f"`{name}`", _parameter_default(defaults, name), said) for name, said in _params(doc)]
        text.append(_table(("parameter", "default", "meaning"), rows) if rows else "")
        if of is deliver_window:
            seven = ((f"`{cls.__name__}`", _first_line(cls)) for cls in OPERATORS.values())
            text.append(_table(("operator", "what it does"), seven))
    return "\n".join(text)


def _first_line(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]


def _defaults(of: Any) -> dict[str, Any]:
    """Defaults of a call, those that its bases take included."""
    classes = reversed(of.__mro__) if inspect.isclass(of) else ()
    calls = [vars(cls)["__init__"] for cls in classes if "__init__" in vars(cls)] or [of]
    return {n: p.default for call in calls for n, p in inspect.signature(call).parameters.items()}


def _params(doc: str) -> list[tuple[str, str]]:
    found = re.findall(r":param (\w+): (.*?)(?=:param |:returns|:raises|\n\n|$)", doc, re.S)
    return [(name, " ".join(said.split()).replace("``", "`")) for name, said in found]


def _parameter_default(defaults: Mapping[str, Any], name: str) -> str:
    value = defaults.get(name, inspect.Parameter.empty)
    return "needed" if value is inspect.Parameter.empty else f"`{value!r}`"


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "states.md": states_page,
    "settings.md": settings_page,
    "types.md": types_page,
    "calls.md": calls_page,
}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _pairs(row: ExactPairs) -> tuple[str, str, str]:
    targets = ", ".join(f"`{target}`" for target in row.targets)
    return f"`{row.source}`", targets, ", ".join(row.arrow)


def _framing() -> Iterable[tuple[str, ...]]:
    for name, row in FRAMING.items():
        size = "varies" if row.payload_bytes is None else str(row.payload_bytes)
        yield f"`{name}`", row.payload, size, str(row.prefix_nullable), str(row.prefix_not_null)


def _refused(row: tuple[str, str]) -> tuple[str, str]:
    name, why = row
    return f"`{name}`", f"{why[0].upper()}{why[1:]}."


def _diagram(moves: Mapping[Any, frozenset[Any]]) -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for before, afters in moves.items():
        lines += [f"    {before or '[*]'} --> {after}" for after in sorted(afters)] or [
            f"    {before} --> [*]"
        ]
    return "\n".join([*lines, "```\n"])


def _settings(model: type[BaseModel]) -> str:
    notes = _parameters(model.__doc__ or "")
    rows = []
    for name, schema in model.model_json_schema()["properties"].items():
        bounds = schema.get("anyOf", [schema])[0]  # an optional field has its bounds one level down
        default = _default(schema, model.model_fields[name].is_required())
        rows.append(
            (f"`{name}`", default, _bound(bounds, "minimum"), _bound(bounds, "maximum"), notes.get(name, ""))
        )
    return _table(("name", "default", "least", "most", "meaning"), rows)


def _parameters(docstring: str) -> dict[str, str]:
    """``:param name: text`` of a docstring, by name."""
    found = re.findall(r":param (\w+):\s*(.*?)(?=:param |\Z)", docstring, re.DOTALL)
    return {name: " ".join(text.replace("``", "`").split()) for name, text in found}


def _default(schema: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    if "default" not in schema:
        return "its own defaults"
    value = schema["default"]
    return "none" if value in (None, []) else f"{value:,}" if type(value) is int else f"`{value}`"


def _bound(schema: Mapping[str, Any], key: str) -> str:
    return f"{schema[key]:,}" if key in schema else ""


def main() -> None:
    """Write every page."""
    for name, render in PAGES.items():
        (REFERENCE / name).write_text(render(), encoding="utf-8")
        print(f"docs/reference/{name}")


if __name__ == "__main__":
    main()
