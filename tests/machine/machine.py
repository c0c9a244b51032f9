"""The machine: one world, several workers that take turns, everything that may happen to them, one step each.

A step is a method and its arguments. :attr:`Machine.trace` is the list of all steps so far, and
:func:`replay` runs such a list again: that is how a failure becomes a test.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from airflow_dpone.delivery import recovery
from airflow_dpone.delivery.deliver import deliver
from airflow_dpone.delivery.ports import Ports
from airflow_dpone.delivery.run import Request
from airflow_dpone.delivery.states import ENDED, DeliveryState
from airflow_dpone.errors import DponeError
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.spool.local import LocalSpool
from tests.fakes.source import ReadFault, ScriptedSource
from tests.fakes.world import HOST, SCHEMA, TABLE, World
from tests.machine import shop
from tests.machine.journal_tail import JournalTail
from tests.machine.judge import Judge, require
from tests.machine.worker import Mortal, Worker

Step = tuple[Any, ...]
MOST_WORKERS = 3
LEASE_SEC = 3_600.0
CALLS_TO_THE_END = 6
NEVER = frozenset(
    "dpone.delivery.unexpected dpone.journal.chain_broken dpone.journal.event_conflict "
    "dpone.journal.event_refused dpone.journal.write_refused dpone.journal.checkpoint_conflict "
    "dpone.journal.evidence_damaged dpone.journal.failed dpone.journal.damaged".split()
)
"""Codes that no step of the machine gives a reason for."""
KNOWN_OF_COMMANDS = frozenset({"dpone.journal.event_conflict"})
"""To be mended: a command reads the chain before it has the lease. ``test_stories.py`` waits for it."""
FORGETFUL = frozenset({"dpone.journal.older_than_target", "dpone.journal.not_bound_to_target"})
"""Codes that only a journal which has lost something gives a reason for."""


def way_out(machine: Machine, run_id: str, error: DponeError) -> None:
    """Does what a person does about a state that a cleared task does not lead out of."""
    if error.code in FORGETFUL:
        machine.by_hand("adopt", machine._adopt)
    elif error.state_after == DeliveryState.INCIDENT:
        machine.by_hand("retire", partial(machine._retire, run_id))


class Machine:
    """One world and its workers. Every public method that :data:`STEPS` names is a step.

    :param template: the directory that the world is a copy of. :param before: the machine that made the
        template, when that is more than a new world; its journal may have lost its end since.
    """

    def __init__(self, root: Path, template: Path, before: Machine | None = None) -> None:
        self.root = root
        shutil.copytree(template, root)
        self.world = World(root, limits=shop.LIMITS)
        self.faults = shop.Faults()
        self.trace: list[Step] = []
        self.workers: list[Worker] = []
        self.tasks: dict[str, shop.AirflowTask] = {}
        self.points, self.told = 0, Counter[str]()
        self.version = 0
        self._ids, self._nonces = itertools.count(1), itertools.count()
        self._made: dict[str, Worker] = {}
        self._sent: set[int] = set()
        self.tail = JournalTail(self.world.journal_path)
        self.judge = Judge(root, self.world.journal_path, self.world.target.path)
        if before is not None:
            self.version, self._nonces = before.version, before._nonces
            self.judge.remember(before.judge)
        self.judge.check()

    # ---- steps ---------------------------------------------------------------------------------------------

    def call(self, run_id: str, how: str) -> None:
        """A task of that run starts, as Airflow starts it; for ``how`` see ``AirflowTask.next_try``."""
        task = self.tasks.setdefault(run_id, shop.AirflowTask(run_id))
        self._start(Worker(len(self.workers), task.next_try(how, self._ids)), self._deliver)

    def retire(self, run_id: str) -> None:
        """A person gives the unfinished delivery of that run up, if there is one."""
        self._command(partial(self._retire, run_id))

    def adopt(self) -> None:
        """A person binds the target to this journal."""
        self._command(self._adopt)

    def go(self, worker: int, points: int) -> None:
        """The worker passes that many crash points, or ends."""
        for _ in range(points):
            if not self.workers[worker].is_alive:
                break
            self.workers[worker].step()
            self._look(self.workers[worker])

    def go_to(self, worker: int, point: str) -> None:
        """The worker goes on until it stands at the next crash point of that name, or ends."""
        while self.workers[worker].is_alive:
            self.go(worker, 1)
            if self.workers[worker].point == point:
                break

    def kill(self, worker: int, noticed: bool) -> None:
        """The worker's process dies.

        :param noticed: whether the operating system can say so; if not, its lease must expire first.
        """
        dead = self.workers[worker]
        dead.kill()
        self._note("killed")
        self._leaves_strays(dead)
        if noticed and dead.lease is not None:
            values = (dead.lease.owner,)
            self._journal("UPDATE dpone_lease SET owner_started = '0' WHERE owner = ?", values)
        self.judge.check(self._alive())

    def lease_expires(self) -> None:
        """Time passes until the lease has expired by the database's clock."""
        self._journal(
            "UPDATE dpone_lease SET expires_at = '2025-01-01T00:00:00.000000Z' WHERE owner IS NOT NULL"
        )
        self.judge.check(self._alive())

    def arm(self, method: str, kind: str, times: int = 1) -> None:
        """The next calls of that method of the target go wrong."""
        for _ in range(times):
            self.faults.arm(method, kind)

    def late_sends_arrive(self) -> None:
        """Publications that were held back reach the target now."""
        answers = self.world.target.let_late_sends_arrive()
        for answer in answers:
            self._note(f"late {answer.kind} {answer.code or ''}".strip())
        self.judge.check(self._alive())

    def source_changes(self) -> None:
        """Every row of the source is another one now."""
        self.version += 1
        self.world.source.edit(rows=shop.source_rows(self.version))

    def source_fails(self, kind: str) -> None:
        """One of the next reads goes wrong."""
        script = self.world.source.script
        self.world.source.edit(faults=[*script.faults, ReadFault(kind, 1)])

    def source_is_replaced(self) -> None:
        """The source table is dropped and made again: what is planned for it is planned anew."""
        self.version += 1
        uuid = f"5f0f3c1a-0000-4000-8000-{self.version:012d}"
        self.world.source.edit(rows=shop.source_rows(self.version), uuid=uuid)

    def spool_loses(self, number: int, how: str) -> None:
        """A sealed file is removed, or one byte of it changes."""
        files = self.world.spool_files()
        if not files:
            return
        file = files[number % len(files)]
        if how == "removed":
            file.unlink()
        else:
            content = bytearray(file.read_bytes())
            if content:
                content[len(content) // 2] ^= 0xFF
            file.write_bytes(content)

    def journal_loses(self, transactions: int) -> None:
        """The last transactions of the journal are gone. Nobody may be at work."""
        require(not self.alive, "the journal was put back while somebody worked")
        there = self.tail.transactions
        self.judge.journal.close()
        self.tail.keep(max(0, there - transactions))
        self.judge.forget_the_journal()
        self._note("journal lost its tail")
        self.judge.check()

    def _leaves_strays(self, worker: Worker) -> None:
        """A file that a replaced worker sealed, and did not live to remove, is nobody's for ever. A table
        never is: the gate refuses it to whoever was replaced."""
        made = {name for name, maker in self._made.items() if maker is worker and "/" in name}
        left = made & set(self.judge.objects())
        self.judge.strays |= left
        self.told["left by a replaced worker"] += len(left)

    def journal_is_made_anew(self) -> None:
        """The journal's file is lost, and an empty one was made in its place. Nobody may be at work."""
        require(not self.alive, "the journal was made anew while somebody worked")
        self.judge.journal.close()
        self.tail.close()
        for end in ("", "-wal", "-shm"):
            Path(f"{self.world.journal_path}{end}").unlink(missing_ok=True)
        migrate(self.world.journal_path, host=HOST)
        self.tail = JournalTail(self.world.journal_path)
        self.judge.forget_the_journal()
        self._note("journal was made anew")
        self.judge.check()

    # ---- workers -------------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Worker]:
        """Workers that can go on, oldest first."""
        return [worker for worker in self.workers if worker.is_alive]

    @property
    def at_work(self) -> list[str]:
        """The run of each worker that can go on and is no command."""
        return [worker.who.run_id for worker in self.alive if worker.who is not None]

    @property
    def unfinished(self) -> list[str]:
        """The runs whose newest generation has not ended."""
        return sorted(run for run, (_, state) in self._newest().items() if DeliveryState(state) not in ENDED)

    @property
    def held_back(self) -> int:
        """How many publications are on their way."""
        return int(self.judge.target.all('SELECT count(*) FROM "test.late_send"')[0][0])

    def _start(self, worker: Worker, work: Callable[[Worker], Any]) -> None:
        self.workers.append(worker)
        worker.start(work)
        self._look(worker)

    def _command(self, work: Callable[[Worker], Any]) -> None:
        self.judge.commands = True
        self._start(Worker(len(self.workers)), work)

    def _deliver(self, worker: Worker, observed: bool = True) -> Any:
        who = worker.who
        if who is None:
            raise RuntimeError("a command delivers nothing")
        asked = Request(
            self.world.route(),
            shop.WINDOWS[who.run_id],
            who,
            lease_ttl_sec=LEASE_SEC,
            custody_wait_sec=shop.WAITS.get(who.run_id, 0.0),
        )
        with self._open_ports(worker, observed) as ports:
            return deliver(ports, asked)

    def _retire(self, run_id: str, worker: Worker, observed: bool = True) -> Any:
        keys = self.judge.journal.all(
            "SELECT invocation_key FROM dpone_invocation WHERE run_id = ? ORDER BY generation DESC", run_id
        )
        key = keys[0][0] if keys else "0" * 64
        with self._open_ports(worker, observed) as ports:
            return recovery.retire(ports, key)

    def _adopt(self, worker: Worker, observed: bool = True) -> Any:
        with self._open_ports(worker, observed) as ports:
            return recovery.adopt_target(ports, SCHEMA, TABLE)

    @contextmanager
    def _open_ports(self, worker: Worker, observed: bool) -> Iterator[Ports]:
        target = shop.ShopTarget(self.world.target.path, self.faults)
        worker.met = target.met
        mortal = Mortal(target, worker, lambda *call: self._seen_at_target(worker, *call))
        journal = Mortal(
            self.world.open_journal(), worker, lambda *call: self._seen_at_journal(worker, *call)
        )
        with journal:
            yield Ports(
                source=Mortal(ScriptedSource(self.world.source.path), worker, self._seen_at_source),
                spool=Mortal(LocalSpool(self.world.spool.path, host_id=HOST), worker),
                target=mortal,
                writer=mortal,
                journal=journal,
                clock=shop.ShopClock(self._nonces, worker.wait_at),
                observer=worker.wait_at if observed else None,
            )

    def _seen_at_source(self, method: str, arguments: Any, answer: Any) -> None:
        if method == "read":
            self.judge.reads[arguments[1]["nonce"]] = self.version

    def _seen_at_journal(self, worker: Worker, method: str, arguments: Any, answer: Any) -> None:
        if method in ("acquire", "raise_fence"):
            worker.lease = answer

    def _seen_at_target(self, worker: Worker, method: str, arguments: Any, answer: Any) -> None:
        if method == "publish":
            self._note(f"publish {answer.kind}")

    def _look(self, worker: Worker) -> None:
        """After each point: who made what, what came of the worker, and all invariants."""
        self.points += 1
        if worker.error is not None:
            self._judge_error(worker, worker.error)
        elif worker.result is not None:
            self._note("already" if worker.result.already else "delivered")
            require(worker.result.state == "COMPLETED", "a result of an unfinished delivery", worker.result)
        for name in self.judge.objects():
            if name not in self._made and self._is_replaced(worker):
                self._made[name] = worker
            self._made.setdefault(name, _NOBODY)
        if worker.error is not None and ("drop_stage", "unreachable") in worker.met:
            self._leaves_strays(worker)
        self.judge.check(self._alive())

    def _is_replaced(self, worker: Worker) -> bool:
        now = self.judge.journal.all("SELECT fence FROM dpone_lease")
        return worker.lease is not None and now != [(worker.lease.fence,)]

    def _alive(self) -> set[str]:
        return {name for name, maker in self._made.items() if maker.is_alive}

    def _judge_error(self, worker: Worker, error: DponeError) -> None:
        self._note(error.code)
        if worker.who is None and error.code in KNOWN_OF_COMMANDS:
            return
        require(error.code not in NEVER, "an error that nothing here gives a reason for", repr(error), error)
        if error.code in FORGETFUL:
            require(self.judge.lost_tail, "the journal is called older and has lost nothing", error)

    def _note(self, what: str) -> None:
        self.told[what] += 1

    def _journal(self, statement: str, values: Sequence[Any] = ()) -> None:
        connection = sqlite3.connect(self.world.journal_path, isolation_level=None)
        try:
            connection.execute(statement, values)
        finally:
            connection.close()

    # ---- the end -------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing goes wrong any more: every requester's delivery completes, by clears and named ways out.

        Then the sends arrive that are still on their way: too late for everything.
        """
        for worker in self.alive:
            self.kill(worker.number, noticed=False)
        self.faults.armed.clear()
        self.world.source.edit(faults=[], mutations=[], unfinished=[])
        for run_id in self._holder_first():
            self._complete(run_id)
        self.late_sends_arrive()
        for (event,) in self.judge.journal.all(
            "SELECT event FROM dpone_event WHERE stream LIKE 'delivery/%'"
        ):
            self._note(event)
        unfinished = {run_id: state for run_id, (_, state) in self._newest().items() if state != "COMPLETED"}
        require(not unfinished, "not everything was completed at the end", unfinished)
        left = set(self.judge.objects()) - self.judge.strays
        require(not left or self.judge.lost_tail, "something is left at the end", left)

    def _complete(self, run_id: str) -> None:
        """Calls as a user of Airflow would, and as a person who reads what the errors say."""
        error: DponeError | None = None
        for number in range(CALLS_TO_THE_END):
            self.lease_expires()
            who = self.tasks[run_id].next_try("retry" if number == 0 else "clear", self._ids)
            error = self._unwatched(Worker(len(self.workers), who), self._deliver)
            if error is None:
                return
            way_out(self, run_id, error)
        require(False, f"{run_id} did not complete in {CALLS_TO_THE_END} calls without any fault", error)

    def by_hand(self, command: str, work: Callable[[Worker, bool], Any]) -> None:
        """A recovery command at the end, where nothing goes wrong: it must do what it is there for."""
        self.lease_expires()
        self._note(f"recovery {command}")
        self.judge.commands = True
        error = self._unwatched(Worker(len(self.workers)), work)
        require(error is None, f"recovery {command} was of no use", error)

    def _unwatched(self, worker: Worker, work: Callable[[Worker, bool], Any]) -> DponeError | None:
        """From beginning to end without a stop."""
        self.workers.append(worker)
        try:
            work(worker, False)
        except DponeError as error:
            self.judge.check()
            self._judge_error(worker, error)
            return error
        self.judge.check()
        return None

    def _newest(self) -> dict[str, tuple[int, str]]:
        rows = self.judge.journal.all(
            "SELECT run_id, generation, state FROM dpone_invocation ORDER BY generation"
        )
        return {run_id: (generation, state) for run_id, generation, state in rows}

    def _holder_first(self) -> list[str]:
        """The requesters that were ever called; the one that holds the target before the others."""
        held = self.judge.journal.all(
            "SELECT run_id FROM dpone_invocation JOIN dpone_custody ON holder_key = invocation_key"
        )
        holders = [run_id for (run_id,) in held]
        return sorted(self.tasks, key=lambda run_id: (run_id not in holders, run_id))

    def close(self) -> None:
        """Everybody dies; what the kernel would close with a process is closed; the world is removed."""
        for worker in self.workers:
            worker.kill()
        self.judge.close()
        self.tail.close()
        for number in os.listdir("/proc/self/fd"):
            try:
                place = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                continue
            if place.startswith(f"{self.root}/"):
                os.close(int(number))
        shutil.rmtree(self.root, ignore_errors=True)


class _Nobody:
    is_alive = False


_NOBODY: Any = _Nobody()


STEPS: dict[str, Callable[..., None]] = {
    step.__name__: step
    for step in (
        Machine.call,
        Machine.go,
        Machine.go_to,
        Machine.kill,
        Machine.lease_expires,
        Machine.arm,
        Machine.late_sends_arrive,
        Machine.source_changes,
        Machine.source_fails,
        Machine.source_is_replaced,
        Machine.spool_loses,
        Machine.journal_loses,
        Machine.journal_is_made_anew,
        Machine.retire,
        Machine.adopt,
    )
}


def do(machine: Machine, name: str, *arguments: Any) -> None:
    """One step. What is wrong afterwards is raised with the list of steps that led there."""
    machine.trace.append((name, *arguments))
    _with_trace(machine, lambda: STEPS[name](machine, *arguments))


def finish(machine: Machine) -> None:
    """The end of the example: see :meth:`Machine.end`."""
    _with_trace(machine, machine.end)


def _with_trace(machine: Machine, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        error.add_note(f"The steps, for tests/machine/test_stories.py:\n{shown(machine.trace)}")
        raise


def shown(steps: Sequence[Step]) -> str:
    """The steps as Python text."""
    lines = "\n".join(f"    {step!r}," for step in steps)
    return f"[\n{lines}\n]"


def replay(machine: Machine, steps: Sequence[Step]) -> None:
    """Runs a list of steps, then the end."""
    for name, *arguments in steps:
        do(machine, name, *arguments)
    finish(machine)
