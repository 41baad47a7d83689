"""Two real processes on one run: the second is refused before it measures, and no finished work is lost.

The measuring child is scripted: it waits at a case for as long as the test needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import forked_child
import pytest
from patience import wait_until

from gpubench.models import Run, Status
from gpubench.record import store

PROGRAM = """
import sys
from gpubench.session import session

session.MODULE = "scripted_child"
if sys.argv[1] == "late":  # it waits after reading the run, so its content is outdated
    sys.argv.pop(1)
    execute = session.execute

    def late(*arguments):
        print("prepared", flush=True)
        open(0).readline()
        return execute(*arguments)

    session.execute = late
from gpubench.cli.app import main
main()
"""
CASES = ("cnn", "lstm")  # in fp32, which every processor has
NEW = ("run", *CASES, "--quick", "--micro", "none", "--precision", "fp32")
AGAIN = ("run", "--resume", "latest")


class Writers:
    """Processes on one results folder, and the gates at which their cases wait."""

    def __init__(self, folder: Path) -> None:
        self.root, self.gates = folder / "results", folder / "gates"
        self.gates.mkdir()
        self.started: list[subprocess.Popen[str]] = []
        here = str(Path(__file__).parent.parent / "measure")
        script = json.dumps({"folder": str(self.gates), "torch": metadata.version("torch")})
        self.environment = os.environ | {"PYTHONPATH": here, "GPUBENCH_SCRIPT": script}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = forked_child.popen(
            [sys.executable, "-c", PROGRAM, *arguments, "--json", "--device", "cpu", "--results", str(self.root)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=self.environment,
        )  # fmt: skip
        self.started.append(process)
        return process

    def close(self, *names: str) -> None:
        for name in names:
            (self.gates / f"wait-{name}-fp32").touch()

    def open(self, name: str) -> None:
        (self.gates / f"wait-{name}-fp32").unlink()

    def begun(self, name: str) -> list[str]:
        """Return the ids of the processes that have started a case."""
        path = self.gates / f"began-{name}-fp32"
        return path.read_text().split() if path.exists() else []

    def first_at_a_gate(self, process: subprocess.Popen[str]) -> str:
        """Wait until a process has finished one case and waits at the gate of the other; return that case."""
        wait_until(lambda: any(self.begun(name) for name in CASES), process)
        (first,) = (name for name in CASES if self.begun(name))
        (second,) = (name for name in CASES if name != first)
        self.open(first)
        wait_until(lambda: self.begun(second), process)
        return second

    def killed_in_its_second_case(self) -> str:
        """Start a run, and kill it while the second of its cases waits at its gate; return that case."""
        self.close(*CASES)
        process = self.start(*NEW)
        last = self.first_at_a_gate(process)
        process.kill()
        process.wait()
        return last

    def run(self) -> Run:
        (run,) = store.read_runs(self.root).runs
        return run

    def finished(self) -> set[str]:
        return {m.case.workload for m in self.run().measurements if m.status is Status.OK}


def end(process: subprocess.Popen[str], words: str = "") -> tuple[int, str]:
    _, err = process.communicate(words)
    return process.returncode, err


@pytest.fixture
def writers(tmp_path):
    made = Writers(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def test_a_second_writer_ends_with_exit_5_and_the_first_keeps_every_case(writers):
    writers.close(*CASES)
    first = writers.start(*NEW)
    last = writers.first_at_a_gate(first)
    before = {name: writers.begun(name) for name in CASES}
    second = writers.start(*AGAIN)
    code, err = end(second)
    assert code == 5, err
    (line,) = err.strip().splitlines()
    assert "is being written by another process" in line
    assert str(store.lock_path(writers.root / "runs", writers.run().run_id)) in line
    assert {name: writers.begun(name) for name in CASES} == before  # it measured nothing
    writers.open(last)
    code, err = end(first)
    assert code == 0, err
    assert writers.finished() == set(CASES)
    assert writers.run().finished_at
    assert not list(writers.root.rglob("*.lock"))


def test_a_killed_writer_blocks_no_process_and_its_finished_case_stays(writers):
    last = writers.killed_in_its_second_case()
    (kept,) = writers.run().measurements
    assert list(writers.root.rglob("*.lock"))
    writers.open(last)
    code, err = end(writers.start(*AGAIN))
    assert code == 0, err
    assert writers.finished() == set(CASES)
    assert next(m for m in writers.run().measurements if m.case == kept.case).launches == kept.launches
    assert {name: len(writers.begun(name)) for name in CASES} == {kept.case.workload: 1, last: 2}
    assert not list(writers.root.rglob("*.lock"))


def test_a_run_read_before_another_process_finished_it_is_read_again(writers):
    """Otherwise a resume that read the file earlier would write back its old content: one case of two."""
    writers.open(writers.killed_in_its_second_case())
    early = writers.start("late", *AGAIN)
    assert early.stdout.readline() == "prepared\n"
    code, err = end(writers.start(*AGAIN))
    assert code == 0, err
    path = store.find_run(writers.root, "latest")
    before = path.read_bytes()
    code, err = end(early, "go\n")
    assert code == 0, err
    assert "nothing left to" in err
    assert path.read_bytes() == before
    assert writers.finished() == set(CASES)


def test_resume_keeps_rows_added_by_another_process_and_measures_the_rest(writers):
    writers.close(*CASES)
    killed = writers.start(*NEW)
    wait_until(lambda: any(writers.begun(name) for name in CASES), killed)
    killed.kill()  # before its first case was finished
    killed.wait()
    assert writers.finished() == set()
    early = writers.start("late", *AGAIN)
    assert early.stdout.readline() == "prepared\n"
    for name in CASES:
        (writers.gates / f"began-{name}-fp32").unlink(missing_ok=True)
    between = writers.start(*AGAIN)
    last = writers.first_at_a_gate(between)
    between.kill()
    between.wait()
    (kept,) = writers.run().measurements
    writers.open(last)
    code, err = end(early, "go\n")
    assert code == 0, err
    assert writers.finished() == set(CASES)
    assert next(m for m in writers.run().measurements if m.case == kept.case).launches == kept.launches
    assert len(writers.begun(kept.case.workload)) == 1  # only the process in between


def test_if_many_resume_at_once_one_succeeds_and_the_others_are_refused(writers):
    last = writers.killed_in_its_second_case()
    several = [writers.start("late", *AGAIN) for _ in range(4)]
    for process in several:
        assert process.stdout.readline() == "prepared\n"
    for process in several:
        process.stdin.write("go\n")
        process.stdin.flush()
    wait_until(lambda: sum(process.poll() is not None for process in several) == 3)
    writers.open(last)
    ends = {process: end(process) for process in several}
    assert sorted(code for code, _ in ends.values()) == [0, 5, 5, 5]
    assert all("by another process" in err for code, err in ends.values() if code == 5)
    assert writers.finished() == set(CASES)
    assert len(writers.begun(last)) == 2  # the killed process and one more


def test_a_killed_writer_has_stored_every_reported_launch(writers):
    """The file is replaced after each launch, and the launch is reported after that."""
    process = writers.start("run", "cnn", "--publish", "--micro", "none", "--precision", "fp32")
    lines = [process.stderr.readline()]
    while told_in(lines) < 2:  # of five
        assert lines[-1], "it ended before its second launch"
        lines.append(process.stderr.readline())
    process.kill()
    lines += process.stderr.readlines()
    process.wait()
    (row,) = writers.run().measurements
    assert len(row.launches) >= told_in(lines)


def told_in(lines: list[str]) -> int:
    return sum("images/s" in line for line in lines)


def test_a_run_from_elsewhere_continues_in_a_folder_that_has_no_runs_yet(writers, tmp_path):
    """The run's lock is checked before the folder is created."""
    writers.open(writers.killed_in_its_second_case())
    path = store.find_run(writers.root, "latest")
    copy = path.rename(tmp_path / path.name)
    writers.root = tmp_path / "other"
    code, err = end(writers.start("run", "--resume", str(copy)))
    assert code == 0, err
    assert writers.finished() == set(CASES)


def test_a_file_from_elsewhere_does_not_take_the_place_of_the_stored_run(writers, tmp_path):
    """Continuing from an older copy would store one case instead of two."""
    writers.close(*CASES)
    first = writers.start(*NEW)
    last = writers.first_at_a_gate(first)
    copy = tmp_path / "copy.json"
    copy.write_bytes(store.find_run(writers.root, "latest").read_bytes())
    writers.open(last)
    assert end(first)[0] == 0
    code, err = end(writers.start("run", "--resume", str(copy)))
    assert code == 5, err
    assert "different content" in err
    assert writers.finished() == set(CASES)
