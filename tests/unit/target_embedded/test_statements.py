"""The texts: quoting, and what the plan shows."""

from __future__ import annotations

import re

import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.target_embedded import plan_text
from airflow_dpone.target_embedded import statements as sql
from tests.contract.target_cases import ORDERS, layout_of

REF = tr.TargetRef("00" * 32, "shop", "orders", 1, "00" * 8, "00" * 32)


@pytest.mark.parametrize(
    ("name", "expected"), [("a", '"a"'), ('a"b', '"a""b"'), ('"; DROP TABLE t; --', '"""; DROP TABLE t; --"')]
)
def test_identifiers_are_quoted(name: str, expected: str) -> None:
    assert sql.quoted(name) == expected


def test_comments_are_quoted() -> None:
    assert sql.comment_on_table('"t"', "it's") == "COMMENT ON TABLE \"t\" IS 'it''s'"


def test_the_texts_of_a_window() -> None:
    texts = plan_text.statements(REF, layout_of(ORDERS), "ts")
    columns = '"id", "name", "amount", "ts"'
    assert texts["stage_create"] == (
        'CREATE TABLE "dpone_stage"."r_<chunk>" '
        '("id" BIGINT NOT NULL, "name" VARCHAR, "amount" DECIMAL(18,2), "ts" TIMESTAMP_MS)'
    )
    assert texts["publish_delete"] == (
        'DELETE FROM "shop"."orders" '
        'WHERE "ts" >= CAST($from_ts AS TIMESTAMP) AND "ts" < CAST($to_ts AS TIMESTAMP)'
    )
    assert texts["publish_insert"] == (
        f'INSERT INTO "shop"."orders" ({columns}) SELECT {columns} FROM "dpone_stage"."p_<window>"'
    )


def test_the_texts_of_a_full_refresh() -> None:
    texts = plan_text.statements(REF, layout_of(ORDERS), None)
    assert texts["publish_delete"] == 'DELETE FROM "shop"."orders"'
    assert "publish_rows_outside_window" not in texts


def test_the_gate_is_guarded_in_every_update() -> None:
    for text in (sql.CLAIM_GATE, sql.PUBLISH_GATE, sql.PROBE_GATE):
        assert re.search(
            r"target_key = \$target_key.*journal_id = \$journal_id.*fence < \$fence", text, re.DOTALL
        )
    for text in (sql.PUBLISH_GATE, sql.PROBE_GATE):
        assert "target_object_id = $object_id AND target_created = $created" in text
        assert "route_scope = $route_scope" in text
    for text in (sql.CLAIM_GATE, sql.PUBLISH_GATE):
        assert "in_flight_operation_id IS NULL" in text
