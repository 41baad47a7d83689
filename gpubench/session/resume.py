"""How a run that was cut off continues: its request, its plan, and the cases that are already finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpubench.errors import MisuseError
from gpubench.measure import capability
from gpubench.measure.budget import BUDGETS, budget_of
from gpubench.measure.environment import environment
from gpubench.measure.launcher import Record
from gpubench.measure.plan import Plan, PlannedCase, planned_case, refuse_forced_precision
from gpubench.measure.request import ALLOWANCES, RunRequest
from gpubench.models import (
    BatchChoice,
    Case,
    DeviceProfile,
    Measurement,
    Run,
    Settings,
    Status,
    WorkloadProfile,
)
from gpubench.models.measurement import UNFINISHED
from gpubench.probe.backend import device_id
from gpubench.units import plain

# A case with one of these statuses is not measured again.
FINAL = frozenset({Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.INVALID, Status.FAILED})


def request_again(run: Run, request: RunRequest, installed: Sequence[str]) -> RunRequest:
    """Return the request with the settings of the run; a new time limit replaces that of the run.

    Args:
        run: The run that was cut off.
        request: The new request; it may add the user's own models and allow more than the run did.
        installed: Names of the available workloads.

    Raises:
        MisuseError: If the run trains to a quality target.
    """
    if run.quality:
        raise MisuseError("a run with --to-quality cannot be resumed: start a new one")
    settings = run.settings or Settings()
    planned = {case.workload for case in run.planned}
    limit_s = settings.time_limit_s if settings.time_limit_s and settings.time_limit_s > 0 else None
    return msgspec.structs.replace(
        request,
        workloads=tuple(dict.fromkeys((*request.own, *(name for name in installed if name in planned)))),
        batch_size=None,
        frameworks=tuple(dict.fromkeys(case.framework for case in run.planned)) or request.frameworks,
        gpus=max((case.gpu_count // case.node_count for case in run.planned), default=1),
        nnodes=max((case.node_count for case in run.planned), default=1),
        time_limit_s=limit_s if request.time_limit_s is None else request.time_limit_s,
        allow=tuple(n for n in ALLOWANCES if n in request.allow or getattr(settings, f"allow_{n}")),
    )


def plan_again(
    run: Run,
    device: DeviceProfile,
    profiles: Mapping[str, WorkloadProfile],
    request: RunRequest,
    peers: tuple[DeviceProfile, ...] = (),
) -> Plan:
    """Recreate the original plan of a run.

    Args:
        run: The run that was cut off.
        device: The current device; it must be the run's.
        profiles: The profile of each workload, by its current reference.
        request: The request from ``request_again``.
        peers: The other GPUs, if the run had several.

    Raises:
        MisuseError: If the device, the software or an environment variable differs, one of the user's own
            workloads is not given again, or a variable forces a lower precision on fp32.
    """
    check_conditions(run, device)
    names = {profile.name: (reference, profile) for reference, profile in profiles.items()}
    stored_choice = None if run.settings is None else run.settings.batch_choice
    choice = stored_choice or next(
        (m.batch_choice for m in run.measurements if m.batch_choice is not None), None
    )
    cases = tuple(_planned(case, names, choice) for case in run.planned)
    if not cases:
        raise MisuseError(f"run {plain(run.run_id)} lists no planned cases: start a new one")
    if run.budget not in BUDGETS:
        raise MisuseError(
            f"run {plain(run.run_id)} has no known budget ({plain(run.budget)}): start a new one"
        )
    budget = budget_of(run.budget, on_cpu=device.is_cpu)
    wants_micro = bool(run.micro) if run.settings is None else run.settings.micro != "none"
    made = Plan(
        budget=budget,
        seed=run.seed,
        cases=cases,
        unsupported=tuple(m for m in run.measurements if m.case not in set(run.planned)),
        time_limit_s=request.time_limit_s,
        on_cpu=device.is_cpu,
        micro="also" if wants_micro else "none",
        allow_throttled="throttled" in request.allow,
        peers=peers,
        falls_back=run.settings is not None and run.settings.falls_back,
        has_micro=bool(run.micro),
        done=finished_units(run, budget.launches),
    )
    if run.finished_at and not made.units():  # only the micro-benchmarks can have been interrupted
        made = msgspec.structs.replace(made, has_micro=not run.interrupted)
    refuse_forced_precision(made)
    return made


def finished_units(run: Run, launches: int) -> frozenset[tuple[Case, int]]:
    """Return the cases and launches that are finished, including every launch of a failed case."""
    return frozenset(
        (m.case, index)
        for m in without_cut_off(run).measurements
        for launch in m.launches
        for index in (range(launches) if m.status in FINAL else (launch.index,))
    )


def record_of(run: Run, plan: Plan, device: DeviceProfile) -> Record:
    """Return the run's results so far, case by case."""
    numbers = (launch.sequence for m in run.measurements for launch in m.launches)
    begun = max((number + 1 for number in numbers if number is not None), default=0)
    record = Record(plan=plan, device=device, threads=run.environment.cpu_threads, begun=begun)
    for measurement in without_cut_off(run).measurements:
        record.launches[measurement.case] = list(measurement.launches)
        if measurement.status in FINAL:
            record.ended[measurement.case] = (measurement.status, measurement.reason, measurement.cause)
    return record


def finished_part(row: Measurement) -> Measurement | None:
    """Return a row with only its completed launches, to be judged again; None if nothing of it is final."""
    if row.status in UNFINISHED:
        return None
    launches = tuple(launch for launch in row.launches if not launch.stopped)
    if len(launches) == len(row.launches) and (launches or row.status in FINAL):
        return row
    return (
        msgspec.structs.replace(row, status=Status.OK, reason=None, launches=launches) if launches else None
    )


def without_cut_off(run: Run) -> Run:
    """Return the run without its end time and without launches that were stopped, died or timed out."""
    kept = tuple(filter(None, map(finished_part, run.measurements)))
    return msgspec.structs.replace(run, finished_at=None, interrupted=False, measurements=kept)


def _planned(
    case: Case, names: Mapping[str, tuple[str, WorkloadProfile]], choice: BatchChoice | None = "fixed"
) -> PlannedCase:
    if case.workload not in names:
        raise MisuseError(
            f"the run measures {plain(case.workload)}, a model of your own: give it again with --workload"
        )
    reference, profile = names[case.workload]
    if profile.version != case.workload_version:
        raise MisuseError(
            f"{plain(case.workload)} is now version {profile.version}, but was {case.workload_version} in "
            "the run: start a new run"
        )
    return planned_case(reference, profile.at(case.recipe) or profile, case, choice)


def check_conditions(run: Run, device: DeviceProfile) -> None:
    """Refuse to resume a run on another device, with other software or with other variables.

    Raises:
        MisuseError: If there is a difference; it names the first.
    """
    ids = {run.device.device_id, device_id(device)} - {None}  # a shared run has none
    if len(ids) > 1 or (run.device.backend, run.device.name) != (device.backend, device.name):
        raise MisuseError(
            f"run {plain(run.run_id)} was started on another device ({plain(run.device.name or 'unnamed')}): "
            "choose it with --device, or start a new run"
        )
    then, now = run.environment, environment(device)
    versions = (
        ("gpubench", then.gpubench, now.gpubench),
        ("torch", then.torch, capability.version_of("torch")),
        *((name, was, capability.version_of(name)) for name, was in then.packages.items()),
        ("driver", then.driver, now.driver),
    )
    for name, was, value in versions:
        if was and value and was.partition("+")[0] != value.partition("+")[0]:
            raise MisuseError(
                f"{name} is now {plain(value)}, but was {plain(was)} when the run began: start a new run"
            )
    # A file stores one set of variables, which must hold for every row.
    for name in sorted(then.variables.keys() | now.variables.keys()):
        was, value = (plain(e.variables[name]) if name in e.variables else None for e in (then, now))
        if was != value:
            fix = f"unset {plain(name)}" if was is None else f"set {plain(name)}={was}"
            raise MisuseError(
                f"{plain(name)} is now {'not set' if value is None else value}, but was "
                f"{'not set' if was is None else was} when the run began: {fix}, or start a new run"
            )
