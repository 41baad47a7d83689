"""What must hold in every stored record, whoever wrote it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpubench.measure.energy import POWER_TOLERANCE
from gpubench.models import Launch, Measurement, Run, Status
from gpubench.units import Watts

MAX_COUNT = 1_000_000_000
MAX_ROWS = 10_000
IDENTITY_TOLERANCE = 1e-3


def broken_rule(run: Run) -> str | None:
    """Return the first rule that a run breaks, as a phrase with the value seen; None where all hold."""
    return next(_broken(run), None)


def _broken(run: Run) -> Iterator[str]:
    if len(run.measurements) > MAX_ROWS:
        yield f"{len(run.measurements)} measurements, at most {MAX_ROWS} are allowed"
    for index, measurement in enumerate(run.measurements):
        where = f"measurement {index}"
        case = measurement.case
        if not (1 <= case.batch_size <= MAX_COUNT and 1 <= case.gpu_count <= MAX_COUNT):
            yield f"{where} has batch {case.batch_size} on {case.gpu_count} GPUs"
        for name in ("flops_per_sample", "peak_flops_per_s", "gemm_flops_per_s"):
            value = getattr(measurement, name)
            if value is not None and not _positive(value):
                yield f"{where} has {name} {value}"
        for launch in measurement.launches:
            found = _of_launch(launch, run.device.power_limit_w, case.gpu_count)
            yield from (f"{where}, launch {launch.index}: {what}" for what in found)
        yield from (f"{where}: {what}" for what in _of_figures(measurement))


def _of_launch(launch: Launch, power_limit_w: Watts | None, gpu_count: int) -> Iterator[str]:
    for round_ in (*launch.warmup, *launch.rounds):
        if not (1 <= round_.steps <= MAX_COUNT and _positive(round_.wall_s)):
            yield f"a round of {round_.steps} steps in {round_.wall_s} s"
            return
    if launch.energy_j is not None and not _positive(launch.energy_j):
        yield f"energy of {launch.energy_j} J (unknown is null)"
    if launch.peak_memory_bytes is not None and launch.peak_memory_bytes < 0:
        yield f"peak memory of {launch.peak_memory_bytes} B"
    if launch.energy_j and launch.energy_region_s and power_limit_w:
        each_w = launch.energy_j / launch.energy_region_s / gpu_count
        if each_w > POWER_TOLERANCE * power_limit_w:
            yield f"mean power of {each_w:.0f} W on a card limited to {power_limit_w:.0f} W"


def _of_figures(measurement: Measurement) -> Iterator[str]:
    if measurement.status is Status.OK and measurement.samples_per_s is None:
        yield "status ok without a single timed round"
    if measurement.samples_per_s is not None and measurement.step_time_s is not None:
        samples = measurement.case.batch_size * measurement.case.gpu_count
        product = measurement.samples_per_s * measurement.step_time_s
        if abs(product / samples - 1) > IDENTITY_TOLERANCE:
            yield f"throughput times step time is {product}, not {samples}"


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
