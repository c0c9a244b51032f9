"""An ``airflow standalone`` of the tests' own: started, asked over its REST API, broken and repaired.

Every process of it is found by its working directory, which nobody else has: standalone leaves its workers
behind when it is told to stop, and they rename themselves over their environment.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
DAGS = Path(__file__).resolve().parent / "dags"
PATIENCE_SEC = 300.0
"""How long a state is waited for: nothing here is slow on an idle machine, and few machines are idle."""
WINDOWS = int(os.environ.get("DPONE_TEST_WINDOWS", "50"))
"""How many windows are delivered at once: fifty; fewer for a quick look on a slow machine."""

Found = TypeVar("Found")


def until(what: str, look: Callable[[], Found | None], patience_sec: float = PATIENCE_SEC) -> Found:
    """Polls until the answer is neither None nor false."""
    give_up = time.monotonic() + patience_sec
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {patience_sec:g} s")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class ServerError(RuntimeError):
    """The API server failed."""


class Standalone:
    """One Airflow: SQLite, LocalExecutor, everybody an administrator.

    :param home: AIRFLOW_HOME, empty. :param dags: folder of the DAGs, those of this suite.
    """

    def __init__(self, home: Path, *, dags: Path = DAGS) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home.resolve()
        (self._port,) = free_ports(1)
        self._taken = socket.create_server(("127.0.0.1", 0))
        self.environment = {
            **{
                name: text
                for name, text in os.environ.items()
                if not name.startswith(("AIRFLOW", "_AIRFLOW"))
            },
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(ROOT),
            "AIRFLOW_HOME": str(home),
            **{
                f"AIRFLOW__{name.upper().replace('.', '__')}": str(value)
                for name, value in {
                    "core.dags_folder": dags,
                    "core.load_examples": False,
                    "core.executor": "LocalExecutor",
                    "core.parallelism": 4,
                    "core.dags_are_paused_at_creation": False,
                    "core.simple_auth_manager_all_admins": True,
                    "core.execution_api_server_url": f"http://127.0.0.1:{self._port}/execution/",
                    "database.sql_alchemy_conn": f"sqlite:///{home}/airflow.db",
                    "api.host": "127.0.0.1",
                    "api.port": self._port,
                    "api.base_url": f"http://127.0.0.1:{self._port}",
                    # Airflow's log servers would listen on every address of the machine. The port is taken,
                    # so they end at once; the logs are read from the folder.
                    "logging.worker_log_server_port": self._taken.getsockname()[1],
                    "logging.trigger_log_server_port": self._taken.getsockname()[1],
                    "workers.execution_api_timeout": 60,
                    "dag_processor.min_file_process_interval": 3600,
                    # A worker that says nothing for so long is given up: long enough for a busy machine.
                    "scheduler.task_instance_heartbeat_timeout": 30,
                    "scheduler.task_instance_heartbeat_timeout_detection_interval": 2,
                    # A dead scheduler's or triggerer's work is taken over soon.
                    "scheduler.job_heartbeat_sec": 2,
                    "scheduler.scheduler_health_check_threshold": 20,
                    "scheduler.orphaned_tasks_check_interval": 5,
                    "scheduler.scheduler_idle_sleep_time": 0.2,
                    "triggerer.job_heartbeat_sec": 2,
                    "triggerer.triggerer_health_check_threshold": 20,
                }.items()
            },
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self._patient = False

    # ---- start and stop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when every component is healthy and the DAGs are known."""
        # Its processes write at the same time, which SQLite bears only with a write-ahead log.
        with closing(sqlite3.connect(self.home / "airflow.db")) as metadata:
            metadata.execute("PRAGMA journal_mode = WAL")
        self._run("standalone")
        until("Airflow is healthy", self._is_healthy)
        self._patient = True
        until("the DAGs are known", lambda: self.get("/dags")["total_entries"])

    def stop(self) -> None:
        """Kills every process of it."""
        while found := list(self.processes()):
            for pid, _ in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            time.sleep(0.05)
        for process in self._started:
            process.wait()
        self._taken.close()

    def _run(self, *command: str) -> None:
        with (self.home / "output.log").open("ab") as output:
            started = subprocess.Popen(
                ["airflow", *command],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.home,
                start_new_session=True,
            )
        self._started.append(started)

    def _is_healthy(self) -> bool:
        if any(process.poll() is not None for process in self._started):
            raise RuntimeError(f"airflow ended:\n{(self.home / 'output.log').read_text()[-3000:]}")
        try:
            health = self.get("/monitor/health")
        except ServerError:
            return False
        return all(
            health[part]["status"] == "healthy" for part in ("scheduler", "triggerer", "dag_processor")
        )

    def processes(self) -> Iterator[tuple[int, str]]:
        """Pid and command line of each live process of this Airflow."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    is_zombie = "State:\tZ" in (entry / "status").read_text()
                    if os.readlink(entry / "cwd") == str(self.home) and not is_zombie:
                        yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    def kill_component(self, name: str) -> None:
        """SIGKILL for one of standalone's parts, and for nothing that it has started."""
        commands = [(pid, command) for pid, command in self.processes() if f"airflow {name}" in command]
        # The oldest one: the others are its children under the same name.
        os.kill(min(commands, key=lambda found: _started_at(found[0]))[0], signal.SIGKILL)

    def start_component(self, name: str) -> None:
        """What a service manager does after :meth:`kill_component`."""
        self._run(name)

    # ---- the REST API ----------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """GET of a path below /api/v2."""
        return self._ask("GET", path, None)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        """Asks until the server answers with something else than an error of its own.

        On SQLite a change over the API and a task that starts can wait for each other in the server, until
        one of them gives up; then nothing of it has happened.
        """
        tries = 0
        while True:
            try:
                return self._ask_once(method, path, body)
            except ServerError:
                tries += 1
                if tries == 10 or not self._patient:
                    raise
                time.sleep(0.5)

    def _ask_once(self, method: str, path: str, body: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/api/v2{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            text = f"{method} {path}: {error.code} {error.read().decode()[:500]}"
            if error.code == 409 and method == "POST":
                return None  # it is there: an answer before this one was lost
            raise (ServerError if error.code >= 500 else RuntimeError)(text) from None
        except OSError as error:
            raise ServerError(f"{method} {path}: {error}") from None

    def trigger(self, dag_id: str, run_id: str, **conf: Any) -> Run:
        """A new run of a DAG."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        self._ask("POST", f"/dags/{dag_id}/dagRuns", body)
        return Run(self, dag_id, run_id)

    def connect(self, conn_id: str, conn_type: str, host: Path, **extra: str) -> None:
        """A connection in Airflow's database."""
        body = {
            "connection_id": conn_id,
            "conn_type": conn_type,
            "host": str(host),
            "extra": json.dumps(extra),
        }
        self._ask("POST", "/connections", body)

    @contextmanager
    def paused(self, dag_id: str) -> Iterator[None]:
        """A paused DAG starts no task: everything that is asked for inside begins together."""
        self._ask("PATCH", f"/dags/{dag_id}", {"is_paused": True})
        yield
        self._ask("PATCH", f"/dags/{dag_id}", {"is_paused": False})


class Run:
    """One DAG run."""

    def __init__(self, airflow: Standalone, dag_id: str, run_id: str) -> None:
        self.airflow = airflow
        self.dag_id = dag_id
        self.run_id = run_id
        self._path = f"/dags/{dag_id}/dagRuns/{run_id}"

    @property
    def state(self) -> str:
        """The run's state."""
        return str(self.airflow.get(self._path)["state"])

    def wait(self, *states: str, patience_sec: float = PATIENCE_SEC) -> str:
        """Until the run is in one of these states."""
        wanted = states or ("success", "failed")
        what = f"{self.dag_id} {self.run_id} is {wanted}"
        return until(what, lambda: (s := self.state) in wanted and s, patience_sec)

    def tasks(self, task_id: str | None = None) -> list[dict[str, Any]]:
        """The run's task instances, as the API shows them, by map index."""
        found = self.airflow.get(f"{self._path}/taskInstances?limit=200")["task_instances"]
        wanted = [task for task in found if task_id in (None, task["task_id"])]
        return sorted(wanted, key=lambda task: (task["task_id"], task["map_index"]))

    def task(self, task_id: str = "deliver", map_index: int = -1) -> dict[str, Any]:
        """One of them."""
        (found,) = [task for task in self.tasks(task_id) if task["map_index"] == map_index]
        return found

    def wait_task(
        self, *states: str, task_id: str = "deliver", map_index: int = -1, least_try: int = 0
    ) -> Any:
        """Until a task is in one of these states, in that try or a later one."""

        def look() -> Any:
            task = self.task(task_id, map_index)
            return task if task["state"] in states and task["try_number"] >= least_try else None

        return until(f"{self.run_id} {task_id}[{map_index}] is {states}", look)

    def clear(self, *tasks: str | tuple[str, int], **changes: Any) -> None:
        """Clears tasks; without names every task of the run."""
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "only_failed": False,
            "reset_dag_runs": True,
            **(
                {"task_ids": [list(one) if isinstance(one, tuple) else one for one in tasks]} if tasks else {}
            ),
            **changes,
        }
        self.airflow._ask("POST", f"/dags/{self.dag_id}/clearTaskInstances", body)

    def delete(self) -> None:
        """The run and everything that Airflow knows of it."""
        self.airflow._ask("DELETE", self._path, None)

    def mark(self, state: str, task_id: str = "deliver") -> None:
        """What a person does in the UI: success or failed."""
        self.airflow._ask("PATCH", f"{self._path}/taskInstances/{task_id}", {"new_state": state})

    def xcom(self, task_id: str = "deliver", map_index: int = -1, key: str = "return_value") -> Any:
        """What a task has returned."""
        path = f"{self._path}/taskInstances/{task_id}/xcomEntries/{key}?map_index={map_index}"
        return self.airflow.get(path)["value"]

    def log(self, try_number: int, task_id: str = "deliver", map_index: int = -1) -> str:
        """The log of one try, as it lies on the disk."""
        folder = self.airflow.home / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}"
        parts = [f"task_id={task_id}", *([f"map_index={map_index}"] if map_index >= 0 else [])]
        return folder.joinpath(*parts, f"attempt={try_number}.log").read_text()


def _started_at(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19])
