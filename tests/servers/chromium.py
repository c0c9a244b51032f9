"""A real browser without a window, driven through its own driver.

    python -m tests.servers.chromium      # exit code 0, or it says what is missing here

Debian's packages ``chromium`` and ``chromium-driver``, or any Chrome with its driver, found by PATH.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
PAGE_SEC = 120.0


def missing() -> str | None:
    """What this machine lacks, or None."""
    if _browser() is None:
        return f"no browser: none of {', '.join(BROWSERS)} is on the PATH"
    if shutil.which(DRIVER) is None:
        return f"no {DRIVER} on the PATH (Debian: chromium-driver)"
    return None


def _browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browsing(profile: Path, downloads: Path) -> Iterator[Chrome]:
    """A new browser with a profile of its own; what it downloads lands in a directory."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = _browser() or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",  # its own one, which root may not use; the pages come from this machine
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
        "--window-size=1280,1100",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.add_experimental_option(
        "prefs", {"download.default_directory": str(downloads), "download.prompt_for_download": False}
    )
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options=options, service=Service(shutil.which(DRIVER)))
    browser.set_page_load_timeout(PAGE_SEC)
    try:
        yield browser
    finally:
        browser.quit()


if __name__ == "__main__":
    if (lack := missing()) is not None:
        sys.exit(lack)
