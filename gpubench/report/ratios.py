"""Pairs of results and how many times as fast the one is as the other."""

from __future__ import annotations

from dataclasses import dataclass

from gpubench import compare
from gpubench.findings import FindingKind
from gpubench.interval import Interval
from gpubench.report.data import Result

DOUBTS = (
    FindingKind.NOISY,
    FindingKind.NOT_CONVERGED,
    FindingKind.NOT_STEADY,
    FindingKind.THROTTLED,
    FindingKind.SHARED_GPU,
)
"""Findings that keep a figure out of headlines: it is shown, greyed, and claims nothing."""


def doubts(result: Result) -> tuple[str, ...]:
    """The names of the findings that cast doubt on a figure."""
    return tuple(sorted({f.kind.value for f in result.measurement.findings if f.kind in DOUBTS}))


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
