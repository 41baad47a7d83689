"""Carries a run from request to file: choose the device, check, plan, measure, and store after every case."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import psutil

from gpubench.children import die_with_parent
from gpubench.discovery import workload_names
from gpubench.errors import (
    EveryCaseFailedError,
    InterruptedRunError,
    MisuseError,
    NoDeviceError,
    StorageError,
)
from gpubench.folders import results_root
from gpubench.measure import capability, checks, messages
from gpubench.measure.batch_search import OnTrial, with_largest_batches
from gpubench.measure.environment import child_variables, environment
from gpubench.measure.launcher import STOPPING_S, Control, Launcher, Record, handling
from gpubench.measure.messages import MODULE, Place, place_under_torchrun
from gpubench.measure.plan import (
    Plan,
    check_request,
    plan,
    references,
)
from gpubench.measure.request import RunRequest
from gpubench.models import (
    DeviceProfile,
    Finding,
    FindingKind,
    Framework,
    Measurement,
    Run,
    Settings,
    StartState,
    Status,
    WorkloadProfile,
)
from gpubench.options import asked_recipe, takes_options_of
from gpubench.probe.backend import storable
from gpubench.probe.select import select_device, select_peers
from gpubench.profile import classic_names
from gpubench.record import store
from gpubench.record.run_file import broken_rule, read_run
from gpubench.session.resume import (
    check_conditions,
    finished_units,
    plan_again,
    record_of,
    request_again,
    without_cut_off,
)
from gpubench.today import now
from gpubench.units import plain, utc_stamp
from gpubench.workload import check_weights, need_torch

# --- under a user's torchrun: the first process measures, and the others serve it ------------------------

# Numbers the runs of this process.
_run_numbers = itertools.count()


def run_id_under_torchrun() -> str:
    """Return the id of this process's next run, which stays the same when torchrun restarts the process."""
    torchrun = psutil.Process(os.getppid())
    began = datetime.fromtimestamp(torchrun.create_time(), UTC)
    # The last eight digits: two for the number of the run, six for torchrun's process id.
    return f"{began:%Y%m%dt%H%M%Sz}-{next(_run_numbers) << 24 | torchrun.pid:08x}"


def with_torchrun_size(request: RunRequest, place: Place) -> RunRequest:
    """Return the request with torchrun's number of machines and, unless requested, its GPUs per machine."""
    gpus = place.local_size if request.gpus == 1 else request.gpus
    return msgspec.structs.replace(request, gpus=gpus, nnodes=place.machines)


def check_process_count(request: RunRequest, place: Place | None) -> None:
    """Check that torchrun started as many processes as the request or the resumed run needs.

    Raises:
        MisuseError: With the right torchrun command.
    """
    here = (request.gpus, 1) if place is None else (place.local_size, place.machines)
    if (request.gpus, request.nnodes) != here:
        raise MisuseError(
            f"the run needs {request.nnodes} x {request.gpus} processes: start it with torchrun --nnodes "
            f"{request.nnodes} --nproc-per-node {request.gpus} ... -m gpubench run"
        )


def one_launch(made: Plan) -> Plan:
    """Limit the plan to one new launch per case, because torchrun starts the measuring process only once."""
    cases = [case for case, _ in made.done]
    launches = 1 + min((cases.count(planned.case) for planned in made.cases), default=0)
    return msgspec.structs.replace(made, budget=msgspec.structs.replace(made.budget, launches=launches))


def follow(request: RunRequest, place: Place) -> Run:
    """Serve the first process until its run is over; the returned run has no rows.

    Raises:
        MisuseError: If the first process has another version of gpubench or torch.
        NoDeviceError: If this machine has too few devices.
    """
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends its round and releases this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's handler would wait for a hanging exchange
    device, _ = select_device(request.device)
    peers = select_peers(device, place.local_size)
    variables = child_variables(device, os.environ, peers=peers)
    os.environ.clear()  # some variables must not be set at all
    os.environ.update(variables)
    from gpubench.measure import team  # imports torch, which reads these variables

    team.follow(place, (device, *peers))
    return Run(
        run_id=run_id_under_torchrun(),
        started_at=utc_stamp(),
        budget=request.budget or "default",
        seed=request.seed,
        device=storable(device),
        environment=environment(device),
    )


_STOPPING = b"\ngpubench: stopping when this round is done; press Ctrl-C again to stop now\n"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run."""

    run: Run
    path: Path

    @property
    def every_case_failed(self) -> bool:
        """Whether every case ended without a figure; micro-benchmarks count only in a run without cases."""
        if self.run.quality:
            return not any(row.is_reached for row in self.run.quality)
        if not self.run.measurements:
            return not self.run.micro
        return not any(m.status is Status.OK for m in self.run.measurements)


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has passed every check, before any measurement.

    Attributes:
        root: The results folder.
        remark: A remark on the choice of the device, for the user.
        start: State of the device before the run.
        resumed, resumed_from: The run to continue, and its file; None for a new run.
        profiles: Profiles of the request's workloads, by reference.
        run_id: Id of a new run, if torchrun may start it more than once.
        place: Place of this process under a user's torchrun; None without torchrun.
    """

    device: DeviceProfile
    plan: Plan
    root: Path
    findings: tuple[Finding, ...]
    remark: str | None
    settings: Settings
    start: StartState | None = None
    resumed: Run | None = None
    resumed_from: Path | None = None
    profiles: Mapping[str, WorkloadProfile] = {}
    run_id: str | None = None
    place: Place | None = None


@takes_options_of(RunRequest)
def run(request: RunRequest) -> Run:
    """Measure workloads on a device, store the run, and return it.

    Under torchrun, every process except the first serves the first until its run is over; the run that it
    returns has no rows and is not stored.

    Raises:
        MisuseError: For a request that cannot be satisfied.
        NoDeviceError: If the device cannot be used.
        StorageError: If the run cannot be stored, or another process is writing it.
        EveryCaseFailedError: If no case gave a figure; the rows are stored.
        InterruptedRunError: After Ctrl-C or SIGTERM; finished cases are stored.
    """
    place = place_under_torchrun()
    if place is not None and place.rank > 0:
        return follow(request, place)
    session = execute(prepare(request))
    if session.run.interrupted:
        raise InterruptedRunError(
            f"interrupted; finished cases are in {session.path}, and resume={session.run.run_id!r} "
            "continues the run"
        )
    if session.every_case_failed:
        raise EveryCaseFailedError(f"every case failed; the reasons are in {session.path}")
    return session.run


@contextmanager
def _explained(device: DeviceProfile | None = None) -> Iterator[None]:
    # Say why a device could not be opened, in the driver's words or with an explanation of torch's.
    try:
        yield
    except NoDeviceError as error:
        raise NoDeviceError(capability.why_refused(error, device)) from error


@_explained()
def prepare(
    request: RunRequest, on_trial: OnTrial = lambda *_: None, *, store_results: bool = True
) -> Prepared:
    """Check everything that can be checked before measuring: options, device, folder, sharing, cases.

    If the largest batch is requested, this function finds it, and calls ``on_trial`` for each batch tried.

    Raises:
        MisuseError: If the requested cases cannot be measured.
        NoDeviceError: If the device cannot be used; torch's messages are explained.
        StorageError: If the results folder cannot be written.
    """
    place = place_under_torchrun()
    request = check_request(request if place is None else with_torchrun_size(request, place), classic_names())
    root = results_root(request.results)
    run_id = None if place is None else run_id_under_torchrun()
    if store_results:
        # Before the run to resume is searched for: a run behind a link would be reported as missing.
        store.check_writable(root)
    found = _run_to_resume(request, root, run_id)
    resumed = None if found is None else read_run(found)
    if resumed is not None:
        request = request_again(resumed, request, workload_names())
    check_process_count(request, place)
    if Framework.TORCH in request.frameworks or request.micro == "only":
        need_torch("measuring", NoDeviceError)
    device, remark = select_device(request.device)
    peers = select_peers(device, request.gpus)
    profiles = _profiles_of(request, device)
    if resumed is None:
        made = plan(request, device, profiles, peers)
    else:
        made = plan_again(resumed, device, profiles, request, peers)
    if place is not None:
        made = one_launch(made)
    findings = latest_findings(
        *(capability.preflight(each, allow_shared="shared" in request.allow) for each in (device, *peers))
    )
    start = capability.start_state(device)  # before the run uses the device, for example to try a batch
    if request.batch_size == "max":
        made = with_largest_batches(made, profiles, device, on_trial)
    return Prepared(
        device=device,
        plan=made,
        root=root,
        findings=findings,
        remark=remark,
        settings=_settings(request, made),
        start=start,
        resumed=resumed,
        resumed_from=found,
        profiles=profiles,
        run_id=run_id,
        place=place,
    )


def _profiles_of(request: RunRequest, device: DeviceProfile) -> dict[str, WorkloadProfile]:
    # Profile the requested workloads; check that their frameworks are installed and their weights allowed.
    wanted = [Framework(name) for name in request.frameworks]
    capability.need_frameworks(wanted, device)
    recipe = asked_recipe(request)
    profiles = capability.profiles_in(
        wanted,
        references(request),
        recipe,
        device,
        gpu_count=request.gpu_count,
        precisions=request.precisions,
    )
    for profile in profiles.values():
        precisions = request.precisions or profile.precisions
        check_weights(profile.name, profile.recipe, recipe, precisions, profile.offered)
    return profiles


def _run_to_resume(request: RunRequest, root: Path, run_id: str | None) -> Path | None:
    # Return the file of the run to resume: the requested one, or the run that torchrun has already started.
    if request.resume is not None:
        return store.find_run(root, request.resume)
    if run_id is not None:
        with suppress(MisuseError):  # at the first start, there is no such run
            return store.find_run(root, run_id)
    return None


def _settings(request: RunRequest, made: Plan) -> Settings:
    return Settings(
        time_limit_s=made.time_limit_s,
        allow_shared="shared" in request.allow,
        allow_throttled=made.allow_throttled,
        gpus=request.gpus,
        batch_choice=next((planned.batch_choice for planned in made.cases), None),
        micro=made.micro,
        falls_back=made.falls_back,
        budget={name: limit for name, limit in msgspec.to_builtins(made.budget).items() if limit is not None},
    )


def execute(prepared: Prepared, on_event: Callable[[messages.Event], None] = lambda _: None) -> Session:
    """Measure the prepared cases; the file of the run is replaced after each finished launch.

    The run is locked from before its first measurement until after its last, and a run to resume is read
    again after locking. One Ctrl-C, or SIGTERM, ends the run after the current round; a second Ctrl-C ends it
    immediately. The file of a run to resume does not change until something is measured.

    Raises:
        RunLockedError: If another process is writing the run.
        NoDeviceError: If the device cannot be opened or is gone; torch's messages are explained.
    """
    begun = new_run(prepared) if prepared.resumed is None else prepared.resumed
    with ExitStack() as until_the_end:
        if prepared.place is not None:
            from gpubench.measure.team import keeping_others

            die_with_parent(os.getppid())
            until_the_end.enter_context(keeping_others(prepared.place))
        until_the_end.enter_context(store.writing(prepared.root, begun))
        prepared = _read_again(prepared)
        run, path, made = prepared.resumed, prepared.resumed_from, prepared.plan
        if run and path and run.finished_at and not (made.units() or made.micro_left):
            on_event(messages.Remark(text=f"nothing left to measure: run {plain(run.run_id)} is complete"))
            return Session(run=run, path=path)
        with _explained(prepared.device):
            return _measure(prepared, begun, on_event)


def _measure(prepared: Prepared, begun: Run, on_event: Callable[[messages.Event], None]) -> Session:
    made, device, control = prepared.plan, prepared.device, Control()
    on_event(
        messages.RunPlanned(
            cases=len(made.cases),
            launches=made.budget.launches,
            most_s=made.most_s(),
            budget=made.budget.name,
            device=device.name or device.backend,
            left=None if prepared.resumed is None else len(made.units()),
            trainings=len(made.quality),
        )
    )
    launcher = Launcher(made, device, on_event, control, module=MODULE, place=prepared.place)
    state, record = _begin(prepared, begun)
    launcher.micro += state.micro
    if prepared.resumed is None:
        _save(prepared.root, state)
    with _listening(control):
        for measurement in map(partial(_checked, state), launcher.run(record)):
            state = _so_far(with_measurement(state, measurement), prepared, launcher)
            _save(prepared.root, state)
        for planned in made.quality:
            earlier = state.quality
            for row in launcher.train_to_quality(planned):
                state = _so_far(msgspec.structs.replace(state, quality=(*earlier, row)), prepared, launcher)
                _save(prepared.root, state)
        launcher.close()
        state = _so_far(state, prepared, launcher)
        state = _at_the_end(state, prepared, launcher, stopped=control.stopping.is_set())
        path = _save(prepared.root, state)
    return Session(run=state, path=path)


def _at_the_end(state: Run, prepared: Prepared, launcher: Launcher, *, stopped: bool) -> Run:
    # Look for programs that appeared during the run, unless it was stopped, and judge the run as a whole.
    if not stopped:
        # under torchrun, its other processes are still running on the peers
        others = prepared.plan.peers if prepared.place is None else ()
        newcomers = map(capability.newcomers, (prepared.device, *others))
        state = msgspec.structs.replace(state, findings=latest_findings(state.findings, *newcomers))
    return finished(state, launcher.plan, stopped=stopped, micro_stopped=launcher.micro_stopped)


def _read_again(prepared: Prepared) -> Prepared:
    """Return the preparation with the run as currently stored.

    Another process may have resumed it since; the cases that it finished must not be measured again.

    Raises:
        ConflictError: If the run came from a file that differs from the one stored under its id.
        MisuseError: If the run can no longer be read, or no longer matches the device and the software.
    """
    if prepared.resumed_from is None:
        return prepared
    run = read_run(prepared.resumed_from)
    store.stored_copy(prepared.root, run)
    if run == prepared.resumed:
        return prepared
    check_conditions(run, prepared.device)
    made = msgspec.structs.replace(prepared.plan, done=finished_units(run, prepared.plan.budget.launches))
    return msgspec.structs.replace(prepared, resumed=run, plan=made)


def _begin(prepared: Prepared, begun: Run) -> tuple[Run, Record | None]:
    # Return the run as it is stored before its first new measurement and, if it is resumed, its results.
    if prepared.resumed is None:
        return begun, None
    run = without_cut_off(prepared.resumed)
    state = msgspec.structs.replace(
        run,
        settings=None if run.settings is None else prepared.settings,
        launch_count=run.launch_count if prepared.place is None else prepared.plan.budget.launches,
        findings=latest_findings(
            tuple(f for f in run.findings if f.kind is not FindingKind.ONE_PROCESS), prepared.findings
        ),
    )
    return state, record_of(prepared.resumed, prepared.plan, prepared.device)


def _so_far(state: Run, prepared: Prepared, launcher: Launcher) -> Run:
    # Add what the launcher has learned since: libraries, findings, micro-benchmarks, and cases that it added.
    ready = launcher.ready
    forced = (f for r in launcher.micro for f in r.findings if f.kind is FindingKind.TF32_IN_FORCE)
    return msgspec.structs.replace(
        state,
        planned=tuple(planned.case for planned in launcher.plan.cases),
        environment=environment(prepared.device, ready) if ready else state.environment,
        findings=latest_findings(
            state.findings, ready.findings if ready else (), (*launcher.device_findings, *forced)
        ),
        micro=tuple(launcher.micro),
    )


def new_run(prepared: Prepared) -> Run:
    """Return the run before its first measurement, with its planned cases."""
    started = now()
    made = prepared.plan
    return Run(
        run_id=prepared.run_id or f"{started:%Y%m%dt%H%M%Sz}-{secrets.token_hex(4)}",
        started_at=utc_stamp(started),
        budget=made.budget.name,
        seed=made.seed,
        planned=tuple(planned.case for planned in made.cases),
        launch_count=made.budget.launches,
        settings=prepared.settings,
        device=storable(prepared.device),
        start=prepared.start,
        environment=environment(prepared.device),
        measurements=made.unsupported,
        findings=prepared.findings,
    )


def with_measurement(state: Run, measurement: Measurement) -> Run:
    """Return the run with this measurement in place of an earlier one of the same case."""
    kept = {each.case: each for each in (*state.measurements, measurement)}
    return msgspec.structs.replace(state, measurements=tuple(kept.values()))


def finished(state: Run, made: Plan, *, stopped: bool, micro_stopped: bool = False) -> Run:
    """Return the run with its rows in planned order, each judged together with the others.

    A ``stopped`` run counts as interrupted if a case or a training is left, or, according to
    ``micro_stopped``, a micro-benchmark.
    """
    launches = made.budget.launches
    left = {(unit.planned.case, unit.launch) for unit in made.units()}
    is_left = (
        micro_stopped
        or any(row.reason is not None for row in state.quality)
        or not left <= finished_units(state, launches)
    )
    state = msgspec.structs.replace(state, finished_at=utc_stamp())
    order = {case: position for position, case in enumerate(state.planned)}
    judged = (checks.judge_measurement(m, launches, state.measurements) for m in state.measurements)
    return msgspec.structs.replace(
        state,
        measurements=tuple(sorted(judged, key=lambda m: order.get(m.case, len(order)))),
        findings=latest_findings(state.findings, checks.of_run(state)),
        interrupted=stopped and is_left,
    )


def _checked(state: Run, row: Measurement) -> Measurement:
    # Mark a row as failed if its figures contradict each other, because its file could not be read.
    broken = broken_rule(msgspec.structs.replace(state, measurements=(row,), micro=()))
    if broken is None:
        return row
    reason = f"its process reported something that cannot be true: {broken}"
    return msgspec.structs.replace(row, status=Status.FAILED, reason=reason, launches=(), findings=())


def _save(root: Path, state: Run) -> Path:
    try:
        return store.write_run(root, state)
    except StorageError as error:
        raise UnstoredRunError(str(error), state) from error


class UnstoredRunError(StorageError):
    """A run could not be written; the error carries the run, so it can be printed instead."""

    def __init__(self, message: str, state: Run) -> None:
        super().__init__(message)
        self.state = state


def latest_findings(*groups: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the latest finding of each kind."""
    return tuple({finding.kind: finding for group in groups for finding in group}.values())


def _listening(control: Control) -> AbstractContextManager[None]:
    # Handle Ctrl-C and SIGTERM with the control.

    def interrupt(number: int) -> None:
        if number == signal.SIGINT and not control.stopping.is_set():
            os.write(sys.stderr.fileno(), _STOPPING)  # print is not safe here: a write may be in progress
        control.stop(within_s=STOPPING_S if number == signal.SIGTERM else float("inf"))

    return handling(interrupt, signal.SIGINT, signal.SIGTERM)
