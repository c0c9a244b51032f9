"""The settings that every query to the source carries, and what else may differ from ClickHouse's defaults.

A profile can make a query return other rows without any error: a row limit, a break at a bound, a filter, an
old cached result. So each query carries a closed list, and everything else that is not at its default is
refused by name, unless it is known not to change a result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from airflow_dpone.errors import Problem

MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 16, 65_409
BLOCK_BYTES = 16 * 1024 * 1024

ALWAYS_SENT: dict[str, str] = {
    "session_timezone": "UTC",
    "final": "0",
    "limit": "0",
    "offset": "0",
    "extremes": "0",
    "additional_table_filters": "{}",
    "additional_result_filter": "",
    "apply_deleted_mask": "1",
    "use_query_cache": "0",
    "max_parallel_replicas": "1",
    "read_overflow_mode": "throw",
    "read_overflow_mode_leaf": "throw",
    "timeout_overflow_mode": "throw",
    "timeout_overflow_mode_leaf": "throw",
    "result_overflow_mode": "throw",
    "set_overflow_mode": "throw",
    "sort_overflow_mode": "throw",
    "distinct_overflow_mode": "throw",
    "transfer_overflow_mode": "throw",
    "group_by_overflow_mode": "throw",
    "join_overflow_mode": "throw",
    "low_cardinality_allow_in_native_format": "0",
    "compatibility": "",
    "max_block_size": str(MAX_BLOCK_ROWS),
    "preferred_block_size_bytes": str(BLOCK_BYTES),
}
"""Every supported server knows these."""

SENT_IF_KNOWN: dict[str, str] = {
    "filter": "",
    "apply_patch_parts": "1",
    "apply_mutations_on_fly": "0",
    "enable_parallel_replicas": "0",
    "allow_experimental_parallel_reading_from_replicas": "0",
    "optimize_use_projections": "0",
    "allow_experimental_projection_optimization": "0",
    "partial_result_on_first_cancel": "0",
}
"""Sent if ``system.settings`` has the name; a server without it lacks the feature as well."""

ARROW_SENT: dict[str, str] = {
    "output_format_arrow_string_as_string": "0",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "output_format_arrow_compression_method": "none",
}
"""Of the embedded engine, whose results come as Arrow files: raw bytes, no dictionaries."""

HARMLESS: frozenset[str] = frozenset(
    """
    connect_timeout connect_timeout_with_failover_ms connections_with_failover_max_tries
    idle_connection_timeout load_balancing log_comment log_formatted_queries log_profile_events
    log_queries log_queries_cut_to_length log_queries_min_query_duration_ms log_queries_min_type
    log_queries_probability log_query_settings log_query_threads log_query_views max_bytes_to_read
    max_bytes_to_read_leaf max_concurrent_queries_for_all_users max_concurrent_queries_for_user
    max_execution_speed max_execution_speed_bytes max_execution_time max_execution_time_leaf
    max_insert_block_size max_insert_threads max_memory_usage max_memory_usage_for_user
    max_network_bandwidth max_network_bandwidth_for_user max_partitions_per_insert_block
    max_query_size max_read_buffer_size max_result_bytes max_result_rows max_rows_to_read
    max_rows_to_read_leaf max_threads memory_overcommit_ratio_denominator
    memory_overcommit_ratio_denominator_for_user memory_profiler_step
    memory_usage_overcommit_max_wait_microseconds min_bytes_to_use_direct_io
    min_bytes_to_use_mmap_io min_execution_speed min_execution_speed_bytes
    min_insert_block_size_bytes min_insert_block_size_rows network_compression_method
    network_zstd_compression_level opentelemetry_start_trace_probability os_thread_priority
    output_format_parallel_formatting poll_interval priority query_profiler_cpu_time_period_ns
    query_profiler_real_time_period_ns queue_max_wait_ms readonly receive_timeout send_logs_level
    send_logs_source_regexp send_timeout skip_unavailable_shards tcp_keep_alive_timeout
    timeout_before_checking_execution_speed trace_profile_events use_uncompressed_cache
    """.split()
)
"""They bound, log or route a query, but cannot change its rows while every overflow mode is ``throw``."""

EMBEDDED_OWN: frozenset[str] = frozenset(
    (
        "allow_introspection_functions",
        "serialize_query_plan",
        "database",
        "storage_file_read_method",
        "implicit_select",
    )
)
"""Changed by chDB itself in every session."""


def settings_to_send(known: Collection[str]) -> dict[str, str]:
    """The closed list for a server: what is always sent, and of the rest what the server knows."""
    rest = {name: value for name, value in SENT_IF_KNOWN.items() if name in known}
    return {**ALWAYS_SENT, **rest}


def block_rows(row_bytes: int) -> int:
    """``max_block_size`` for rows of that average size. It is the only bound that cuts inside a granule."""
    return max(MIN_BLOCK_ROWS, min(MAX_BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))


def setting_problems(
    changed: Sequence[tuple[str, str]], sent: Mapping[str, str], own: Collection[str]
) -> list[Problem]:
    """What in ``system.settings WHERE changed``, asked with the closed list, is not as it must be.

    :param changed: name and value of each setting that is not at its default, while the list was sent.
    :param sent: the list. :param own: names that the engine changes by itself.
    """
    values = dict(changed)
    problems = [
        Problem("dpone.source.setting", f"setting {name}", _stuck(name, value, values.get(name)))
        for name, value in sent.items()
        if values.get(name) != value
    ]
    for name in sorted(set(values) - set(sent) - HARMLESS - set(own)):
        text = (
            "differs from ClickHouse's default and is not known to leave results alone; take it out of the"
            " profile of this user"
        )
        problems.append(Problem("dpone.source.setting", f"setting {name}", text))
    return problems


def _stuck(name: str, wanted: str, found: str | None) -> str:
    shown = "its default" if found is None else repr(found)
    return (
        f"must be {wanted!r} for a complete result, but stays {shown}; correct the profile or its constraints"
    )
