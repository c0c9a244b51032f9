"""One step of the demo in a process of its own, so that a kill is a real kill.

    python demo/child.py shop HOME create|new_day|correct|empty|poison|mend [DAY]
    python demo/child.py dag DAG_ID INSTANT [--window START END] [--kill-at CRASH_POINT]
    python demo/child.py compare HOME

The answer is one JSON line, the last on stdout.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from datetime import datetime
from typing import Any

import orders


def change_shop(args: Namespace) -> dict[str, Any]:
    """Runs one function of the shop."""
    getattr(orders, args.change)(args.home, *([args.day] if args.day is not None else []))
    return {"changed": args.change}


def run_dag(args: Namespace) -> dict[str, Any]:
    """One DAG run through Airflow itself; the same instant is the same run."""
    from airflow.dag_processing.dagbag import DagBag

    if args.kill_at:
        _die_at(args.kill_at)
    dag = DagBag(dag_folder=os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).get_dag(args.dag_id)
    instant = datetime.fromisoformat(args.instant)
    conf = {"window": dict(zip(("start", "end"), args.window, strict=True))} if args.window else None
    run = dag.test(logical_date=instant, run_after=instant, run_conf=conf)
    task = run.get_task_instance("deliver")
    return {"state": str(run.state), "run_id": run.run_id, "result": task.xcom_pull(task_ids="deliver")}


def _die_at(point: str) -> None:
    """SIGKILL at a crash point: what the kernel does to a worker that runs out of memory."""
    from functools import partial

    from airflow_dpone import wiring

    def observe(passed: str) -> None:
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    wiring.open_ports = partial(wiring.open_ports, observer=observe)


def compare(args: Namespace) -> dict[str, Any]:
    """Every row of both tables as text, as a multiset."""
    import comparison

    return comparison.compare(args.home)


def main() -> None:
    """Parses the command line and prints the answer."""
    parser = ArgumentParser()
    commands = parser.add_subparsers(required=True)
    shop = commands.add_parser("shop")
    shop.add_argument("home")
    shop.add_argument("change", choices=("create", "new_day", "correct", "empty", "poison", "mend"))
    shop.add_argument("day", nargs="?", type=int)
    shop.set_defaults(run=change_shop)
    dag = commands.add_parser("dag")
    dag.add_argument("dag_id")
    dag.add_argument("instant")
    dag.add_argument("--window", nargs=2)
    dag.add_argument("--kill-at")
    dag.set_defaults(run=run_dag)
    both = commands.add_parser("compare")
    both.add_argument("home")
    both.set_defaults(run=compare)
    args = parser.parse_args()
    print(json.dumps(args.run(args)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
