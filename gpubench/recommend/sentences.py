"""The sentences of an answer, from the one table that holds their words: rooms state facts and say none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from gpubench.folders import data_text


@cache
def _texts() -> Mapping[str, str]:
    return {each["id"]: each["text"] for each in json.loads(data_text("sentences.json"))["sentences"]}


def said(name: str, **fields: str) -> str:
    """Return a sentence of the table with its fields filled in.

    >>> said("commit_unknown", term="1 year", provider="vast")
    'No price for 1 year is known of vast.'

    Raises:
        KeyError: If the table has no such sentence, or a field is missing.
    """
    return _texts()[name].format(**fields)
