"""What the readings of a check mean: pure functions of its file, so that new rules can judge an old one.

Nothing is held against a reference card: each rule holds two readings of one card against each other. What
was read on such a card is shown beside, and never judged. The proofs are judged in ``judge_proofs``; here are
the cases, those tried for a few steps, those after a fault, and those measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from gpubench.cuda_check.cases import may_be_unsupported
from gpubench.cuda_check.judge_proofs import (
    State,
    Verdict,
    error_text,
    judged,
    of_clock,
    of_device,
    of_graph,
    of_load,
    of_precisions,
    state_of,
)
from gpubench.interval import Interval
from gpubench.labels import micro_name
from gpubench.measure.checks import SCALING_TOLERANCE
from gpubench.models import (
    CaseRow,
    Cause,
    CudaCheck,
    Execution,
    FaultProof,
    FindingKind,
    Measurement,
    PartState,
    Precision,
    Status,
)
from gpubench.readings import h200_readings
from gpubench.units import count, format_bytes, format_duration, plain

CORE = frozenset({"precision", "clock", "graph", "faults"})
"""Parts without which nothing is confirmed."""
ROOMY = 0.5
"""A case that takes less than this of the memory, by the memory model, must not run out of it."""
UNCOMPILED = frozenset({"lstm", "lstm_large"})
"""Workloads of little but a fused recurrent layer: torch.compile may find nothing to compile in them."""
MOST_NAMED = 4
LONGEST = 160


def judge(check: CudaCheck) -> tuple[Verdict, ...]:
    """Judge every part of a check; one that did not end says why, beside what it read before."""
    verdicts: list[Verdict] = []
    for log in check.parts:
        itself = partial(Verdict, part=log.name, what="the part itself")
        if log.state is PartState.FAILED:
            verdicts.append(itself(state="FAILED", reason=log.reason))
        elif log.state is PartState.CUT_OFF:
            found = f"no end in {format_duration(log.took_s or 0.0)}"
            reason = f"{log.reason}: it hangs, or this machine is slow"
            verdicts.append(itself(state="cut off", found=found, reason=reason))
        elif log.state is not PartState.DONE:
            verdicts.append(itself(state="left out", found=log.state, reason=log.reason))
        verdicts += [verdict for part, rule in _RULES if part == log.name for verdict in rule(check)]
    return tuple(verdicts)


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
    How a job scales over several GPUs may stay undecided: it hangs on what connects them, and what is
    confirmed is one card.
    """
    verdicts = judge(check)
    done = {part.name for part in check.parts if part.state is PartState.DONE}
    open_ones = {v.state for v in verdicts if v.part != "scaling" or v.state != "undecided"}
    settled = open_ones.isdisjoint({"FAILED", "cut off", "undecided"})
    proven = any(proof.precision is Precision.FP32 for proof in check.precisions)
    return check.finished_at is not None and done >= CORE and proven and settled


# --- a few steps --------------------------------------------------------------------------------------


def fault_of(row: CaseRow, memory_bytes: int | None) -> str | None:
    """Say what is wrong with a case; None where nothing is, or where it says nothing against the path.

    A card that is too small for a case runs out of memory, a model of one recurrent layer may leave nothing
    to compile, and what computes in 8 bits or 4 hangs on the release of a package.
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
            return f"{name} error {error_text(error)}, limit {limit:.0e}"
    if not row.peak_memory_bytes:
        return "no peak memory"
    wrong = [str(f.kind) for f in row.findings if f.kind is not FindingKind.ONE_BATCH]
    return ", ".join(wrong) or None


def _is_excused(row: CaseRow, memory_bytes: int | None) -> bool:
    if row.status is Status.UNSUPPORTED:
        compiled = row.case.execution is Execution.COMPILE
        return may_be_unsupported(row.case) or (compiled and row.case.workload in UNCOMPILED)
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
        yield judged(
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


def _named(texts: Sequence[str]) -> str | None:
    """Name the first few, and how many more there are; None where there are none."""
    more = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return "; ".join(texts[:MOST_NAMED]) + more if texts else None


# --- injected faults ----------------------------------------------------------------------------------


def _of_faults(check: CudaCheck) -> Iterator[Verdict]:
    """Judge what became of each injected fault, and of the case after it.

    A model that waits inside a capture is unsupported, by CUDA's own refusal, not by what followed.
    """
    faults, memory = check.faults, check.device.memory_bytes
    if (row := faults.waiting) is not None:
        right = row.status is Status.UNSUPPORTED and row.cause is Cause.REFUSED_IN_CAPTURE
        yield judged(
            "faults",
            "a model that waits, captured",
            found=row.status,
            limit="unsupported, with its cause",
            wrong=None if right else f"{row.status}: {row.reason}",
        )
    if faults.after_waiting is not None:
        yield _sound("the case after the refused capture", faults.after_waiting, memory)
    if (row := faults.too_large) is not None:
        wrong = "it fit" if row.status is Status.OK else f"{row.status}: {row.reason}"
        yield judged(
            "faults",
            f"batch {row.case.batch_size:,} in {format_bytes(faults.cap_bytes)}",
            found=str(row.status).replace("_", " "),
            limit="out of memory",
            wrong=None if row.status is Status.OUT_OF_MEMORY else wrong,
        )
    if faults.after_too_large is not None:
        yield _sound("the case after the lack of memory", faults.after_too_large, memory)
    ended = any(log.name == "faults" and log.state is PartState.DONE for log in check.parts)
    if faults.tried and (ended or faults.at_largest is not None):  # else the part itself says how it ended
        yield _searched(faults)


def _sound(what: str, row: CaseRow, memory_bytes: int | None) -> Verdict:
    fault = fault_of(row, memory_bytes)
    found = "sound" if fault is None else "not sound"
    return judged("faults", what, found=found, limit="sound", wrong=fault)


def _searched(faults: FaultProof) -> Verdict:
    good = max((batch for batch, fits in faults.tried if fits), default=0)
    measured = faults.at_largest
    right = measured is not None and measured.status is Status.OK and measured.case.batch_size == good
    wrong = "it was not measured" if measured is None else f"{measured.status}: {measured.reason}"
    return judged(
        "faults",
        f"largest batch in {format_bytes(faults.cap_bytes)}",
        found=f"{good:,} after {len(faults.tried)} trials",
        limit="measured at it",
        wrong=None if right else wrong,
    )


# --- measured -----------------------------------------------------------------------------------------


def _of_scaling(check: CudaCheck) -> Iterator[Verdict]:
    """Judge a job on several GPUs against the same on one."""
    one = next((m for m in check.scaling if m.case.gpu_count == 1), None)
    several = next((m for m in check.scaling if m.case.gpu_count > 1), None)
    if one is None or several is None:
        return
    count = several.case.gpu_count
    limits = (1.0, SCALING_TOLERANCE * count)
    what, limit = f"{count} GPUs over one", f"over 1, at most {limits[1]:g}"
    bad = [m for m in (one, several) if m.samples_per_s is None]
    if bad:
        reason = f"{bad[0].label}: {bad[0].status}: {bad[0].reason}"
        late = all(_came_late(m) for m in bad)
        missed: State = "left out" if late else "FAILED"  # a slow host is no fault of the job
        yield Verdict(part="scaling", what=what, state=missed, limit=limit, reason=reason)
        return
    above, below = several.interval, one.interval  # the widest ends; 0 and infinity where unknown
    low = (above.low or 0.0) / (below.high or math.inf)
    high = math.inf if above.high is None or below.low is None else above.high / below.low
    speedup = Interval((above.value or 0.0) / (below.value or 0.0), low, high)
    found, state = speedup.by("{:.3f}".format), state_of(speedup, limits)
    yield Verdict(part="scaling", what=what, state=state, found=found, limit=limit)


def _came_late(row: Measurement) -> bool:
    """Whether there was no time for a row; one whose process fell silent is no such row."""
    return row.status is Status.TIMEOUT and row.cause is not Cause.SILENCE


def _of_quick(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the rows of the quick run; its time is shown."""
    quick = check.quick
    if quick is None:
        return
    name = "the quick run" if quick.with_micro else "the quick run without micro-benchmarks"
    late = [m for m in quick.measurements if _came_late(m)]
    rows = [m for m in quick.measurements if not _came_late(m)]
    bad = [
        f"{m.label}: {m.status}: {plain(m.reason or '', LONGEST)}" for m in rows if m.status is not Status.OK
    ]
    if rows:
        found = f"{len(rows) - len(bad)} of {len(rows)} ok"
        yield judged("quick", f"rows of {name}", found=found, limit="all", wrong=_named(bad))
    if late:
        found, reason = f"{len(late)}", late[0].reason
        yield Verdict(part="quick", what="rows without time", state="left out", found=found, reason=reason)
    if quick.with_micro and quick.took_s is not None:
        yield judged(
            "quick",
            "micro-benchmarks of the quick run",
            found=count(len(quick.micro), "figure"),
            wrong=None if quick.micro else "not one gave a figure",
        )
    wide = sum(any(f.kind is FindingKind.NOT_CONVERGED for f in m.findings) for m in rows)
    if wide:
        yield Verdict(part="quick", what="rows not converged", state="shown", found=f"{wide} of {len(rows)}")
    if quick.took_s is not None:
        found = format_duration(quick.took_s)
        yield Verdict(part="quick", what=f"time of {name}", state="shown", found=found)


_RULES: tuple[tuple[str, Callable[[CudaCheck], Iterator[Verdict]]], ...] = (
    ("device", of_device),
    ("precision", of_precisions),
    ("clock", of_clock),
    ("graph", of_graph),
    ("load", of_load),
    ("faults", _of_faults),
    ("compile", partial(_of_rows, "compile")),
    ("quick", _of_quick),
    ("scaling", _of_scaling),
    ("cases", partial(_of_rows, "cases")),
)
"""What judges each part, by its name."""


# --- shown, never judged ------------------------------------------------------------------------------


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """One figure here and there, in one unit."""

    name: str
    here: float
    there: float
    unit: str


def beside(check: CudaCheck) -> tuple[Beside, ...]:
    """Return what was measured in the quick run and read on such a card, too; nothing on any other card."""
    readings, run = h200_readings(), check.quick
    if check.device.gpu_key != readings.gpu_key or run is None:
        return ()
    rows = []
    for row in run.measurements:
        case = row.case
        there = readings.step_time_s(
            case.workload, case.batch_size, case.precision, case.execution, case.task
        )
        if row.status is Status.OK and row.step_time_s is not None and there is not None:
            rows.append(Beside(name=f"{row.label}, a step", here=row.step_time_s, there=there, unit="s"))
    for result in run.micro:
        there = readings.micro.get((result.name, result.precision, result.size))
        if there is not None:
            rows.append(Beside(name=micro_name(result), here=result.value, there=there, unit=result.unit))
    return tuple(rows)
