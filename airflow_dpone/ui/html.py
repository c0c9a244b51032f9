"""Pages as responses: everything escaped, nothing from elsewhere, no script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from airflow_dpone.errors import CATALOGUE, DponeError
from airflow_dpone.ui import words
from airflow_dpone.ui.delivery_page import DeliveryPage

_TEMPLATES = resources.files("airflow_dpone.ui") / "templates"
STYLE = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    # sandbox: even if something were not escaped, it would neither run nor count as Airflow's own page.
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'; sandbox allow-downloads",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("airflow_dpone.ui", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(short=words.short)
    made.globals.update(style=Markup(STYLE))
    return made


def _rendered(status: int, template: str, **values: Any) -> HTMLResponse:
    text = _environment().get_template(template).render(**values)
    return HTMLResponse(text, status_code=status, headers=HEADERS)


def delivery(page: DeliveryPage, *, base: str) -> HTMLResponse:
    """The page of a delivery. :param base: the path of the application, for links within it."""
    return _rendered(200, "delivery.html", page=page, base=base)


def message(status: int, title: str, text: str) -> HTMLResponse:
    """A page that says one thing."""
    return _rendered(status, "message.html", title=title, text=text, code="", action="")


def refusal(status: int, error: DponeError | None) -> HTMLResponse:
    """A journal that cannot be shown: the code and what it means, not the message."""
    row = None if error is None else CATALOGUE[error.code]
    return _rendered(
        status,
        "message.html",
        title="The journal cannot be shown",
        text="" if row is None else row.summary,
        code="" if row is None else row.code,
        action="" if row is None else row.next_action,
    )
