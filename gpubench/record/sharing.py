"""Shared runs: their location, allowed content and checks, and how many people measured a case.

A shared run is stored in the repository as ``results/shared/NAME/RUN-ID.json``, and ships in the wheel. No
figure is computed from shared runs; only the number of their measurements is shown next to a figure.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpubench import discovery, folders, profile
from gpubench.errors import MisuseError
from gpubench.measure.privacy import private_part
from gpubench.models import Case, Run, Status
from gpubench.record import run_check, run_file
from gpubench.units import UNKNOWN, count, plain

SHARED = Path("results/shared")


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """A shared run, and the name chosen by its contributor."""

    by: str
    run: Run


def shared_files() -> Sequence[Path]:
    """Return the files of the shared runs, from the wheel or the checkout."""
    packed, root = folders.data_path("shared"), discovery.checkout()
    folder = packed if root is None or os.environ.get(folders.FOLDER_VARIABLE) else root / SHARED
    return sorted(folder.glob("*/*.json"))


@cache
def shared_runs() -> tuple[Shared, ...]:
    """Return every shared run."""
    return tuple(Shared(by=path.parent.name, run=run_file.read_run(path)) for path in shared_files())


def readings_by(gpu_key: str, case: Case, shared: Sequence[Shared] | None = None) -> str | None:
    """Return how many people measured a case on a GPU and how often, in words; None if nobody did.

    Measurements of the same work count, even with another batch, layout or execution mode.
    """
    wanted = _work_of(case)
    found = [
        each.by
        for each in (shared_runs() if shared is None else shared)
        if each.run.device.gpu_key == gpu_key
        for measurement in each.run.measurements
        if measurement.status is Status.OK and _work_of(measurement.case) == wanted
    ]
    people = "person" if len({*found}) == 1 else "people"
    return f"{count(len(found), 'reading')} by {len({*found})} {people}" if found else None


def _work_of(case: Case) -> tuple[Any, ...]:
    return (
        case.workload,
        case.workload_version,
        case.task,
        case.framework,
        case.precision,
        case.gpu_count,
        case.recipe,
    )


FACTOR = 1.5
"""A figure is doubtful if it differs by more than this factor from others of the case on the same GPU."""
# Fields of the device that identify an individual card or machine.
_IDENTIFYING = ("uuid", "device_id", "pci_bus_id", "index")


def place_of(run: Run, by: str) -> Path:
    """Return the path of a shared run relative to the repository.

    Raises:
        MisuseError: If the name is not a plain file name.
    """
    if not run_file.is_safe_name(by):
        raise MisuseError(f"--by {plain(by, 80)!r}: give lowercase letters, digits, dots and dashes")
    return SHARED / by / f"{run.run_id.casefold()}.json"


def shareable(run: Run) -> tuple[Run, tuple[str, ...]]:
    """Return the shareable form of a run, and a line for each omitted row.

    It does not identify the card, and omits the user's own models and doubtful rows.
    """
    known = profile.load_profiles()
    doubted = {
        issue.case: issue.kind for issue in run_check.check_run(run).issues if issue.weight == "problem"
    }

    def why_not(case: Case) -> str | None:
        return doubted.get(case) if case.workload in known else "a model of your own"

    reasons = {each.case: why_not(each.case) for each in run.measurements}
    kept = tuple(each for each in run.measurements if reasons[each.case] is None)
    shared = msgspec.structs.replace(
        run,
        device=msgspec.structs.replace(run.device, **dict.fromkeys(_IDENTIFYING)),
        planned=tuple(each.case for each in kept),
        measurements=kept,
        quality=tuple(row for row in run.quality if row.case.workload in known),
        added_from=None,
    )
    return shared, tuple(f"{case.label}: {reason}" for case, reason in reasons.items() if reason)


def pull_request(run: Run, place: Path) -> tuple[str, str]:
    """Return the title and text of a pull request that adds a shared run; the text lists its contents."""
    device, software = plain(run.device.name or UNKNOWN, 80), run.environment
    versions = f"torch {plain(software.torch or UNKNOWN, 40)}, driver {plain(software.driver or UNKNOWN, 30)}"
    limit = run.device.power_limit_w
    rows = [
        f"| {plain(each.label, 160)} | {each.interval.rate(each.case.sample_unit, each.digits)} |"
        for each in run.measurements
        if each.status is Status.OK
    ]
    lines = (
        f"Adds `{place.as_posix()}`, as `gpubench share` wrote it.",
        "",
        f"- device: {device} ({run.device.gpu_key or UNKNOWN})",
        f"- power limit: {UNKNOWN if limit is None else f'{limit:.0f} W'}",
        f"- measured: {plain(run.started_at, 30)}, budget {plain(run.budget, 30)}",
        f"- software: gpubench {plain(software.gpubench, 30)}, {versions}, {plain(software.os, 80)}",
        f"- processor: {plain(software.cpu or UNKNOWN, 80)}, threads: {software.cpu_threads or UNKNOWN}",
        f"- {count(len(run.micro), 'micro-benchmark')}, readings of clock, power and temperature",
        "- not included: host name, user name, paths, UUID, serial number, bus id, models of your own",
        "",
        "| case | throughput (95 %) |",
        "|---|---|",
        *rows,
    )
    return f"Add a run of {count(len(rows), 'case')} on {device}", "\n".join(lines)


def doubts(run: Run, others: Iterable[Run]) -> Iterator[str]:
    """Yield a line for each reason to refuse a shared run; ``share`` and CI both check them.

    Args:
        run: The run to share.
        others: Existing shared runs; the figures are compared with those from the same model of GPU.
    """
    yield from (
        f"it contains the device's {field}"
        for field in _IDENTIFYING
        if getattr(run.device, field) is not None
    )
    yield from _private(msgspec.to_builtins(run), "")
    if run.device.gpu_key is None:
        yield "its device is not in the GPU table"
    if not any(row.status is Status.OK for row in run.measurements):
        yield "it contains no figure for a shipped workload"
    if broken := run_file.why_invalid(run):
        yield f"it cannot be true: {broken}"
    for issue in run_check.check_run(run).issues:
        if issue.weight == "problem":
            where = "" if issue.case is None else f"{issue.case.label}: "
            yield f"{where}{issue.text}"
    yield from _far_from(others, run)


def _private(value: Any, where: str) -> Iterator[str]:
    # Yield a line for each text in the record that contains a path, a UUID or an address.
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _private(inner, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _private(inner, where)
    elif isinstance(value, str) and (found := private_part(value)):
        yield f"{plain(where, 80)} contains {plain(found, 80)}"


def _far_from(others: Iterable[Run], run: Run) -> Iterator[str]:
    # Yield a line for each figure that differs too much from one of another run.
    known = [
        (other.case, other.samples_per_s)
        for each in others
        if each.run_id != run.run_id and each.device.gpu_key == run.device.gpu_key
        for other in each.measurements
        if other.status is Status.OK and other.samples_per_s
    ]
    for measurement in run.measurements:
        rate = measurement.samples_per_s
        far = [
            other
            for case, other in known
            if rate and case == measurement.case and not 1 / FACTOR <= rate / other <= FACTOR
        ]
        if far:
            yield f"{measurement.case.label}: {rate:.4g} per second; others measured {far[0]:.4g} on this GPU"
