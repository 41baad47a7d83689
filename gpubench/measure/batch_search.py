"""Finds the largest batch that fits by running each trial in a child process.

From the first guess, the batch grows as long as it fits; once one does not fit, bisection finds the limit.

``gpubench compare`` pairs only cases with equal batches, and marks a batch that is the largest that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from gpubench.errors import GpuBenchError, MisuseError
from gpubench.measure.budget import budget_of
from gpubench.measure.launcher import Launcher
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.measure.privacy import scrub
from gpubench.models import (
    Case,
    DeviceProfile,
    Measurement,
    Status,
    WorkloadProfile,
)
from gpubench.profile.allowance import card_of_device
from gpubench.profile.memory import MOST_BATCH, largest_batch
from gpubench.units import format_bytes

# The search ends when the smallest batch known not to fit exceeds the largest known to fit by at most 1, or
# by at most this fraction.
RESOLUTION = 1 / 16
# Until a trial does not fit, each batch is the previous one times this factor.
GROWTH = 1.5

OnTrial = Callable[[Case, bool], None]


def largest_that_fits(fits: Callable[[int], bool], guess: int, *, resolution: float = RESOLUTION) -> int:
    """Find the largest batch for which ``fits`` is true, to within ``resolution``; 0 if not even 1 fits.

    Batches above ``MOST_BATCH`` are not tried.

    Args:
        fits: Returns whether a batch fits: true up to some size, false above it.
        guess: The first batch to try.
        resolution: Relative gap at which the search ends.
    """
    good, bad = 0, MOST_BATCH + 1
    batch = min(max(1, guess), MOST_BATCH)
    while bad - good > max(1, math.floor(good * resolution)):
        if fits(batch):
            good = batch
        else:
            bad = batch
        # As long as ``bad`` is its first value, no trial has failed.
        batch = min(MOST_BATCH, math.ceil(good * GROWTH)) if bad > MOST_BATCH else (good + bad) // 2
    return good


def guess_batch(profile: WorkloadProfile, case: Case, device: DeviceProfile) -> int:
    """Estimate the largest batch with the ranking's memory model; 1 if the device's memory is unknown."""
    card = card_of_device(device)
    return 1 if card is None else max(1, largest_batch(profile, case, card))


def with_largest_batches(
    made: Plan,
    profiles: Mapping[str, WorkloadProfile],
    device: DeviceProfile,
    on_trial: OnTrial = lambda *_: None,
) -> Plan:
    """Replace the batch of every case in a plan with the largest that fits.

    If not even a batch of 1 fits, the case becomes an out-of-memory row. If a trial fails for another reason,
    the case becomes a failed row with that reason. The search continues with the other cases.

    Args:
        made: The plan.
        profiles: Profiles by workload reference.
        device: The device; its memory sets the limit.
        on_trial: Called after each trial with the case at that batch and whether it fits.

    Raises:
        MisuseError: On a CPU or a device with unknown memory, or if no case has a batch that runs.
        NoDeviceError: If the device cannot be used.
    """
    memory_bytes = device.memory_bytes
    if device.is_cpu or memory_bytes is None:
        raise MisuseError(
            "--batch-size max needs a GPU with a known memory size, because a CPU would start swapping: give "
            "a number"
        )
    cases, left_out = [], list(made.unsupported)
    usual = budget_of("default", on_cpu=False)  # --quick has shorter time limits
    launcher = Launcher(msgspec.structs.replace(made, budget=usual, time_limit_s=None), device)
    for planned in made.cases:
        guess = guess_batch(profiles[planned.reference], planned.case, device)
        try:
            batch = largest_that_fits(partial(fits, launcher, planned, on_trial), guess)
            case = msgspec.structs.replace(planned.case, batch_size=max(1, batch))
            status, reason = Status.OUT_OF_MEMORY, "not even a batch of 1 fits in memory"
        except TrialFailedError as error:
            batch, case, status, reason = 0, planned.case, Status.FAILED, str(error)
        finally:
            launcher.close()
        if batch:
            cases.append(msgspec.structs.replace(planned, case=case, batch_choice="largest"))
        else:
            left_out.append(Measurement(case=case, status=status, reason=reason, batch_choice="largest"))
    if not cases:
        reasons = "; ".join(dict.fromkeys(m.reason or "" for m in left_out))
        raise MisuseError(f"no case has a batch that runs in {format_bytes(memory_bytes)}: {reasons}")
    return msgspec.structs.replace(made, cases=tuple(cases), unsupported=tuple(left_out))


class TrialFailedError(GpuBenchError):
    """A trial failed for a reason other than memory, so no other batch size would help."""


def fits(launcher: Launcher, planned: PlannedCase, on_trial: OnTrial, batch: int) -> bool:
    """Run a few steps of a case at this batch in a child process, and return whether they fit in memory.

    Raises:
        TrialFailedError: If the steps failed for another reason.
    """
    case = msgspec.structs.replace(planned.case, batch_size=batch)
    done = launcher.try_batch(msgspec.structs.replace(planned, case=case))
    if done.status not in {Status.OK, Status.OUT_OF_MEMORY}:
        raise TrialFailedError(f"trying batch {batch}: {scrub(done.reason or str(done.status))}")
    on_trial(case, done.status is Status.OK)
    return done.status is Status.OK
