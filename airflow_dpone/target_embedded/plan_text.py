"""The SQL of a delivery by name and in order, for the plan; parameters are shown as ``$name``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded import storage, table_checks
from airflow_dpone.wire.types import WireLayout

_RAW, _PREPARED = "r_<chunk>", "p_<window>"


def statements(
    target: tr.TargetRef,
    layout: WireLayout,
    window_column: str | None,
    checks: Sequence[TableCheck] = (),
    after_image_digest: bool = False,
) -> Mapping[str, str]:
    """Names of staging tables stand for the ones that a delivery makes."""
    columns = storage.stage_columns(layout)
    kinds = {name: kind for name, kind, _ in columns}
    names = [column.name for column in layout.columns]
    path, prepared = sql.qualified(target.schema, target.table), sql.stage_path(_PREPARED)
    texts = {
        "stage_create": sql.create_stage(_RAW, columns),
        "stage_write": sql.write_batch(_RAW, columns),
        "stage_read_back": sql.read_rows(sql.stage_path(_RAW), names),
        "prepared_create": sql.create_stage(_PREPARED, columns),
        "prepared_fill": sql.copy_stage(_PREPARED, _RAW, columns),
        **{check.name: table_checks.statement(prepared, kinds, check)[0] for check in checks},
        "publish_begin": sql.BEGIN,
        "publish_gate": sql.PUBLISH_GATE,
        "publish_receipt_already_there": sql.RECEIPT,
        "publish_prepared_read_back": sql.read_rows(prepared, names),
        "publish_delete": sql.delete_rows(path, window_column),
        "publish_insert": sql.insert_rows(path, names, prepared),
        "publish_receipt": sql.INSERT_RECEIPT,
        "publish_gate_done": sql.FINISH_GATE,
        "publish_commit": sql.COMMIT,
    }
    if window_column is not None:
        texts["publish_rows_outside_window"] = sql.count_outside(prepared, window_column)
        texts["publish_count"] = sql.count_window(path, window_column)
    else:
        texts["publish_count"] = sql.count_rows(path)
    if after_image_digest:
        texts["publish_after_image_read_back"] = sql.read_rows(path, names, window_column)
    return {name: text.strip() for name, text in texts.items()}
