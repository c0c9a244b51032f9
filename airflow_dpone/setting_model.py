"""The model that all settings are: frozen, closed, and with every problem in one error."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from airflow_dpone.errors import CATALOGUE, ConfigurationError, Problem


class SettingModel(BaseModel):
    """Raises one :class:`~airflow_dpone.errors.ConfigurationError` that names every wrong field, and no
    value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, hide_input_in_errors=True)

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as found:
            raise ConfigurationError.of(_problems(found)) from None

    # pydantic calls a custom __init__ for nested models too and would lose the other problems; the mark says
    # that ours only translates the error.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _problems(found: ValidationError) -> list[Problem]:
    problems = []
    for error in found.errors(include_url=False, include_input=False, include_context=False):
        code = error["type"] if error["type"] in CATALOGUE else "dpone.config.field"
        where = ".".join(str(part) for part in error["loc"]) or "route"
        problems.append(Problem(code, where, error["msg"].removeprefix("Value error, ")))
    return problems
