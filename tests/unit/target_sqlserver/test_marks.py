"""The owner mark: what it says survives the way through the server, and nothing else is one."""

from __future__ import annotations

import pytest

from airflow_dpone.target_sqlserver.marks import CREATED, GRANTED, SEALED, Mark

OWNER, TOKEN = "0c" * 32, "0d" * 32


@pytest.mark.parametrize(
    "mark",
    [Mark(OWNER, CREATED, None, 7), Mark(OWNER, GRANTED, TOKEN, 2**31 - 1), Mark(OWNER, SEALED, None, 1)],
)
def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert Mark.parse(str(mark)) == mark
    assert len(str(mark)) <= 200


def test_the_text_is_frozen() -> None:
    """Stages of an unfinished delivery outlive an upgrade."""
    assert str(Mark(OWNER, GRANTED, TOKEN, 7)) == f"dpone:owner={OWNER};state=granted:{TOKEN};object=7"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "somebody's note",
        f"dpone:owner={OWNER};state=granted;object=7",
        f"dpone:owner={OWNER};state=granted:abc;object=7",
        f"dpone:owner={OWNER};state=sealed:{TOKEN};object=7",
        f"dpone:owner={OWNER};state=open;object=7",
        f"dpone:owner={OWNER};state=sealed;object=-7",
        f"dpone:owner={OWNER};state=sealed;object=7;more",
    ],
)
def test_anything_else_is_no_mark(text: str | None) -> None:
    assert Mark.parse(text) is None


def test_a_grant_is_to_one_writer() -> None:
    """[B2]"""
    mark = Mark(OWNER, GRANTED, TOKEN, 7)
    assert mark.is_granted_to(TOKEN)
    assert not mark.is_granted_to("0e" * 32)
    assert not Mark(OWNER, SEALED, None, 7).is_granted_to(TOKEN)
