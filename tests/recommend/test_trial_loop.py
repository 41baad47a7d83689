"""A user's model from a ranking is measured on rented machines, and the question is asked again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml")
HERE = Path(__file__).parent
MODEL = """
import torch
from parts.head import head

BATCHES = (4,)
SAMPLE_UNIT = "row"


def build(batch_size):
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), head(16))
    return model, torch.randn(batch_size, 16), torch.randint(3, (batch_size,)), torch.nn.CrossEntropyLoss()
"""
HEAD = "import torch\n\n\ndef head(width):\n    return torch.nn.Linear(width, 3)\n"


@pytest.fixture
def cloud(tmp_path) -> dict[str, str]:
    """Put the fake tools on a PATH; return the environment with it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sky", "rsync", "uv"):
        script = tools / name
        script.write_text(f"#!{sys.executable}\n" + (HERE / "fake_cloud.py").read_text())
        script.chmod(0o755)
    run = max((HERE.parent / "golden/data/results/runs/nvidia-h200-sxm-141gb").glob("*.json"))
    return os.environ | {
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FAKE_CLOUD": str(tmp_path / "cloud"),
        "FAKE_DEVICE": json.dumps(json.loads(run.read_text())["device"]),
    }


@pytest.fixture
def project(tmp_path) -> Path:
    """A folder with a user's model that consists of two files."""
    folder = tmp_path / "project"
    (folder / "parts").mkdir(parents=True)
    (folder / "tagger.py").write_text(MODEL)
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "head.py").write_text(HEAD)
    return folder


ASKED = [
    "rank", "--workload", "./tagger.py", "--precision", "fp32", "--execution", "eager", "--batch-size", "8",
    "--samples", "1e6", "--gpu", "H200 SXM", "--provider", "runpod", "--seller", "secure",
    "--results", "kept here",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_of_a_users_model_change_from_predicted_to_measured(cloud, project, tmp_path):
    def gpubench(*words):
        done = subprocess.run(
            [sys.executable, "-m", "gpubench", *words], cwd=project, env=cloud, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    answer = gpubench(*ASKED, "--json").stdout
    assert [row["basis"] for row in json.loads(answer)["rows"]] == ["predicted"]
    (project / "answer.json").write_text(answer)
    gpubench("try", "answer.json", "--output", str(tmp_path / "tasks"), "--minutes", "2")
    done = subprocess.run(
        ["sh", str(tmp_path / "tasks" / "try.sh")], cwd=tmp_path, env=cloud, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "measured" in done.stdout
    after = json.loads(gpubench(*ASKED, "--json").stdout)
    (row,) = after["rows"]
    assert row["basis"] == "measured"
    assert row["batch_size"] == 8
    assert [path.name for path in (tmp_path / "cloud").iterdir()] == [
        "gpubench-runpod-1x-h200-sxm-141gb.down"
    ]
