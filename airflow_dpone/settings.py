"""What a person may ask for: frozen models of the route, its limits, quality checks and options.

Units are in the names (``_rows``, ``_bytes``, ``_sec``). A model that cannot be built raises *one*
:class:`~airflow_dpone.errors.ConfigurationError` with every problem in it. Nothing here opens anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.quality_settings import MinMax, Quality, RowCount
from airflow_dpone.setting_model import SettingModel

__all__ = ["Limits", "MinMax", "Options", "Quality", "Route", "RowCount"]

MIB = 1024 * 1024
SOURCE_SCHEMES = ("chdb", "clickhouse")
TARGET_SCHEMES = ("duckdb", "mssql")
_FORMS = {
    "chdb": "chdb:///absolute/path",
    "duckdb": "duckdb:///absolute/path",
    "clickhouse": "clickhouse://user@host:9000?secure=false",
    "mssql": "mssql://user@host:1433/database",
}
_SERVERS = ("clickhouse", "mssql")
Strategy = Literal["window_replace", "full_refresh"]
Writer = Literal["embedded", "tds", "bcp", "sqlclient"]
OnEmpty = Literal["publish", "fail_if_target_has_rows", "fail"]


class Limits(SettingModel):
    """Bounds of one delivery. Tuning, not identity: a resumed delivery uses the newest values and journals
    them.

    :param max_rows: rows of one sealed chunk.
    :param max_bytes: encoded bytes of one sealed chunk.
    :param max_row_bytes: encoded bytes of one row, at most max_bytes; a longer row is refused with its
        ordinal and widest column.
    :param max_total_bytes: encoded bytes of the whole window.
    :param max_staging_tables: chunks of the whole window, each is one raw table.
    :param parallelism: both encoding and import, where they say nothing else. An embedded target takes 1.
    :param encoding_parallelism: processes that encode and hash rows; none is `parallelism`. 1 is no process
        but the task's own. More start after the first 500,000 rows or 128 MiB, and take 130 to 200 MB each.
    :param import_parallelism: chunks that are written at once, each by a process of its own into a table of
        its own; none is `parallelism`. An embedded target takes 1. Of use when a window has several chunks.
    :param chunk_attempts: writes of one chunk per task try.
    :param extraction_attempts: source queries per task try.
    """

    max_rows: int = Field(default=250_000, ge=1, le=10_000_000)
    max_bytes: int = Field(default=64 * MIB, ge=MIB, le=1024 * MIB)
    max_row_bytes: int = Field(default=8 * MIB, ge=1)
    max_total_bytes: int = Field(default=64 * 1024 * MIB, ge=1, le=1024**5)
    max_staging_tables: int = Field(default=1_024, ge=1, le=100_000)
    parallelism: int = Field(default=1, ge=1, le=64)
    encoding_parallelism: int | None = Field(default=None, ge=1, le=64)
    import_parallelism: int | None = Field(default=None, ge=1, le=64)
    chunk_attempts: int = Field(default=3, ge=1, le=20)
    extraction_attempts: int = Field(default=3, ge=1, le=20)

    @model_validator(mode="before")
    @classmethod
    def _default_row_fits_chunk(cls, fields: Any) -> Any:
        given = fields.get("max_bytes") if isinstance(fields, dict) else None
        if isinstance(given, int) and given < 8 * MIB and "max_row_bytes" not in fields:
            return {**fields, "max_row_bytes": given}
        return fields

    @field_validator("max_row_bytes")
    @classmethod
    def _row_fits_chunk(cls, value: int, known: ValidationInfo) -> int:
        if value > known.data.get("max_bytes", value):
            raise ValueError("must not be greater than max_bytes: a row must fit into a chunk")
        return value

    @property
    def encoding_processes(self) -> int:
        """``encoding_parallelism``, or what stands in for it."""
        return self.encoding_parallelism or self.parallelism

    @property
    def import_writers(self) -> int:
        """``import_parallelism``, or what stands in for it."""
        return self.import_parallelism or self.parallelism


class Options(SettingModel):
    """Choices that most routes never need.

    :param on_empty: what an empty source window does. ``publish`` empties the target's window, with a
        receipt.
    :param create_target: make a target table that is missing, with the columns and types that hold the source
        exactly. A table that is there is never changed.
    :param take_over_target: let this route replace the route that owned the target so far (journaled).
    :param fail_on_null: a Nullable source column may feed a NOT NULL target column; its first NULL stops the
        delivery. The one option that is identity: what is planned keeps it.
    :param allow_ttl: a source table may have a TTL, as long as no row of the window goes within a day. A
        column with a TTL stays refused.
    :param accept_unseen_row_policies: go on although the source's user may not see row policies, which could
        hide rows from it. The evidence says so.
    :param after_image_digest: hash the window once more in the target, after its rows were inserted and
        before they are committed; a difference rolls the publication back. Costs as much as one proof.
    :param allow_triggers: the target may have AFTER triggers; ``after_image_digest`` is then always on.
        INSTEAD OF triggers stay refused. SQL Server only, like the next one.
    :param allow_referenced_target: foreign keys of other tables may point at the target, if they have no
        action on delete; a delivery whose DELETE would break one is rolled back.
    :param unmapped_columns: target columns that nothing feeds. Each redelivery sets them to their default,
        and lets the server give identity, computed and rowversion columns anew.
    :param embedded_lock_wait_sec: how long a second process waits for an embedded engine's directory.
    """

    on_empty: OnEmpty = "publish"
    create_target: bool = False
    take_over_target: bool = False
    fail_on_null: bool = False
    allow_ttl: bool = False
    accept_unseen_row_policies: bool = False
    after_image_digest: bool = False
    allow_triggers: bool = False
    allow_referenced_target: bool = False
    unmapped_columns: tuple[str, ...] = ()
    embedded_lock_wait_sec: float = Field(default=30.0, ge=0, le=3_600)

    @property
    def proves_after_image(self) -> bool:
        """Whether the target's window is hashed before it is committed."""
        return self.after_image_digest or self.allow_triggers


def check_uri(schemes: tuple[str, ...], value: str) -> str:
    """Lets a well-formed URI or a connection id through; never repeats a URI: it may hold a secret."""
    if "://" not in value:
        return value
    parts = urlsplit(value)
    if parts.password:
        raise PydanticCustomError(
            "dpone.config.secret_in_uri",
            "the URI carries a password, which would be shown in logs and in the UI",
        )
    expected = _FORMS[parts.scheme if parts.scheme in schemes else schemes[0]]
    if parts.scheme not in schemes:
        text = f"scheme {parts.scheme!r} is not supported; use {' or '.join(_FORMS[one] for one in schemes)}"
    elif parts.scheme in _SERVERS:
        if parts.netloc:
            return value  # what else it says is read where a server is opened
        text = f"names no server; use {expected}"
    elif parts.netloc or not parts.path.startswith("/") or parts.path == "/":
        text = f"the path must be absolute: {expected}"
    elif parts.query or parts.fragment:
        text = f"parameters are not supported: {expected}"
    else:
        return value
    raise PydanticCustomError("dpone.config.uri", "{text}", {"text": text})


def checked_target(target: str) -> str:
    """What a route would let through as its target."""
    try:
        return check_uri(TARGET_SCHEMES, target)
    except PydanticCustomError as error:
        raise ConfigurationError.of([Problem(error.type, "target", error.message())]) from None


def _table_name(value: object) -> object:
    if isinstance(value, str):
        hint = tuple(value.split("."))
        raise ValueError(
            f"give the name as a tuple, e.g. {hint!r}: names may hold dots, so nothing splits them"
        )
    return tuple(value) if isinstance(value, list) else value


TableName = Annotated[
    tuple[Annotated[str, Field(min_length=1)], Annotated[str, Field(min_length=1)]],
    BeforeValidator(_table_name),
]


def _column_pairs(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, str):
        raise ValueError("give a list of columns, or a dict of source column to target column")
    if isinstance(value, Mapping):
        return tuple((str(source), str(target)) for source, target in value.items())
    if isinstance(value, list | tuple):
        return tuple((item, item) if isinstance(item, str) else tuple(item) for item in value)
    return value


class Route(SettingModel):
    """One source table to one target table. Raises one ConfigurationError that names every wrong field.

    :param source: an Airflow connection id (type ``clickhouse``, native port, or ``dponeembedded``), or
        ``clickhouse://user@host:9000?secure=true`` for a user without a password, or ``chdb:///absolute/dir``.
    :param source_table: ``(database, table)``.
    :param target: an Airflow connection id (type ``mssql``, ``odbc`` or ``dponeembedded``), or
        ``mssql://user@host:1433/database`` for a login without a password, or
        ``duckdb:///absolute/file.duckdb``.
    :param target_table: ``(schema, table)``.
    :param window_column: the *source* column that the window cuts; None only with ``full_refresh``.
    :param columns: None for all columns under the same names, a list of names, or a dict source -> target.
    :param strategy: ``window_replace`` replaces ``[start, end)``; ``full_refresh`` replaces the whole table.
    :param limits: bounds. :param writer: bulk writer, None for the target's own. :param quality: checks.
    :param options: rare choices. :param source_name: name of the source in the route's identity; default: the
        URI's scheme, or the connection id.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            source: str,
            source_table: Sequence[str],
            target: str,
            target_table: Sequence[str],
            window_column: str | None = None,
            columns: Sequence[str] | Mapping[str, str] | None = None,
            strategy: Strategy = "window_replace",
            limits: Limits | Mapping[str, Any] = ...,
            writer: Writer | None = None,
            quality: Quality | Mapping[str, Any] = ...,
            options: Options | Mapping[str, Any] = ...,
            source_name: str | None = None,
        ) -> None: ...

    source: Annotated[str, Field(min_length=1), AfterValidator(partial(check_uri, SOURCE_SCHEMES))]
    source_table: TableName
    target: Annotated[str, Field(min_length=1), AfterValidator(partial(check_uri, TARGET_SCHEMES))]
    target_table: TableName
    strategy: Strategy = "window_replace"
    window_column: str | None = Field(default=None, validate_default=True)
    columns: Annotated[tuple[tuple[str, str], ...] | None, BeforeValidator(_column_pairs)] = None
    limits: Limits = Limits()
    writer: Writer | None = None
    quality: Quality = Quality()
    options: Options = Options()
    source_name: str | None = None

    @field_validator("window_column")
    @classmethod
    def _strategy_fits(cls, value: str | None, known: ValidationInfo) -> str | None:
        if value is None and known.data.get("strategy") == "window_replace":
            raise ValueError("is needed by strategy='window_replace': the source column that the window cuts")
        return value

    @field_validator("columns")
    @classmethod
    def _columns_fit(cls, value: tuple[tuple[str, str], ...] | None) -> tuple[tuple[str, str], ...] | None:
        if value is None:
            return None
        if not value:
            raise ValueError("is empty: leave it out for all columns, or name at least one")
        doubled = [
            f"names a {side} column twice: {', '.join(twice)}"
            for side, names in (("source", [s for s, _ in value]), ("target", [t for _, t in value]))
            if (twice := sorted({name for name in names if names.count(name) > 1}))
        ]
        if doubled:
            raise ValueError("; ".join(doubled))
        return value

    @property
    def effective_source_name(self) -> str:
        """The source's name in the route's identity: never a path, a host or a user."""
        return self.source_name or (urlsplit(self.source).scheme if "://" in self.source else self.source)


_STAND_INS: Mapping[str, Any] = {
    "source": "chdb:///-",
    "source_table": ("-", "-"),
    "target": "duckdb:///-",
    "target_table": ("-", "-"),
}


def readable_route(fields: Mapping[str, Any], problems: Sequence[Problem]) -> Route | None:
    """A route with the fields that are right, so that a wrong one hides nothing that is known of the others.

    :param problems: of ``Route(**fields)``; what they name says nothing in the answer, or has its default.
    :returns: None when there is nothing to read.
    """
    kept = dict(fields)
    for problem in problems:
        name, _, inner = problem.where.partition(".")
        held, key = kept.get(name), inner.partition(".")[0]
        if isinstance(held, Mapping) and key in held:
            kept[name] = {one: value for one, value in held.items() if one != key}
        else:
            kept.pop(name, None)
    kept["window_column"] = kept.get("window_column") or "-"
    try:
        return Route(**{**_STAND_INS, **kept})
    except ConfigurationError:
        return None


class TargetPlace(SettingModel):
    """A table that deliveries go to, for those who only wait for them."""

    target: Annotated[str, Field(min_length=1), AfterValidator(partial(check_uri, TARGET_SCHEMES))]
    target_table: TableName


class SourcePlace(SettingModel):
    """A table that deliveries come from, for those who only look at it."""

    source: Annotated[str, Field(min_length=1), AfterValidator(partial(check_uri, SOURCE_SCHEMES))]
    source_table: TableName
    window_column: str | None = None


def uri_path(uri: str) -> str:
    """The absolute path of an embedded engine's URI."""
    return urlsplit(uri).path
