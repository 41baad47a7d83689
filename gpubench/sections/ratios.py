"""Pairs of results and how many times as fast the one is as the other."""

from __future__ import annotations

from dataclasses import dataclass

from gpubench import compare
from gpubench.findings import INFORMATIVE
from gpubench.interval import Interval
from gpubench.sections.data import Result


def doubts(result: Result) -> tuple[str, ...]:
    """The findings on a case, or on its whole run, that cast doubt on its figure.

    It is shown, greyed, and claims nothing in a headline.
    """
    findings = (*result.run.findings, *result.measurement.findings)
    return tuple(sorted({f.kind.value for f in findings if f.kind not in INFORMATIVE}))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as fast ``of`` is as ``to``, with a 95 % interval (None is unknown)."""

    of: Result
    to: Result
    interval: Interval

    @property
    def value(self) -> float:
        """The ratio without its interval."""
        assert self.interval.value is not None
        return self.interval.value

    @property
    def doubts(self) -> tuple[str, ...]:
        """The findings that cast doubt on either of the two."""
        return tuple(sorted({*doubts(self.of), *doubts(self.to)}))

    @property
    def words(self) -> str:
        """The ratio with its interval."""
        return self.interval.text("×")


def ratio(of: Result, to: Result) -> Ratio:
    """Divide two throughputs; their errors are independent and add on the logarithmic scale."""
    return Ratio(of=of, to=to, interval=compare.ratio(of.measurement, to.measurement))
