"""One run, one JSON file: reading it, and what must hold in every stored record, whoever wrote it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import BadContentError, decode_json, read_bytes
from gpubench.labels import micro_name
from gpubench.measure import checks
from gpubench.measure.launch import POWER_TOLERANCE
from gpubench.models import RUN_VERSION, Case, Launch, MicroResult, Run, Status
from gpubench.models.run import TimeToQuality
from gpubench.units import MIB, Watts, plain

MAX_FILE_BYTES = 64 * MIB
"""A run of 5 launches and 27 cases with 100 s of telemetry each takes 27 MiB; twice that is no run."""

_SAFE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,78}[a-z0-9])?")
_RESERVED = frozenset({"con", "prn", "aux", "nul"})


class _Version(msgspec.Struct):
    schema_version: int


def is_safe_name(name: str) -> bool:
    """Whether a name may become a file name on every system: an allow-list, not a list of dangers."""
    return (
        bool(_SAFE_NAME.fullmatch(name))
        and ".." not in name
        and name.split(".", maxsplit=1)[0] not in _RESERVED
    )


def read_run(path: Path) -> Run:
    """Read one run, and check every rule that a stored record must hold.

    Raises:
        BadContentError: If its content is no JSON, no run, or contradicts itself.
        MisuseError: If it cannot be read now, is too large, a link, or of a later gpubench.
    """
    data = read_bytes(path, MAX_FILE_BYTES)
    version = decode_json(data, _Version, path, what="a gpubench run").schema_version
    refuse_later(version, plain(path.name, 300))
    return _checked(decode_json(data, Run, path, what="a gpubench run"), path)


def _checked(run: Run, path: Path) -> Run:
    run = upgraded(run, path)
    if not is_safe_name(run.run_id.casefold()):
        raise BadContentError(f"{path.name}: run id {plain(run.run_id)!r} is not a plain file name")
    if broken := broken_rule(run):
        raise BadContentError(f"{path.name} contradicts itself: {broken}")
    return run


def upgraded(run: Run, path: Path) -> Run:
    """Bring a run to the current schema. A case of version 1 is one of version 2 at its defaults."""
    if run.schema_version < 1:
        raise BadContentError(
            f"{path.name}: schema version {run.schema_version} never existed: the file is not gpubench's"
        )
    return msgspec.structs.replace(run, schema_version=RUN_VERSION)


MAX_COUNT = 1_000_000_000
MAX_ROWS = 10_000
IDENTITY_TOLERANCE = 1e-3
"""Figures that are stored twice agree within this."""

_POSITIVE = (
    "flops_per_sample",
    "hardware_flops_per_sample",
    "tokens_per_sample",
    "peak_flops_per_s",
    "gemm_flops_per_s",
)
"""Fields of a measurement that stay positive where they are known."""


def refuse_later(version: int, name: str) -> None:
    """Refuse a file that a later gpubench wrote; what it holds besides would be lost unseen.

    Args:
        version: The schema that it says it is of.
        name: Of the file.

    Raises:
        MisuseError: If this gpubench knows no such schema.
    """
    if version > RUN_VERSION:
        raise MisuseError(
            f"{name} has schema {version}, this gpubench reads up to {RUN_VERSION}: upgrade gpubench"
        )


def broken_rule(run: Run) -> str | None:
    """Return the first rule that a run breaks, as a phrase with the value seen; None where all hold."""
    return next(_broken(run), None)


def _broken(run: Run) -> Iterator[str]:
    if len(run.measurements) > MAX_ROWS:
        yield f"{len(run.measurements)} measurements, at most {MAX_ROWS} are allowed"
    for result in run.micro:
        yield from (f"micro-benchmark {plain(micro_name(result))}: {what}" for what in _of_micro(result))
    if len(run.quality) > MAX_ROWS:
        yield f"{len(run.quality)} trainings to a quality, at most {MAX_ROWS} are allowed"
    for row in run.quality:
        where = f"the training of {plain(row.case.workload, 80)} to a quality"
        yield from (f"{where} has {what}" for what in _of_quality(row))
    for index, measurement in enumerate(run.measurements):
        where = f"measurement {index}"
        case = measurement.case
        yield from (f"{where} has {what}" for what in _of_case(case))
        for name in _POSITIVE:
            value = getattr(measurement, name)
            if value is not None and not _positive(value):
                yield f"{where} has {name} {value}"
        for launch in measurement.launches:
            found = _of_launch(launch, run.device.power_limit_w, case.gpu_count)
            yield from (f"{where}, launch {launch.index}: {what}" for what in found)
        if measurement.status is Status.OK and measurement.samples_per_s is None:
            yield f"{where}: status ok without a single timed round"


def _of_case(case: Case) -> Iterator[str]:
    if not (1 <= case.batch_size <= MAX_COUNT and 1 <= case.gpu_count <= MAX_COUNT):
        yield f"batch {case.batch_size} on {case.gpu_count} GPUs"
    if case.node_count > case.gpu_count:
        yield f"{case.gpu_count} GPUs on {case.node_count} nodes"
    for name in ("loss_chunks", "prompt_tokens", "new_tokens", "cache_tokens", "context_tokens", "threads"):
        if (value := getattr(case, name)) > MAX_COUNT:
            yield f"{name} {value}"


def beyond_belief(run: Run) -> str | None:
    """Return what no machine can do, in a row that is given as sound; None where there is nothing.

    Own runs keep such a row, as invalid; of others' runs it is not taken in.
    """
    for index, measurement in enumerate(run.measurements):
        found = checks.scaling_of(measurement, run.measurements)
        if found is not None and measurement.status is Status.OK:
            count = measurement.case.gpu_count
            return f"measurement {index} has {count} GPUs at {found.value:.1f} times the throughput of one"
    return None


def _of_quality(row: TimeToQuality) -> Iterator[str]:
    yield from _of_case(row.case)
    if len({run.seed for run in row.runs}) < len(row.runs):
        yield "one seed twice"
    for run in row.runs:
        if not 0 < run.steps <= min(row.most_steps, MAX_COUNT):
            yield f"{run.steps} steps of at most {row.most_steps}"
        if not (math.isfinite(run.train_s) and run.train_s > 0):
            yield f"train_s {run.train_s}"
        if run.energy_j is not None and not _positive(run.energy_j):
            yield f"energy_j {run.energy_j}"
        if run.reached and run.quality is None:
            yield "a quality that was reached and is unknown"


def _of_micro(result: MicroResult) -> Iterator[str]:
    """Hold a stored figure against its interval, and against its own repetitions where all are kept."""
    if not _positive(result.value) or not all(_positive(t) for t in result.times_s):
        yield f"a value of {result.value} {plain(result.unit)}, or a repetition of no time"
        return
    low, high = result.low, result.high
    if (low is not None and low > result.value) or (high is not None and high < result.value):
        yield f"its interval, {low} to {high}, leaves out its value {result.value}"
    if len(result.times_s) == result.left_out + result.n and result.n > 0 and result.repeats > 0:
        each = median(result.times_s[result.left_out :]) / result.repeats
        value = each if result.work is None else result.work / each
        if abs(value / result.value - 1) > IDENTITY_TOLERANCE:
            yield f"its repetitions give {value:.6g}, it says {result.value:.6g}"


def _of_launch(launch: Launch, power_limit_w: Watts | None, gpu_count: int) -> Iterator[str]:
    for round_ in (*launch.warmup, *launch.rounds):
        if not (1 <= round_.steps <= MAX_COUNT and _positive(round_.wall_s)):
            yield f"a round of {round_.steps} steps in {round_.wall_s} s"
            return
    yield from _of_region(launch)
    if launch.energy_j is not None and not _positive(launch.energy_j):
        yield f"energy of {launch.energy_j} J (unknown is null)"
    if launch.peak_memory_bytes is not None and launch.peak_memory_bytes < 0:
        yield f"peak memory of {launch.peak_memory_bytes} B"
    if (launch.peak_reserved_bytes or math.inf) < (launch.peak_memory_bytes or 0):
        yield f"{launch.peak_reserved_bytes} B reserved, and {launch.peak_memory_bytes} B of them allocated"
    if launch.energy_j and launch.energy_region_s and power_limit_w:
        each_w = launch.energy_j / launch.energy_region_s / gpu_count
        if each_w > POWER_TOLERANCE * power_limit_w:
            yield f"mean power of {each_w:.0f} W on a card limited to {power_limit_w:.0f} W"


def _of_region(launch: Launch) -> Iterator[str]:
    """Hold counts, lengths and energy that are stored beside the rounds against the rounds themselves."""
    steps, wall_s = sum(r.steps for r in launch.rounds), sum(r.wall_s for r in launch.rounds)
    if launch.timed_steps is not None and launch.timed_steps != steps:
        yield f"{launch.timed_steps} timed steps, while its rounds hold {steps}"
    if launch.skipped_steps is not None and not 0 <= launch.skipped_steps <= steps:
        yield f"{launch.skipped_steps} skipped steps of {steps}"
    if launch.energy_region_s is not None and launch.energy_region_s < wall_s * (1 - IDENTITY_TOLERANCE):
        yield f"a timed region of {launch.energy_region_s} s with rounds of {wall_s:.6g} s in it"
    edges = [edge for edge in launch.energy_edges_j if edge is not None]
    if launch.energy_source == "counter" and launch.energy_j and len(edges) == 2:
        before, after = edges
        if abs((after - before) / launch.energy_j - 1) > IDENTITY_TOLERANCE:
            yield f"energy of {launch.energy_j} J between counter readings of {before} and {after} J"


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
