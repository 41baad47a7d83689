"""The current date, and the rule for using another day instead.

The day is in UTC, like every timestamp in a file, so it is the same on every machine. It is read when a verb
starts and passed down as an argument, never stored.
"""

from datetime import UTC, date, datetime

from gpubench.errors import MisuseError


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def today() -> date:
    """Return the current day in UTC."""
    return now().date()


def day_of(as_of: date | None, option: str = "--as-of") -> date:
    """Return the requested day, by default today.

    Raises:
        MisuseError: If it is in the future.
    """
    present = today()
    if as_of is not None and as_of > present:
        raise MisuseError(f"{option} {as_of} is in the future: today is {present} (UTC)")
    return as_of or present
