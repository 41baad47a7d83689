"""Runs commands in forked processes with one system call failing in each; prints a line of JSON for each.

Start it with the library preloaded: ``failing_calls.py LIBRARY TEMPLATE PLACE``, with a list of ``[arguments,
call, nth, errno]`` on standard input. With nth 0 no call fails, and each is counted. Each command gets a copy
of the template as its folder. Every command first runs once in this process, so no copy has to load it.
``failing_calls.py begin PLACE ARGUMENTS`` starts a run and dies right after its first launch is stored.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import traceback
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from telling import DAMAGED, launches_of, launches_printed

from gpubench.__main__ import main
from gpubench.cli import app  # noqa: F401 - loaded once, not in each
from gpubench.models import Run
from gpubench.recommend import rank  # noqa: F401
from gpubench.record import store
from gpubench.report import page  # noqa: F401
from gpubench.session import session


def main_of(arguments: list[str]) -> None:
    sys.argv = ["gpubench", *arguments]
    main()


def begin(place: str, arguments: str) -> None:
    os.chdir(place)
    write = store.write_run

    def write_and_die(root: Path, run: Run, **more: bool) -> Path:
        path = write(root, run, **more)
        if run.measurements:
            os._exit(9)
        return path

    store.write_run = write_and_die
    main_of(json.loads(arguments))


def damage_before_it_is_saved(file: Path, link: Path) -> None:
    """Truncate the file of a continuing run, through another name that the failing calls do not reach."""
    link.unlink(missing_ok=True)
    link.hardlink_to(file)
    write = store.write_run

    def cut_and_write(*rest: object, **more: bool) -> Path:
        store.write_run = write
        os.truncate(link, 100)
        return write(*rest, **more)

    store.write_run = cut_and_write


def fresh(template: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place)


def warm_up(template: Path, place: Path, arguments: list[str]) -> None:
    fresh(template, place)
    said = (place / "said").open("w")
    with said, redirect_stdout(said), redirect_stderr(said), chdir(place), suppress(SystemExit):
        main_of(arguments)


def one(library: ctypes.CDLL, template: Path, place: Path, order: tuple[list[str], str, int, int]) -> dict:
    arguments, call, nth, number = order
    root = place / "results"
    out, err, count = map(place.with_name, ("out", "err", "count"))  # out of reach of the failing calls
    fresh(template, place)
    pid = os.fork()
    if pid == 0:
        for number_of_stream, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number_of_stream)
        os.chdir(place)
        for file in (root / "runs").rglob(f"{DAMAGED}.json") if DAMAGED in arguments else ():
            damage_before_it_is_saved(file, place.with_name("link"))
        library.arm(os.fsencode(place), call.encode(), nth, number)
        status = 1
        try:
            main_of(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        except BaseException:  # noqa: BLE001 - as Python does
            traceback.print_exc()
        finally:
            calls = {each: library.calls(each.encode()) for each in call.split()}
            library.arm(b"", b"", 0, 0)
            count.write_text(json.dumps(calls))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # Python's own end would delete every loaded module
    _, status = os.waitpid(pid, 0)
    stored = store.read_runs(root)
    return {
        "arguments": arguments,
        "call": call,
        "nth": nth,
        "errno": number,
        "code": os.waitstatus_to_exitcode(status),
        "said": err.read_text(errors="replace"),
        "printed": sorted(launches_printed(out.read_text(errors="replace"))),
        "calls": json.loads(count.read_text()),
        "launches": sorted(set().union(*map(launches_of, stored.runs))),
        "problems": stored.problems,
        "aside": sorted(path.name for path in root.rglob("*.corrupt")),
    }


if __name__ == "__main__":
    subprocess._USE_VFORK = False  # the preloaded library cannot come between it and a process
    session.MODULE = "scripted_child"
    if sys.argv[1] == "begin":
        begin(*sys.argv[2:])
    loaded = ctypes.CDLL(sys.argv[1])
    template, place, plan = Path(sys.argv[2]), Path(sys.argv[3]), json.load(sys.stdin)
    del os.environ["LD_PRELOAD"]  # a run that continues elsewhere is refused
    for arguments in {tuple(each[0]): each[0] for each in plan}.values():
        warm_up(template, place, arguments)
    for each in plan:
        print(json.dumps(one(loaded, template, place, each)), flush=True)
