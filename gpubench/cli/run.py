"""`gpubench run`: measure workloads on a device, store the run, and say what it means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpubench import executions, precisions
from gpubench.cli.common import JsonOption, ResultsOption, print_json, say
from gpubench.errors import GpuBenchError, MisuseError, NoDeviceError

if TYPE_CHECKING:
    from gpubench.measure.budget import BudgetName
    from gpubench.measure.plan import Plan
    from gpubench.measure.request import MicroWish, RunRequest
    from gpubench.models import Case, Run, TaskKind
    from gpubench.record.session import Prepared, Session

TOP_OFFERS = 5
RESUME_TAKES = frozenset(
    {"own", "device", "time_limit", "allow_shared", "allow_throttled", "resume", "results", "report", "json"}
)
"""What may be said beside --resume; every other option is the run's own, and would be ignored."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("run")(verb)


def verb(
    ctx: typer.Context,
    workload: Annotated[
        list[str] | None, typer.Argument(help="Workloads by name, or all. [default: cnn lstm vgg16]")
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(
            "--workload", metavar="FILE[:NAME]|MODULE:NAME", help="A model of your own; may be repeated."
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help=f"{precisions.HELP}: the best of them. [default: what the device has]"),
    ] = None,
    execution: Annotated[
        list[str] | None,
        typer.Option(help=f"{executions.HELP}. [default: eager and, on a GPU, graph]"),
    ] = None,
    task: Annotated[str, typer.Option(help="train or infer.")] = "train",
    batch_size: Annotated[
        str | None,
        typer.Option(
            metavar="N|max",
            help="Samples a step; max searches the largest that fits. [default: the workload's main batch]",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N, or a UUID.")] = "auto",
    gpus: Annotated[
        int,
        typer.Option(
            metavar="N", help="Also time N GPUs of its kind as one data-parallel job (DDP), eagerly."
        ),
    ] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="One launch, 2 % intervals. The default on a CPU.")
    ] = False,
    publish: Annotated[
        bool, typer.Option("--publish", help="Five launches, 0.5 % intervals, and torch.compile.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds for the whole run, shared out over its cases.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Fixes weights, inputs and the order of cases.")] = 0,
    allow_shared: Annotated[
        bool, typer.Option("--allow-shared", help="Measure although something else uses the GPU.")
    ] = False,
    allow_throttled: Annotated[
        bool, typer.Option("--allow-throttled", help="Let rows be ranked although the GPU throttled.")
    ] = False,
    micro_only: Annotated[
        bool, typer.Option("--micro-only", help="Micro-benchmarks and nothing else.")
    ] = False,
    no_micro: Annotated[bool, typer.Option("--no-micro", help="No micro-benchmarks.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on with a run that was cut off; finished cases are kept."),
    ] = None,
    results: ResultsOption = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the HTML report here.")] = None,
    json: JsonOption = False,
) -> None:
    """Measure workloads on a device and store the run."""
    from gpubench.measure.preflight import why_refused
    from gpubench.measure.request import CLASSIC, RunRequest
    from gpubench.record.session import prepare

    request = RunRequest(
        workloads=tuple((workload or []) + (own or [])) or CLASSIC,
        precisions=_words(precision),
        executions=_words(execution),
        task=_task(task),
        batch_size=_batch(batch_size),
        device=device,
        gpus=gpus,
        budget=_budget(quick=quick, publish=publish),
        time_limit_s=time_limit,
        seed=seed,
        results=results,
        allow_shared=allow_shared,
        allow_throttled=allow_throttled,
        resume=resume,
        micro=_micro(only=micro_only, none=no_micro),
    )
    if micro_only and (workload or own or precision or execution or batch_size):
        raise MisuseError("--micro-only measures no workload: leave out workloads and their options")
    if resume is not None:
        _only_what_resume_takes(ctx)
    try:
        prepared = prepare(request, _say_trial)
    except NoDeviceError as error:
        raise NoDeviceError(why_refused(error)) from error
    if report is not None:
        _check_report(report)
    if prepared.remark:
        say(prepared.remark)
    session = _measure(prepared)
    _tell(session, prepared, request, report, as_json=json)


def _measure(prepared: Prepared) -> Session:
    from gpubench.cli.progress import watch
    from gpubench.measure.events import CaseEnded, Event
    from gpubench.measure.preflight import why_refused
    from gpubench.models import Status
    from gpubench.record.as_json import run_document
    from gpubench.record.session import UnstoredRunError, execute

    kept: set[Case] = set()

    def note(event: Event) -> None:
        if isinstance(event, CaseEnded) and event.measurement.status is Status.OK:
            kept.add(event.measurement.case)
        progress(event)

    try:
        with watch() as progress:
            return execute(prepared, note)
    except NoDeviceError as error:
        raise NoDeviceError(why_refused(error, prepared.device) + _kept(len(kept))) from error
    except UnstoredRunError as error:
        import msgspec

        say(msgspec.json.encode(run_document(error.state)).decode())
        raise


def _kept(cases: int) -> str:
    """Say what a run that came to its end too early has left behind."""
    if not cases:
        return ""
    what = "1 finished case is" if cases == 1 else f"{cases} finished cases are"
    return f"; {what} kept, and gpubench run --resume latest goes on with the rest"


def _tell(
    session: Session, prepared: Prepared, request: RunRequest, report: Path | None, *, as_json: bool
) -> None:
    from gpubench.compare import amp_effects, scaling_effects
    from gpubench.record.as_json import run_document

    if as_json:
        effects = {"amp": amp_effects(session.run), "scaling": scaling_effects(session.run)}
        print_json(run_document(session.run) | effects)
    else:
        print_run(session.run)
    say(f"stored in {session.path}")
    if session.interrupted:
        say("interrupted: finished cases are kept")
        raise typer.Exit(130)
    if prepared.plan.cases and not (as_json or session.every_case_failed):
        _top_offers(prepared.plan, request.results)
    if report is not None:
        _write_report(report, request, session.run.run_id)
    if session.every_case_failed:
        say("every case failed; the reasons are above")
        raise typer.Exit(4)


def print_run(run: Run) -> None:
    """Print what a run says: the device, the cases, what they compare to, what to doubt."""
    from gpubench.blocks.terminal import show
    from gpubench.sections.data import of_run
    from gpubench.sections.section import brief

    show(*brief(of_run(run), "device", "throughput", "latency", "amp", "together", "micro", "method"))


def _top_offers(plan: Plan, results: Path | None) -> None:
    """Print the head of the ranking for what was run; where there can be none, say why and go on."""
    from gpubench.cli.rank import print_ranking
    from gpubench.recommend.rank import rank
    from gpubench.recommend.request import RankRequest

    workloads, task = _ranked(plan)
    try:
        ranking = rank(RankRequest(workloads=workloads, task=task, results=results, limit=TOP_OFFERS))
    except GpuBenchError as error:
        say(f"no ranking: {error}")
        return
    print()
    print_ranking(ranking, TOP_OFFERS)
    say("the whole ranking, and how to narrow it: gpubench rank --help")


def _ranked(plan: Plan) -> tuple[tuple[str, ...], TaskKind]:
    """Return the workloads and the task to rank by: those of the run; an input pipeline is never trained."""
    from gpubench.models import TaskKind

    tasks = {planned.case.task for planned in plan.cases}
    task = TaskKind.TRAIN if TaskKind.TRAIN in tasks else TaskKind.INFER
    return tuple(dict.fromkeys(p.reference for p in plan.cases if p.case.task is task)), task


def _write_report(report: Path, request: RunRequest, run_id: str) -> None:
    from gpubench.report.page import report as write

    write(report, request.results, run=run_id)
    say(f"report in {report}")


def _check_report(report: Path) -> None:
    """Find out before the run whether the page can be written."""
    folder = report.resolve().parent
    if report.is_dir():
        raise MisuseError(f"--report {report}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise MisuseError(f"--report {report}: there is no folder {folder}; make it first")


def _only_what_resume_takes(ctx: typer.Context) -> None:
    """A run goes on with its own cases and budget: an option for others would be ignored, so refuse it."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    for name in given:
        if name not in RESUME_TAKES:
            what = "workloads by name" if name == "workload" else f"--{name.replace('_', '-')}"
            raise MisuseError(
                f"--resume goes on with the cases, budget and seed of its run: leave out {what} (models of "
                "your own are named again with --workload)"
            )


def _words(values: list[str] | None) -> tuple[str, ...]:
    """Options may be repeated or separated by commas."""
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())


def _task(name: str) -> TaskKind:
    from gpubench.models import TaskKind

    if name not in list(TaskKind):
        raise MisuseError(f"unknown task {name!r}: choose from train, infer")
    return TaskKind(name)


def _say_trial(case: Case, fits: bool) -> None:
    say(f"{case.label}: {'fits' if fits else 'does not fit in memory'}")


def _batch(text: str | None) -> int | Literal["max"] | None:
    if text is None:
        return None
    if text == "max":
        return "max"
    try:
        return int(text)
    except ValueError:
        raise MisuseError(f"batch size {text!r}: give a whole number from 1 up, or max") from None


def _micro(*, only: bool, none: bool) -> MicroWish:
    if only and none:
        raise MisuseError("--micro-only and --no-micro contradict each other: give one of them")
    return "only" if only else "none" if none else "also"


def _budget(*, quick: bool, publish: bool) -> BudgetName | None:
    if quick and publish:
        raise MisuseError("--quick and --publish contradict each other: give one of them")
    return "quick" if quick else "publish" if publish else None
