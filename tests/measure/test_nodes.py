"""One run under a user's torchrun, for real: two agents act as two machines that meet on the loopback interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from patience import wait_until

MODEL = """
import os, pathlib, signal, time
import torch
from torch import nn, distributed

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 3.0))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if distributed.is_initialized() and distributed.get_rank() == {rank} and self.calls == 30:
            mark = pathlib.Path({mark!r})
            first = not mark.exists()
            mark.touch()
            {act}
        if distributed.is_initialized() and {lasts!r}:
            time.sleep(0.05)
        return self.weight.expand(len(x), 1)

def build(batch_size):
    print("a word of the model")
    return Net(), torch.ones(batch_size, 1), torch.zeros(batch_size, 1), nn.functional.mse_loss, SGD

def SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
ENDS_S = 5.0
"""Time after which no process may be left."""
PATIENCE_S = 300
OURS = "GPUBENCH_TEST_JOB"


class Job:
    """One command that runs in each of several agents; every process has a mark in its environment."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.mark = folder, folder / "mark"
        self.agents: list[subprocess.Popen[str]] = []
        self._name = f"{os.getpid()} {folder}"

    def start(
        self,
        *words: str,
        act: str = "pass",
        rank: int = 0,
        lasts: bool = False,
        nodes: int = 2,
        each: int = 1,
        restarts: int = 0,
    ) -> Job:
        (self.folder / "joined.py").write_text(
            MODEL.format(mark=f"{self.mark}", lasts=lasts, act=act, rank=rank)
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        variables = {**os.environ, OURS: self._name, "OMP_NUM_THREADS": "1"}
        self.agents = [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={each}",
                 f"--max-restarts={restarts}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                 "--local-addr=127.0.0.1", f"--log-dir={self.folder / 'logs'}", "-m", "gpubench", "run",
                 "--workload", f"{self.folder / 'joined.py'}", "--device", "cpu", "--json", "--results",
                 f"{self.folder / 'results'}", *words],
                env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            )
            for _ in range(nodes)
        ]  # fmt: skip
        return self

    def ended(self) -> tuple[list[int], str, str]:
        """The exit codes, and everything printed to standard output and to standard error."""
        said = [agent.communicate(timeout=PATIENCE_S) for agent in self.agents]
        return [a.returncode for a in self.agents], "".join(o for o, _ in said), "".join(e for _, e in said)

    def run(self) -> dict:
        """Return the only stored run."""
        (file,) = self.folder.rglob("results/**/*.json")
        return json.loads(file.read_text())

    def rows(self) -> dict[int, dict]:
        """The stored rows of strict fp32, by the number of processes."""
        rows = self.run()["measurements"]
        return {r["case"]["gpu_count"]: r for r in rows if r["case"]["precision"] == "fp32"}

    def left(self) -> list[psutil.Process]:
        """Every process that is still running."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(OURS) == self._name:
                    found.append(process)
        return found

    def all_end(self) -> None:
        """Wait until only torchrun's own processes are left, and fail if that takes too long."""
        agents, until_s = {agent.pid for agent in self.agents}, time.monotonic() + ENDS_S

        def ours() -> list[psutil.Process]:
            return [process for process in self.left() if process.pid not in agents]

        wait_until(lambda: not ours() or time.monotonic() > until_s)
        assert not ours()


@pytest.fixture
def two_jobs(tmp_path) -> Iterator[tuple[Job, Job]]:
    made = Job(tmp_path / "first"), Job(tmp_path / "second")
    yield made
    for each in made:
        for process in each.left():
            with suppress(psutil.Error):
                process.kill()
        for agent in each.agents:
            agent.communicate()


@pytest.fixture
def job(two_jobs) -> Job:
    return two_jobs[0]


MEASURED = {"ok", "invalid"}
"""A measured row may be invalid, because other programs load the machine."""
QUICK = ("--quick", "--micro", "none", "--precision", "fp32")


@pytest.mark.slow
def test_one_command_with_two_processes_is_one_launch_stored_by_the_first_process(job):
    codes, out, err = job.start(*QUICK, nodes=1, each=2).ended()
    assert codes == [0], err
    rows, run = job.rows(), job.run()
    assert sorted(rows) == [1, 2]
    assert all(row["status"] in MEASURED and row["launches"][0]["rounds"] for row in rows.values()), rows
    assert (rows[2]["case"].get("node_count", 1), rows[2]["case"]["parallel_mode"]) == (1, "ddp")
    assert json.loads(out)["run_id"] == run["run_id"]  # nothing else is on standard output
    assert run["launch_count"] == 1
    assert "ONE_PROCESS" in {finding["kind"] for finding in run["findings"]}
    job.all_end()


@pytest.mark.slow
def test_two_machines_do_one_run_and_another_command_adds_a_launch(job):
    codes, out, err = job.start("--quick", "--micro", "none", "--precision", "fp32,amp").ended()
    assert codes == [0, 0], err
    rows, run = job.rows(), job.run()
    assert sorted(rows) == [1, 2]
    assert all(row["status"] in MEASURED and row["launches"][0]["rounds"] for row in rows.values()), rows
    assert (rows[2]["case"]["node_count"], rows[2]["case"]["parallel_mode"]) == (2, "ddp")
    assert rows[1]["case"].get("node_count", 1) == 1
    assert rows[2]["launches"][0]["energy_j"] is None
    assert json.loads(out)["scaling"]
    codes, _, err = job.start("--resume", run["run_id"]).ended()
    assert codes == [0, 0], err
    again = job.run()
    assert again["launch_count"] == 2
    assert {len(row["launches"]) for row in again["measurements"] if row["status"] == "ok"} == {2}
    assert "ONE_PROCESS" not in {finding["kind"] for finding in again["findings"]}
    alone = [sys.executable, "-m", "gpubench", "run", "--workload", f"{job.folder / 'joined.py'}", "--resume",
             run["run_id"], "--device", "cpu", "--results", f"{job.folder / 'results'}"]  # fmt: skip
    done = subprocess.run(
        alone, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "torchrun --nnodes 2 --nproc-per-node 1 " in done.stderr
    job.all_end()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_after_a_restart_finished_work_is_not_measured_again(job, rank):
    codes, _, err = job.start(
        *QUICK, act="first and os.kill(os.getpid(), signal.SIGKILL)", rank=rank, restarts=2
    ).ended()
    rows = job.rows()
    killed = job.mark.stat().st_mtime
    assert rows[1]["status"] == "ok", rows[1]
    assert rows[1]["launches"][0]["began_at"] <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(killed))
    assert rows[2]["status"] == "ok", rows[2]
    assert codes == [0, 0], err
    job.all_end()


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "nodes"), [(0, 2), (1, 2), (1, 1)])
def test_a_killed_rank_is_named_with_its_signal_and_its_case_is_measured_on_resume(job, rank, nodes):
    fate = {"act": "first and os.kill(os.getpid(), signal.SIGKILL)", "rank": rank}
    fate |= {"nodes": nodes, "each": 2 // nodes}
    job.start(*QUICK, **fate).ended()
    job.all_end()
    rows = job.rows()
    assert rows[1]["status"] in MEASURED
    assert rows[2]["status"] == "failed"
    assert rows[2]["reason"].startswith(f"rank {rank} of the job")
    assert "signal 9 (SIGKILL)" in rows[2]["reason"]
    codes, _, err = job.start("--resume", job.run()["run_id"], **fate).ended()
    assert set(codes) == {0}, err
    again = job.rows()
    assert again[1] == rows[1]
    assert again[2]["status"] in MEASURED
    assert again[2]["launches"][0]["rounds"]


@pytest.mark.slow
def test_a_rank_that_hangs_ends_with_its_run(two_jobs):
    """Each rank hangs in one of two jobs. The second starts during the long wait for the first one's limit."""
    for rank, job in enumerate(two_jobs):
        job.start(*QUICK, "--time-limit", "90", act="time.sleep(600)", rank=rank)
        wait_until(job.mark.exists, job.agents[0])
    for job in two_jobs:
        job.ended()
        job.all_end()
        rows = job.rows()
        assert rows[1]["status"] in MEASURED
        assert rows[2]["status"] == "timeout"


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_agent_ends_its_processes_and_keeps_what_was_measured(job, which):
    job.start(*QUICK, lasts=True)
    wait_until(job.mark.exists, job.agents[0])
    below = psutil.Process(job.agents[which].pid).children(recursive=True)
    job.agents[which].kill()
    _, alive = psutil.wait_procs(below, timeout=ENDS_S)
    assert not alive
    job.ended()
    job.all_end()
    assert job.rows()[1]["status"] == "ok"


@pytest.mark.slow
def test_ctrl_c_ends_the_round_and_every_process(job):
    job.start(*QUICK, lasts=True)
    wait_until(job.mark.exists, job.agents[0])
    for agent in job.agents:
        agent.send_signal(signal.SIGINT)
    job.all_end()
    _, _, err = job.ended()
    assert job.run()["interrupted"], err
    assert job.rows()[1]["status"] == "ok"
    assert job.rows()[2]["launches"][0]["stopped"]
