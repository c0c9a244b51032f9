"""Texts that other tools change on the way: byte for byte in the embedded target, wherever a chunk ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_dpone.errors import SourceDataError
from airflow_dpone.settings import Limits
from airflow_dpone.target_embedded.target import EmbeddedTarget
from tests.fakes import lies
from tests.fakes.embedded_shop import Shop
from tests.fakes.world import SCHEMA, TABLE

EMPTY = [None, "", " ", "NULL", "\0"]
TOKENS = [
    "$~d$~",
    ",",
    '"',
    "'",
    "\r",
    "\n",
    "\r\n",
    "\t",
    "\\N",
    "\\",
    "|",
    "a\x1ab",
    "\x1e\x1f",
    "''",
    "N''",
]
EMOJI = ["Test 1 2 3 😂  foo bar", "😂" * 10, "x" + "😂" * 9 + "y"]
WORDS = ["Joachim", "Ⅰ Ⅱ Ⅲ", "значение", "\u00e9", "e\u0301", "\ufeff", "\uffff", "\U0010ffff"]  # noqa: RUF001


@pytest.fixture(scope="module")
def fresh_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Made once and copied."""
    return Shop.create(tmp_path_factory.mktemp("texts") / "shop")


@pytest.fixture
def shop(fresh_shop: Shop, tmp_path: Path) -> Shop:
    """A shop that nothing was delivered from."""
    return fresh_shop.copy(tmp_path / "shop")


def delivered(shop: Shop, notes: list[str | None], max_rows: int) -> list[tuple[str | None, str]]:
    """The bytes of `note` and `name` as the target keeps them, in hex, in the order of the source."""
    made = [
        {**lies.ROWS[0], "id": n, "note": note, "name": (note or "")[:10]} for n, note in enumerate(notes)
    ]
    shop.holds(made)
    result = shop.deliver(EmbeddedTarget(shop.path, lock_wait_sec=0), Limits(max_rows=max_rows))
    assert result.rows == len(notes)
    query = f"SELECT hex(encode(note)), hex(encode(name)) FROM {SCHEMA}.{TABLE} WHERE id < 900 ORDER BY id"
    return [(note, str(name)) for note, name in shop.query(query)]


@pytest.mark.parametrize(
    ("notes", "max_rows"),
    [
        (EMPTY, 100),
        (EMPTY, 1),
        (list(reversed(EMPTY)), 2),
        ([*TOKENS, *EMOJI, *WORDS], 7),
    ],
    ids=["together", "each alone in a chunk", "first and last of chunks", "tokens, emoji, words"],
)
def test_texts_arrive_byte_by_byte(shop: Shop, notes: list[str | None], max_rows: int) -> None:
    """B23: five different values stay five. B25: nothing is a delimiter. B26, B28: none lost or recoded."""
    found = delivered(shop, notes, max_rows)
    wanted = [None if note is None else note.encode().hex().upper() for note in notes]
    assert [note for note, _ in found] == wanted
    assert [name for _, name in found] == [(note or "")[:10].encode().hex().upper() for note in notes]
    assert len(set(wanted)) == len(notes)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("😂" * 10 + "x", "dpone.source.too_long"),
        (b"a\xffb", "dpone.source.utf8"),
        (b"\xc3", "dpone.source.utf8"),
    ],
)
def test_what_does_not_fit_stops_by_row_and_is_never_cut(shop: Shop, name: str | bytes, code: str) -> None:
    """B26: 21 units for nvarchar(20). B30: no replacement character."""
    before = shop.rows()
    shop.holds([lies.ROWS[0], {**lies.ROWS[1], "name": name}])
    with pytest.raises(SourceDataError) as raised:
        shop.deliver(EmbeddedTarget(shop.path, lock_wait_sec=0))
    assert (raised.value.code, raised.value.fields) == (code, {"column": "name", "row": 1})
    assert shop.rows() == before
    assert shop.untidy() == []
