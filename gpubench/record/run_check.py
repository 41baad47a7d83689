"""Checks whether a stored run is trustworthy: derives every finding again from the raw record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from gpubench.findings import DOUBTFUL, FindingKind, describe
from gpubench.labels import micro_name
from gpubench.measure import checks
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Finding,
    Launch,
    Measurement,
    Precision,
    Run,
    Status,
    TaskKind,
)
from gpubench.probe.health import slowing
from gpubench.units import plain


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """A finding about a run: a ``problem`` makes the run less trustworthy, a ``note`` does not.

    Without a ``case`` or a ``micro`` (name and size of a micro-benchmark), it is about the entire run.
    """

    weight: Literal["problem", "note"]
    case: Case | None = None
    micro: str | None = None
    kind: str
    text: str
    value: float | str | None = None
    limit: float | str | None = None


class RunCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a run."""

    run_id: str
    cases: int
    issues: tuple[Issue, ...]

    @property
    def trustworthy(self) -> bool:
        """Whether the run has no problems."""
        return not any(issue.weight == "problem" for issue in self.issues)


def check_run(run: Run) -> RunCheck:
    """Check every row of a run again."""
    judged = (checks.judge_measurement(m, run.launch_count or 1, run.measurements) for m in run.measurements)
    # Rows in a run also get the findings that follow from comparing them with each other.
    measurements = msgspec.structs.replace(run, measurements=tuple(judged)).measurements
    cases = len(measurements) + len(run.quality)
    return RunCheck(run_id=run.run_id, cases=cases, issues=tuple(_issues(run, measurements)))


def _issues(run: Run, measurements: tuple[Measurement, ...]) -> Iterator[Issue]:
    if run.interrupted or run.finished_at is None:
        kind, how = ("INTERRUPTED", "interrupted") if run.interrupted else ("UNFINISHED", "cut off")
        yield Issue(weight="problem", kind=kind, text=f"the run was {how}; {_resume(run)}")
    slowed = {} if run.device.is_cpu else slowing(run.environment.variables)
    for name, seen in slowed.items():
        yield Issue(weight="problem", kind="SLOWED", text=f"{seen}; unset {name} and measure again")
    known = {finding.kind: finding for finding in (*checks.of_run(run), *run.findings)}
    yield from (_issue(finding) for finding in known.values())
    for result in run.micro:
        for finding in checks.judge_micro(run.device, result).findings:
            issue = msgspec.structs.replace(_issue(finding), micro=micro_name(result))
            is_minor = finding.kind in _MINOR and run.measurements
            yield msgspec.structs.replace(issue, weight="note") if is_minor else issue
    for measurement in measurements:
        if measurement.status is not Status.OK:
            yield _status_issue(measurement, run)
        yield from (_issue(finding, measurement.case) for finding in measurement.findings)
        launches = measurement.launches if measurement.status is Status.OK else ()
        missed = (name for launch in launches for name in _guards_not_run(measurement, launch, run.device))
        for guard in dict.fromkeys(missed):
            yield Issue(
                weight="note",
                case=measurement.case,
                kind="NOT_CHECKED",
                text=f"NOT_CHECKED: this guard did not run: {guard}",
            )
    for row in (row for row in run.quality if not row.is_reached):
        why = plain(row.reason or "a seed took all its steps and did not reach it", 300)
        yield Issue(
            weight="problem",
            case=row.case,
            kind="NOT_REACHED",
            text=f"the target quality was not reached: {why}",
        )
    missing = set(run.planned) - {m.case for m in measurements}
    for case in sorted(missing, key=lambda case: case.label):
        yield Issue(
            weight="problem",
            case=case,
            kind="NOT_MEASURED",
            text=f"planned but never reached; {_resume(run)}",
        )


# Findings on micro-benchmarks that are only notes in a run with measured rows, as rows need no exact peaks.
_MINOR = frozenset({FindingKind.NOT_CONVERGED, FindingKind.NOISY})


def _issue(finding: Finding, case: Case | None = None) -> Issue:
    return Issue(
        weight="problem" if finding.kind in DOUBTFUL else "note",
        case=case,
        kind=finding.kind,
        text=describe(Finding(kind=finding.kind)),  # value and limit have their own fields
        value=finding.value,
        limit=finding.limit,
    )


def _resume(run: Run) -> str:
    if not run.planned:  # only micro-benchmarks, or training to a quality target
        return "it cannot be resumed: start a new one"
    return f"continue with `gpubench run --resume {plain(run.run_id)}`"


def _status_issue(measurement: Measurement, run: Run) -> Issue:
    expected = measurement.status in {Status.UNSUPPORTED, Status.OUT_OF_MEMORY}
    return Issue(
        weight="note" if expected else "problem",
        case=measurement.case,
        kind=measurement.status.upper(),
        text=f"{measurement.status.replace('_', ' ')}: {plain(measurement.reason or 'no reason known', 300)}"
        + (f"; {_resume(run)}, with more time" if measurement.status is Status.TIMEOUT else "")
        + (f"; {_resume(run)}" if measurement.status is Status.INTERRUPTED else ""),
    )


def _guards_not_run(measurement: Measurement, launch: Launch, device: DeviceProfile) -> Iterator[str]:
    """Yield the guards that should have run for this row but left no trace in the launch.

    At fp32 on a CPU, the row is its own reference; memory errors are counted only with ECC on. A guard with a
    finding of its own (an unknown peak, an unproven strict precision) is not listed again.
    """
    case = measurement.case
    trains, is_eager = case.task is TaskKind.TRAIN, case.execution is Execution.EAGER
    own_reference = device.is_cpu and case.precision is Precision.FP32
    no_reference = any(finding.kind is FindingKind.NO_REFERENCE for finding in launch.findings)
    losses = f"falling loss (needs {checks.LEAST_PAIRS} losses, and earlier ones of the same batches)"
    absent = {
        "fp32 switches read back": launch.switches is None,
        "matrix product and convolution against float64": not launch.precision_errors
        and case.precision is not Precision.FP32,
        "first loss against float32 on the CPU": launch.reference_error is None
        and not (own_reference or no_reference),
        f"{case.execution} against eager": launch.graph_error is None and not (is_eager or no_reference),
        losses: trains and checks.loss_ends(launch) is None,
        "moving parameters": trains and launch.parameters_moved is None,
        "skipped steps": trains and launch.skipped_steps is None and case.precision.facts.scales_gradients,
        "memory errors": launch.memory_errors is None and device.ecc_enabled,
    }
    yield from (guard for guard, is_absent in absent.items() if is_absent)
