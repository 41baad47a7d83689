"""The files that users start from work as shipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command import here

from gpubench.discovery import load_workload
from gpubench.models import OperatorKind
from gpubench.profile import profile_of

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def losses(path: Path, batch_size: int, steps: int) -> list[float]:
    task = load_workload(str(path)).build(batch_size, 0)
    optimizer = task.optimizer(task.model.parameters())
    inputs, targets = task.batches[0]
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss(task.model(inputs), targets)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.usefixtures("traced_as_asked")
def test_generated_workload_file_works_unedited(tmp_path: Path) -> None:
    done = here("new-workload", "my_model", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "my_model.py"
    assert "gpubench rank --workload ./my_model.py" in path.read_text(encoding="utf-8")
    found = profile_of(str(path))
    assert found.batches == (16, 64, 256)
    assert found.sample_shape == (3, 64, 64)
    falling = losses(path, 8, 30)
    assert falling[-1] < falling[0]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("precious")
    done = here("new-workload", "mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "mine.py already exists" in done.stderr
    assert (tmp_path / "mine.py").read_text() == "precious"


@pytest.mark.parametrize("name", ["../evil", "a b", "1st", "x/y", "", "class", "lambda.py", "None"])
def test_a_name_that_is_not_a_file_name_is_refused(tmp_path: Path, name: str) -> None:
    done = here("new-workload", name, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.parent.glob("evil*"))


@pytest.mark.parametrize("name", ["random", "torch", "gpubench", "site"])
def test_a_name_that_means_another_module_is_refused(tmp_path: Path, name: str) -> None:
    done = here("new-workload", name, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{name} is the name" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_json_names_the_file(tmp_path: Path) -> None:
    assert json.loads(here("new-workload", "net", "--json", cwd=tmp_path).stdout) == {"path": "net.py"}


@pytest.mark.usefixtures("traced_as_asked")
def test_the_u_net_is_profiled_and_learns() -> None:
    found = profile_of(str(EXAMPLES / "unet.py"))
    assert found.name == "unet.py"
    assert found.is_image
    assert found.batches == (4, 16, 32)
    kinds = {o.kind for o in found.train}
    assert {OperatorKind.CONV3X3, OperatorKind.CONV, OperatorKind.MEMORY} <= kinds
    falling = losses(EXAMPLES / "unet.py", 1, 3)
    assert falling[-1] < falling[0]


def test_the_u_net_keeps_the_size_of_the_image() -> None:
    task = load_workload(str(EXAMPLES / "unet.py")).build(2, 0)
    with torch.no_grad():
        assert task.model(task.batches[0][0]).shape == (2, 2, 128, 128)
