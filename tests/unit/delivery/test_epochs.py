"""No chunk and no proved table of another extraction counts, whatever the chain says of it (C2)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.history import History
from airflow_dpone.delivery.states import DeliveryEvent, DeliveryState
from airflow_dpone.errors import DponeError, JournalError
from tests.fakes import target_storage as storage
from tests.fakes.world import World


def history_of(world: World) -> History:
    """The folded chain of the newest generation."""
    return History.of(world.invocation().invocation_key, world.events())


def stop_at_publication(world: World) -> None:
    """Every chunk is proved in the target; nothing was sent."""
    world.target.arm("publish", "never_sent")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError):
        world.deliver()


def test_a_proved_table_is_of_one_extraction(world: World) -> None:
    stop_at_publication(world)
    history = history_of(world)
    chunks = history.chunks
    assert len(chunks) == 2
    for chunk in chunks:
        assert history.verified(chunk) is not None
        other = replace(chunk, extraction_epoch=chunk.extraction_epoch + 1)
        assert history.attempts_of(other) == []
        assert history.verified(other) is None


def test_what_is_kept_by_chunk_and_by_event_is_what_a_search_finds(world: World) -> None:
    stop_at_publication(world)
    history = history_of(world)
    for event in (*DeliveryEvent, *DeliveryState):
        found = [payload for name, payload in history.payloads if name == event.value]
        assert history.all(event) == found
        assert history.last(event) == (found[-1] if found else None)
    for chunk in history.chunks:
        assert history.attempts_of(chunk) == [
            attempt
            for attempt in history.attempts.values()
            if (attempt.extraction_epoch, attempt.ordinal) == (chunk.extraction_epoch, chunk.ordinal)
        ]


def test_chunks_of_another_extraction_are_not_the_delivery_s(world: World) -> None:
    stop_at_publication(world)
    history = history_of(world)
    first = history.chunks[0]
    of_another = replace(first, extraction_epoch=first.extraction_epoch + 1, ordinal=7).to_json()
    for epoch in (of_another, {**of_another, "extraction_epoch": -1}):
        history.apply(
            jr.AppendDelivery(
                history.invocation_key, history.next_sequence, DeliveryEvent.CHUNK_SEALED, epoch
            )
        )
    assert [chunk.ordinal for chunk in history.chunks] == [0, 1]


def rewrite_last_event(world: World, **changes: Any) -> None:
    """Gives the last event of the delivery's stream another payload and a hash that fits: nothing that the
    chain's links could show."""
    key = world.invocation().invocation_key
    with storage.session(world.journal_path) as journal:
        sequence, body = journal.execute(
            "SELECT sequence, body FROM dpone_event WHERE stream = ? ORDER BY sequence DESC LIMIT 1",
            (f"delivery/{key}",),
        ).fetchone()
        document = json.loads(body)
        document["payload"] |= changes
        text = identity.canonical(document)
        journal.execute(
            "UPDATE dpone_event SET body = ?, sha256 = ? WHERE stream = ? AND sequence = ?",
            (text.decode(), identity.sha256_hex(text), f"delivery/{key}", sequence),
        )


def test_a_list_of_chunks_that_is_not_the_one_of_the_end_stops_everything(world: World) -> None:
    world.target.arm("create_stage", "unreachable", times=3)
    with pytest.raises(DponeError) as stopped:
        world.deliver()
    assert stopped.value.state_after == "EXTRACTED"
    rewrite_last_event(world, chunk_list_sha256="0" * 64)
    with pytest.raises(JournalError, match="not the ones that the end of the extraction listed") as raised:
        world.deliver()
    assert raised.value.code == "dpone.journal.chain_broken"
    assert "write" not in world.target.calls()
