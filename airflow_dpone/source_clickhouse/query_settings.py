"""The settings that every query to the source carries, and what else may differ from ClickHouse's defaults.

A profile can make a query return other rows without any error: a row limit, a break at a bound, a filter, an
old cached result. So each query carries a closed list, and everything else that is not at its default is
refused by name, unless it is known not to change a result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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

HARMLESS_BEGINNINGS: tuple[str, ...] = (
    "async_insert",
    "distributed_ddl_",
    "format_csv_",
    "input_format_",
    "insert_",
    "mutations_",
    "alter_",
    "output_format_csv_",
    "output_format_json_",
    "output_format_pretty_",
    "output_format_tsv_",
    "wait_for_async_insert",
)
"""Of INSERT, of DDL, and of text formats, none of which a read uses."""

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

SENT_WITH_A_READ = ("max_execution_time", "log_comment")
"""Sent with the one query of a read where the user may set them; nothing depends on them but comfort."""
BLOCK_SETTINGS = ("max_block_size", "preferred_block_size_bytes")
LARGEST_BLOCK_BYTES = 512 * 1024 * 1024
"""Of a block whose size may not be set: far below the 2 GiB that one Arrow string column can hold."""


@dataclass(frozen=True)
class Setting:
    """One row of ``system.settings``.

    :param fixed: the user may not set it. :param least: smallest permitted value, '' for none.
    :param most: greatest permitted value, '' for none.
    """

    value: str
    changed: bool
    fixed: bool = False
    least: str = ""
    most: str = ""

    @property
    def bounded(self) -> bool:
        """Whether not every value may be set."""
        return self.fixed or bool(self.least or self.most)

    def admits(self, value: str) -> bool:
        """Whether the user may set it to that value, as far as its constraints tell."""
        if self.fixed:
            return value == self.value
        numbers = [value, *(bound for bound in (self.least, self.most) if bound)]
        if not all(number.isdigit() for number in numbers):
            return not self.bounded or value == self.value
        return int(self.least or 0) <= int(value) and (not self.most or int(value) <= int(self.most))


@dataclass(frozen=True)
class Sendable:
    """What a user's queries can carry.

    :param sent: goes with every query. :param found: ``system.settings`` as it is without it, by name.
    :param readonly: the user may set nothing (``readonly = 1``).
    """

    sent: Mapping[str, str]
    found: Mapping[str, Setting]
    readonly: bool = False

    def with_a_read(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Those of :data:`SENT_WITH_A_READ` that the user may set to these values; a time that is longer than
        the user's bound becomes that bound."""
        if self.readonly:
            return {}
        may = {}
        for name, value in wanted.items():
            setting = self.found.get(name, Setting("", False))
            if setting.most.isdigit() and value.isdigit():
                value = str(min(int(value), int(setting.most)))
            if setting.admits(value):
                may[name] = value
        return may

    def block_settings(self, row_bytes: int) -> dict[str, str]:
        """``max_block_size`` for rows of that average size, if it may be set."""
        if "max_block_size" not in self.sent:
            return {}
        return {"max_block_size": str(block_rows(row_bytes))}

    def block_problems(self, row_bytes: int) -> list[Problem]:
        """Whether blocks whose size may not be set could become too large for the rows."""
        size = self.found.get("max_block_size")
        if "max_block_size" in self.sent or size is None or not size.value.isdigit():
            return []
        if int(size.value) * row_bytes <= LARGEST_BLOCK_BYTES:
            return []
        text = (
            f"is {size.value} and may not be set: blocks of rows with about {row_bytes} bytes would be too "
            f"large; set it to {block_rows(row_bytes)} in the profile of this user"
        )
        return [Problem("dpone.source.setting", "setting max_block_size", text)]


def settings_to_send(known: Collection[str]) -> dict[str, str]:
    """The closed list for a server: what is always sent, and of the rest what the server knows."""
    rest = {name: value for name, value in SENT_IF_KNOWN.items() if name in known}
    return {**ALWAYS_SENT, **rest}


def what_a_user_can_send(found: Mapping[str, Setting]) -> Sendable:
    """The closed list as far as the user may set it.

    :param found: settings of the server by name, as they are when nothing is sent.
    """
    readonly = found.get("readonly", Setting("0", False)).value == "1"
    sent = {}
    for name, value in settings_to_send(found).items():
        setting = found.get(name)
        if setting is None or (name in BLOCK_SETTINGS and (readonly or setting.bounded)):
            continue  # the size of blocks depends on the table: it can be chosen, or it stays
        if (setting.value == value or not readonly) and setting.admits(value):
            sent[name] = value
    return Sendable(sent, found, readonly)


def block_rows(row_bytes: int) -> int:
    """``max_block_size`` for rows of that average size. It is the only bound that cuts inside a granule."""
    return max(MIN_BLOCK_ROWS, min(MAX_BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))


def setting_problems(
    seen: Mapping[str, Setting],
    wanted: Mapping[str, str],
    own: Collection[str],
    profiles: str = "",
    unused: tuple[str, ...] = (),
) -> list[Problem]:
    """What in ``system.settings``, asked with everything that is sent, is not as it must be.

    :param seen: by name each setting that is not at its default, and each of the wanted ones.
    :param wanted: the closed list. :param own: names that the engine changes by itself.
    :param profiles: the profiles of the user, for the message; '' if they are not known.
    :param unused: beginnings of the names of forms in which this engine's results do not come.
    """
    of = f"profile {profiles} of this user" if profiles else "profile of this user"
    problems = [
        Problem("dpone.source.setting", f"setting {name}", _stuck(value, seen.get(name), of))
        for name, value in wanted.items()
        if name not in BLOCK_SETTINGS and (name not in seen or seen[name].value != value)
    ]
    changed = {name for name, setting in seen.items() if setting.changed}
    for name in sorted(changed - set(wanted) - HARMLESS - set(own)):
        if not name.startswith((*HARMLESS_BEGINNINGS, *unused)):
            text = f"differs from ClickHouse's default and may change results; take it out of the {of}"
            problems.append(Problem("dpone.source.setting", f"setting {name}", text))
    return problems


def _stuck(wanted: str, found: Setting | None, of: str) -> str:
    shown = "is not known to this server" if found is None else f"stays {found.value!r}"
    return f"must be {wanted!r} for a complete result, but {shown}; set it in the {of}, or let it be set"
