"""Which checks of the prepared table a route asks for, and what a failed one does.

Every check answers with a number of rows, never with a value: see ``delivery/quality.py``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from airflow_dpone.setting_model import SettingModel

Severity = Literal["error", "warn"]
CheckKind = Literal["not_null", "unique", "min", "max"]
ROW_COUNT, MAX_SHRINK_RATIO = "row_count", "max_shrink_ratio"
_LONGEST = 60
_TOO_FINE = re.compile(r"[.,]\d{7}")
"""Python would cut them off without a word."""


@dataclass(frozen=True)
class TableCheck:
    """One question about the prepared table; its answer is how many rows break it.

    ``not_null``: rows without a value in the column. ``unique``: rows that repeat the key of another row; a
    row with a NULL in its key is not asked. ``min``, ``max``: values below, above the threshold; NULL is no
    value. No row breaks anything in an empty table.

    :param threshold: text of a number, a day or an instant; None for the first two.
    """

    kind: CheckKind
    columns: tuple[str, ...]
    threshold: str | None = None

    @property
    def name(self) -> str:
        """As in messages, evidence and ``severity``: ``unique(customer, day)``."""
        return f"{self.kind}({', '.join(self.columns)})"

    @property
    def parameters(self) -> tuple[str, ...]:
        """What its statement needs: the threshold, if it has one."""
        return () if self.threshold is None else (self.threshold,)


class RowCount(SettingModel):
    """Quality check: the window's rows lie in ``[min_rows, max_rows]``; None is no bound."""

    min_rows: int | None = Field(default=None, ge=0, le=10**15)
    max_rows: int | None = Field(default=None, ge=0, le=10**15)

    @field_validator("max_rows")
    @classmethod
    def _not_reversed(cls, value: int | None, known: ValidationInfo) -> int | None:
        low = known.data.get("min_rows")
        if value is not None and low is not None and value < low:
            raise ValueError("must not be smaller than min_rows")
        return value


def threshold_value(text: str) -> Decimal | datetime:
    """What a threshold means: a number, or an instant in UTC (naive); a day is its midnight.

    :raises ValueError: it is neither.
    """
    try:
        found = Decimal(text)
    except InvalidOperation:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    if not found.is_finite():
        raise ValueError("is not finite")
    return found


def _threshold(value: object) -> object:
    """A threshold as it is stored: ``-0.5``, ``2025-01-31`` or ``2025-01-31T00:00:00.000000Z``."""
    said = "must be a number, a day such as 2025-01-31, or an instant with its zone"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str | date):
        raise ValueError(said)
    text = (value.isoformat() if isinstance(value, date) else str(value)).strip()
    try:
        meant = threshold_value(text)
    except (ValueError, OverflowError):
        raise ValueError(said) from None
    if len(text) > _LONGEST:
        raise ValueError(f"must not be longer than {_LONGEST} characters")
    if isinstance(meant, Decimal):
        return str(meant)
    if isinstance(value, datetime) or len(text) != len("2025-01-31"):
        if datetime.fromisoformat(text).tzinfo is None:
            raise ValueError(said)
        if _TOO_FINE.search(text):
            raise ValueError("must not have more than six digits of a second")
        return meant.isoformat(timespec="microseconds") + "Z"
    return meant.date().isoformat()


Threshold = Annotated[str, BeforeValidator(_threshold)]


class MinMax(SettingModel):
    """Quality check: every value of a column lies in ``[min, max]``. NULL is no value.

    :param column: a target column of numbers, days or times.
    :param min: a number, a day (``2025-01-31``) or an instant with its zone; None is no bound.
    :param max: likewise.
    """

    column: str = Field(min_length=1)
    min: Threshold | None = None
    max: Threshold | None = Field(default=None, validate_default=True)

    @field_validator("max")
    @classmethod
    def _has_an_order(cls, value: str | None, known: ValidationInfo) -> str | None:
        if "min" not in known.data:
            return value
        low = known.data["min"]
        if value is None or low is None:
            if value is low:
                raise ValueError("give min, max, or both")
            return value
        least, most = threshold_value(low), threshold_value(value)
        if isinstance(least, Decimal) is not isinstance(most, Decimal):
            raise ValueError("min and max must both be numbers, or both be days or instants")
        if least > most:  # type: ignore[operator]
            raise ValueError("must not be smaller than min")
        return value


def _key_lists(value: object) -> object:
    """``["id", ["customer", "day"]]``: a name alone is a key of one column."""
    if isinstance(value, str):
        raise ValueError("give a list of keys; each is a column, or a list of columns")
    if isinstance(value, list | tuple):
        return tuple((key,) if isinstance(key, str) else key for key in value)
    return value


def _by_column(value: object) -> object:
    """``{"amount": {"min": 0}}``: the columns of a mapping join what stands under them."""
    if not isinstance(value, Mapping):
        return value
    return tuple(
        {"column": column, **bounds} if isinstance(bounds, Mapping) else bounds
        for column, bounds in value.items()
    )


def _pairs(value: object) -> object:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


class Quality(SettingModel):
    """Checks of the prepared table before publication; a failed one leaves the target as it is.

    :param row_count: bounds of the number of rows.
    :param not_null: target columns that must hold no NULL in this window.
    :param unique: keys that no two rows of this window share: each a target column, or a list of them. Equal
        means equal to the last byte, whatever the collation; a row with a NULL in its key is not asked.
    :param min_max: bounds of the values of target columns, such as ``{"amount": {"min": 0, "max": "1e6"}}``.
        NULL is no value.
    :param max_shrink_ratio: 0..1, by which part of its rows the target's window (with ``full_refresh``: the
        table) may become smaller than it is at that moment. 0.2: of 100 rows at least 80 must come.
    :param severity: ``warn`` for checks that only write a warning into log and evidence, by their names:
        ``{"max_shrink_ratio": "warn", "not_null(note)": "warn"}``; ``error`` is the default.
    """

    row_count: RowCount | None = None
    not_null: tuple[str, ...] = ()
    unique: Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_key_lists)] = ()
    min_max: Annotated[tuple[MinMax, ...], BeforeValidator(_by_column)] = ()
    max_shrink_ratio: Decimal | None = Field(default=None, ge=0, le=1, max_digits=20)
    severity: Annotated[tuple[tuple[str, Severity], ...], BeforeValidator(_pairs)] = ()

    @field_validator("unique")
    @classmethod
    def _keys_are_keys(cls, value: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        for key in value:
            if not key or len(set(key)) != len(key):
                raise ValueError("a key needs at least one column, and each column once")
        return value

    @field_validator("severity")
    @classmethod
    def _names_are_checks(
        cls, value: tuple[tuple[str, Severity], ...], known: ValidationInfo
    ) -> tuple[tuple[str, Severity], ...]:
        if set(known.data) != {*cls.model_fields} - {"severity"}:
            return value  # what it names is wrong already
        names = list(_names(**known.data))
        for name, _ in value:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=3)
                there = ", ".join(near or names) or "none"
                raise ValueError(f"no check of this route is called {name!r}; there are: {there}")
        return value

    @property
    def table_checks(self) -> tuple[TableCheck, ...]:
        """What is asked of the prepared table, in the order of the settings."""
        return tuple(_table_checks(self.not_null, self.unique, self.min_max))

    @property
    def is_plain(self) -> bool:
        """Whether only the settings of the first version are used: then documents keep its form."""
        return not (self.unique or self.min_max or self.severity or self.max_shrink_ratio is not None)

    def severity_of(self, name: str) -> Severity:
        """What a failed check of that name does."""
        return dict(self.severity).get(name, "error")

    def stored(self) -> dict[str, Any]:
        """As in PLANNED and TUNED: what the first version had, and the rest only if it is set."""
        body = self.model_dump(mode="json")
        more = {name: body[name] for name in ("unique", "min_max", "max_shrink_ratio") if body[name]}
        if self.max_shrink_ratio is not None:
            more["max_shrink_ratio"] = format(self.max_shrink_ratio, "f")
        if self.severity:
            more["severity"] = dict(self.severity)
        return {"row_count": body["row_count"], "not_null": body["not_null"], **more}

    @classmethod
    def of_stored(cls, body: Mapping[str, Any]) -> Quality:
        """The reverse of :meth:`stored`. What was accepted when it was planned is not judged again."""
        bounds, ratio = body["row_count"], body.get("max_shrink_ratio")
        return cls.model_construct(
            row_count=None if bounds is None else RowCount.model_construct(**bounds),
            not_null=tuple(body["not_null"]),
            unique=tuple(tuple(key) for key in body.get("unique", ())),
            min_max=tuple(MinMax.model_construct(**one) for one in body.get("min_max", ())),
            max_shrink_ratio=None if ratio is None else Decimal(ratio),
            severity=tuple(sorted(body.get("severity", {}).items())),
        )


def _table_checks(
    not_null: tuple[str, ...], unique: tuple[tuple[str, ...], ...], min_max: tuple[MinMax, ...]
) -> Iterator[TableCheck]:
    yield from (TableCheck("not_null", (name,)) for name in not_null)
    yield from (TableCheck("unique", key) for key in unique)
    for one in min_max:
        if one.min is not None:
            yield TableCheck("min", (one.column,), one.min)
        if one.max is not None:
            yield TableCheck("max", (one.column,), one.max)


def _names(
    row_count: RowCount | None,
    not_null: tuple[str, ...],
    unique: tuple[tuple[str, ...], ...],
    min_max: tuple[MinMax, ...],
    max_shrink_ratio: Decimal | None,
) -> Iterator[str]:
    """The names of all checks of these settings."""
    if row_count is not None:
        yield ROW_COUNT
    yield from (check.name for check in _table_checks(not_null, unique, min_max))
    if max_shrink_ratio is not None:
        yield MAX_SHRINK_RATIO
