"""The user's own model: what is taken, and one clear line for each way it can be wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import platformdirs
import pytest
import torch

from gpubench.errors import MisuseError
from gpubench.profile import profile_of
from gpubench.workload import load_workload

GOOD = """
import torch
from torch import nn

def build(batch_size):
    return nn.Linear(10, 5), torch.randn(batch_size, 10), torch.zeros(batch_size).long(), nn.CrossEntropyLoss()
"""


def write(folder: Path, source: str, name: str = "my_model.py") -> str:
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return str(path)


def test_a_plain_build_is_enough(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, GOOD))
    assert workload.name == "my_model.py"
    assert workload.sample_shape == (10,)
    assert not workload.is_image
    task = workload.build(7, 0)
    assert task.batches[0][0].shape == (7, 10)
    optimizer = task.optimizer(task.model.parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.defaults["lr"] == 1e-4


def test_equal_seeds_give_equal_own_tasks(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, GOOD))
    one, two, other = workload.build(2, 1), workload.build(2, 1), workload.build(2, 2)
    assert torch.equal(one.model.weight, two.model.weight)
    assert torch.equal(one.batches[0][0], two.batches[0][0])
    assert not torch.equal(one.model.weight, other.model.weight)


def test_a_plain_build_gives_four_batches_of_which_the_first_is_its_own(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, GOOD))
    batches = workload.build(3, 0).batches
    assert len(batches) == 4
    inputs = [batch[0] for batch in batches]
    assert all(not torch.equal(inputs[i], inputs[j]) for i in range(4) for j in range(i))
    assert {tuple(i.shape) for i in inputs} == {(3, 10)}
    again = workload.build(3, 0).batches
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, again, strict=True))


@pytest.mark.parametrize(
    "inputs",
    [
        "torch.ones(batch_size, 10)",
        "torch.manual_seed(0) and torch.randn(batch_size, 10)",
        "torch.randn(batch_size, 10, next(LENGTHS))[..., 0].repeat(1, next(LENGTHS))",
    ],
)
def test_a_build_without_further_batches_of_its_form_keeps_one(tmp_path: Path, inputs: str) -> None:
    source = (
        GOOD.replace("torch.randn(batch_size, 10)", inputs)
        + "from itertools import count\nLENGTHS = count(1)\n"
    )
    assert len(load_workload(write(tmp_path, source)).build(3, 0).batches) == 1


def test_a_slow_build_is_called_once_and_a_task_is_taken_as_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("gpubench.own_model.SLOW_BUILD_S", -1.0)
    assert len(load_workload(write(tmp_path, GOOD)).build(3, 0).batches) == 1
    monkeypatch.undo()
    source = "from gpubench.workload import load_workload\ndef build(n):\n    return load_workload('cnn').tiny(n, 0)\n"
    assert len(load_workload(write(tmp_path, source)).build(3, 0).batches) == 4


def test_its_version_follows_its_source(tmp_path: Path) -> None:
    before = load_workload(write(tmp_path, GOOD)).version
    after = load_workload(write(tmp_path, GOOD.replace("(10, 5)", "(10, 6)"))).version
    assert before != after


def test_settings_beside_build_are_read(tmp_path: Path) -> None:
    more = "BATCHES = (2, 3)\nSAMPLE_UNIT = 'scan'\nSOURCE = 'a paper'\n"
    workload = load_workload(write(tmp_path, more + GOOD))
    assert (workload.batches, workload.sample_unit, workload.source) == ((2, 3), "scan", "a paper")


def test_a_function_may_be_named_and_may_take_a_seed(tmp_path: Path) -> None:
    source = GOOD.replace("def build(batch_size)", "def net(batch_size, seed)")
    workload = load_workload(write(tmp_path, source) + ":net")
    assert workload.name == "my_model.py:net"
    assert workload.build(2, 5).batches[0][0].shape == (2, 10)


def test_a_dict_with_an_optimizer_is_taken(tmp_path: Path) -> None:
    source = """
import torch
def build(n):
    return {"model": torch.nn.Conv2d(3, 4, 3), "inputs": torch.randn(n, 3, 8, 8), "targets": torch.zeros(n),
            "loss": lambda out, y: out.mean(), "optimizer": torch.optim.SGD}
"""
    workload = load_workload(write(tmp_path, source))
    assert workload.is_image
    assert workload.sample_unit == "image"
    assert workload.build(2, 0).optimizer is torch.optim.SGD


def test_a_workload_object_is_taken_and_bears_the_files_name(tmp_path: Path) -> None:
    source = "from gpubench.workload import load_workload\nWORKLOAD = load_workload('cnn')\n"
    workload = load_workload(write(tmp_path, source))
    assert workload.name == "my_model.py", "never mistaken for the standard one"
    assert workload.batches == (64, 512, 4096)


def test_a_module_is_taken_and_its_neighbours_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "SIZE = 10\n", "neighbour_of_mine.py")
    write(tmp_path, "from neighbour_of_mine import SIZE\n" + GOOD, "module_of_mine.py")
    monkeypatch.chdir(tmp_path)
    assert load_workload("module_of_mine:build").name == "module_of_mine:build"
    assert load_workload("./module_of_mine.py").name == "module_of_mine.py"


def test_several_inputs_are_taken(tmp_path: Path) -> None:
    source = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Bilinear(3, 4, 5)
    def forward(self, a, b):
        return self.layer(a, b)
def build(n):
    return Net(), (torch.randn(n, 3), torch.randn(n, 4)), torch.zeros(n).long(), torch.nn.functional.cross_entropy
"""
    assert profile_of(write(tmp_path, source)).parameters == 65


def body(returned: str) -> str:
    return f"import torch\nfrom torch import nn\ndef build(batch_size):\n    return {returned}\n"


LOADING = {
    "nothing in it": ("x = 1", "defines neither build"),
    "syntax error": ("def build(:\n", "syntax error in line 1"),
    "import error": ("import no_such_library_at_all", "ModuleNotFoundError: No module named"),
    "no arguments": ("def build(): ...", "build must take one argument"),
    "build is a number": ("build = 3", "is a int; it must be a Workload or a function"),
    "exits": ("import sys\nsys.exit(3)", r"calls sys.exit\(3\)"),
    "raises": ("def build(n):\n    raise RuntimeError('no\\nluck')", "RuntimeError: no luck"),
    "two values": (body("nn.Linear(1, 1), torch.randn(batch_size, 1)"), "build returned 2 values"),
    "no module": (body("3, torch.randn(batch_size, 1), 0, nn.MSELoss()"), "the model is a int"),
    "no loss": (body("nn.Linear(1, 1), torch.randn(batch_size, 1), 0, 3"), "the loss is a int"),
    "ignores the batch": (body("nn.Linear(1, 1), torch.randn(5, 1), 0, nn.MSELoss()"), r"shape \(5, 1\)"),
    "inputs no tensor": (body("nn.Linear(1, 1), [1, 2], 0, nn.MSELoss()"), "inputs hold a int"),
    "a dict with a hole": (body("{'model': nn.Linear(1, 1)}"), "no inputs and no targets and no loss"),
    "half precision": (
        body("nn.Linear(1, 1).half(), torch.randn(batch_size, 1), 0, nn.MSELoss()"),
        "built in torch.float16",
    ),
    "double inputs": (
        body("nn.Linear(1, 1), torch.randn(batch_size, 1).double(), 0, nn.MSELoss()"),
        "built in torch.float64",
    ),
    "on a GPU": (
        body("nn.Linear(1, 1).cuda(), torch.randn(batch_size, 1), 0, nn.MSELoss()"),
        "build on the CPU",
    ),
    "batches of nothing": ("BATCHES = (0,)\n" + GOOD, r"batches \(0,\)"),
}


@pytest.mark.parametrize("case", LOADING)
def test_what_cannot_be_loaded_is_one_line(tmp_path: Path, case: str) -> None:
    source, message = LOADING[case]
    with pytest.raises(MisuseError, match=message) as caught:
        load_workload(write(tmp_path, source))
    assert "\n" not in str(caught.value)
    assert "my_model.py" in str(caught.value)


@pytest.mark.parametrize("reference", ["./absent.py", "no_such_module_here:NET", "a/b", "module:", ":x"])
def test_what_is_not_there_is_one_line(reference: str) -> None:
    with pytest.raises(MisuseError) as caught:
        load_workload(reference)
    assert "\n" not in str(caught.value)


TRACING = {
    "wrong shapes": (
        body("nn.Linear(3, 1), torch.randn(batch_size, 4), torch.zeros(batch_size, 1), nn.MSELoss()"),
        "cannot run one training step on its own batch: RuntimeError: mat1 and mat2",
    ),
    "takes no gradient": (
        body("nn.ReLU(), torch.randn(batch_size, 4), torch.zeros(batch_size, 4), nn.MSELoss()"),
        "no parameter that takes a gradient",
    ),
    "loss cut off": (
        body("nn.Linear(4, 4), torch.randn(batch_size, 4), 0, lambda out, _: out.detach().mean()"),
        "no gradient reaches the model",
    ),
    "loss not a number": (
        body("nn.Linear(4, 4), torch.randn(batch_size, 4), 0, lambda out, _: out"),
        "it must be one number",
    ),
}


@pytest.mark.parametrize("case", TRACING)
def test_what_cannot_be_trained_is_one_line(tmp_path: Path, case: str) -> None:
    from gpubench.profile import profile_workload

    source, message = TRACING[case]
    with pytest.raises(MisuseError, match=message) as caught:
        profile_workload(load_workload(write(tmp_path, source)))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("my_model.py: ")


def logged(name: str = "my_model.py") -> str:
    return (platformdirs.user_data_path("gpubench") / "logs" / f"{name}.log").read_text(encoding="utf-8")


def test_an_own_model_is_profiled_in_a_child_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = profile_of(write(tmp_path, "print('hello')\n" + GOOD))
    assert found.name == "my_model.py"
    assert found.forward_flops_per_sample == 100
    assert capfd.readouterr() == ("", "")


def test_a_traceback_goes_to_a_log_and_not_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MisuseError, match=r"ZeroDivisionError: division by zero \(traceback in .*log\)"):
        profile_of(write(tmp_path, "print('before')\nwhatever = 1 / 0\n"))
    assert "whatever = 1 / 0" in logged()
    assert "before" in logged()
    assert capfd.readouterr() == ("", "")


def test_a_model_that_ends_the_process_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match=r"my_model.py: its process ended by itself, with exit code 5"):
        profile_of(write(tmp_path, "import os\nos._exit(5)\n"))
    with pytest.raises(MisuseError, match="ended by SIGABRT"):
        profile_of(write(tmp_path, "import os\nos.abort()\n"))


def test_a_flood_of_output_is_cut(tmp_path: Path) -> None:
    flood = (
        "import sys\nfor _ in range(100):\n    sys.stdout.write('x' * 1_000_000)\nprint('the end')\nboom\n"
    )
    with pytest.raises(MisuseError, match="NameError"):
        profile_of(write(tmp_path, flood))
    assert len(logged()) < 100_000
    assert "the end" in logged()


def test_a_model_that_never_returns_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    source = (
        "import os, subprocess, pathlib, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(child.pid))\nwhile True: pass\n"
    )
    started = time.monotonic()
    with pytest.raises(MisuseError, match=r"not been built and traced within 2\.00 s"):
        profile_of(write(tmp_path, source), time_limit_s=2.0)
    assert time.monotonic() - started < 10
    time.sleep(0.2)
    state = Path(f"/proc/{mark.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_standard_profile_needs_no_torch() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom gpubench.profile import load_profiles, profile_of\n"
        "assert profile_of('vgg16').parameters == 138_357_544 == load_profiles()['vgg16'].parameters"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_name_starts_no_process() -> None:
    with pytest.raises(MisuseError, match="unknown workload"):
        profile_of("vgg17")
