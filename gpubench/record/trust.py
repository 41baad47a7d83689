"""Is a stored run trustworthy? Every finding is derived again from the raw record, with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from gpubench.findings import INFORMATIVE, describe
from gpubench.measure import checks
from gpubench.models import Case, Finding, Measurement, Run, Status
from gpubench.units import plain

SCALING_TOLERANCE = 1.05
"""N GPUs give at most N times one, and this much for luck; a published table has 8 GPUs at 20 times."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know about a run: ``problem`` speaks against it, ``note`` does not."""

    weight: Literal["problem", "note"]
    case: Case | None
    kind: str
    text: str
    value: float | str | None = None
    limit: float | str | None = None


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said about a run."""

    run_id: str
    cases: int
    doubts: tuple[Doubt, ...]

    @property
    def trustworthy(self) -> bool:
        """Whether nothing speaks against the run."""
        return not any(doubt.weight == "problem" for doubt in self.doubts)


def examine(run: Run) -> Trust:
    """Look at every row of a run again."""
    planned = run.launch_count or 1
    measurements = tuple(checks.judge(m, planned, run.measurements) for m in run.measurements)
    return Trust(
        run_id=run.run_id,
        cases=len(measurements),
        doubts=tuple(_doubts(run, measurements)),
    )


def _doubts(run: Run, measurements: tuple[Measurement, ...]) -> Iterator[Doubt]:
    if run.finished_at is None:
        yield Doubt(
            weight="problem",
            case=None,
            kind="UNFINISHED",
            text="the run was cut off; continue it with `gpubench run --resume`",
        )
    known = {finding.kind: finding for finding in (*run.findings, *checks.of_run(run))}
    yield from (_of(finding, None) for finding in known.values())
    for measurement in measurements:
        if measurement.status is not Status.OK:
            yield _status(measurement)
        yield from (_of(finding, measurement.case) for finding in measurement.findings)
        yield from _scaling(measurement, measurements)
    missing = set(run.planned) - {m.case for m in measurements}
    for case in sorted(missing, key=lambda case: case.label):
        yield Doubt(weight="problem", case=case, kind="NOT_MEASURED", text="planned and never reached")


def _of(finding: Finding, case: Case | None) -> Doubt:
    return Doubt(
        weight="note" if finding.kind in INFORMATIVE else "problem",
        case=case,
        kind=finding.kind,
        text=describe(Finding(kind=finding.kind)),
        value=finding.value,
        limit=finding.limit,
    )


def _status(measurement: Measurement) -> Doubt:
    expected = measurement.status in {Status.UNSUPPORTED, Status.OUT_OF_MEMORY}
    return Doubt(
        weight="note" if expected else "problem",
        case=measurement.case,
        kind=measurement.status.upper(),
        text=f"{measurement.status.replace('_', ' ')}: {plain(measurement.reason or 'no reason known', 300)}",
    )


def _scaling(measurement: Measurement, others: tuple[Measurement, ...]) -> Iterator[Doubt]:
    """Refuse to believe that N GPUs are faster than N times one."""
    count = measurement.case.gpu_count
    if count == 1 or measurement.samples_per_s is None:
        return
    single = msgspec.structs.replace(measurement.case, gpu_count=1)
    base = next((m.samples_per_s for m in others if m.case == single and m.samples_per_s), None)
    if base and measurement.samples_per_s > count * SCALING_TOLERANCE * base:
        yield Doubt(
            weight="problem",
            case=measurement.case,
            kind="SCALING",
            text=f"{count} GPUs are {measurement.samples_per_s / base:.1f} times as fast as one",
            value=measurement.samples_per_s / base,
            limit=count * SCALING_TOLERANCE,
        )
