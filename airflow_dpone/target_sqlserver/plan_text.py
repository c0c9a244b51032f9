"""The SQL of a delivery by name and in order, for the plan; ``?`` are parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.target_sqlserver import check_statements, digest_statements, stages
from airflow_dpone.target_sqlserver import publication_statements as batches
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.quoting import qualified
from airflow_dpone.wire.types import WireLayout

_RAW, _PREPARED = "r_<chunk>", "p_<window>"


def statements(
    target: tr.TargetRef,
    layout: WireLayout,
    window_column: str | None,
    schemas: sql.Schemas,
    checks: Sequence[TableCheck] = (),
    after_image_digest: bool = False,
) -> Mapping[str, str]:
    """Names of staging tables stand for the ones that a delivery makes, 0 for ids and counts."""
    columns = stages.stage_columns(layout)
    kinds = {name: kind for name, kind, _ in columns}
    window = None if window_column is None else (window_column, kinds[window_column])
    frozen = [
        (i, c.name, 0, 0, 0, 0, int(c.pair.target_nullable), None) for i, c in enumerate(layout.columns, 1)
    ]
    what = batches.PublishedTable(
        target=qualified(target.schema, target.table),
        columns=frozen,
        prepared=schemas.stage_path(_PREPARED),
        layout=layout,
        window=window,
        schemas=schemas,
        after_image=after_image_digest,
    )
    texts = {
        "session": sql.session_settings(600_000),
        "stage_create": sql.create_stage(schemas, _RAW, columns),
        "stage_mark": sql.add_mark(schemas, _RAW),
        "stage_barrier": sql.lock_stage(schemas, _RAW),
        "stage_proof": digest_statements.observe(schemas.stage_path(_RAW), layout, 0),
        "prepared_create": sql.create_stage(schemas, _PREPARED, columns),
        "prepared_fill": sql.copy_stage(schemas, _PREPARED, _RAW, [c.name for c in layout.columns]),
        **{c.name: check_statements.count(schemas.stage_path(_PREPARED), layout, c) for c in checks},
        "publish": batches.publication(what),
        "probe": batches.probe(schemas),
    }
    return {name: text.strip() for name, text in texts.items()}
