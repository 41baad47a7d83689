"""Children end with the process that started them: real ones, ended by each signal, with what they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from patience import wait_until

from gpubench.bounded import run_bounded

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.name != "posix", reason="process groups are of POSIX"),
    pytest.mark.usefixtures("heeded_signals"),
]

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
MODEL = """
import ctypes, os, pathlib, signal, subprocess, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
forked = os.fork()
if forked == 0:
    time.sleep(600)
mark = pathlib.Path({mark!r})
mark.with_suffix(".part").write_text(f"{{os.getpid()}} {{child.pid}} {{forked}}")
mark.with_suffix(".part").rename(mark)
{hang}
"""
HANGS = {
    "asleep": "time.sleep(600)",
    "busy": "while True: pass",
    "in a call that keeps every other thread from running": "ctypes.PyDLL(None).sleep(600)",
}


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def end_and_look(command: list[str], folder: Path, mark: Path, number: signal.Signals) -> None:
    """Start a command, end it once its child has come so far, and see that no process and no file is left.

    The file ``mark`` says that it has, and names the processes that would not be found from the parent.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    pids: set[int] = set()
    try:
        wait_until(mark.exists)
        pids = {child.pid for child in psutil.Process(parent.pid).children(recursive=True)}
        assert pids >= set(map(int, mark.read_text().split()))
        assert len(pids) >= 2  # the child, and its guard
        parent.send_signal(number)
        parent.wait(20)
        wait_until(lambda: all(map(is_gone, pids)))
        assert [p for p in scratch.iterdir() if not p.name.startswith("torchinductor")] == []  # torch's cache
    finally:
        parent.kill()
        parent.wait()
        for pid in pids:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


TRACE = [sys.executable, "-m", "gpubench", "predict", "show", "./mine.py"]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_model_that_is_traced_ends_with_the_command_and_leaves_nothing(tmp_path, number):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(MODEL.format(mark=str(mark), hang=HANGS["asleep"]))
    end_and_look(TRACE, tmp_path, mark, number)


@pytest.mark.parametrize("hang", HANGS)
def test_whatever_a_traced_model_is_at_it_ends_with_a_killed_command(tmp_path, hang):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(MODEL.format(mark=str(mark), hang=HANGS[hang]))
    end_and_look(TRACE, tmp_path, mark, signal.SIGKILL)


MEASURED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, x):
        if len(x) > 4:  # the trace takes 2 and 4 samples
            hang()
        return self.layer(x)

def build(batch_size):
    return Net(), torch.randn(batch_size, 8), torch.zeros(batch_size, dtype=torch.long), nn.functional.cross_entropy

def hang():
"""


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],
    ids=lambda number: number.name,
)
def test_a_model_that_is_measured_ends_with_the_command_and_with_what_it_started(tmp_path, number):
    """It hangs in a call that keeps the thread that listens to the parent from running."""
    mark = tmp_path / "mark"
    body = MODEL.format(mark=str(mark), hang=next(reversed(HANGS.values())))
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    (tmp_path / "mine.py").write_text(MEASURED + indented)
    options = ["--device", "cpu", "--no-micro", "--precision", "fp32", "--results", "results"]
    command = [sys.executable, "-m", "gpubench", "run", "--workload", "./mine.py", *options]
    end_and_look(command, tmp_path, mark, number)


JOB = """
import os, pathlib, sys, time
from gpubench.measure import messages
from gpubench.measure.budget import QUICK
from gpubench.measure.child import Child, environment_of
from gpubench.models import DeviceProfile
cpu = DeviceProfile(backend="cpu", name="Some CPU")
child = Child(environment_of(cpu, os.environ, strict=False, peers=(cpu,)))
child.send(messages.Setup(device=cpu, budget=QUICK, seed=0, peers=(cpu,)))
while not isinstance(child.receive(time.monotonic() + 60), messages.Ready):
    pass
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


def test_every_process_of_a_job_of_several_ends_with_the_parent(tmp_path):
    mark = tmp_path / "mark"
    end_and_look([sys.executable, "-c", JOB, str(mark)], tmp_path, mark, signal.SIGKILL)


PIPELINE = """
import pathlib, sys, threading, time
import psutil
from gpubench.measure.pipeline import PipelineOrder, measure_pipeline
from gpubench.models import DeviceProfile

def look():
    while True:
        for child in psutil.Process().children():
            if child.children():
                pathlib.Path(sys.argv[1]).write_text(str(child.children()[0].pid))
                return
        time.sleep(0.02)

threading.Thread(target=look, daemon=True).start()
measure_pipeline(DeviceProfile(backend="cpu"), order=PipelineOrder(device="cpu", workers=1, round_s=1.0, rounds=3))
"""


@pytest.mark.slow
def test_the_workers_of_the_input_pipeline_end_with_the_parent(tmp_path):
    mark = tmp_path / "mark"
    end_and_look([sys.executable, "-c", PIPELINE, str(mark)], tmp_path, mark, signal.SIGKILL)


# --- the parts -------------------------------------------------------------------------------------------


def test_a_child_that_has_ended_leaves_no_guard_and_no_group(tmp_path):
    """A child that ends at once leaves a grandchild in its group."""
    mark = tmp_path / "mark"
    code = (
        "import pathlib, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(child.pid))\nprint('done')"
    )
    ended = run_bounded([sys.executable, "-c", code], time_limit_s=60)
    assert (ended.exit_code, ended.tail, ended.flooded) == (0, "done\n", False)
    assert psutil.Process().children() == []
    wait_until(lambda: is_gone(int(mark.read_text())))


GUARDLESS = """
import os, pathlib, signal, sys, time
import psutil
from gpubench.bounded import run_bounded
code = (
    "import os, sys, pathlib, time; from gpubench.children import die_with_parent; die_with_parent(int(sys.argv[1]));"
    "pathlib.Path(sys.argv[2]).touch(); time.sleep(600)"
)
run_bounded([sys.executable, "-c", code, str(os.getpid()), sys.argv[1]], time_limit_s=600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_child_whose_guard_was_killed_too_ends_with_its_parent(tmp_path):
    mark = tmp_path / "mark"
    with subprocess.Popen([sys.executable, "-c", GUARDLESS, str(mark)]) as parent:
        wait_until(mark.exists)
        children = psutil.Process(parent.pid).children()
        (guard,) = (child for child in children if "-I" in child.cmdline())
        (child,) = (child for child in children if child != guard)
        guard.kill()
        parent.kill()
    wait_until(lambda: is_gone(child.pid))


def test_a_child_whose_parent_was_gone_before_it_was_bound_ends_at_once():
    code = "from gpubench.children import die_with_parent; die_with_parent(1); print('goes on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_child_that_a_thread_started_goes_on_while_that_thread_waits_for_it():
    """The kernel's signal comes with the end of the thread that started the child; the others end here."""
    code = "import os, sys, time; from gpubench.children import die_with_parent; die_with_parent(int(sys.argv[1])); time.sleep(1)"
    found = []

    def run() -> None:
        found.append(run_bounded([sys.executable, "-c", code, str(os.getpid())], time_limit_s=60))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found[0].exit_code == 0, found[0].tail
