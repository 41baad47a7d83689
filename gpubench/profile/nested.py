"""Tensors inside of whatever an author nests them in: lists, dicts, tuples, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def look_into(_: Any) -> Any:
    """Take no part as it is."""
    return None


def with_tensors(
    value: Any, change: Callable[[Tensor], Any], instead: Callable[[Any], Any] = look_into
) -> Any:
    """Return the value with every tensor in it changed, however deep.

    Lists, tuples, named tuples, mappings and dataclasses are made anew; all else passes through.

    Args:
        value: Anything.
        change: What becomes of a tensor.
        instead: What stands for a part that is not looked into; None looks into it.
    """
    if isinstance(value, Tensor):
        return change(value)
    if (whole := instead(value)) is not None:
        return whole
    if isinstance(value, list | tuple):
        parts = [with_tensors(part, change, instead) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        found = {name: with_tensors(part, change, instead) for name, part in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return found
        made: Any = copy.copy(value)
        for name, part in found.items():  # the outputs of transformers refuse an update
            made[name] = part
        return made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            changed = with_tensors(getattr(value, field.name), change, instead)
            object.__setattr__(made, field.name, changed)  # a frozen one has no other way
        return made
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """Return every tensor in a value, however deep, in its order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    with_tensors(value, note)
    return found
