"""The table of executions is complete, and a new row needs only its preparation elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import forked_child
import pytest

from gpubench.executions import Execution
from gpubench.measure.launcher import PHASE_LIMITS_S

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpubench"

MEMBER = """    REPLAY = "replay"
"""
ROW = """    Execution.REPLAY: ExecutionFacts(words="as a replay", preparation="capture"),
"""
WAY = """    Execution.REPLAY: lambda work: lambda index: work.step(index) * 1,
"""
USES = """
from pathlib import Path

import msgspec
import torch
from torch import nn
from click.testing import CliRunner

import gpubench
from gpubench.cli.app import app
from gpubench.measure.capability import NotHereError
from gpubench.measure.guards import prepare
from gpubench.measure.plan import plan
from gpubench.measure.request import RunRequest
from gpubench.measure.step import move
from gpubench.models import DeviceProfile, Execution
from gpubench.predict.question import Question
from gpubench.predict.estimate import estimate as predicted
from gpubench.profile import load_profiles
from gpubench.record.store import reference_runs
from gpubench.blocks.parts import Block, as_html
from gpubench.effects import execution_effects
from gpubench.sections.measured import LOOKS, host, throughput
from gpubench.sections.data import of_run
from gpubench.specs import load_specs
from gpubench.workload import Task

assert Path(gpubench.__file__).parent.parent == Path.cwd()
replay = Execution("replay")
for verb in ("run", "rank", "predict show"):
    shown = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "200"}).output
    assert "replay" in shown, shown
assert '"replay"' in Path("gpubench/__init__.pyi").read_text()
# What is planned.
device = DeviceProfile(backend="cpu", core_count=2)
made = plan(RunRequest(workloads=("cnn",), executions=("eager", "replay")), device, load_profiles())
eager, planned = (each for each in made.cases if each.case.precision == "fp32")
assert planned.case.execution is replay
# What is measured: a replay, or nothing.
model = nn.Linear(8, 4)
batches = tuple((torch.randn(64, 8), torch.zeros(64, dtype=torch.long)) for _ in range(2))
task = Task(model=model, batches=batches, loss=nn.functional.cross_entropy, optimizer=torch.optim.SGD)
work = move(task, msgspec.structs.replace(planned.case, memory_format=None), torch.device("cpu"))
if not HAS_A_WAY:
    try:
        prepare(work)
    except NotHereError as error:
        assert "replay" in str(error) and len(str(error).splitlines()) == 1
        raise SystemExit
    raise AssertionError("timed eagerly under another name")
advance = prepare(work)
assert advance != work.step and torch.isfinite(advance(0))
# What is predicted: nothing, since no published figure says how fast it is.
h100 = load_specs()["nvidia-h100-sxm-80gb"]
answer = predicted(Question(profile=load_profiles()["cnn"], execution=replay), [h100])[h100.key]
assert "replay is measured, never predicted" in answer.reason
# What is printed and drawn of a run.
def renamed(m):
    is_graph = m.case.execution is Execution.GRAPH
    return msgspec.structs.replace(m, case=msgspec.structs.replace(m.case, execution=replay)) if is_graph else m


run = next(run for run in reference_runs() if execution_effects(of_run(run).results))
data = of_run(msgspec.structs.replace(run, measurements=tuple(renamed(m) for m in run.measurements)))
assert {each.result.case.execution for each in execution_effects(data.results)} == {replay}
for told in (host, throughput):
    assert "replay" in as_html(Block(title="t", parts=tuple(told(data)))), told
looks = {(look.color, look.symbol) for look in LOOKS.values()}
assert len(looks) == len(Execution)
"""


@pytest.mark.parametrize("execution", Execution)
def test_every_preparation_is_a_phase_with_a_limit(execution: Execution) -> None:
    assert execution.facts.preparation is None or execution.facts.preparation in PHASE_LIMITS_S
    assert (execution.facts.preparation is None) == (execution is Execution.EAGER)


@pytest.mark.parametrize("has_a_way", [True, False])
def test_new_execution_needs_only_the_documented_edits(tmp_path: Path, has_a_way: bool) -> None:
    """In a copy of the package, the edits listed in architecture.md make it known to all packages."""
    copy = shutil.copytree(PACKAGE, tmp_path / "gpubench", ignore=shutil.ignore_patterns("__pycache__"))
    edits = [
        ("executions.py", '    TF_GRAPH = "tf-graph"\n', MEMBER),
        ("executions.py", "_FACTS = {\n", ROW),
        ("measure/guards.py", "    Execution.EAGER: lambda work: work.step,\n", WAY),
    ]
    for name, before, added in edits if has_a_way else edits[:2]:
        text = (copy / name).read_text(encoding="utf-8")
        assert text.count(before) == 1
        (copy / name).write_text(text.replace(before, before + added), encoding="utf-8")
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "make_stub.py", tmp_path / "tests")
    for arguments in (("tests/make_stub.py",), ("-c", f"HAS_A_WAY = {has_a_way}\n{USES}")):
        ended = forked_child.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
