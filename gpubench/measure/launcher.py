"""The parent process of a measurement: it assigns cases to children, enforces deadlines, and records results.

The parent does not import torch. A child that crashes, hangs or runs out of memory costs only the current
case; the remaining cases run in a new process.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gpubench.children import ChildEndedError, ChildLateError, ChildProcess
from gpubench.errors import GpuBenchError, MisuseError, NoDeviceError
from gpubench.folders import write_log
from gpubench.measure import capability, checks, messages
from gpubench.measure.budget import LEAST_REPETITIONS, MICRO_MOST_S, MICRO_WARM_S, MOST_REPETITION_S
from gpubench.measure.environment import child_variables
from gpubench.measure.messages import MODULE, UNDER_TORCHRUN, OnEvent, Place
from gpubench.measure.plan import GOALS, SEEDS, Group, Plan, PlannedCase, Unit
from gpubench.measure.privacy import scrub
from gpubench.measure.progress import Progress
from gpubench.models import (
    Case,
    Cause,
    DeviceProfile,
    Execution,
    Finding,
    Launch,
    Measurement,
    MicroResult,
    Precision,
    Status,
)
from gpubench.models.measurement import UNFINISHED
from gpubench.models.run import TimeToQuality
from gpubench.probe.host import memory_limit_bytes
from gpubench.units import Seconds, format_bytes, format_duration, plain, utc_stamp

# --- a measuring child, and how a run is stopped ----------------------------------------------------------


class Child(ChildProcess[messages.Report]):
    """A measuring process. Its last line of output may be stored, so private names are removed from it."""

    def __init__(
        self,
        environment: Mapping[str, str],
        module: str = MODULE,
        *,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(
            ("-m", module),
            msgspec.json.Decoder(messages.Report),
            arguments=arguments,
            environment=environment,
        )

    def last_words(self, limit: int = 300) -> str:
        """Return the last line that the child wrote, with paths shortened."""
        return scrub(super().last_words(limit), limit)

    def memory_words(self) -> str:
        """Return a remark on this container's memory limit; empty if there is none."""
        limit = memory_limit_bytes()
        return "" if limit is None else f" (this container's limit: {format_bytes(limit)})"


STOPPING_S = 2.0
"""Time for a round to end after SIGTERM; one more second is for storing and reporting the results."""


@contextmanager
def handling(handler: Callable[[int], None], *signals: signal.Signals) -> Iterator[None]:
    """Call ``handler`` with the number of any of these signals, if this thread may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda n, _: handler(n)) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Control:
    """Stops a run: the first request ends it gracefully, the second kills it. Signal handlers may use it."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.stop_by_s: Seconds = float("inf")
        self.child: Child | None = None

    def stop(self, within_s: Seconds = float("inf")) -> None:
        """Finish the current round, then end; ``within_s`` limits the time until the end."""
        if self.stopping.is_set():
            self.abort()
            return
        self.stop_by_s = time.monotonic() + within_s
        self.stopping.set()
        if self.child is not None:
            self.child.end_by_s = self.stop_by_s
            self.child.send(messages.Stop())

    def abort(self) -> None:
        """End now: kill the child and every process that it started."""
        self.stopping.set()
        if self.child is not None:
            self.child.kill()


# --- the results of a run so far --------------------------------------------------------------------------


# Maximum number of reports for one case: a round takes at least 0.1 s, and few cases take an hour.
MOST_REPORTS = 100_000

_Report = TypeVar("_Report")


class JobOverError(Exception):
    """A job of several processes ended on its own."""

    def __init__(self, over: messages.JobOver) -> None:
        super().__init__(over.reason)
        self.over = over


@dataclass
class Record:
    """The results of each case so far.

    Attributes:
        ended: Status, reason and cause of each case that gets no more launches.
        threads: Number of CPU threads of the run; None if unknown.
        begun: Number of launches that the run has started.
    """

    plan: Plan
    device: DeviceProfile
    launches: dict[Case, list[Launch]] = field(default_factory=dict)
    ended: dict[Case, tuple[Status, str | None, Cause | None]] = field(default_factory=dict)
    threads: int | None = None
    begun: int = 0

    def measurement(self, unit: Unit, best_gemm: Mapping[Precision, float]) -> Measurement:
        """Return the measurement of a case with its launches so far, not yet judged.

        Args:
            unit: A launch of the case.
            best_gemm: The best matrix-product rate measured on this device, by precision [FLOP/s].
        """
        case = unit.planned.case
        status, reason, cause = self.ended.get(case, (Status.OK, None, None))
        return Measurement(
            case=case,
            status=status,
            reason=reason,
            cause=cause,
            batch_choice=unit.planned.batch_choice,
            launches=tuple(self.launches.get(case, ())),
            flops_per_sample=unit.planned.flops_per_sample,
            hardware_flops_per_sample=unit.planned.hardware_flops_per_sample,
            tokens_per_sample=unit.planned.tokens_per_sample,
            parameter_count=unit.planned.parameter_count,
            peak_flops_per_s=capability.peak_flops_per_s(self.device, case.precision),
            gemm_flops_per_s=best_gemm.get(case.precision),
            cpu_threads=case.threads or self.threads,
            convolves=unit.planned.convolves,
            target=self.plan.budget.target,
        )

    def take(self, unit: Unit, done: messages.CaseDone) -> None:
        """Add one launch. A failed case gets no more launches.

        A case that ran out of time, was stopped, or lost another process of its job keeps its earlier
        launches and their figure.
        """
        case = unit.planned.case
        earlier = self.launches.setdefault(case, [])
        cut_short = bool(earlier) and (done.status in UNFINISHED or done.launch.stopped)
        if done.status is Status.OK or not earlier:
            earlier.append(done.launch)
        if done.status is not Status.OK and not cut_short:
            self.ended[case] = (done.status, done.reason, done.cause)


def _end_of(unit: Unit, done: messages.CaseDone, measurement: Measurement) -> messages.Event:
    # If only this launch has no result, the case keeps the figure of its earlier launches, with a remark.
    if done.status is Status.OK or measurement.status is not Status.OK:
        return messages.CaseEnded(measurement=measurement, launch=unit.launch, kept=done.kept)
    return messages.Remark(
        text=f"  {plain(unit.planned.case.label)}: launch {unit.launch + 1} gave no result "
        f"({plain(done.reason or 'no reason known')}); the figure is based on earlier launches; "
        "gpubench run --resume latest repeats this launch"
    )


# A child that ends at its deadline needs a moment to report that.
GRACE_S = 1.0
# Under a time limit, a run with cases starts no micro-benchmark after this share of the remaining time.
MICRO_SHARE = 0.1
# Time of the slowest micro-benchmark [s].
PROBE_S = MICRO_WARM_S + LEAST_REPETITIONS * MOST_REPETITION_S
# A case with less time than this is not started.
LEAST_CASE_S = 1.0
# The process that runs the micro-benchmarks of one GPU.
MICRO_GROUP = Group(launch=0)
# Longest time without a report in each phase [s]; every round is a report.
PHASE_LIMITS_S = {
    "start": 60.0,
    "import": 180.0,
    "context": 120.0,
    "build": 300.0,
    "check": 300.0,
    "first steps": 600.0,
    "capture": 300.0,
    "compile": 1200.0,
    "warm-up": 300.0,
    "timed": 300.0,
    "second look": 300.0,
    "micro": 300.0,
}

# Longest time without a report under --quick [s]: a quick run does not wait ten minutes for a hung step.
QUICK_SILENCE_S = 120.0
OUT_OF_TIME = "the run reached its time limit"
# These phases depend only on the machine, so their limits are the same for every budget.
START_PHASES = frozenset({"start", "import", "context"})


@dataclass
class Launcher:
    """Runs the units of a plan one after another, each in its group's process.

    Attributes:
        ready: What the measuring processes have reported about themselves; None before the first report.
        place: The place of this process under a user's torchrun; None without torchrun.
        micro_stopped: Whether a stop of the run left micro-benchmarks unmeasured.
        lost: Why nothing more can be measured on the device; None while measuring is possible.
    """

    plan: Plan
    device: DeviceProfile
    on_event: OnEvent = lambda _: None
    control: Control = field(default_factory=Control)
    ready: messages.Ready | None = None
    device_findings: list[Finding] = field(default_factory=list)
    phase_limits_s: dict[str, Seconds] = field(default_factory=lambda: dict(PHASE_LIMITS_S))
    module: str = MODULE
    place: Place | None = None
    began_s: Seconds = field(default_factory=time.monotonic)
    micro: list[MicroResult] = field(default_factory=list)
    micro_stopped: bool = False
    lost: str | None = None
    _micro_begun: set[int] = field(default_factory=set)  # by the number of GPUs in a job
    _child: Child | None = None
    _group: Group | None = None
    _why_no_job: str | None = None  # why no further job on several GPUs can start
    _start_s: dict[str, Seconds] = field(
        default_factory=dict
    )  # startup cost of a process before its first unit
    _threads: int | None = None  # CPU threads of the run's earlier part
    _output: str | None = None  # output of the latest process to end

    def run(self, record: Record | None = None) -> Iterator[Measurement]:
        """Measure every remaining unit; yield a case's measurement after each of its launches.

        Args:
            record: Results of an earlier, interrupted part of the run.

        Raises:
            NoDeviceError: If the child cannot work on the device at all.
            MisuseError: If the child's number of CPU threads differs from the earlier part's.
        """
        record = record or Record(plan=self.plan, device=self.device)
        self._threads = record.threads
        self._micro_begun.update(case.gpu_count for case, _ in self.plan.done if case.gpu_count > 1)
        units = list(self.plan.units())
        groups = [unit.group for unit in units]
        # The micro-benchmarks run after the first case of this group.
        micro_after = MICRO_GROUP if MICRO_GROUP in groups else next(iter(groups), None)
        try:
            if self.plan.micro_left and not units:  # nothing else is left
                self._measure_micro()
            for number, unit in enumerate(units):
                case = unit.planned.case
                if case in record.ended:
                    continue
                if unit.group.gpu_count > 1 and self.plan.micro != "none" and self._why_no_job is None:
                    self._measure_micro(unit.group)  # the job's communication
                if self.control.stopping.is_set():
                    return
                self.on_event(
                    messages.CaseBegan(
                        case=case,
                        launch=unit.launch,
                        number=number + 1,
                        total=len(units),
                        most_s=self.plan.most_s(),
                    )
                )
                units_left = sum(u.planned.case not in record.ended for u in units[number:])
                finished = self._measure(unit, units_left, record)
                if self.ready is not None:
                    record.threads = self.ready.cpu_threads
                record.take(unit, finished)
                units[number + 1 :] = sorted(
                    (*units[number + 1 :], *self._eager_units(unit, record)), key=lambda each: each.launch
                )
                measurement = self._judged(record, unit)
                yield measurement  # it is stored before it is reported
                self.on_event(_end_of(unit, finished, measurement))
                if (
                    self.plan.micro_left
                    and MICRO_GROUP.gpu_count not in self._micro_begun
                    and unit.group == micro_after
                ):
                    self._measure_micro()
                    yield self._judged(record, unit)  # judged again, using matrix products measured since
        finally:
            self.close()

    def _eager_units(self, unit: Unit, record: Record) -> Iterator[Unit]:
        # If a CUDA graph cannot capture a case and the plan allows it, plan the case eagerly.
        case = unit.planned.case
        status = record.ended.get(case, (Status.OK,))[0]
        if self.plan.falls_back and case.execution is Execution.GRAPH and status is Status.UNSUPPORTED:
            planned = msgspec.structs.replace(
                unit.planned, case=msgspec.structs.replace(case, execution=Execution.EAGER)
            )
            self.plan = msgspec.structs.replace(self.plan, cases=(*self.plan.cases, planned))
            yield from (Unit(launch=n, planned=planned) for n in range(self.plan.budget.launches))

    def _judged(self, record: Record, unit: Unit) -> Measurement:
        return checks.judge_measurement(
            record.measurement(unit, capability.best_gemm(self.micro)),
            self.plan.budget.launches,
            allow_throttled=self.plan.allow_throttled,
        )

    def _next(self, child: Child, kinds: tuple[type[_Report], ...], progress: Progress) -> _Report:
        """Return the next report, which must be of one of these kinds, and pass on phase reports before it.

        Raises:
            JobOverError: If the job ended on its own.
            ChildEndedError: If the report is of another kind, or the child sends over ``MOST_REPORTS``.
        """
        while progress.reports < MOST_REPORTS:
            progress.reports += 1
            report = child.receive(self._until_s(progress.phase))
            if isinstance(report, kinds):
                return report
            match report:
                case messages.Phase(name=name):
                    progress.phase = name
                    self.on_event(report)
                case messages.JobOver():
                    raise JobOverError(report)
                case _:
                    raise ChildEndedError(f"sent {type(report).__name__} out of turn")
        raise ChildEndedError(f"sent more than {MOST_REPORTS:,} reports in a row")

    def train_to_quality(self, planned: PlannedCase) -> Iterator[TimeToQuality]:
        """Train a workload to its goal from one seed after another, and yield its row after each.

        All seeds use the same process. A row with missing seeds gives the reason.
        """
        goal = GOALS[planned.case.workload]
        row = TimeToQuality(
            case=planned.case,
            metric=goal.metric,
            target=goal.target,
            most_steps=goal.most_steps,
            data_sha256=goal.data_sha256,
        )
        progress = Progress(phase="timed")
        try:
            for number in range(SEEDS):
                done = self._trained(planned, self.plan.seed + number, progress)
                if done.run is None:
                    yield msgspec.structs.replace(row, reason=done.reason)
                    return
                left = SEEDS - number - 1
                reason = f"{left} of {SEEDS} seeds have not been trained yet" if left else None
                row = msgspec.structs.replace(row, runs=(*row.runs, done.run), reason=reason)
                yield row
        except (ChildLateError, ChildEndedError) as error:
            yield msgspec.structs.replace(row, reason=self.cut_short(progress, error).reason)

    def _trained(self, planned: PlannedCase, seed: int, progress: Progress) -> messages.QualityDone:
        if self.control.stopping.is_set():
            return messages.QualityDone(reason="stopped on request")
        if self._time_left_s() <= 0:
            return messages.QualityDone(reason=OUT_OF_TIME)
        return self.ask(
            Group(launch=0),
            messages.TrainToQuality(case=planned.case, seed=seed),
            messages.QualityDone,
            progress,
        )

    def try_batch(self, planned: PlannedCase) -> messages.CaseDone:
        """Run a few steps of a case, and end a process that can no longer be trusted."""
        progress = Progress(phase="first steps")
        order = messages.TryBatch(reference=planned.reference, case=planned.case)
        try:
            return self.ask(Unit(launch=0, planned=planned).group, order, messages.CaseDone, progress)
        except (ChildLateError, ChildEndedError) as error:
            return self.cut_short(progress, error)

    def ask(self, group: Group, order: messages.Command, kind: type[_Report], progress: Progress) -> _Report:
        """Send a command to a group's process and return the answer; end a process that becomes unusable.

        Raises:
            ChildLateError: If the process did not answer in time; ``cut_short`` ends it and says why.
            ChildEndedError: If the process is gone, or its result contradicts its reports.
        """
        child = self._child_of(group)
        child.send(order)
        kinds: tuple[type[messages.RoundDone | _Report], ...] = (messages.RoundDone, kind)
        while isinstance(answer := self._next(child, kinds, progress), messages.RoundDone):
            progress.take(answer, was_awaited=child.was_awaited)
            self.on_event(answer)
        if isinstance(answer, messages.CaseDone) and (wrong := progress.contradiction(answer)):
            raise ChildEndedError(wrong)
        if isinstance(answer, messages.CaseDone) and answer.lost:
            self.lost = answer.reason
        if isinstance(answer, messages.CaseDone | messages.Proven) and answer.spent:
            self.close()
        return answer

    # --- one unit ---------------------------------------------------------------------------------------

    def _measure(self, unit: Unit, units_left: int, record: Record) -> messages.CaseDone:
        # Measure one unit, or say why not, and keep a failure's traceback and output in a log.
        # The launch records its start time, its number in the run, and the startup cost of its process.
        began_at = utc_stamp()
        done = self._attempt(unit, units_left)
        kept = None
        if done.status is Status.FAILED and self._output is not None:
            kept = write_log(unit.planned.case.label, done.traceback, self._output)
        start_s, self._start_s = self._start_s, {}
        launch = msgspec.structs.replace(
            done.launch,
            sequence=record.begun,
            began_at=began_at,
            cold_s={name: round(value, 4) for name, value in start_s.items()} | done.launch.cold_s,
        )
        record.begun += 1
        return msgspec.structs.replace(done, launch=launch, kept=kept)

    def _attempt(self, unit: Unit, units_left: int) -> messages.CaseDone:
        self._output = None
        progress = Progress(launch=unit.launch)
        why_not = self.lost or (self._why_no_job if unit.planned.case.gpu_count > 1 else None)
        if why_not is not None:
            return progress.done(Status.FAILED, why_not)
        if self._time_left_s() < LEAST_CASE_S:
            left_s = format_duration(max(0.0, self._time_left_s()))
            least = format_duration(LEAST_CASE_S)
            return progress.done(
                Status.TIMEOUT, f"skipped: a case takes at least {least}, but the time limit leaves {left_s}"
            )
        try:
            self._child_of(unit.group)  # before computing the case's share of time
            order = messages.MeasureCase(
                reference=unit.planned.reference,
                case=unit.planned.case,
                launch=unit.launch,
                time_s=self._share_s(units_left),
            )
            done = self.ask(unit.group, order, messages.CaseDone, progress)
        except (JobOverError, ChildLateError, ChildEndedError) as error:
            done = self.cut_short(progress, error)
            if done.status is not Status.OUT_OF_MEMORY:
                return done
            # Another process reported only the error; batch and phase show the user what to reduce.
            batch = unit.planned.case.batch_size
            return msgspec.structs.replace(done, reason=f"batch {batch}, {progress.phase}: {done.reason}")
        if self._is_under_torchrun and done.launch.stopped:
            self._why_no_job = done.reason  # torchrun also ends the other processes, and may restart all
        launch = msgspec.structs.replace(done.launch, told_in_s=progress.told_in_s())
        return msgspec.structs.replace(done, launch=launch)

    def cut_short(
        self, progress: Progress, error: JobOverError | ChildLateError | ChildEndedError
    ) -> messages.CaseDone:
        """End the process and return how its work ended; the driver's report takes precedence."""
        self.close()
        fault = None if self.control.stopping.is_set() else capability.fault_of(self.device)
        if fault is not None:  # no further case can run
            self.lost = fault = capability.describe_fault(fault)
        if isinstance(error, JobOverError):
            done = progress.done(error.over.status, fault or error.over.reason)
            return msgspec.structs.replace(done, traceback=error.over.traceback)
        if fault is not None:
            return progress.done(Status.FAILED, fault)
        if self.control.stopping.is_set():
            return progress.done(Status.INTERRUPTED, f"stopped during {progress.phase}")
        late = isinstance(error, ChildLateError)
        if late and self._time_left_s() <= 0:
            return progress.done(Status.TIMEOUT, f"{OUT_OF_TIME} during {progress.phase}")
        status, cause = (Status.TIMEOUT, Cause.SILENCE) if late else (Status.FAILED, None)
        reason = (
            f"no report during {progress.phase}: the process was killed"
            if late
            else f"the measuring process {error} (phase: {progress.phase})"
        )
        if self._is_under_torchrun and not late:
            self._why_no_job = reason = f"rank 0 of the job: {reason}"  # torchrun ends the other ranks too
        return progress.done(status, reason, cause)

    def _measure_micro(self, group: Group = MICRO_GROUP) -> None:
        # Run the micro-benchmarks of a process or a job once; if they fail, the run goes on.
        self.micro_stopped |= self.control.stopping.is_set()
        if group.gpu_count in self._micro_begun or self.lost is not None or self.micro_stopped:
            return
        self._micro_begun.add(group.gpu_count)
        progress = Progress(phase="micro")
        try:
            child = self._child_of(group)
            left_s = self._time_left_s()
            limit_s = min(MICRO_MOST_S, MICRO_SHARE * left_s)
            if self.plan.micro == "only":  # the last one starts early enough to end in time
                limit_s = max(MICRO_SHARE * left_s, left_s - PROBE_S)
            child.send(messages.MeasureMicro(time_s=limit_s if limit_s < math.inf else None))
            while not (report := self._next(child, (messages.MicroDone,), progress)).last:
                if report.result is not None:
                    self._take_micro(report.result)
                if report.finding is not None:
                    self.device_findings.append(report.finding)
        except (ChildLateError, ChildEndedError, JobOverError) as error:
            why = self.cut_short(progress, error).reason
            self.on_event(messages.Remark(text=f"micro-benchmarks cut short: {why}"))
        self.micro_stopped |= self.control.stopping.is_set()  # a child that is stopped ends them early

    def _take_micro(self, result: MicroResult) -> None:
        # Judge a micro-benchmark and add it; in a resumed run it replaces the earlier result.
        result = checks.judge_micro(self.device, result)
        self.micro = list({(r.name, r.precision, r.size): r for r in (*self.micro, result)}.values())
        self.on_event(messages.MicroEnded(result=result))

    # --- the process ------------------------------------------------------------------------------------

    @property
    def _is_under_torchrun(self) -> bool:
        # Whether the measuring process is rank 0 of a user's torchrun job.
        return self.place is not None and self._group is not None and self._group.gpu_count > 1

    def _child_of(self, group: Group) -> Child:
        # Return the group's process, starting one if needed.
        if self._child is not None and self._group == group:
            return self._child
        self.close()
        self._group = group
        peers = self.plan.peers[: group.gpu_count - 1]
        variables = child_variables(
            self.device,
            os.environ,
            peers=peers,
            framework=group.framework,
            threads=group.threads,
        )
        # With several GPUs, the process is rank 0 of a user's torchrun job, or starts torchrun itself.
        job = UNDER_TORCHRUN if self.place is not None else f"{group.gpu_count}"
        module, arguments = (self.module, ()) if group.gpu_count == 1 else (MODULE, (job,))
        child = self._child = self.control.child = Child(variables, module, arguments=arguments)
        child.end_by_s = self.control.stop_by_s  # a signal may have come before the child existed
        child.send(
            messages.Setup(
                device=self.device,
                budget=self.plan.budget,
                seed=self.plan.seed,
                peers=peers,
                framework=group.framework,
                memory_share=group.memory_share,
            )
        )
        report = self._first_report(child)
        self._check_threads(report, group.threads)
        self._take_ready(report, uses_all_threads=not group.threads)
        self._start_s = report.cold_s
        return child

    def _first_report(self, child: Child) -> messages.Ready:
        # Wait until a new process is ready; raise the error of one that refused the device.
        starts: tuple[type[messages.Ready | messages.Refused], ...] = (messages.Ready, messages.Refused)
        try:
            report = self._next(child, starts, Progress())
        except JobOverError as error:
            self._why_no_job = error.over.reason  # other ranks would not join the next job
            raise
        if isinstance(report, messages.Ready):
            return report
        self.close()
        known: tuple[type[GpuBenchError], ...] = (MisuseError, NoDeviceError)
        kind = next((kind for kind in known if kind.exit_code == report.exit_code), GpuBenchError)
        raise kind(report.reason)

    def _take_ready(self, report: messages.Ready, *, uses_all_threads: bool) -> None:
        # Keep the report of a job, else of the first torch process, else of the first process; add the
        # packages of all processes.
        known = self.ready or messages.Ready()
        is_better = self.ready is None or report.nccl or (report.torch and not known.torch)
        self.ready = msgspec.structs.replace(
            report if is_better else known,
            packages=report.packages | known.packages,
            cpu_threads=report.cpu_threads if uses_all_threads else known.cpu_threads,
        )

    def _check_threads(self, ready: messages.Ready, requested: int) -> None:
        # Refuse a number of CPU threads other than the requested one or the run's; only torch reports it.
        then, now = self._threads, ready.cpu_threads
        if requested and now != requested:
            self.close()
            raise MisuseError(f"torch uses {now} CPU threads instead of the requested {requested}")
        if not requested and then is not None and now is not None and then != now:
            self.close()
            raise MisuseError(
                f"torch now uses {now} CPU threads, but used {then} when the run began: set "
                f"OMP_NUM_THREADS={then} and the same CPU affinity, or start a new run"
            )

    def close(self) -> None:
        """End the process, if there is one."""
        child, self._child, self.control.child = self._child, None, None
        if child is not None:
            self.lost = child.end() or self.lost
            self._output = child.output()
            if child.swept:
                self.on_event(
                    messages.Remark(
                        text=f"killed processes that the model left running: {', '.join(child.swept)}"
                    )
                )

    # --- time -------------------------------------------------------------------------------------------

    def _time_left_s(self) -> Seconds:
        limit_s = math.inf if self.plan.time_limit_s is None else self.plan.time_limit_s
        return self.began_s + limit_s - time.monotonic()

    def _share_s(self, units_left: int) -> Seconds | None:
        # Return a unit's share of the time left; None without a limit. The remaining units share it equally,
        # but none gets less than ``LEAST_CASE_S``, so a limit that is too short costs only the last units.
        if self.plan.time_limit_s is None:
            return None
        left_s = max(0.0, self._time_left_s())
        return max(left_s / max(1, units_left), min(LEAST_CASE_S, left_s))

    def _until_s(self, phase: str) -> Seconds:
        # Return when the child counts as late, on ``time.monotonic``.
        now_s = time.monotonic()
        silence_s = self.phase_limits_s.get(phase, max(PHASE_LIMITS_S.values()))
        if self.plan.budget.name == "quick" and phase not in START_PHASES:
            silence_s = min(silence_s, QUICK_SILENCE_S)
        return min(now_s + silence_s, now_s + self._time_left_s() + GRACE_S, self.control.stop_by_s)
