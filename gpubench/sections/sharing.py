"""What of a run is shared with others: its device, its software and its figures."""

from __future__ import annotations

from pathlib import Path

from gpubench.blocks.parts import Bullets, Part, number, table, text
from gpubench.models import Run, Status
from gpubench.units import UNKNOWN, count, per_second, plain


def held(run: Run) -> tuple[Part, ...]:
    """Return all that a shared file tells."""
    rows = [each for each in run.measurements if each.status is Status.OK]
    return (
        Bullets(
            items=(
                *(f"{name}: {said}" for name, said in _facts(run)),
                f"{count(len(run.micro), 'micro-benchmark')}, readings of clock, power and temperature",
                "not in it: names of host and user, paths, UUID, serial number, bus id, models of your own",
            )
        ),
        table(
            "",
            rows,
            text("Case", lambda each: plain(each.label, 160)),
            number("Throughput", lambda each: each.interval.text(f" {per_second(each.case.sample_unit)}")),
        ),
    )


def pull_request(run: Run, place: Path) -> tuple[str, str]:
    """Return title and text of a pull request that adds a shared run."""
    device = plain(run.device.name or UNKNOWN, 80)
    rows = [
        f"| {plain(each.label, 160)} | {each.interval.rate(each.case.sample_unit)} |"
        for each in run.measurements
        if each.status is Status.OK
    ]
    body = "\n".join(
        (
            f"Adds `{place.as_posix()}`, as `gpubench share` wrote it.",
            "",
            *(f"- {name}: {said}" for name, said in _facts(run)),
            "",
            "| case | throughput (95 %) |",
            "|---|---|",
            *rows,
        )
    )
    return f"Add a run of {count(len(rows), 'case')} on {device}", body


def _facts(run: Run) -> tuple[tuple[str, str], ...]:
    software = run.environment
    versions = f"torch {plain(software.torch or UNKNOWN, 40)}, driver {plain(software.driver or UNKNOWN, 30)}"
    limit = run.device.power_limit_w
    return (
        ("device", f"{plain(run.device.name or UNKNOWN, 80)} ({run.device.gpu_key or UNKNOWN})"),
        ("power limit", UNKNOWN if limit is None else f"{limit:.0f} W"),
        ("measured", f"{plain(run.started_at, 30)}, budget {plain(run.budget, 30)}"),
        ("software", f"gpubench {plain(software.gpubench, 30)}, {versions}, {plain(software.os, 80)}"),
        ("processor", f"{plain(software.cpu or UNKNOWN, 80)}, {software.cpu_threads or UNKNOWN} threads"),
    )
