"""Ctrl-C twice: a hanging child is killed at once with its group, and the run file stays intact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_child
import pytest
from own_net import own_net
from patience import Stopwatch, is_gone, wait_until

from gpubench.__main__ import main
from gpubench.record import store


def children_of(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


@pytest.mark.usefixtures("heeded_signals")
def test_ctrl_c_twice_kills_a_child_that_hangs_and_keeps_the_file(tmp_path):
    model, root = tmp_path / "hangs.py", tmp_path / "results"
    reached = tmp_path / "reached"
    model.write_text(own_net(f"open({str(reached)!r}, 'w').close()\nimport time\ntime.sleep(600)"))
    process = forked_child.popen(
        [
            *(sys.executable, "-m", "gpubench", "run", str(model), "--micro", "none", "--results", str(root)),
            *("--device", "cpu", "--precision", "fp32", "--task", "infer", "--batch-size", "8"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(reached.exists, process)
    children = children_of(process.pid)
    assert children
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None  # the first signal waits for the current round
    os.killpg(process.pid, signal.SIGINT)
    watch = Stopwatch()
    _, err = process.communicate()
    assert watch.free_s() < 15
    assert process.returncode == 130, err
    assert "Traceback" not in err
    wait_until(lambda: all(is_gone(pid) for pid in children) or watch.free_s() > 5)
    assert all(is_gone(pid) for pid in children)
    (run,) = store.read_runs(root).runs
    assert run.planned
    assert not any(m.status == "ok" for m in run.measurements)


class _Interrupted:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt


def _make_a_class(**_options):
    """Python 3.11 turns the interruption into a RuntimeError."""
    type("Session", (), {"fatal": _Interrupted()})


def _ended_with() -> object:
    """Run the command line here and return its exit code; its handlers are removed."""
    before, hook = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = hook
    return ended.value.code


@pytest.mark.parametrize("where", ["gpubench.cli.app.main", "gpubench.cli.app.app"])
def test_a_signal_while_a_class_is_created_is_an_interruption(where, monkeypatch, capsys):
    monkeypatch.setattr(where, _make_a_class)
    assert _ended_with() == 130
    assert capsys.readouterr().err == "gpubench: interrupted\n"


def test_an_interruption_in_the_middle_of_a_verb_is_reported(monkeypatch, capsys):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpubench.offers.snapshot.load_offers", interrupted)
    monkeypatch.setattr(sys, "argv", ["gpubench", "offers", "list"])
    assert _ended_with() == 130
    assert capsys.readouterr().err == "gpubench: interrupted\n"


class _Destroyed:
    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


def test_an_interrupt_that_python_ignores_is_raised_again(monkeypatch, capsys):
    """Python ignores every exception in a destructor."""

    def destroys():
        _Destroyed(KeyboardInterrupt())
        time.sleep(10)
        raise AssertionError("the interrupt was lost")

    monkeypatch.setattr("gpubench.cli.app.main", destroys)
    assert _ended_with() == 130
    assert capsys.readouterr().err == "gpubench: interrupted\n"


def test_another_exception_that_python_ignores_is_reported_as_usual(monkeypatch, capsys):
    monkeypatch.setattr(
        "gpubench.cli.app.main", lambda: [_Destroyed(ValueError("odd")).error and None, sys.exit(0)]
    )
    assert _ended_with() == 0
    assert "ValueError: odd" in capsys.readouterr().err
