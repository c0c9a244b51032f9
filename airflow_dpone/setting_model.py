"""The model that all settings are: frozen, closed, and with every problem in one error."""

from __future__ import annotations

import difflib
from typing import Any, get_args

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
            raise ConfigurationError.of(_problems(found, type(self))) from None

    # pydantic calls a custom __init__ for nested models too and would lose the other problems; the mark says
    # that ours only translates the error.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _problems(found: ValidationError, model: type[BaseModel]) -> list[Problem]:
    problems = []
    for error in found.errors(include_url=False, include_input=False, include_context=False):
        code = error["type"] if error["type"] in CATALOGUE else "dpone.config.field"
        where = ".".join(str(part) for part in error["loc"]) or "route"
        said = error["msg"].removeprefix("Value error, ")
        text = _unknown(error["loc"], model) if error["type"] == "extra_forbidden" else said
        problems.append(Problem(code, where, text))
    return problems


def _unknown(place: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """What is said of a setting that does not exist: those that have nearly its name."""
    for part in place[:-1]:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        nested = [kind for kind in (annotation, *get_args(annotation)) if _is_model(kind)]
        if not nested:
            return "there is no such setting"
        model = nested[0]
    close = difflib.get_close_matches(str(place[-1]), list(model.model_fields), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(model.model_fields)}"
    return f"there is no such setting; {hint}"


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
