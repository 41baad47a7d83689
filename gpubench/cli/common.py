"""What every verb shares: the common options, JSON on stdout, talk on stderr."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gpubench.blocks.parts import Part, printable
from gpubench.blocks.terminal import show
from gpubench.cli.streams import escaped, lacks_unicode
from gpubench.options import help_text
from gpubench.shared_options import RESULTS

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
ResultsOption = Annotated[Path | None, typer.Option("--results", help=help_text(RESULTS))]

_encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


INDENTED_BYTES = 1_000_000
"""A longer document is for a program: indenting 100,000 offers takes seconds."""


def print_json(document: Any) -> None:
    """Write one JSON document to stdout; structs as objects, unknown as null, money as a number."""
    encoded = _encoder.encode(document)
    if len(encoded) <= INDENTED_BYTES:
        encoded = msgspec.json.format(encoded, indent=2)
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "utf-8":
        stream.flush()
        stream.buffer.writelines((encoded, b"\n"))  # as text, that of 100,000 rows would lie there thrice
        return
    text = encoded.decode() + "\n"
    stream.write(escaped(text) if lacks_unicode(stream) else text)


def answer(as_json: bool, document: Callable[[], Any], parts: Callable[[], Iterable[Part]]) -> None:
    """Print one JSON document, or what a person reads; only what is printed is made."""
    if as_json:
        print_json(document())
    else:
        show(*parts())


def say(message: str) -> None:
    """Talk to the person, on stderr; no escape in a name, such as that of a file, reaches the terminal."""
    print(printable(message), file=sys.stderr)


def print_path(path: str | Path) -> None:
    """Write the path of a file to stdout: to a program as it is, to a terminal without the escapes in it."""
    stream = sys.stdout
    if stream.isatty() or not isinstance(stream, io.TextIOWrapper):
        print(printable(str(path)))
        return
    stream.flush()
    stream.buffer.write(os.fsencode(path) + b"\n")  # a name need not be of the stream's encoding, nor of any


def money(value: Decimal | float | None) -> float | None:
    """A sum as a JSON number."""
    return None if value is None else float(value)
