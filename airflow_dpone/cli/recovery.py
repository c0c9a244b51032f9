"""``recovery adopt-target``, ``retire`` and ``writer``: the ways out that a person decides."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from airflow_dpone.cli.commands import Answer, Command, Group
from airflow_dpone.cli.db import add_host_id, add_journal, address_of

if TYPE_CHECKING:
    from airflow_dpone.call_checks import Places
    from airflow_dpone.delivery.lost_writers import LostWriter, WriterSearch
    from airflow_dpone.delivery.recovery import Recovery


def run_adopt(chosen: argparse.Namespace) -> Answer:
    """``recovery adopt-target``."""
    from airflow_dpone.delivery.recovery import adopt_target
    from airflow_dpone.wiring import open_recovery

    with open_recovery(chosen.target, _places(chosen)) as ports:
        done = adopt_target(ports, *chosen.target_table, dry_run=not chosen.yes)
    if not done.needed:
        print(f"{_name(done)} is governed by this journal already.", file=sys.stderr)
        return 0, done.to_json()
    print(
        f"{_name(done)}: governed by journal {done.journal_before} at fence {done.fence_before}.",
        file=sys.stderr,
    )
    would = "It would be governed by this journal, and its unfinished delivery be settled; the rows stay."
    return _told(done, f"Now it is governed by journal {done.journal_id}.", would)


def run_retire(chosen: argparse.Namespace) -> Answer:
    """``recovery retire``."""
    from airflow_dpone.delivery.recovery import retire
    from airflow_dpone.wiring import open_recovery

    with open_recovery(chosen.target, _places(chosen)) as ports:
        done = retire(ports, chosen.delivery, target_lost=chosen.target_lost, dry_run=not chosen.yes)
    would = (
        "The delivery's staging tables and sealed files would be removed, unless its publication turns out "
        f"to be effective, and {_name(done)} be released; the rows stay."
    )
    return _told(done, f"The delivery no longer owns {_name(done)}.", would)


def run_writer(chosen: argparse.Namespace) -> Answer:
    """``recovery writer``."""
    from airflow_dpone import airflow_config
    from airflow_dpone.delivery.lost_writers import end_writers, find_writers
    from airflow_dpone.wiring import open_writer_search

    if chosen.yes and not chosen.allow_kill:
        chosen.wrong_usage("--yes is about --allow-kill: without that the command only looks")
    host_id = chosen.host_id or airflow_config.host_id()
    with open_writer_search(chosen.target, address_of(chosen), host_id) as (journal, target):
        search = (end_writers if chosen.yes else find_writers)(journal, target, chosen.delivery)
    for writer in search.writers:
        print(_session(writer), file=sys.stderr)
    print(_advice(search, allow_kill=chosen.allow_kill), file=sys.stderr)
    return (0 if all(writer.ended for writer in search.writers) else 1), search.to_json()


def _session(writer: LostWriter) -> str:
    one = writer.session
    program, login, host = map(_on_one_line, (one.program_name, one.login_name, one.host_name))
    return (
        f"Staging table {writer.stage_name} (chunk {writer.ordinal}, {writer.attempt}):\n"
        f"  session {one.session_id}, login_time {one.login_time}, {one.status}, of {program} as "
        f"{login} on {host}\n"
        f"  context_info 0x{one.context_info.rstrip('0').ljust(64, '0')} (zeros may follow)\n"
        f"  {one.kill}"
    )


def _on_one_line(text: str) -> str:
    """What a client calls itself may hold anything, also lines that look like ours."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _advice(search: WriterSearch, *, allow_kill: bool) -> str:
    if search.login is None:
        return "Every writer of the delivery is known to have ended: no session was looked for."
    if not search.writers:
        return (
            f"None of {search.in_doubt} writer(s) in doubt has a session on the server: clear the task, "
            "which judges what they wrote."
        )
    if search.writers[0].ended:
        return "Ended. Clear the task: it waits until the server has undone what they wrote, and goes on."
    right = "has" if search.may_end else "does not have"
    repeat = "Repeat the command with --yes" if allow_kill else "Repeat the command with --allow-kill --yes"
    return (
        f"Nothing was ended. KILL needs ALTER ANY CONNECTION, which {search.login} {right}. Be sure that the "
        f"process that wrote is gone. {repeat} to end exactly these sessions, or let an administrator run "
        "the KILL while session_id, login_time, context_info and program are still the same."
    )


def _told(done: Recovery, success: str, would: str) -> Answer:
    delivery = done.delivery
    if delivery is not None:
        index = "" if delivery.map_index < 0 else f"[{delivery.map_index}]"
        print(
            f"Unfinished delivery: DAG {delivery.dag_id}, run {delivery.run_id}, "
            f"task {delivery.task_id}{index}, generation {delivery.generation}, {delivery.state_before}.",
            file=sys.stderr,
        )
    if not done.done:
        print(f"{would}\nNothing was changed. Repeat the command with --yes to do it.", file=sys.stderr)
        return 1, done.to_json()
    if delivery is not None and delivery.state_after == "PUBLISHED":
        print("Its publication is effective and proved: clear its task, which finishes it.", file=sys.stderr)
    else:
        print(success, file=sys.stderr)
    if delivery is not None and delivery.state_after == "RETIRED":
        print("It is RETIRED: clear its task to deliver the window again.", file=sys.stderr)
    for name in delivery.left if delivery else ():
        print(f"Left alone, since it carries another mark: {name}", file=sys.stderr)
    return 0, done.to_json()


def _name(done: Recovery) -> str:
    return ".".join(done.target)


def _places(chosen: argparse.Namespace) -> Places:
    from airflow_dpone import airflow_config
    from airflow_dpone.call_checks import Places

    spool = chosen.spool or airflow_config.spool_path()
    return Places(address_of(chosen), spool, chosen.host_id or airflow_config.host_id(), chosen.spool_conn_id)


def add_journal_and_target(command: argparse.ArgumentParser) -> None:
    """The arguments that name the journal, this machine and the target."""
    add_journal(command)
    command.add_argument(
        "--target",
        required=True,
        metavar="URI_OR_ID",
        help="the target: its URI, or the id of its Airflow connection",
    )
    add_host_id(command)


def _add_yes(command: argparse.ArgumentParser) -> None:
    command.add_argument("--yes", action="store_true", help="do it; without, only say what would be done")


def _add_delivery(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--delivery", required=True, metavar="KEY", help="its invocation_key (dpone_invocation, or an error)"
    )


def _add_places(command: argparse.ArgumentParser) -> None:
    add_journal_and_target(command)
    command.add_argument(
        "--spool",
        metavar="PATH_OR_URL",
        help="the deliveries' spool; default: spool_path of Airflow's section dpone",
    )
    command.add_argument("--spool-conn-id", metavar="ID", help="Airflow connection of a spool's URL")
    _add_yes(command)


def _add_adopt(command: argparse.ArgumentParser) -> None:
    _add_places(command)
    command.add_argument(
        "--target-table", required=True, nargs=2, metavar=("SCHEMA", "TABLE"), help="the target table"
    )


def _add_retire(command: argparse.ArgumentParser) -> None:
    _add_places(command)
    _add_delivery(command)
    command.add_argument(
        "--target-lost",
        action="store_true",
        help="the database is the right one although the table or its dpone schema is gone",
    )


def _add_writer(command: argparse.ArgumentParser) -> None:
    add_journal_and_target(command)
    _add_yes(command)
    _add_delivery(command)
    command.add_argument(
        "--allow-kill", action="store_true", help="with --yes: end each session that is still exactly the one"
    )
    command.set_defaults(wrong_usage=command.error)


GROUP = Group(
    "recovery",
    "settle what no retry can settle by itself",
    (
        Command(
            "adopt-target",
            "bind a target table to this journal",
            "Bind a target table to this journal: another one governed it, or this one was put back to an "
            "older copy. Stop every delivery of the table first. Its rows stay. Exit code: 0 done, or "
            "nothing to do; 1 not done (without --yes); 2 refused, wrong usage, or not reached.",
            _add_adopt,
            run_adopt,
        ),
        Command(
            "retire",
            "give an unfinished delivery up, also an incident",
            "Give an unfinished delivery up: what it owns is removed, its target is released. The rows of "
            "the target stay; the next call of its task delivers the window again. A publication that turns "
            "out to be effective is kept. Exit codes as of adopt-target.",
            _add_retire,
            run_retire,
        ),
        Command(
            "writer",
            "show the server's sessions of writers that should be gone, and end them",
            "Show each session of SQL Server that still holds a staging table of the delivery although its "
            "writer should be gone, with the KILL that ends it; changes nothing. With --allow-kill --yes end "
            "each that still has the same session_id, login_time, context_info and program, compared in the "
            "batch that ends it. Exit code: 0 no session is there, or all were ended; 1 a session is there; "
            "2 refused, wrong usage, or not reached.",
            _add_writer,
            run_writer,
        ),
    ),
)
