"""docs/reference/formats.md and tests/golden say the same: each file has its section, each field its line."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from airflow_dpone.journal.schemas import FILES
from tests.architecture.package_source import ROOT

PAGE = ROOT / "docs" / "reference" / "formats.md"
GOLDEN = ROOT / "tests" / "golden"
LINK = re.compile(r"\]\(([^)#]*)(#[^)]*)?\)")
NAME = re.compile(r"`([^`]+)`")
ABOUT = {"version", "stored", "golden file", "old versions"}


@cache
def parts() -> dict[str, list[str]]:
    """The lines below each heading, without those below the headings in it."""
    found: dict[str, list[str]] = defaultdict(list)
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
            if heading in found:
                raise ValueError(f"two headings {heading!r}")
        found[heading].append(line)
    return dict(found)


def rows(heading: str) -> list[list[str]]:
    """The cells of every table row below a heading."""
    lines = [line for line in parts()[heading] if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named(heading: str, head: str = "field") -> dict[str, list[str]]:
    """The rows of the tables whose first column is ``head``, by the name in it."""
    table, found = False, {}
    for cells in rows(heading):
        if not NAME.match(cells[0]):
            table = table if cells[0].startswith("---") else cells[0] == head
        elif table:
            found[NAME.findall(cells[0])[0]] = cells
    return found


@cache
def about() -> dict[str, dict[str, str]]:
    """The small table at the head of each format's section."""
    found = {}
    for heading in parts():
        cells = {row[0]: " | ".join(row[1:]) for row in rows(heading) if row[0] in ABOUT}
        if cells:
            found[heading] = cells
    return found


def golden(file: str) -> Any:
    """A golden file's document."""
    return json.loads((GOLDEN / file).read_text(encoding="ascii"))


def payloads() -> dict[str, set[str]]:
    """The fields that the payloads of each event have in the golden file."""
    found: dict[str, set[str]] = defaultdict(set)
    document = golden("delivery_events.json")
    for event in [*document["stream"], *document["others"]]:
        found[event["document"]["event"]] |= event["document"]["payload"].keys()
    return dict(found)


def tables() -> dict[str, set[str]]:
    """The columns of each table of the journal."""
    found: dict[str, set[str]] = {}
    for statement in (GOLDEN / "journal_tables.sql").read_text(encoding="ascii").split(";"):
        table = re.search(r"CREATE TABLE (\w+)", statement)
        if table:
            found[table[1]] = set(re.findall(r"^  ([a-z]\w*) ", statement, re.MULTILINE))
    return found


def fields_of_golden_files() -> dict[str, Iterable[str]]:
    """The fields that the page must list, by the heading they stand under."""
    events = golden("delivery_events.json")["stream"]
    attempt = [event["document"] for event in golden("chunk_attempt_events.json")["verified"]]
    plan = golden("frozen_plan.json")["plans"][0]["plan"]
    target = golden("target_tables.json")["rows"]
    calls = {
        call["says"]["schema"]: call["fields"] for call in golden("commands.json")["calls"] if call["says"]
    }
    bindings = ("stage_binding", "artifact_binding", "writer_binding", "observation")
    return {
        **{f"`{table}`": columns for table, columns in tables().items() if table != "dpone_alembic_version"},
        **{f"`dpone.{table}`": row for table, row in target.items()},
        **{f"`{schema}`": fields for schema, fields in calls.items()},
        **{f"`{name}`": attempt[-1][name] for name in bindings},
        "Delivery envelope": events[0]["document"],
        "Source snapshot": next(
            e["document"]["payload"]["source"] for e in events if e["document"]["event"] == "EXTRACTED"
        ),
        "Attempt envelope": attempt[0],
        "Frozen plan": plan,
        **{f"`{name}`": plan[name] for name in ("identity", "target", "tuning")},
        "Sealed chunk": golden("sealed_chunk.json").keys() - {"format", "version"},
        "Sealed chunk of native rows": golden("sealed_native.json").keys() - {"format", "version"},
        "Receipt": golden("receipt.json")["read_back"],
        "Evidence": golden("evidence.json")["document"],
        "Delivery result": golden("delivery_result.json")["stored"],
    }


def test_every_golden_file_belongs_to_one_section() -> None:
    linked = [
        target.removeprefix("../../tests/golden/")
        for cells in about().values()
        for target, _ in LINK.findall(cells["golden file"])
        if target.startswith("../../tests/golden/")
    ]
    files = {path.name for path in GOLDEN.iterdir() if path.suffix != ".py" and path.is_file()}
    assert sorted(linked) == sorted(files)


def test_every_schema_is_named_by_the_section_of_its_documents() -> None:
    """What they share is named once, among the common rules."""
    folder = "../../airflow_dpone/journal/schemas/"
    linked = {
        heading: row[1].partition("](")[2].removeprefix(folder).rstrip(")")
        for heading in parts()
        for row in rows(heading)
        if row[0] == "JSON Schema"
    }
    assert linked == {
        "Delivery event": FILES["dpone.delivery-event"],
        "Chunk attempt event": FILES["dpone.chunk-attempt-event"],
        "Evidence": FILES["dpone.delivery-evidence"],
        "Delivery result": FILES["dpone.delivery-result"],
    }
    assert f"{folder}common.v1.json" in "\n".join(parts()["Common rules"])


def test_every_format_says_what_a_reader_asks() -> None:
    assert {heading: cells.keys() for heading, cells in about().items() if cells.keys() != ABOUT} == {}
    assert len(about()) == 16


def test_every_section_names_the_version_of_its_golden_file() -> None:
    wrong = []
    for heading, cells in about().items():
        for file in re.findall(r"golden/(\w+\.json)", cells["golden file"]):
            document = golden(file)
            if not cells["version"].startswith(f"`{document['format']}` version {document['version']}"):
                wrong.append(f"{heading}: {file}")
    head = (GOLDEN / "journal_tables.sql").read_text(encoding="ascii").splitlines()[1]
    said = re.sub("[`(),]", "", about()["Journal tables"]["version"]).replace("revision ", "revisions ")
    assert wrong == []
    assert said.startswith(head.removeprefix("-- ").replace(",", "")), head


@pytest.mark.parametrize("heading", sorted(fields_of_golden_files()))
def test_the_page_lists_exactly_the_fields_that_are_written(heading: str) -> None:
    assert set(named(heading)) == set(fields_of_golden_files()[heading])


def test_every_field_says_its_type_and_when_it_is_null() -> None:
    short = [
        f"{heading}: {name}"
        for heading in fields_of_golden_files()
        for name, cells in named(heading).items()
        if len(cells) < 4 or not cells[1] or not cells[-2]
    ]
    assert short == []


def test_the_page_lists_the_payload_of_every_event() -> None:
    listed = {
        name: set(NAME.findall(cells[1])) for name, cells in named("Delivery payloads", "event").items()
    }
    written = payloads()
    assert listed == written


def test_the_page_lists_every_key() -> None:
    written = {key["key"].partition(" of ")[0] for key in golden("keys.json")["keys"]}
    assert set(named("Keys", "key")) == written


def test_the_page_lists_what_every_command_answers() -> None:
    listed = {tuple(cells) for cells in rows("Commands") if cells[0].startswith("`")}
    written = {
        (f"`{call['command']}`", call["finds"], str(call["exit_code"]))
        for call in golden("commands.json")["calls"]
    }
    assert listed == written


def test_the_page_lists_every_setting() -> None:
    listed = {name: set(NAME.findall(cells[1])) for name, cells in named("Settings", "entry").items()}
    assert listed == {name: set(entry) for name, entry in golden("settings.json")["entries"].items()}


def test_the_page_lists_every_type_of_the_framing_table() -> None:
    listed = {
        name for cells in rows("Native rows and digest") if len(cells) == 5 for name in NAME.findall(cells[0])
    }
    assert listed == {row[0] for row in golden("native_rows.json")["framing"]["rows"]}


def test_every_link_of_the_page_leads_somewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in parts()}
    lost = [target for target, _ in LINK.findall(text) if target and not (PAGE.parent / target).exists()]
    lost += [anchor for target, anchor in LINK.findall(text) if not target and anchor[1:] not in anchors]
    assert lost == []
