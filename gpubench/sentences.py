"""The table of sentences: what screens and page say, each whole, with named fields."""

from __future__ import annotations

from functools import cache

import msgspec

from gpubench.folders import package_text


class _Sentence(msgspec.Struct, frozen=True):
    id: str
    screen: str
    kind: str
    when: tuple[str, ...]
    text: str
    weight: int


class _Table(msgspec.Struct, frozen=True):
    kinds: tuple[str, ...]
    screens: tuple[str, ...]
    facts: tuple[str, ...]
    sentences: tuple[_Sentence, ...]


@cache
def texts() -> dict[str, str]:
    """Return the text of every sentence by its id; a field stands in braces, as in "{gpu} at {usd}"."""
    table = msgspec.json.decode(package_text("data/sentences.json"), type=_Table)
    return {each.id: each.text for each in table.sentences}


def say(sentence: str, **fields: str) -> str:
    """Return a sentence of the table with its fields filled in.

    Raises:
        KeyError: If there is no such sentence, or a field of it is missing.
    """
    return texts()[sentence].format_map(fields)
