"""Selects the measurements that a prediction may start from: GPU readings of the same workload and task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpubench.findings import is_unfounded
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
    Stack,
    Status,
    TaskKind,
)
from gpubench.models.run import newest_first
from gpubench.predict.question import Question, case_at
from gpubench.profile import load_profiles
from gpubench.readings import h200_readings
from gpubench.specs import find_spec
from gpubench.spread import ELSEWHERE

DISTURBED = frozenset(
    {
        FindingKind.SHARED_GPU,
        FindingKind.THROTTLED,
        FindingKind.IMPLAUSIBLE,
        FindingKind.LOSS_NOT_FINITE,
        FindingKind.MEMORY_SPILLED,
    }
)
"""A measurement with any of these findings is never used."""
UNKNOWN_NOISE = 0.05  # log half-width assumed for a measurement too short to have an interval
EAGER_LIMIT = 1.10
"""Ratio of eager to CUDA-graph step time above which an eager step counts as host-bound."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One measured case on one known GPU.

    Attributes:
        low, high: Ends of the throughput's interval; None if the measurement was too short to have one.
        noise: Log half-width of that interval, or an assumed one; includes the spread between cards and
            hosts.
        basis: ``measured`` for the user's own runs, ``reference`` for those that the package ships.
        origin: Who measured an added run, on what and when; None for a run of this results folder.
    """

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
    power_w: float | None = None
    micro: tuple[MicroResult, ...] = ()
    origin: str | None = None


def readings_of(question: Question, own: Sequence[Run], reference: Sequence[Run]) -> list[Reading]:
    """Return the usable GPU readings of the question's workload, task and recipe.

    The user's runs come before the shipped ones, the newest first in each; timings of a hand-written loop
    come last. A prediction never starts from a CPU, a MIG slice, a shared GPU, or a GPU missing from the
    specification table.
    """
    recipe = question.profile.recipe
    every = _read(question, own, "measured") + _read(question, reference, "reference")
    on_one_gpu = [r for r in every if r.case.gpu_count == 1 and not is_unfounded(r.findings)]
    of_recipe = (r for r in on_one_gpu if r.case.recipe == recipe.at(r.case.precision))
    return [*of_recipe, *_loop_readings(question)]


def peaks_of(question: Question, own: Sequence[Run]) -> list[Reading]:
    """Return every measurement of the question's workload and task with a peak memory, newest first.

    Any recipe and number of GPUs is accepted, host-bound or not, because a peak describes only its own case.
    Shipped runs are left out, because the memory model is checked against them.
    """
    return [reading for reading in _read(question, own, "measured") if reading.peak_memory_bytes]


def _read(question: Question, runs: Sequence[Run], basis: Literal["measured", "reference"]) -> list[Reading]:
    """Return every undisturbed measurement of the question's workload and task on a known GPU."""
    return [
        _reading(spec, m, run, basis)
        for run in newest_first(runs)
        if (spec := gpu_of(run.device)) is not None
        for m in run.measurements
        if _is_of(question, m)
    ]


def _is_of(question: Question, m: Measurement) -> bool:
    return (
        m.case.workload == question.profile.name
        and m.case.workload_version == question.profile.version
        and m.case.task == question.task
        and m.case.framework == question.framework
        and m.status is Status.OK
        and bool(m.samples_per_s)
        and not any(finding.kind in DISTURBED for finding in m.findings)
    )


def _reading(spec: GpuSpec, m: Measurement, run: Run, basis: Literal["measured", "reference"]) -> Reading:
    assert m.samples_per_s is not None  # ``_is_of`` requires it
    low, high = m.samples_per_s_low, m.samples_per_s_high
    spread = None if low is None or high is None else math.log(high / low) / 2
    # The answer must hold for any card of this model, in any host
    noise = math.hypot(UNKNOWN_NOISE if spread is None else spread, ELSEWHERE)
    has_interval = basis == "reference" or spread is not None
    host_bound = is_host_bound(m)
    return Reading(
        spec=spec,
        case=m.case,
        samples_per_s=m.samples_per_s,
        low=m.samples_per_s * math.exp(-noise) if has_interval else None,
        high=m.samples_per_s * math.exp(noise) if has_interval else None,
        noise=noise,
        host_bound=host_bound,
        host_cpu=run.environment.cpu if host_bound else None,
        peak_memory_bytes=m.peak_memory_bytes,
        run_id=run.run_id,
        basis=basis,
        findings=m.findings,
        at_largest_batch=m.at_largest_batch,
        peak_reserved_bytes=m.peak_reserved_bytes,
        device_bytes=m.device_bytes,
        first_token_s=m.first_token_s,
        power_w=m.mean_power_w,
        per_token_s=m.per_token_s,
        micro=run.micro,
        origin=run.origin,
    )


def _loop_readings(question: Question) -> Iterator[Reading]:
    """Yield the shipped timings of a hand-written loop: the GPU-bound steps of the question's workload."""
    shipped = h200_readings()
    spec = find_spec(shipped.gpu_key)
    if (
        spec is None
        or question.task is not TaskKind.TRAIN
        or question.framework is not Framework.TORCH
        or load_profiles().get(question.profile.name) != question.profile
    ):
        return
    timed = [
        (step, execution, step_s)
        for step in shipped.steps
        if step.workload == question.profile.name
        for execution, step_s in step.step_s.items()
        if step_s <= EAGER_LIMIT * step.step_s[Execution.GRAPH]
    ]
    for step, execution, step_s in timed:
        asked = msgspec.structs.replace(question, execution=execution, batch_size=step.batch_size)
        rate = step.batch_size / step_s
        yield Reading(
            spec=spec,
            case=case_at(asked, step.precision),
            samples_per_s=rate,
            low=rate * math.exp(-ELSEWHERE),
            high=rate * math.exp(ELSEWHERE),
            noise=ELSEWHERE,
            host_bound=False,
            host_cpu=None,
            peak_memory_bytes=None,
            run_id=f"hand-written loop on {shipped.card}, {shipped.date}",
            basis="reference",
        )


def gpu_of(device: DeviceProfile) -> GpuSpec | None:
    """Return the specification of a measured device; None for a CPU, a MIG slice, or an unknown GPU."""
    if device.is_cpu or device.mig_enabled or device.gpu_key is None:
        return None
    return find_spec(device.gpu_key)


def measured_here(readings: Iterable[Reading], case: Case, gpu_key: str) -> Reading | None:
    """Return the first reading of exactly this case on this GPU; the readings are in order of preference."""
    return next((r for r in readings if r.spec.key == gpu_key and r.case == case), None)


def choose_anchors(readings: Sequence[Reading], case: Case) -> list[Reading]:
    """Return, for each GPU, the reading closest to this case that a prediction may start from.

    The arithmetic must be the same; both kinds of AMP count as one. Execution, layout and batch may differ.
    If no reading has the same arithmetic, one that runs its matrix products on the same units is accepted:
    AMP for BF16 weights, and vice versa. A host-bound reading says nothing about a GPU and is never an
    anchor. A training step that fuses chains of operators starts only from readings that fuse them too, and
    any other step only from readings that do not. If the user has measured an anchor, the shipped readings
    are left out, because another harness adds its own error.
    """
    gpu_bound = [r for r in readings if not r.host_bound and fuses_chains(r.case) is fuses_chains(case)]
    usable = [r for r in gpu_bound if same_arithmetic(r.case, case)] or [
        r for r in gpu_bound if r.case.precision.facts.predicted_as == case.precision.facts.predicted_as
    ]
    usable = [r for r in usable if r.basis == "measured"] or usable

    def distance(reading: Reading) -> float:
        # Assumed weights; 1 is a batch that is larger or smaller by a factor of e
        measured = reading.case
        return (
            10.0 * (measured.execution != case.execution)
            + 5.0 * (measured.memory_format != case.memory_format)
            + 2.0 * (measured.precision != case.precision)
            + abs(math.log(measured.batch_size / case.batch_size))
        )

    return [
        min((r for r in usable if r.spec.key == key), key=distance)
        for key in dict.fromkeys(r.spec.key for r in usable)
    ]


def differences(reading: Reading, case: Case) -> dict[str, str]:
    """Describe, by field, how the reading's case differs from the predicted case."""
    measured = reading.case
    words = {
        "precision": f"measured at {measured.precision}",
        "weight_type": f"measured with {measured.weight_type} weights",
        "execution": f"measured {measured.execution.facts.words}",
        "memory_format": f"measured in {measured.memory_format} layout",
        "batch_size": f"measured at batch {measured.batch_size}",
    }
    return {name: text for name, text in words.items() if getattr(measured, name) != getattr(case, name)}


def is_host_bound(measurement: Measurement) -> bool:
    """Whether the measured speed depends on the CPU as much as on the GPU."""
    return any(f.kind is FindingKind.HOST_BOUND for f in measurement.findings)


def fuses_chains(case: Case) -> bool:
    """Whether the case is a training step that fuses chains of operators.

    False for inference: the savings from compiling are fitted there, so compiled and other steps may anchor
    each other.
    """
    return case.task is TaskKind.TRAIN and (case.execution is Execution.COMPILE or case.stack is Stack.FUSED)


def same_arithmetic(a: Case, b: Case) -> bool:
    """Whether two cases use the same arithmetic; both kinds of AMP count as one."""
    return a.precision == b.precision or (a.precision.is_amp and b.precision.is_amp)
