"""The schemas of the journal's documents: true of everything that is written, and refusing what differs.

A second implementation of JSON Schema judges the same documents, so that what holds does not hang on one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referencing import Registry, Resource

from airflow_dpone.delivery.records import Json
from airflow_dpone.delivery.states import (
    AttemptEvent,
    DeliveryEvent,
    DeliveryState,
    DiagnosticCode,
    ReleaseReason,
)
from airflow_dpone.errors import CATALOGUE
from airflow_dpone.journal.schemas import FILES, find_misfit, read_schema
from airflow_dpone.quality_settings import Severity
from airflow_dpone.settings import Limits, MinMax, OnEmpty, Quality, RowCount, Strategy, Writer
from airflow_dpone.wire.digest import ALGORITHM
from tests.contract import journal_examples as examples
from tests.contract.document_changes import Place, changed, is_below, mutations, places, put
from tests.golden import stories

S, D, A = DeliveryState, DeliveryEvent, AttemptEvent
DELIVERY, ATTEMPT, EVIDENCE, RESULT = FILES
SCHEMAS = {file: read_schema(file) for file in ("common.v1.json", *FILES.values())}
EXAMPLES: dict[str, tuple[str, Json]] = {
    **{str(event): (DELIVERY, examples.delivery_event(event)) for event in (*S, *D)},
    **{f"chunk {event}": (ATTEMPT, examples.attempt_event(event)) for event in A},
    "evidence": (EVIDENCE, examples.evidence_document()),
    "result": (RESULT, examples.result_document()),
}


@cache
def _reference(kind: str) -> jsonschema.Draft202012Validator:
    registry = Registry().with_resources(
        [(schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values()]
    )
    return jsonschema.Draft202012Validator(SCHEMAS[FILES[kind]], registry=registry)


def misfit_of(kind: str, document: Json) -> str | None:
    """The path that the product names, after both implementations were asked."""
    found = find_misfit(kind, document)
    assert (found is None) is _reference(kind).is_valid(document)
    return None if found is None else found.path


# ---- what is written fits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", SCHEMAS)
def test_a_schema_is_a_schema_of_the_newest_draft(file: str) -> None:
    assert SCHEMAS[file]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMAS[file]["$id"].endswith(f"/{file}")
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[file])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_fits(name: str) -> None:
    assert misfit_of(*EXAMPLES[name]) is None


def test_every_golden_event_fits() -> None:
    for document in examples.golden_delivery_events():
        assert misfit_of(DELIVERY, document) is None
    for document in examples.golden_attempt_events():
        assert misfit_of(ATTEMPT, document) is None


@pytest.mark.parametrize("story", stories.STORIES)
def test_every_document_of_a_whole_delivery_fits(story: str) -> None:
    told = stories.told(story)
    documents = [json.loads(row["body"]) for row in told["dpone_event"]]
    assert len(documents) > 3
    for document in documents:
        assert misfit_of(document["kind"], document) is None
    for row in told["dpone_evidence"]:
        assert misfit_of(EVIDENCE, json.loads(row["body"])) is None


ALSO_WRITTEN: dict[str, tuple[Any, Json]] = {
    "an epoch given up after its end": (
        D.EPOCH_ABANDONED,
        {"extraction_epoch": 2, "reason": "its files are gone"},
    ),
    "an attempt given up with a reason": (
        D.ATTEMPT_ABANDONED,
        {"attempt_id": "a" * 64, "reason": "no answer"},
    ),
    "retired by a person": (S.RETIRED, {"reason": "given up by a person"}),
    "published after an incident": (S.PUBLISHED, examples.payload(S.PUBLISHED)),
    "an incident of the target": (
        S.INCIDENT,
        {"reason": "dpone.target.incarnation_gone", "said": "x" * 500, "resumes_from": "EVIDENCED"},
    ),
    "a chunk of native rows": (
        D.CHUNK_SEALED,
        examples.payload(D.CHUNK_SEALED, chunk_format="mssql_native", format_file_sha256="f" * 64),
    ),
    "every kind of quality check": (
        D.TUNED,
        examples.payload(
            D.TUNED,
            quality=Quality(
                unique=[["id", "at"]],
                min_max={"amount": {"min": "0.00"}},
                max_shrink_ratio="0.5",
                severity={"max_shrink_ratio": "warn"},
            ).stored(),
        ),
    ),
    "a send that hashes the window": (S.PUBLISHING, examples.payload(S.PUBLISHING, after_image_digest=True)),
    "options about the target": (
        D.TUNED,
        examples.payload(
            D.TUNED,
            after_image_digest=True,
            allow_triggers=True,
            allow_referenced_target=True,
            unmapped_columns=["note"],
        ),
    ),
    "checks that say what they observed": (
        S.PREPARED,
        examples.payload(
            S.PREPARED,
            quality=[
                {
                    "check": "unique(id, at)",
                    "passed": False,
                    "said": "2 rows repeat a key",
                    "severity": "warn",
                    "observed": "2",
                    "threshold": "0",
                }
            ],
        ),
    ),
    "encoding processes": (
        D.TUNED,
        examples.payload(D.TUNED, limits={**examples.tuned(7)["limits"], "encoding_parallelism": 2}),
    ),
    "writers at once": (
        D.TUNED,
        examples.payload(D.TUNED, limits={**examples.tuned(7)["limits"], "import_parallelism": 4}),
    ),
}


@pytest.mark.parametrize("name", ALSO_WRITTEN)
def test_what_no_golden_file_holds_fits_too(name: str) -> None:
    event, payload = ALSO_WRITTEN[name]
    assert misfit_of(DELIVERY, {**examples.delivery_event(event), "payload": payload}) is None


def test_a_plan_with_fail_on_null_and_a_full_refresh_fit() -> None:
    document = examples.delivery_event(S.PLANNED)
    plan = document["payload"]
    plan["identity"]["fail_on_null"] = plan["columns"][0]["fail_on_null"] = True
    assert misfit_of(DELIVERY, document) is None
    plan["identity"].update(window="full", strategy="full_refresh")
    assert misfit_of(DELIVERY, document) == "payload.target_window_column"
    plan["target_window_column"] = plan["window_column"] = None
    assert misfit_of(DELIVERY, document) is None


def test_a_check_says_all_three_of_the_newer_fields_or_none() -> None:
    event, payload = ALSO_WRITTEN["checks that say what they observed"]
    for name in ("severity", "observed", "threshold"):
        check = {key: value for key, value in payload["quality"][0].items() if key != name}
        document = {**examples.delivery_event(event), "payload": {**payload, "quality": [check]}}
        assert str(misfit_of(DELIVERY, document)).startswith("payload.quality.0")


# ---- lists that are closed are the lists of the code -------------------------------------------------------


def _at(file: str, path: str) -> Any:
    found: Any = SCHEMAS[file]
    for part in path.split("/"):
        found = found[int(part)] if isinstance(found, list) else found[part]
    return found


OBSERVATION = "properties/observation/properties"
CLOSED: list[tuple[str, str, Any]] = [
    ("common.v1.json", "$defs/state/enum", S),
    ("common.v1.json", "$defs/strategy/enum", get_args(Strategy)),
    ("common.v1.json", "$defs/writer_backend/enum", get_args(Writer)),
    ("common.v1.json", "$defs/digest_algorithm", {"const": ALGORITHM}),
    (FILES[DELIVERY], "properties/event/anyOf/1/enum", D),
    (FILES[DELIVERY], "$defs/CUSTODY_RELEASED/properties/reason/enum", ReleaseReason),
    (FILES[DELIVERY], "$defs/TUNED/properties/on_empty/enum", get_args(OnEmpty)),
    (FILES[DELIVERY], "$defs/TUNED/properties/limits/properties", Limits.model_fields),
    (FILES[DELIVERY], "$defs/TUNED/properties/quality/properties", Quality.model_fields),
    (
        FILES[DELIVERY],
        "$defs/TUNED/properties/quality/properties/row_count/properties",
        RowCount.model_fields,
    ),
    (
        FILES[DELIVERY],
        "$defs/TUNED/properties/quality/properties/min_max/items/properties",
        MinMax.model_fields,
    ),
    ("common.v1.json", "$defs/severity/enum", get_args(Severity)),
    (FILES[ATTEMPT], "properties/event/enum", A),
    (FILES[ATTEMPT], f"{OBSERVATION}/diagnostic_code/then/enum", DiagnosticCode),
]


@pytest.mark.parametrize(("file", "path", "code"), CLOSED, ids=[path for _, path, _ in CLOSED])
def test_a_closed_list_is_the_one_of_the_code(file: str, path: str, code: Any) -> None:
    assert sorted(_at(file, path)) == sorted(code)


def test_every_event_has_a_closed_payload_of_its_own() -> None:
    rules = {
        rule["if"]["properties"]["event"]["const"]: rule["then"]["properties"]["payload"]["$ref"]
        for rule in SCHEMAS[FILES[DELIVERY]]["allOf"]
        if "event" in rule["if"]["properties"]
    }
    assert rules == {event: f"#/$defs/{event}" for event in (*S, *D)}


def test_every_error_code_has_the_form_of_a_code() -> None:
    for code in CATALOGUE:
        document = examples.delivery_event(S.FAILED)
        document["payload"]["code"] = code
        assert find_misfit(DELIVERY, document) is None, code


# ---- what differs is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_single_change_of_an_example_is_refused_and_named(name: str) -> None:
    kind, document = EXAMPLES[name]
    tried = list(mutations(document))
    assert len(tried) > 50
    found = [(told, place, find_misfit(kind, mutant)) for told, mutant, place in tried]
    assert [(*one, m) for *one, m in found if m is None or not is_below(m.path, one[1])] == []


MUTANTS = st.sampled_from(sorted(EXAMPLES)).flatmap(
    lambda name: st.sampled_from(list(mutations(EXAMPLES[name][1]))).map(
        lambda found: (EXAMPLES[name][0], found)
    )
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5)
    | st.sampled_from([*S, *D, *A, *DiagnosticCode, "dpone.attempt.other", "full", "0", "1", "a" * 64])
)


@settings(max_examples=150, deadline=None)
@given(mutant=MUTANTS)
def test_both_implementations_refuse_a_changed_document(mutant: tuple[str, tuple[str, Json, Place]]) -> None:
    kind, (_, document, place) = mutant
    assert is_below(misfit_of(kind, document), place)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_both_implementations_judge_alike_whatever_stands_in_a_place(data: st.DataObject) -> None:
    """Also values that may stand there: whether they fit depends on the event."""
    kind, document = EXAMPLES[data.draw(st.sampled_from(sorted(EXAMPLES)))]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([place for place, _ in places(document) if place]))
        document = changed(document, place, put(data.draw(VALUES)))
    misfit_of(kind, document)


RULES: dict[str, tuple[AttemptEvent, Callable[[Json], Any], str]] = {
    "an id before there is a table": (
        A.INTENT, lambda d: d["stage_binding"].update(object_id="1"), "stage_binding.object_id",
    ),
    "a table without an id": (
        A.STAGE_OWNED, lambda d: d["stage_binding"].update(object_id=None), "stage_binding.object_id",
    ),
    "an id that is not positive": (
        A.GRANTED, lambda d: d["stage_binding"].update(object_id="0"), "stage_binding.object_id",
    ),
    "a writer before it was granted": (
        A.STAGE_OWNED, lambda d: d.update(examples.bindings(A.GRANTED)), "writer_binding",
    ),
    "granted to nobody": (A.GRANTED, lambda d: d.update(writer_binding=None), "writer_binding"),
    "verified and written by nobody": (A.VERIFIED, lambda d: d.update(writer_binding=None), "writer_binding"),
    "given up, granted, and no table": (
        A.FAILED_RETIRABLE, lambda d: d["stage_binding"].update(object_id=None), "stage_binding.object_id",
    ),
    "an observation while it writes": (
        A.WRITING, lambda d: d.update(observation=examples.bindings(A.UNKNOWN)["observation"]), "observation",
    ),
    "an end without an observation": (A.WRITER_TERMINAL, lambda d: d.update(observation=None), "observation"),
    "an incident without an observation": (
        A.INCIDENT_RETAINED, lambda d: d.update(observation=None), "observation",
    ),
    "a writer that said nothing": (
        A.UNKNOWN, lambda d: d["observation"].update(writer_outcome=None), "observation.writer_outcome",
    ),
    "an outcome of nobody": (
        A.UNKNOWN, lambda d: d["observation"].update(writer_outcome="ok"), "observation.writer_outcome",
    ),
    "verified and not counted": (
        A.VERIFIED, lambda d: d["observation"].update(count=None), "observation.count",
    ),
    "verified with an overflow": (
        A.VERIFIED, lambda d: d["observation"].update(overflow=True), "observation.overflow",
    ),
    "verified without limbs": (
        A.VERIFIED, lambda d: d["observation"].update(limbs=None), "observation.limbs",
    ),
    "verified and a writer may live": (
        A.VERIFIED, lambda d: d["observation"].update(quiescence="unverified"), "observation.quiescence",
    ),
    "retired for no reason": (
        A.RETIRED, lambda d: d["observation"].update(diagnostic_code=None), "observation.diagnostic_code",
    ),
    "a reason of nobody": (
        A.RETIRED, lambda d: d["observation"].update(diagnostic_code="dpone.attempt.x"),
        "observation.diagnostic_code",
    ),
    "a first event with one before it": (
        A.INTENT, lambda d: d.update(previous_sha256="a" * 64), "previous_sha256",
    ),
    "a later event with none before it": (
        A.WRITING, lambda d: d.update(previous_sha256=None), "previous_sha256",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_rule_between_an_event_and_its_bindings_holds(name: str) -> None:
    event, change, path = RULES[name]
    document = examples.attempt_event(event)
    change(document)
    assert misfit_of(ATTEMPT, document) == path


def test_an_attempt_that_was_never_written_may_be_given_up() -> None:
    """By the code that looks for its table: no id, no writer, and why."""
    for event in (A.FAILED_RETIRABLE, A.RETIRED, A.INCIDENT_RETAINED):
        document = {**examples.attempt_event(event), "writer_binding": None}
        document["stage_binding"]["object_id"] = None
        document["observation"] = dict.fromkeys(document["observation"])
        document["observation"].update(
            quiescence="unverified", diagnostic_code=DiagnosticCode.NOT_CREATED.value
        )
        assert misfit_of(ATTEMPT, document) is None


def test_a_misfit_tells_the_place_and_no_value() -> None:
    document = examples.delivery_event(D.CHUNK_SEALED)
    document["payload"]["limbs"][3] = "a secret"
    document["payload"]["a secret"] = "another"
    found = find_misfit(DELIVERY, document)
    assert str(found) == "its schema refuses payload.? (additionalProperties)"
    del document["payload"]["a secret"]
    assert str(find_misfit(DELIVERY, document)) == "its schema refuses payload.limbs.3 (pattern)"


@pytest.mark.parametrize("document", [None, [], "x", 1, {}, {"payload": {}}])
def test_what_is_no_document_at_all_is_a_misfit(document: Any) -> None:
    for kind in FILES:
        assert find_misfit(kind, document) is not None


def test_a_document_that_is_nested_without_end_is_a_misfit() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    found = find_misfit(DELIVERY, {**examples.delivery_event(D.TUNED), "payload": deep})
    assert found is not None
