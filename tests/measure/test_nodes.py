"""One job on two machines: network namespaces joined by a link, each with a `gpubench run` of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from patience import wait_until

from gpubench.measure.meeting import SILENCE_S

pytestmark = pytest.mark.slow

FIRST, SECOND, PORT = "10.77.31.1", "10.77.31.2", 29517
MODEL = """
import os, pathlib, time
import torch
from torch import nn

JOINED = int(os.environ.get("WORLD_SIZE", "1")) > 1

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 3.0))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if JOINED and self.calls == 6:
            pathlib.Path({mark!r}).touch()
        if JOINED and {lasts!r}:
            time.sleep(0.05)
        return self.weight.expand(len(x), 1)

def build(batch_size):
    return Net(), torch.ones(batch_size, 1), torch.zeros(batch_size, 1), nn.functional.mse_loss, SGD

def SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Machines:
    """Two namespaces, ``names``, with a cable between them; ``link`` is its end in each."""

    def __init__(self, tag: str) -> None:
        self.names = [f"gb{tag}a", f"gb{tag}b"]
        self.links = [f"gb{tag}x", f"gb{tag}y"]
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.links[0], "netns", self.names[0], "type", "veth", "peer", "name", self.links[1],
           "netns", self.names[1])  # fmt: skip
        for name, link, address in zip(self.names, self.links, (FIRST, SECOND), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")

    def processes(self, place: int) -> list[int]:
        """Ids of all processes in a namespace."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.names[place]],
            check=False,
            capture_output=True,
            text=True,
            timeout=20,
        )
        return [int(pid) for pid in found.stdout.split()]

    def cut(self) -> None:
        ip("-n", self.names[1], "link", "set", self.links[1], "down")

    def end(self) -> None:
        for place, name in enumerate(self.names):
            for pid in self.processes(place):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)


@pytest.fixture
def machines() -> Iterator[Machines]:
    if shutil.which("ip") is None:
        pytest.skip("needs the tool ip (iproute2) to make two network namespaces")
    try:
        made = Machines(f"{os.getpid() % 10_000}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the right to make network namespaces: {error.stderr.decode().strip()}")
    yield made
    made.end()


class Job:
    """The same command on both machines, the first of which stores in ``root``."""

    def __init__(
        self, machines: Machines, folder: Path, *, lasts: bool = True, precision: str = "fp32"
    ) -> None:
        self.mark, self.root = folder / "mark", folder / "first"
        model = folder / "joined.py"
        model.write_text(MODEL.format(mark=f"{self.mark}", lasts=lasts))
        self.runs = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, "-m", "gpubench", "run", f"{model}", "--device", "cpu",
                 "--quick", "--no-micro", "--precision", precision, "--nnodes", "2", "--rdzv-endpoint",
                 f"{FIRST}:{PORT}", "--results", f"{folder / place}", "--json"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for name, place in zip(machines.names, ("first", "second"), strict=True)
        ]  # fmt: skip

    def rows(self, precision: str = "fp32") -> dict[int, dict]:
        """What the first machine has stored, by the number of processes."""
        (file,) = self.root.rglob("*.json")
        stored = json.loads(file.read_text())["measurements"]
        return {row["case"]["gpu_count"]: row for row in stored if row["case"]["precision"] == precision}


def test_two_machines_do_one_job_after_the_other_and_the_first_stores_them(machines, tmp_path):
    """Strict fp32 has processes of its own, so that each precision is a job."""
    job = Job(machines, tmp_path, lasts=False, precision="fp32,amp")
    (out, err), (other, words) = (run.communicate(timeout=300) for run in job.runs)
    assert [run.returncode for run in job.runs] == [0, 0], err + words
    rows = job.rows()
    assert rows[2]["status"] == "ok", rows[2]["reason"]
    assert (rows[2]["case"]["node_count"], rows[2]["case"]["parallel_mode"]) == (2, "ddp")
    assert rows[1]["case"].get("node_count", 1) == 1
    assert rows[2]["launches"][0]["energy_j"] is None
    assert job.rows("amp-bf16")[2]["status"] in {"ok", "unsupported"}  # not every processor has bf16
    assert json.loads(out)["scaling"]
    assert other == ""
    assert not (tmp_path / "second").exists()


def kill_a_rank(machines: Machines) -> None:
    """The process of the second machine that was started last, which is its rank."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in machines.processes(1)}
    os.kill(max(pid for pid, words in names.items() if b"spawn_main" in words), signal.SIGKILL)


def kill_a_machine(machines: Machines) -> None:
    for pid in machines.processes(1):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


SILENT = "machine 2 of the job gave no sign of life for 20.0 s"
LOSSES = {
    "rank": (kill_a_rank, "rank 1 of the job was ended by signal 9 (SIGKILL)", 4),
    "machine": (kill_a_machine, SILENT, -signal.SIGKILL),
    "link": (Machines.cut, SILENT, 4),
}
"""What is done, the reason that the first machine stores, and how the command on the second one ends."""


@pytest.mark.parametrize("what", LOSSES)
def test_what_is_lost_is_named_in_bounded_time_and_what_was_measured_stays(machines, tmp_path, what):
    loss, words, code = LOSSES[what]
    job = Job(machines, tmp_path)
    wait_until(job.mark.exists, job.runs[0])
    loss(machines)
    patience_s = 2 * SILENCE_S + 60  # a loaded machine starts and ends processes slowly
    _, err = job.runs[0].communicate(timeout=patience_s)
    rows = job.rows()
    assert rows[1]["status"] == "ok", rows[1]["reason"]
    assert rows[2]["status"] == "failed"
    assert rows[2]["reason"] == words
    assert job.runs[0].returncode == 0, err  # the row on one machine has a figure
    _, words = job.runs[1].communicate(timeout=patience_s)
    assert job.runs[1].returncode == code, words
