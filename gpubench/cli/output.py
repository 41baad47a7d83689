"""What the command line prints: JSON, paths and parts on stdout, talk on stderr, on streams as they come.

A stream may lack characters, be closed, or lose its reader early.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import msgspec

from gpubench.blocks.parts import Part, printable
from gpubench.blocks.terminal import show
from gpubench.errors import MisuseError

_encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)

INDENTED_BYTES = 1_000_000
"""A longer document is for a program: indenting 100,000 offers takes seconds."""


def answer(
    as_json: bool,
    document: Callable[[], Any],
    parts: Callable[[], Iterable[Part]],
    brief: Callable[[], Any] | None = None,
) -> None:
    """Print one JSON document, or what a person reads; only what is printed is made.

    Args:
        as_json: Whether a document was asked for.
        document: The whole one.
        parts: What a person reads.
        brief: The short one, where that was asked for.

    Raises:
        MisuseError: If only the short document was asked for, but not as JSON.
    """
    if brief is not None and not as_json:
        raise MisuseError("--brief shortens what --json prints: give both")
    if as_json:
        print_json(brief() if brief else document(), compact=brief is not None)
    else:
        show(*parts())


def print_json(document: Any, *, compact: bool = False) -> None:
    """Write one JSON document to stdout, in UTF-8: structs as objects, unknown as null, money as a number."""
    encoded = _encoder.encode(document)
    if not compact and len(encoded) <= INDENTED_BYTES:
        encoded = msgspec.json.format(encoded, indent=2)
    _write_bytes(encoded)  # as text, that of 100,000 rows would lie there thrice


def say_meanings(gpus: Iterable[str]) -> None:
    """Say of each name that leaves a form factor open for which card it was taken."""
    from gpubench.specs import meaning_taken

    say(*filter(None, map(meaning_taken, gpus)))


def say(*messages: str) -> None:
    """Talk to the person, on stderr, a line each; no escape in a name of a file reaches the terminal."""
    sys.stderr.writelines(f"{printable(message)}\n" for message in messages)


def print_path(path: str | Path) -> None:
    """Write the path of a file to stdout: to a program as it is, to a terminal without the escapes in it."""
    if sys.stdout.isatty():
        print(printable(str(path)))
    else:
        _write_bytes(os.fsencode(path))  # a name need not be of the stream's encoding, nor of any


def _write_bytes(line: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.writelines((line, b"\n"))


# --- streams as they come ----------------------------------------------------------------------------------


def make_safe() -> None:
    """Write a question mark instead of what a stream's encoding lacks, rather than fail at the last line.

    A stream that was closed before the start (`>&-`) is None to Python: what goes there goes nowhere.
    """
    sys.stdout, sys.stderr = (
        stream or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process
        for stream in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def leave_quietly(*streams: TextIO) -> None:
    """These take no more (`| head`, a full disk): write no more; no flush at exit changes the exit code."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
