"""What a card costs to buy, new and used apart, dated and sourced; the one reader of data/card_prices.csv."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Literal, get_args

import msgspec

from gpubench.offers.dates import price_day
from gpubench.shipped import data_rows
from gpubench.specs import load_specs

Condition = Literal["new", "used", "unstated", "launch price"]


class CardPrice(msgspec.Struct, frozen=True, kw_only=True):
    """One dated price of one card [USD].

    ``unstated`` is a listing that does not say whether it is new; ``launch price`` is the maker's, of the day
    that a developer kit came out, where no shop's price is dated.
    """

    gpu_key: str
    condition: Condition
    price_usd: Decimal
    price_date: str
    source: str


@cache
def card_prices() -> tuple[CardPrice, ...]:
    """Return every price, in the order of the table.

    Raises:
        ValueError: If a row names an unknown GPU, condition or date, has no source, or stands there twice.
    """
    prices = tuple(map(_price, data_rows("card_prices.csv")))
    if len({(each.gpu_key, each.condition) for each in prices}) < len(prices):
        raise ValueError("card_prices.csv names a card twice in one condition")
    return prices


def _price(row: dict[str, str]) -> CardPrice:
    price_day(row["price_date"])
    price_usd, known = Decimal(row["price_usd"]), load_specs()
    if row["gpu_key"] not in known or row["condition"] not in get_args(Condition) or not row["source"]:
        raise ValueError(f"card_prices.csv: {row}")
    if not price_usd > 0:
        raise ValueError(f"card_prices.csv: price {price_usd} of {row['gpu_key']}")
    return msgspec.convert(row | {"price_usd": price_usd}, CardPrice)
