"""The digest of a set of rows: order does not matter, multiplicity does.

Each row contributes the SHA-256 of its ``native_rows v1`` bytes, read as a big-endian 256-bit number;
the sum is taken modulo 2^256. It finds faults, not adversaries, and equal bytes under two schemas give
equal sums: evidence therefore binds layout, count and digest together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from airflow_dpone.errors import Incident

ALGORITHM = "mssql-native-sha256-sum-v1"

_LIMBS = 8
_LIMB_MAX = 2**32 - 1


@dataclass(frozen=True)
class DigestSum:
    """The sum of row hashes as eight columns of 32 bits, most significant first, before any carry.

    :param rows: how many hashes were added.
    :param limbs: per column the plain sum, 0 .. rows * (2^32 - 1); SQL Server adds them in this form.
    """

    rows: int
    limbs: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.rows < 0 or len(self.limbs) != _LIMBS:
            raise ValueError(f"a digest sum has a row count and {_LIMBS} limbs")
        if any(not 0 <= limb <= self.rows * _LIMB_MAX for limb in self.limbs):
            raise ValueError(f"a limb is outside of what {self.rows} rows can add up to")

    @classmethod
    def zero(cls) -> DigestSum:
        """The sum over no rows."""
        return cls(0, (0,) * _LIMBS)

    @classmethod
    def of_hashes(cls, hashes: npt.NDArray[np.uint8]) -> DigestSum:
        """The sum of many hashes at once.

        :param hashes: shape (rows, 32), uint8; fewer than 2^32 rows, so that uint64 columns cannot overflow.
        """
        if hashes.ndim != 2 or hashes.shape[1] != 32 or hashes.dtype != np.uint8:
            raise ValueError(f"hashes are uint8 of shape (rows, 32), not {hashes.dtype} of {hashes.shape}")
        if hashes.shape[0] >= 2**32:
            raise ValueError("2^32 rows or more would overflow; add the sums of parts")
        limbs = np.ascontiguousarray(hashes).view(">u4").sum(axis=0, dtype=np.uint64)
        return cls(hashes.shape[0], tuple(int(limb) for limb in limbs))

    @classmethod
    def of_hash_iter(cls, hashes: Iterable[bytes]) -> DigestSum:
        """The sum of hashes given one by one, 32 bytes each."""
        rows, sums = 0, [0] * _LIMBS
        for row_hash in hashes:
            if len(row_hash) != 32:
                raise ValueError(f"a row hash has 32 bytes, not {len(row_hash)}")
            rows += 1
            for i in range(_LIMBS):
                sums[i] += int.from_bytes(row_hash[4 * i : 4 * i + 4], "big")
        return cls(rows, tuple(sums))

    def __add__(self, other: DigestSum) -> DigestSum:
        return DigestSum(
            self.rows + other.rows, tuple(a + b for a, b in zip(self.limbs, other.limbs, strict=True))
        )

    @property
    def total(self) -> int:
        """The sum modulo 2^256, limbs carried."""
        total = 0
        for limb in self.limbs:
            total = (total << 32) + limb
        return total % 2**256

    @property
    def digest(self) -> str:
        """Hex SHA-256 over algorithm, count and total; the one value that two sides compare."""
        # The only preimage that is not RFC 8785, which ends at 2^53: Python's default JSON text is the form.
        text = json.dumps([ALGORITHM, self.rows, self.total])
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def to_json(self) -> dict[str, object]:
        """Row count as a number, limbs as decimal strings."""
        return {"rows": self.rows, "limbs": [str(limb) for limb in self.limbs]}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> DigestSum:
        """Read :meth:`to_json` back.

        :raises ValueError: not of that shape.
        """
        rows, limbs = data.get("rows"), data.get("limbs")
        if type(rows) is not int or not isinstance(limbs, list):
            raise ValueError("a digest sum in JSON has an integer `rows` and a list `limbs`")
        if not all(isinstance(limb, str) and limb.isascii() and limb.isdigit() for limb in limbs):
            raise ValueError("the limbs of a digest sum in JSON are decimal strings")
        return cls(rows, tuple(int(limb) for limb in limbs))

    @classmethod
    def from_target_row(cls, row: Sequence[object], expected: int) -> DigestSum:
        """Check and read the target's answer ``(n, nh, l0, ..., l7)``.

        :param row: ten values: rows counted (at most ``expected + 1``), hashes that are not NULL, eight sums.
        :param expected: the number of rows that were sent; fewer is for the caller to compare.
        :raises Incident: ``dpone.wire.digest_answer`` for a malformed answer, ``dpone.wire.digest_overflow``
            for more rows than expected.
        """
        if len(row) != _LIMBS + 2:
            raise _malformed(f"it has {len(row)} values, not {_LIMBS + 2}")
        n = _integer("the row count", row[0])
        nh = _integer("the hash count", row[1])
        if n < 0:
            raise _malformed(f"the row count is {n}")
        if nh != n:
            raise _malformed(f"{n} rows have {nh} hashes; a row without a hash would be left out of the sums")
        if n > expected:
            raise Incident(
                "dpone.wire.digest_overflow",
                f"The target holds more than the {expected} rows that were sent.",
                rows=n,
                expected=expected,
            )
        # A sum over nothing is NULL in SQL; over something it never is.
        limbs = [0 if n == 0 and v is None else _integer(f"limb {i}", v) for i, v in enumerate(row[2:])]
        for i, limb in enumerate(limbs):
            if not 0 <= limb <= n * _LIMB_MAX:
                raise _malformed(f"limb {i} is outside of what {n} rows can add up to")
        return cls(n, tuple(limbs))


def _integer(what: str, value: object) -> int:
    if type(value) is int:
        return value
    if isinstance(value, Decimal) and value.is_finite() and int(value) == value:
        return int(value)
    raise _malformed(f"{what} is {'NULL' if value is None else 'a ' + type(value).__name__}, not an integer")


def _malformed(detail: str) -> Incident:
    return Incident("dpone.wire.digest_answer", f"The target's digest answer is malformed: {detail}.")
