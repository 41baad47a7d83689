"""Output of the command line: JSON, paths and text parts on stdout, messages on stderr.

A stream may be closed, lose its reader early, or have an encoding that lacks some characters.
"""

import codecs
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

# Longer documents are read only by programs, so they aren't indented; indenting 100,000 offers would take
# seconds.
_INDENTED_BYTES = 1_000_000


def answer(
    as_json: bool,
    document: Callable[[], Any],
    parts: Callable[[], Iterable[Part]],
    brief: Callable[[], Any] | None = None,
) -> None:
    """Print one JSON document, or text for a reader; only what is printed is built.

    Args:
        as_json: Whether to print JSON.
        document: Builds the full document.
        parts: Builds the text for a reader.
        brief: Builds the short document, if that was requested.

    Raises:
        MisuseError: If the short document was requested without JSON.
    """
    if brief is not None and not as_json:
        raise MisuseError("--brief shortens the output of --json: give both")
    if as_json:
        print_json(brief() if brief else document(), compact=brief is not None)
    else:
        show(*parts())


def print_json(document: Any, *, compact: bool = False) -> None:
    """Write one JSON document to stdout in UTF-8, with unknown values as null and money as numbers."""
    encoded = _encoder.encode(document)
    if not compact and len(encoded) <= _INDENTED_BYTES:
        encoded = msgspec.json.format(encoded, indent=2)
    _write_bytes(encoded)  # decoding 100,000 rows to text would keep three copies in memory


def say_meanings(gpus: Iterable[str]) -> None:
    """Print which card was assumed for each GPU name without a form factor."""
    from gpubench.specs import meaning_taken

    say(*filter(None, map(meaning_taken, gpus)))


def say(*messages: str) -> None:
    """Print messages on stderr, one per line, without control characters."""
    sys.stderr.writelines(f"{printable(message)}\n" for message in messages)


def print_path(path: str | Path) -> None:
    """Write a path to stdout: unchanged for a program, without control characters for a terminal."""
    if sys.stdout.isatty():
        print(printable(str(path)))
    else:
        _write_bytes(os.fsencode(path))  # a file name may be invalid in the stream's encoding


def _write_bytes(line: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.writelines((line, b"\n"))


# --- limited or broken streams -----------------------------------------------------------------------------


_SIMILAR = "similar"
# A question mark instead of the dash would make an interval unreadable: "24?43".
_ASCII = {
    "\N{EN DASH}": "-",
    "—": "-",
    "─": "-",
    "×": "x",
    "±": "+-",
    "µ": "u",
    "°": "deg ",
    "·": "|",
    "…": "...",
    "●": "*",
    "◆": "+",
    "○": "o",
}


def make_safe() -> None:
    """Make stdout and stderr print a similar character, or "?", for one that their encoding lacks.

    Python sets a stream that was closed before startup (`>&-`) to None; its output is discarded.
    """
    codecs.register_error(_SIMILAR, _similar)
    sys.stdout, sys.stderr = (
        stream or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays open as long as the process runs
        for stream in (sys.stdout, sys.stderr)
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_SIMILAR)


def _similar(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(each, "?") for each in lacking), error.end


def leave_quietly(*streams: TextIO) -> None:
    """Stop writing to broken streams (`| head`, a full disk); a flush at exit would change the exit code."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
