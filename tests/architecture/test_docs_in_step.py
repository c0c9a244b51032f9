"""Pages of docs/reference that are made from the code say what the code says."""

from __future__ import annotations

import pytest

from airflow_dpone.errors import CATALOGUE
from docs.generate import PAGES, REFERENCE


@pytest.mark.parametrize("name", PAGES)
def test_a_made_page_is_the_one_that_the_code_renders(name: str) -> None:
    page = REFERENCE / name
    assert page.is_file(), "run `make docs`"
    assert page.read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_the_errors_page_lists_every_code() -> None:
    """Looks at the page as a reader does, so that a fault of the renderer is seen too."""
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    assert [code for code in CATALOGUE if f"| `{code}` |" not in page] == []
