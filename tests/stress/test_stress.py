"""Hundreds of kills, collisions and fuzzed files: no finished work is lost, no process is left over, no
reader breaks.

The short form of each runs by default; ``pytest -m stress -n 0`` runs the full one. The measuring process is
scripted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from importlib import metadata
from pathlib import Path

import msgspec
import psutil
import pytest
from patience import wait_until
from readers import READERS, outcome
from telling import launches_told

from gpubench.children import MARK
from gpubench.models import Run
from gpubench.record import store
from gpubench.record.store import add_runs

pytestmark = [
    pytest.mark.timeout(7200),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

TESTS = Path(__file__).parents[1]
PROGRAM = """
import signal, sys
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:  # this loads what the command would load, and ends as it would
    from gpubench.session import session
except BaseException as error:
    from gpubench.errors import is_interrupt
    sys.exit(130 if is_interrupt(error) else repr(error))
session.MODULE = "scripted_child"
from gpubench.__main__ import main
main()
"""
NEW = ("run", "cnn", "--micro", "none", "--device", "cpu", "--publish")
AGAIN = ("run", "--resume", "latest", "--device", "cpu")
TRACED = """
import time, torch
from torch import nn
time.sleep(0.2)
def build(batch_size):
    return nn.Linear(8, 4), torch.randn(batch_size, 8), torch.zeros(batch_size, dtype=torch.long), nn.functional.cross_entropy
"""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def times(short: int, full: int):
    return pytest.mark.parametrize(
        "count", [pytest.param(short, id="short"), pytest.param(full, id="full", marks=pytest.mark.stress)]
    )


class Place:
    """A results folder, and the processes that work on it, which are identified by an environment variable."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.scratch = folder, folder / "results", folder / "scratch"
        self.scratch.mkdir()
        (folder / "mine.py").write_text(TRACED)
        script = {"torch": metadata.version("torch"), "pause_s": 0.05}
        self.environment = os.environ | {
            "PYTHONPATH": f"{TESTS / 'measure'}:{TESTS}",
            "GPUBENCH_SCRIPT": json.dumps(script),
            "GPUBENCH_STRESS": str(folder),
            "TMPDIR": str(self.scratch),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", PROGRAM, *arguments, "--results", str(self.root)]
        return subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment, cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip

    def left(self) -> list[psutil.Process]:
        """Processes of this place that are still running."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get("GPUBENCH_STRESS") == str(self.folder)
                    and process.status() != "zombie"
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def halves(self) -> set[Path]:
        """Files that were started; a later writer removes those of a killed process."""
        return set(self.root.rglob("*.tmp"))

    def reached(self, count: int, process: subprocess.Popen[str]) -> bool:
        """Whether this many launches are stored, or never will be."""
        return process.poll() is not None or len(self.launches()) >= count

    def launches(self) -> set[tuple[str, int, str | None]]:
        """Every finished launch of the store; none of its files may be unreadable."""
        stored = store.read_runs(self.root)
        assert stored.problems == ()
        return {
            (f"{run.run_id} {m.case.label}", launch.index, launch.began_at)
            for run in stored.runs
            for m in run.measurements
            for launch in m.launches
            if not launch.stopped
        }


# --- kills --------------------------------------------------------------------------------------------------


@times(4, 500)
@pytest.mark.usefixtures("heeded_signals")
def test_a_signal_at_any_moment_ends_a_command_in_order(tmp_path, count):
    """Signals to the command, its child, or its whole group, in any phase of a new run, a resumed one, a trace."""
    seed = int(os.environ.get("GPUBENCH_STRESS_SEED", "20261122"))
    chance = random.Random(seed)
    place = Place(tmp_path)
    count = int(os.environ.get("GPUBENCH_STRESS_COUNT", count))
    codes: dict[str, int] = {}
    slowest_s, most_cpu_s, finished = 0.0, 0.0, 0
    for n in range(count):
        used_s = cpu_of_ended_s()
        if n % 25 == 0 and place.root.exists():  # a small store is read fast, again and again
            finished += len(place.launches())
            shutil.rmtree(place.root)
            print(f"{n} signals, {finished} launches", flush=True)
        before, halves = place.launches(), place.halves()
        unfinished = any(run.finished_at is None for run in store.read_runs(place.root).runs[-1:])
        if chance.random() < 0.1 or n == 2:  # the short form includes one
            arguments = ("predict", "show", "./mine.py")
            process = subprocess.Popen(
                [sys.executable, "-m", "gpubench", *arguments], cwd=tmp_path, env=place.environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        else:
            process = place.start(*(AGAIN if unfinished else NEW))
        if chance.random() < 0.7 and "predict" not in process.args:
            target = len(before) + chance.randrange(1, 7)
            wait_until(partial(place.reached, target, process))
            time.sleep(chance.expovariate(1 / 0.1))
        else:
            time.sleep(chance.expovariate(1 / 1.5))
        number, whom = chance.choice(SIGNALS), chance.choice(("command", "command", "child", "group"))
        began_s, spent_s = time.monotonic(), cpu_so_far_s(process.pid)
        send(process, number, whom)
        _, err = process.communicate(timeout=120)
        if number == signal.SIGTERM and whom == "command":
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            most_cpu_s = max(most_cpu_s, cpu_of_ended_s() - used_s - spent_s)
        code = process.returncode
        codes[f"{number.name} {whom} {code}"] = codes.get(f"{number.name} {whom} {code}", 0) + 1
        is_ours = "/gpubench/" in err  # else the interpreter itself was still starting
        assert not (is_ours and "Traceback" in err), (n, number, whom, err)
        if number == signal.SIGTERM and whom == "command":
            # Before Python itself has started, the signal ends it. Inside an exec, while modules are loaded,
            # `python -m` ends itself by SIGINT in any case; to a shell that is 130 too.
            assert code in {0, 130, -signal.SIGTERM, -signal.SIGINT}, (n, err)
        wait_until(lambda: not place.left())
        after = place.launches()
        assert before <= after, (n, number, whom)
        assert len(after) - len(before) >= launches_told(err), (n, number, whom, err)
        kept = [p.name for p in place.scratch.iterdir() if not p.name.startswith("torchinductor")]
        assert kept == [], (n, number, whom)
        assert not list(place.root.rglob("*.corrupt")), (n, number, whom)
        # The two signals without a handler may leave half of a file; the next writer removes it in time.
        assert place.halves() <= halves or number in {signal.SIGKILL, signal.SIGHUP}, (n, whom)
    finished += len(place.launches())
    slowest = f"slowest SIGTERM {slowest_s:.1f} s, {most_cpu_s:.1f} s of CPU"
    print(f"\n{count} signals, seed {seed}: {finished} launches, {slowest}, {codes}")


def cpu_of_ended_s() -> float:
    """The CPU time of the processes that have ended; on a busy machine the wall time means little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cpu_so_far_s(pid: int) -> float:
    """The CPU time of a process and its descendants so far."""
    taken_s = 0.0
    with contextlib.suppress(psutil.Error):
        whole = psutil.Process(pid)
        for process in (whole, *whole.children(recursive=True)):
            taken_s += sum(process.cpu_times()[:4])  # including those that it has waited for
    return taken_s


def send(process: subprocess.Popen[str], number: signal.Signals, whom: str) -> None:
    try:
        if whom == "group":
            os.killpg(process.pid, number)
        elif whom == "child":
            marked = [p for p in psutil.Process(process.pid).children() if MARK in p.environ()]
            (marked or [psutil.Process(process.pid)])[0].send_signal(number)
        else:
            process.send_signal(number)
    except (ProcessLookupError, psutil.Error):
        return


# --- collisions ---------------------------------------------------------------------------------------------


@times(1, 100)
def test_two_processes_that_resume_at_once_lose_nothing(tmp_path, count):
    place = Place(tmp_path)
    for n in range(count):
        first = place.start(*NEW)
        wait_until(lambda: place.root.exists() and place.launches(), first)
        first.kill()
        first.communicate()
        before = place.launches()
        both = [place.start(*AGAIN) for _ in range(2)]
        ends = [(*process.communicate(), process.returncode) for process in both]
        assert sorted(code for *_, code in ends) in ([0, 0], [0, 5]), (n, ends)
        assert before <= place.launches()
        assert all(run.finished_at for run in store.read_runs(place.root).runs), (n, ends)
        wait_until(lambda: not place.left())
        for path in (place.root / "runs").rglob("*.json"):
            path.unlink()
        if n % 10 == 9:
            print(f"{n + 1} pairs", flush=True)
    print(f"\n{count} pairs that resume at once: 0 launches lost")


def together(work: list) -> list[int]:
    """Run each in its own process, all at the same moment; return how each ended."""
    read_fd, write_fd = os.pipe()
    pids = []
    for each in work:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(write_fd)
                os.read(read_fd, 1)  # until all others are there
                each()
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(read_fd)
    os.close(write_fd)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def variants(run: Run, count: int) -> list[Run]:
    return [msgspec.structs.replace(run, seed=n) for n in range(count)]


@times(3, 100)
def test_if_many_processes_add_different_content_under_one_id_one_is_stored(tmp_path, make_run, count):
    for n in range(count):
        root = tmp_path / f"mine-{n}"
        offered = []
        for index, run in enumerate(variants(make_run(), 4)):
            offered.append(store.write_run(tmp_path / f"theirs-{n}-{index}", run))
        assert together([partial(add_runs, root, [path]) for path in offered]) == [0] * 4
        (stored,) = store.read_runs(root).runs
        assert stored.seed in range(4)
        assert not list(root.rglob("*.lock")) + list(root.rglob("*.corrupt"))
    print(f"\n{count} collisions of four that add: 0 runs lost")


@times(4, 100)
def test_processes_that_write_one_store_at_once_lose_nothing(tmp_path, make_run, count):
    """Eight of them, one run each time, while the store is read."""

    def write(worker: int) -> None:
        for n in range(count):
            store.write_run(tmp_path, make_run(run_id=f"20261120t{n:06d}z-{worker:08d}"))
            if n % 10 == worker:
                assert store.read_runs(tmp_path).problems == ()

    assert together([partial(write, worker) for worker in range(8)]) == [0] * 8
    stored = store.read_runs(tmp_path)
    assert (len({run.run_id for run in stored.runs}), stored.problems) == (8 * count, ())
    print(f"\n8 processes x {count} runs: {len(stored.runs)} readable")


# --- fuzz ---------------------------------------------------------------------------------------------------

PIECES = (
    b"null",
    b"-1",
    b"1e999",
    b"9" * 400,
    b'"',
    b"{",
    b"]",
    b",",
    b"\xff",
    b"\x00",
    b"\n",
    b"NaN",
    b"[" * 300,
    b'"\\ud800"',
    b"=1+1",
    b"\x1b[31m",
    b"../" * 20,
)


def mutated(sample: bytes, chance: random.Random) -> bytes:
    """Cut, flip, repeat, or replace some bytes."""
    data = bytearray(sample)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((0, 1, 4, 30)))
        match chance.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at:end] = chance.choice(PIECES)
            case 2:
                data[at:end] = chance.randbytes(end - at)
            case 3:
                data[at:at] = data[at:end] * chance.choice((2, 50))
            case 4 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
    return bytes(data)


@times(200, 100_000)
def test_no_reader_breaks_on_any_file_content(tmp_path, count):
    chance = random.Random(20261122)
    for reader in READERS.values():  # loads what each needs
        (tmp_path / f"x{reader.ending}").write_bytes(reader.sample())
        outcome(reader, tmp_path / f"x{reader.ending}")
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest_s, refused = 0.0, 0
    for n in range(count):
        name, reader = list(READERS.items())[n % len(READERS)]
        path = tmp_path / f"x{reader.ending}"
        content = mutated(reader.sample(), chance)
        path.write_bytes(content)
        began_s = time.process_time()
        said = outcome(reader, path)  # any error other than gpubench's own ends the test, with the input
        slowest_s = max(slowest_s, time.process_time() - began_s)
        refused += said is not None
        assert "\n" not in (said or ""), (name, content)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert slowest_s < 5  # processor time
    assert grown_kb < 300_000
    print(f"\n{count} inputs: {refused} refused, slowest {slowest_s:.2f} s, {grown_kb / 1000:.0f} MB more")
