from collections.abc import Sequence
from pathlib import Path

from gpubench import units
from gpubench.cli.output import answer, say
from gpubench.cli.table import CheckRequest
from gpubench.cuda_check import judge, run
from gpubench.errors import ExitCode, MisuseError
from gpubench.models import CudaCheck, PartLog, PartState
from gpubench.probe import select, torch_view
from gpubench.record import run_check, store
from gpubench.sections import lists

CONFIRMED = "tests/data/confirmed/"


def verb(request: CheckRequest, *, as_json: bool) -> ExitCode:
    if request.cuda and request.run is not None:
        raise MisuseError("--cuda checks this GPU: leave out the run")
    if request.cuda:
        return _check_cuda(request, as_json=as_json)
    if request.full or request.output is not None:
        raise MisuseError(f"{'--full' if request.full else '-o'} requires --cuda: gpubench check --cuda")
    if request.run is None:
        raise MisuseError("give a run: `gpubench check latest`, or see `gpubench results list`")
    checked = run_check.check_run(store.read_named(request.results, request.run))
    keys = ("trustworthy", "run_id", "cases", "issues")
    answer(as_json, lambda: {key: getattr(checked, key) for key in keys}, lambda: lists.run_judged(checked))
    return ExitCode.DONE if checked.trustworthy else ExitCode.NO


def _check_cuda(request: CheckRequest, *, as_json: bool) -> ExitCode:
    profile, remark = select.select_device("cuda")
    say(*filter(None, [remark]))
    build = torch_view.torch_build()
    path = request.output or Path(judge.file_name(profile, None if build is None else build.version))
    limit = "without a time limit" if request.full else f"at most {units.format_limit(run.LIMIT_S)}"
    say(f"checking {units.plain(profile.name or 'the GPU')}, {limit}; nothing else should use it meanwhile")
    check = run.check_cuda(profile, path, full=request.full, on_part=_say_part)
    verdicts = judge.judge(check)
    answer(
        as_json,
        lambda: {"file": str(path), "confirms": judge.confirms(check), "verdicts": verdicts},
        lambda: lists.card_judged(verdicts),
    )
    say(_next(check, verdicts, path))
    return ExitCode.NO if judge.states_of(verdicts) & {"FAILED", "cut off"} else ExitCode.DONE


def _say_part(log: PartLog, number: int, total: int) -> None:
    took = "" if log.took_s is None else f" in {units.format_duration(log.took_s)}"
    reason = "" if log.reason is None else f": {units.plain(log.reason, lists.LONGEST_REASON)}"
    ended = "" if log.state is PartState.RUNNING else f": {log.state}{took}{reason}"
    say(f"{number}/{total} {log.name}{ended}")


def _next(check: CudaCheck, verdicts: Sequence[judge.Verdict], path: Path) -> str:
    states = judge.states_of(verdicts)
    if "FAILED" in states:
        return f"a part failed: send {path} with your bug report; it names neither this machine nor its user"
    if "cut off" in states:
        return f"a part did not finish in time: add --full, which has no time limit; the file is {path}"
    if judge.confirms(check):
        return f"every judged part passed: open a pull request that adds {path} to {CONFIRMED}"
    undecided = sum(verdict.state == "undecided" for verdict in verdicts)
    why = f"{units.count(undecided, 'judgment')} undecided" if undecided else "a part is missing"
    return f"nothing failed, but {why}: run it again while nothing else uses this machine; the file is {path}"
