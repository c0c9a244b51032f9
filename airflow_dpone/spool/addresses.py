"""How things in a spool are called: files of a chunk, and the URL of a spool in an object store."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from airflow_dpone.delivery.records import SealedChunk
from airflow_dpone.errors import Problem, SpoolError
from airflow_dpone.wire.chunk_format import FORMAT_FILE_SUFFIX, SUFFIXES

_KEY = re.compile(r"[0-9A-Za-z_-]{1,128}")
_PATTERNS = frozenset("*?[]{}\\")
FILE_SCHEMES = frozenset({"file", "local"})


def checked(name: str) -> str:
    """A name that is one path component and no other; keys are hex digits."""
    if _KEY.fullmatch(name) is None:
        raise SpoolError("dpone.spool.unusable", "An invocation key or hash is no plain name.")
    return name


def sealed_name(chunk: SealedChunk) -> str:
    """``<ordinal>.<SHA-256>.arrow`` or ``.native``."""
    return f"{chunk.ordinal:06d}.{checked(chunk.file_sha256)}.{SUFFIXES[chunk.chunk_format]}"


def sealed_files(chunk: SealedChunk) -> list[tuple[str, int | None, str]]:
    """(name, bytes if noted, SHA-256) of each file of a chunk; the chunk itself is the last one.

    The format file's name carries the SHA-256 of the *chunk*: it is found by the file that it describes.
    """
    name = sealed_name(chunk)
    found: list[tuple[str, int | None, str]] = [(name, chunk.file_bytes, chunk.file_sha256)]
    if chunk.format_file_sha256 is not None:
        found.insert(0, (f"{name.rpartition('.')[0]}.{FORMAT_FILE_SUFFIX}", None, chunk.format_file_sha256))
    return found


def is_url(spool: object) -> bool:
    """Whether a spool is the URL of an object store; else it is a local path."""
    return "://" in str(spool)


def _may_hold_a_secret(url: str) -> bool:
    """A slash in a password ends what ``urlsplit`` takes for the user part: the whole text is looked at."""
    place = unquote(url.partition("://")[2])
    port = place.partition("/")[0].partition(":")[2]
    return "@" in place or bool(port and not port.isdigit())


def url_problem(url: str) -> Problem | None:
    """What is wrong with a spool's URL; never repeats it, since it may hold a secret."""
    parts = urlsplit(url)
    if _may_hold_a_secret(url):
        text = (
            "the URL may name a user or hold a password; credentials and connection ids belong into "
            "spool_conn_id, and the place is written as scheme://bucket-or-container/prefix"
        )
        return Problem("dpone.config.secret_in_uri", "spool", text)
    if url.partition("://")[0] != parts.scheme:
        text = "write the scheme in lower case"
    elif parts.query or parts.fragment:
        text = "parameters are not supported; put them into the connection that spool_conn_id names"
    elif _PATTERNS & set(url):
        text = "a pattern (* ? [ ] { }) cannot stand for one place"
    elif ".." in parts.path.split("/"):
        text = "the path must not go upwards"
    elif parts.scheme in FILE_SCHEMES and (parts.netloc or parts.path[:2] in ("", "/", "//")):
        text = f"use {parts.scheme}:///absolute/directory"
    elif not parts.scheme or (parts.scheme not in FILE_SCHEMES and not parts.netloc):
        text = "use scheme://bucket/prefix, such as s3://bucket/dpone"
    else:
        return None
    return Problem("dpone.config.uri", "spool", text)
