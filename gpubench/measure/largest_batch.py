"""``--batch-size max``: the largest batch that fits, each trial in a process of its own.

A process that has run out of memory is not asked again: its allocator is fragmented, and a smaller batch
that fits a fresh process may not fit there.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpubench.measure import events
from gpubench.measure.launcher import Launcher, TrialFailedError
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.models import Measurement, Status
from gpubench.units import plain

PRECISION = 0.06
"""The search ends when the largest batch that fits is known to this share."""
LARGEST = 1 << 20
"""Beyond a million samples a step the batch is no longer what limits."""


def largest_batch(fits: Callable[[int], bool], start: int) -> int | None:
    """Return the largest batch that fits, to within 6 %; None if not even one sample does.

    Args:
        fits: Tries a batch.
        start: Where to begin, as the memory model guesses: doubled while it fits, halved while not.
    """
    good, bad = 0, LARGEST + 1
    batch = start
    while 1 <= batch <= LARGEST and (good == 0 or bad > LARGEST):
        if fits(batch):
            good, batch = batch, batch * 2
        else:
            bad, batch = batch, batch // 2 if good == 0 else batch
    while good and bad <= LARGEST and bad - good > max(1, PRECISION * good):
        middle = _round((good + bad) // 2, good)
        if middle in {good, bad}:
            break
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good or None


def _round(batch: int, above: int) -> int:
    """Prefer a multiple of eight, which tensor cores want."""
    rounded = batch // 8 * 8
    return rounded if rounded > above else batch


def with_largest_batches(made: Plan, launcher: Launcher) -> Plan:
    """Return the plan with each case at the largest batch that fits this device now."""
    cases: list[PlannedCase] = []
    without: list[Measurement] = []
    for planned in made.cases:
        label = f"{plain(planned.case.workload)} {planned.case.precision} {planned.case.execution}"
        try:
            found = largest_batch(_trial(launcher, planned), planned.case.batch_size)
        except TrialFailedError as error:
            without.append(Measurement(case=planned.case, status=Status.FAILED, reason=str(error)))
            continue
        if found is None:
            case = at(planned, 1).case
            reason = "not even a batch of 1 fits this device"
            without.append(Measurement(case=case, status=Status.OUT_OF_MEMORY, reason=reason))
        else:
            cases.append(at(planned, found))
        launcher.on_event(events.Remark(text=f"largest batch of {label}: {found or 'none'}"))
    return msgspec.structs.replace(
        made, cases=tuple(cases), unsupported=(*made.unsupported, *without), largest_batch=False
    )


def _trial(launcher: Launcher, planned: PlannedCase) -> Callable[[int], bool]:
    return lambda batch: launcher.fits(at(planned, batch))


def at(planned: PlannedCase, batch: int) -> PlannedCase:
    """Return the case at another batch, which makes it another case."""
    return msgspec.structs.replace(planned, case=msgspec.structs.replace(planned.case, batch_size=batch))
