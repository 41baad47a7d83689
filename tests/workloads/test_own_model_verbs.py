"""The user's own model on the command line: from a file to a ranking, and one line for each bad file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAD = "import torch\nfrom torch import nn\n"
LINEAR = f"{HEAD}def build(n):\n    return nn.Linear(4, 4), torch.randn(n, {{width}}), torch.zeros(n, 4), nn.MSELoss()\n"

BAD = {
    "no build": ("x = 1\n", "defines neither build(batch_size) nor WORKLOAD"),
    "syntax error": ("def build(n:\n    return\n", "syntax error in line 1"),
    "wrong shapes": (LINEAR.format(width=5), "cannot run one training step on its own batch"),
    "takes no gradient": (LINEAR.format(width=4).replace("nn.Linear(4, 4)", "nn.ReLU()"), "no parameter that takes a gradient"),
    "exits": ("import os\nos._exit(0)\n", "its process ended by itself, with exit code 0"),
    "prints 100 MB": ("for _ in range(100):\n    print('x' * 10**6)\n", "defines neither build"),
}  # fmt: skip


def gpubench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpubench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


OTHER_VERBS = (("run", "--device", "cpu", "--quick"), ("predict", "show"))
"""They read the file as ``rank`` does: the quick cases are enough."""
QUICK = ("no build", "syntax error", "exits")
PAIRS = [*((case, ("rank",)) for case in BAD), *((case, verb) for verb in OTHER_VERBS for case in QUICK)]


@pytest.mark.parametrize(("case", "verb"), PAIRS)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, case: str, verb: tuple[str, ...]) -> None:
    source, message = BAD[case]
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    done = gpubench(*verb, "--workload", "./mine.py", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "mine.py" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = gpubench("rank", "--workload", "./absent.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot read absent.py" in done.stderr or "cannot read ./absent.py" in done.stderr


def test_a_loss_that_is_not_a_number_is_invalid_and_exit_4(tmp_path: Path) -> None:
    source = LINEAR.format(width=4).replace("nn.MSELoss()", "lambda out, y: (out * float('nan')).mean()")
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    done = gpubench(
        "run", "--workload", "./mine.py", "--device", "cpu", "--quick", "--precision", "fp32", "--json",
        "--no-micro", "--time-limit", "10", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    (row,) = json.loads(done.stdout)["measurements"]
    assert row["status"] == "invalid"
    assert "LOSS_NOT_FINITE" in row["reason"]
    assert row["case"]["workload"] == "mine.py"
    assert "Traceback" not in done.stderr


def test_an_own_model_goes_from_file_to_rank_in_one_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LINEAR.format(width=4), encoding="utf-8")
    started = time.monotonic()
    done = gpubench("rank", "--workload", "./mine.py", "--json", cwd=tmp_path)
    assert time.monotonic() - started < 60, "15 s on a machine that does nothing else"
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {c["workload"] for c in document["cases"]} == {"mine.py"}
    assert {row["basis"] for row in document["rows"]} == {"predicted"}
    assert all(
        row["samples_per_s_low"] < row["samples_per_s"]
        for row in document["rows"]
        if row["samples_per_s_low"]
    )
