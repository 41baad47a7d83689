"""How old a price is, when its date may be no more than a year or a month."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

from gpubench.models import Offer

STALE_AFTER_DAYS = 30
"""Older prices are marked: cloud prices moved by 15 % within six weeks of 2026, street prices by 38 %."""

NOT_CURRENT_AFTER_DAYS = 180
"""Older prices are never called current."""

_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?", re.ASCII)


@lru_cache(maxsize=4096)
def price_day(price_date: str) -> date:
    """Return the oldest day that a full or partial date can mean.

    >>> price_day("2026"), price_day("2026-08"), price_day("2026-08-14")
    (datetime.date(2026, 1, 1), datetime.date(2026, 8, 1), datetime.date(2026, 8, 14))

    Raises:
        ValueError: If it is not YYYY, YYYY-MM or YYYY-MM-DD, or no day of the calendar.
    """
    parts = _DATE.fullmatch(price_date)
    if parts is None:
        raise ValueError(f"price date {price_date[:40]!r} is not YYYY, YYYY-MM or YYYY-MM-DD")
    year, month, day = parts.groups()
    try:
        return date(int(year), int(month or 1), int(day or 1))
    except ValueError:
        raise ValueError(f"price date {price_date!r} is no day of the calendar") from None


def price_age_days(offer: Offer, today: date) -> int:
    """Return the age of an offer's price [days]; a partial date counts as its oldest day."""
    return age_days(offer.price_date, today)


def age_days(price_date: str, today: date) -> int:
    """Return how long ago a full or partial date was [days], 0 where it is still to come."""
    return max(0, (today - price_day(price_date)).days)


def show_price_date(price_date: str) -> str:
    """Return the date for people: a partial one says what it leaves open.

    >>> show_price_date("2026"), show_price_date("2026-08"), show_price_date("2026-08-14")
    ('2026, day unknown', '2026-08, day unknown', '2026-08-14')
    """
    return price_date if len(price_date) == len("2026-08-14") else f"{price_date}, day unknown"


def freshness(age_days: int) -> str:
    """Return ``current``, ``stale`` (over 30 days) or ``not current`` (over 180 days)."""
    if age_days > NOT_CURRENT_AFTER_DAYS:
        return "not current"
    return "stale" if age_days > STALE_AFTER_DAYS else "current"
