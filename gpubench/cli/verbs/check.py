"""`gpubench check`: can this run be trusted; with `--cuda`, does all that gpubench relies on hold here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.errors import ExitCode, MisuseError
from gpubench.options import Option, Results
from gpubench.units import count, format_duration, format_limit, plain

if TYPE_CHECKING:
    from gpubench.cuda_check.judge import Verdict
    from gpubench.models import CudaCheck, PartLog

CONFIRMED = "tests/data/confirmed/"


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The run to check, or that the card here is checked and how."""

    run: Annotated[
        str | None,
        Option("A run file, the start of a run id, or latest.", place=True, bare=True, metavar="RUN"),
    ] = None
    cuda: Annotated[bool, Option("Check an NVIDIA GPU against itself, in 5 minutes, and write one file.")] = (
        False
    )
    full: Annotated[bool, Option("With --cuda: leave nothing out, however long it takes.")] = False
    output: Annotated[
        Path | None, Option("With --cuda: the file.", short="-o", default="cuda-check-GPU-TORCH.json")
    ] = None
    results: Results = None


def verb(request: CheckRequest, *, as_json: bool) -> ExitCode:
    """Say whether a run, or this GPU, can be trusted; exit code 1 if not."""
    if request.cuda:
        if request.run is not None:
            raise MisuseError("--cuda checks this GPU: give it without a run")
        return check_cuda(request, as_json=as_json)
    if request.full or request.output is not None:
        raise MisuseError(f"{'--full' if request.full else '-o'} is for --cuda: gpubench check --cuda")
    from gpubench.folders import results_root
    from gpubench.record.run_check import check_run
    from gpubench.record.run_file import read_run
    from gpubench.record.store import find_run
    from gpubench.sections.run_check import judged

    if request.run is None:
        raise MisuseError("name a run: `gpubench check latest`, or see `gpubench results list`")
    checked = check_run(read_run(find_run(results_root(request.results), request.run)))
    keys = ("trustworthy", "run_id", "cases", "issues")
    answer(as_json, lambda: {key: getattr(checked, key) for key in keys}, lambda: judged(checked))
    return ExitCode.DONE if checked.trustworthy else ExitCode.NO


def check_cuda(request: CheckRequest, *, as_json: bool) -> ExitCode:
    """Check one card, print what was found, and leave the file; exit 1 if a judged part failed."""
    from gpubench.cuda_check import judge
    from gpubench.cuda_check import run as cuda_check
    from gpubench.cuda_check.judge import file_name
    from gpubench.probe.select import select_device
    from gpubench.probe.torch_view import torch_build
    from gpubench.sections.cuda_check import judged

    profile, remark = select_device("cuda")
    if remark is not None:
        say(remark)
    build = torch_build()
    path = request.output or Path(file_name(profile, None if build is None else build.version))
    how_long = "all of it" if request.full else f"at most {format_limit(cuda_check.LIMIT_S)}"
    say(f"checking {plain(profile.name or 'the GPU')}, {how_long}; let nothing else use it meanwhile")
    check = cuda_check.check_cuda(profile, path, full=request.full, on_part=_say_part)
    verdicts = judge.judge(check)
    answer(
        as_json,
        lambda: {"file": str(path), "confirms": judge.confirms(check), "verdicts": verdicts},
        lambda: judged(verdicts),
    )
    if not request.full and not judge.failed(verdicts):
        _say_what_is_left(check)
    _say_next(check, verdicts, path)
    return ExitCode.NO if judge.failed(verdicts) or judge.cut_off(verdicts) else ExitCode.DONE


def _say_part(log: PartLog, number: int, total: int) -> None:
    """One line as a part begins, one as it ends."""
    from gpubench.models import PartState
    from gpubench.sections.cuda_check import LONGEST_REASON

    place = f"{number}/{total} {log.name}"
    if log.state is PartState.RUNNING:
        say(place)
        return
    took = "" if log.took_s is None else f" in {format_duration(log.took_s)}"
    reason = "" if log.reason is None else f": {plain(log.reason, LONGEST_REASON)}"
    say(f"{place}: {log.state}{took}{reason}")


def _say_what_is_left(check: CudaCheck) -> None:
    """Say what was not tried within the limit, and what tries it."""
    from gpubench.models import PartState

    late = [part.name for part in check.parts if part.state is PartState.LEFT_OUT]
    parts = f", nor the part{'s' if len(late) > 1 else ''} {', '.join(late)}" if late else ""
    what = f"{count(len(check.left_out), 'usual case')} not tried{parts}" if check.left_out or late else ""
    say(f"{what or 'every usual case was tried'}: gpubench check --cuda --full has no limit of time")


def _say_next(check: CudaCheck, verdicts: Sequence[Verdict], path: Path) -> None:
    """Say what came out, and what the file is good for."""
    from gpubench.cuda_check.judge import confirms, cut_off, failed

    if failed(verdicts):
        say(f"a part failed: send {path} with your report, it names neither this machine nor its user")
        return
    if cut_off(verdicts):
        say(f"a part gave no answer in its time: run it with --full, which sets no limit; the file is {path}")
        return
    if confirms(check):
        say(f"all that was judged agrees: attach {path} to a pull request under {CONFIRMED}")
        return
    open_ones = sum(verdict.state == "undecided" for verdict in verdicts)
    why = f"{count(open_ones, 'judgment')} undecided" if open_ones else "a part is missing"
    say(f"nothing failed, but {why}: run it again while nothing else uses this machine; the file is {path}")


VERB = Verb(verb, place=50)
