"""Keeps a child's reports on one case, and compares its pace with the parent's clock.

A model runs in the process that reports, and may change that process's clock. The parent therefore notes when
each timed round arrives.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from gpubench.measure import checks, messages
from gpubench.models import Cause, Launch, Round, Status
from gpubench.units import Seconds

_Point: TypeAlias = tuple[Seconds, Seconds]
"""Time of all rounds so far by the child's clock, and arrival of the last one by the parent's clock."""


def _pace(earlier: _Point, later: _Point) -> float:
    # Return the seconds that passed on the parent's clock per second of the child's clock.
    child_s = later[0] - earlier[0]
    return (later[1] - earlier[1]) / child_s if child_s else math.inf


@dataclass
class Progress:
    """The child's reports on the current case so far."""

    launch: int = 0
    phase: str = "start"
    warmup: list[Round] = field(default_factory=list)
    timed: list[Round] = field(default_factory=list)
    timed_s: Seconds = 0.0
    arrived: list[_Point] = field(default_factory=list)
    began_s: Seconds = field(default_factory=time.monotonic)
    reports: int = 0

    def take(self, report: messages.RoundDone, *, was_awaited: bool = True) -> None:
        """Keep one round and, for a timed one, its arrival time minus the time spent outside rounds.

        A child with a slow clock also reports too little time outside rounds, so the slowness still shows.
        The arrival time is unknown if the parent was not waiting for the report.
        """
        (self.timed if report.timed else self.warmup).append(report.round)
        if report.timed:
            self.timed_s += report.round.wall_s
        if report.timed and was_awaited:
            self.arrived.append((self.timed_s, time.monotonic() - report.outside_s))

    def told_in_s(self) -> Seconds | None:
        """Return the time from the arrival of the first timed round to that of the last, without pauses [s].

        On a busy host, the parent may read a report late, but never early. The pace is therefore taken from
        the most prompt reports on both sides of the middle. None if the parent rarely waited for a report.
        """
        edges: list[_Point] = []  # the most prompt reports: the lower convex hull of all points
        for point in self.arrived:
            while len(edges) > 1 and _pace(*edges[-2:]) >= _pace(edges[-1], point):
                edges.pop()
            edges.append(point)
        span_s = sum(done.wall_s for done in self.timed[1:])
        if len(edges) < 2 or edges[-1][0] - edges[0][0] < span_s / 2:
            return None
        if span_s == 0:
            return edges[-1][1] - edges[0][1]
        middle = self.arrived[len(self.arrived) // 2]
        return span_s * next(_pace(before, after) for before, after in pairwise(edges) if after >= middle)

    def contradiction(self, report: messages.CaseDone) -> str | None:
        """Say how a result differs from the earlier reports; None if it agrees.

        The model runs in the reporting process, so its code could write to the pipe.
        """
        if report.status is not Status.OK:
            return None
        reported, given = (
            [(r.steps, r.wall_s) for r in rounds] for rounds in (self.timed, report.launch.rounds)
        )
        if reported != given:
            return f"sent a result of {len(given)} rounds that differ from the {len(reported)} it reported"
        wall_s, elapsed_s = sum(s for _, s in given), time.monotonic() - self.began_s
        if wall_s > elapsed_s + checks.CHILD_CLOCK_SLACK_S:
            return f"sent rounds of {wall_s:.3g} s within {elapsed_s:.3g} s"
        return None

    def done(self, status: Status, reason: str, cause: Cause | None = None) -> messages.CaseDone:
        """Return the result of a case after its child ended without one; the rounds so far are kept."""
        return messages.CaseDone(
            status=status,
            reason=reason,
            cause=cause,
            launch=Launch(
                index=self.launch,
                warmup=tuple(self.warmup),
                rounds=tuple(self.timed),
                told_in_s=self.told_in_s(),
                stopped=True,
            ),
        )
