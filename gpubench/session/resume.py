"""Go on with a run that was cut off: what is finished stays, the rest is measured alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpubench.errors import MisuseError
from gpubench.measure.budget import BUDGETS, budget_of
from gpubench.measure.capability import version_of
from gpubench.measure.child import Record
from gpubench.measure.environment import environment
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

FINAL = frozenset({Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.INVALID, Status.FAILED})
"""A case that ended so would end so again."""


def request_again(run: Run, request: RunRequest, installed: Sequence[str]) -> RunRequest:
    """Return the request with what the run was told; a time limit that is given now takes its place.

    Args:
        run: The run that was cut off.
        request: It may name models of the user's own, and allow what the run did not.
        installed: Names of the workloads at hand.

    Raises:
        MisuseError: If the run is one of trainings to a quality.
    """
    if run.quality:
        raise MisuseError(
            f"run {plain(run.run_id)} trains to a quality, which is not gone on with: start it again with "
            "--to-quality"
        )
    told = run.settings or Settings()
    planned = {case.workload for case in run.planned}
    limit_s = told.time_limit_s if told.time_limit_s and told.time_limit_s > 0 else None
    return msgspec.structs.replace(
        request,
        workloads=tuple(dict.fromkeys((*request.own, *(name for name in installed if name in planned)))),
        batch_size=None,
        frameworks=tuple(dict.fromkeys(case.framework for case in run.planned)) or request.frameworks,
        gpus=max((case.gpu_count // case.node_count for case in run.planned), default=1),
        nnodes=max((case.node_count for case in run.planned), default=1),
        time_limit_s=limit_s if request.time_limit_s is None else request.time_limit_s,
        allow=tuple(name for name in ALLOWANCES if name in request.allow or getattr(told, f"allow_{name}")),
    )


def plan_again(
    run: Run,
    device: DeviceProfile,
    profiles: Mapping[str, WorkloadProfile],
    request: RunRequest,
    peers: tuple[DeviceProfile, ...] = (),
) -> Plan:
    """Make the plan that the run set out with.

    Args:
        run: The run that was cut off.
        device: The device now; it must be the one then.
        profiles: Profiles by the reference under which each workload is found now.
        request: As ``request_again`` gives it.
        peers: The GPUs beside the first, where the run had several.

    Raises:
        MisuseError: If device, software or a variable is another, a workload of the user's own is not given
            again, or a variable forces a lower precision on fp32.
    """
    check_conditions(run, device)
    names = {profile.name: (reference, profile) for reference, profile in profiles.items()}
    told = None if run.settings is None else run.settings.batch_choice
    choice = told or next((m.batch_choice for m in run.measurements if m.batch_choice is not None), None)
    cases = tuple(_planned(case, names, choice) for case in run.planned)
    if not cases:
        raise MisuseError(f"run {plain(run.run_id)} does not say what it planned: start a new one")
    if run.budget not in BUDGETS:
        raise MisuseError(
            f"run {plain(run.run_id)} has the unknown budget {plain(run.budget)!r}: start a new one"
        )
    budget = budget_of(run.budget, on_cpu=device.is_cpu)
    wanted_micro = bool(run.micro) if run.settings is None else run.settings.micro != "none"
    made = Plan(
        budget=budget,
        seed=run.seed,
        cases=cases,
        unsupported=tuple(m for m in run.measurements if m.case not in set(run.planned)),
        time_limit_s=request.time_limit_s,
        on_cpu=device.is_cpu,
        micro="also" if wanted_micro else "none",
        allow_throttled=request.allow_throttled,
        peers=peers,
        has_micro=bool(run.micro),
        done=finished_units(run, budget.launches),
    )
    refuse_forced_precision(made)
    return made


def finished_units(run: Run, launches: int) -> frozenset[tuple[Case, int]]:
    """Return the cases and launches that need not be measured again; a failed case needs no further one."""
    return frozenset(
        (m.case, index)
        for m in without_cut_off(run).measurements
        for launch in m.launches
        for index in (range(launches) if m.status in FINAL else (launch.index,))
    )


def record_of(run: Run, plan: Plan, device: DeviceProfile) -> Record:
    """Return what the run knew of its cases."""
    record = Record(plan=plan, device=device, threads=run.environment.cpu_threads)
    numbers = [launch.sequence for m in run.measurements for launch in m.launches]
    record.begun = max((n + 1 for n in numbers if n is not None), default=0)
    for measurement in without_cut_off(run).measurements:
        record.launches[measurement.case] = list(measurement.launches)
        if measurement.status in FINAL:
            record.ended[measurement.case] = (measurement.status, measurement.reason, measurement.cause)
    return record


def finished_part(row: Measurement) -> Measurement | None:
    """Return a row with the launches that came to their end, to be judged anew; None where there is none."""
    if row.status in UNFINISHED:
        return None
    launches = tuple(launch for launch in row.launches if not launch.stopped)
    if len(launches) == len(row.launches):
        return row if launches or row.status in FINAL else None
    changed = msgspec.structs.replace(row, status=Status.OK, reason=None, launches=launches)
    return changed if launches else None


def without_cut_off(run: Run) -> Run:
    """Return the run as it goes on: no end yet, and without what was stopped, died or ran out of time."""
    kept = tuple(filter(None, map(finished_part, run.measurements)))
    return msgspec.structs.replace(run, finished_at=None, interrupted=False, measurements=kept)


def _planned(
    case: Case, names: Mapping[str, tuple[str, WorkloadProfile]], choice: BatchChoice | None = "fixed"
) -> PlannedCase:
    if case.workload not in names:
        raise MisuseError(
            f"the run measures {plain(case.workload)}, a model of your own: name it again with --workload"
        )
    reference, profile = names[case.workload]
    if profile.version != case.workload_version:
        raise MisuseError(
            f"{plain(case.workload)} is version {profile.version} now and was {case.workload_version} in the "
            "run: start a new run"
        )
    return planned_case(reference, profile.at(case.recipe) or profile, case, choice)


def check_conditions(run: Run, device: DeviceProfile) -> None:
    """Refuse to go on with a run on another device, with other software or under other variables.

    Raises:
        MisuseError: Naming the first that differs.
    """
    if run.device.device_id is not None and run.device.device_id != device_id(device):
        raise MisuseError(
            f"run {plain(run.run_id)} was begun on another device ({plain(run.device.name or 'unnamed')}): "
            "choose it with --device, or start a new run"
        )
    then, now = run.environment, environment(device)
    versions = (
        ("gpubench", then.gpubench, now.gpubench),
        ("torch", then.torch, version_of("torch")),
        *((name, was, version_of(name)) for name, was in then.packages.items()),
        ("driver", then.driver, now.driver),
    )
    for name, was, value in versions:
        if was and value and was.partition("+")[0] != value.partition("+")[0]:
            raise MisuseError(
                f"{name} is {plain(value)} now and was {plain(was)} when the run began: start a new run"
            )
    for name in sorted(then.variables.keys() | now.variables.keys()):  # rows of both would stand under one
        was, value = (plain(e.variables[name]) if name in e.variables else None for e in (then, now))
        if was != value:
            fix = f"unset {plain(name)}" if was is None else f"set {plain(name)}={was}"
            raise MisuseError(
                f"{plain(name)} is {'not set' if value is None else value} now and was "
                f"{'not set' if was is None else was} when the run began: {fix}, or start a new run"
            )
