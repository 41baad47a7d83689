"""Real children and their descendants end with the process that started them, whatever signal ends it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import forked_child
import msgspec
import psutil
import pytest
from own_net import own_net
from patience import Stopwatch, is_gone, wait_until

from gpubench.children import (
    CLOSE_AFTER_S,
    TAIL_BYTES,
    TERMINATE_AFTER_S,
    ChildProcess,
    run_child,
    text_of,
)

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="process groups need POSIX"),
    pytest.mark.usefixtures("heeded_signals"),
]


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr("gpubench.children.POLL_EVERY_S", 0.05)


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


def until_gone(*pids: int) -> bool:
    """Wait for processes to end; return whether they did."""
    wait_until(lambda: all(map(is_gone, pids)))
    return all(map(is_gone, pids))


OF_LIBRARIES = ("torchinductor", "pymp-")
"""Folders that a killed process leaves behind: torch's cache, and the sockets of Python's multiprocessing."""


def left_after(
    command: list[str], folder: Path, mark: Path, number: signal.Signals, popen=subprocess.Popen
) -> list[object]:
    """Start a command, end it once its child has come this far, and return the processes and files that are
    left.

    The file ``mark`` signals that point, and names processes that cannot be found from the parent.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    parent = popen(
        command,
        cwd=folder,
        env=os.environ | {"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    pids: set[int] = set()
    try:
        wait_until(lambda: mark.exists() or parent.poll() is not None)
        assert mark.exists(), f"exited with status {parent.returncode} first"
        pids = {child.pid for child in psutil.Process(parent.pid).children(recursive=True)}
        assert pids >= set(map(int, mark.read_text().split()))
        assert len(pids) >= 2  # the child and its guard, or two workers
        parent.send_signal(number)
        parent.wait(20)
        until_gone(*pids)
        files = [path for path in scratch.iterdir() if not path.name.startswith(OF_LIBRARIES)]
        return [*(pid for pid in pids if not is_gone(pid)), *files]
    finally:
        parent.kill()
        parent.wait()
        for pid in pids:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


TRACE = [sys.executable, "-m", "gpubench", "predict", "show", "./mine.py"]
"""The tests fork this command and the child that traces; only the test of SIGTERM starts both as a user does."""


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_traced_model_ends_with_the_command_and_leaves_nothing(tmp_path, number):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(MODEL.format(mark=str(mark), hang=HANGS["asleep"]))
    assert left_after(TRACE, tmp_path, mark, number, forked_child.popen) == []


@pytest.mark.parametrize("hang", HANGS)
def test_a_traced_model_ends_with_a_killed_command_at_any_moment(tmp_path, hang):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(MODEL.format(mark=str(mark), hang=HANGS[hang]))
    assert left_after(TRACE, tmp_path, mark, signal.SIGKILL, forked_child.popen) == []


MEASURED = own_net("hang()") + "\ndef hang():\n"


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)],
    ids=lambda number: number.name,
)
def test_a_measured_model_and_its_children_end_with_the_command(tmp_path, number):
    """The model hangs in a call that blocks the thread that listens to the parent."""
    mark = tmp_path / "mark"
    body = MODEL.format(mark=str(mark), hang=next(reversed(HANGS.values())))
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    (tmp_path / "mine.py").write_text(MEASURED + indented)
    options = ["--device", "cpu", "--micro", "none", "--precision", "fp32", "--results", "results"]
    command = [sys.executable, "-m", "gpubench", "run", "--workload", "./mine.py", *options]
    assert left_after(command, tmp_path, mark, number, forked_child.popen) == []


JOB = """
import os, pathlib, sys, time
from gpubench.measure import messages
from gpubench.measure.budget import QUICK
from gpubench.measure.launcher import Child
from gpubench.measure.environment import child_variables
from gpubench.measure.messages import MODULE
from gpubench.models import DeviceProfile
cpu = DeviceProfile(backend="cpu", name="Some CPU")
variables = child_variables(cpu, os.environ, peers=(cpu,))
child = Child(variables, MODULE, arguments=("2",))
child.send(messages.Setup(device=cpu, budget=QUICK, seed=0, peers=(cpu,)))
while not isinstance(child.receive(time.monotonic() + 60), messages.Ready):
    pass
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


def test_every_process_of_a_job_of_several_ends_with_the_parent(tmp_path):
    mark = tmp_path / "mark"
    assert left_after([sys.executable, "-c", JOB, str(mark)], tmp_path, mark, signal.SIGKILL) == []


PIPELINE = """
import pathlib, sys, threading, time
import psutil
from gpubench.measure.feeding import measure_preparation

def look():
    mark = pathlib.Path(sys.argv[1])
    while len(workers := psutil.Process().children()) < 2:
        time.sleep(0.02)
    mark.with_suffix(".part").write_text(" ".join(str(worker.pid) for worker in workers))
    mark.with_suffix(".part").rename(mark)

threading.Thread(target=look, daemon=True).start()
measure_preparation(2, timed_s=600)
"""


@pytest.mark.slow
def test_the_workers_of_the_input_pipeline_end_with_the_parent(tmp_path):
    mark = tmp_path / "mark"
    assert left_after([sys.executable, "-c", PIPELINE, str(mark)], tmp_path, mark, signal.SIGKILL) == []


# --- the parts ----------------------------------------------------------------------------------------------


def test_a_finished_child_leaves_no_guard_and_no_group(tmp_path):
    """A child that ends at once leaves a grandchild in its group."""
    mark = tmp_path / "mark"
    code = (
        "import pathlib, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(child.pid))\nprint('done')"
    )
    asked = run_child(("-c", code), (), str, time_limit_s=60)
    assert (asked.answer, asked.output) == (None, "done\n")
    assert asked.how.startswith("exited with status 0;")
    assert asked.how.endswith(": done")
    assert psutil.Process().children() == []
    assert until_gone(int(mark.read_text()))


GUARDLESS = """
import os, pathlib, signal, sys, time
import psutil
from gpubench.children import run_child
code = (
    "import os, sys, pathlib, time; from gpubench.children import die_with_parent; die_with_parent(int(sys.argv[3]));"
    "pathlib.Path(sys.argv[4]).touch(); time.sleep(600)"
)
run_child(("-c", code), [sys.argv[1]], str, time_limit_s=600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_child_ends_with_its_parent_even_if_its_guard_was_killed(tmp_path):
    mark = tmp_path / "mark"
    with subprocess.Popen([sys.executable, "-c", GUARDLESS, str(mark)]) as parent:
        wait_until(mark.exists)
        children = psutil.Process(parent.pid).children()
        (guard,) = (child for child in children if "-I" in child.cmdline())
        (child,) = (child for child in children if child != guard)
        guard.kill()
        parent.kill()
    assert until_gone(child.pid)


def test_a_child_of_an_exited_parent_ends_immediately():
    code = "from gpubench.children import die_with_parent; die_with_parent(1); print('goes on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_child_that_a_thread_started_continues_while_that_thread_waits_for_it():
    """The kernel signals a child when the thread that started it ends; other threads may end before that."""
    code = "import os, sys, time; from gpubench.children import die_with_parent; die_with_parent(int(sys.argv[3])); time.sleep(0.3)"
    found = []

    def run() -> None:
        found.append(run_child(("-c", code), (), str, time_limit_s=60))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found[0].how == "exited with status 0", found[0].output


# --- messages through the pipe ------------------------------------------------------------------------------

SAYS = "import os, sys, time\nout = int(sys.argv[2])\n"
HOSTILE = {
    "bytes that are not text": (
        r"""os.write(out, b'"\xff\xfe"\n'); time.sleep(600)""",
        "sent something that is not a report",
    ),
    "another document": (
        r"""os.write(out, b'{"run": 1}\n'); time.sleep(600)""",
        "sent something that is not a report",
    ),
    "arrays in arrays": (
        r"""os.write(out, b'[' * 60_000 + b'\n'); time.sleep(600)""",
        "sent something that is not a report",
    ),
    "an escape in its words": (
        r"""print('\x1b[2J gone'); os._exit(3)""",
        "exited with status 3; it last wrote: [2J gone",
    ),
    "a line without end": ("while True: os.write(out, b'x' * 65536)", "sent a message of more than 16.0 MiB"),
    "a pipe that is closed": ("os.close(out); time.sleep(0.2); os._exit(4)", "exited with status 4"),
    "a pipe that its own child keeps open": (
        "os.fork() and os._exit(5)\ntime.sleep(600)",
        "exited with status 5",
    ),
    "a signal without a name": ("os.kill(os.getpid(), 37)", "was killed by signal 37"),
    "two answers": (
        r"""os.write(out, b'"forged"\n"own"\n')""",
        "sent more than one answer",
    ),
    "an answer and a half": (r"""os.write(out, b'"forged"\n"ow')""", "sent more than one answer"),
    "a flood that it prints": ("while True: print('x' * 10**6)", "printed more than 8.00 MiB"),
    "no answer in time": ("time.sleep(600)", "gave no answer within 500 ms and was killed"),
}


@pytest.mark.parametrize(("code", "how"), HOSTILE.values(), ids=HOSTILE)
def test_an_invalid_answer_of_a_child_is_named_and_the_child_is_ended(code, how):
    watch = Stopwatch()
    limit_s = 0.5 if "gave no answer" in how else 60.0
    asked = run_child(("-c", SAYS + code), (), str, time_limit_s=limit_s)
    assert asked.answer is None
    assert how in asked.how
    assert watch.free_s() < 30
    assert len(asked.output) <= TAIL_BYTES
    assert psutil.Process().children() == []


def test_cpu_limit_counts_only_the_childs_own_process_tree():
    """One child sleeps for longer than the limit, one works forever, and one lets another process work forever."""
    asleep = "time.sleep(0.8)\nos.write(out, b'\"done\"\\n')\n"
    of_one = {"time_limit_s": 300, "cpu_limit_s": 0.5}
    assert run_child(("-c", SAYS + asleep), (), str, **of_one).answer == "done"
    busy = "while True: pass"
    for code in (busy, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])\n"):
        asked = run_child(("-c", SAYS + code), (), str, **of_one)
        assert (asked.answer, "500 ms of CPU time" in asked.how) == (None, True), asked.how


def test_an_answer_of_a_megabyte_is_accepted_and_a_child_that_hangs_after_it_is_ended(monkeypatch):
    monkeypatch.setattr("gpubench.children.CLOSE_AFTER_S", 0.3)
    code = (
        SAYS + """for part in (b'"', b'x' * 10**6, b'"', bytes([10])): os.write(out, part)\ntime.sleep(600)"""
    )
    watch = Stopwatch()
    asked = run_child(("-c", code), (), str, time_limit_s=300)
    assert asked.answer == "x" * 10**6
    assert watch.free_s() < 30
    assert psutil.Process().children() == []


def test_no_process_that_a_child_starts_inherits_its_pipes():
    code = (
        "import subprocess, sys\nfrom gpubench.children import ParentChannel\nparent = ParentChannel()\n"
        "look = 'import os, sys; print([f for f in map(int, sys.argv[1:]) if os.path.exists(f\"/proc/self/fd/{f}\")])'\n"
        "command = [sys.executable, '-c', look, *sys.argv[1:3]]\n"
        "print(subprocess.run(command, close_fds=False, capture_output=True, text=True).stdout)"
    )
    assert run_child(("-c", code), (), str, time_limit_s=60).output.strip() == "[]"


def test_a_child_that_cannot_be_started_leaves_no_descriptor_open(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    before = psutil.Process().num_fds()
    asked = run_child(("-c", "pass"), (), str, time_limit_s=60)
    assert asked.answer is None
    assert asked.how.endswith(f": {os.strerror(errno.ENOENT)}")
    assert psutil.Process().num_fds() == before


@pytest.mark.skipif(
    sys.version_info < (3, 11, 4),
    reason="before Python 3.11.4 Popen leaves its first pipe open where no descriptor is left for its second",
)
def test_without_descriptors_a_child_starts_completely_or_not_at_all():
    """With any small number of free descriptors: pipes, process, guard and the search for daemons each need some."""
    process, (limit, most) = psutil.Process(), resource.getrlimit(resource.RLIMIT_NOFILE)
    before, hows = process.num_fds(), []
    holes = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]  # the limit applies to the highest number
    top = max(holes) + 1
    try:
        for left in range(16):
            for descriptor in holes[len(holes) - left :]:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (top, most))
            try:
                hows.append(run_child(("-c", ""), (), str, time_limit_s=60).how)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
            holes = holes[: len(holes) - left] + [os.open("/dev/null", os.O_RDONLY) for _ in range(left)]
            assert (process.num_fds(), process.children()) == (before + 40, [])
    finally:
        for descriptor in holes:
            os.close(descriptor)
    assert {how.rpartition(": ")[2] for how in hows} == {os.strerror(errno.EMFILE), "exited with status 0"}
    assert hows == sorted(hows)  # from some number of free descriptors on, the child starts


STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("by", ["end_by_s", "at_once"])
def test_a_child_past_its_time_is_killed_without_a_request_to_stop(by):
    child = ChildProcess(("-c", STUBBORN), msgspec.json.Decoder(str))
    wait_until(lambda: "ready" in child.output())
    watch = Stopwatch()
    if by == "end_by_s":
        child.end_by_s = time.monotonic()
    assert child.end(at_once=by == "at_once") is None
    assert watch.free_s() < CLOSE_AFTER_S
    assert is_gone(child.pid)


def test_child_past_its_deadline_gets_no_extra_time_while_it_is_closed():
    child = ChildProcess(("-c", STUBBORN), msgspec.json.Decoder(str))
    wait_until(lambda: "ready" in child.output())
    watch = Stopwatch()
    child.end_by_s = time.monotonic() + 0.3
    child.end()
    assert is_gone(child.pid)
    assert watch.free_s() < TERMINATE_AFTER_S  # which SIGTERM would allow it without the deadline


def test_an_interrupt_while_a_child_starts_is_no_error_of_the_thread_that_reads_its_output(monkeypatch):
    """On a busy machine the interrupt can come before the thread begins to read."""
    readers, errors, is_undone = [], [], threading.Event()
    start, read = threading.Thread.start, ChildProcess._keep_output

    def interrupted(thread):
        start(thread)
        readers.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading, "excepthook", lambda failed: errors.append(failed.exc_value))
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(ChildProcess, "_keep_output", lambda *given: is_undone.wait(10) and read(*given))
    with pytest.raises(KeyboardInterrupt):
        ChildProcess(("-c", "import time; time.sleep(600)"), msgspec.json.Decoder(str))
    is_undone.set()
    (reader,) = readers
    reader.join(10)
    assert not reader.is_alive()
    assert errors == []


def test_a_command_that_is_terminated_while_it_traces_a_model_ends_as_with_ctrl_c(tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "mine.py").write_text(MODEL.format(mark=str(mark), hang=HANGS["asleep"]))
    parent = subprocess.Popen(TRACE, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(mark.exists, parent)
    watch = Stopwatch()
    parent.terminate()
    out, err = parent.communicate(timeout=60)
    assert watch.free_s() < 3
    assert (parent.returncode, out) == (130, "")
    assert "Traceback" not in err
    wait_until(lambda: all(is_gone(int(pid)) for pid in mark.read_text().split()))


# --- processes that a model leaves behind -------------------------------------------------------------------

DAEMON = """
import os, pathlib, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        mark = pathlib.Path({mark!r})
        mark.with_suffix(".part").write_text(str(os.getpid()))
        mark.with_suffix(".part").rename(mark)
        time.sleep(600)
    os._exit(0)
while not pathlib.Path({mark!r}).exists():
    time.sleep(0.01)
"""


def test_a_daemon_that_left_the_group_of_its_child_is_ended_and_named(tmp_path):
    mark = tmp_path / "mark"
    asked = run_child(("-c", DAEMON.format(mark=str(mark))), [], str, time_limit_s=60)
    assert [words.split("process ")[1] for words in asked.swept] == [f"{mark.read_text()})"]
    assert is_gone(int(mark.read_text()))


def test_a_daemon_ends_with_a_killed_parent_too(tmp_path):
    mark = tmp_path / "mark"
    code = (
        "from gpubench.children import run_child\n"
        f"run_child(('-c', {DAEMON.format(mark=str(mark)) + 'time.sleep(600)'!r}), [], str, time_limit_s=600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_until(mark.exists, parent)
    parent.kill()
    parent.wait()
    assert until_gone(int(mark.read_text()))


CHANNEL = "from gpubench.children import ParentChannel; import os, sys, time; parent = ParentChannel(); "


def test_a_model_that_closes_every_descriptor_ends_its_process_and_writes_into_no_other_file(tmp_path):
    """By then the pipe's number belongs to a file that the model opened."""
    mine = tmp_path / "mine.txt"
    code = (
        f"{CHANNEL}os.closerange(3, 100); files = [open({str(mine)!r}, 'w') for _ in range(20)]\n"
        "import msgspec\nparent.send(msgspec.defstruct('A', [('x', int)])(1)); time.sleep(600)"
    )
    asked = run_child(("-c", code), [], str, time_limit_s=60)
    assert "did not open" in asked.how
    assert mine.read_text() == ""


def test_the_folder_is_restored_after_a_model_changes_it(tmp_path):
    code = f"{CHANNEL}os.chdir('/'); parent.return_home(); print(os.getcwd())"
    ask = f"print(run_child(('-c', {code!r}), [], str, time_limit_s=60).output)"
    program = f"from gpubench.children import run_child; {ask}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path)


def test_a_process_that_cannot_be_killed_is_named_and_not_awaited(monkeypatch):
    """Not even SIGKILL ends a process in a driver's uninterruptible sleep."""
    monkeypatch.setattr("gpubench.children.TERMINATE_AFTER_S", 0.01)
    child = ChildProcess(("-c", "import time; time.sleep(600)"), msgspec.json.Decoder(str))

    def never(timeout):
        raise subprocess.TimeoutExpired("python", timeout)

    with monkeypatch.context() as patch:
        patch.setattr(child._process, "wait", never)
        assert f"process {child.pid} cannot be" in child.end()
    child._process.wait()
    child._guard.kill()
    child._guard.communicate()
    child._drain.join()
    os.close(child._read_fd)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo ' arm64 '", "arm64"),
        ("printf 'M2\\377'", "M2\N{REPLACEMENT CHARACTER}"),
        ("true", None),
        ("echo half; exit 1", None),
        ("echo late; exec sleep 600", None),
    ],
)
def test_a_short_command_gives_its_text_or_nothing(command: str, text: str | None) -> None:
    assert text_of(["sh", "-c", command], time_limit_s=1.0) == text


def test_missing_command_returns_none() -> None:
    assert text_of(["gpubench-has-no-such-command"]) is None
