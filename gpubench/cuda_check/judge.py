"""What the readings of a check mean: pure functions of its file, so that new rules can judge an old one.

Nothing is held against a reference card: each rule holds two readings of one card against each other. A ratio
fails only where its whole interval lies outside the limits; where it lies neither inside nor outside it is
undecided, which is no failure and no confirmation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median

import msgspec

from gpubench.cuda_check.judge_cases import of_cases, of_compile, of_faults, of_quick, of_scaling, of_strict
from gpubench.cuda_check.verdict import Verdict, error_text, judge_ratio, passed
from gpubench.measure.checks import IEEE_ERROR
from gpubench.measure.energy import power_integral
from gpubench.models import (
    ClockProof,
    CudaCheck,
    Identity,
    LoadProof,
    PartLog,
    PartState,
    Precision,
    PrecisionProof,
)
from gpubench.units import format_duration, format_number, format_percent

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
CORE = frozenset({"precision", "clock", "graph", "faults", "fp32"})
"""Parts without which nothing is confirmed."""
UNPROVEN: Identity = "name and SM count only"


def judge(check: CudaCheck) -> tuple[Verdict, ...]:
    """Judge every part of a check; one that did not end says why, beside what it read before."""
    return tuple(verdict for part in check.parts for verdict in _of_part(check, part))


def failed(verdicts: Iterable[Verdict]) -> bool:
    """Whether anything failed."""
    return any(verdict.state == "FAILED" for verdict in verdicts)


def cut_off(verdicts: Iterable[Verdict]) -> bool:
    """Whether anything gave no answer in all the time that was expected of it."""
    return any(verdict.state == "cut off" for verdict in verdicts)


def confirms(check: CudaCheck) -> bool:
    """Whether a check confirms its card.

    It ended, its core parts were done, nothing failed or was cut off, and nothing was left undecided. The
    cases that there was no time for do not matter: all that was read agreed. How a job scales over several
    GPUs may stay undecided: it hangs on what connects them, and what is confirmed is one card.
    """
    verdicts = judge(check)
    done = {part.name for part in check.parts if part.state is PartState.DONE}
    open_ones = {v.state for v in verdicts if v.part != "scaling" or v.state != "undecided"}
    settled = open_ones.isdisjoint({"FAILED", "cut off", "undecided"})
    return check.finished_at is not None and done >= CORE and settled


def _of_part(check: CudaCheck, log: PartLog) -> Iterator[Verdict]:
    if log.state is PartState.FAILED:
        yield Verdict(part=log.name, what="the part itself", state="FAILED", reason=log.reason)
    elif log.state is PartState.CUT_OFF:
        yield Verdict(
            part=log.name,
            what="the part itself",
            state="cut off",
            found=f"no end in {format_duration(log.took_s or 0.0)}",
            limit=f"about {format_duration(log.expected_s)}",
            reason=f"{log.reason}: it hangs, or this machine is far slower than planned",
        )
    elif log.state is not PartState.DONE:
        yield Verdict(
            part=log.name, what="the part itself", state="left out", found=log.state, reason=log.reason
        )
    yield from _JUDGES[log.name](check) if log.name in _JUDGES else ()


# --- device, precision -----------------------------------------------------------------------------------


def _of_device(check: CudaCheck) -> Iterator[Verdict]:
    if check.nvml:
        refused = sum(call.get("code") != 0 for call in check.nvml)
        found = f"{len(check.nvml)} calls, {refused} refused"
        yield Verdict(part="device", what="driver library", state="shown", found=found)
    for finding in check.findings:
        yield Verdict(part="device", what=finding.kind, state="shown", found=f"{finding.value}")


def _of_precisions(check: CudaCheck) -> Iterator[Verdict]:
    if check.identity is not None:
        yield _identity(check, check.identity)
    for proof in check.precisions:
        if proof.precision is not Precision.FP32:
            yield _of_precision("precision", proof)


def _identity(check: CudaCheck, identity: Identity) -> Verdict:
    """Name and SM count prove nothing: of one such GPU they tell enough, of several any may be meant."""
    proven = identity != UNPROVEN
    alike = sum(
        call.get("function") == "nvmlDeviceGetName" and call.get("value") == check.device.name
        for call in check.nvml
    )
    reason = f"identity not proven: {alike or 'unknown how many'} of this name here, and CUDA tells no bus id"
    return Verdict(
        part="precision",
        what="CUDA's device and NVML's",
        state="ok" if proven or alike == 1 else "undecided",
        found=f"one, by {identity}",
        limit="one",
        reason=None if proven else reason,
    )


def _of_fp32(check: CudaCheck) -> Iterator[Verdict]:
    for proof in check.precisions:
        if proof.precision is Precision.FP32:
            yield _of_precision("fp32", proof)
    yield from of_strict(check)


def _of_precision(part: str, proof: PrecisionProof) -> Verdict:
    strict = proof.precision is Precision.FP32
    limit = proof.precision.facts.product_error
    reason = _why_wrong(proof, limit)
    errors = (f"{name} {error_text(error)}" for name, error in proof.errors.items())
    return Verdict(
        part=part,
        what=f"{proof.precision} against float64",
        state=passed(right=reason is None),
        found=", ".join(errors),
        limit=f"at most {limit:.0e}" + ("" if strict else f", matmul over {IEEE_ERROR:.0e}"),
        reason=reason,
    )


def _why_wrong(proof: PrecisionProof, limit: float) -> str | None:
    """Say what is wrong with a precision: a switch, an error beyond its limit, or that it has no effect."""
    if wrong := proof.switches.unexpected(proof.precision):
        return f"{wrong} read back"
    beyond = [name for name, error in proof.errors.items() if error is None or not error <= limit]
    if beyond:
        return f"{', '.join(beyond)}: further from float64 than {proof.precision} may be"
    matmul = proof.errors.get("matmul")
    if proof.precision is not Precision.FP32 and matmul is not None and matmul <= IEEE_ERROR:
        return f"the matrix product is exact to {matmul:.1e}: {proof.precision} was not in effect"
    return None


# --- clock, graph, load ----------------------------------------------------------------------------------


def _of_clock(check: CudaCheck) -> Iterator[Verdict]:
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
    times = (proof.events.second_s, proof.by_hand.first_s, proof.issue_s)
    verdict = Verdict(
        part="clock",
        what="time of a step without waiting",
        state="undecided",
        limit=f"under {UNSYNCHRONIZED:g} of that with",
        reason="this case is CPU-bound: it decides nothing",
    )
    if not all(times):
        return verdict
    device_s, wall_s, issue_s = map(median, times)
    if issue_s > GPU_BOUND * device_s:
        return verdict
    right = issue_s < UNSYNCHRONIZED * wall_s
    return msgspec.structs.replace(
        verdict,
        state=passed(right=right),
        found=f"{format_duration(issue_s)} of {format_duration(wall_s)}",
        reason=None if right else "the clock of the rounds does not wait for the device",
    )


def _of_graph(check: CudaCheck) -> Iterator[Verdict]:
    if check.graph is not None:
        yield judge_ratio("graph", "replays over a graph by hand", check.graph.by_hand, GRAPH)


def _of_load(check: CudaCheck) -> Iterator[Verdict]:
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
    verdict = Verdict(
        part="load",
        what="energy counted over power shown",
        state="left out",
        limit=f"within {format_percent(ENERGY)}",
    )
    before, after = proof.energy_edges_j
    if before is None or after is None:
        return msgspec.structs.replace(verdict, reason="this device has no energy counter")
    shown_j = power_integral(proof.samples, proof.region_s)
    if shown_j is None:
        return msgspec.structs.replace(verdict, reason="the power samples do not cover the load")
    ratio = (after - before) / shown_j
    right = abs(ratio - 1) <= ENERGY
    joules = f"{format_number(after - before)} J counted, {format_number(shown_j)} J shown"
    return msgspec.structs.replace(
        verdict,
        state=passed(right=right),
        found=f"{ratio:.3f} at {format_number(shown_j / proof.region_s)} W",
        reason=None if right else joules,
    )


_JUDGES: dict[str, Callable[[CudaCheck], Iterator[Verdict]]] = {
    "device": _of_device,
    "precision": _of_precisions,
    "clock": _of_clock,
    "graph": _of_graph,
    "load": _of_load,
    "cases": of_cases,
    "compile": of_compile,
    "faults": of_faults,
    "fp32": _of_fp32,
    "scaling": of_scaling,
    "quick": of_quick,
}
