"""Groups items by a key: all items of each key, or only the first."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key; keys and values stay in order.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def first_of_each(items: Iterable[V], kind: Callable[[V], Hashable]) -> list[V]:
    """Return the first item of each kind, in order."""
    best: dict[Hashable, V] = {}
    for item in items:
        best.setdefault(kind(item), item)
    return list(best.values())
