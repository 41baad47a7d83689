"""What the parent tells whoever watches a run (a terminal, a notebook, a test); two are what a child says."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpubench.measure import messages
from gpubench.models import Case, Measurement, MicroResult
from gpubench.units import Seconds


class RunPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """Before the first case: how much there is to do; ``left`` of its launches where a run goes on.

    ``most_s`` is what the limits of all of it add up to [s]. ``trainings`` are to a stated quality, from
    several seeds each; how long they take is not known before.
    """

    cases: int
    launches: int
    most_s: Seconds
    budget: str
    device: str
    left: int | None = None
    trainings: int = 0


class CaseBegan(msgspec.Struct, frozen=True, kw_only=True):
    """One case of one launch begins: ``number`` of ``total``."""

    case: Case
    launch: int
    number: int
    total: int


PhaseBegan = messages.Phase
"""The case at hand is in a new phase: build, check, first steps, capture, warm-up, timed ..."""
RoundEnded = messages.RoundDone
"""One more round of the case at hand, and what the device drew and how warm it was at its end."""


class CaseEnded(msgspec.Struct, frozen=True, kw_only=True):
    """One case of one launch is over; the measurement holds all its launches so far.

    ``kept`` says where the traceback and the output of one that failed are, for the person alone.
    """

    measurement: Measurement
    launch: int
    kept: str | None = None


class MicroEnded(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-benchmark is over."""

    result: MicroResult


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """One line that the person should read."""

    text: str


Event = RunPlanned | CaseBegan | PhaseBegan | RoundEnded | CaseEnded | MicroEnded | Remark

OnEvent = Callable[[Event], None]
