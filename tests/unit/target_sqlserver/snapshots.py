"""The batches as they are sent, for people to read in a review.

python -m tests.unit.target_sqlserver.snapshots      # writes them again after a change that was meant
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.target_sqlserver import (
    check_statements,
    digest_statements,
    installation_statements,
    parity,
    preflight_statements,
    session_statements,
)
from airflow_dpone.target_sqlserver import publication_statements as batches
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.quoting import qualified
from airflow_dpone.target_sqlserver.statements import Schemas
from tests.contract.target_cases import ORDERS, layout_of

FOLDER = Path(__file__).with_name("snapshots")
LAYOUT = layout_of(ORDERS)
SCHEMAS = Schemas()
FROZEN = [
    (1, "id", 127, 8, 19, 0, 0, None),
    (2, "name", 231, 40, 0, 0, 1, "Latin1_General_CI_AS"),
    (3, "amount", 106, 9, 18, 2, 1, None),
    (4, "ts", 42, 7, 23, 3, 1, None),
]

CHECKS = (
    TableCheck("not_null", ("name",)),
    TableCheck("unique", ("id", "name")),
    TableCheck("min", ("amount",), "0.01"),
    TableCheck("max", ("ts",), "2025-01-02T00:00:00.000"),
)


def published(window: tuple[str, str] | None = ("ts", "datetime2(3)")) -> batches.PublishedTable:
    return batches.PublishedTable(
        target=qualified("shop", "orders"),
        columns=FROZEN,
        prepared=SCHEMAS.stage_path("p_0001"),
        layout=LAYOUT,
        window=window,
    )


def texts() -> Mapping[str, str]:
    """Every batch that a person should see a change of."""
    stage = SCHEMAS.stage_path("r_0001")
    return {
        "session": sql.session_settings(600_000) + sql.SESSION_FACTS,
        "writer_sessions": session_statements.RIGHTS + session_statements.WRITERS,
        "end_session": session_statements.end_session(57),
        "publication": batches.publication(published()),
        "publication_after_image": batches.publication(replace(published(), after_image=True)),
        "publication_full_refresh": batches.publication(published(None)),
        "probe": batches.probe(SCHEMAS),
        "receipts": sql.receipts(SCHEMAS),
        "quality_checks": "\n".join(
            check_statements.count(SCHEMAS.stage_path("p_0001"), LAYOUT, c) for c in CHECKS
        ),
        "stage_proof": digest_statements.observe(stage, LAYOUT, 4),
        "install": installation_statements.install_script(SCHEMAS),
        "permissions": installation_statements.permissions_script(SCHEMAS, [("shop", "orders")], "loader"),
        "rights": preflight_statements.held_rights(
            preflight_statements.rights_to_deliver("shop", "orders", SCHEMAS)
        ),
        "parity": parity.statement(parity.golden()[0]),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / f"{name}.sql").write_text(text.strip() + "\n", encoding="utf-8")
