import shutil

from gpubench.cli.output import answer
from gpubench.errors import ExitCode, StorageError
from gpubench.folders import results_root
from gpubench.options import ResultsRequest
from gpubench.probe.health import Check, check_up, failed
from gpubench.probe.probe import probe
from gpubench.record.store import check_writable
from gpubench.sections.judged import checked_up
from gpubench.units import format_bytes


def verb(request: ResultsRequest, *, as_json: bool) -> ExitCode:
    root = results_root(request.results)
    try:
        free = format_bytes(shutil.disk_usage(check_writable(root)).free)
        storage = Check("ok", "results folder", f"{root}, {free} free")
    except StorageError as error:
        storage = Check("fail", "results folder", error.seen, error.fix)
    checks = (*check_up(probe()), storage)
    answer(as_json, lambda: {"checks": checks, "failed": failed(checks)}, lambda: checked_up(checks))
    return ExitCode.NO if failed(checks) else ExitCode.DONE
