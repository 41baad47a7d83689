"""What the proofs of a check mean, the judgment itself, and the one rule for ratios.

A ratio fails only where its whole interval lies outside the limits; where it lies neither inside nor outside
it is undecided, which is no failure and no confirmation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Literal

import msgspec

from gpubench import stats
from gpubench.interval import Interval
from gpubench.measure.checks import IEEE_ERROR
from gpubench.measure.telemetry import power_integral
from gpubench.models import (
    Blocks,
    ClockProof,
    CudaCheck,
    Identity,
    LoadProof,
    Precision,
    PrecisionProof,
)
from gpubench.precisions import RECURRENT
from gpubench.units import format_duration, format_number, format_percent

State = Literal["ok", "FAILED", "cut off", "undecided", "left out", "shown"]
"""``cut off`` gave no answer in its time, for ``left out`` there was none; ``shown`` is not judged."""
BY_HAND = (0.99, 1.01)
EVENTS = (0.98, 1.02)
GRAPH = (0.98, 1.02)
SAMPLING = (0.0, 1.005)
GPU_BOUND = 0.8
"""Where issuing a step takes less than this share of the device's time for it, the GPU sets the pace."""
UNSYNCHRONIZED = 0.8
"""A time without waiting must be this much shorter than the time with it."""
ENERGY = 0.10
"""Power is an average over a second or less, the counter steps every 0.1 s: over ten seconds they agree."""
UNPROVEN: Identity = "name and SM count only"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One judgment.

    Attributes:
        part: The part of the check that read it.
        what: What was held against what.
        found: The figure, for people.
        limit: What is allowed; empty where nothing is.
        reason: What went wrong, or why nothing was found.
    """

    part: str
    what: str
    state: State
    found: str = ""
    limit: str = ""
    reason: str | None = None


def judged(part: str, what: str, *, found: str, limit: str = "", wrong: str | None) -> Verdict:
    """Judge what is either right or wrong: it failed where something is wrong."""
    state: State = "ok" if wrong is None else "FAILED"
    return Verdict(part=part, what=what, state=state, found=found, limit=limit, reason=wrong)


def judge_ratio(part: str, what: str, blocks: Blocks, limits: tuple[float, float]) -> Verdict:
    """Judge the ratio of two kinds of blocks by its interval.

    It fails only where the whole interval lies outside the limits, and is sound where all of it lies inside.
    """
    least, most = limits
    limit = f"{least:g} to {most:g}" if least else f"at most {most:g}"
    seen = stats.ratio_of_blocks(blocks.first_s, blocks.second_s)
    if seen is None:
        return Verdict(part=part, what=what, state="undecided", limit=limit, reason="too few blocks")
    found = seen.by("{:.4f}".format)
    return Verdict(part=part, what=what, state=state_of(seen, limits), found=found, limit=limit)


def state_of(seen: Interval, limits: tuple[float, float]) -> State:
    """Say where an interval lies: inside the limits, outside, or neither; an unknown end is endless."""
    least, most = limits
    low = -math.inf if seen.low is None else seen.low
    high = math.inf if seen.high is None else seen.high
    if least <= low and high <= most:
        return "ok"
    return "FAILED" if high < least or low > most else "undecided"


def error_text(error: float | None) -> str:
    """Return a relative error for people; None is one that is not finite."""
    return "not finite" if error is None else f"{error:.1e}"


# --- device, precision --------------------------------------------------------------------------------


def of_device(check: CudaCheck) -> Iterator[Verdict]:
    """Show what the driver told."""
    if check.nvml:
        refused = sum(call.get("code") != 0 for call in check.nvml)
        found = f"{len(check.nvml)} calls, {refused} refused"
        yield Verdict(part="device", what="driver library", state="shown", found=found)
    for finding in check.findings:
        yield Verdict(part="device", what=finding.kind, state="shown", found=f"{finding.value}")


def of_precisions(check: CudaCheck) -> Iterator[Verdict]:
    """Judge whose device CUDA opened, and each precision.

    Name and SM count prove no identity: of one such GPU they tell enough, of several any may be meant.
    """
    if check.identity is not None:
        alike = sum(
            call.get("function") == "nvmlDeviceGetName" and call.get("value") == check.device.name
            for call in check.nvml
        )
        here = alike or "unknown how many"
        proven = check.identity != UNPROVEN
        yield Verdict(
            part="precision",
            what="CUDA's device and NVML's",
            state="ok" if proven or alike == 1 else "undecided",
            found=f"one, by {check.identity}",
            limit="one",
            reason=None
            if proven
            else f"identity not proven: {here} of this name here, and CUDA tells no bus id",
        )
    yield from map(_of_precision, check.precisions)


def _of_precision(proof: PrecisionProof) -> Verdict:
    strict = proof.precision is Precision.FP32
    facts = proof.precision.facts
    recurrent = "" if facts.recurrent_error is None else f", {RECURRENT} {facts.recurrent_error:.1e}"
    errors = (f"{name} {error_text(error)}" for name, error in proof.errors.items())
    return judged(
        "precision",
        f"{proof.precision} against float64",
        found=", ".join(errors),
        limit=f"at most {facts.product_error:.0e}{recurrent}"
        + ("" if strict else f", matmul over {IEEE_ERROR:.0e}"),
        wrong=_why_wrong(proof),
    )


def _why_wrong(proof: PrecisionProof) -> str | None:
    """Say what is wrong with a precision: a switch, an error beyond its limit, or that it has no effect."""
    if wrong := proof.switches.unexpected(proof.precision):
        return f"{wrong} read back"
    limit = proof.precision.facts.error_limit
    beyond = [name for name, error in proof.errors.items() if error is None or not error <= limit(name)]
    if beyond:
        return f"{', '.join(beyond)}: further from float64 than {proof.precision} may be"
    matmul = proof.errors.get("matmul")
    if proof.precision is not Precision.FP32 and matmul is not None and matmul <= IEEE_ERROR:
        return f"the matrix product is exact to {matmul:.1e}: {proof.precision} was not in effect"
    return None


# --- clock, graph, load -------------------------------------------------------------------------------


def of_clock(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the clock; where the host sets the pace, times with and without waiting need not differ."""
    proof = check.clock
    if proof is None:
        return
    yield judge_ratio("clock", "rounds over device events", proof.events, EVENTS)
    by_hand = judge_ratio("clock", "rounds over a loop by hand", proof.by_hand, BY_HAND)
    unwaited = _unwaited(proof)
    if unwaited.state == "undecided":
        by_hand = msgspec.structs.replace(by_hand, state="undecided", reason=unwaited.reason)
    yield by_hand
    yield unwaited


def _unwaited(proof: ClockProof) -> Verdict:
    """Hold the time to issue a step against the time of a step in a round."""
    part, what = "clock", "time of a step without waiting"
    limit = f"under {UNSYNCHRONIZED:g} of that with"
    times = (proof.events.second_s, proof.by_hand.first_s, proof.issue_s)
    if all(times):
        device_s, wall_s, issue_s = map(median, times)
        if issue_s <= GPU_BOUND * device_s:
            right = issue_s < UNSYNCHRONIZED * wall_s
            found = f"{format_duration(issue_s)} of {format_duration(wall_s)}"
            wrong = None if right else "the clock of the rounds does not wait for the device"
            return judged(part, what, found=found, limit=limit, wrong=wrong)
    reason = "this case is CPU-bound: it decides nothing"
    return Verdict(part=part, what=what, state="undecided", limit=limit, reason=reason)


def of_graph(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the replays of a graph."""
    if check.graph is not None:
        yield judge_ratio("graph", "replays over a graph by hand", check.graph.by_hand, GRAPH)


def of_load(check: CudaCheck) -> Iterator[Verdict]:
    """Judge what the device told under a long load."""
    proof = check.load
    if proof is None:
        return
    yield _energy(proof)
    what = "rounds with telemetry over rounds without"
    if proof.sampled.first_s:
        yield judge_ratio("load", what, proof.sampled, SAMPLING)
    else:
        reason = f"telemetry of this device: {proof.telemetry_source}"
        yield Verdict(part="load", what=what, state="left out", reason=reason)


def _energy(proof: LoadProof) -> Verdict:
    """Hold the energy counter against the integral of the power shown."""
    part, what, limit = "load", "energy counted over power shown", f"within {format_percent(ENERGY)}"
    before, after = proof.energy_edges_j
    if before is None or after is None:
        reason = "this device has no energy counter"
        return Verdict(part=part, what=what, state="left out", limit=limit, reason=reason)
    shown_j = power_integral(proof.samples, proof.region_s)
    if shown_j is None:
        reason = "the power samples do not cover the load"
        return Verdict(part=part, what=what, state="left out", limit=limit, reason=reason)
    ratio = (after - before) / shown_j
    joules = f"{format_number(after - before)} J counted, {format_number(shown_j)} J shown"
    return judged(
        part,
        what,
        found=f"{ratio:.3f} at {format_number(shown_j / proof.region_s)} W",
        limit=limit,
        wrong=None if abs(ratio - 1) <= ENERGY else joules,
    )
