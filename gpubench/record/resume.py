"""Go on with a run that was cut off: what is finished stays, the rest is measured alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

import msgspec

from gpubench.errors import MisuseError
from gpubench.measure.budget import BudgetName, budget_of
from gpubench.measure.capability import is_cpu
from gpubench.measure.launcher import Record
from gpubench.measure.plan import Plan, PlannedCase, refuse_forced_precision
from gpubench.measure.request import MicroWish, RunRequest
from gpubench.models import BatchChoice, Case, DeviceProfile, Run, Status, TaskKind, WorkloadProfile
from gpubench.probe.identity import device_id
from gpubench.units import plain

FINISHED = frozenset({Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.INVALID, Status.FAILED})
"""A case that ended so would end so again; one that ran out of time is measured anew."""


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
        request: Of what is left it sets the time limit, and it may allow throttling.
        peers: The GPUs beside the first, where the run had several.

    Raises:
        MisuseError: If device or software is another, a workload of the user's own is not given again, or a
            variable forces a lower precision on fp32.
    """
    _same_conditions(run, device)
    names = {profile.name: (reference, profile) for reference, profile in profiles.items()}
    choice = next((m.batch_choice for m in run.measurements if m.batch_choice is not None), None)
    cases = tuple(_planned(case, names, choice) for case in run.planned)
    if not cases:
        raise MisuseError(f"run {plain(run.run_id)} does not say what it planned: start a new one")
    on_cpu = is_cpu(device)
    was_allowed = run.settings is not None and run.settings.allow_throttled
    made = Plan(
        budget=budget_of(_budget_name(run), on_cpu=on_cpu),
        seed=run.seed,
        cases=cases,
        unsupported=tuple(m for m in run.measurements if m.case not in set(run.planned)),
        time_limit_s=request.time_limit_s,
        on_cpu=on_cpu,
        micro=_micro_wish(run),
        allow_throttled=request.allow_throttled or was_allowed,
        peers=peers,
    )
    refuse_forced_precision(made)
    return made


def finished_units(run: Run) -> list[tuple[Case, int]]:
    """Return the cases and launches that need not be measured again."""
    return [
        (m.case, launch.index)
        for m in run.measurements
        if m.status is not Status.TIMEOUT
        for launch in m.launches
    ]


def record_of(run: Run, plan: Plan, device: DeviceProfile) -> Record:
    """Return what the run knew of its cases."""
    record = Record(plan=plan, device=device, threads=run.environment.cpu_threads)
    numbers = [launch.sequence for m in run.measurements for launch in m.launches]
    record.begun = max((n + 1 for n in numbers if n is not None), default=0)
    for measurement in run.measurements:
        if measurement.status is Status.TIMEOUT:
            continue
        record.launches[measurement.case] = list(measurement.launches)
        if measurement.status in FINISHED:
            record.ended[measurement.case] = (measurement.status, measurement.reason)
    return record


def without_cut_off(run: Run) -> Run:
    """Return the run as it goes on: no end yet, and without the rows that ran out of time."""
    kept = tuple(m for m in run.measurements if m.status is not Status.TIMEOUT)
    return msgspec.structs.replace(run, finished_at=None, measurements=kept)


def workloads_of(run: Run, given: Sequence[str], installed: Sequence[str]) -> tuple[str, ...]:
    """Return the references to look profiles up by: those given again, and the installed ones planned."""
    planned = {case.workload for case in run.planned}
    return tuple(dict.fromkeys((*given, *(name for name in installed if name in planned))))


def _micro_wish(run: Run) -> MicroWish:
    """Whether the run wanted micro-benchmarks; one without settings wanted those that it has."""
    wish = ("also" if run.micro else "none") if run.settings is None else run.settings.micro
    return "also" if wish == "also" else "none"


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
    train = case.task is TaskKind.TRAIN
    return PlannedCase(
        reference=reference,
        case=case,
        flops_per_sample=profile.train_flops_per_sample if train else profile.forward_flops_per_sample,
        parameter_count=profile.parameters,
        batch_choice=choice,
        convolves=profile.convolves(case.task),
    )


def _same_conditions(run: Run, device: DeviceProfile) -> None:
    if run.device.device_id is not None and run.device.device_id != device_id(device):
        raise MisuseError(
            f"run {plain(run.run_id)} was begun on another device ({plain(run.device.name or 'unnamed')}): "
            "choose it with --device, or start a new run"
        )
    pairs = (
        ("torch", run.environment.torch, metadata.version("torch")),
        ("driver", run.environment.driver, device.driver_version),
    )
    for name, then, now in pairs:
        if then and now and then.partition("+")[0] != now.partition("+")[0]:
            raise MisuseError(
                f"{name} is {plain(now)} now and was {plain(then)} when the run began: start a new run"
            )


def _budget_name(run: Run) -> BudgetName:
    try:
        name: BudgetName = msgspec.convert(run.budget, BudgetName)
    except msgspec.ValidationError:
        raise MisuseError(
            f"run {plain(run.run_id)} has the unknown budget {plain(run.budget)!r}: start a new one"
        ) from None
    return name
