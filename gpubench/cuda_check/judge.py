"""What the readings of a check mean: pure functions of its file, so that new rules can judge an old one.

Nothing is held against a reference card: each rule holds two readings of one card against each other. A
ratio fails only where its whole interval lies outside the limits; where it lies neither inside nor outside it
is undecided, which is no failure and no confirmation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Literal

import msgspec

from gpubench import stats
from gpubench.executions import REFUSED_IN_CAPTURE
from gpubench.interval import Interval
from gpubench.measure.checks import IEEE_ERROR
from gpubench.measure.telemetry import power_integral
from gpubench.models import (
    Blocks,
    CaseRow,
    Cause,
    CudaCheck,
    Execution,
    FindingKind,
    Identity,
    PartLog,
    PartState,
    Precision,
    PrecisionProof,
    Status,
)
from gpubench.precisions import RECURRENT
from gpubench.units import format_bytes, format_duration, format_number, format_percent, plain

State = Literal["ok", "FAILED", "cut off", "undecided", "left out", "shown"]
"""``cut off`` gave no answer in its time, for ``left out`` there was none; ``shown`` is not judged."""
CORE = frozenset({"precision", "clock", "graph", "faults"})
"""Parts without which nothing is confirmed."""
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
ROOMY = 0.5
"""A case that takes less than this of the memory, by the memory model, must not run out of it."""
UNCOMPILED = frozenset({"lstm", "lstm_large"})
"""Workloads of little but a fused recurrent layer: torch.compile may find nothing to compile in them."""
MOST_NAMED = 4
LONGEST = 160


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


def judge(check: CudaCheck) -> tuple[Verdict, ...]:
    """Judge every part of a check; one that did not end says why, beside what it read before."""
    verdicts: list[Verdict] = []
    for log in check.parts:
        if log.state is not PartState.DONE:
            verdicts.append(_of_the_part(log))
        if rule := _RULES.get(log.name):
            verdicts += rule(check)
    return tuple(verdicts)


def _of_the_part(log: PartLog) -> Verdict:
    itself = partial(Verdict, part=log.name, what="the part itself")
    if log.state is PartState.FAILED:
        return itself(state="FAILED", reason=log.reason)
    if log.state is PartState.CUT_OFF:
        found = f"no end in {format_duration(log.took_s or 0.0)}"
        reason = f"{log.reason}: it hangs, or this machine is slow"
        return itself(state="cut off", found=found, reason=reason)
    return itself(state="left out", found=log.state, reason=log.reason)


def failed(verdicts: Iterable[Verdict]) -> bool:
    """Whether anything failed."""
    return any(verdict.state == "FAILED" for verdict in verdicts)


def cut_off(verdicts: Iterable[Verdict]) -> bool:
    """Whether anything gave no answer in all the time that was expected of it."""
    return any(verdict.state == "cut off" for verdict in verdicts)


def confirms(check: CudaCheck) -> bool:
    """Whether a check confirms its card.

    It ended, its core parts were done, strict fp32 among the precisions, nothing failed or was cut off, and
    nothing was left undecided. The cases that there was no time for do not matter: all that was read agreed.
    """
    states = {verdict.state for verdict in judge(check)}
    done = {part.name for part in check.parts if part.state is PartState.DONE}
    proven = any(proof.precision is Precision.FP32 for proof in check.precisions)
    settled = states.isdisjoint({"FAILED", "cut off", "undecided"})
    return check.finished_at is not None and done >= CORE and proven and settled


def _judged(part: str, what: str, *, found: str, limit: str = "", wrong: str | None) -> Verdict:
    """Judge what is either right or wrong: it failed where something is wrong."""
    state: State = "ok" if wrong is None else "FAILED"
    return Verdict(part=part, what=what, state=state, found=found, limit=limit, reason=wrong)


def _of_ratio(part: str, what: str, blocks: Blocks, limits: tuple[float, float]) -> Verdict:
    """Judge the ratio of two kinds of blocks by its interval."""
    limit = f"{limits[0]:g} to {limits[1]:g}" if limits[0] else f"at most {limits[1]:g}"
    seen = stats.ratio_of_blocks(blocks.first_s, blocks.second_s)
    if seen is None:
        return Verdict(part=part, what=what, state="undecided", limit=limit, reason="too few blocks")
    found = seen.by("{:.4f}".format)
    return Verdict(part=part, what=what, state=_state_of(seen, limits), found=found, limit=limit)


def _state_of(seen: Interval, limits: tuple[float, float]) -> State:
    """Say where an interval lies: inside the limits, outside, or neither; an unknown end is endless."""
    low = -math.inf if seen.low is None else seen.low
    high = math.inf if seen.high is None else seen.high
    if limits[0] <= low and high <= limits[1]:
        return "ok"
    return "FAILED" if high < limits[0] or low > limits[1] else "undecided"


def _error_text(error: float | None) -> str:
    return "not finite" if error is None else f"{error:.1e}"


def _named(texts: Sequence[str]) -> str | None:
    """Name the first few, and how many more there are; None where there are none."""
    more = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return "; ".join(texts[:MOST_NAMED]) + more if texts else None


# --- proofs -------------------------------------------------------------------------------------------


def _of_device(check: CudaCheck) -> Iterator[Verdict]:
    """Show what the driver told."""
    shown = partial(Verdict, part="device", state="shown")
    if check.nvml:
        refused = sum(call.get("code") != 0 for call in check.nvml)
        yield shown(what="driver library", found=f"{len(check.nvml)} calls, {refused} refused")
    for finding in check.findings:
        yield shown(what=finding.kind, found=f"{finding.value}")


def _of_precisions(check: CudaCheck) -> Iterator[Verdict]:
    """Judge whose device CUDA opened, and each precision.

    Name and SM count prove no identity: of one such GPU they tell enough, of several any may be meant.
    """
    if check.identity is not None:
        names = [call.get("value") for call in check.nvml if call.get("function") == "nvmlDeviceGetName"]
        alike, proven = names.count(check.device.name), check.identity != UNPROVEN
        here = f"{alike or 'unknown how many'} of this name here"
        yield Verdict(
            part="precision",
            what="CUDA's device and NVML's",
            state="ok" if proven or alike == 1 else "undecided",
            found=f"one, by {check.identity}",
            limit="one",
            reason=None if proven else f"identity not proven: {here}, and CUDA tells no bus id",
        )
    for proof in check.precisions:
        unshown = [name for name, error in proof.control_errors.items() if not _shows_tf32(name, error)]
        if unshown:
            what, limit = "fp32 under TF32, to show that its proof can fail", "beyond the limits of fp32"
            reason = f"{', '.join(unshown)}: TF32 does not show, so that nothing is proven by it"
            yield Verdict(part="precision", what=what, state="undecided", limit=limit, reason=reason)
        facts = proof.precision.facts
        recurrent = "" if facts.recurrent_error is None else f", {RECURRENT} {facts.recurrent_error:.1e}"
        least = "" if proof.precision is Precision.FP32 else f", matmul over {IEEE_ERROR:.0e}"
        yield _judged(
            "precision",
            f"{proof.precision} against float64",
            found=", ".join(f"{name} {_error_text(error)}" for name, error in proof.errors.items()),
            limit=f"at most {facts.product_error:.0e}{recurrent}{least}",
            wrong=_why_wrong(proof),
        )


def _shows_tf32(operator: str, error: float | None) -> bool:
    return error is not None and error > Precision.FP32.facts.error_limit(operator)


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


def _of_clock(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the clock; where the host sets the pace, times with and without waiting need not differ."""
    proof = check.clock
    if proof is None:
        return
    yield _of_ratio("clock", "rounds over device events", proof.events, EVENTS)
    by_hand = _of_ratio("clock", "rounds over a loop by hand", proof.by_hand, BY_HAND)
    what, limit = "time of a step without waiting", f"under {UNSYNCHRONIZED:g} of that with"
    times = (proof.events.second_s, proof.by_hand.first_s, proof.issue_s)
    device_s, wall_s, issue_s = map(median, times) if all(times) else (0.0, 0.0, math.inf)
    if issue_s <= GPU_BOUND * device_s:
        right = issue_s < UNSYNCHRONIZED * wall_s
        wrong = None if right else "the clock of the rounds does not wait for the device"
        found = f"{format_duration(issue_s)} of {format_duration(wall_s)}"
        yield by_hand
        yield _judged("clock", what, found=found, limit=limit, wrong=wrong)
    else:
        reason = "this case is CPU-bound: it decides nothing"
        yield msgspec.structs.replace(by_hand, state="undecided", reason=reason)
        yield Verdict(part="clock", what=what, state="undecided", limit=limit, reason=reason)


def _of_graph(check: CudaCheck) -> Iterator[Verdict]:
    if check.graph is not None:
        yield _of_ratio("graph", "replays over a graph by hand", check.graph.by_hand, GRAPH)


def _of_load(check: CudaCheck) -> Iterator[Verdict]:
    """Judge what the device told under a long load, and what it costs to ask."""
    proof = check.load
    if proof is None:
        return
    what, limit = "energy counted over power shown", f"within {format_percent(ENERGY)}"
    before, after = proof.energy_edges_j
    shown_j = power_integral(proof.samples, proof.region_s)
    if before is None or after is None or shown_j is None:
        no_power = "the power samples do not cover the load"
        reason = "this device has no energy counter" if None in proof.energy_edges_j else no_power
        yield Verdict(part="load", what=what, state="left out", limit=limit, reason=reason)
    else:
        ratio = (after - before) / shown_j
        joules = f"{format_number(after - before)} J counted, {format_number(shown_j)} J shown"
        found = f"{ratio:.3f} at {format_number(shown_j / proof.region_s)} W"
        wrong = None if abs(ratio - 1) <= ENERGY else joules
        yield _judged("load", what, found=found, limit=limit, wrong=wrong)
    what = "rounds with telemetry over rounds without"
    if proof.sampled.first_s:
        yield _of_ratio("load", what, proof.sampled, SAMPLING)
    else:
        reason = f"telemetry of this device: {proof.telemetry_source}"
        yield Verdict(part="load", what=what, state="left out", reason=reason)


# --- a few steps --------------------------------------------------------------------------------------


def fault_of(row: CaseRow, memory_bytes: int | None) -> str | None:
    """Say what is wrong with a case; None where nothing is, or where it says nothing against the path.

    A card that is too small for a case runs out of memory, and a model of one recurrent layer may leave
    nothing to compile.
    """
    if _is_excused(row, memory_bytes):
        return None
    if row.status is not Status.OK:
        return f"{row.status}: {row.reason}"
    limit = row.case.precision.facts.loss_error
    errors = {"reference": row.reference_error}
    if row.case.execution is not Execution.EAGER:
        errors[str(row.case.execution)] = row.graph_error
    for name, error in errors.items():
        if error is None or not error <= limit:
            return f"{name} error {_error_text(error)}, limit {limit:.0e}"
    if not row.peak_memory_bytes:
        return "no peak memory"
    wrong = [str(f.kind) for f in row.findings if f.kind is not FindingKind.ONE_BATCH]
    return ", ".join(wrong) or None


def _is_excused(row: CaseRow, memory_bytes: int | None) -> bool:
    case = row.case
    if row.status is Status.UNSUPPORTED:
        return case.execution is Execution.COMPILE and case.workload in UNCOMPILED
    if row.status is not Status.OUT_OF_MEMORY or row.expected_bytes is None or memory_bytes is None:
        return False
    return row.expected_bytes > ROOMY * memory_bytes


def _of_rows(part: str, check: CudaCheck) -> Iterator[Verdict]:
    """Judge the cases of a part; of the compiled, which are few, each one not tried or not here is named."""
    compiled = part == "compile"
    rows = [row for row in check.cases if (row.case.execution is Execution.COMPILE) == compiled]
    late = [label for label in check.left_out if (Execution.COMPILE in label.split()) == compiled]
    seen = [(row, fault_of(row, check.device.memory_bytes)) for row in rows]
    excused = [row for row, fault in seen if fault is None and row.status is not Status.OK]
    if rows:
        faults = [f"{row.case.label}: {plain(fault, LONGEST)}" for row, fault in seen if fault is not None]
        sound = len(rows) - len(faults) - len(excused)
        yield _judged(
            part,
            f"a few steps of each case{' tried' if late else ''}",
            found=f"{sound} of {len(rows)} sound" + (f", {len(excused)} not here" if excused else ""),
            limit="loss within its precision",
            wrong=_named(faults),
        )
    errors = [row.graph_error for row in rows if row.graph_error is not None]
    if errors:
        what = "largest difference of losses from eager ones"
        yield Verdict(part=part, what=what, state="shown", found=f"{max(errors):.1e}")
    for row in excused:
        if row.status is Status.UNSUPPORTED:
            why = f"{row.case.label}: {plain(row.reason or '', LONGEST)}"
            yield Verdict(part=part, what="case not here", state="shown", found=row.status, reason=why)
    if late:
        reason = _named([*dict.fromkeys(check.left_out[label] for label in late)])
        yield Verdict(
            part=part,
            what="cases not tried",
            state="left out",
            found=f"{len(late)} of {len(rows) + len(late)}",
            reason=f"{', '.join(late)}: {reason}" if compiled else reason,
        )


def _of_faults(check: CudaCheck) -> Iterator[Verdict]:
    """Judge what became of each injected fault, and of the case after it.

    A model that waits inside a capture is unsupported, by CUDA's own refusal, not by what followed.
    """
    faults, memory = check.faults, check.device.memory_bytes
    if (row := faults.waiting) is not None:
        told = row.cause is Cause.REFUSED_IN_CAPTURE
        if check.schema_version < 3:  # which has the words alone
            told = REFUSED_IN_CAPTURE in (row.reason or "")
        right = row.status is Status.UNSUPPORTED and told
        what, limit = "a model that waits, captured", "unsupported, with its cause"
        wrong = None if right else f"{row.status}: {row.reason}"
        yield _judged("faults", what, found=row.status, limit=limit, wrong=wrong)
    yield from _sound("the case after the refused capture", faults.after_waiting, memory)
    if (row := faults.too_large) is not None:
        what = f"batch {row.case.batch_size:,} in {format_bytes(faults.cap_bytes)}"
        wrong = "it fit" if row.status is Status.OK else f"{row.status}: {row.reason}"
        wrong = None if row.status is Status.OUT_OF_MEMORY else wrong
        found = str(row.status).replace("_", " ")
        yield _judged("faults", what, found=found, limit="out of memory", wrong=wrong)
    yield from _sound("the case after the lack of memory", faults.after_too_large, memory)
    measured = faults.at_largest
    ended = any(log.name == "faults" and log.state is PartState.DONE for log in check.parts)
    if faults.tried and (ended or measured is not None):  # else the part itself says how it ended
        good = max((batch for batch, fits in faults.tried if fits), default=0)
        right = measured is not None and measured.status is Status.OK and measured.case.batch_size == good
        wrong = "it was not measured" if measured is None else f"{measured.status}: {measured.reason}"
        yield _judged(
            "faults",
            f"largest batch in {format_bytes(faults.cap_bytes)}",
            found=f"{good:,} after {len(faults.tried)} trials",
            limit="measured at it",
            wrong=None if right else wrong,
        )


def _sound(what: str, row: CaseRow | None, memory_bytes: int | None) -> Iterator[Verdict]:
    if row is not None:
        fault = fault_of(row, memory_bytes)
        found = "sound" if fault is None else "not sound"
        yield _judged("faults", what, found=found, limit="sound", wrong=fault)


_RULES: dict[str, Callable[[CudaCheck], Iterator[Verdict]]] = {
    "device": _of_device,
    "precision": _of_precisions,
    "clock": _of_clock,
    "graph": _of_graph,
    "load": _of_load,
    "faults": _of_faults,
    "compile": partial(_of_rows, "compile"),
    "cases": partial(_of_rows, "cases"),
}
"""What judges each part, by its name."""
