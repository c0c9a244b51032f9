"""Every error of the product: one class for each thing a caller does about it, one code for each cause.

A caller acts on the class and its ``retry`` rule; a person acts on the message and ``next_action``; tools and
the journal keep the ``code``. No error ever carries a business value, a statement with values in it, a
connection string or a secret: columns, rows (ordinals), ids and counts only.

    DponeError
      ConfigurationError   what was asked cannot be delivered: all problems in one error
      CustodyHeld          another unfinished delivery owns the target
      LeaseHeld            another live process works on this delivery
      Fenced               this process was replaced while it worked; nothing of it can land any more
      Stopped              this process was told to stop; the delivery goes on from where it is
      SourceDataError      a value that the target type cannot hold exactly
      SourceMoved          the source table changed while it was read
      SourceUnavailable    the source did not answer, or ended early
      CapacityError        a bound of ours, or a disk, was reached
      TargetBusy           the target is locked or did not answer; nothing changed
      TargetRejected       the target refused the content; proved rolled back
      QualityFailed        a quality check said no
      OutcomeUnknown       nobody knows yet whether the publication happened
      Incident             something happened that only a person can judge
      JournalError         the journal is missing, broken, newer or older
      SpoolError           a sealed chunk is missing or damaged
      InternalError        a fault of this product or of a driver
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

Retry = Literal["never", "backoff", "after_clear"]
"""``never``: asking again changes nothing. ``backoff``: try again by itself. ``after_clear``: a person clears
the task."""


@dataclass(frozen=True)
class ErrorCode:
    """One row of the catalogue; the fields are explained in ``error_codes.toml``."""

    code: str
    error: str
    retry: Retry
    summary: str
    next_action: str


def _read_catalogue() -> dict[str, ErrorCode]:
    text = resources.files("airflow_dpone").joinpath("error_codes.toml").read_text(encoding="utf-8")
    return {code: ErrorCode(code, **row) for code, row in tomllib.loads(text).items()}


CATALOGUE: dict[str, ErrorCode] = _read_catalogue()
"""Every code of the product, from ``error_codes.toml``."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: ``where`` names the field or column, ``message`` says what to do about it."""

    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.code}]"


class DponeError(Exception):
    """Base of all errors.

    :param code: a row of :data:`CATALOGUE`; decides the retry rule and the default next action.
    :param message: what happened, with the facts; never a value of a business row.
    :param next_action: one sentence naming a command or a change; default: the catalogue's.
    :param state_after: the delivery's state in the journal when the error left the engine, or None.
    :param fields: ids, names and counts as data (``column``, ``row``, ``target``, ``holder`` ...).

    Errors pickle, so they survive the way from a worker process to Airflow.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        next_action: str | None = None,
        state_after: str | None = None,
        **fields: Any,
    ) -> None:
        row = CATALOGUE[code]
        if row.error != type(self).__name__:
            raise TypeError(f"{code} is a code of {row.error}, not of {type(self).__name__}")
        self.code = code
        self.retry: Retry = row.retry
        self.message = message
        self.next_action = next_action or row.next_action
        self.state_after = state_after
        self.fields = fields
        super().__init__(message)

    def __str__(self) -> str:
        state = f" State: {self.state_after}." if self.state_after else ""
        return f"{self.message}{state} Next: {self.next_action} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (
            type(self),
            self.code,
            self.message,
            self.next_action,
            self.state_after,
            self.fields,
        )


def _rebuild(
    cls: type[DponeError],
    code: str,
    message: str,
    next_action: str,
    state_after: str | None,
    fields: dict[str, Any],
) -> DponeError:
    return cls(code, message, next_action=next_action, state_after=state_after, **fields)


def error_of(code: str, message: str, **fields: Any) -> DponeError:
    """The error of a code that was decided elsewhere, e.g. by the target's answer."""
    cls = next(cls for cls in DponeError.__subclasses__() if cls.__name__ == CATALOGUE[code].error)
    return cls(code, message, **fields)


class ConfigurationError(DponeError):
    """All that is wrong and can be known together; ``problems`` is the list, the message prints it."""

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> ConfigurationError:
        """One error for many problems: a single problem keeps its own code."""
        found = tuple(problems)
        code = found[0].code if len(found) == 1 and CATALOGUE[found[0].code].error == cls.__name__ else None
        text = "\n".join(f"  - {problem}" for problem in found)
        head = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        return cls(
            code or "dpone.config.invalid",
            f"The delivery was refused, {head}:\n{text}\n",
            next_action=_next_action(found),
            problems=found,
        )

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong, in the order in which it was found."""
        return tuple(self.fields.get("problems", ()))


RUN_CONF = "conf."
"""What is wrong in the configuration of a run begins so in :attr:`Problem.where`."""
ANOTHER_RUN = (
    "trigger another run with a correct configuration: a run keeps its own, also when it is cleared."
)


def _next_action(found: tuple[Problem, ...]) -> str | None:
    """What helps against all problems; None: what the error's code says."""
    of_run = [one for one in found if one.code == "dpone.config.window" and one.where.startswith(RUN_CONF)]
    if of_run:
        only = len(of_run) == len(found)
        return ANOTHER_RUN.capitalize() if only else f"Correct the other named fields, and {ANOTHER_RUN}"
    rows = [CATALOGUE[one.code] for one in found]
    actions = {row.next_action for row in rows if row.error == "ConfigurationError"}
    is_one = len(actions) == 1 and all(row.error == "ConfigurationError" for row in rows)
    return actions.pop() if is_one else None


class CustodyHeld(DponeError):
    """Another unfinished delivery owns the target (``holder``, ``age_sec``)."""


class LeaseHeld(DponeError):
    """Another live process works on this delivery (``owner``, ``expires_in_sec``)."""


class Fenced(DponeError):
    """This process was replaced while it worked: its write did not land and nothing of it can land any
    more."""


class Stopped(DponeError):
    """This process was told to stop: its task was cleared, marked or timed out. The next call goes on."""


class SourceDataError(DponeError):
    """A source value that the target type cannot hold exactly (``column``, ``row``: 0-based ordinal of this
    read)."""


class SourceMoved(DponeError):
    """The source table changed while it was read; what was read is discarded."""


class SourceUnavailable(DponeError):
    """The source did not answer, refused, or its stream ended early. An early end is never the end of the
    data."""


class CapacityError(DponeError):
    """A bound of the configuration, or a disk, was reached; nothing was published."""


class TargetBusy(DponeError):
    """The target is locked or does not answer; nothing changed there."""


class TargetRejected(DponeError):
    """The target refused the content inside the publication; the transaction is proved rolled back."""


class QualityFailed(DponeError):
    """A quality check of the route said no; the target still shows what it showed before."""


class OutcomeUnknown(DponeError):
    """Nobody knows yet whether the publication happened. Nothing is sent again before that is known."""


class Incident(DponeError):
    """Facts contradict each other in a way that only a person can judge (``reason``)."""


class JournalError(DponeError):
    """The journal is missing, not migrated, damaged, of a newer version, or not the one that this target
    knows."""


class InternalError(DponeError):
    """A fault of this product or of a driver; the cause is attached, only its class is named."""


class SpoolError(DponeError):
    """A sealed chunk is missing or its bytes are not the ones that were sealed (``path``, ``ordinal``)."""
