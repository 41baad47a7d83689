"""Turns raw launches into a verdict: the status of a case, and every finding that its record supports.

The verdict is derived from stored data only, so it can be derived again from a file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from statistics import fmean, median

import msgspec

from gpubench import heat, stats
from gpubench.effects import ratio
from gpubench.groups import grouped
from gpubench.installing import pip_install
from gpubench.measure.capability import clock_ratio, datasheet_share
from gpubench.measure.loop import GAP, StopRule
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Finding,
    FindingKind,
    Launch,
    Measurement,
    MicroResult,
    Precision,
    Run,
    Status,
    TaskKind,
)
from gpubench.models.measurement import LONG_LOOK_S
from gpubench.probe.health import power_capped

NOISE = 0.05  # interquartile range of rounds, or half-width between launches, relative
# The error limit that separates IEEE fp32 from TF32.
IEEE_ERROR = Precision.FP32.facts.product_error
SKIPPED_STEPS = 0.05  # share of the timed steps
EAGER_OVER_GRAPH = 1.10  # ratio of step times
LEAST_BUSY = 0.90  # kernel time over wall time
HOST_ISSUE = 0.90  # issue time over step time
POWER_SHARE = 0.10  # share of the time at the power limit
SLOWDOWN_SHARE = 0.01  # share of the time slowed by heat or hardware
# A case's rounds may add up to this much more than the time since the parent requested them.
CHILD_CLOCK_SLACK_S = 1.0
# Minimum ratio of the rounds' total time, as the child measured it, to the time over which they reached the
# parent, without pauses.
LEAST_OF_ARRIVALS = 0.8
HOST_LOAD = 0.5  # share of CPU time that other programs used
HOST_STEAL = 0.02  # share of CPU time that other virtual machines took
LEAST_BATCHES = 2
# Older files have no energy for shorter regions, so missing energy is reported only from this length on [s].
TELLING_REGION_S = 10.0
# Network time sets a clock back by less than this.
CLOCK_SLACK = timedelta(minutes=1)
# Tolerance on the rule that N GPUs are at most N times as fast as one; one published table claims a factor of
# 20 for 8 GPUs.
SCALING_TOLERANCE = 1.05

SLOWDOWNS = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown"})
POWER_BRAKE = "hw_power_brake_slowdown"
POWER_CAP = "sw_power_cap"
# Policies that limit the clock without a cooling or power problem; the driver counts their time too.
NOTED_POLICIES = ("sync_boost", "board_limit", "reliability")
INVALIDATING = frozenset(
    {
        FindingKind.IMPLAUSIBLE,
        FindingKind.CLOCK_DISAGREES,
        FindingKind.LOSS_NOT_FALLING,
        FindingKind.LOSS_NOT_FINITE,
        FindingKind.LOSS_DIFFERS,
        FindingKind.PARAMETERS_FROZEN,
        FindingKind.STEPS_SKIPPED,
        FindingKind.TF32_IN_FORCE,
        FindingKind.SWITCHES_CHANGED,
        FindingKind.MEMORY_ERRORS,
        FindingKind.SCALING,
    }
)


def judge_measurement(
    measurement: Measurement,
    planned_launches: int,
    siblings: Sequence[Measurement] = (),
    *,
    allow_throttled: bool = False,
) -> Measurement:
    """Return the measurement with its findings, its loss trace, and status ``invalid`` if it is unsound.

    Args:
        measurement: Has status ok and raw launches, or a status that already says why there is no figure.
        planned_launches: Number of launches in the budget.
        siblings: The other measurements of the run: eager is compared with graph, several GPUs with one.
        allow_throttled: Whether a throttled row may still be ranked; a row already allowed stays allowed.
    """
    trace = loss_trace(measurement.launches)
    if measurement.status not in {Status.OK, Status.INVALID}:
        return msgspec.structs.replace(measurement, loss_trace=trace)
    allowed = allow_throttled or any(f.kind is FindingKind.THROTTLED_ALLOWED for f in measurement.findings)
    findings = unique(find(measurement, planned_launches, siblings))
    if allowed:
        findings = tuple(
            msgspec.structs.replace(finding, kind=FindingKind.THROTTLED_ALLOWED)
            if finding.kind is FindingKind.THROTTLED
            else finding
            for finding in findings
        )
    wrong = [f for f in findings if f.kind in INVALIDATING]
    return msgspec.structs.replace(
        measurement,
        status=Status.INVALID if wrong else Status.OK,
        reason="; ".join(str(f.kind) for f in wrong) or None,
        loss_trace=trace,
        findings=findings,
    )


def find(
    measurement: Measurement, planned_launches: int, siblings: Sequence[Measurement]
) -> Iterator[Finding]:
    """Yield all findings on a measured case."""
    case, launches = measurement.case, measurement.launches
    if len(launches) < planned_launches:
        yield Finding(kind=FindingKind.LAUNCHES_MISSING, value=len(launches), limit=planned_launches)
    for launch in launches:
        yield from launch.findings
        if case.task is TaskKind.TRAIN and launch.batch_count == 1:
            # the model memorizes a single batch, so gradients vanish and later steps are unlike real training
            yield Finding(kind=FindingKind.ONE_BATCH, value=launch.batch_count, limit=LEAST_BATCHES)
        yield from _of_precision(case, launch)
        yield from _of_loss(case, launch)
        taken = ((launch.host_load, HOST_LOAD), (launch.host_steal, HOST_STEAL))
        yield from (
            Finding(kind=FindingKind.HOST_BUSY, value=share, limit=limit)
            for share, limit in taken
            if share is not None and share > limit
        )
        yield from _of_clock(launch)
        yield from _of_rounds(launch, measurement.target)
        yield from _of_telemetry(launch)
    lengths = [sum(r.wall_s for r in launch.rounds) for launch in launches if launch.accepted]
    if lengths and median(lengths) < LONG_LOOK_S:
        yield Finding(
            kind=FindingKind.SHORT_LOOK,
            value=f"{median(lengths):.1f} s a launch",
            limit=f"{LONG_LOOK_S:.0f} s",
        )
    yield from _of_spread(measurement)
    yield from _of_host(measurement, siblings)
    yield from _of_flops(measurement)
    if scaling := scaling_of(measurement, siblings):
        yield scaling


def of_run(run: Run) -> tuple[Finding, ...]:
    """Return findings on the run as a whole rather than on one case; a CPU is not expected to have a peak."""
    sources = {x.telemetry_source for m in run.measurements for x in m.launches if x.rounds}
    silent = bool(sources) and sources <= {"none"}
    hint = f"{pip_install('amdsmi')} adds telemetry for AMD GPUs" if run.device.backend == "rocm" else None
    found = [Finding(kind=FindingKind.NO_TELEMETRY, value=hint)] if silent else []
    if run.launch_count == 1 and sources:
        found.append(Finding(kind=FindingKind.ONE_PROCESS))
    without_peak = [m for m in run.measurements if m.achieved_flops_per_s and m.mfu is None]
    if without_peak and not run.device.is_cpu:
        names = ", ".join(sorted({m.case.precision for m in without_peak}))
        found.append(Finding(kind=FindingKind.NO_PEAK, value=names))
    capped = power_capped(run.device)
    found += [] if capped is None else [capped]
    if (dates := _set_back(run)) is not None:
        found.append(Finding(kind=FindingKind.CLOCK_SET_BACK, value=dates))
    return tuple(found)


def _set_back(run: Run) -> str | None:
    """Name the first two consecutive dates of a run that are out of order; None if there are none."""
    began = {x.sequence: x.began_at for m in run.measurements for x in m.launches if x.sequence is not None}
    stamps = (run.started_at, *(began[place] for place in sorted(began)), run.finished_at)
    known = [stamp for stamp in stamps if stamp is not None]
    for before, after in pairwise(known):
        if datetime.fromisoformat(after) < datetime.fromisoformat(before) - CLOCK_SLACK:
            return f"{before}, then {after}"
    return None


def judge_micro(device: DeviceProfile, result: MicroResult) -> MicroResult:
    """Return a micro-benchmark, with a finding if its rate exceeds what datasheet and clock allow."""
    share = datasheet_share(device, result)
    # Above the limit, the timer did not wait for the operation, or the operation did not do its work. A
    # matrix product may exceed the datasheet by the same factor as the card's clock does.
    limit = clock_ratio(device) if result.name == "gemm" else 1.0
    findings = tuple(f for f in result.findings if f.kind is not FindingKind.IMPLAUSIBLE)
    if share is not None and share > limit:
        findings += (Finding(kind=FindingKind.IMPLAUSIBLE, value=share, limit=limit),)
    return msgspec.structs.replace(result, findings=findings)


def unique(findings: Iterator[Finding]) -> tuple[Finding, ...]:
    """Keep the largest finding of each kind, the first if several are equal; text counts as the largest."""
    kinds = grouped((finding.kind, finding) for finding in findings)
    return tuple(max(of_kind, key=_size) for of_kind in kinds.values())


def _of_precision(case: Case, launch: Launch) -> Iterator[Finding]:
    if launch.switches is not None and (wrong := launch.switches.unexpected(case.precision)):
        yield Finding(kind=FindingKind.SWITCHES_CHANGED, value=wrong)
    if case.precision is Precision.FP32:
        for operator, error in launch.precision_errors.items():
            limit = case.precision.facts.error_limit(operator)
            if error is None or not error <= limit:  # NaN proves nothing either
                yield Finding(
                    kind=FindingKind.TF32_IN_FORCE,
                    value="not finite" if error is None else error,
                    limit=limit,
                )
    yield from _unproven(case.precision, launch)
    if launch.memory_errors:
        yield Finding(kind=FindingKind.MEMORY_ERRORS, value=launch.memory_errors, limit=0)
    limit = case.precision.facts.loss_error
    for error in (launch.reference_error, launch.graph_error):
        if error is not None and not error <= limit:
            yield Finding(kind=FindingKind.LOSS_DIFFERS, value=error, limit=limit)


def _unproven(precision: Precision, launch: Launch) -> Iterator[Finding]:
    """Flag a proof that is missing, that TF32 would pass too, or that ran without autocast."""
    if precision is Precision.FP32 and not launch.precision_errors and launch.rounds:
        yield Finding(kind=FindingKind.PRECISION_UNPROVEN)
    for operator, error in launch.control_errors.items():
        if error is None or not error > precision.facts.error_limit(operator):
            yield Finding(kind=FindingKind.PRECISION_UNPROVEN, value=f"{operator} under TF32")
    for operator, error in launch.precision_errors.items():
        if precision.is_amp and (error is None or not math.isfinite(error)):
            yield Finding(kind=FindingKind.PRECISION_UNPROVEN, value=f"{operator} under autocast")


def _of_loss(case: Case, launch: Launch) -> Iterator[Finding]:
    losses = loss_trace((launch,))
    bad = [loss for loss in losses if loss is None or not math.isfinite(loss)]
    if bad:
        yield Finding(kind=FindingKind.LOSS_NOT_FINITE, value=f"{len(bad)} of {len(losses)} losses")
        return
    if case.task is not TaskKind.TRAIN:
        return
    if launch.parameters_moved is False:
        yield Finding(kind=FindingKind.PARAMETERS_FROZEN)
    if (ends := loss_ends(launch)) is not None and ends[1] >= ends[0]:
        yield Finding(kind=FindingKind.LOSS_NOT_FALLING, value=ends[1], limit=ends[0])
    if launch.skipped_steps and launch.timed_steps:
        share = launch.skipped_steps / launch.timed_steps
        if share >= SKIPPED_STEPS:
            yield Finding(kind=FindingKind.STEPS_SKIPPED, value=share, limit=SKIPPED_STEPS)


def _of_clock(launch: Launch) -> Iterator[Finding]:
    """Compare the time of the rounds after the first with the time over which they reached the parent.

    Rounds that were timed by the difference between two calls are not compared, because the time of their
    repeated calls is not recorded.
    """
    if not launch.told_in_s or any(done.call_s is not None for done in launch.rounds):
        return
    share = sum(done.wall_s for done in launch.rounds[1:]) / launch.told_in_s
    if share < LEAST_OF_ARRIVALS:
        yield Finding(kind=FindingKind.CLOCK_DISAGREES, value=share, limit=LEAST_OF_ARRIVALS)


def _of_rounds(launch: Launch, target: float | None) -> Iterator[Finding]:
    # Judge the rounds, and check again with the stop rule whether there are enough.
    steps = launch.step_times_s
    if len(steps) >= 2:
        middle = median(steps)
        noise = stats.interquartile_range(steps) / middle
        if noise > NOISE:
            yield Finding(kind=FindingKind.NOISY, value=noise, limit=NOISE)
        if max(steps) > GAP * middle:
            yield Finding(kind=FindingKind.CLOCK_GAP, value=max(steps) / middle, limit=GAP)
    if target is not None and launch.accepted:
        rule = StopRule(target=target, rounds=steps, walls=[r.wall_s for r in launch.accepted])
        if (unmet := rule.unmet()) is not None:
            yield unmet


def _of_telemetry(launch: Launch) -> Iterator[Finding]:
    """Judge the energy reading, and what lowered the clocks, by samples and by the driver's own counters."""
    region_s = sum(r.wall_s for r in launch.rounds)
    if launch.telemetry_source == "hung":
        yield Finding(kind=FindingKind.TELEMETRY_HUNG)
    if launch.telemetry_source not in {None, "none"}:
        implausible = any(f.kind is FindingKind.ENERGY_IMPLAUSIBLE for f in launch.findings)
        if launch.energy_source == "power_integral":
            yield Finding(kind=FindingKind.NO_ENERGY_COUNTER, value="energy is integrated from power instead")
        elif launch.energy_source is None and not implausible and region_s >= TELLING_REGION_S:
            yield Finding(kind=FindingKind.NO_ENERGY_COUNTER)
    shares = _reason_shares(launch)
    known = {policy: held_s for policy, held_s in launch.held_clocks_s.items() if held_s is not None}
    # The counters also run between rounds, so their span is that of the samples, if there are samples.
    span_s = max([region_s, *(sample.t_s for sample in launch.timed_telemetry)])
    held = {policy: min(1.0, held_s / span_s) for policy, held_s in known.items()} if region_s else {}
    limited = max(shares.get(POWER_CAP, 0.0), held.get("power", 0.0))
    if limited >= POWER_SHARE:
        yield Finding(kind=FindingKind.POWER_LIMITED, value=limited, limit=POWER_SHARE)
    slowed = max(shares.get("any slowdown", 0.0), held.get("thermal", 0.0))
    braked = shares.get(POWER_BRAKE, 0.0)
    if slowed >= SLOWDOWN_SHARE or braked > 0:
        yield Finding(kind=FindingKind.THROTTLED, value=max(slowed, braked), limit=SLOWDOWN_SHARE)
    others = set(shares) - SLOWDOWNS - {POWER_BRAKE, POWER_CAP, "any slowdown"}
    others |= {policy for policy in NOTED_POLICIES if held.get(policy, 0.0) >= SLOWDOWN_SHARE}
    if others:
        yield Finding(kind=FindingKind.CLOCK_EVENTS, value=", ".join(sorted(others)))


def _reason_shares(launch: Launch) -> dict[str, float]:
    """Return the share of the timed samples with each clock event reason, and with any slowdown."""
    read = [{*s.clock_event_reasons} for s in launch.timed_telemetry if s.clock_event_reasons is not None]
    held = Counter(name for reasons in read for name in reasons)
    held["any slowdown"] = sum(not SLOWDOWNS.isdisjoint(reasons) for reasons in read)
    return {name: samples / len(read) for name, samples in held.items() if samples}


def _of_host(measurement: Measurement, siblings: Sequence[Measurement]) -> Iterator[Finding]:
    """Flag an eager row if the host limits its speed, by the best available evidence."""
    case = measurement.case
    if case.execution is not Execution.EAGER:
        return
    twin = msgspec.structs.replace(case, execution=Execution.GRAPH)
    graph = next((m for m in siblings if m.case == twin and m.status is Status.OK), None)
    if graph and graph.step_time_s and measurement.step_time_s:
        slower = measurement.step_time_s / graph.step_time_s
        if slower > EAGER_OVER_GRAPH:
            yield Finding(kind=FindingKind.HOST_BOUND, value=slower, limit=EAGER_OVER_GRAPH)
            return
    idles = [s.idle for x in measurement.launches for s in x.timed_telemetry if s.idle is not None]
    busy, idle = measurement.gpu_busy, fmean(idles) if idles else None
    if busy is not None and busy < LEAST_BUSY:
        yield Finding(kind=FindingKind.HOST_BOUND, value=busy, limit=LEAST_BUSY)
    elif idle:
        yield Finding(kind=FindingKind.HOST_BOUND, value=idle, limit=0.0)
    elif busy is None and graph is None:
        # An unfused optimizer makes the scaler wait inside a step, so the step's issue time shows nothing.
        scaled = case.precision.facts.scales_gradients and case.task is TaskKind.TRAIN
        launches = (launch for launch in measurement.launches if launch.fused or not scaled)
        shares = [
            issue / whole
            for times in (launch.host_issue_s for launch in launches)
            for issue, whole in zip(times[::2], times[1::2], strict=False)
            if issue is not None and whole
        ]
        if shares and median(shares) >= HOST_ISSUE:
            yield Finding(kind=FindingKind.HOST_BOUND, value=median(shares), limit=HOST_ISSUE)


def _of_spread(measurement: Measurement) -> Iterator[Finding]:
    """Flag a device that is still warming up, and launches that differ by more than target or ``NOISE``."""
    between, target = measurement.between_launches, measurement.target
    if measurement.slowing_to_come is not None and heat.is_warming_up(measurement.moments):
        yield Finding(kind=FindingKind.NOT_HEAT_SOAKED, value=measurement.slowing_to_come)
    if between is not None and target is not None and between > target:
        yield Finding(kind=FindingKind.LAUNCHES_DIFFER, value=between, limit=target)
    if between is not None and between > NOISE:
        yield Finding(kind=FindingKind.NOISY, value=between, limit=NOISE)


def _of_flops(measurement: Measurement) -> Iterator[Finding]:
    """Compare the counted rate with the peak, and with the fastest matrix product.

    A row beyond the peak is impossible. A row that is only faster than the product is sound if its loss
    matches the CPU's: something slowed the product, as other programs on a CPU can. Convolutions at fp32 may
    exceed either, because they do fewer multiplications than are counted, so the limit is higher for them.
    """
    share = measurement.mfu if measurement.hfu is None else measurement.hfu
    limit, over = measurement.most_utilization, measurement.share_of_gemm or 0.0
    if share is not None and share > limit:
        yield Finding(kind=FindingKind.IMPLAUSIBLE, value=share, limit=limit)
    elif over > limit:
        yield Finding(kind=FindingKind.PRODUCT_IMPLAUSIBLE, value=over, limit=limit)
    elif max(share or 0.0, over) > 1.0:
        yield Finding(kind=FindingKind.ABOVE_PEAK, value=max(share or 0.0, over), limit=1.0)


def scaling_of(measurement: Measurement, siblings: Sequence[Measurement]) -> Finding | None:
    """Flag a job on N GPUs that is more than N times as fast as one GPU of the same run, beyond a tolerance.

    Both rows are uncertain, so the lower end of the ratio's interval counts; without an interval, the ratio.
    """
    count = measurement.case.gpu_count
    if count == 1 or measurement.samples_per_s is None:
        return None
    single = measurement.case.on_one_gpu
    base = next((m for m in siblings if m.case == single and m.samples_per_s), None)
    if base is None:
        return None
    times, limit = ratio(measurement, base), count * SCALING_TOLERANCE
    least = times.value if times.low is None else times.low
    if least is None or least <= limit:
        return None
    return Finding(kind=FindingKind.SCALING, value=times.value, limit=limit)


def _size(finding: Finding) -> float:
    # Return the absolute value of a finding: text and NaN are the largest, None is the smallest.
    if finding.value is None:
        return -1.0
    if isinstance(finding.value, str) or math.isnan(finding.value):
        return math.inf
    return abs(finding.value)


# --- losses -----------------------------------------------------------------------------------------------


LEAST_PAIRS = 4
"""Fewer pairs of an early and a late loss of the same batch give no verdict. With four pairs, a loss that
falls by a third of its own noise in each step is flagged as not falling in 3 % of rows; with one, in 17 %."""


def loss_trace(launches: Sequence[Launch]) -> tuple[float | None, ...]:
    """Return the losses of the first launch from the seed on: single steps, then the end of each round."""
    if not launches:
        return ()
    first = launches[0]
    return (*first.loss_curve, *(r.loss for r in (*first.warmup, *first.rounds)))


def loss_ends(launch: Launch) -> tuple[float, float] | None:
    """Return the mean of early losses and of the last losses, over the same batches.

    The last losses are the last fifth, but at least four. Each is paired with an early loss of the same
    batch: the latest with the earliest. The result is None if there are fewer than four pairs, or if a loss
    is unknown. The rounds start over at the first batch, and the loss of a round is that of its last step.
    """
    losses = loss_trace((launch,))
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses):
        return None
    rounds = (*launch.warmup, *launch.rounds)
    # All steps count as one batch if the number of batches is unknown or a framework reports mean losses.
    count = 1 if any(r.call_s is not None for r in rounds) else launch.batch_count or 1
    steps = [*range(len(launch.loss_curve)), *(done - 1 for done in accumulate(r.steps for r in rounds))]
    split = len(known) - max(LEAST_PAIRS, len(known) // 5)
    of_batches = [(step % count, loss) for step, loss in zip(steps, known, strict=True)]
    early, late = grouped(of_batches[:split]), grouped(of_batches[split:])
    pairs = [
        pair
        for batch, losses_late in late.items()
        for pair in zip(early.get(batch, ()), reversed(losses_late), strict=False)
    ]
    if len(pairs) < LEAST_PAIRS:
        return None
    first, last = zip(*pairs, strict=True)
    return fmean(first), fmean(last)
