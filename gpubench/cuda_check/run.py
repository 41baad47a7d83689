"""Runs a check: proofs and cases in order, each part with a time limit. Every reading updates the file."""

from __future__ import annotations

import bisect
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import msgspec

from gpubench.children import ChildEndedError, ChildLateError
from gpubench.cuda_check.judge import nameless, nameless_calls, write_check
from gpubench.errors import InterruptedRunError, MisuseError, NoDeviceError, StorageError
from gpubench.folders import traceback_of
from gpubench.measure import capability, messages
from gpubench.measure.budget import QUICK, Budget
from gpubench.measure.environment import environment
from gpubench.measure.launcher import Launcher, handling
from gpubench.measure.messages import MODULE
from gpubench.measure.plan import Group, Plan
from gpubench.measure.privacy import scrub, scrub_traceback
from gpubench.measure.progress import Progress
from gpubench.models import (
    Case,
    CaseRow,
    CudaCheck,
    DeviceProfile,
    Execution,
    Launch,
    PartLog,
    PartState,
    Precision,
    Status,
    TaskKind,
)
from gpubench.options import CLASSIC
from gpubench.profile import load_profiles
from gpubench.profile.memory import MOST_BATCH, planned_peak_bytes
from gpubench.profile.memory_figures import WORKSPACE_BYTES
from gpubench.units import GIB, Bytes, Seconds, utc_stamp

LIMIT_S: Seconds = 300.0
"""Time limit of the entire check; ``--full`` has none."""
PART_SHARE = 0.6
"""Share of the remaining time that a part may take, so a hanging part leaves time for later ones."""
LEAST_PART_S: Seconds = 10.0
"""Minimum remaining time to start a part; a process alone takes five seconds to start."""
OPENING = frozenset({"device", "precision"})
"""If the device is unusable in one of these parts, the check ends."""
# A model that no CUDA graph can capture.
WAITING = "gpubench.measure.proofs:WORKLOAD"
TOO_LARGE = 2.0
"""Ratio of the modeled memory, without workspace, to the cap: so large that the batch cannot fit, even if the
model is far off."""
SOUND_BATCH = 64
"""Batch of the cnn case after an injected fault."""

COMPILED = ("cnn", "vgg16", "lstm")
"""Compiled workloads, in order. torch up to 2.11 cannot compile the last of them, and the process dies."""
UNKNOWN_MEMORY_BYTES: Bytes = 4 * GIB
"""Assumed memory of a card if the driver does not report it."""
PROOF_MEMORY_SHARE = 0.3
"""Maximum share of memory for the case of a proof; a graph captured by hand needs as much again."""
NO_TIME = "no time left: use --full"

OnPart = Callable[[PartLog, int, int], None]
"""Called at the start and end of each part, with its log, its number from 1, and the number of parts."""
_Answer = TypeVar("_Answer", bound=messages.CaseDone | messages.Proven)


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts of work in a check; tests use smaller ones.

    Attributes:
        fours: How often the four blocks A, B, B, A run in each comparison of A with B.
        block_s: Minimum duration of a block [s].
        load_s, settle_s: Duration of the load, and of its first part, which is not judged [s].
        cap_bytes: Memory cap of a process in the out-of-memory test [B].
        budget: Budget of the trials.
        workloads: Workloads of the cases; empty for the classic set.
    """

    fours: int = 3
    block_s: Seconds = 0.3
    load_s: Seconds = 12.0
    settle_s: Seconds = 2.0
    cap_bytes: Bytes = GIB
    budget: Budget = msgspec.structs.replace(QUICK, name="default", curve_steps=2)
    workloads: tuple[str, ...] = ()


AMOUNTS = Amounts()


class PartEndedError(Exception):
    """A part ended early: its state, the reason, and the traceback of its process.

    The part is cut off if its time ran out; otherwise it has failed.
    """

    def __init__(self, state: PartState, reason: str, traceback: str | None = None) -> None:
        super().__init__(reason)
        self.state, self.traceback = state, traceback or ""


@dataclass
class Work:
    """A running check, and the launcher of its measuring process.

    Attributes:
        check: The results so far.
        save: Writes them to the file.
        until_s: Deadline of the current part on ``time.monotonic``.
    """

    amounts: Amounts
    check: CudaCheck
    save: Callable[[CudaCheck], None]
    launcher: Launcher
    until_s: Seconds = math.inf

    def add(self, **fields: object) -> None:
        """Set fields of the check, and write it."""
        self.check = msgspec.structs.replace(self.check, **fields)
        self.save(self.check)

    def log(self, log: PartLog, **fields: object) -> PartLog:
        """Set fields of a part's log, write the check, and return the new log."""
        new = msgspec.structs.replace(log, **fields)
        self.add(parts=tuple(new if part.name == log.name else part for part in self.check.parts))
        return new

    def ask(
        self,
        order: messages.TryBatch | messages.Prove,
        kind: type[_Answer],
        memory_share: float | None = None,
    ) -> _Answer:
        """Have the measuring process try or prove something; start a process if necessary.

        Raises:
            PartEndedError: If the process gave no answer; it is then no longer running.
            NoDeviceError: If torch cannot use the device.
        """
        if self.launcher.lost is not None:
            raise PartEndedError(PartState.FAILED, self.launcher.lost)
        launcher, progress = self.launcher, Progress()
        launcher.began_s = time.monotonic()
        launcher.plan = msgspec.structs.replace(launcher.plan, time_limit_s=self.until_s - launcher.began_s)
        try:
            return launcher.ask(Group(launch=0, memory_share=memory_share), order, kind, progress)
        except (ChildLateError, ChildEndedError) as error:
            done = launcher.cut_short(progress, error)
            if done.status is Status.TIMEOUT and done.cause is None:
                raise PartEndedError(
                    PartState.CUT_OFF, f"cut off during {progress.phase}: out of time"
                ) from error
            raise PartEndedError(PartState.FAILED, scrub(done.reason or "")) from error
        except NoDeviceError as error:
            launcher.lost = capability.why_refused(error, self.launcher.device)
            raise NoDeviceError(launcher.lost) from error
        finally:
            self._note_process(launcher.ready)

    def _note_process(self, ready: messages.Ready | None) -> None:
        # Store the report of the first process; torch may know the memory size if the driver does not.
        if ready is None or self.check.identity is not None:
            return
        if self.launcher.device.memory_bytes is None:
            memory = {"memory_bytes": ready.memory_bytes}
            self.launcher.device = msgspec.structs.replace(self.launcher.device, **memory)
            self.add(device=msgspec.structs.replace(self.check.device, **memory))
        self.add(environment=environment(self.launcher.device, ready), identity=ready.identity)


# --- cases to try ------------------------------------------------------------------------------------


def case_of(
    name: str, precision: Precision, execution: Execution = Execution.EAGER, batch_size: int | None = None
) -> Case:
    """Return the training case of a workload, at its main batch if none is given."""
    profile = load_profiles()[name]
    return Case(
        workload=name,
        workload_version=profile.version,
        task=TaskKind.TRAIN,
        precision=precision,
        execution=execution,
        memory_format=profile.memory_format_at(precision),
        batch_size=batch_size or profile.main_batch,
        sample_unit=profile.sample_unit,
    )


def expected_bytes(case: Case) -> float:
    """Return the peak memory of a case from the memory model [B]."""
    return planned_peak_bytes(load_profiles()[case.workload].at_precision(case.precision), case)


def proof_case(device: DeviceProfile) -> Case:
    """Return the case of the proofs: GPU-bound, and the largest within ``PROOF_MEMORY_SHARE``."""
    room = PROOF_MEMORY_SHARE * (device.memory_bytes or UNKNOWN_MEMORY_BYTES)
    amp = capability.best_amp(device)
    of_vgg16, of_cnn = (load_profiles()[name].batches for name in ("vgg16", "cnn"))
    largest_first = (
        case_of("vgg16", amp),
        case_of("vgg16", amp, batch_size=of_vgg16[0]),
        case_of("cnn", amp, batch_size=of_cnn[-1]),
    )
    return next((case for case in largest_first if expected_bytes(case) <= room), case_of("cnn", amp))


def usual_cases(device: DeviceProfile, workloads: Sequence[str] = ()) -> Iterator[Case]:
    """Yield every classic training workload at every usual precision, the most informative cases first.

    Graphs precede eager cases, because the trial of a graph includes as many eager steps as replays. Only a
    few workloads are compiled.
    """
    amp = capability.best_amp(device)
    trained = [
        name
        for name, profile in load_profiles().items()
        if TaskKind.TRAIN in profile.tasks and profile.is_classic and (not workloads or name in workloads)
    ]
    names = sorted(trained, key=lambda name: name not in CLASSIC)
    first = (amp, Precision.FP32)
    others = tuple(precision for precision in usual_precisions(device) if precision not in first)
    for execution, precisions in (
        (Execution.GRAPH, first),
        (Execution.COMPILE, (amp,)),
        (Execution.GRAPH, others),
        (Execution.EAGER, (*first, *others)),
    ):
        wanted = [n for n in COMPILED if n in trained] if execution is Execution.COMPILE else names
        for name, precision in product(wanted, precisions):
            yield case_of(name, precision, execution)


def usual_precisions(device: DeviceProfile) -> list[Precision]:
    """Return the usual precisions that a device supports."""
    return [p for p in Precision if p.is_usual and capability.why_no_precision(p, device) is None]


def largest_within(case: Case, peak_bytes: float) -> int:
    """Return the largest batch of a case with a modeled peak of at most ``peak_bytes``; at least 1."""
    profile = load_profiles()[case.workload]
    count = bisect.bisect_right(
        range(1, MOST_BATCH + 1),
        peak_bytes,
        key=lambda batch: planned_peak_bytes(profile, msgspec.structs.replace(case, batch_size=batch)),
    )
    return max(1, count)


def waiting_case(precision: Precision) -> Case:
    """Return the case of a model that synchronizes within a step, which a graph cannot do."""
    return Case(
        workload="waiting",
        workload_version=1,
        task=TaskKind.TRAIN,
        precision=precision,
        execution=Execution.GRAPH,
        memory_format=None,
        batch_size=8,
        sample_unit="row",
    )


# --- proofs --------------------------------------------------------------------------------------------


def look_at_device(work: Work) -> None:
    """Make every driver call, and check that nothing else uses the card.

    Raises:
        NoDeviceError: If something else does.
    """
    from gpubench.probe.nvidia import dump

    work.add(nvml=nameless_calls(dump()))
    work.add(findings=capability.preflight(work.launcher.device, allow_shared=False))


def prove_precisions(work: Work) -> None:
    """Read the switches and errors of every usual precision."""
    for precision in usual_precisions(work.launcher.device):
        case = msgspec.structs.replace(proof_case(work.launcher.device), precision=precision)
        work.add(precisions=(*work.check.precisions, _proven(work, "precision", case)))


def prove(what: messages.ProofName, execution: Execution, work: Work) -> None:
    """Compare a part of the harness with an independent implementation.

    The clock is compared with a hand-written loop and CUDA events, graph replays with a hand-captured graph,
    the energy counter with integrated power, and rounds under telemetry with undisturbed rounds.
    """
    case = msgspec.structs.replace(proof_case(work.launcher.device), execution=execution)
    work.add(**{what: _proven(work, what, case)})


def _proven(work: Work, what: messages.ProofName, case: Case) -> object:
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
    proven = work.ask(order, messages.Proven)
    if proven.status is not Status.OK:
        raise PartEndedError(
            PartState.FAILED, f"{case.label}: {proven.status}: {proven.reason}", proven.traceback
        )
    return getattr(proven, what)


# --- cases ---------------------------------------------------------------------------------------------


def try_cases(work: Work) -> None:
    """Run a few steps of every usual case, as time permits; a process that dies affects only its case.

    A case is started only if it would finish in time even if it took as long as the longest case so far.

    Raises:
        PartEndedError: If a case did not answer in time, or the device is lost.
    """
    cases = list(usual_cases(work.launcher.device, work.amounts.workloads))
    longest_s = 0.0
    for number, case in enumerate(cases):
        if work.launcher.lost is not None:
            raise PartEndedError(PartState.FAILED, work.launcher.lost)
        began_s = time.monotonic()
        if began_s + longest_s > work.until_s:
            work.add(left_out={case.label: NO_TIME for case in cases[number:]})
            return
        try:
            row = _tried(work, case.workload, case, needed_bytes=expected_bytes(case))
        except PartEndedError as error:
            work.add(left_out={case.label: NO_TIME for case in cases[number:]})
            raise PartEndedError(error.state, f"{case.label}: {error}") from error
        longest_s = max(longest_s, time.monotonic() - began_s)
        work.add(cases=(*work.check.cases, row))


def _tried(
    work: Work,
    reference: str,
    case: Case,
    *,
    needed_bytes: float | None = None,
    memory_share: float | None = None,
) -> CaseRow:
    """Return the row of a case; if its process died, the row says why.

    Raises:
        PartEndedError: If the time ran out before the process answered.
    """
    began_s = time.monotonic()
    try:
        done = work.ask(messages.TryBatch(reference=reference, case=case), messages.CaseDone, memory_share)
    except PartEndedError as error:
        if error.state is PartState.CUT_OFF:
            raise
        done = messages.CaseDone(status=Status.FAILED, reason=scrub(str(error)), launch=Launch(index=0))
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
    """Capture a model that synchronizes, then exceed a memory cap; after each fault, try a valid case.

    The first valid case already runs under the cap, which saves starting a process.
    """
    amp, cap = capability.best_amp(work.launcher.device), work.amounts.cap_bytes
    _note(work, waiting=_tried(work, WAITING, waiting_case(amp)))
    if work.launcher.device.memory_bytes is None:
        raise PartEndedError(
            PartState.FAILED,
            "neither the driver nor torch reports the memory of this card: it cannot be capped",
        )
    share = min(1.0, cap / work.launcher.device.memory_bytes)
    tried = partial(_tried, work, "cnn", memory_share=share)
    _note(work, cap_bytes=cap)
    _note(work, after_waiting=tried(case_of("cnn", amp, Execution.GRAPH, SOUND_BATCH)))
    too_large = largest_within(case_of("cnn", amp), TOO_LARGE * cap + WORKSPACE_BYTES)
    _note(work, too_large=tried(case_of("cnn", amp, batch_size=too_large)))
    _note(work, after_too_large=tried(case_of("cnn", amp, batch_size=SOUND_BATCH)))


def _note(work: Work, **fields: object) -> None:
    work.add(faults=msgspec.structs.replace(work.check.faults, **fields))


# --- the check -----------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Work], None]] = {
    "device": look_at_device,
    "precision": prove_precisions,
    "clock": partial(prove, "clock", Execution.EAGER),
    "graph": partial(prove, "graph", Execution.GRAPH),
    "load": partial(prove, "load", Execution.EAGER),
    "faults": inject_faults,
    "cases": try_cases,
}
"""The function of each part, in order; prerequisites of other parts come first."""


def check_cuda(
    device: DeviceProfile,
    path: Path,
    *,
    full: bool = False,
    amounts: Amounts = AMOUNTS,
    on_part: OnPart = lambda *_: None,
    module: str = MODULE,
) -> CudaCheck:
    """Check the CUDA path of a device, and write every reading to a file as soon as it is taken.

    Args:
        device: An NVIDIA GPU.
        path: The file; an existing one is replaced.
        full: Whether to run everything without a time limit.
        amounts: The amounts of work.
        on_part: Called at the start and end of each part.
        module: The module that the measuring processes run.

    Returns:
        The readings, for ``judge``.

    Raises:
        MisuseError: If the device is not an NVIDIA GPU.
        NoDeviceError: If something else uses the device, or torch cannot open it; the file gives the reason.
        StorageError: If the file cannot be written.
        InterruptedRunError: After Ctrl-C or SIGTERM; the file has the readings so far.
    """
    if not device.is_nvidia:
        raise MisuseError(f"check --cuda is for NVIDIA GPUs; this device is {device.backend}")
    check = CudaCheck(
        started_at=utc_stamp(),
        full=full,
        limit_s=None if full else LIMIT_S,
        device=nameless(device),
        environment=environment(device),
        parts=tuple(PartLog(name=name) for name in STEPS),
    )
    launcher = Launcher(Plan(budget=amounts.budget, seed=0, cases=()), device, module=module)
    work = Work(amounts, check, partial(write_check, path), launcher)
    work.save(work.check)
    try:
        # SIGTERM ends a check as Ctrl-C does.
        with handling(lambda _: signal.default_int_handler(0, None), signal.SIGTERM):
            _run_parts(work, time.monotonic() + (check.limit_s or math.inf), on_part)
    except KeyboardInterrupt:
        launcher.close()  # while Ctrl-C is handled, this kills the process at once
        for part in work.check.parts:
            if part.state is PartState.RUNNING:
                work.log(part, state=PartState.INTERRUPTED)
        raise InterruptedRunError(f"interrupted; the readings so far are in {path}") from None
    finally:
        launcher.close()
    work.add(finished_at=utc_stamp())
    return work.check


def _run_parts(work: Work, end_s: Seconds, on_part: OnPart) -> None:
    # Run the parts in order; the last one may take all the remaining time.
    count = len(work.check.parts)
    for number, part in enumerate(work.check.parts, 1):
        left_s = end_s - time.monotonic()
        work.until_s = time.monotonic() + (1.0 if number == count else PART_SHARE) * left_s
        if work.launcher.lost is not None:
            ended = work.log(part, state=PartState.LEFT_OUT, reason=scrub(work.launcher.lost))
        elif left_s < LEAST_PART_S:
            ended = work.log(part, state=PartState.LEFT_OUT, reason=NO_TIME)
        else:
            on_part(work.log(part, state=PartState.RUNNING), number, count)
            ended = _run_part(work, part)
        on_part(ended, number, count)


def _run_part(work: Work, part: PartLog) -> PartLog:
    """Run one part; an error affects only this part, unless the card is unusable."""
    began_s = time.monotonic()
    ended = PartEndedError(PartState.DONE, "")  # unless an exception replaces it
    try:
        STEPS[part.name](work)
    except (StorageError, KeyboardInterrupt):
        raise
    except PartEndedError as error:
        ended = error
    except NoDeviceError as error:
        ended = PartEndedError(PartState.FAILED, str(error))
        if part.name in OPENING:
            work.log(part, state=ended.state, reason=scrub(str(error)))
            raise
    except Exception as error:  # noqa: BLE001 - the file also records bugs in gpubench itself
        ended = PartEndedError(PartState.FAILED, f"{type(error).__name__}: {error}", traceback_of(error))
    return work.log(
        part,
        state=ended.state,
        reason=scrub(str(ended)) or None,
        traceback=scrub_traceback(ended.traceback),
        took_s=round(time.monotonic() - began_s, 3),
    )
