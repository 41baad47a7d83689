"""`gpubench check --reference`: this card's figures beside those that were read on one card of its kind.

The figures are rows of data/reference_figures.csv. Without rows for this card they are measured and shown
without a verdict. All that is measured is one stored run; what came in is kept when a later part fails.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from gpubench.errors import GpuBenchError, InterruptedRunError
from gpubench.measure import capability, events
from gpubench.measure.budget import QUICK
from gpubench.measure.launcher import Launcher, say_nothing
from gpubench.measure.peaks import GEMM_PRECISIONS
from gpubench.measure.plan import (
    Plan,
    PlannedCase,
    default_memory_format,
    planned_case,
    refuse_forced_precision,
)
from gpubench.measure.preflight import newcomers, preflight, start_state
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Measurement,
    MicroResult,
    Precision,
    Run,
    Settings,
    Status,
    TaskKind,
)
from gpubench.profile import load_profiles
from gpubench.record import session, store

FAMILY = "nvidia-h200"
"""The card whose rows say what is measured on a card that has none of its own."""
SPREAD_LAUNCHES = 5
SUSPICIOUS = 1.02
"""A micro-benchmark this much faster than the reference is no praise: look for a missing synchronise."""

Verdict = Literal[
    "pass", "fail", "suspicious", "failed to measure", "shown", "not measured", "not on this card"
]
FAILURES: frozenset[Verdict] = frozenset({"fail", "suspicious", "failed to measure"})
"""Given only on the card that the reference is of."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the reference: what to measure, what it read, and what agreement means."""

    gpu_key: str
    name: str
    kind: str
    workload: str
    precision: str
    execution: str
    batch_size: int | None
    value: float | None
    unit: str
    rule: Literal["at_least", "at_most", "within", "shown"]
    limit: float | None
    source: str

    @property
    def limit_is_share(self) -> bool:
        """Whether the limit is a share of the reference value: ``at_least`` up to 1."""
        return self.rule == "at_least" and self.value is not None and (self.limit or 0.0) <= 1


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure as measured here beside its reference."""

    figure: Figure
    measured: float | None
    verdict: Verdict
    reason: str | None = None


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and the stored run that its figures are from; the findings of a run are in it."""

    rows: tuple[Compared, ...]
    run: Run
    path: Path

    @property
    def failed(self) -> bool:
        """Whether a figure disagrees, or is missing, on the card that the reference is of."""
        return any(row.verdict in FAILURES for row in self.rows)


@dataclass
class Found:
    """What has been measured so far, by the figure's name, and why the rest has not."""

    values: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def keeping(self, figures: Sequence[Figure]) -> Iterator[None]:
        """Let a part of the table fail without the rest of it."""
        try:
            yield
        except InterruptedRunError:
            raise
        except GpuBenchError as error:
            self.reasons |= {figure.name: str(error) for figure in figures}


@cache
def reference_figures() -> tuple[Figure, ...]:
    """Return every row of the shipped table."""
    text = files("gpubench").joinpath("data/reference_figures.csv").read_text(encoding="utf-8")
    return tuple(
        msgspec.convert(
            {name: value or None for name, value in row.items()} | _texts(row), Figure, strict=False
        )
        for row in csv.DictReader(text.splitlines())
    )


def judge(figure: Figure, measured: float | None, *, same_card: bool) -> Verdict:
    """Say whether a measured figure agrees; only on the card that the reference is of.

    ``at_least`` up to 1 is a share of the reference value, above it an absolute limit.
    """
    if not same_card:
        return "not measured" if measured is None else "shown"
    if measured is None:
        return "failed to measure"
    if figure.rule == "shown" or figure.limit is None:
        return "shown"
    if _too_good(figure, measured):
        return "suspicious"
    if figure.rule == "within":
        return "pass" if abs(measured - (figure.value or 1.0)) <= figure.limit else "fail"
    if figure.rule == "at_most":
        return "pass" if measured <= figure.limit else "fail"
    limit = figure.limit * (figure.value or 1.0) if figure.limit_is_share else figure.limit
    return "pass" if measured >= limit else "fail"


def _too_good(figure: Figure, measured: float) -> bool:
    """Whether a micro-benchmark is faster than the reference by more than one card differs from another."""
    if figure.kind != "micro" or not figure.value:
        return False
    ratio = figure.value / measured if figure.unit == "s" else measured / figure.value
    return ratio > SUSPICIOUS


def check_reference(
    device: DeviceProfile,
    root: Path,
    on_event: Callable[[events.Event], None] = say_nothing,
    quick_run: Callable[[], object] | None = None,
) -> Reference:
    """Measure every figure of the reference on this device, and store what was measured as one run.

    Args:
        device: A GPU.
        root: The results folder.
        on_event: Told what goes on.
        quick_run: Makes the whole quick run, to be timed; None leaves that row out.

    Raises:
        NoDeviceError: If something else is using the device, or no measuring process can work on it.
        MisuseError: If a variable forces a lower precision on fp32.
        StorageError: If the run cannot be stored.
        InterruptedRunError: If Ctrl-C or SIGTERM came; the finished cases are stored.
    """
    own = [figure for figure in reference_figures() if figure.gpu_key == device.gpu_key]
    figures = own or [figure for figure in reference_figures() if figure.gpu_key == FAMILY]
    figures = [figure for figure in figures if figure.kind != "quick_run" or quick_run is not None]
    lacking = {f.name: reason for f in figures if (reason := why_not_here(f, device)) is not None}
    here = [figure for figure in figures if figure.name not in lacking]
    found = Found()
    run, path = measure_figures(device, here, root, found, on_event)
    if quick_run is not None:
        timed = [figure for figure in here if figure.kind == "quick_run"]
        with found.keeping(timed):
            start = time.monotonic()
            quick_run()
            found.values |= {figure.name: time.monotonic() - start for figure in timed}
    rows = tuple(
        _compared(figure, found, lacking.get(figure.name), same_card=bool(own)) for figure in figures
    )
    return Reference(rows=rows, run=run, path=path)


def _compared(figure: Figure, found: Found, lacking: str | None, *, same_card: bool) -> Compared:
    if lacking is not None:
        return Compared(figure=figure, measured=None, verdict="not on this card", reason=lacking)
    measured = found.values.get(figure.name)
    verdict = judge(figure, measured, same_card=same_card)
    reason = found.reasons.get(figure.name) if measured is None else None
    if verdict == "suspicious":
        reason = f"over {SUSPICIOUS:.0%} of the reference: look for a missing synchronise"
    return Compared(figure=figure, measured=measured, verdict=verdict, reason=reason)


def why_not_here(figure: Figure, device: DeviceProfile) -> str | None:
    """Say why a device does not have what a figure is of; None where it has."""
    if figure.precision:
        name = figure.precision
        precision = GEMM_PRECISIONS[name] if figure.kind == "micro" else Precision(name)
        if reason := capability.why_no_precision(precision, device):
            return reason
    return capability.why_no_execution(Execution(figure.execution), device) if figure.execution else None


def measure_figures(
    device: DeviceProfile,
    figures: Sequence[Figure],
    root: Path,
    found: Found,
    on_event: Callable[[events.Event], None],
) -> tuple[Run, Path]:
    """Measure what needs no whole run: cases and micro-benchmarks, the spread of launches, loops by hand.

    The device is looked at first and last, as around any run: a shared or capped card must not fail
    unexplained.
    """
    once = [figure for figure in figures if figure.kind != "spread"]
    made = plan_of(once, QUICK.launches)
    done = session.execute(
        session.Prepared(
            device=device,
            plan=made,
            root=root,
            findings=preflight(device, allow_shared=False),
            remark=None,
            settings=Settings(
                micro="none" if made.micro == "none" else "also", budget=session.budget_numbers(made)
            ),
            start=start_state(device),
        ),
        on_event,
    )
    if done.interrupted:
        raise InterruptedRunError(f"interrupted; finished cases are in {done.path}")
    run = done.run
    for measurement in run.measurements:
        _take(found, figures, measurement, _of_case(figures, measurement))
    found.values |= {name_of(result): result.value for result in run.micro}
    spread = [figure for figure in figures if figure.kind == "spread"]
    with found.keeping(spread):
        for measurement in Launcher(plan_of(spread, SPREAD_LAUNCHES), device, on_event).run():
            _take(found, spread, measurement, _spread(spread, measurement))
            run = session.with_measurement(run, measurement)
    _by_hand(figures, device, found, on_event)
    run = msgspec.structs.replace(run, findings=session.together(run.findings, newcomers(device)))
    return run, store.write_run(root, run)


def _take(
    found: Found, figures: Sequence[Figure], measurement: Measurement, values: dict[str, float]
) -> None:
    """Keep the figures of a case, or why it gave none."""
    found.values |= values
    if measurement.status is not Status.OK:
        why = f"{measurement.status}: {measurement.reason}"
        names = [f.name for f in figures if f.workload and planned_of(f).case == measurement.case]
        found.reasons |= dict.fromkeys(names, why)


def plan_of(figures: Sequence[Figure], launches: int) -> Plan:
    """Return the plan of the cases among the figures, each once.

    No case is hurried: what is judged may take its time. Micro-benchmarks come first, as in a run of nothing
    else: at every precision that the device has, whatever the precisions of the cases are.
    """
    timed = [figure for figure in figures if figure.kind in {"step_time", "throughput", "spread"}]
    cases = {planned.case: planned for planned in map(planned_of, timed)}
    made = Plan(
        budget=msgspec.structs.replace(QUICK, launches=launches, case_s=None),
        seed=0,
        cases=tuple(cases.values()),
        micro="only" if any(figure.kind == "micro" for figure in figures) else "none",
    )
    refuse_forced_precision(made)
    return made


def planned_of(figure: Figure) -> PlannedCase:
    """Return the case of a figure."""
    profile = load_profiles()[figure.workload]
    precision = Precision(figure.precision)
    case = Case(
        workload=profile.name,
        workload_version=profile.version,
        task=TaskKind.TRAIN,
        precision=precision,
        execution=Execution(figure.execution),
        memory_format=default_memory_format(profile, precision),
        batch_size=figure.batch_size or profile.main_batch,
        sample_unit=profile.sample_unit,
    )
    return planned_case(figure.workload, profile, case)


def name_of(result: MicroResult) -> str:
    """Return the name that the table knows a micro-benchmark by."""
    if result.name == "gemm":
        return f"gemm {result.precision} {result.size}"
    return result.name if result.unit == "s" else f"{result.name} {result.size}"


def _of_case(figures: Sequence[Figure], measurement: Measurement) -> dict[str, float]:
    if measurement.status is not Status.OK:
        return {}
    values = {"step_time": measurement.step_time_s, "throughput": measurement.samples_per_s}
    return {
        figure.name: value
        for figure in figures
        if (value := values.get(figure.kind)) is not None and planned_of(figure).case == measurement.case
    }


def _spread(figures: Sequence[Figure], measurement: Measurement) -> dict[str, float]:
    """Largest less smallest launch over the median one."""
    steps = sorted(
        sum(r.wall_s for r in launch.accepted) / sum(r.steps for r in launch.accepted)
        for launch in measurement.launches
        if launch.accepted
    )
    if measurement.status is not Status.OK or len(steps) < SPREAD_LAUNCHES:
        return {}
    spread = (steps[-1] - steps[0]) / steps[len(steps) // 2]
    return {f.name: spread for f in figures if f.kind == "spread" and planned_of(f).case == measurement.case}


def _by_hand(
    figures: Sequence[Figure],
    device: DeviceProfile,
    found: Found,
    on_event: Callable[[events.Event], None],
) -> None:
    """Time the harness, and its telemetry, against loops written by hand in the measuring process."""
    chosen = [figure for figure in figures if figure.kind in {"fidelity", "sampler"}]
    launcher = Launcher(plan_of(chosen, 1), device, on_event)
    try:
        for figure in chosen:
            with found.keeping([figure]):
                sampler = figure.kind == "sampler"
                found.values[figure.name] = launcher.ratio_by_hand(planned_of(figure), sampler=sampler)
    finally:
        launcher.close()


def _texts(row: dict[str, str]) -> dict[str, str]:
    """Text columns stay text where they are empty."""
    return {name: row[name] for name in ("workload", "precision", "execution")}
