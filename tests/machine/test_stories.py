"""Lists of steps that once showed something, or that the protocol tells: each runs on the same machine.

A failing run of the machine prints such a list. It becomes a test by being pasted here, with a name and with
what must have happened on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.machine.machine import Machine, Step, replay

END = 1_000


@dataclass(frozen=True)
class Story:
    """Steps, and what the machine must have told of them: how often, at least."""

    steps: Sequence[Step]
    told: dict[str, int] = field(default_factory=dict)


STORIES: dict[str, Story] = {
    "C2: a chunk of a dead extraction never meets one of the next": Story(
        [
            ("source_changes",),
            ("call", "run-a", "retry"),
            ("go_to", 0, "after_chunk_seal"),
            ("kill", 0, True),
            ("source_changes",),
            ("call", "run-a", "retry"),
            ("go", 1, END),
        ],
        {"EPOCH_OPENED": 2, "EPOCH_ABANDONED": 1, "delivered": 1},
    ),
    "C2: both processes read, the replaced one goes on to seal": Story(
        [
            ("source_changes",),
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_chunk_seal"),
            ("source_changes",),
            ("call", "run-a", "retry"),
            ("go_to", 1, "before_writer_write"),
            ("go", 0, END),
            ("go", 1, END),
        ],
        {"EPOCH_OPENED": 2, "EPOCH_ABANDONED": 1, "delivered": 1},
    ),
    "A2: a send that arrives after the same process has asked": Story(
        [
            ("arm", "publish", "held_back"),
            ("call", "run-a", "retry"),
            ("go_to", 0, "after_target_probe"),
            ("late_sends_arrive",),
            ("go", 0, END),
        ],
        {"late rolled_back dpone.publish.fenced": 1, "PUBLISHING": 2, "delivered": 1},
    ),
    "A2: a send that arrives while the next process is about to ask": Story(
        [
            ("arm", "publish", "held_back"),
            ("arm", "probe", "unreachable"),
            ("call", "run-a", "retry"),
            ("go", 0, END),
            ("call", "run-a", "retry"),
            ("go_to", 1, "before_target_probe"),
            ("late_sends_arrive",),
            ("go", 1, END),
        ],
        {"late committed": 1, "UNKNOWN": 1, "PUBLISHING": 1, "delivered": 1},
    ),
    "A2: a send that arrives long after everything": Story(
        [
            ("arm", "publish", "held_back"),
            ("call", "run-a", "retry"),
            ("go", 0, END),
            ("source_changes",),
            ("call", "run-b", "retry"),
            ("go", 1, END),
            ("late_sends_arrive",),
        ],
        {"late rolled_back dpone.publish.fenced": 1, "delivered": 2},
    ),
    "A10: the answer of a commit is lost": Story(
        [("arm", "publish", "lost_answer"), ("call", "run-a", "retry"), ("go", 0, END)],
        {"PUBLISHING": 1, "publish committed": 0, "delivered": 1},
    ),
    "G3: it dies between a commit and what it would have written of it": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "after_target_publish"),
            ("kill", 0, True),
            ("call", "run-a", "retry"),
            ("go", 1, END),
        ],
        {"PUBLISHING": 1, "publish committed": 1, "delivered": 1},
    ),
    "C9: the first try wakes up before its send, after the second has completed": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_publish"),
            ("source_changes",),
            ("call", "run-a", "retry"),
            ("go", 1, END),
            ("go", 0, END),
        ],
        {"publish rolled_back": 1, "publish committed": 1, "delivered": 1},
    ),
    "C9: the first try wakes up in the middle of the second one's publication": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_publish"),
            ("call", "run-a", "retry"),
            ("go_to", 1, "before_target_publish"),
            ("go", 0, END),
            ("go", 1, END),
        ],
        {"publish rolled_back": 1, "publish committed": 1, "delivered": 1},
    ),
    "C8: the run was deleted and made again while its old process still stands in front of its send": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_publish"),
            ("call", "run-a", "recreate"),
            ("go", 1, END),
            ("lease_expires",),
            ("call", "run-a", "recreate"),
            ("go", 2, END),
            ("go", 0, END),
        ],
        {"dpone.lease.held": 1, "publish committed": 1, "publish rolled_back": 1, "delivered": 1},
    ),
    "two requesters of one window: the second waits for the first": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_create_stage"),
            ("call", "run-b", "retry"),
            ("go", 1, END),
            ("go", 0, END),
            ("source_changes",),
            ("call", "run-b", "retry"),
            ("go", 2, END),
        ],
        {"dpone.custody.held": 1, "delivered": 2},
    ),
    "a replaced process makes a raw table that its successor never looks for, and takes it back": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_create_stage"),
            ("call", "run-a", "retry"),
            ("go_to", 1, "before_target_publish"),
            ("go", 0, END),
            ("go", 1, END),
        ],
        {"dpone.journal.fenced": 1, "delivered": 1},
    ),
    "a replaced process dies with a prepared table that it has just made: the other finds it": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_build_prepared"),
            ("call", "run-a", "retry"),
            ("go_to", 1, "before_target_publish"),
            ("go_to", 0, "after_target_build_prepared"),
            ("kill", 0, True),
            ("go", 1, END),
        ],
        {"delivered": 1},
    ),
    "A7: the journal forgets a publication, and its command dies on the way": Story(
        [
            ("call", "run-a", "retry"),
            ("go", 0, END),
            ("journal_loses", 12),
            ("call", "run-a", "retry"),
            ("lease_expires",),
            ("adopt",),
            ("go_to", 2, "after_target_adopt_gate"),
            ("kill", 2, True),
        ],
        {"journal lost its tail": 1, "dpone.journal.older_than_target": 1, "recovery retire": 1},
    ),
    "C6: the journal's file is lost, another one is made": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_publish"),
            ("kill", 0, True),
            ("journal_is_made_anew",),
        ],
        {"dpone.journal.not_bound_to_target": 1, "recovery adopt": 1},
    ),
    "C10: a delivery is given up while its process is about to publish": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_publish"),
            ("lease_expires",),
            ("retire", "run-a"),
            ("go", 1, END),
            ("go", 0, END),
        ],
        {"publish rolled_back": 1, "RETIRED": 1, "INCIDENT": 1},
    ),
    "C10: a delivery is given up and turns out to be published": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "after_target_publish"),
            ("kill", 0, True),
            ("retire", "run-a"),
            ("go", 1, END),
            ("call", "run-a", "retry"),
            ("go", 2, END),
        ],
        {"INCIDENT": 1, "delivered": 1, "publish committed": 1},
    ),
    "a lost chunk is read again, and the second extraction meets a source that has changed": Story(
        [
            ("source_changes",),
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_create_stage"),
            ("source_changes",),
            ("spool_loses", 1, "damaged"),
            ("go", 0, END),
        ],
        {"EPOCH_ABANDONED": 1, "EXTRACTED": 2, "delivered": 1},
    ),
    "a requester waits for the target, and gets it": Story(
        [
            ("call", "run-a", "retry"),
            ("go_to", 0, "before_target_publish"),
            ("call", "run-b", "retry"),
            ("go", 1, 4),
            ("go", 0, END),
            ("go", 1, END),
        ],
        {"delivered": 2, "dpone.custody.held": 0},
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_a_story(machine: Machine, story: Story) -> None:
    replay(machine, story.steps)
    missing = {what: count for what, count in story.told.items() if machine.told[what] < count}
    assert missing == {}, machine.told


def test_a_command_that_comes_to_its_turn_late_looks_at_the_chain_again(machine: Machine) -> None:
    """Between its first look and its lease the delivery went on; nothing is broken."""
    steps: list[Step] = [
        ("call", "run-a", "retry"),
        ("go", 0, 20),
        ("lease_expires",),
        ("call", "run-a", "again"),
        ("retire", "run-a"),
        ("go", 1, END),
        ("go", 2, END),
    ]
    replay(machine, steps)
    assert machine.told["dpone.journal.event_conflict"] == 0


LEFT_BEHIND: dict[str, Sequence[Step]] = {
    "a replaced process dies with a raw table that it has just made": [
        ("call", "run-a", "retry"),
        ("go_to", 0, "before_target_create_stage"),
        ("call", "run-a", "retry"),
        ("go", 1, END),
        ("go_to", 0, "after_target_create_stage"),
        ("kill", 0, True),
    ],
    "a replaced process cannot take back the raw table that it has made": [
        ("call", "run-a", "retry"),
        ("go_to", 0, "before_target_create_stage"),
        ("call", "run-a", "retry"),
        ("go", 1, END),
        ("arm", "drop_stage", "unreachable"),
        ("go", 0, END),
    ],
    "a replaced process dies with a raw table that it has just made, before the other has cleaned up": [
        ("call", "run-a", "retry"),
        ("go_to", 0, "before_target_create_stage"),
        ("call", "run-a", "retry"),
        ("go_to", 1, "before_target_publish"),
        ("go_to", 0, "after_target_create_stage"),
        ("kill", 0, True),
        ("go", 1, END),
    ],
}


@pytest.mark.parametrize("steps", LEFT_BEHIND.values(), ids=LEFT_BEHIND.keys())
def test_nothing_is_left_behind_by_a_replaced_process(machine: Machine, steps: Sequence[Step]) -> None:
    replay(machine, steps)
    assert machine.judge.objects() == {}
