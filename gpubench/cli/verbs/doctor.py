import shutil

from gpubench import folders, options
from gpubench.cli.output import answer
from gpubench.errors import ExitCode, StorageError
from gpubench.probe import health, probe
from gpubench.record.store import check_writable
from gpubench.sections.lists import checked_up
from gpubench.units import format_bytes


def verb(request: options.ResultsRequest, *, as_json: bool) -> ExitCode:
    root = folders.results_root(request.results)
    try:
        free = format_bytes(shutil.disk_usage(check_writable(root)).free)
        storage = health.Check("ok", "results folder", f"{root}, {free} free")
    except StorageError as error:
        storage = health.Check("fail", "results folder", error.seen, error.fix)
    checks = (*health.check_up(probe.probe()), storage)
    answer(as_json, lambda: {"checks": checks, "failed": health.failed(checks)}, lambda: checked_up(checks))
    return ExitCode.NO if health.failed(checks) else ExitCode.DONE
