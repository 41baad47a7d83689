"""Devices that only the user's own runs know: this CPU, a Mac, a card that is in no table."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpubench.models import Case, Estimate, Measurement, Run, Status
from gpubench.precisions import AMP
from gpubench.predict.anchors import is_host_bound
from gpubench.predict.question import Question
from gpubench.units import count

CPU_KEY = "cpu"


def device_key(run: Run) -> str | None:
    """Return the key of a run's device: ``cpu`` for processors."""
    return CPU_KEY if run.device.backend == CPU_KEY else run.device.gpu_key


def measured(question: Question, runs: Iterable[Run], known: Collection[str]) -> dict[str, Estimate]:
    """Return what the user measured on devices that nothing else answers for, by key.

    The case is the question's where it was measured; else what comes nearest: another execution (a CPU has
    no graphs), then another batch. It stands in the estimate, so a reader sees the difference.

    Args:
        question: Workload, precision, execution, task and batch.
        runs: This user's runs, oldest first; of equally near cases the newest counts.
        known: Keys that are answered already.
    """
    best: dict[str, tuple[int, Measurement, Run]] = {}
    for run in runs:
        key = device_key(run)
        if key is None or key in known:
            continue
        for measurement in run.measurements:
            distance = _distance(question, measurement.case)
            usable = measurement.status is Status.OK and measurement.samples_per_s is not None
            if usable and distance is not None and (key not in best or distance <= best[key][0]):
                best[key] = (distance, measurement, run)
    return {key: _estimate(key, measurement, run) for key, (_, measurement, run) in best.items()}


def _distance(question: Question, case: Case) -> int | None:
    """Return how far a case is from the question; None where it answers another one."""
    same_work = (case.workload, case.workload_version, case.task, case.gpu_count, case.framework) == (
        question.profile.name,
        question.profile.version,
        question.task,
        1,
        question.framework,
    )
    if not same_work or case.recipe != question.profile.recipe.at(case.precision):
        return None
    distance = 2 * (case.batch_size != question.batch) + (case.execution != question.execution)
    if question.precision == AMP:
        return distance if case.precision.is_amp else distance + 4
    return distance if case.precision == question.precision else None


def _estimate(key: str, measurement: Measurement, run: Run) -> Estimate:
    assert measurement.samples_per_s is not None  # usable rows have a figure
    return Estimate(
        case=measurement.case,
        gpu_key=key,
        samples_per_s=measurement.samples_per_s,
        low=measurement.samples_per_s_low,
        high=measurement.samples_per_s_high,
        basis="measured",
        method=f"measured here{_threads(run, measurement)}",
        evidence=(run.run_id,),
        peak_memory_bytes=measurement.peak_memory_bytes,
        fits_memory=True,
        host_cpu=run.environment.cpu if is_host_bound(measurement) else None,
        findings=measurement.findings,
        batch_choice=measurement.batch_choice,
    )


def _threads(run: Run, measurement: Measurement) -> str:
    """How many threads a CPU worked with; a figure of a CPU means little without."""
    threads = measurement.cpu_threads or run.environment.cpu_threads
    return f" with {count(threads, 'thread')}" if device_key(run) == CPU_KEY and threads else ""
