"""What each part of a check does: it asks the measuring processes, and adds what they read to the check."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from gpubench.cuda_check.bench import Bench, ProcessLostError
from gpubench.cuda_check.cases import Trial, batch_of, is_strict, part_of
from gpubench.cuda_check.plan import CheckPlan, quick_within
from gpubench.cuda_check.store import nameless_calls
from gpubench.errors import GpuBenchError, NoDeviceError
from gpubench.measure import capability, checks, events, messages, preflight
from gpubench.measure.batch_search import largest_that_fits
from gpubench.measure.environment import environment
from gpubench.measure.estimate import estimate_s
from gpubench.measure.launcher import PHASE_LIMITS_S, Launcher
from gpubench.measure.plan import Plan, planned_case
from gpubench.measure.privacy import scrub, scrub_traceback
from gpubench.models import (
    Case,
    CaseRow,
    CudaCheck,
    DeviceProfile,
    Execution,
    Launch,
    Measurement,
    PartLog,
    Precision,
    QuickProof,
    Status,
    TaskKind,
)
from gpubench.profile import load_profiles
from gpubench.profile.memory_figures import WORKSPACE_BYTES
from gpubench.units import Seconds

WAITING = "gpubench.measure.waiting_model:WORKLOAD"
TOO_LARGE = 2.0
"""Times the cap, by the memory model without any workspace: no error of the model makes such a batch fit."""
FIRST_GUESS = 0.9
"""Of the cap: what the first batch of a search may take, by the memory model."""
ROUND_SILENCE_S: Seconds = 20.0
"""Longest time without a round of a run, where each is a word: a row that hangs must not look late."""
SOUND = ("cnn", 64)
"""Workload and batch of the case after an injected fault."""


class PartFailedError(Exception):
    """A part could not do what it is for; ``traceback`` is the process's own."""

    def __init__(self, message: str, traceback: str | None = None) -> None:
        super().__init__(message)
        self.traceback = traceback


class PartLeftOutError(Exception):
    """A part is not for this machine as it is now; the message says why."""


@dataclass
class Work:
    """A check under way.

    Attributes:
        check: What is known so far.
        save: Writes it.
        until_s: Moment on ``time.monotonic`` at which the part at hand must be over.
    """

    device: DeviceProfile
    plan: CheckPlan
    bench: Bench
    check: CudaCheck
    save: Callable[[CudaCheck], None]
    until_s: Seconds = float("inf")

    def add(self, **fields: object) -> None:
        """Put fields of the check in place of what they were, and write it."""
        self.check = msgspec.structs.replace(self.check, **fields)
        self.save(self.check)

    def log(self, name: str, **fields: object) -> None:
        """Put fields of a part's log in place of what they were, and write it."""
        self.add(
            parts=tuple(
                msgspec.structs.replace(part, **fields) if part.name == name else part
                for part in self.check.parts
            )
        )

    def part(self, name: str) -> PartLog:
        """Return the log of a part."""
        return next(part for part in self.check.parts if part.name == name)


# --- device, precision ---------------------------------------------------------------------------------


def look_at_device(work: Work) -> None:
    """Ask the driver everything, and make sure that nothing else computes on the card.

    Raises:
        NoDeviceError: If something does.
    """
    from gpubench.probe.nvidia import dump

    work.add(nvml=nameless_calls(dump()))
    work.add(findings=preflight.preflight(work.device, allow_shared=False))


def prove_precisions(work: Work) -> None:
    """Read switches and errors of every precision that shares a process with the others."""
    for precision in Precision:
        shared = precision.is_usual and precision is not Precision.FP32
        if shared and capability.why_no_precision(precision, work.device) is None:
            _prove_precision(work, precision)
            _note_libraries(work)


def _prove_precision(work: Work, precision: Precision) -> None:
    case = msgspec.structs.replace(work.plan.proof, precision=precision)
    proven = _proven(work, "precision", case)
    if proven.precision is not None:
        work.add(precisions=(*work.check.precisions, proven.precision))


def _note_libraries(work: Work) -> None:
    """Note what the libraries tell: versions, how CUDA's device is the driver's, memory that it kept back."""
    ready = work.bench.ready
    if ready is None:
        return
    if work.device.memory_bytes is None:
        memory = {"memory_bytes": ready.memory_bytes}
        work.device = msgspec.structs.replace(work.device, **memory)
        work.add(device=msgspec.structs.replace(work.check.device, **memory))
    work.add(environment=environment(work.device, ready), identity=ready.identity)


# --- proofs --------------------------------------------------------------------------------------------


def prove(what: Literal["clock", "graph", "load"], work: Work) -> None:
    """Hold one thing that the harness relies on against another.

    The clock against a loop by hand and device events, replays of a graph against one by hand, or the energy
    counter against the power shown, and rounds with telemetry against rounds without.
    """
    execution = Execution.GRAPH if what == "graph" else Execution.EAGER
    proven = _proven(work, what, msgspec.structs.replace(work.plan.proof, execution=execution))
    work.add(**{what: getattr(proven, what)})


def _proven(work: Work, what: messages.ProofName, case: Case) -> messages.Proven:
    amounts = work.plan.amounts
    order = messages.Prove(
        what=what,
        reference=case.workload,
        case=case,
        fours=amounts.fours,
        block_s=amounts.block_s,
        load_s=amounts.load_s,
        settle_s=amounts.settle_s,
    )
    proven = work.bench.ask(order, messages.Proven, work.until_s)
    if proven.status is not Status.OK:
        raise PartFailedError(f"{case.label}: {proven.status}: {proven.reason}", proven.traceback)
    return proven


# --- cases ---------------------------------------------------------------------------------------------


def try_cases(work: Work) -> None:
    """Run a few steps of every case but those of strict fp32."""
    _try_all(work, [t for t in work.plan.trials if not is_strict(t.case)])


def try_compiled(work: Work) -> None:
    """Run a few steps of some cases under torch.compile."""
    _try_all(work, work.plan.compiled)


def prove_fp32(work: Work) -> None:
    """Read switches and errors of strict fp32 in a process of its own, and try its cases there."""
    trials = [t for t in work.plan.trials if is_strict(t.case)]
    _prove_precision(work, Precision.FP32)
    _try_all(work, trials)


def _try_all(work: Work, trials: Sequence[Trial]) -> None:
    """Try each case that there is time for; a process that dies costs the case at hand.

    A case is begun only where one that takes as much longer as the worst before it would end in time: on a
    slow machine the last one is left out, and what is cut off all the same is no mere lack of time.

    Raises:
        ProcessLostError: If a case gave no answer in its time, or the device is lost.
    """
    overrun_s = 0.0
    for number, trial in enumerate(trials):
        if work.bench.lost is not None:
            raise ProcessLostError(work.bench.lost)
        began_s = time.monotonic()
        if began_s + trial.expected_s + overrun_s > work.until_s:
            _leave_out(work, trials[number:])
            return
        try:
            row = _tried(work, trial.case.workload, trial.case, expected_bytes=trial.expected_bytes)
        except ProcessLostError as error:
            _leave_out(work, trials[number:])
            raise ProcessLostError(f"{trial.case.label}: {error}", late=error.late) from error
        overrun_s = max(overrun_s, time.monotonic() - began_s - trial.expected_s)
        work.add(cases=(*work.check.cases, row))


def _leave_out(work: Work, trials: Sequence[Trial]) -> None:
    late = {trial.case.label: "no time left: --full tries it" for trial in trials}
    parts = {trial.case.label: part_of(trial.case) for trial in trials}
    work.add(
        left_out=work.check.left_out | late,
        left_out_parts=work.check.left_out_parts | parts,
    )


def _tried(
    work: Work,
    reference: str,
    case: Case,
    *,
    expected_bytes: float | None = None,
    memory_share: float | None = None,
) -> CaseRow:
    """Return the row of a case; of one whose process died, what it died of.

    Raises:
        ProcessLostError: If the time was over before it answered.
    """
    began_s = time.monotonic()
    try:
        order = messages.TryBatch(reference=reference, case=case)
        done = work.bench.ask(order, messages.CaseDone, work.until_s, memory_share)
    except ProcessLostError as error:
        if error.late:
            raise
        return CaseRow(
            case=case, status=Status.FAILED, reason=scrub(str(error)), expected_bytes=expected_bytes
        )
    launch = done.launch
    return CaseRow(
        case=case,
        status=done.status,
        reason=done.reason,
        cause=done.cause,
        traceback=scrub_traceback(done.traceback or ""),
        reference_error=launch.reference_error,
        graph_error=launch.graph_error,
        precision_errors=launch.precision_errors,
        peak_memory_bytes=launch.peak_memory_bytes,
        expected_bytes=expected_bytes,
        fused=launch.fused,
        cold_s=launch.cold_s,
        took_s=round(time.monotonic() - began_s, 3),
        findings=launch.findings,
    )


# --- injected faults -----------------------------------------------------------------------------------


def inject_faults(work: Work) -> None:
    """Put in a model that waits inside a capture, then a cap on memory; after each, try a sound case.

    The first sound case runs under the cap already: one process less to start.
    """
    _note(work, waiting=_tried(work, WAITING, _waiting_case(work.plan.proof)))
    _note_libraries(work)
    if work.device.memory_bytes is None:
        raise PartFailedError(
            "neither the driver nor torch tells the memory of this card: it cannot be capped"
        )
    cap, capped = work.plan.amounts.cap_bytes, work.plan.capped
    share = min(1.0, cap / work.device.memory_bytes)
    _note(work, cap_bytes=cap)
    workload, batch = SOUND
    sound = msgspec.structs.replace(_batched(capped, batch), execution=Execution.GRAPH)
    _note(work, after_waiting=_tried(work, workload, sound, memory_share=share))
    too_large = batch_of(capped, TOO_LARGE * cap + WORKSPACE_BYTES)
    _note(work, too_large=_tried(work, workload, _batched(capped, too_large), memory_share=share))
    _search(work, share)


def _search(work: Work, share: float) -> None:
    """Search the largest batch under the cap, and measure at it."""
    case = work.plan.capped

    def fits(batch: int) -> bool:
        row = _tried(work, case.workload, _batched(case, batch), memory_share=share)
        if row.status not in {Status.OK, Status.OUT_OF_MEMORY}:
            raise PartFailedError(f"trying batch {batch}: {row.status}: {row.reason}")
        if work.check.faults.after_too_large is None:
            _note(work, after_too_large=row)
        _note(work, tried=(*work.check.faults.tried, (batch, row.status is Status.OK)))
        return row.status is Status.OK

    guess = batch_of(case, FIRST_GUESS * work.plan.amounts.cap_bytes)
    found = largest_that_fits(fits, guess, resolution=work.plan.amounts.resolution)
    if not found:
        raise PartFailedError("not even a batch of 1 fits under the cap")
    largest = _batched(case, found)
    aim_s = work.bench.budget.case_s
    order = messages.MeasureCase(reference=case.workload, case=largest, launch=0, aim_s=aim_s)
    try:
        done = work.bench.ask(order, messages.CaseDone, work.until_s, share)
    except ProcessLostError as error:
        if error.late:
            raise
        reason = scrub(str(error))
        done = messages.CaseDone(status=Status.FAILED, reason=reason, launch=Launch(index=0))
    planned = planned_case(largest.workload, load_profiles()[largest.workload], largest)
    measured = Measurement(
        case=largest,
        status=done.status,
        reason=done.reason,
        batch_choice="largest",
        launches=(done.launch,),
        flops_per_sample=planned.flops_per_sample,
        tokens_per_sample=planned.tokens_per_sample,
        parameter_count=planned.parameter_count,
        convolves=planned.convolves,
    )
    _note(work, at_largest=checks.judge_measurement(measured, 1))


def _note(work: Work, **fields: object) -> None:
    work.add(faults=msgspec.structs.replace(work.check.faults, **fields))


def _batched(case: Case, batch: int) -> Case:
    return msgspec.structs.replace(case, batch_size=batch)


def _waiting_case(proof: Case) -> Case:
    return Case(
        workload="waiting",
        workload_version=1,
        task=TaskKind.TRAIN,
        precision=proof.precision,
        execution=Execution.GRAPH,
        memory_format=None,
        batch_size=8,
        sample_unit="row",
    )


# --- whole runs ----------------------------------------------------------------------------------------


def measure_scaling(work: Work) -> None:
    """Measure one job on one GPU, then on all.

    Raises:
        PartLeftOutError: If somebody else uses one of the others: neither may disturb the other.
    """
    assert work.plan.scaling is not None  # else the part is not planned
    work.bench.close()
    for peer in work.plan.scaling.peers:
        try:
            preflight.preflight(peer, allow_shared=False)
        except NoDeviceError as error:
            raise PartLeftOutError(str(error)) from error
    work.add(scaling=_measured(work, work.plan.scaling)[0])


def run_quick(work: Work) -> None:
    """Make the quick run, or what of it there is time for, and note how long each phase takes."""
    work.bench.close()
    began_s = time.monotonic()
    made, whole = quick_within(work.plan, work.device, work.until_s - began_s), work.plan.quick[0]
    quick = QuickProof(
        case_count=len(made.cases),
        whole_case_count=len(whole.cases),
        with_micro=made.micro != "none",
        expected_s=estimate_s(made, work.device)[0],
    )
    work.add(quick=quick)
    measurements, launcher = _measured(work, made)
    took_s = round(time.monotonic() - began_s, 3)
    work.add(
        quick=msgspec.structs.replace(
            quick, took_s=took_s, measurements=measurements, micro=tuple(launcher.micro)
        )
    )


def _measured(work: Work, made: Plan) -> tuple[tuple[Measurement, ...], Launcher]:
    """Measure a plan as a run does; the latest measurement of each case, judged beside the others."""
    left_s = work.until_s - time.monotonic()
    if left_s != float("inf"):
        made = msgspec.structs.replace(made, time_limit_s=max(1.0, left_s))
    phases = work.bench.phases
    phases.enter("start")

    def watch(event: events.Event) -> None:
        match event:
            case events.PhaseBegan(name=name):
                phases.enter(name)
            case events.CaseEnded():
                phases.enter("between cases")

    rounds = dict.fromkeys(("warm-up", "timed"), ROUND_SILENCE_S)
    launcher = Launcher(
        made, work.device, watch, phase_limits_s=PHASE_LIMITS_S | rounds, module=work.bench.module
    )
    found: dict[Case, Measurement] = {}
    try:
        for measurement in launcher.run():
            found[measurement.case] = measurement
    except GpuBenchError as error:
        raise PartFailedError(str(error)) from error
    finally:
        phases.enter(None)
    return tuple(
        checks.judge_measurement(m, made.budget.launches, tuple(found.values())) for m in found.values()
    ), launcher


STEPS: dict[str, Callable[[Work], None]] = {
    "device": look_at_device,
    "precision": prove_precisions,
    "clock": partial(prove, "clock"),
    "graph": partial(prove, "graph"),
    "load": partial(prove, "load"),
    "cases": try_cases,
    "compile": try_compiled,
    "faults": inject_faults,
    "fp32": prove_fp32,
    "scaling": measure_scaling,
    "quick": run_quick,
}
"""What is done in each part, by its name."""
