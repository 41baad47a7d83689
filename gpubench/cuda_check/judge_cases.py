"""What the cases of a check mean: those tried for a few steps, those after a fault, and those measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpubench.cuda_check.cases import is_strict, may_be_unsupported
from gpubench.cuda_check.verdict import State, Verdict, error_text, passed, state_of
from gpubench.interval import Interval
from gpubench.measure.checks import SCALING_TOLERANCE
from gpubench.measure.launcher import NO_SIGN
from gpubench.models import (
    CaseRow,
    CudaCheck,
    Execution,
    FaultProof,
    FindingKind,
    Measurement,
    PartState,
    Precision,
    QuickProof,
    Status,
)
from gpubench.units import count, format_bytes, format_duration, plain

ROOMY = 0.5
"""A case that takes less than this of the memory, by the memory model, must not run out of it."""
UNCOMPILED = frozenset({"lstm", "lstm_large"})
"""Workloads of little but a fused recurrent layer: torch.compile may find nothing to compile in them."""
REFUSED = "capturing"
"""In the words in which CUDA refuses a call during a capture."""
MOST_NAMED = 4
LONGEST = 160


# --- a few steps -----------------------------------------------------------------------------------------


def of_cases(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the cases that share a process with the other precisions, eager and graph."""
    rows = [r for r in check.cases if not _is_compiled(r) and not is_strict(r.case)]
    yield from _of_rows(check, "cases", rows)


def of_strict(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the cases of strict fp32."""
    rows = [r for r in check.cases if not _is_compiled(r) and is_strict(r.case)]
    yield from _of_rows(check, "fp32", rows)


def of_compile(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the compiled cases: few enough that each one not tried, or not here, is named."""
    yield from _of_rows(check, "compile", [r for r in check.cases if _is_compiled(r)])


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
        return may_be_unsupported(row.case) or (_is_compiled(row) and row.case.workload in UNCOMPILED)
    if row.status is not Status.OUT_OF_MEMORY or row.expected_bytes is None or memory_bytes is None:
        return False
    return row.expected_bytes > ROOMY * memory_bytes


def _of_rows(check: CudaCheck, part: str, rows: Sequence[CaseRow]) -> Iterator[Verdict]:
    memory = check.device.memory_bytes
    late = [label for label in check.left_out if _part_of(label) == part]
    if rows:
        faults = [(row, fault) for row in rows if (fault := fault_of(row, memory)) is not None]
        excused = [row for row in rows if row.status is not Status.OK and fault_of(row, memory) is None]
        sound = len(rows) - len(faults) - len(excused)
        yield Verdict(
            part=part,
            what=f"a few steps of each case{' tried' if late else ''}",
            state=passed(right=not faults),
            found=f"{sound} of {len(rows)} sound" + (f", {len(excused)} not here" if excused else ""),
            limit="loss within its precision",
            reason=_named([f"{row.case.label}: {plain(fault, LONGEST)}" for row, fault in faults]),
        )
    worst = max((row.graph_error for row in rows if row.graph_error is not None), default=None)
    if worst is not None:
        what = "largest difference of losses from eager ones"
        yield Verdict(part=part, what=what, state="shown", found=f"{worst:.1e}")
    if rows:
        unsupported = [r for r in rows if r.status is Status.UNSUPPORTED and fault_of(r, memory) is None]
        for row in unsupported:
            why = f"{row.case.label}: {plain(row.reason or '', LONGEST)}"
            yield Verdict(part=part, what="case not here", state="shown", found=row.status, reason=why)
    if late:
        whole = len(rows) + len(late)
        reason = _named([*dict.fromkeys(check.left_out[label] for label in late)])
        yield Verdict(
            part=part,
            what="cases not tried",
            state="left out",
            found=f"{len(late)} of {whole}",
            reason=f"{', '.join(late)}: {reason}" if part == "compile" else reason,
        )


def _part_of(label: str) -> str:
    """Name the part that a case belongs to, by its label."""
    if f" {Execution.COMPILE} " in label:
        return "compile"
    return "fp32" if f" {Precision.FP32} " in label else "cases"


def _is_compiled(row: CaseRow) -> bool:
    return row.case.execution is Execution.COMPILE


def _named(texts: Sequence[str]) -> str | None:
    """Name the first few, and how many more there are; None where there are none."""
    more = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return "; ".join(texts[:MOST_NAMED]) + more if texts else None


# --- injected faults -------------------------------------------------------------------------------------


def of_faults(check: CudaCheck) -> Iterator[Verdict]:
    """Judge what became of each injected fault, and of the case after it."""
    faults, memory = check.faults, check.device.memory_bytes
    if faults.waiting is not None:
        yield _waiting(faults.waiting)
    if faults.after_waiting is not None:
        yield _sound("the case after the refused capture", faults.after_waiting, memory)
    if faults.too_large is not None:
        yield _too_large(faults, faults.too_large)
    if faults.after_too_large is not None:
        yield _sound("the case after the lack of memory", faults.after_too_large, memory)
    ended = any(log.name == "faults" and log.state is PartState.DONE for log in check.parts)
    if faults.tried and (ended or faults.at_largest is not None):  # else the part itself says how it ended
        yield _searched(faults)


def _waiting(row: CaseRow) -> Verdict:
    """A model that waits inside a capture is unsupported, and the reason is CUDA's own, not what followed."""
    right = row.status is Status.UNSUPPORTED and REFUSED in (row.reason or "")
    return Verdict(
        part="faults",
        what="a model that waits, captured",
        state=passed(right=right),
        found=row.status,
        limit="unsupported, with its cause",
        reason=None if right else f"{row.status}: {row.reason}",
    )


def _sound(what: str, row: CaseRow, memory_bytes: int | None) -> Verdict:
    fault = fault_of(row, memory_bytes)
    state = passed(right=fault is None)
    found = "sound" if fault is None else "not sound"
    return Verdict(part="faults", what=what, state=state, found=found, limit="sound", reason=fault)


def _too_large(faults: FaultProof, row: CaseRow) -> Verdict:
    right = row.status is Status.OUT_OF_MEMORY
    return Verdict(
        part="faults",
        what=f"batch {row.case.batch_size:,} in {format_bytes(faults.cap_bytes)}",
        state=passed(right=right),
        found=str(row.status).replace("_", " "),
        limit="out of memory",
        reason=None if right else "it fit" if row.status is Status.OK else f"{row.status}: {row.reason}",
    )


def _searched(faults: FaultProof) -> Verdict:
    good = max((batch for batch, fits in faults.tried if fits), default=0)
    measured = faults.at_largest
    right = measured is not None and measured.status is Status.OK and measured.case.batch_size == good
    reason = "it was not measured" if measured is None else f"{measured.status}: {measured.reason}"
    return Verdict(
        part="faults",
        what=f"largest batch in {format_bytes(faults.cap_bytes)}",
        state=passed(right=right),
        found=f"{good:,} after {len(faults.tried)} trials",
        limit="measured at it",
        reason=None if right else reason,
    )


# --- measured --------------------------------------------------------------------------------------------


def of_scaling(check: CudaCheck) -> Iterator[Verdict]:
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
    speedup = _speedup(several, one)
    found, state = speedup.by("{:.3f}".format), state_of(speedup, limits)
    yield Verdict(part="scaling", what=what, state=state, found=found, limit=limit)


def _speedup(several: Measurement, one: Measurement) -> Interval:
    """Ratio of two throughputs with the widest ends of their intervals; 0 and infinity where unknown."""
    above, below = several.interval, one.interval
    low = (above.low or 0.0) / (below.high or math.inf)
    high = math.inf if above.high is None or below.low is None else above.high / below.low
    return Interval((above.value or 0.0) / (below.value or 0.0), low, high)


def _came_late(row: Measurement) -> bool:
    """Whether there was no time for a row; one whose process fell silent is no such row."""
    return row.status is Status.TIMEOUT and not (row.reason or "").startswith(NO_SIGN)


def _share(quick: QuickProof) -> str:
    """Name what of the quick run was made: its time is that of this much, and scaled to no more."""
    micro = "" if quick.with_micro else " without micro-benchmarks"
    if quick.case_count == quick.whole_case_count:
        return f"the quick run{micro}"
    return f"{quick.case_count} of the {quick.whole_case_count} cases of the quick run{micro}"


def of_quick(check: CudaCheck) -> Iterator[Verdict]:
    """Judge the rows of the quick run; its time is shown beside what was announced."""
    quick = check.quick
    if quick is None:
        return
    name = _share(quick)
    late = [m for m in quick.measurements if _came_late(m)]
    rows = [m for m in quick.measurements if not _came_late(m)]
    bad = [
        f"{m.label}: {m.status}: {plain(m.reason or '', LONGEST)}" for m in rows if m.status is not Status.OK
    ]
    if rows:
        yield Verdict(
            part="quick",
            what=f"rows of {name}",
            state=passed(right=not bad),
            found=f"{len(rows) - len(bad)} of {len(rows)} ok",
            limit="all",
            reason=_named(bad),
        )
    if late:
        found, reason = f"{len(late)}", late[0].reason
        yield Verdict(part="quick", what="rows without time", state="left out", found=found, reason=reason)
    if quick.with_micro and quick.took_s is not None:
        yield Verdict(
            part="quick",
            what="micro-benchmarks of the quick run",
            state=passed(right=bool(quick.micro)),
            found=count(len(quick.micro), "figure"),
            reason=None if quick.micro else "not one gave a figure",
        )
    wide = sum(any(f.kind is FindingKind.NOT_CONVERGED for f in m.findings) for m in rows)
    if wide:
        yield Verdict(part="quick", what="rows not converged", state="shown", found=f"{wide} of {len(rows)}")
    if quick.took_s is not None:
        found = f"{format_duration(quick.took_s)}, announced {format_duration(quick.expected_s)}"
        yield Verdict(part="quick", what=f"time of {name}", state="shown", found=found)
