"""What no device could do of a request: options that contradict each other, refused before one is touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpubench.errors import MisuseError
from gpubench.measure.quality_goals import GOALS
from gpubench.measure.request import RunRequest
from gpubench.models import Framework
from gpubench.options import asked_recipe, check_fields, named, options_of
from gpubench.probe.select import check_form
from gpubench.units import plain

RESUME_TAKES = frozenset({"device", "time_limit", "allow", "resume", "results"})
"""What may be said beside ``resume``; every other option is the run's own, and would be ignored."""


def check_request(request: RunRequest, known: Sequence[str]) -> RunRequest:
    """Refuse what no device could do, and expand ``all``; before any device is touched.

    Raises:
        MisuseError: For an unknown precision or execution, an impossible number or workload list.
    """
    check_fields(request)
    check_form(request.device.strip())
    if request.resume is not None:
        _check_resume(request)
    for holds, others, why in _apart(request):
        if holds and (other := next((option for option, is_asked in others.items() if is_asked), None)):
            raise MisuseError(why.format(other))
    wanted = tuple(GOALS) if request.to_quality and not _names_workloads(request) else request.workloads
    if request.to_quality and (without := [name for name in wanted if name not in GOALS]):
        raise MisuseError(
            f"{plain(without[0], 80)} has no stated quality: --to-quality trains {' and '.join(GOALS)}"
        )
    names = dict.fromkeys(n for w in wanted for n in (known if w == "all" else (w,)))
    return msgspec.structs.replace(request, workloads=tuple(names))


def _names_workloads(request: RunRequest) -> bool:
    """Whether workloads were named, be it the default ones."""
    return "workload" in request.asked or bool(request.workloads)


def _check_resume(request: RunRequest) -> None:
    """A run goes on with its own cases and budget: an option for others would be ignored, so refuse it."""
    asked = {each.name: named(each) for each in options_of(type(request))}
    for name in request.asked:
        if name not in RESUME_TAKES and not (name == "workload" and request.own == request.workloads):
            what = "workloads by name" if name == "workload" else asked[name]
            raise MisuseError(
                f"--resume goes on with the cases, budget and seed of its run: leave out {what} (models of "
                "your own are named again with --workload)"
            )


def _apart(request: RunRequest) -> Iterator[tuple[bool, dict[str, bool], str]]:
    """What does not go together: whether the one is asked, which others are, and what is wrong with those."""
    several, is_micro = request.gpu_count > 1, request.micro == "only"
    largest = {"--batch-size max": request.batch_size == "max"}
    micro, threads = {"--micro only": is_micro}, {"--thread-scaling": request.thread_scaling}
    gpus, other_jobs = {"--gpus": several}, request.jobs not in {None, "ddp"}
    of_cases = request.precisions or request.executions or request.batch_size or request.task != "train"
    of_workloads = of_cases or asked_recipe(request) or _names_workloads(request) or request.suite
    nothing = "--micro only measures no workload: leave out {}"
    yield is_micro, {"workloads and their options": bool(of_workloads)}, nothing
    for keras in (name for name in request.frameworks if name != Framework.TORCH):
        of_torch = micro | largest | {f"a job of {request.gpu_count} GPUs": several} | threads
        yield True, of_torch, f"{{}} is done in torch alone: leave out --framework {keras}"
    yield several, largest, "{} is of one GPU: give it without --gpus, or --gpus with a batch"
    beside = f"gpubench run cnn --gpus {request.gpu_count}"
    yield several, micro, f"{{}} is of one GPU: all-reduce by size is timed beside a workload, as by {beside}"
    yield (
        request.suite is not None,
        {"the workloads": _names_workloads(request)},
        ("--suite measures its own workloads: leave out {}, or --suite"),
    )
    given = "--thread-scaling times given batches on one CPU: leave out {}"
    yield request.thread_scaling, gpus | largest, given
    yield is_micro, threads, nothing
    shared = {"--strong": request.strong, f"--jobs {request.jobs}": other_jobs}
    yield not several and request.resume is None, shared, "{} is of several GPUs: give --gpus N too"
    not_shared = {
        "--jobs independent": request.jobs == "independent",
        "--task infer": request.task == "infer",
    }
    yield request.strong, not_shared, "--strong shares out the batch of one training job: leave out {}"
    not_trained = {
        "--task": request.task != "train",
        "--batch-size": request.batch_size is not None,
        "--execution": bool(request.executions),
        "--framework": request.frameworks != (Framework.TORCH,),
        "--suite": request.suite is not None,
        **gpus,
        **micro,
        **threads,
        "--resume": request.resume is not None,
    }
    trains = "--to-quality trains eagerly in torch on one device, at a batch of its own: leave out {}"
    yield request.to_quality, not_trained, trains
