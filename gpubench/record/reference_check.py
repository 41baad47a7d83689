"""`gpubench check --reference`: this card's figures beside those that were read on one card of its kind.

The figures are rows of data/reference_figures.csv. Without rows for this card they are measured and shown
without a verdict.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from gpubench.errors import GpuBenchError
from gpubench.measure import events
from gpubench.measure.budget import QUICK
from gpubench.measure.launcher import Launcher, say_nothing
from gpubench.measure.plan import Plan, PlannedCase, default_memory_format
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Measurement,
    MicroResult,
    Precision,
    Run,
    Status,
    TaskKind,
)
from gpubench.profile import load_profiles

FAMILY = "nvidia-h200"
"""The card whose rows say what is measured on a card that has none of its own."""
SPREAD_LAUNCHES = 5

Verdict = Literal["pass", "fail", "shown", "failed to measure"]


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


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure as measured here beside its reference."""

    figure: Figure
    measured: float | None
    verdict: Verdict
    reason: str | None = None


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

    ``at_least`` below 1.5 is a share of the reference value (0.98 of it), above it an absolute limit.
    """
    if measured is None:
        return "failed to measure"
    if figure.rule == "shown" or not same_card or figure.limit is None:
        return "shown"
    if figure.rule == "within":
        return "pass" if abs(measured - (figure.value or 1.0)) <= figure.limit else "fail"
    if figure.rule == "at_most":
        return "pass" if measured <= figure.limit else "fail"
    is_share = figure.limit <= 1 and figure.value is not None
    limit = figure.limit * figure.value if is_share and figure.value is not None else figure.limit
    return "pass" if measured >= limit else "fail"


def check_reference(
    device: DeviceProfile,
    on_event: Callable[[events.Event], None] = say_nothing,
    quick_run: Callable[[], Run] | None = None,
) -> tuple[Compared, ...]:
    """Measure every figure of the reference on this device.

    Args:
        device: A GPU.
        on_event: Told what goes on.
        quick_run: Makes the whole quick run, to be timed; None leaves that row out.
    """
    own = [figure for figure in reference_figures() if figure.gpu_key == device.gpu_key]
    figures = own or [figure for figure in reference_figures() if figure.gpu_key == FAMILY]
    found = measure_figures(device, figures, on_event, quick_run)
    return tuple(
        Compared(
            figure=figure,
            measured=found.get(figure.name),
            verdict=judge(figure, found.get(figure.name), same_card=bool(own)),
        )
        for figure in figures
    )


def measure_figures(
    device: DeviceProfile,
    figures: Sequence[Figure],
    on_event: Callable[[events.Event], None],
    quick_run: Callable[[], Run] | None,
) -> dict[str, float]:
    """Return what could be measured, by the figure's name."""
    found: dict[str, float] = {}
    launcher = Launcher(plan_of(figures, QUICK.launches), device, on_event)
    for measurement in launcher.run():
        found |= _of_case(figures, measurement)
    found |= {name_of(result): result.value for result in launcher.micro}
    again = Launcher(plan_of([f for f in figures if f.kind == "spread"], SPREAD_LAUNCHES), device, on_event)
    for measurement in again.run():
        found |= _spread(figures, measurement)
    found |= _by_hand(figures, device, on_event)
    timed = next((figure.name for figure in figures if figure.kind == "quick_run"), None)
    if timed is not None and quick_run is not None:
        start = time.monotonic()
        quick_run()
        found[timed] = time.monotonic() - start
    return found


def plan_of(figures: Sequence[Figure], launches: int) -> Plan:
    """Return the plan of the cases among the figures, each once."""
    timed = [figure for figure in figures if figure.kind in {"step_time", "throughput", "spread"}]
    cases = {planned.case: planned for planned in map(planned_of, timed)}
    return Plan(
        budget=msgspec.structs.replace(QUICK, launches=launches),
        seed=0,
        cases=tuple(cases.values()),
        micro="also" if any(figure.kind == "micro" for figure in figures) else "none",
    )


def planned_of(figure: Figure) -> PlannedCase:
    """Return the case of a figure."""
    profile = load_profiles()[figure.workload]
    precision = Precision(figure.precision)
    return PlannedCase(
        reference=figure.workload,
        case=Case(
            workload=profile.name,
            workload_version=profile.version,
            task=TaskKind.TRAIN,
            precision=precision,
            execution=Execution(figure.execution),
            memory_format=default_memory_format(profile, precision),
            batch_size=figure.batch_size or profile.main_batch,
            sample_unit=profile.sample_unit,
        ),
        flops_per_sample=profile.train_flops_per_sample,
        parameter_count=profile.parameters,
        convolves=profile.convolves(TaskKind.TRAIN),
    )


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
    figures: Sequence[Figure], device: DeviceProfile, on_event: Callable[[events.Event], None]
) -> dict[str, float]:
    """Time the harness, and its telemetry, against loops written by hand in the measuring process."""
    found: dict[str, float] = {}
    chosen = [figure for figure in figures if figure.kind in {"fidelity", "sampler"}]
    launcher = Launcher(plan_of(figures, 1), device, on_event)
    try:
        for figure in chosen:
            try:
                found[figure.name] = launcher.ratio_by_hand(
                    planned_of(figure), sampler=figure.kind == "sampler"
                )
            except GpuBenchError as error:
                on_event(events.Remark(text=f"{figure.name}: {error}"))
    finally:
        launcher.close()
    return found


def _texts(row: dict[str, str]) -> dict[str, str]:
    """Text columns stay text where they are empty."""
    return {name: row[name] for name in ("workload", "precision", "execution")}
