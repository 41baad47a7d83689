"""The largest batch that fits: bisection from a guess, each trial in a child that may run out of memory.

A batch found this way makes another case: it is never compared with the fixed batch without saying so.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from gpubench.children import ChildEndedError, ChildLateError
from gpubench.errors import GpuBenchError, MisuseError, NoDeviceError
from gpubench.measure import messages
from gpubench.measure.budget import budget_of
from gpubench.measure.child import Child, environment_of
from gpubench.measure.events import say_nothing
from gpubench.measure.plan import Plan
from gpubench.measure.privacy import scrub
from gpubench.measure.protocol import STARTED, next_report
from gpubench.models import (
    Case,
    DeviceProfile,
    Measurement,
    Status,
    WorkloadProfile,
)
from gpubench.profile.allowance import card_of_device
from gpubench.profile.memory import MOST_BATCH, largest_batch
from gpubench.units import Seconds, format_bytes

RESOLUTION = 1 / 16
"""The search ends when the largest batch that fits and the smallest that does not are this close."""
TRIAL_LIMIT_S = 600.0
GROWTH = 1.5

Fits = Callable[[int], bool]
OnTrial = Callable[[Case, bool], None]


def say_nothing_of_trials(case: Case, fits: bool) -> None:
    """Watch no trial."""
    del case, fits


def largest_that_fits(fits: Fits, guess: int, *, resolution: float = RESOLUTION) -> int:
    """Find the largest batch for which ``fits`` is true, to within ``resolution``; 0 if not even 1 fits.

    No batch beyond ``MOST_BATCH`` is tried.

    Args:
        fits: Whether a batch fits; true up to some batch and false from there on.
        guess: Where to begin.
        resolution: Relative distance at which to stop.
    """
    good, bad = 0, MOST_BATCH + 1
    batch = min(max(1, guess), MOST_BATCH)
    while bad - good > max(1, math.floor(good * resolution)):
        if fits(batch):
            good = batch
        else:
            bad = batch
        if bad > MOST_BATCH:
            batch = min(MOST_BATCH, math.ceil(good * GROWTH))
            if good == MOST_BATCH:
                return good
        elif good == 0:
            batch = bad // 2
            if batch == 0:
                return 0
        else:
            batch = (good + bad) // 2
    return good


def guess_batch(profile: WorkloadProfile, case: Case, device: DeviceProfile) -> int:
    """Guess from the memory model that ranking goes by too; 1 where the device's memory is not known."""
    card = card_of_device(device)
    return 1 if card is None else max(1, largest_batch(profile, case, card))


def with_largest_batches(
    made: Plan,
    profiles: Mapping[str, WorkloadProfile],
    device: DeviceProfile,
    on_trial: OnTrial = say_nothing_of_trials,
) -> Plan:
    """Give every case of a plan the largest batch that fits; one that fits at none is out of memory.

    A case whose trial failed for another reason is a failed row with that reason; the others go on.

    Args:
        made: The plan; the batches in it are replaced.
        profiles: By the reference of the workload.
        device: Where. Its memory decides.
        on_trial: Told each case tried, with its batch, and whether it fits.

    Raises:
        MisuseError: On a CPU, or where nothing fits.
        NoDeviceError: If the device cannot be used.
    """
    memory_bytes = device.memory_bytes
    if device.is_cpu or memory_bytes is None:
        raise MisuseError(
            "--batch-size max needs a GPU whose memory is known: a CPU would begin to swap; give a number"
        )
    cases, lost = [], list(made.unsupported)
    for planned in made.cases:
        guess = guess_batch(profiles[planned.reference], planned.case, device)
        try:
            with Trials(planned.reference, planned.case, device, on_trial, made.seed) as trials:
                batch = largest_that_fits(trials.fits, guess)
            case = msgspec.structs.replace(planned.case, batch_size=max(1, batch))
            status, reason = Status.OUT_OF_MEMORY, "not even a batch of 1 fits in memory"
        except TrialFailedError as error:
            batch, case, status, reason = 0, planned.case, Status.FAILED, str(error)
        if batch:
            cases.append(msgspec.structs.replace(planned, case=case, batch_choice="largest"))
        else:
            lost.append(Measurement(case=case, status=status, reason=reason, batch_choice="largest"))
    if not cases:
        reasons = "; ".join(dict.fromkeys(m.reason or "" for m in lost))
        raise MisuseError(f"no batch of this runs in {format_bytes(memory_bytes)}: {reasons}")
    return msgspec.structs.replace(made, cases=tuple(cases), unsupported=tuple(lost))


class TrialFailedError(GpuBenchError):
    """A trial of a batch failed, and not for want of memory: no other batch would fix it."""


class Trials:
    """Tries batches in a child process; after one that did not fit the next trial has a fresh process."""

    def __init__(
        self,
        reference: str,
        case: Case,
        device: DeviceProfile,
        on_trial: OnTrial = say_nothing_of_trials,
        seed: int = 0,
    ) -> None:
        self._reference = reference
        self._case = case
        self._device = device
        self._on_trial = on_trial
        self._seed = seed
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(at_once=kind is KeyboardInterrupt)

    def fits(self, batch: int) -> bool:
        """Whether a few steps of this batch run without running out of memory.

        Raises:
            TrialFailedError: If they failed for another reason.
        """
        case = msgspec.structs.replace(self._case, batch_size=batch)
        done = self._try(case)
        if done.spent:
            self._end()
        if done.status not in {Status.OK, Status.OUT_OF_MEMORY}:
            raise TrialFailedError(f"trying batch {batch}: {scrub(done.reason or str(done.status))}")
        self._on_trial(case, done.status is Status.OK)
        return done.status is Status.OK

    def _try(self, case: Case) -> messages.CaseDone:
        until_s = time.monotonic() + TRIAL_LIMIT_S
        try:
            child = self._open(until_s)
            child.send(messages.TryBatch(reference=self._reference, case=case))
            return next_report(child, (messages.CaseDone,), lambda _: until_s, say_nothing)
        except (ChildEndedError, ChildLateError) as error:
            self._end()
            how = str(error) or f"gave no answer within {TRIAL_LIMIT_S:.0f} s"
            raise TrialFailedError(f"trying batch {case.batch_size}, the process {how}") from error

    def _open(self, until_s: Seconds) -> Child:
        if self._child is not None:
            return self._child
        child = self._child = Child(environment_of(self._device, os.environ))
        budget = budget_of("quick", on_cpu=self._device.is_cpu)
        child.send(messages.Setup(device=self._device, budget=budget, seed=self._seed))
        started = next_report(child, STARTED, lambda _: until_s, say_nothing)
        if isinstance(started, messages.Refused):
            self._end()
            raise NoDeviceError(started.reason)
        return child

    def _end(self, *, at_once: bool = False) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end(at_once=at_once)
