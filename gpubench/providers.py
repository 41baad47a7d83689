"""Providers: their common names, and the web pages with their prices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

import msgspec

from gpubench.folders import data_table
from gpubench.names import letters

# A URL without user name and password, and without the period that ends the sentence around it.
_PAGE = re.compile(
    r"https?://[a-z\d](?:[a-z\d.-]*[a-z\d])?(?::\d+)?(?:/(?:[\w./?=&%#~+:,-]*[\w/=])?)?",
    re.ASCII | re.IGNORECASE,
)


class Provider(msgspec.Struct, frozen=True):
    """A row of data/providers.csv: other names, in lowercase without punctuation, and the price page."""

    provider: str
    also_called: tuple[str, ...]
    url: str | None


@cache
def _known() -> tuple[Provider, ...]:
    return tuple(data_table("providers.csv", Provider))


def find_provider(name: str, providers: Iterable[str]) -> str | None:
    """Return the lowercase name of the provider that a user means; None if it is not one of ``providers``.

    Case and punctuation are ignored, and some providers have a second name: ``Vast.ai``, ``Google Cloud``.
    """
    word = letters(name)
    by_letters = {letters(provider): provider.casefold() for provider in providers}
    meant = (letters(each.provider) for each in _known() if word in each.also_called)
    return by_letters.get(word) or by_letters.get(next(meant, ""))


@lru_cache(maxsize=10_000)
def price_page(provider: str, source: str) -> str | None:
    """Return the URL in the source of a price; without one, the provider's price page; None without either.

    >>> price_page("aws", "a list, https://shop.example/gpus."), price_page("aws", "javascript:alert(1)")
    ('https://shop.example/gpus', 'https://aws.amazon.com/ec2/pricing/on-demand/')
    >>> price_page("strange", "a list") is None
    True
    """
    found = _PAGE.search(source)
    return found[0] if found else next((each.url for each in _known() if each.provider == provider), None)
