"""Every single change of a valid document of the journal that its schema may not let through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from airflow_dpone.delivery.records import Json

Place = tuple[str | int, ...]
OPEN = {"settings"}
"""Objects whose names the source decides."""
NULLABLE = {
    "checks", "chunks", "code", "column", "count", "delivery_task_id", "diagnostic_code", "error_number",
    "input_rows_consumed", "limbs", "max_rows", "min_rows", "object_id", "observation", "ordinal", "overflow",
    "previous_sha256", "proof", "recovery_fork_id", "resumed_from", "row", "row_count",
    "target_window_column", "window_column", "writer_binding", "writer_outcome",
}  # fmt: skip
"""Names that are null in some document, and perhaps not in the one that is tried."""


def places(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value of a document with its place, the document itself first."""
    yield place, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*place, key))


def changed(document: Json, place: Place, change: Callable[[Any, Any], None]) -> Json:
    """A copy with ``change(container, key)`` done at a place."""
    copy = deepcopy(document)
    container = copy
    for part in place[:-1]:
        container = container[part]
    change(container, place[-1])
    return copy


def put(value: Any) -> Callable[[Any, Any], None]:
    """A change for :func:`changed`."""
    return lambda container, key: container.__setitem__(key, value)


def is_below(path: str | None, place: Place) -> bool:
    """Whether a path is the place, or a place inside of it."""
    wanted = ".".join(map(str, place))
    return path is not None and (path == wanted or path.startswith(f"{wanted}."))


SAMPLES: list[tuple[type, Any]] = [
    (dict, {"other": 1}),
    (list, ["other"]),
    (str, "other"),
    (bool, True),
    (int, 7),
    (float, 0.5),
]


def of_other_types(value: Any) -> list[Any]:
    """Values of the types that JSON tells from this one; instead of null those that no field of ours has."""
    own = next((kind for kind, _ in SAMPLES if isinstance(value, kind)), None)
    return [sample for kind, sample in SAMPLES if (kind in (dict, float) if own is None else kind is not own)]


def mutations(document: Json) -> Iterator[tuple[str, Json, Place]]:
    """Every change of a document that no schema may let through: its name, the document, the place."""
    for place, value in places(document):
        is_open = bool(OPEN & set(place))
        if isinstance(value, dict) and not is_open:
            yield "a key more", changed(document, (*place, "more"), put(1)), (*place, "more")
            for key in value if place != ("timings",) else ():
                yield "a key less", changed(document, (*place, key), lambda c, k: c.pop(k)), (*place, key)
        if place:
            others = of_other_types(value) + ([] if place[-1] in NULLABLE else [None])
            for new in others + _misspelt(value if not is_open else None) + _other_limbs(place[-1], value):
                yield f"{new!r} instead", changed(document, place, put(new)), place


def _misspelt(value: Any) -> list[Any]:
    if not isinstance(value, str) or len(value) != 64:
        return []
    return [value[1:], f"{value}0", f"{value}\n", *([value.upper()] if value.upper() != value else [])]


def _other_limbs(name: str | int, value: Any) -> list[Any]:
    if name != "limbs" or value is None:
        return []
    bad = ("-1", "007", "1e3", " 1", "1.0", "", 1, 0.5, None)
    return [[*value, "0"], value[1:], [], *([*value[1:], limb] for limb in bad)]
