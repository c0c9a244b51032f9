"""Time and randomness, as a port: tests own them."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from typing import Protocol

from airflow_dpone.delivery.window import instant_text


class Clock(Protocol):
    """Time and randomness, so that tests own them."""

    def utc_text(self) -> str:
        """Now, canonical text."""

    def monotonic(self) -> float:
        """Seconds for durations."""

    def sleep(self, seconds: float) -> None:
        """Waits."""

    def nonce(self) -> str:
        """256 random bits as 64 hex digits."""


class SystemClock:
    """The real clock and the system's random source."""

    def utc_text(self) -> str:
        """Now, canonical text."""
        return instant_text(datetime.now(UTC))

    def monotonic(self) -> float:
        """Seconds for durations."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    def nonce(self) -> str:
        """256 random bits as 64 hex digits."""
        return secrets.token_hex(32)
