"""Runs commands with one system call failed in each, in forked processes; prints a line of JSON for each.

Started with the library preloaded: ``failing_calls.py LIBRARY TEMPLATE PLACE PLAN``, where the plan is a list of
``[arguments, call, nth, errno]``. A copy of the template is the results folder of each.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path

from gpubench.__main__ import main
from gpubench.cli import app  # noqa: F401 - loaded once, not in each
from gpubench.models import Run, Status
from gpubench.recommend import rank  # noqa: F401
from gpubench.record import store
from gpubench.report import page  # noqa: F401
from gpubench.session import session


def launches(run: Run) -> set[str]:
    return {
        f"{run.run_id} {m.case.label} {x.index}"
        for m in run.measurements
        for x in m.launches
        if m.status is Status.OK
    }


def one(library: ctypes.CDLL, template: Path, place: Path, order: tuple[list[str], str, int, int]) -> dict:
    arguments, call, nth, number = order
    root = place / "results"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place)
    pid = os.fork()
    if pid == 0:
        said = os.open(place / "said", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(place)
        sys.argv = ["gpubench", *arguments]
        library.arm(os.fsencode(root), call.encode(), nth, number)
        try:
            main()
        finally:
            with (place / "count").open("w") as file:
                file.write(str(library.calls()))
    _, status = os.waitpid(pid, 0)
    stored = store.read_runs(root)
    return {
        "arguments": arguments,
        "call": call,
        "nth": nth,
        "errno": number,
        "code": os.waitstatus_to_exitcode(status),
        "said": (place / "said").read_text(errors="replace"),
        "calls": int((place / "count").read_text()),
        "launches": sorted(set().union(*map(launches, stored.runs))),
        "problems": stored.problems,
        "aside": [path.name for path in root.rglob("*.corrupt")],
    }


if __name__ == "__main__":
    session.module_of = lambda device: "scripted_child"
    loaded = ctypes.CDLL(sys.argv[1])
    for each in json.loads(sys.argv[4]):
        print(json.dumps(one(loaded, Path(sys.argv[2]), Path(sys.argv[3]), each)), flush=True)
