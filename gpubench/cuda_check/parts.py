"""What each part of a check does: it asks the measuring processes, and adds what they read to the check."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from gpubench.cuda_check.bench import Bench, ProcessLostError
from gpubench.cuda_check.cases import (
    batch_of,
    batched,
    case_of,
    compiled_cases,
    expected_bytes,
    other_cases,
    proof_case,
    usual_cases,
)
from gpubench.cuda_check.store import nameless_calls
from gpubench.errors import GpuBenchError, NoDeviceError
from gpubench.measure import capability, checks, messages, preflight
from gpubench.measure.batch_search import largest_that_fits
from gpubench.measure.budget import QUICK, Budget
from gpubench.measure.environment import environment
from gpubench.measure.launcher import PHASE_LIMITS_S, Launcher
from gpubench.measure.plan import plan, planned_case
from gpubench.measure.privacy import scrub, scrub_traceback
from gpubench.measure.request import MicroWish, RunRequest
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
from gpubench.units import GIB, Bytes, Seconds

WAITING = "gpubench.measure.waiting_model:WORKLOAD"
TOO_LARGE = 2.0
"""Times the cap, by the memory model without any workspace: no error of the model makes such a batch fit."""
FIRST_GUESS = 0.9
"""Of the cap: what the first batch of a search may take, by the memory model."""
ROUND_SILENCE_S: Seconds = 20.0
"""Longest time without a round of a run, where each is a word: a row that hangs must not look late."""
SOUND = ("cnn", 64)
"""Workload and batch of the case after an injected fault."""


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything: a test does less.

    Attributes:
        fours: Runs of four blocks in each comparison.
        block_s: Least length of a block [s].
        load_s, settle_s: Length of the load, and how much of its start is not judged [s].
        cap_bytes: What a process may take while the largest batch is searched [B].
        resolution: Relative distance at which that search stops.
        budget: Of the trials.
        quick: Of the quick run.
        workloads: Of the cases, where empty means all that are trained, and of the quick run.
        micro: Whether the quick run has its micro-benchmarks.
    """

    fours: int = 3
    block_s: Seconds = 0.3
    load_s: Seconds = 12.0
    settle_s: Seconds = 2.0
    cap_bytes: Bytes = GIB
    resolution: float = 1 / 4
    budget: Budget = msgspec.structs.replace(QUICK, curve_steps=2)
    quick: Budget = QUICK
    workloads: tuple[str, ...] = ()
    micro: MicroWish = "also"


AMOUNTS = Amounts()


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
        peers: GPUs of the same kind beside the device.
        check: What is known so far.
        save: Writes it.
        until_s: Moment on ``time.monotonic`` at which the part at hand must be over.
    """

    device: DeviceProfile
    peers: tuple[DeviceProfile, ...]
    amounts: Amounts
    bench: Bench
    check: CudaCheck
    save: Callable[[CudaCheck], None]
    until_s: Seconds = math.inf

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
    """Read switches and errors of every usual precision."""
    for precision in Precision:
        if precision.is_usual and capability.why_no_precision(precision, work.device) is None:
            _prove_precision(work, precision)
            _note_libraries(work)


def _prove_precision(work: Work, precision: Precision) -> None:
    case = msgspec.structs.replace(proof_case(work.device), precision=precision)
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
    proven = _proven(work, what, msgspec.structs.replace(proof_case(work.device), execution=execution))
    work.add(**{what: getattr(proven, what)})


def _proven(work: Work, what: messages.ProofName, case: Case) -> messages.Proven:
    amounts = work.amounts
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
    """Run a few steps of every usual case, and of the others where nothing is left out."""
    cases = list(usual_cases(work.device, work.amounts.workloads))
    if work.check.full:
        wanted = work.amounts.workloads
        others = [
            (case, why) for case, why in other_cases(work.device) if not wanted or case.workload in wanted
        ]
        cases += [case for case, why_not in others if why_not is None]
        missing = {case.label: why_not for case, why_not in others if why_not is not None}
        work.add(left_out=work.check.left_out | missing)
    _try_all(work, cases)


def try_compiled(work: Work) -> None:
    """Run a few steps of some cases under torch.compile."""
    _try_all(work, compiled_cases(work.device))


def _try_all(work: Work, cases: Sequence[Case]) -> None:
    """Try each case that there is time for; a process that dies costs the case at hand.

    A case is begun only where one that takes as long as the longest before it would end in time: what is
    cut off all the same is no mere lack of time.

    Raises:
        ProcessLostError: If a case gave no answer in its time, or the device is lost.
    """
    longest_s = 0.0
    for number, case in enumerate(cases):
        if work.bench.lost is not None:
            raise ProcessLostError(work.bench.lost)
        began_s = time.monotonic()
        if began_s + longest_s > work.until_s:
            _leave_out(work, cases[number:])
            return
        try:
            row = _tried(work, case.workload, case, needed_bytes=expected_bytes(case))
        except ProcessLostError as error:
            _leave_out(work, cases[number:])
            raise ProcessLostError(f"{case.label}: {error}", late=error.late) from error
        longest_s = max(longest_s, time.monotonic() - began_s)
        work.add(cases=(*work.check.cases, row))


def _leave_out(work: Work, cases: Sequence[Case]) -> None:
    late = {case.label: "no time left: --full tries it" for case in cases}
    work.add(left_out=work.check.left_out | late)


def _tried(
    work: Work,
    reference: str,
    case: Case,
    *,
    needed_bytes: float | None = None,
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
        reason = scrub(str(error))
        return CaseRow(case=case, status=Status.FAILED, reason=reason, expected_bytes=needed_bytes)
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
        expected_bytes=needed_bytes,
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
    _note(work, waiting=_tried(work, WAITING, _waiting_case(proof_case(work.device))))
    _note_libraries(work)
    if work.device.memory_bytes is None:
        raise PartFailedError(
            "neither the driver nor torch tells the memory of this card: it cannot be capped"
        )
    cap, capped = work.amounts.cap_bytes, _capped_case(work)
    share = min(1.0, cap / work.device.memory_bytes)
    _note(work, cap_bytes=cap)
    workload, batch = SOUND
    sound = msgspec.structs.replace(batched(capped, batch), execution=Execution.GRAPH)
    _note(work, after_waiting=_tried(work, workload, sound, memory_share=share))
    too_large = batch_of(capped, TOO_LARGE * cap + WORKSPACE_BYTES)
    _note(work, too_large=_tried(work, workload, batched(capped, too_large), memory_share=share))
    _search(work, capped, share)


def _capped_case(work: Work) -> Case:
    return case_of(load_profiles()["cnn"], capability.best_amp(work.device), Execution.EAGER)


def _search(work: Work, case: Case, share: float) -> None:
    """Search the largest batch under the cap, and measure at it."""

    def fits(batch: int) -> bool:
        row = _tried(work, case.workload, batched(case, batch), memory_share=share)
        if row.status not in {Status.OK, Status.OUT_OF_MEMORY}:
            raise PartFailedError(f"trying batch {batch}: {row.status}: {row.reason}")
        if work.check.faults.after_too_large is None:
            _note(work, after_too_large=row)
        _note(work, tried=(*work.check.faults.tried, (batch, row.status is Status.OK)))
        return row.status is Status.OK

    guess = batch_of(case, FIRST_GUESS * work.amounts.cap_bytes)
    found = largest_that_fits(fits, guess, resolution=work.amounts.resolution)
    if not found:
        raise PartFailedError("not even a batch of 1 fits under the cap")
    largest = batched(case, found)
    order = messages.MeasureCase(reference=case.workload, case=largest, launch=0)
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
    """Measure one job on one GPU, then on all: eager, because that is what several GPUs are measured in.

    Raises:
        PartLeftOutError: If somebody else uses one of the others: neither may disturb the other.
    """
    work.bench.close()
    for peer in work.peers:
        try:
            preflight.preflight(peer, allow_shared=False)
        except NoDeviceError as error:
            raise PartLeftOutError(str(error)) from error
    request = RunRequest(
        workloads=("resnet50",),
        precisions=(capability.best_amp(work.device),),
        executions=("eager",),
        gpus=1 + len(work.peers),
        budget="quick",
        micro="none",
    )
    work.add(scaling=_measured(work, request)[0])


def run_quick(work: Work) -> None:
    """Make a quick run as `gpubench run --quick` does, and note how long each phase takes."""
    work.bench.close()
    began_s = time.monotonic()
    amounts = work.amounts
    request = RunRequest(workloads=amounts.workloads, budget="quick", micro=amounts.micro)
    measurements, launcher = _measured(work, request)
    work.add(
        quick=QuickProof(
            with_micro=amounts.micro != "none",
            took_s=round(time.monotonic() - began_s, 3),
            measurements=measurements,
            micro=tuple(launcher.micro),
        )
    )


def _measured(work: Work, request: RunRequest) -> tuple[tuple[Measurement, ...], Launcher]:
    """Measure a request as a run does; the latest measurement of each case, judged beside the others."""
    peers = work.peers if request.gpus > 1 else ()
    left_s = work.until_s - time.monotonic()
    made = msgspec.structs.replace(
        plan(request, work.device, load_profiles(), peers),
        budget=work.amounts.quick,
        time_limit_s=None if left_s == math.inf else max(1.0, left_s),
    )
    phases = work.bench.phases
    phases.enter("start")

    def watch(event: messages.Event) -> None:
        match event:
            case messages.PhaseBegan(name=name):
                phases.enter(name)
            case messages.CaseEnded():
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
    "faults": inject_faults,
    "compile": try_compiled,
    "quick": run_quick,
    "scaling": measure_scaling,
    "cases": try_cases,
}
"""What is done in each part, by its name, in their order: what the others rest on comes first."""
