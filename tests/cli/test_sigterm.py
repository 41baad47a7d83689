"""SIGTERM in every phase of every long verb: exit code 130 within three seconds, and no process left."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from own_net import own_net
from patience import Stopwatch, is_gone, wait_until

from gpubench.record import store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("heeded_signals")]

WITHIN_S = 3.0
UNLESS_LOADED_S = 9.0
"""Limit on wall time, which counts because a loaded machine never has an idle processor. A grace period for a
child would take ten seconds."""

PROGRAM = """
import os, sys
from gpubench.children import ChildProcess

receive = ChildProcess.receive

def noted(self, until_s):
    report = receive(self, until_s)
    with open(os.environ["GPUBENCH_REPORTS"], "a") as file:
        print(type(report).__name__, getattr(report, "name", ""), file=file)
    return report

ChildProcess.receive = noted
from gpubench.__main__ import main
main()
"""
"""The command line itself, which also records the reports of its child processes."""

MODEL = own_net(
    'at("step")',
    before="""import os, time

def at(place):
    wanted = os.environ.get("GPUBENCH_HANGS")
    if wanted == place or (wanted == "job" and place == "step" and torch.distributed.is_initialized()):
        with open(os.environ["GPUBENCH_REPORTS"], "a") as file:
            print("hangs", place, file=file)
        while True:  # catching the signal must not save the model
            try:
                time.sleep(600)
            except BaseException:
                pass

at("import")
""",
)

CPU = ("--device", "cpu", "--micro", "none")
OWN = ("mine.py", *CPU, "--precision", "fp32", "--batch-size", "8")
TWO = (*OWN, "--gpus", "2")


@pytest.fixture
def slow_server() -> Iterator[tuple[str, threading.Event]]:
    """Yield the address of a server that never answers, and an event that its first request sets."""
    over, asked = threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            over.wait()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the library
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/latest.json", asked
    over.set()
    server.shutdown()
    server.server_close()


class Command:
    """One command in its own folder, with the reports of its children."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.reports = folder, folder / "reports"
        self.environment = os.environ | {"GPUBENCH_REPORTS": str(self.reports)}
        (folder / "mine.py").write_text(MODEL)

    def start(self, arguments: Sequence[str], hangs: str = "") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, *arguments],
            cwd=self.folder,
            env=self.environment | {"GPUBENCH_HANGS": hangs},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def assert_ends_on_sigterm(
        self, arguments: Sequence[str], is_reached: Callable[[psutil.Process], bool], *, hangs: str = ""
    ) -> str:
        """Start a command, send SIGTERM once it reaches a point, and check how it ends; return its stderr."""
        with self.start(arguments, hangs) as process:
            try:
                seen = psutil.Process(process.pid)
                wait_until(lambda: is_reached(seen), process)
                children = [child.pid for child in seen.children(recursive=True)]
                began_s, watch = time.monotonic(), Stopwatch()
                process.send_signal(signal.SIGTERM)
                _, err = process.communicate()
                wall_s, free_s = time.monotonic() - began_s, watch.free_s()
            finally:
                process.kill()
        assert process.returncode == 130, err
        assert free_s < WITHIN_S, err
        assert wall_s < UNLESS_LOADED_S, err
        assert "Traceback" not in err
        wait_until(lambda: all(map(is_gone, children)))
        print(f"{wall_s:.2f} s, {free_s:.2f} s of them with a processor free; {len(children)} children")
        return err

    def told(self, line: str) -> Callable[[psutil.Process], bool]:
        """Return a check whether a child has reported this line."""
        return lambda _: self.reports.exists() and line in self.reports.read_text()


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def heeds(process: psutil.Process) -> bool:
    """Tell whether a process has its own handler for SIGTERM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


RUNS = {
    "start": (("lstm", *CPU), "Phase import", ""),
    "micro-benchmarks": (("lstm", "--device", "cpu"), "Phase micro", ""),
    "rounds": (("lstm", *CPU), "RoundDone", ""),
    "step": (OWN, "hangs step", "step"),
    "independent": ((*TWO, "--jobs", "independent"), "hangs step", "step"),
    "job, start": (TWO, "Phase import", ""),
    "job, step": (TWO, "hangs step", "job"),
    "to quality": (("lstm", *CPU, "--to-quality", "--precision", "fp32"), "Phase timed", ""),
    "keras, start": (("cnn", *CPU, "--framework", "keras-jax"), "Phase import", ""),
    "keras, rounds": (("cnn", *CPU, "--framework", "keras-tensorflow"), "RoundDone", ""),
}
TRACES = {
    "run": ("run", *OWN),
    "run in keras": ("run", *OWN, "--framework", "keras-jax"),
    "memory": ("memory", "mine.py"),
    "rank": ("rank", "mine.py"),
}


@pytest.mark.parametrize("phase", RUNS)
def test_a_run_that_is_terminated_is_stored_as_interrupted(command: Command, phase: str) -> None:
    arguments, place, hangs = RUNS[phase]
    err = command.assert_ends_on_sigterm(
        ("run", *arguments, "--results", "results"), command.told(place), hangs=hangs
    )
    assert "interrupted" in err
    (run,) = store.read_runs(command.folder / "results").runs
    assert run.interrupted


@pytest.mark.parametrize("verb", TRACES)
def test_a_model_that_hangs_on_import_does_not_block_the_command(command: Command, verb: str) -> None:
    command.assert_ends_on_sigterm(
        (*TRACES[verb], "--results", "results"), command.told("hangs import"), hangs="import"
    )


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.6])
@pytest.mark.parametrize(
    "arguments", [("run", "lstm", *CPU), ("report", "-o", "page.html")], ids=["run", "report"]
)
def test_a_command_that_is_still_starting_ends_on_sigterm(
    command: Command, arguments: tuple[str, ...], after_s: float
) -> None:
    def reached(process: psutil.Process) -> bool:
        if heeds(process):
            time.sleep(after_s)
            return True
        return False

    command.assert_ends_on_sigterm((*arguments, "--results", "results"), reached)


def test_a_server_that_never_answers_does_not_keep_a_command_alive(
    command: Command, slow_server: tuple[str, threading.Event]
) -> None:
    url, asked = slow_server
    command.assert_ends_on_sigterm(
        ("offers", "refresh", "--from", url, "--results", "results"), lambda _: asked.is_set()
    )


def test_a_command_that_is_killed_keeps_the_seeds_that_were_trained(command: Command) -> None:
    def trained() -> int:
        runs = store.read_runs(command.folder / "results").runs
        return sum(len(row.runs) for run in runs for row in run.quality)

    arguments = ("run", "lstm", *CPU, "--to-quality", "--precision", "fp32", "--results", "results")
    with command.start(arguments) as process:
        wait_until(trained, process)
        process.kill()
        process.communicate()
    (run,) = store.read_runs(command.folder / "results").runs
    (row,) = run.quality
    assert row.runs
    assert not row.is_reached  # too few seeds for a figure
