"""The JSON Schemas of what the journal keeps, beside this module, and the one function that asks them.

Every object in them is closed. A document is asked before it is stored and whenever it is read, so that
neither a fault of ours nor a changed row becomes a fact that the engine builds on.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema_rs import Validator

FILES = {
    "dpone.delivery-event": "delivery_event.v1.json",
    "dpone.chunk-attempt-event": "chunk_attempt_event.v1.json",
    "dpone.delivery-evidence": "evidence.v1.json",
    "dpone.delivery-result": "delivery_result.v1.json",
}
"""The schema of each kind of document; ``common.v1.json`` holds what they share."""
_A_NAME = re.compile(r"\w{1,64}", re.ASCII)


@dataclass(frozen=True)
class Misfit:
    """Where a document is not what its schema says; never what stands there.

    :param path: names and numbers from the outside to the inside, ``payload.limbs.8``; '' for the document
        itself. What cannot be one of our names is shown as ``?``.
    :param rule: the schema's keyword that does not hold, such as ``pattern`` or ``required``.
    """

    path: str
    rule: str

    def __str__(self) -> str:
        return f"its schema refuses {self.path or 'the document'} ({self.rule})"


def read_schema(file: str) -> dict[str, Any]:
    """One of the schemas as it is shipped."""
    schema: dict[str, Any] = json.loads((files(__name__) / file).read_text(encoding="utf-8"))
    return schema


def find_misfit(kind: str, document: Any) -> Misfit | None:
    """Asks the schema of ``kind``; None when the document fits.

    :param document: parsed JSON. The first misfit in the order of paths is told.
    """
    validator = _validators()[kind]
    try:
        if validator.is_valid(document):
            return None
        found = [_misfit(error) for error in validator.iter_errors(document)]
    except ValueError:  # nested more deeply than the validator goes, which no document of ours is
        return Misfit("", "depth")
    return min(found, key=lambda misfit: misfit.path)


@cache
def _validators() -> dict[str, Validator]:
    """Compiled at the first document, once for each process: a DAG file that names a route does not pay."""
    from jsonschema_rs import Registry, validator_for

    schemas = {file: read_schema(file) for file in ("common.v1.json", *FILES.values())}
    registry = Registry([(schema["$id"], schema) for schema in schemas.values()])
    return {
        kind: validator_for(schemas[file], registry=registry, offline=True) for kind, file in FILES.items()
    }


def _misfit(error: Any) -> Misfit:
    place = list(error.instance_path)
    if error.kind.name == "required":
        place.append(error.kind.property)
    elif error.kind.name in ("additionalProperties", "unevaluatedProperties"):
        place.append(min(error.kind.unexpected))
    return Misfit(
        ".".join(part if _A_NAME.fullmatch(part) else "?" for part in map(str, place)), error.kind.name
    )
