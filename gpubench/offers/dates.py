"""The age of a price, and how far a list price may have drifted since its date.

A date may be only a year or a month. A list price is certain on its date; after that its logarithm follows a
random walk. The step size is fitted to pairs of an old and a new price of the same offer.
"""

import math
import re
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from typing import NamedTuple

from gpubench.models import Offer
from gpubench.units import count

STALE_AFTER_DAYS = 30
"""Age above which a price is stale: in six weeks of 2026, cloud prices moved by 15 % and street prices by
38 %."""

NOT_CURRENT_AFTER_DAYS = 180
"""Age above which a price is no longer called current."""

_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?", re.ASCII)


# --- age -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def price_day(price_date: str) -> date:
    """Return the earliest day that a full or partial date can mean.

    >>> price_day("2026"), price_day("2026-08"), price_day("2026-08-14")
    (datetime.date(2026, 1, 1), datetime.date(2026, 8, 1), datetime.date(2026, 8, 14))

    Raises:
        ValueError: If it is not YYYY, YYYY-MM or YYYY-MM-DD, or not a calendar day.
    """
    parts = _DATE.fullmatch(price_date)
    if parts is None:
        raise ValueError(f"price date {price_date[:40]!r} is not YYYY, YYYY-MM or YYYY-MM-DD")
    year, month, day = parts.groups()
    try:
        return date(int(year), int(month or 1), int(day or 1))
    except ValueError:
        raise ValueError(f"price date {price_date!r} is not a day of the calendar") from None


def age_days(price_date: str, today: date) -> int:
    """Return the age of a date [days], 0 for a future date; a partial date counts as its earliest day."""
    return max(0, (today - price_day(price_date)).days)


def has_day(price_date: str) -> bool:
    """Return whether a date includes the day, not only a month or a year."""
    return len(price_date) == len("2026-08-14")


def show_price_date(price_date: str) -> str:
    """Return the date as text; a partial date is marked as having no known day.

    >>> show_price_date("2026"), show_price_date("2026-08"), show_price_date("2026-08-14")
    ('2026, day unknown', '2026-08, day unknown', '2026-08-14')
    """
    return price_date if has_day(price_date) else f"{price_date}, day unknown"


def dated(price_date: str, age_days: int) -> str:
    """Return a date and its age, which is an upper limit for a partial date.

    >>> dated("2026-08-14", 98), dated("2026-08", 111)
    ('2026-08-14, 98 days old', '2026-08, up to 111 days old')
    """
    limit = "" if has_day(price_date) else "up to "
    return f"{price_date}, {limit}{count(age_days, 'day')} old"


def freshness(age_days: int) -> str:
    """Return ``current``, ``stale`` (over 30 days) or ``not current`` (over 180 days)."""
    if age_days > NOT_CURRENT_AFTER_DAYS:
        return "not current"
    return "stale" if age_days > STALE_AFTER_DAYS else "current"


# --- drift of list prices --------------------------------------------------------------------------------

USUAL_DRIFT = 0.27
"""Standard deviation of the logarithm of a list price after a year, from eight prices with two dates (2024
to 2026): five moved (AWS p5 and p4d down by 44 and 33 %, Lambda H100 and B200 up by 33 and 34 %, Verda H100
up by 15 % in six weeks), three did not (AWS p3 twice, Paperspace A4000)."""
USUAL_CHANGES = 8  # weight of the usual drift, as a number of observed changes

DAYS_PER_YEAR = 365.25
HOURS_PER_YEAR = 8760.0
"""Hours in a year of 365 days, as used for terms and lifetimes."""


class PriceChange(NamedTuple):
    """The change of one list price between two dates; ``log_ratio`` is 0 for no change."""

    log_ratio: float
    years: float


def change_of(old: Offer, new: Offer) -> PriceChange | None:
    """Return the change of a list price from one table to the next.

    None for a host's offer, if either price is 0 or a "starting at" price, if the kind of offer changed, or
    if the new price is not dated later.
    """
    if new.kind == "marketplace" or old.kind != new.kind or old.is_floor or new.is_floor:
        return None
    days = (price_day(new.price_date) - price_day(old.price_date)).days
    if days <= 0 or old.usd_per_gpu_hour <= 0 or new.usd_per_gpu_hour <= 0:
        return None
    return PriceChange(math.log(new.usd_per_gpu_hour / old.usd_per_gpu_hour), days / DAYS_PER_YEAR)


def drift_of(changes: Iterable[PriceChange]) -> float:
    """Return the standard deviation of the logarithm of a list price after a year.

    Each change counts as one observation, and the usual drift as eight (``USUAL_CHANGES``). A price that
    stayed the same for a year counts as much as one that moved.
    """
    known = list(changes)
    variance = sum(change.log_ratio**2 / change.years for change in known)
    return math.sqrt((variance + USUAL_CHANGES * USUAL_DRIFT**2) / (len(known) + USUAL_CHANGES))
