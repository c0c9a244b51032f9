"""The owner mark of a staging table: an extended property that says whose it is and in which state.

``created`` -> ``granted:<token>`` -> ``sealed`` or ``retired``: the verdict. A stage is granted once; only
the writer with that token may write; only a sealed one is published; nothing leaves ``retired``. The mark
names the table's object id, so that a copy of it on another table is no mark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CREATED, GRANTED, SEALED, RETIRED = "created", "granted", "sealed", "retired"
_STATE = "created|granted:([0-9a-f]{64})|sealed|retired"
_MARK = re.compile(rf"dpone:owner=([^;]*);state=({_STATE});object=([0-9]{{1,10}})")


@dataclass(frozen=True)
class Mark:
    """One owner mark. :param token: SHA-256 of the grant, in the state ``granted`` only."""

    owner: str
    state: str
    token: str | None
    object_id: int

    def __str__(self) -> str:
        state = f"{self.state}:{self.token}" if self.token else self.state
        return f"dpone:owner={self.owner};state={state};object={self.object_id}"

    @classmethod
    def parse(cls, text: str | None) -> Mark | None:
        """The mark of a property's text, or None when it is none."""
        found = _MARK.fullmatch(text or "")
        if found is None:
            return None
        return cls(found[1], found[2].partition(":")[0], found[3], int(found[4]))

    def is_granted_to(self, token_sha256: str) -> bool:
        """Whether the writer with this token may write now."""
        return (self.state, self.token) == (GRANTED, token_sha256)
