"""The end of a stream, over a scripted engine: only the engine's own end is the end [F9, B64]."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import SourceUnavailable
from airflow_dpone.source_clickhouse.block_stream import BlockStream


def block(rows: int) -> bytes:
    sink = pa.BufferOutputStream()
    made = pa.record_batch({"c0": pa.array(range(rows), pa.int64())})
    with pa.ipc.new_file(sink, made.schema) as writer:
        writer.write_batch(made)
    return sink.getvalue().to_pybytes()


class Block:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def bytes(self) -> bytes:
        return self._content


class Engine:
    """Session and stream in one: answers from a script, then says that it is at its end."""

    def __init__(self, *script: bytes | Exception) -> None:
        self._script = list(script)
        self.closed = self.cancelled = 0

    def send_query(self, statement: str, form: str) -> Engine:
        assert (statement, form) == ("SELECT 1", "Arrow")
        return self

    def fetch(self) -> Any:
        if not self._script:
            return None
        answer = self._script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Block(answer)

    def cancel(self) -> None:
        self.cancelled += 1

    def close(self) -> None:
        self.closed += 1


def stream(engine: Engine, seconds: float = 60) -> BlockStream:
    return BlockStream(engine, "SELECT 1", Deadline.after(seconds))


def test_blocks_then_the_end() -> None:
    engine = Engine(block(3), block(2))
    opened = stream(engine)
    assert [batch.num_rows for batch in opened] == [3, 2]
    assert list(opened) == [], "the end stays the end"
    assert engine.closed == 1


def test_an_empty_block_is_not_the_end() -> None:
    assert [batch.num_rows for batch in stream(Engine(block(0), block(2), block(0), block(1)))] == [2, 1]


@pytest.mark.parametrize("bad", [b"", b"x", block(3)[:-1], block(3)[: len(block(3)) // 2]])
def test_a_cut_block_is_an_error(bad: bytes) -> None:
    """[B64] A body that stops somewhere is not the end."""
    engine = Engine(block(3), bad)
    opened = stream(engine)
    next(opened)
    with pytest.raises(SourceUnavailable) as caught:
        next(opened)
    assert caught.value.code == "dpone.source.broken_block"
    assert engine.closed == 1


@pytest.mark.parametrize("text", ["Code: 241. DB::Exception: memory", "connection lost"])
def test_an_error_is_never_followed_by_an_end(text: str) -> None:
    opened = stream(Engine(block(3), RuntimeError(text)))
    next(opened)
    for _ in range(3):
        with pytest.raises(SourceUnavailable):
            next(opened)


def test_a_closed_stream_never_ends() -> None:
    engine = Engine(block(3), block(3))
    opened = stream(engine)
    next(opened)
    opened.close()
    opened.close()
    with pytest.raises(SourceUnavailable, match="before the end"):
        next(opened)
    assert (engine.cancelled, engine.closed) == (1, 1)


def test_a_deadline_is_kept_between_blocks() -> None:
    """Also before the last block: rows that came too late are not handed out."""
    engine = Engine(block(3))
    with pytest.raises(SourceUnavailable) as caught:
        next(stream(engine, seconds=-1))
    assert caught.value.code == "dpone.source.deadline"
    assert engine.closed == 1


def test_a_query_that_cannot_start_closes_its_session() -> None:
    class Refusing(Engine):
        def send_query(self, statement: str, form: str) -> Engine:
            raise RuntimeError("Code: 60. DB::Exception: x")

    engine = Refusing()
    with pytest.raises(Exception, match="error 60"):
        stream(engine)
    assert engine.closed == 1
