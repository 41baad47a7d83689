"""The date: one place asks the clock for it, and one rule says which other day may stand in its place.

The day is that of UTC, like every stamp in a file: it is the same on every machine. It is asked for where a
verb begins and handed down as an argument, never kept.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

from gpubench.errors import MisuseError

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def now() -> datetime:
    """Return the present moment, in UTC."""
    return datetime.now(UTC)


def today() -> date:
    """Return the present day, in UTC."""
    return now().date()


def day_of(as_of: date | str | None, option: str = "--as-of") -> date:
    """Return the day that was asked for, today where none was.

    Args:
        as_of: The day, or how it is written.
        option: By which it was asked for, as errors name it.

    Raises:
        MisuseError: If it is no day, is not written YYYY-MM-DD, or lies in the future.
    """
    present = today()
    if as_of is None:
        return present
    text = as_of if isinstance(as_of, str) else as_of.isoformat()
    try:
        day = date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        day = None
    if day is None:
        raise MisuseError(f"{option} {text[:40]!r} is not a day: write it as YYYY-MM-DD, such as {present}")
    if day > present:
        raise MisuseError(f"{option} {day} lies in the future: today is {present} (UTC)")
    return day
