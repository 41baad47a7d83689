"""`gpubench run`: measure workloads on a device, store the run, and say what it means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from gpubench.blocks.parts import Paragraph, Part
from gpubench.blocks.terminal import show
from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.errors import ExitCode, GpuBenchError, MisuseError, NoDeviceError
from gpubench.measure.place import place_under_torchrun
from gpubench.measure.request import RunRequest
from gpubench.options import Option

if TYPE_CHECKING:
    from gpubench.measure.plan import Plan
    from gpubench.models import Case, Ranking, Run, TaskKind
    from gpubench.session.session import Prepared, Session

TOP_OFFERS = 5


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a page is made of the run."""

    report: Annotated[Path | None, Option("Write the HTML report here.", metavar="FILE")] = None


def verb(request: RunRequest, page: PageRequest, *, as_json: bool) -> ExitCode:
    """Measure workloads on a device and store the run."""
    from gpubench.predict.memory import doubts
    from gpubench.record.store import newest_runs
    from gpubench.session.session import prepare
    from gpubench.session.torchrun import follow

    place = place_under_torchrun()
    if place is not None and place.rank > 0:
        os.dup2(2, 1)  # what a model prints is no answer
        follow(request, place)
        return ExitCode.DONE
    prepared = prepare(
        request, lambda case, fits: say(f"{case.label}: {'fits' if fits else 'does not fit in memory'}")
    )
    if page.report is not None:
        _check_report(page.report)
    if prepared.remark:
        say(prepared.remark)
    stored = newest_runs(prepared.root).runs
    for doubt in doubts(prepared.plan, prepared.profiles, prepared.device, stored):
        say(doubt)
    session = _measure(prepared)
    return tell(session, prepared, request, page.report, as_json=as_json)


def _measure(prepared: Prepared) -> Session:
    from gpubench.cli.progress import watch
    from gpubench.measure.messages import CaseEnded, Event
    from gpubench.models import Status
    from gpubench.record.figures import run_document
    from gpubench.session.session import UnstoredRunError, execute

    kept: set[Case] = set()

    def note(event: Event) -> None:
        if isinstance(event, CaseEnded) and event.measurement.status is Status.OK:
            kept.add(event.measurement.case)
        progress(event)

    try:
        with watch() as progress:
            return execute(prepared, note)
    except NoDeviceError as error:
        if not kept:
            raise
        what = "1 finished case is" if len(kept) == 1 else f"{len(kept)} finished cases are"
        rest = "kept, and gpubench run --resume latest goes on with the rest"
        raise NoDeviceError(f"{error}; {what} {rest}") from error
    except UnstoredRunError as error:
        say(msgspec.json.encode(run_document(error.state)).decode())
        raise


def tell(
    session: Session, prepared: Prepared, request: RunRequest, report: Path | None, *, as_json: bool
) -> ExitCode:
    """Print a run, the head of the ranking for what was run, and at the end what both come to."""
    import shlex

    from gpubench import effects
    from gpubench.record.figures import run_document

    answer(
        as_json,
        lambda: run_document(session.run) | effects.document(session.run),
        lambda: run_parts(session.run),
    )
    say(f"stored in {session.path}")
    if session.interrupted:
        place = "" if request.results is None else f" --results {shlex.quote(str(request.results))}"
        start = "gpubench" if prepared.place is None else "torchrun ... -m gpubench"
        resume = f"{start} run --resume {session.run.run_id}{place}"
        goes_on = f"; finished cases are kept, and this goes on: {resume}"
        say(f"interrupted{'; what was trained is kept' if request.to_quality else goes_on}")
        return ExitCode.INTERRUPTED
    closes = bool(prepared.plan.cases) and not (as_json or session.every_case_failed)
    ranking = _top_offers(prepared.plan, request.results) if closes else None
    if report is not None:
        from gpubench.report.page import report as write

        write(report, request.results, run=session.run.run_id)
        say(f"report in {report}")
    if closes:
        _close(session.run, ranking)
    if session.every_case_failed:
        say("every case failed; the reasons are above")
        return ExitCode.EVERY_CASE_FAILED
    return ExitCode.DONE


def run_parts(run: Run) -> list[Part]:
    """Return what a run says: the device, the cases, what they compare to, what to doubt."""
    from gpubench.sections.data import of_run
    from gpubench.sections.section import brief

    figures = ("device", "throughput", "latency", "outputs", "generation")
    gains = ("amp", "frameworks", "threads", "together")
    return brief(of_run(run), *figures, *gains, "quality", "micro", "method")


def _close(run: Run, ranking: Ranking | None) -> None:
    """End with the answer and what mixed precision gained: the card's own line has left the screen."""
    from gpubench.recommend.lines import headline
    from gpubench.sections.amp import closing_sentence

    verdict = headline(ranking) if ranking is not None and ranking.rows else None
    sentences = [sentence for sentence in (verdict, closing_sentence(run)) if sentence is not None]
    if sentences:
        print()
        show(*(Paragraph(text=sentence, tone="headline") for sentence in sentences))


def _top_offers(plan: Plan, results: Path | None) -> Ranking | None:
    """Print the head of the ranking for what was run; where there can be none, say why and go on."""
    from gpubench.cli.verbs.rank import ranking_parts
    from gpubench.recommend.rank import rank
    from gpubench.recommend.request import RankRequest

    if any(map(_is_of_this_machine, (planned.case for planned in plan.cases))):
        say("no ranking: this run is about threads, frameworks or int8; gpubench rank says what to rent")
        return None
    workloads, task = _ranked(plan)
    try:
        ranking = rank(
            RankRequest(workloads=workloads, task=task, results=results, limit=TOP_OFFERS, one_a_gpu=True)
        )
    except GpuBenchError as error:
        say(f"no ranking: {error}")
        return None
    print()
    show(*ranking_parts(ranking, TOP_OFFERS, more_by="gpubench rank --explain"))
    say("the whole ranking, and how to narrow it: gpubench rank --help")
    return ranking


def _is_of_this_machine(case: Case) -> bool:
    """Whether a case asks how this machine is best used, and not which one to rent."""
    from gpubench.models import Framework, Precision

    return bool(case.threads) or case.framework is not Framework.TORCH or case.precision is Precision.INT8


def _ranked(plan: Plan) -> tuple[tuple[str, ...], TaskKind]:
    """Return what to rank by: the workloads of the run and the task; a pipeline is never trained."""
    from gpubench.models import TaskKind

    tasks = {planned.case.task for planned in plan.cases}
    task = TaskKind.TRAIN if TaskKind.TRAIN in tasks else TaskKind.INFER
    return tuple(dict.fromkeys(p.reference for p in plan.cases if p.case.task is task)), task


def _check_report(report: Path) -> None:
    """Find out before the run whether the page can be written."""
    from gpubench.report.request import format_of

    format_of(report)
    folder = report.resolve().parent
    if report.is_dir():
        raise MisuseError(f"--report {report}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise MisuseError(f"--report {report}: there is no folder {folder}; make it first")


VERB = Verb(verb, place=40, also_called=("bench", "benchmark", "measure", "start", "test", "train"))
