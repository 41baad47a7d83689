"""The file of a check, and the rules that judge it.

Third-party text is scrubbed before it is written, and the contents of a file are not trusted. The rules are
pure functions, so new rules can judge an old file. Each rule compares two readings of the same card, never
readings of two cards. A ratio fails only if its entire interval is outside the limits. If the interval is
partly inside, the ratio is undecided, which is neither a failure nor a confirmation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from gpubench import stats
from gpubench.executions import REFUSED_IN_CAPTURE
from gpubench.files import write_file
from gpubench.interval import Interval
from gpubench.measure.checks import IEEE_ERROR
from gpubench.measure.launch import power_integral
from gpubench.measure.privacy import scrub
from gpubench.models import (
    Blocks,
    CaseRow,
    Cause,
    CudaCheck,
    DeviceProfile,
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
from gpubench.record.run_file import is_safe_name
from gpubench.specs import find_spec
from gpubench.units import count, format_bytes, format_duration, format_number, format_percent, plain

LONGEST_TEXT = 2000
_OF_ONE_CARD = re.compile("UUID|Serial|PciInfo|Board|MinorNumber|Pids|Accounting|InstanceId")
"""Calls of the driver library that identify an individual card or machine."""
FOREIGN = frozenset({"reason", "traceback", "unavailable", "left_out", "value", "os"})
"""Fields of a check that contain third-party text."""


def file_name(device: DeviceProfile, torch: str | None) -> str:
    """Return the name of a check's file.

    >>> file_name(DeviceProfile(backend="cuda", gpu_key="nvidia-tesla-t4-16gb"), "2.13.0+cu130")
    'cuda-check-nvidia-tesla-t4-16gb-2.13.0-cu130.json'
    """
    return f"cuda-check-{_safe(device.gpu_key or device.name or '')}-{_safe(torch or '')}.json"


def nameless(device: DeviceProfile) -> DeviceProfile:
    """Return a profile without identifiers of the individual card."""
    return msgspec.structs.replace(device, uuid=None, device_id=None, pci_bus_id=None, index=None)


def nameless_calls(calls: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the calls of the driver library without identifiers of cards and processes."""
    return tuple(
        {**call, "value": len(call["value"])}  # the names and ids of processes are private
        if "RunningProcesses" in call["function"] and isinstance(call["value"], list)
        else dict(call)
        for call in calls
        if not _OF_ONE_CARD.search(call["function"])
    )


def write_check(path: Path, check: CudaCheck) -> None:
    """Write a check to its file, replacing an earlier one; third-party text is scrubbed again.

    Raises:
        StorageError: If the file cannot be written; an earlier one is then unchanged.
    """
    write_file(path, encode(check), hint="choose another file with -o")


def encode(check: CudaCheck) -> bytes:
    """Return the bytes of a check's file."""
    return msgspec.json.format(msgspec.json.encode(scrubbed(msgspec.to_builtins(check))), indent=1) + b"\n"


def scrubbed(document: Any, *, foreign: bool = False) -> Any:
    """Return a document with all third-party text scrubbed, except names in the catalog."""
    if isinstance(document, str):
        return scrub(document, LONGEST_TEXT) if foreign and find_spec(document) is None else document
    if isinstance(document, dict):
        return {key: scrubbed(part, foreign=foreign or key in FOREIGN) for key, part in document.items()}
    if isinstance(document, list | tuple):
        return [scrubbed(part, foreign=foreign) for part in document]
    return document


def _safe(text: str) -> str:
    name = re.sub(r"(?:[^a-z0-9.]|\.{2,})+", "-", text.lower()).strip("-.")[:60].strip("-.")
    return name if is_safe_name(name) else "unknown"


State = Literal["ok", "FAILED", "cut off", "undecided", "left out", "shown"]
"""``cut off`` means no result in time, ``left out`` not measured, and ``shown`` not judged."""
CORE = frozenset({"precision", "clock", "graph", "faults"})
"""Parts that are required for a confirmation."""
# Lowest and highest accepted ratios of times.
BY_HAND = (0.99, 1.01)
EVENTS = (0.98, 1.02)
GRAPH = (0.98, 1.02)
SAMPLING = (0.0, 1.005)
GPU_BOUND = 0.8
"""A step is GPU-bound if issuing it takes less than this share of its device time."""
UNSYNCHRONIZED = 0.8
"""The time without synchronizing must be less than this share of the time with it."""
ENERGY = 0.10
"""Maximum relative difference between counted and integrated energy. Power is an average over at most a
second, and the counter updates every 0.1 s, so the two agree over ten seconds."""
# The identity of a GPU if nothing that is unique to it could be compared.
UNPROVEN: Identity = "name and SM count only"
ROOMY = 0.5
"""A case that, by the memory model, needs less than this share of memory must not run out of memory."""
UNCOMPILED = frozenset({"lstm", "lstm_large"})
"""Workloads that are mostly a fused recurrent layer, where torch.compile may find nothing to compile."""
# Number of faulty cases to list in a verdict; further ones are counted.
MOST_LISTED = 4
# Maximum length of the reason of one case in a verdict, in characters.
LONGEST_REASON = 160


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One judgment.

    Attributes:
        part: The part of the check.
        what: What was compared, in words.
        found: The figure as text.
        limit: The limit as text; empty if there is none.
        reason: What went wrong, or why there is no figure.
    """

    part: str
    what: str
    state: State
    found: str = ""
    limit: str = ""
    reason: str | None = None


def judge(check: CudaCheck) -> tuple[Verdict, ...]:
    """Judge every part of a check.

    An unfinished part gets a verdict with the reason, and its readings so far are judged too.
    """
    verdicts: list[Verdict] = []
    for log in check.parts:
        if log.state is not PartState.DONE:
            verdicts.append(_of_the_part(log))
        if rule := _RULES.get(log.name):
            verdicts += rule(check)
    return tuple(verdicts)


def _of_the_part(log: PartLog) -> Verdict:
    verdict = partial(Verdict, part=log.name, what="the part itself")
    if log.state is PartState.FAILED:
        return verdict(state="FAILED", reason=log.reason)
    if log.state is PartState.CUT_OFF:
        return verdict(
            state="cut off",
            found=f"did not finish within {format_duration(log.took_s or 0.0)}",
            reason=f"{log.reason}: it hangs, or this machine is slow",
        )
    return verdict(state="left out", found=log.state, reason=log.reason)


def states_of(verdicts: Iterable[Verdict]) -> set[State]:
    """Return the states that occur among the verdicts."""
    return {verdict.state for verdict in verdicts}


def confirms(check: CudaCheck) -> bool:
    """Return whether a check confirms its card.

    The check must have finished all required parts, including strict fp32, without a failure, a cut-off part
    or an undecided ratio. Cases that were skipped for lack of time do not matter.
    """
    done = {part.name for part in check.parts if part.state is PartState.DONE}
    proven = any(proof.precision is Precision.FP32 for proof in check.precisions)
    settled = states_of(judge(check)).isdisjoint({"FAILED", "cut off", "undecided"})
    return check.finished_at is not None and done >= CORE and proven and settled


def _judged(part: str, what: str, *, found: str, limit: str = "", wrong: str | None) -> Verdict:
    # Judge a yes-or-no result: ``wrong`` says why it failed.
    state: State = "ok" if wrong is None else "FAILED"
    return Verdict(part=part, what=what, state=state, found=found, limit=limit, reason=wrong)


def _of_ratio(part: str, what: str, blocks: Blocks, limits: tuple[float, float]) -> Verdict:
    """Judge the ratio of the times of two kinds of blocks by its interval."""
    limit = f"{limits[0]:g} to {limits[1]:g}" if limits[0] else f"at most {limits[1]:g}"
    interval = stats.ratio_of_blocks(blocks.first_s, blocks.second_s)
    if interval is None:
        return Verdict(part=part, what=what, state="undecided", limit=limit, reason="too few blocks")
    return Verdict(
        part=part,
        what=what,
        state=_state_of(interval, limits),
        found=interval.by("{:.4f}".format),
        limit=limit,
    )


def _state_of(interval: Interval, limits: tuple[float, float]) -> State:
    """Judge whether an interval is inside the limits, outside, or neither; an unknown end is infinite."""
    low = -math.inf if interval.low is None else interval.low
    high = math.inf if interval.high is None else interval.high
    if limits[0] <= low and high <= limits[1]:
        return "ok"
    return "FAILED" if high < limits[0] or low > limits[1] else "undecided"


def _error_text(error: float | None) -> str:
    return "not finite" if error is None else f"{error:.1e}"


def _listed(texts: Sequence[str]) -> str | None:
    # List the first few texts and count the others; None without texts.
    more = f"; and {len(texts) - MOST_LISTED} more" if len(texts) > MOST_LISTED else ""
    return "; ".join(texts[:MOST_LISTED]) + more if texts else None


# --- proofs -------------------------------------------------------------------------------------------


def _of_device(check: CudaCheck) -> Iterator[Verdict]:
    # Show the unusual conditions of the device.
    for finding in check.findings:
        yield Verdict(part="device", what=finding.kind, state="shown", found=f"{finding.value}")


def _of_precisions(check: CudaCheck) -> Iterator[Verdict]:
    """Judge which device CUDA opened, and each precision.

    Name and SM count identify a GPU if it is the only one of its model in the machine.
    """
    if check.identity is not None:
        names = [call.get("value") for call in check.nvml if call.get("function") == "nvmlDeviceGetName"]
        same_name, proven = names.count(check.device.name), check.identity != UNPROVEN
        number = count(same_name, "GPU") if same_name else "unknown number of GPUs"
        yield Verdict(
            part="precision",
            what="CUDA and NVML see the same device",
            state="ok" if proven or same_name == 1 else "undecided",
            found=f"matched by {check.identity}",
            limit="the same device",
            reason=None
            if proven
            else f"identity not proven: {number} with this name in this machine, and CUDA reports no bus id",
        )
    for proof in check.precisions:
        limit_of = Precision.FP32.facts.error_limit
        unaffected = [
            name
            for name, error in proof.control_errors.items()
            if error is None or not error > limit_of(name)
        ]
        if unaffected:
            yield Verdict(
                part="precision",
                what="fp32 check run with TF32 on, which must fail",
                state="undecided",
                limit="beyond the limits of fp32",
                reason=f"{', '.join(unaffected)}: TF32 has no visible effect, so this proves nothing",
            )
        facts = proof.precision.facts
        recurrent = "" if facts.recurrent_error is None else f", {RECURRENT} {facts.recurrent_error:.1e}"
        minimum = "" if proof.precision is Precision.FP32 else f", matmul over {IEEE_ERROR:.0e}"
        yield _judged(
            "precision",
            f"{proof.precision} against float64",
            found=", ".join(f"{name} {_error_text(error)}" for name, error in proof.errors.items()),
            limit=f"at most {facts.product_error:.0e}{recurrent}{minimum}",
            wrong=_why_wrong(proof),
        )


def _why_wrong(proof: PrecisionProof) -> str | None:
    """Return the problem with a precision: a wrong switch, an error above its limit, or no effect."""
    if wrong := proof.switches.unexpected(proof.precision):
        return f"{wrong} read back"
    limit_of = proof.precision.facts.error_limit
    beyond = [name for name, error in proof.errors.items() if error is None or not error <= limit_of(name)]
    if beyond:
        return f"{', '.join(beyond)}: error against float64 above the limit of {proof.precision}"
    matmul = proof.errors.get("matmul")
    if proof.precision is not Precision.FP32 and matmul is not None and matmul <= IEEE_ERROR:
        return f"the matrix product is exact to {matmul:.1e}: {proof.precision} was not in effect"
    return None


def _of_clock(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the clock. In a host-bound case, times with and without synchronizing may be equal."""
    proof = check.clock
    if proof is None:
        return
    yield _of_ratio("clock", "round time over CUDA-event time", proof.events, EVENTS)
    by_hand = _of_ratio("clock", "round time over that of a hand-written loop", proof.by_hand, BY_HAND)
    what, limit = "step time without synchronizing", f"under {UNSYNCHRONIZED:g} of the time with it"
    times = (proof.events.second_s, proof.by_hand.first_s, proof.issue_s)
    # without readings, nothing can be judged, as in a host-bound case
    device_s, wall_s, issue_s = map(median, times) if all(times) else (0.0, 0.0, math.inf)
    if issue_s <= GPU_BOUND * device_s:
        right = issue_s < UNSYNCHRONIZED * wall_s
        wrong = None if right else "the clock of the rounds does not wait for the device"
        found = f"{format_duration(issue_s)} of {format_duration(wall_s)}"
        yield by_hand
        yield _judged("clock", what, found=found, limit=limit, wrong=wrong)
    else:
        reason = "this case is host-bound, so nothing can be judged" if all(times) else "too few readings"
        yield msgspec.structs.replace(by_hand, state="undecided", reason=reason)
        yield Verdict(part="clock", what=what, state="undecided", limit=limit, reason=reason)


def _of_graph(check: CudaCheck) -> Iterator[Verdict]:
    if check.graph is not None:
        yield _of_ratio("graph", "replay time over that of a hand-captured graph", check.graph.by_hand, GRAPH)


def _of_load(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the device's telemetry under a long load, and its overhead."""
    proof = check.load
    if proof is None:
        return
    what, limit = "counted energy over integrated power", f"within {format_percent(ENERGY)}"
    before, after = proof.energy_edges_j
    integrated_j = power_integral(proof.samples, proof.region_s)
    if before is None or after is None or integrated_j is None:
        reason = (
            "this device has no energy counter"
            if None in proof.energy_edges_j
            else "the power samples do not cover the load"
        )
        yield Verdict(part="load", what=what, state="left out", limit=limit, reason=reason)
    else:
        ratio = (after - before) / integrated_j
        both = f"{format_number(after - before)} J counted, {format_number(integrated_j)} J integrated"
        found = f"{ratio:.3f} at {format_number(integrated_j / proof.region_s)} W"
        wrong = None if abs(ratio - 1) <= ENERGY else both
        yield _judged("load", what, found=found, limit=limit, wrong=wrong)
    what = "round time with telemetry over round time without"
    if proof.sampled.first_s:
        yield _of_ratio("load", what, proof.sampled, SAMPLING)
    else:
        reason = f"telemetry of this device: {proof.telemetry_source}"
        yield Verdict(part="load", what=what, state="left out", reason=reason)


# --- a few steps --------------------------------------------------------------------------------------


def fault_of(row: CaseRow, memory_bytes: int | None) -> str | None:
    """Return the problem with a case; None if there is none, or if the CUDA path is not to blame.

    A small card may run out of memory, and a model that is mostly one recurrent layer may have nothing to
    compile.
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


def _of_cases(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the cases, and list those that this machine cannot run."""
    seen = [(row, fault_of(row, check.device.memory_bytes)) for row in check.cases]
    excused = [row for row, fault in seen if fault is None and row.status is not Status.OK]
    if seen:
        faults = [
            f"{row.case.label}: {plain(fault, LONGEST_REASON)}" for row, fault in seen if fault is not None
        ]
        found = f"{len(seen) - len(faults) - len(excused)} of {len(seen)} passed"
        yield _judged(
            "cases",
            f"a few steps of each case{' tried' if check.left_out else ''}",
            found=f"{found}, {len(excused)} cannot run here" if excused else found,
            limit="loss within the limit of its precision",
            wrong=_listed(faults),
        )
    for row in excused:
        if row.status is Status.UNSUPPORTED:
            yield Verdict(
                part="cases",
                what="case not supported here",
                state="shown",
                found=row.status,
                reason=f"{row.case.label}: {plain(row.reason or '', LONGEST_REASON)}",
            )
    if late := check.left_out:
        found, reason = f"{len(late)} of {len(seen) + len(late)}", _listed([*dict.fromkeys(late.values())])
        yield Verdict(part="cases", what="cases not tried", state="left out", found=found, reason=reason)


def _of_faults(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the outcome of each injected fault, and of the case after it.

    A model that synchronizes during graph capture must be reported as unsupported because CUDA refused the
    capture, not because of a later error.
    """
    faults, memory = check.faults, check.device.memory_bytes
    if (row := faults.waiting) is not None:
        refused = row.cause is Cause.REFUSED_IN_CAPTURE
        if check.schema_version < 3:  # older files have only the message
            refused = REFUSED_IN_CAPTURE in (row.reason or "")
        right = row.status is Status.UNSUPPORTED and refused
        what, limit = "graph capture of a model that synchronizes", "unsupported, for that reason"
        wrong = None if right else f"{row.status}: {row.reason}"
        yield _judged("faults", what, found=row.status, limit=limit, wrong=wrong)
    yield from _of_next_case("the case after the refused capture", faults.after_waiting, memory)
    if (row := faults.too_large) is not None:
        what = f"batch {row.case.batch_size:,} in {format_bytes(faults.cap_bytes)}"
        failure = "it fit" if row.status is Status.OK else f"{row.status}: {row.reason}"
        wrong = None if row.status is Status.OUT_OF_MEMORY else failure
        yield _judged(
            "faults",
            what,
            found=str(row.status).replace("_", " "),
            limit="out of memory",
            wrong=wrong,
        )
    yield from _of_next_case("the case after the out-of-memory error", faults.after_too_large, memory)


def _of_next_case(what: str, row: CaseRow | None, memory_bytes: int | None) -> Iterator[Verdict]:
    if row is not None:
        fault = fault_of(row, memory_bytes)
        yield _judged(
            "faults",
            what,
            found="sound" if fault is None else "not sound",
            limit="sound",
            wrong=fault,
        )


_RULES: dict[str, Callable[[CudaCheck], Iterator[Verdict]]] = {
    "device": _of_device,
    "precision": _of_precisions,
    "clock": _of_clock,
    "graph": _of_graph,
    "load": _of_load,
    "faults": _of_faults,
    "cases": _of_cases,
}
"""The judging function of each part, by name."""
