"""Looks up the sentences of the terminal and the HTML page, and fills in their fields."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import msgspec

from gpubench.folders import package_text


class _Sentence(msgspec.Struct, frozen=True):
    id: str
    kind: str
    text: str
    weight: int


class _Table(msgspec.Struct, frozen=True):
    kinds: tuple[str, ...]
    sentences: tuple[_Sentence, ...]


class Told(NamedTuple):
    """A sentence with its fields filled in.

    Attributes:
        kind: One of the table's ``kinds``, which are listed in the order of a screen.
        weight: Priority within a kind; a full screen drops the lowest weights.
    """

    kind: str
    text: str
    weight: int


@cache
def _sentences() -> dict[str, _Sentence]:
    table = msgspec.json.decode(package_text("data/sentences.json"), type=_Table)
    return {each.id: each for each in table.sentences}


def texts() -> dict[str, str]:
    """Return the text of every sentence by its id; fields are in braces, as in "{gpu} at {usd}"."""
    return {name: each.text for name, each in _sentences().items()}


def tell(sentence_id: str, **fields: str) -> Told:
    """Return a sentence of the table with its fields filled in.

    Raises:
        KeyError: If the sentence does not exist, or one of its fields is missing.
    """
    found = _sentences()[sentence_id]
    return Told(found.kind, found.text.format_map(fields), found.weight)


def say(sentence_id: str, **fields: str) -> str:
    """Return the text of ``tell``."""
    return tell(sentence_id, **fields).text
