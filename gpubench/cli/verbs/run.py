import os
import shlex
from pathlib import Path

import msgspec

from gpubench import effects
from gpubench.blocks.parts import Paragraph, Part
from gpubench.blocks.terminal import show
from gpubench.cli import output, progress, table
from gpubench.errors import ExitCode, GpuBenchError, MisuseError, NoDeviceError
from gpubench.measure.messages import CaseEnded, Event, place_under_torchrun
from gpubench.measure.plan import Plan
from gpubench.measure.request import RunRequest
from gpubench.models import Case, Framework, Precision, Run, Status, TaskKind
from gpubench.predict.memory import doubts
from gpubench.recommend.rank import rank
from gpubench.recommend.request import RankRequest
from gpubench.record import figures, store
from gpubench.report import page as pages
from gpubench.report.request import format_of
from gpubench.sections import answer, data, device, measured, method
from gpubench.session import session as sessions


def verb(request: RunRequest, page: table.PageRequest, *, as_json: bool) -> ExitCode:
    place = place_under_torchrun()
    if place is not None and place.rank > 0:
        os.dup2(2, 1)  # a model's own output goes to stderr
        sessions.follow(request, place)
        return ExitCode.DONE
    if page.report is not None:
        _check_report(page.report)
    prepared = sessions.prepare(
        request,
        lambda case, fits: output.say(f"{case.label}: {'fits' if fits else 'does not fit in memory'}"),
    )
    stored = store.newest_runs(prepared.root).runs
    output.say(
        *filter(None, [prepared.remark]), *doubts(prepared.plan, prepared.profiles, prepared.device, stored)
    )
    return tell(_measure(prepared), prepared, request, page.report, as_json=as_json)


def _measure(prepared: sessions.Prepared) -> sessions.Session:
    kept: set[Case] = set()

    def note(event: Event) -> None:
        if isinstance(event, CaseEnded) and event.measurement.status is Status.OK:
            kept.add(event.measurement.case)
        watched(event)

    try:
        with progress.watch() as watched:
            return sessions.execute(prepared, note)
    except NoDeviceError as error:
        if not kept:
            raise
        raise NoDeviceError(
            f"{error}; finished cases kept: {len(kept)}; continue with: gpubench run --resume latest"
        ) from error
    except sessions.UnstoredRunError as error:
        output.say(msgspec.json.encode(figures.run_document(error.state)).decode())
        raise


def tell(
    session: sessions.Session,
    prepared: sessions.Prepared,
    request: RunRequest,
    report: Path | None,
    *,
    as_json: bool,
) -> ExitCode:
    """Print a run, then the top of a ranking for its workloads."""
    run = session.run
    output.answer(as_json, lambda: figures.run_document(run) | effects.document(run), lambda: run_parts(run))
    output.say(f"stored in {session.path}")
    if session.run.interrupted:
        results = "" if request.results is None else f" --results {shlex.quote(str(request.results))}"
        start = "gpubench" if prepared.place is None else "torchrun ... -m gpubench"
        resume = f"finished cases are kept; continue with: {start} run --resume {run.run_id}{results}"
        output.say(f"interrupted; {resume if run.planned else 'what was measured is kept'}")
        return ExitCode.INTERRUPTED
    if report is not None:
        pages.report(report, request.results, run=run.run_id)
        output.say(f"report in {report}")
    if session.every_case_failed:
        output.say("every case failed; the reasons are above")
        return ExitCode.EVERY_CASE_FAILED
    if prepared.plan.cases and not as_json:
        _close(run, prepared.plan, request.results)
    return ExitCode.DONE


def run_parts(run: Run) -> list[Part]:
    """Return the summary of a run: device, cases, comparisons, micro-benchmarks, failures and findings."""
    said = data.of_run(run)
    micro = device.micro_in_short(said) if run.measurements else device.micro(said)
    shown = [*method.cases(said), *measured.screen(said), *micro]
    return [*data.brief(said, "device"), *shown, *data.brief(said, "method")]


def _close(run: Run, plan: Plan, results: Path | None) -> None:
    # Print the speedup from mixed precision, and a ranking for these workloads.
    gained = measured.closing_sentence(run)
    parts: list[Part] = [Paragraph(text=gained, tone="headline")] if gained else []
    try:
        ranking = rank(_question(plan, results))
    except GpuBenchError as error:
        output.say(f"no ranking: {error}")
    else:
        parts += answer.screen(ranking)
        output.say("the whole ranking, and how to narrow it: gpubench rank --help")
    if parts:
        print()
        show(*parts)


def _question(plan: Plan, results: Path | None) -> RankRequest:
    """Return the workloads and the task to rank by: training, if any case was trained.

    Raises:
        MisuseError: If a case is about tuning this machine (threads, framework, int8).
    """
    cases = [planned.case for planned in plan.cases]
    if any(c.threads or c.framework is not Framework.TORCH or c.precision is Precision.INT8 for c in cases):
        raise MisuseError("this run is about threads, frameworks or int8; gpubench rank says what to rent")
    task = TaskKind.TRAIN if TaskKind.TRAIN in {case.task for case in cases} else TaskKind.INFER
    workloads = tuple(dict.fromkeys(p.reference for p in plan.cases if p.case.task is task))
    return RankRequest(workloads=workloads, task=task, results=results, limit=1, one_a_gpu=True)


def _check_report(report: Path) -> None:
    format_of(report)
    folder = report.resolve().parent
    if report.is_dir():
        raise MisuseError(f"--report {report} is a folder; give a file in it")
    if not folder.is_dir():
        raise MisuseError(f"--report {report}: there is no folder {folder}; create it first")
