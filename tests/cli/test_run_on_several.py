"""`gpubench run --gpus 2 --device cpu`: from the command line to the stored file and the section that reads it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command import gpubench

from gpubench.report.page import report

BLOCKS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 128), nn.Linear(128, 64)
    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))

def build(batch_size):
    net = nn.Sequential(Block(), Block(), nn.Linear(64, 4))
    return net, torch.randn(batch_size, 64), torch.randint(4, (batch_size,)), nn.functional.cross_entropy
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "blocks.py").write_text(BLOCKS)
    asked = ("--device", "cpu", "--json", *words, "--results", f"{folder / 'results'}")
    return gpubench(None, "run", f"{folder / 'blocks.py'}", *asked)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["ddp", "fsdp", "independent"])
def test_two_processes_on_a_cpu_are_compared_with_one_and_reported(tmp_path, jobs):
    strong = ["--strong"] if jobs != "independent" else []
    done = run(
        tmp_path, "--gpus", "2", "--jobs", jobs, *strong, "--quick", "--precision", "fp32", "--batch-size", "64",
        "--micro", "none",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {m["case"]["gpu_count"]: m for m in json.loads(done.stdout)["measurements"]}
    assert rows[2]["case"]["parallel_mode"] == jobs
    assert rows[2]["case"]["batch_size"] == (32 if strong else 64)
    assert all(rows[count]["launches"][0]["rounds"] for count in (1, 2))
    text = Path(report(tmp_path / "page.html", tmp_path / "results")).read_text()
    sound = all(row["status"] == "ok" for row in rows.values())
    if sound:  # if other programs load the machine, a row may lack a figure
        assert "Throughput of several processes" in text


def test_more_processes_than_the_processor_has_threads_are_refused_in_one_line(tmp_path):
    done = run(tmp_path, "--gpus", "4096")
    assert (done.returncode, done.stdout) == (3, "")
    assert " --gpus 4096 " in done.stderr.splitlines()[-1]
