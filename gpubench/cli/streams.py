"""Streams as they come: ones that cannot hold every character, and readers that leave early."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import sys
from typing import TextIO, TypeGuard

_PLAIN = {"—": "-", "–": "-", "…": "...", "°": "", "±": "+/-", "×": "x", "µ": "u", "→": "->"}
_HANDLER = "gpubench-plain"


def make_safe() -> None:
    """Write plain ASCII in place of what a stream's encoding lacks, rather than fail at the last line.

    A stream that was closed before the start (`>&-`) is None to Python: what goes there goes nowhere.
    """
    if sys.stdout is None:
        sys.stdout = open_sink()
    if sys.stderr is None:
        sys.stderr = open_sink()
    codecs.register_error(_HANDLER, _replace)
    for stream in (sys.stdout, sys.stderr):
        if lacks_unicode(stream):
            stream.reconfigure(errors=_HANDLER)


def lacks_unicode(stream: TextIO) -> TypeGuard[io.TextIOWrapper]:
    """Whether a stream is of an encoding that does not take every character."""
    if not isinstance(stream, io.TextIOWrapper):
        return False
    return not codecs.lookup(stream.encoding).name.startswith("utf")


def escaped(document: str) -> str:
    """A JSON document in ASCII alone; the same data."""
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found.group())[1:-1], document)


def open_sink() -> io.TextIOWrapper:
    """A stream that takes everything and keeps nothing."""
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - open for as long as the process


def leave_quietly(*streams: TextIO) -> None:
    """These take no more (`| head`, a full disk): write no more; no flush at exit changes the exit code."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c, "?") for c in missing), error.end
