"""What a Hugging Face ``config.json`` says as it stands, read without torch and transformers: in no time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import NOT_JSON, read_bytes
from gpubench.units import MIB, plain

MOST_CONFIG_BYTES = 4 * MIB
CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx")
"""Under which of them a model says for how many tokens it was made, the first that is there."""


def read_config(path: Path, name: str) -> dict[str, Any]:
    """Read what a config says.

    Raises:
        MisuseError: One line: there is no such file, or it describes no model, or one that cannot be.
    """
    if not path.exists():
        where = plain(str(path), 300)
        raise MisuseError(f"{name}: there is no {where}: give a model's config.json, or its folder")
    try:
        fields = msgspec.json.decode(read_bytes(path, MOST_CONFIG_BYTES, follow_links=True))
    except NOT_JSON as error:
        said = f"{type(error).__name__}: {error}"
        raise MisuseError(f"{name}: {plain(path.name)} is no JSON: {plain(said, 200)}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise MisuseError(f'{name}: {plain(path.name)} has no "model_type": it is no config of a model')
    heads, shared = (_number(_of_text(fields), f"num_{which}_heads") for which in ("attention", "key_value"))
    if heads is not None and shared is not None and heads % shared:
        raise MisuseError(f"{name}: {heads} attention heads cannot share {shared} key-value heads alike")
    return fields


def stated_context(fields: Mapping[str, Any]) -> int | None:
    """Return the most tokens that the model was made for, where the file itself says it."""
    said = (_number(_of_text(fields), key) for key in CONTEXT_NAMES)
    return next((value for value in said if value is not None), None)


def check_context(name: str, tokens: int, context: int | None) -> None:
    """Refuse sequences that the model was not made for.

    Raises:
        MisuseError: With both numbers.
    """
    if context is not None and tokens > context:
        raise MisuseError(
            f"{name}: sequences of {tokens:,} tokens: the context of the model is {context:,} tokens"
        )


def _of_text(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes what reads the tokens."""
    inner = fields.get("text_config")
    return inner if isinstance(inner, dict) else fields


def _number(fields: Mapping[str, Any], key: str) -> int | None:
    """A number above 0; None of anything else, of which transformers knows more."""
    value = fields.get(key)
    return value if type(value) is int and value > 0 else None
