"""Numbers, instants and hashes as a person reads them."""

from __future__ import annotations

from datetime import datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def seconds_between(start: str, end: str) -> float:
    """Seconds from one canonical instant to another."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def duration(seconds: float) -> str:
    """``0.42 s``, ``12 s``, ``3 min 05 s``, ``2 h 07 min``, ``3 d 4 h``."""
    whole = int(seconds)
    if seconds < 10:
        return f"{max(seconds, 0.0):.2f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def instant(text: str) -> str:
    """A canonical instant to the second: ``2026-03-01 12:30:15 UTC``."""
    return f"{text[:10]} {text[11:19]} UTC"


def window(key: str) -> str:
    """A window's key; a bound at midnight is a day."""
    if "/" not in key:
        return "the whole table"
    start, end = (_bound(part) for part in key.split("/"))
    return f"{start} to {end} UTC"


def _bound(text: str) -> str:
    day, _, time = text.removesuffix("Z").partition("T")
    short = time.removesuffix(".000000")
    return day if short == "00:00:00" else f"{day} {short.removesuffix(':00')}"


def number(value: int | str) -> str:
    """Digits in groups of three."""
    return f"{int(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def size(count: int) -> str:
    """Bytes in binary units."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if not unit else f"{value:.1f} {_UNITS[unit]}"


def short(digest: str) -> str:
    """The head of a hash, or of another long name."""
    return digest if len(digest) <= 16 else f"{digest[:12]}\N{HORIZONTAL ELLIPSIS}"


def times(count: int) -> str:
    """``once``, ``3 times``."""
    return "once" if count == 1 else f"{count} times"


def rows(count: int) -> str:
    """``1 row``, ``2 rows``."""
    return f"{number(count)} row{'' if count == 1 else 's'}"
