"""The pages of the plugin: read-only, behind Airflow's own login, one journal.

Every route reads; none changes anything. The journal is the one of ``[dpone] journal_conn_id`` and no request
can name another. What a page shows belongs to a DAG, and the journal says to which: an id of a DAG that the
user may not see is answered as one that does not exist.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse

from airflow_dpone.airflow_config import host_id, journal_conn_id
from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.history import History
from airflow_dpone.errors import DponeError
from airflow_dpone.hooks.journal import journal_address
from airflow_dpone.journal.store import SqlJournal, open_journal
from airflow_dpone.ui import html
from airflow_dpone.ui.authorization import GetUserDep, get_user, may_see, refuse_unless_seen
from airflow_dpone.ui.delivery_page import evidence_sha256, page_of

log = logging.getLogger(__name__)

NOTHING_HERE = "There is no such delivery in the journal, or you may not see its DAG."
NOTHING_YET = (
    "The journal knows no delivery of this task. A task that failed was refused before it reserved its "
    "target: its log and its XCom dpone_failure say why. Else it has not come that far yet, or it delivers "
    "nothing, or it uses another journal than the one of [dpone] journal_conn_id."
)

app = FastAPI(
    title="dpone", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user)]
)

Key = Annotated[str, Query(min_length=1, max_length=250)]
_KEY = re.compile("[0-9a-f]{64}")
_INDEX = re.compile("[0-9]{1,9}")


@app.get("/delivery")
def newest_delivery(
    request: Request,
    user: GetUserDep,
    dag_id: Key,
    run_id: Key,
    task_id: Key,
    map_index: Annotated[str, Query(max_length=16)] = "-1",
) -> Response:
    """The newest generation of a task, or of the group that the task belongs to."""
    refuse_unless_seen(dag_id, request, user)
    # Airflow leaves a placeholder as it is where it has no value.
    index = int(map_index) if _INDEX.fullmatch(map_index) else -1
    with _journal() as journal:
        found = _newest(journal, dag_id, run_id, task_id, index)
        if found is None:
            return html.message(404, "No delivery yet", NOTHING_YET)
        return _page(journal, found, request, user)


@app.get("/delivery/{invocation_key}")
def one_delivery(invocation_key: str, request: Request, user: GetUserDep) -> Response:
    """One generation."""
    with _journal() as journal:
        return _page(journal, _invocation(journal, invocation_key), request, user)


@app.get("/delivery/{invocation_key}/evidence.json")
def evidence(invocation_key: str, request: Request, user: GetUserDep) -> Response:
    """The evidence document: the very bytes whose hash the page shows."""
    with _journal() as journal:
        found = _seen(_invocation(journal, invocation_key), request, user)
        view = None if found is None else journal.view(found.invocation_key)
        sha256 = (
            "" if view is None else evidence_sha256(History.of(view.invocation.invocation_key, view.events))
        )
        body = journal.evidence(sha256) if sha256 else None
    if body is None:
        return html.message(404, "No evidence", NOTHING_HERE)
    named = f'attachment; filename="evidence-{sha256[:16]}.json"'
    headers = {**html.HEADERS, "Content-Disposition": named}
    return Response(body, media_type="application/json", headers=headers)


def _newest(
    journal: SqlJournal, dag_id: str, run_id: str, task_id: str, map_index: int
) -> jr.Invocation | None:
    """Of the task itself, else of each group around it, the innermost first."""
    parts = task_id.split(".")
    for length in range(len(parts), 0, -1):
        key = identity.delivery_key(dag_id, run_id, ".".join(parts[:length]), map_index)
        found = journal.newest_invocation(key)
        if found is not None:
            return found
    return None


def _invocation(journal: SqlJournal, key: str) -> jr.Invocation | None:
    """None also for what is no key at all: a database need not even be able to look for it."""
    return journal.invocation(key) if _KEY.fullmatch(key) else None


def _seen(found: jr.Invocation | None, request: Request, user: GetUserDep) -> jr.Invocation | None:
    """By the DAG that the journal names, whatever the address said."""
    return found if found is not None and may_see(found.dag_id, request, user) else None


def _page(journal: SqlJournal, found: jr.Invocation | None, request: Request, user: GetUserDep) -> Response:
    seen = _seen(found, request, user)
    view = None if seen is None else journal.view(seen.invocation_key)
    if view is None:
        return html.message(404, "No such delivery", NOTHING_HERE)
    return html.delivery(page_of(view, journal_conn_id()), base=str(request.scope.get("root_path", "")))


@contextmanager
def _journal() -> Iterator[SqlJournal]:
    """The configured journal. What it refuses is shown by code, without its message, which names a place."""
    try:
        with open_journal(journal_address(journal_conn_id()), host=host_id()) as journal:
            yield journal
    except DponeError as error:
        log.warning("the journal cannot be shown: %s", error)
        raise _Refused(error) from None


class _Refused(Exception):
    def __init__(self, error: DponeError) -> None:
        self.error = error
        super().__init__(error.code)


@app.exception_handler(_Refused)
def _refused(request: Request, refused: Exception) -> HTMLResponse:
    error = refused.error if isinstance(refused, _Refused) else None
    return html.refusal(503, error)


@app.exception_handler(HTTPException)
def _forbidden(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {401: "Sign in to Airflow first.", 403: "You may not see the task instances of this DAG."}
    return html.message(status, "Not for you" if status in words else "Refused", words.get(status, ""))
