"""Where a process may die: before and after every effect of every port.

The points are derived from the ports themselves (methods marked ``@effect``), so none can be forgotten. The
engine reports each passed point to an observer that the caller gives; without one, the ports are used as they
are. A crash test records the points of one delivery, then runs it once for each index with SIGKILL there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

from airflow_dpone.delivery import ports as p

_PORTS: dict[str, type] = {
    "source": p.SourcePort,
    "spool": p.SpoolPort,
    "chunk": p.ChunkSink,
    "target": p.TargetPort,
    "writer": p.WriterPort,
    "journal": p.JournalPort,
}


def effects(port: type) -> list[str]:
    """Names of the effectful methods of a port, in the order of the class body."""
    return [name for name, member in vars(port).items() if getattr(member, "is_effect", False)]


CrashPoint = StrEnum(  # type: ignore[misc]
    "CrashPoint",
    {
        f"{when}_{port}_{method}".upper(): f"{when}_{port}_{method}"
        for port, cls in _PORTS.items()
        for method in effects(cls)
        for when in ("before", "after")
    },
)


class _Observed:
    """Stands in front of a port and reports its effects."""

    def __init__(self, name: str, port: Any, observer: p.Observer) -> None:
        self._name, self._port, self._observer = name, port, observer
        self._effects = frozenset(effects(_PORTS[name]))

    def __enter__(self) -> _Observed:
        self._port.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._port.__exit__(*exc)

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._port, method)
        return self._reporting(method, found) if method in self._effects else found

    def _reporting(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        before = CrashPoint(f"before_{self._name}_{method}")
        after = CrashPoint(f"after_{self._name}_{method}")

        def reported(*args: Any, **kwargs: Any) -> Any:
            self._observer(before)
            answer = call(*args, **kwargs)
            if isinstance(answer, Iterator):
                return self._until_exhausted(answer, after)
            self._observer(after)
            return _Observed("chunk", answer, self._observer) if method == "begin" else answer

        return reported

    def _until_exhausted(self, items: Iterator[Any], after: str) -> Iterator[Any]:
        yield from items
        self._observer(after)


P = TypeVar("P", bound=p.RecoveryPorts)


def observe(ports: P) -> P:
    """The same ports, reporting to ``ports.observer`` if there is one."""
    if ports.observer is None:
        return ports
    wrapped: dict[str, Any] = {
        name: _Observed(name, getattr(ports, name), ports.observer) for name in _PORTS if hasattr(ports, name)
    }
    return replace(ports, **wrapped)
