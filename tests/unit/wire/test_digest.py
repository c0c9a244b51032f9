"""The digest: order does not matter, multiplicity does, and a malformed answer never becomes a sum."""

from __future__ import annotations

import hashlib
import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.errors import Incident
from airflow_dpone.wire.digest import ALGORITHM, DigestSum

HASHES = st.lists(st.binary(min_size=32, max_size=32), max_size=20)
MAX_LIMB = 2**32 - 1


def array_of(hashes: list[bytes]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(len(hashes), 32)


@given(HASHES)
def test_is_the_sum_of_big_endian_numbers(hashes: list[bytes]) -> None:
    summed = DigestSum.of_hashes(array_of(hashes))
    total = sum(int.from_bytes(h, "big") for h in hashes) % 2**256
    assert summed == DigestSum.of_hash_iter(hashes)
    assert (summed.rows, summed.total) == (len(hashes), total)
    assert summed.digest == hashlib.sha256(json.dumps([ALGORITHM, len(hashes), total]).encode()).hexdigest()


@given(HASHES, st.randoms(use_true_random=False), st.integers(0, 20))
def test_order_and_splitting_do_not_matter(hashes: list[bytes], rng: random.Random, cut: int) -> None:
    other = list(hashes)
    rng.shuffle(other)
    parts = DigestSum.of_hash_iter(other[:cut]) + DigestSum.of_hashes(array_of(other[cut:]))
    assert parts == DigestSum.of_hashes(array_of(hashes))
    assert parts.digest == DigestSum.of_hash_iter(hashes).digest


@given(st.binary(min_size=32, max_size=32), HASHES)
def test_multiplicity_matters(one: bytes, hashes: list[bytes]) -> None:
    """B76 (e, f): a row less, a row more."""
    base = DigestSum.of_hash_iter(hashes)
    assert (base + DigestSum.of_hash_iter([one])).digest != base.digest
    assert DigestSum.of_hash_iter([one, one]).digest != DigestSum.of_hash_iter([one]).digest
    assert base + DigestSum.zero() == base


def test_one_row_less_and_another_twice_differ() -> None:
    """B76 (f): the count alone would not see it."""
    a, b = (hashlib.sha256(x).digest() for x in (b"a", b"b"))
    assert DigestSum.of_hash_iter([a, b]).digest != DigestSum.of_hash_iter([a, a]).digest


def test_carries_between_limbs_and_out_of_the_top() -> None:
    top = DigestSum.of_hash_iter([b"\xff" * 32, b"\x00" * 31 + b"\x01"])
    assert top.limbs == (MAX_LIMB,) * 7 + (2**32,)
    assert top.total == 0
    assert top.digest != DigestSum.zero().digest


def test_sums_of_more_rows_than_fit_in_memory() -> None:
    """B75: 2^31 rows of all ones, made by doubling."""
    summed = DigestSum.of_hash_iter([b"\xff" * 32])
    for _ in range(31):
        summed += summed
    assert summed == DigestSum(2**31, (2**31 * MAX_LIMB,) * 8)
    assert summed.total == -(2**31) % 2**256
    answer = (2**31, 2**31, *[Decimal(2**31 * MAX_LIMB)] * 8)
    assert DigestSum.from_target_row(answer, 2**31) == summed


def test_uint64_columns_do_not_wrap() -> None:
    hashes = np.full((70_000, 32), 0xFF, dtype=np.uint8)
    assert DigestSum.of_hashes(hashes).limbs == (70_000 * MAX_LIMB,) * 8


def test_slices_of_hash_arrays() -> None:
    hashes = np.arange(320, dtype=np.uint8).reshape(10, 32)
    assert DigestSum.of_hashes(hashes[::3]) == DigestSum.of_hash_iter([h.tobytes() for h in hashes[::3]])


@given(HASHES)
def test_json_round_trip(hashes: list[bytes]) -> None:
    summed = DigestSum.of_hash_iter(hashes)
    text = json.dumps(summed.to_json())
    assert DigestSum.from_json(json.loads(text)) == summed
    assert all(isinstance(limb, str) for limb in summed.to_json()["limbs"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"rows": "1", "limbs": ["0"] * 8},
        {"rows": True, "limbs": ["0"] * 8},
        {"rows": 1, "limbs": ["0"] * 7},
        {"rows": 1, "limbs": [0] * 8},
        {"rows": 1, "limbs": ["-1"] + ["0"] * 7},
        {"rows": 1, "limbs": ["٣"] + ["0"] * 7},
        {"rows": 0, "limbs": ["1"] + ["0"] * 7},
        {"rows": 1, "limbs": [str(2**32)] + ["0"] * 7},
    ],
)
def test_refuses_malformed_json(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"digest sum|limb"):
        DigestSum.from_json(data)


@pytest.mark.parametrize("shape", [(32,), (2, 31)])
def test_refuses_arrays_that_are_no_hashes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape"):
        DigestSum.of_hashes(np.zeros(shape, dtype=np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        DigestSum.of_hashes(np.zeros((1, 32), dtype=np.int64))
    with pytest.raises(ValueError, match="32 bytes"):
        DigestSum.of_hash_iter([b"short"])


def test_the_target_answers_for_an_empty_set() -> None:
    """A sum of nothing is NULL in SQL (B75)."""
    assert DigestSum.from_target_row((0, 0, *[None] * 8), 0) == DigestSum.zero()
    assert DigestSum.from_target_row((0, 0, *[0] * 8), 5) == DigestSum.zero()


def test_the_target_answers_with_integers_or_decimals() -> None:
    limbs = tuple(range(8))
    assert DigestSum.from_target_row([2, Decimal("2"), *limbs], 2) == DigestSum(2, limbs)
    assert DigestSum.from_target_row([1, 1, *map(Decimal, limbs)], 2) == DigestSum(1, limbs)
    assert DigestSum.from_target_row([1, 1, Decimal("3.0"), *limbs[1:]], 1).limbs[0] == 3


OK = (1, 1, *[5] * 8)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (OK[:9], "9 values"),
        ((*OK, 0), "11 values"),
        ((), "0 values"),
        ((None, *OK[1:]), "row count is NULL"),
        ((1, None, *OK[2:]), "hash count is NULL"),
        ((-1, -1, *OK[2:]), "row count is -1"),
        ((2, 1, *OK[2:]), "2 rows have 1 hashes"),
        ((1, 2, *OK[2:]), "1 rows have 2 hashes"),
        ((*OK[:9], None), "limb 7 is NULL"),
        ((*OK[:9], 1.0), "limb 7 is a float"),
        ((*OK[:9], True), "limb 7 is a bool"),
        ((*OK[:9], "5"), "limb 7 is a str"),
        ((*OK[:9], Decimal("5.5")), "limb 7 is a Decimal"),
        ((*OK[:9], Decimal("NaN")), "limb 7 is a Decimal"),
        ((*OK[:9], -1), "limb 7 is outside"),
        ((*OK[:9], 2**32), "limb 7 is outside"),
        ((0, 0, 1, *OK[3:]), "limb 0 is outside"),
    ],
)
def test_refuses_a_malformed_answer(answer: tuple[Any, ...], words: str) -> None:
    """D6: a wrong number or kind of value is an incident, never a digest."""
    with pytest.raises(Incident, match=words) as caught:
        DigestSum.from_target_row(answer, 2)
    assert caught.value.code == "dpone.wire.digest_answer"


def test_more_rows_than_were_sent() -> None:
    with pytest.raises(Incident, match="more than the 1 rows") as caught:
        DigestSum.from_target_row((2, 2, *[5] * 8), 1)
    assert caught.value.code == "dpone.wire.digest_overflow"
    assert caught.value.fields == {"rows": 2, "expected": 1}
