"""The date: one place reads the clock, and one rule says which other day may replace it.

The day is that of UTC, like every stamp in a file: it is the same on every machine. It is asked for where a
verb begins and handed down as an argument, never kept.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from gpubench.errors import MisuseError


def now() -> datetime:
    """Return the present moment, in UTC."""
    return datetime.now(UTC)


def today() -> date:
    """Return the present day, in UTC."""
    return now().date()


def day_of(as_of: date | None, option: str = "--as-of") -> date:
    """Return the requested day, by default today.

    Raises:
        MisuseError: If it lies in the future.
    """
    present = today()
    if as_of is not None and as_of > present:
        raise MisuseError(f"{option} {as_of} lies in the future: today is {present} (UTC)")
    return as_of or present
