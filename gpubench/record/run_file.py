"""Reads the JSON file of one run, and checks the rules that every stored record must satisfy."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import median

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import BadContentError, decode_json, read_bytes
from gpubench.findings import describe
from gpubench.labels import micro_name
from gpubench.models import (
    RUN_VERSION,
    Case,
    DeviceProfile,
    Launch,
    Measurement,
    MicroResult,
    Run,
    Status,
)
from gpubench.models.measurement import POWER_TOLERANCE
from gpubench.models.run import TimeToQuality
from gpubench.names import MEMORY_TOLERANCE
from gpubench.specs import load_specs
from gpubench.units import MIB, Watts, format_bytes, plain

MAX_FILE_BYTES = 64 * MIB
"""Maximum size: 5 launches of 27 cases with 100 s of telemetry each take 27 MiB; this is about twice that."""

_SAFE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,78}[a-z0-9])?")
# Names that Windows reserves for devices.
_RESERVED = frozenset({"con", "prn", "aux", "nul"})


class _Version(msgspec.Struct):
    schema_version: int


def is_safe_name(name: str) -> bool:
    """Return whether a name is a safe file name on every system, by an allow-list."""
    return (
        bool(_SAFE_NAME.fullmatch(name))
        and ".." not in name
        and name.split(".", maxsplit=1)[0] not in _RESERVED
    )


def read_run(path: Path) -> Run:
    """Read one run, upgrade it to the current schema, and check every rule for stored records.

    A version 1 case is a version 2 case with default values.

    Raises:
        BadContentError: If its content is not JSON, is not a run, or contradicts itself.
        MisuseError: If it cannot be read now, is too large, is a link, or is from a newer gpubench.
    """
    data, what = read_bytes(path, MAX_FILE_BYTES), "a gpubench run"
    version = decode_json(data, _Version, path, what=what).schema_version
    if version > RUN_VERSION:  # fields unknown to this version would be lost silently
        raise MisuseError(
            f"{plain(path.name, 300)} has schema {version}, but this gpubench reads up to {RUN_VERSION}: "
            "upgrade gpubench"
        )
    if version < 1:
        raise BadContentError(
            f"{plain(path.name, 300)}: schema version {version} never existed: the file is not from gpubench"
        )
    run = msgspec.structs.replace(decode_json(data, Run, path, what=what), schema_version=RUN_VERSION)
    if not is_safe_name(run.run_id.casefold()):
        raise BadContentError(
            f"{plain(path.name, 300)}: run id {plain(run.run_id)!r} is not a plain file name"
        )
    if broken := next(_broken(run), None):
        raise BadContentError(f"{plain(path.name, 300)} contradicts itself: {broken}")
    return run


IDENTITY_TOLERANCE = 1e-3
"""Relative tolerance between a stored figure and the same figure derived from other fields."""


def broken_rule(run: Run) -> str | None:
    """Return the first rule that a run breaks, as a phrase with the value seen; None if it breaks none."""
    try:  # a run in memory has not been checked against any limit yet
        msgspec.convert(msgspec.to_builtins(run), Run)
    except msgspec.ValidationError as error:
        return str(error)
    return next(_broken(run), None)


def _broken(run: Run) -> Iterator[str]:
    yield from _wrong_in_times(run)
    for result in run.micro:
        yield from (
            f"micro-benchmark {plain(micro_name(result))}: {what}" for what in _wrong_in_micro(result)
        )
    for row in run.quality:
        where = f"the training of {plain(row.case.workload, 80)} to a target quality"
        yield from (f"{where} has {what}" for what in _wrong_in_quality(row))
    for index, measurement in enumerate(run.measurements):
        where = f"measurement {index}"
        case = measurement.case
        yield from (f"{where} has {what}" for what in _wrong_in_case(case))
        for launch in measurement.launches:
            found = _wrong_in_launch(launch, run.device.power_limit_w, case.gpu_count)
            yield from (f"{where}, launch {launch.index}: {what}" for what in found)
        if measurement.status is Status.OK and measurement.samples_per_s is None:
            yield f"{where}: status ok without a single timed round"
    measured = Counter(each.case for each in run.measurements if each.status is Status.OK)
    twice = {case for case, times in measured.items() if times > 1}
    yield from (
        f"measured twice: {plain(each.label, 160)}" for each in run.measurements if each.case in twice
    )


def _wrong_in_times(run: Run) -> Iterator[str]:
    # Times without a zone cannot be compared with the others.
    began = (launch.began_at for measurement in run.measurements for launch in measurement.launches)
    for stamp in (run.started_at, run.finished_at, *began):
        try:
            is_sound = stamp is None or datetime.fromisoformat(stamp).tzinfo is not None
        except ValueError:
            is_sound = False
        if not is_sound:
            yield f"{plain(str(stamp), 80)!r} is not an ISO 8601 time with a time zone"


def _wrong_in_case(case: Case) -> Iterator[str]:
    if case.node_count > case.gpu_count:
        yield f"{case.gpu_count} GPUs on {case.node_count} nodes"


def why_invalid(run: Run) -> str | None:
    """Return why a device or the first invalid row with status ok cannot be true; None if all can.

    A run from another machine is then refused; a run of the user keeps the row, marked as invalid. Rates are
    compared with the peaks and FLOPs in the installed tables, because the file may state others.
    """
    from gpubench.measure import checks  # loads the probe, which a ranking does not need

    device, spec = run.device, load_specs().get(run.device.gpu_key or "")
    size = None if spec is None or device.mig_enabled else spec.memory_bytes
    if size and device.memory_bytes and abs(device.memory_bytes - size) > MEMORY_TOLERANCE * size:
        there, listed = format_bytes(device.memory_bytes), format_bytes(size)
        return f"its device has {there} and claims to be {device.gpu_key}, which has {listed}"
    rows = tuple(_by_installed_tables(row, run.device) for row in run.measurements)
    for index, row in enumerate(rows):
        judged = checks.judge_measurement(row, run.launch_count or 1, rows)
        wrong = (finding for finding in judged.findings if finding.kind in checks.INVALIDATING)
        if row.status is Status.OK and (finding := next(wrong, None)) is not None:
            return f"measurement {index} claims to be valid, but {describe(finding, plain(row.label, 160))}"
    return None


def _by_installed_tables(row: Measurement, device: DeviceProfile) -> Measurement:
    # Return a row with the peak and the FLOPs of the installed tables, where they know its case.
    from gpubench.measure import capability
    from gpubench.measure.plan import planned_case
    from gpubench.profile import load_profiles

    case, shipped = row.case, load_profiles().get(row.case.workload)
    profile = shipped and shipped.at(case.recipe)
    is_current = profile is not None and profile.version == case.workload_version
    known = planned_case(case.workload, profile, case) if profile and is_current else row
    return msgspec.structs.replace(
        row,
        peak_flops_per_s=capability.peak_flops_per_s(device, case.precision) or row.peak_flops_per_s,
        flops_per_sample=known.flops_per_sample,
        hardware_flops_per_sample=known.hardware_flops_per_sample,
        convolves=known.convolves,
    )


def _wrong_in_quality(row: TimeToQuality) -> Iterator[str]:
    yield from _wrong_in_case(row.case)
    if len({run.seed for run in row.runs}) < len(row.runs):
        yield "the same seed twice"
    for run in row.runs:
        if run.steps > row.most_steps:
            yield f"{run.steps} steps of at most {row.most_steps}"
        if run.reached and run.quality is None:
            yield "a quality marked as reached but without a value"


def _wrong_in_micro(result: MicroResult) -> Iterator[str]:
    # Check that a stored figure is within its interval, and follows from its repetitions if all are stored.
    low, high = result.low, result.high
    if (low is not None and low > result.value) or (high is not None and high < result.value):
        yield f"its interval, {low} to {high}, does not contain its value {result.value}"
    if len(result.times_s) == result.left_out + result.n and result.n > 0 and result.repeats > 0:
        each = median(result.times_s[result.left_out :]) / result.repeats
        value = each if result.work is None else result.work / each
        if abs(value / result.value - 1) > IDENTITY_TOLERANCE:
            yield f"its repetitions give {value:.6g}, but it states {result.value:.6g}"


def _wrong_in_launch(launch: Launch, power_limit_w: Watts | None, gpu_count: int) -> Iterator[str]:
    yield from _wrong_in_region(launch)
    if (launch.peak_reserved_bytes or math.inf) < (launch.peak_memory_bytes or 0):
        yield f"{launch.peak_reserved_bytes} B reserved, but {launch.peak_memory_bytes} B allocated"
    if launch.energy_j and launch.energy_region_s and power_limit_w:
        each_w = launch.energy_j / launch.energy_region_s / gpu_count
        if each_w > POWER_TOLERANCE * power_limit_w:
            yield f"mean power of {each_w:.0f} W on a card limited to {power_limit_w:.0f} W"


def _wrong_in_region(launch: Launch) -> Iterator[str]:
    """Yield the stored counts, durations and energies that contradict the rounds or the counter."""
    steps, wall_s = sum(r.steps for r in launch.rounds), sum(r.wall_s for r in launch.rounds)
    if launch.timed_steps is not None and launch.timed_steps != steps:
        yield f"{launch.timed_steps} timed steps, but its rounds contain {steps}"
    if launch.skipped_steps is not None and not 0 <= launch.skipped_steps <= steps:
        yield f"{launch.skipped_steps} skipped steps of {steps}"
    if launch.energy_region_s is not None and launch.energy_region_s < wall_s * (1 - IDENTITY_TOLERANCE):
        yield f"a timed region of {launch.energy_region_s} s that contains rounds of {wall_s:.6g} s"
    edges = [edge for edge in launch.energy_edges_j if edge is not None]
    if launch.energy_source == "counter" and launch.energy_j and len(edges) == 2:
        before, after = edges
        if abs((after - before) / launch.energy_j - 1) > IDENTITY_TOLERANCE:
            yield f"energy of {launch.energy_j} J between counter readings of {before} and {after} J"
