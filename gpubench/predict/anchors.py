"""Which recorded measurements a prediction may start from: GPU rows of the same workload and task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Finding,
    FindingKind,
    Framework,
    GpuSpec,
    Measurement,
    MicroResult,
    Run,
    Status,
    TaskKind,
)
from gpubench.models.run import newest_first
from gpubench.predict.draws import UNKNOWN_NOISE
from gpubench.predict.question import Question, case_for
from gpubench.profile import load_profiles
from gpubench.readings import StepReading, h200_readings
from gpubench.specs import find_spec

DISTURBED = frozenset(
    {
        FindingKind.SHARED_GPU,
        FindingKind.THROTTLED,
        FindingKind.IMPLAUSIBLE,
        FindingKind.LOSS_NOT_FINITE,
    }
)


ELSEWHERE_NOISE = math.log(1.05)
"""Half-width of what was read on another card of the kind, in another host: repeats agree to 0.5 %, but an
H200 read 0.96 to 1.10 times what another H200 had read of the same steps."""
EAGER_LIMIT = 1.10
"""Times the same step in a CUDA graph: an eager step above it is the host's."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One measured case on one known GPU."""

    spec: GpuSpec
    case: Case
    samples_per_s: float
    low: float | None
    high: float | None
    noise: float
    host_bound: bool
    host_cpu: str | None
    peak_memory_bytes: int | None
    run_id: str
    basis: Literal["measured", "reference"]
    findings: tuple[Finding, ...] = ()
    at_largest_batch: bool = False
    peak_reserved_bytes: int | None = None
    device_bytes: int | None = None
    first_token_s: float | None = None
    per_token_s: float | None = None
    micro: tuple[MicroResult, ...] = ()


def readings_of(question: Question, own: Sequence[Run], reference: Sequence[Run]) -> list[Reading]:
    """Every usable GPU measurement of the question's workload, task and recipe, own ones first, newest first.

    The shipped readings of one card come last. A CPU never anchors a GPU; neither does a slice of a GPU, a
    shared one, or one that the specification table does not know.
    """
    return _read(own, reference, partial(_usable, question)) + _loops(question)


def peaks_of(question: Question, own: Sequence[Run]) -> list[Reading]:
    """Every measurement whose peak memory tells of the question's workload and task, the newest first.

    By any recipe and on any number of GPUs: those start no prediction of the speed of one, but each is the
    memory of its own case. Those of the shipped runs are none of them: the model is held against them
    (docs/memory.md, "Own readings").
    """
    return _read(own, (), partial(_with_peak, question))


def _read(
    own: Sequence[Run],
    reference: Sequence[Run],
    of_question: Callable[[Iterable[Measurement]], Iterable[Measurement]],
) -> list[Reading]:
    found: list[Reading] = []
    bases: tuple[Literal["measured", "reference"], ...] = ("measured", "reference")
    for basis, runs in zip(bases, (own, reference), strict=True):
        for run in newest_first(runs):
            spec = gpu_of(run.device)
            if spec is not None:
                found += [_reading(spec, m, run, basis) for m in of_question(run.measurements)]
    return found


def _loops(question: Question) -> list[Reading]:
    """Steps of the question's workload that a hand-written loop timed, where the GPU set the pace."""
    shipped = h200_readings()
    spec = find_spec(shipped.gpu_key)
    standard = load_profiles().get(question.profile.name) == question.profile
    of_torch = question.framework is Framework.TORCH
    if spec is None or question.task is not TaskKind.TRAIN or not (standard and of_torch):
        return []
    return [
        _loop(question, spec, step, execution, f"{shipped.card}, {shipped.date}")
        for step in shipped.steps
        if step.ours and step.workload == question.profile.name
        for execution, step_s in step.step_s.items()
        if step_s <= EAGER_LIMIT * step.step_s[Execution.GRAPH]
    ]


def _loop(question: Question, spec: GpuSpec, step: StepReading, execution: Execution, name: str) -> Reading:
    asked = msgspec.structs.replace(
        question, precision=step.precision, execution=execution, batch_size=step.batch_size
    )
    case = case_for(asked, spec)
    assert isinstance(case, Case)  # a precision that was read there is no gap
    rate = step.batch_size / step.step_s[execution]
    return Reading(
        spec=spec,
        case=case,
        samples_per_s=rate,
        low=rate * math.exp(-ELSEWHERE_NOISE),
        high=rate * math.exp(ELSEWHERE_NOISE),
        noise=ELSEWHERE_NOISE,
        host_bound=False,
        host_cpu=None,
        peak_memory_bytes=None,
        run_id=f"hand-written loop on {name}",
        basis="reference",
    )


def gpu_of(device: DeviceProfile) -> GpuSpec | None:
    """The row of a measured device in the specification table; None for a CPU, a slice, or a stranger."""
    if device.is_cpu or device.mig_enabled or device.gpu_key is None:
        return None
    return find_spec(device.gpu_key)


def measured_here(readings: Iterable[Reading], case: Case, gpu_key: str) -> Reading | None:
    """The first reading of exactly this case on this GPU; the order is the order of preference."""
    return next((r for r in readings if r.spec.key == gpu_key and r.case == case), None)


def choose_anchors(readings: Sequence[Reading], case: Case) -> list[Reading]:
    """The nearest reading of each GPU that may start a prediction of this case.

    The same arithmetic is needed (both kinds of AMP count as one); execution, layout and batch may
    differ, in that order of weight. A host-bound reading says nothing about a GPU and starts nothing. What
    the user measured stands alone: another's harness adds its own error to it.
    """
    best: dict[str, tuple[float, Reading]] = {}
    own = any(r.basis == "measured" and not r.host_bound and same_arithmetic(r.case, case) for r in readings)
    for reading in readings:
        if own and reading.basis != "measured":
            continue
        if reading.host_bound or not same_arithmetic(reading.case, case):
            continue
        distance = _distance(reading, case)
        if reading.spec.key not in best or distance < best[reading.spec.key][0]:
            best[reading.spec.key] = (distance, reading)
    return [reading for _, reading in best.values()]


def differences(reading: Reading, case: Case) -> list[str]:
    """In words, how the reading's case differs from the one that is predicted."""
    mine = reading.case
    found = []
    if mine.precision != case.precision:
        found.append(f"measured at {mine.precision}")
    if mine.execution != case.execution:
        found.append(f"measured {mine.execution.facts.words}")
    if mine.memory_format != case.memory_format:
        found.append(f"measured {mine.memory_format}")
    if mine.batch_size != case.batch_size:
        found.append(f"measured at batch {mine.batch_size}")
    return found


def _usable(question: Question, measurements: Iterable[Measurement]) -> Iterable[Measurement]:
    for m in _undisturbed(question, measurements):
        if m.case.gpu_count == 1 and m.case.recipe == question.profile.recipe.at(m.case.precision):
            yield m


def _with_peak(question: Question, measurements: Iterable[Measurement]) -> Iterable[Measurement]:
    return (m for m in _undisturbed(question, measurements) if m.peak_memory_bytes)


def _undisturbed(question: Question, measurements: Iterable[Measurement]) -> Iterable[Measurement]:
    for m in measurements:
        same = (
            m.case.workload == question.profile.name
            and m.case.workload_version == question.profile.version
            and m.case.task == question.task
            and m.case.framework == question.framework
        )
        disturbed = any(f.kind in DISTURBED for f in m.findings)
        if same and m.status is Status.OK and m.samples_per_s and not disturbed:
            yield m


def _reading(spec: GpuSpec, m: Measurement, run: Run, basis: Literal["measured", "reference"]) -> Reading:
    assert m.samples_per_s is not None  # of usable rows alone: _usable
    low, high, noise = m.samples_per_s_low, m.samples_per_s_high, UNKNOWN_NOISE
    if low is None or high is None:
        low = high = None
    else:
        noise = math.log(high / low) / 2
    if basis == "reference":
        noise = math.hypot(noise, ELSEWHERE_NOISE)
        low, high = (m.samples_per_s * math.exp(sign * noise) for sign in (-1, 1))
    return Reading(
        spec=spec,
        case=m.case,
        samples_per_s=m.samples_per_s,
        low=low,
        high=high,
        noise=noise,
        host_bound=is_host_bound(m),
        host_cpu=run.environment.cpu if is_host_bound(m) else None,
        peak_memory_bytes=m.peak_memory_bytes,
        run_id=run.run_id,
        basis=basis,
        findings=m.findings,
        at_largest_batch=m.at_largest_batch,
        peak_reserved_bytes=m.peak_reserved_bytes,
        device_bytes=m.device_bytes,
        first_token_s=m.first_token_s,
        per_token_s=m.per_token_s,
        micro=run.micro,
    )


def is_host_bound(measurement: Measurement) -> bool:
    """Whether the host set the pace: then the figure is of its processor as much as of the GPU."""
    return any(f.kind is FindingKind.HOST_BOUND for f in measurement.findings)


def same_arithmetic(a: Case, b: Case) -> bool:
    """Whether two cases compute alike; both kinds of AMP count as one."""
    return a.precision == b.precision or (a.precision.is_amp and b.precision.is_amp)


def _distance(reading: Reading, case: Case) -> float:
    mine = reading.case
    return (
        10.0 * (mine.execution != case.execution)
        + 5.0 * (mine.memory_format != case.memory_format)
        + 2.0 * (mine.precision != case.precision)
        + abs(math.log(mine.batch_size / case.batch_size))
    )
