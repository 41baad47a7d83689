"""A user's model on the command line: from a file to a ranking, and one line for each bad file."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from command import here
from patience import Stopwatch

from gpubench.measure import plan
from gpubench.measure.budget import Budget
from gpubench.profile import cache
from gpubench.record.store import read_runs

HEAD = "import torch\nfrom torch import nn\n"
MODEL = "    return nn.Linear(4, 4), torch.randn(n, 4), torch.zeros(n, 4), nn.MSELoss()\n"
LINEAR = f"{HEAD}def build(n):\n{MODEL}"


class Bad(NamedTuple):
    """A file that cannot be measured, its message, and whether a log has more."""

    source: str
    message: str
    log: bool = True


BAD = {
    "no build": Bad("x = 1\n", "defines neither build(batch_size) nor WORKLOAD", log=False),
    "syntax error": Bad("def build(n:\n    return\n", "syntax error in line 1 of mine.py: "),
    "exits": Bad("import sys\nsys.exit(0)\n", "calls sys.exit(0) (mine.py line 2)"),
    "exits at once": Bad("import os\nos._exit(0)\n", "exited with status 0 while building"),
    "prints 100 MB": Bad(f"for _ in range(100):\n    print('x' * 10**6)\n{LINEAR}", "printed more than 8.00 MiB"),
    "never returns": Bad("while True:\n    pass\n", "no answer within 1.00 s"),
    "wrong shapes": Bad(LINEAR.replace("randn(n, 4)", "randn(n, 5)"), "cannot run one training step on its own batch"),
    "loss NaN": Bad(LINEAR.replace("nn.MSELoss()", "lambda out, y: (out * float('nan')).mean()"), "its loss is nan", log=False),
    "takes no gradient": Bad(LINEAR.replace("nn.Linear(4, 4)", "nn.ReLU()"), "no parameter that takes a gradient", log=False),
}  # fmt: skip
VERBS = {
    "run": ("run", "--device", "cpu", "--quick", "./mine.py"),
    "predict": ("predict", "show", "./mine.py"),
    "rank": ("rank", "./mine.py"),
}


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gpubench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process, in a folder with this ``mine.py``.

    The model itself runs in a child process, a fork of this one if the test asks for ``forked_children``.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache, "NOTICE_AFTER_S", 600.0)

    def run(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "mine.py").write_text(source, encoding="utf-8")
        done = here(*arguments)
        assert "Traceback" not in done.stdout + done.stderr
        return done

    return run


@pytest.mark.parametrize(
    ("verb", "case"),
    [
        pytest.param(
            verb, case, marks=() if verb == "predict" or case == "syntax error" else pytest.mark.slow
        )
        for verb in VERBS
        for case in BAD
    ],
)
@pytest.mark.usefixtures("forked_children")
def test_a_bad_file_is_one_clear_line(
    gpubench: Run, monkeypatch: pytest.MonkeyPatch, case: str, verb: str
) -> None:
    if case == "never returns":
        monkeypatch.setattr(cache, "TRACE_CPU_S", 1.0)
    bad = BAD[case]
    done = gpubench(bad.source, *VERBS[verb])
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpubench: mine.py: ")
    assert bad.message in line
    named = re.search(r"in (/\S+mine\.py\.log)\)$", line)
    assert (named is not None) == bad.log
    if named is not None:
        assert Path(named[1]).read_text(encoding="utf-8").strip()


RUN = ("run", "--device", "cpu", "--quick", "--precision", "fp32", "--micro", "none", "--batch-size", "8")
LATE = f"""{HEAD}
class Net(nn.Linear):
    def forward(self, x):
        if len(x) == 8:
            print("so far so good")
            raise RuntimeError("late boom")
        return super().forward(x)

def build(n):
{MODEL.replace("nn.Linear", "Net")}"""


@pytest.mark.usefixtures("traced_here", "forked_children")
def test_an_error_while_measuring_names_its_line_and_its_log(gpubench: Run) -> None:
    """The trace, at batches of 2 and 4, does not reach the error."""
    done = gpubench(LATE, *RUN, "./mine.py")
    assert done.returncode == 4, done.stderr
    (line,) = (each for each in done.stderr.splitlines() if "late boom" in each)
    said, _, log = line.partition(" (traceback in ")
    where, how, reason = said.split(": ", 2)
    assert (where.split()[0], how) == ("mine.py", "failed")
    assert reason.startswith("RuntimeError: late boom")
    assert reason.endswith("(mine.py line 8)")
    text = Path(log.removesuffix(")")).read_text(encoding="utf-8")
    assert "in forward" in text
    assert text.endswith("so good\n")
    assert done.stderr.splitlines()[-1].startswith("every case failed")
    assert "$" not in done.stdout, "no ranking of a model that did not run"
    (stored,) = read_runs(Path(log).parents[3] / "results").runs
    (row,) = stored.measurements
    assert row.reason == reason, "no path of this machine is stored"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_a_process_that_ends_while_measuring_leaves_a_log(gpubench: Run) -> None:
    done = gpubench(
        LATE.replace('raise RuntimeError("late boom")', "import os; os._exit(7)"), *RUN, "./mine.py"
    )
    assert done.returncode == 4, done.stderr
    (line,) = (each for each in done.stderr.splitlines() if "failed: " in each)
    assert "exited with status 7" in line
    log = Path(line.partition(" (its output is in ")[2].removesuffix(")"))
    assert "so far so" in log.read_text(encoding="utf-8")


@pytest.mark.usefixtures("traced_here", "forked_children")
def test_a_loss_that_becomes_nan_is_invalid_and_gives_exit_4(
    gpubench: Run, monkeypatch: pytest.MonkeyPatch, tiny_budget: Budget
) -> None:
    monkeypatch.setattr(plan, "budget_of", lambda name, *, on_cpu: tiny_budget)
    late_nan = "lambda out, y: out.square().mean() * (float('nan') if len(y) > 4 else 1)"
    done = gpubench(LINEAR.replace("nn.MSELoss()", late_nan), *RUN, "--json", "./mine.py")
    assert done.returncode == 4, done.stderr
    (row,) = json.loads(done.stdout)["measurements"]
    assert row["status"] == "invalid"
    assert "LOSS_NOT_FINITE" in row["reason"]
    assert row["case"]["workload"] == "mine.py"


@pytest.mark.usefixtures("forked_children")
def test_a_missing_model_file_is_refused_in_one_line(gpubench: Run) -> None:
    done = gpubench("", "rank", "--workload", "./absent.py")
    assert done.returncode == 2
    assert "cannot read absent.py" in done.stderr


@pytest.mark.parametrize("verb", ["run", "rank"])
def test_two_files_of_one_name_are_refused_in_one_line(gpubench: Run, verb: str) -> None:
    done = gpubench(LINEAR, *VERBS[verb], "./other/mine.py")
    assert done.returncode == 2
    assert "./mine.py and ./other/mine.py" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("named", "seen"), [((), "missing"), (("vgg16", "--workload", "vgg16"), "twice")])
def test_predict_accepts_only_one_workload(gpubench: Run, named: tuple[str, ...], seen: str) -> None:
    done = gpubench("", "predict", "show", *named)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpubench: --workload is ")
    assert seen in line


def test_a_users_model_goes_from_file_to_rank_in_one_command(gpubench: Run) -> None:
    watch = Stopwatch()
    done = gpubench(LINEAR, "rank", "--workload", "./mine.py", "--json")
    assert watch.free_s() < 60, "15 s on an idle machine"
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["question"]["workloads"] == ["mine.py"]
    assert {row["basis"] for row in document["rows"]} == {"predicted"}
    assert all(
        row["samples_per_s_low"] < row["samples_per_s"]
        for row in document["rows"]
        if row["samples_per_s_low"]
    )
