"""The user's own model: what is accepted, and one clear line for each error."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
import pytest
import torch
from memory_cases import case_of
from patience import Stopwatch, is_gone, wait_until

from gpubench.children import MOST_ANSWER_PRINTED_BYTES
from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.models import (
    CardClass,
    Execution,
    MemoryBasis,
    Precision,
    Recipe,
    TaskKind,
    WeightType,
    WorkloadProfile,
)
from gpubench.models.workload import Operator, OperatorKind
from gpubench.predict.question import question_of, why_impossible
from gpubench.profile import profile_of, profiles_of
from gpubench.profile.cache import Answer, contradiction
from gpubench.profile.child import _answer, check_first_loss
from gpubench.profile.liveness import trace_memory
from gpubench.profile.memory import need_of
from gpubench.profile.trace import profile_workload, trace_workload
from gpubench.user_model import import_own, takes_seed, version_of, workload_of
from gpubench.workload import Workload

GOOD = """
import torch
from torch import nn

def build(batch_size):
    return nn.Linear(10, 5), torch.randn(batch_size, 10), torch.zeros(batch_size).long(), nn.CrossEntropyLoss()
"""


@pytest.fixture(autouse=True)
def _paths_and_modules_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def write(folder: Path, source: str, name: str = "my_model.py") -> str:
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return str(path)


def _profile(workload: Workload) -> WorkloadProfile:
    """Trace a workload without the other ways to train it."""
    return trace_workload(workload, ways=()).profile


def test_plain_build_function_makes_a_workload(tmp_path: Path) -> None:
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
def test_build_with_varying_input_shapes_keeps_a_single_batch(tmp_path: Path, inputs: str) -> None:
    source = (
        GOOD.replace("torch.randn(batch_size, 10)", inputs)
        + "from itertools import count\nLENGTHS = count(1)\n"
    )
    assert len(load_workload(write(tmp_path, source)).build(3, 0).batches) == 1


def test_a_slow_build_is_called_once_and_a_task_is_used_as_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("gpubench.user_model.SLOW_BUILD_S", -1.0)
    assert len(load_workload(write(tmp_path, GOOD)).build(3, 0).batches) == 1
    monkeypatch.undo()
    source = "from gpubench.discovery import load_workload\ndef build(n):\n    return load_workload('cnn').tiny(n, 0)\n"
    assert len(load_workload(write(tmp_path, source)).build(3, 0).batches) == 4


def test_a_build_without_values_is_not_repeated_and_counts_as_four_batches(tmp_path: Path) -> None:
    """Another seed changes only values. An array of NumPy has values in every trace."""
    builds = tmp_path / "builds"
    builds.mkdir()
    noted = GOOD.replace(":\n    return", f":\n    tempfile.mkdtemp(dir={str(builds)!r})\n    return")
    workload = load_workload(write(tmp_path, "import tempfile\n" + noted))
    before = len([*builds.iterdir()])
    with torch.device("meta"):
        assert len(workload.build(3, 0).batches) == 4
    assert len([*builds.iterdir()]) == before + 1

    array = "torch.from_numpy(numpy.random.rand(batch_size, 10).astype('float32'))"
    source = "import numpy\n" + GOOD.replace("torch.randn(batch_size, 10)", array)
    with_values = load_workload(write(tmp_path, source, "with_values.py"))
    one, other = (trace_memory(each, ways=()) for each in (workload, with_values))
    assert one == other
    inference = next(each for each in one if each.task is TaskKind.INFER and not each.is_amp)
    batch, outputs = 10 * 4 + 8, 5 * 4
    assert max(line.bytes_per_sample for line in inference.lines) == 4 * batch + outputs


def test_other_ways_to_train_are_traced_only_if_requested(tmp_path: Path, traced_here: None) -> None:
    model = write(tmp_path, GOOD)
    usual, half = Recipe(), Recipe(weight_type=WeightType.BFLOAT16)

    def traced(**how: Any) -> set[Recipe]:
        return {step.recipe for step in profile_of(model, **how).memory}

    assert traced() == {usual}
    assert traced(precisions=["bf16"]) == {usual, half}
    assert traced(with_ways=True) == {usual}  # it has no blocks to recompute, and no tokens


def test_the_version_of_a_users_model_follows_its_source(tmp_path: Path) -> None:
    before = load_workload(write(tmp_path, GOOD)).version
    after = load_workload(write(tmp_path, GOOD.replace("(10, 5)", "(10, 6)"))).version
    assert before != after


def test_settings_next_to_build_are_read(tmp_path: Path) -> None:
    more = "BATCHES = (2, 3)\nSAMPLE_UNIT = 'scan'\nSOURCE = 'a paper'\n"
    workload = load_workload(write(tmp_path, more + GOOD))
    assert (workload.batches, workload.sample_unit, workload.source) == ((2, 3), "scan", "a paper")


def test_a_function_may_be_named_and_may_take_a_seed(tmp_path: Path) -> None:
    source = GOOD.replace("def build(batch_size)", "def net(batch_size, seed)")
    workload = load_workload(write(tmp_path, source) + ":net")
    assert workload.name == "my_model.py:net"
    assert workload.build(2, 5).batches[0][0].shape == (2, 10)


@pytest.mark.parametrize(
    "more", ["width=10", "width=10, seed=0", "*, width=10", "*others, width=10", "*, seed=0, width=10"]
)
def test_the_seed_is_not_given_to_another_argument_with_a_default(tmp_path: Path, more: str) -> None:
    source = GOOD.replace("10", "width").replace("batch_size):", f"batch_size, {more}):")
    workload = load_workload(write(tmp_path, source))
    assert workload.build(2, 7).batches[0][0].shape == (2, 10)


def test_a_seed_with_a_default_is_given(tmp_path: Path) -> None:
    source = "DRAWN = []\n" + GOOD.replace("batch_size):", "batch_size, seed=3):\n    DRAWN.append(seed)")
    _, module = import_own(write(tmp_path, source))
    workload_of("my_model.py", module.build, module).build(2, 7)
    assert 7 in module.DRAWN
    assert 3 not in module.DRAWN
    assert not takes_seed("my_model.py", lambda *arguments: arguments)


def test_two_rows_of_graph_edges_are_no_sequences_of_tokens(tmp_path: Path) -> None:
    source = """
import torch
from torch import nn
class Graphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
    def forward(self, nodes, edges):
        return self.head(nodes.index_add(0, edges[1], nodes[edges[0]])).unflatten(0, (-1, 4)).mean(1)
def build(n):
    inputs = torch.randn(4 * n, 8), torch.randint(4 * n, (2, 10 * n))
    return Graphs(), inputs, torch.zeros(n).long(), nn.CrossEntropyLoss()
"""
    assert load_workload(write(tmp_path, source)).sample_unit == "sample"


def test_a_dict_with_an_optimizer_is_accepted(tmp_path: Path) -> None:
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


def test_a_misspelled_key_is_refused_rather_than_trained_with_the_default_optimizer(tmp_path: Path) -> None:
    source = """
import torch
def build(n):
    return {"model": torch.nn.Linear(3, 4), "inputs": torch.randn(n, 3), "targets": torch.zeros(n, 4),
            "loss": torch.nn.functional.mse_loss, "optim": torch.optim.SGD}
"""
    with pytest.raises(MisuseError, match=r"returned an unknown optim; .* loss, optimizer$"):
        load_workload(write(tmp_path, source))


def test_a_workload_object_is_accepted_and_has_the_name_of_its_file(tmp_path: Path) -> None:
    source = "from gpubench.discovery import load_workload\nWORKLOAD = load_workload('cnn')\n"
    workload = load_workload(write(tmp_path, source))
    assert workload.name == "my_model.py", "never mistaken for the standard one"
    assert workload.batches == (64, 512, 4096)


def test_a_workload_object_with_settings_is_built_by_the_requested_recipe(tmp_path: Path) -> None:
    source = (
        "from dataclasses import replace\nfrom gpubench.discovery import load_workload\n"
        "LLAMA = load_workload('llama_1b')\nWORKLOAD = replace(LLAMA, build=LLAMA.tiny)\n"
    )
    workload = load_workload(write(tmp_path, source))
    changed = workload.at(workload.recipe.changed({"context_tokens": 24}))
    assert changed.sample_shape == (24,)
    assert changed.build(2, 0).batches[0][1].shape == (2, 24)


def test_files_next_to_a_model_can_be_imported(tmp_path: Path) -> None:
    write(tmp_path, "SIZE = 10\n", "neighbor_of_a_file.py")
    path = write(tmp_path, "from neighbor_of_a_file import SIZE\n" + GOOD)
    assert load_workload(path).sample_shape == (10,)


def test_a_module_is_loaded_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "SIZE = 10\n", "neighbor_of_a_module.py")
    write(tmp_path, "from neighbor_of_a_module import SIZE\n" + GOOD, "module_of_mine.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])  # "" also means the current folder
    assert load_workload("module_of_mine:build").name == "module_of_mine:build"


def test_file_that_changes_directory_on_import_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "import os; os.chdir('/')\n" + GOOD)
    assert load_workload("./my_model.py").name == "my_model.py"


def test_a_special_or_huge_file_is_refused_before_python_reads_it(tmp_path: Path) -> None:
    pipe, huge = tmp_path / "pipe.py", tmp_path / "huge.py"
    os.mkfifo(pipe)
    huge.touch()
    os.truncate(huge, 2**30)
    for path, why in ((pipe, "a pipe"), (huge, "over the limit")):
        with pytest.raises(MisuseError, match=why):
            load_workload(str(path))


def test_a_neighboring_file_does_not_shadow_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "symtable", raising=False)
    write(tmp_path, "raise RuntimeError('this is not the standard library')\n", "symtable.py")
    assert load_workload(write(tmp_path, "import symtable\n" + GOOD)).name == "my_model.py"


HELPED = "from {helper} import SIZE\n" + GOOD.replace("nn.Linear(10, 5)", "nn.Linear(10, SIZE)")


def test_source_of_an_imported_helper_is_part_of_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, HELPED.format(helper="helper_of_a_file"))
    write(tmp_path, "SIZE = 5\n", "helper_of_a_file.py")
    write(tmp_path, "SIZE = 5\n", "not_imported.py")
    before = load_workload(path).version
    write(tmp_path, "SIZE = 6\n", "not_imported.py")
    assert load_workload(path).version == before
    write(tmp_path, "SIZE = 6\n", "helper_of_a_file.py")
    assert load_workload(path).version != before

    package = tmp_path / "package_of_mine"
    package.mkdir()
    write(package, "", "__init__.py")
    write(package, "SIZE = 5\n", "sizes.py")
    write(package, HELPED.format(helper="package_of_mine.sizes"), "net.py")
    write(package, "from gpubench.discovery import load_workload\nNET = load_workload('cnn')\n", "ready.py")
    monkeypatch.chdir(tmp_path)
    names = ("package_of_mine.net:build", "package_of_mine.ready:NET")
    before_both = [load_workload(name).version for name in names]
    assert before_both[1] != load_workload("cnn").version
    write(package, "SIZE = 6\n", "sizes.py")
    assert all(load_workload(name).version != old for name, old in zip(names, before_both, strict=True))


def test_a_version_does_not_depend_on_the_location_of_the_file(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    assert load_workload(write(there, GOOD)).version == load_workload(write(here, GOOD)).version


def test_traced_structure_is_part_of_the_version(tmp_path: Path) -> None:
    """A settings file, or a library, may build another network from the same sources."""
    source = GOOD.replace("nn.Linear(10, 5)", "nn.Linear(10, int(SIZE.read_text()))")
    path = write(
        tmp_path, f"from pathlib import Path\nSIZE = Path({str(tmp_path / 'size.txt')!r})\n" + source
    )
    write(tmp_path, "5", "size.txt")
    first = profile_workload(load_workload(path))
    write(tmp_path, "6", "size.txt")
    second = profile_workload(load_workload(path))
    assert first.version == second.version
    assert version_of(path, first) != version_of(path, second)
    same = msgspec.structs.replace(first, train=(), saved_bytes_per_sample=0.0)
    assert version_of(path, first) == version_of(path, same), (
        "operators and saved bytes vary with the version of torch"
    )
    answer = _answer(path)
    assert answer.profile is not None
    assert answer.profile.version == version_of(path, second)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = write(tmp_path, GOOD), write(tmp_path / "other", GOOD)
    with pytest.raises(MisuseError, match=r"both called my_model\.py"):
        profiles_of(["vgg16", one, two])
    with pytest.raises(MisuseError, match="list it once"):
        profiles_of([one + ":build", one + ":build"])


@pytest.mark.usefixtures("traced_here")
def test_several_inputs_are_accepted(tmp_path: Path) -> None:
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


TOKENS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 4)
    def forward(self, tokens):
        return self.head(self.words(tokens).mean(1))
def build(n):
    return (
        Net().to(torch.bfloat16), torch.randint(50, (n, 12)), torch.zeros(n).long(), torch.nn.functional.cross_entropy
    )
"""


@pytest.mark.usefixtures("traced_here")
def test_a_model_in_bfloat16_on_tokens_is_used_as_is(tmp_path):
    """50 x 8 + 8 x 4 + 4 weights at two bytes, and sequences of 12 tokens."""
    profile = profile_of(write(tmp_path, TOKENS))
    assert (profile.recipe.weight_type, profile.precisions) == (WeightType.BFLOAT16, ("bf16",))
    assert (profile.sample_unit, profile.tokens_per_sample) == ("sequence", 12)
    assert {step.weights_bytes for step in profile.memory} == {2 * 436}


def body(returned: str) -> str:
    return f"import torch\nfrom torch import nn\ndef build(batch_size):\n    return {returned}\n"


LOADING = {
    "relative import": ("from .layers import Net\n", r"line 1\); name a file of a package as a module"),
    "arrays": (
        "import numpy as np\n"
        + GOOD.replace("torch.randn(", "np.zeros((").replace("10), torch.z", "10)), torch.z"),
        "no tensor, but an object of type ndarray; give torch.from_numpy of it",
    ),
    "loss not made": (
        GOOD.replace("EntropyLoss()", "EntropyLoss"),
        "the loss is <class 'torch.*CrossEntropyLoss'>, not a function .* give lambda outputs, _",
    ),
    "nul bytes": ("x = 1\n\0\n", "its source is not text in UTF-8"),
    "a unit without end": (
        "SAMPLE_UNIT = 'x' * 201\n" + GOOD,
        "SAMPLE_UNIT has 201 characters; give at most 200",
    ),
    "a source without end": (
        "SOURCE = 'x' * 5_000_000\n" + GOOD,
        "SOURCE has 5,000,000 characters; give at most 200",
    ),
    "import error": ("import no_such_library_at_all", "ModuleNotFoundError: No module named"),
    "no arguments": ("def build(): ...", "build must take one argument.*; it takes nothing"),
    "three arguments": ("def build(batch_size, size, data): ...", "it takes batch_size, size and data"),
    "batch size second": ("def build(name, batch_size): ...", "it takes name and batch_size"),
    "a config": (
        "def build(cfg):\n    return cfg.model",
        r"no attribute 'model' \(.* line 2\); gpubench gives build only a batch size, here as cfg: define",
    ),
    "build is a number": ("build = 3", "its type is int; it must be a Workload or a function"),
    "needs arguments": (
        "from argparse import *\np = ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()",
        r"calls sys.exit\(2\) .*; it is run without command-line arguments: give each of them a default",
    ),
    "raises": ("def build(n):\n    raise RuntimeError('no\\nluck')", "RuntimeError: no luck"),
    "two values": (body("nn.Linear(1, 1), torch.randn(batch_size, 1)"), "build returned 2 values"),
    "no module": (body("3, torch.randn(batch_size, 1), 0, nn.MSELoss()"), "the model is 3, not a"),
    "no loss": (body("nn.Linear(1, 1), torch.randn(batch_size, 1), 0, 3"), "the loss is 3, not"),
    "ignores the batch": (body("nn.Linear(1, 1), torch.randn(5, 1), 0, nn.MSELoss()"), r"shape \(5, 1\)"),
    "inputs no tensor": (
        body("nn.Linear(1, 1), [1, 2], 0, nn.MSELoss()"),
        "inputs contain no tensor, but 2 values; give tensors, in a list if their sizes differ",
    ),
    "a dict with a hole": (body("{'model': nn.Linear(1, 1)}"), "no inputs and no targets and no loss"),
    "half precision": (
        body("nn.Linear(1, 1).half(), torch.randn(batch_size, 1), 0, nn.MSELoss()"),
        "built in torch.float16",
    ),
    "double inputs": (
        body("nn.Linear(1, 1), torch.randn(batch_size, 1).double(), 0, nn.MSELoss()"),
        "built in torch.float64",
    ),
    "batches of nothing": ("BATCHES = (0,)\n" + GOOD, r"batches \(0,\)"),
    "no batches": ("BATCHES = ()\n" + GOOD, r"batches \(\): give whole numbers"),
    "one batch": ("BATCHES = 16\n" + GOOD, "batches 16: give whole numbers"),
    "batches in words": ("BATCHES = '16'\n" + GOOD, "batches '16': give whole numbers"),
    "half a sample": ("BATCHES = (16.0, 32)\n" + GOOD, r"batches \(16\.0, 32\): give whole numbers"),
    "an optimizer, made": (
        body(
            "(lambda m: (m, torch.randn(batch_size, 1), 0, nn.MSELoss(), "
            "torch.optim.SGD(m.parameters())))(nn.Linear(1, 1))"
        ),
        r"the optimizer is of type SGD; return a factory.*partial",
    ),
    "an optimizer by name": (
        body("nn.Linear(1, 1), torch.randn(batch_size, 1), 0, nn.MSELoss(), 'sgd'"),
        "the optimizer is of type str; return a factory",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("returned", ["model", "(model, 1, 1, None)"])
def test_refused_keras_model_names_the_option_to_run_it(tmp_path: Path, returned: str) -> None:
    pytest.importorskip("jax")
    layers = "[keras.Input((3,)), keras.layers.Dense(1)]"
    source = f"import keras\ndef build(n):\n    model = keras.Sequential({layers})\n    return {returned}\n"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from gpubench.user_model import load_own; load_own({str(write(tmp_path, source))!r})",
        ],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "keras-torch, keras-tensorflow, keras-jax" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("case", LOADING)
def test_a_failed_load_is_one_line(tmp_path: Path, case: str) -> None:
    source, message = LOADING[case]
    with pytest.raises(MisuseError, match=message) as caught:
        load_workload(write(tmp_path, source))
    assert "\n" not in str(caught.value)
    assert "my_model.py" in str(caught.value)


def test_a_sequence_with_time_first_is_no_image(tmp_path: Path) -> None:
    source = GOOD.replace("torch.randn(batch_size, 10)", "torch.randn(50, batch_size, 10)")
    workload = load_workload(write(tmp_path, source))
    assert (workload.sample_unit, workload.is_image) == ("sample", False)


def test_a_list_of_batches_is_accepted(tmp_path: Path) -> None:
    assert load_workload(write(tmp_path, "BATCHES = [2, 3]\n" + GOOD)).batches == (2, 3)


def test_the_build_of_a_workload_returns_a_task(tmp_path: Path) -> None:
    source = (
        "from dataclasses import replace\nfrom gpubench.discovery import load_workload\n"
        "WORKLOAD = replace(load_workload('cnn'), build=lambda n, seed: (1, 2, 3, 4))\n"
    )
    with pytest.raises(MisuseError, match="4 values;"):
        load_workload(write(tmp_path, source)).build(2, 0)


@pytest.mark.parametrize("reference", ["./absent.py", "no_such_module_here:NET", "a/b", "module:", ":x"])
def test_a_missing_file_is_one_line(reference: str) -> None:
    with pytest.raises(MisuseError) as caught:
        load_workload(reference)
    assert "\n" not in str(caught.value)


TRACING = {
    "calls the GPU": (
        body("nn.Linear(4, 4), torch.randn(batch_size, 4), 0, lambda out, _: torch.cuda.synchronize()"),
        "; call torch.cuda only if torch.cuda.is_available",
    ),
    "loss cut off": (
        body("nn.Linear(4, 4), torch.randn(batch_size, 4), 0, lambda out, _: out.detach().mean()"),
        "no gradient reaches the model",
    ),
    "loss nan where only the CPU can run": (
        body(
            "nn.Linear(4, 4), torch.randn(batch_size, 4), 0, "
            "lambda out, _: out.mean() * (float('nan') if out.sum() > -99 else 1)"
        ),
        "its loss is nan in the first step",
    ),
    "loss not a number": (
        body("nn.Linear(4, 4), torch.randn(batch_size, 4), 0, lambda out, _: out"),
        "it must be one number",
    ),
}


@pytest.mark.parametrize("case", TRACING)
def test_an_untrainable_model_is_one_line(tmp_path: Path, case: str) -> None:
    source, message = TRACING[case]
    with pytest.raises(MisuseError, match=message) as caught:
        profile_workload(load_workload(write(tmp_path, source)))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("my_model.py: ")


HUGE = body(
    "nn.Sequential(nn.Linear(160_000, 160_000), nn.Linear(160_000, {out})), torch.randn(batch_size, 160_000), "
    "torch.zeros(batch_size, 5), nn.MSELoss()"
)
"""Its weights take 102 GB."""


def test_a_layer_of_100_gb_is_profiled_and_takes_no_memory(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, HUGE.format(out=5)))
    found = _profile(workload)
    assert found.parameters == 160_000 * 160_006 + 5
    assert "25,600 million parameters" in check_first_loss(workload, found)


def test_the_error_of_a_model_too_large_for_memory_is_reported(tmp_path: Path) -> None:
    source = HUGE.format(out=5).replace("nn.Linear(160_000, 5)", "nn.Linear(7, 5)")
    with pytest.raises(MisuseError, match=r"my_model\.py: .*160000.*\b7\b"):
        profile_workload(load_workload(write(tmp_path, source)))
    values = HUGE.format(out=5).replace("    return", "    assert torch.randn(1).item() < 99\n    return")
    with pytest.raises(MisuseError, match=r"Tensor\.item\(\) .*my_model\.py line 4"):
        load_workload(write(tmp_path, values))


@pytest.mark.parametrize("of", ["torch.randn(1)", "nn.Linear(300, 300).weight.sum()"])
def test_build_that_reads_values_of_weights_runs_on_the_cpu_and_notes_it(tmp_path: Path, of: str) -> None:
    path = write(tmp_path, GOOD.replace("    return", f"    assert {of}.item() < 99\n    return"))
    answer = _answer(path)
    assert answer.profile is not None
    assert answer.profile.parameters == 55
    if "weight" in of:
        (note,) = answer.notes
        assert note.startswith("my_model.py: built and traced")
        assert "MisuseError" not in note
    else:
        assert not answer.notes
    assert answer.profile.memory
    assert not answer.profile.is_eager_only


def test_a_step_that_needs_values_is_ranked_as_eager_and_its_memory_is_traced(tmp_path: Path) -> None:
    loss = "lambda out, y: nn.functional.cross_entropy(out, y) * (2 if out.sum() > 0 else 1)"
    answer = _answer(write(tmp_path, GOOD.replace("nn.CrossEntropyLoss()", loss)))
    assert answer.profile is not None
    assert answer.profile.is_eager_only
    assert question_of(answer.profile, None, execution=Execution.GRAPH).execution is Execution.EAGER
    built, eager = answer.notes
    assert built.startswith("my_model.py: traced with values that a step on the CPU computed")
    assert "ranked as eager" in eager
    plain = _answer(write(tmp_path, GOOD)).profile
    assert plain is not None
    cases = [case_of(each, TaskKind.TRAIN, Precision.FP32, 512) for each in (answer.profile, plain)]
    needs = [need_of(p, c, CardClass.HBM) for p, c in zip((answer.profile, plain), cases, strict=True)]
    assert needs[0].basis is needs[1].basis is MemoryBasis.TRACED
    assert needs[0].allocated.value == pytest.approx(needs[1].allocated.value, rel=0.05)


def test_a_step_that_fails_under_autocast_of_a_gpu_is_ranked_at_fp32_and_says_why(tmp_path: Path) -> None:
    loss = "lambda out, y: nn.functional.binary_cross_entropy(out.sigmoid()[:, 0], y.float().clamp(0, 1))"
    answer = _answer(write(tmp_path, GOOD.replace("nn.CrossEntropyLoss()", loss)))
    profile = answer.profile
    assert profile is not None
    assert profile.why_no_amp is not None
    assert "unsafe to autocast" in profile.why_no_amp
    assert question_of(profile, None).precision is Precision.FP32
    asked = question_of(profile, "amp")
    assert "fails under autocast on a GPU" in (why_impossible(asked) or "")
    assert why_impossible(msgspec.structs.replace(asked, task=TaskKind.INFER)) is None
    (note,) = answer.notes
    assert "AMP is not offered" in note


def test_a_model_that_cannot_take_a_second_step_is_refused(tmp_path: Path) -> None:
    keeps = "lambda out, y, kept=[0.0]: (kept.append(nn.functional.cross_entropy(out, y) + kept[-1]), kept[-1])[1]"
    answer = _answer(write(tmp_path, GOOD.replace("nn.CrossEntropyLoss()", keeps)))
    assert "backward through the graph a second time" in (answer.error or "")


def test_an_optimizer_that_needs_a_closure_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = GOOD.replace("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(), torch.optim.LBFGS")
    assert "LBFGS calls model and loss through a closure" in (_answer(write(tmp_path, source)).error or "")


def test_an_optimizer_that_asserts_its_closure_is_refused_with_the_reason(tmp_path: Path) -> None:
    head = """
class SAM(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None, "a closure is required"
"""
    source = GOOD.replace("\ndef build", f"{head}\ndef build").replace("EntropyLoss()", "EntropyLoss(), SAM")
    assert "a step of SAM calls model and loss through a closure" in (
        _answer(write(tmp_path, source)).error or ""
    )


NAN = GOOD.replace("nn.CrossEntropyLoss()", "lambda out, y: out.mean() * float('nan')")


def test_a_loss_that_is_not_a_number_is_refused_without_a_gpu(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, NAN))
    profile = _profile(workload)  # on the meta device, where the loss has no value
    with pytest.raises(MisuseError, match=r"^my_model\.py: .* is nan"):
        check_first_loss(workload, profile)
    assert check_first_loss(replace(workload, tasks=()), profile) is None
    sound = load_workload(write(tmp_path, GOOD))
    assert check_first_loss(sound, _profile(sound)) is None


def test_a_target_out_of_range_is_found_although_the_trace_has_no_values(tmp_path: Path) -> None:
    workload = load_workload(
        write(tmp_path, GOOD.replace("torch.zeros(batch_size)", "torch.full((batch_size,), 9)"))
    )
    profile = _profile(workload)
    with pytest.raises(MisuseError, match=r"my_model\.py: .*IndexError: Target 9"):
        check_first_loss(workload, profile)


FORWARD = """
import sys
import torch
class Net(torch.nn.Linear):
    def forward(self, x):
        {act}
        return super().forward(x)
def build(n):
    return Net(10, 5), torch.randn(n, 10), torch.zeros(n).long(), torch.nn.CrossEntropyLoss()
"""


BADLY_TYPED = (
    "from dataclasses import replace\nfrom gpubench.discovery import load_workload\n"
    "WORKLOAD = replace(load_workload('cnn'), sample_unit=3)\n"
)
ANSWERS = {
    FORWARD.format(act="sys.exit(3)"): "my_model.py: calls sys.exit(3) (my_model.py line 6)",
    FORWARD.format(act="raise KeyError('color')"): (
        "my_model.py: cannot run one training step on its own batch: KeyError: 'color' (my_model.py line 6)"
    ),
    BADLY_TYPED: "my_model.py: ValidationError: Expected `str`, got `int` - at `$.sample_unit`",
}


@pytest.mark.parametrize(("source", "line"), ANSWERS.items())
def test_child_reports_any_user_model_error_in_one_line(tmp_path: Path, source: str, line: str) -> None:
    answer = _answer(write(tmp_path, source))
    assert answer.error == line
    assert answer.traceback is not None
    assert "Traceback" in answer.traceback


def logged(name: str = "my_model.py") -> str:
    return (platformdirs.user_data_path("gpubench") / "logs" / f"{name}.log").read_text(encoding="utf-8")


@pytest.mark.usefixtures("forked_children")
def test_a_users_model_is_profiled_in_a_child_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    just_allowed = f"print('x' * {MOST_ANSWER_PRINTED_BYTES - 1000})\n"
    found = profile_of(write(tmp_path, just_allowed + GOOD))
    assert found.name == "my_model.py"
    assert found.forward_flops_per_sample == 100
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("forked_children")
def test_a_traceback_goes_to_a_log_and_not_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MisuseError, match=r"\(my_model\.py line 2\) \(traceback"):
        profile_of(write(tmp_path, "print('before')\nwhatever = 1 / 0\n"))
    assert "whatever = 1 / 0" in logged()
    assert "before" in logged()
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("forked_children")
def test_a_model_that_ends_the_process_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="status 5"):
        profile_of(write(tmp_path, "import os\nos._exit(5)\n"))
    with pytest.raises(MisuseError, match="SIGABRT"):
        profile_of(write(tmp_path, "import os\nos.abort()\n"))
    with pytest.raises(MisuseError, match=r"SIGKILL.*: probably"):
        profile_of(write(tmp_path, "import os\nos.kill(os.getpid(), 9)\n"))


@pytest.mark.usefixtures("forked_children")
def test_profile_forged_by_a_user_model_is_refused(tmp_path: Path) -> None:
    """The model writes a profile with the name of a standard workload into the pipe of its process."""
    line = msgspec.json.encode(Answer(profile=profile_of("lstm"))).decode()
    forged = (
        "import os\n"
        "for number in range(3, 1000):\n"
        "    try:\n"
        f"        os.write(number, {line!r}.encode() + bytes([10]))\n"
        "    except OSError:\n        pass\n"
        "os._exit(0)\n"
    )
    with pytest.raises(MisuseError, match=r"^my_model\.py: .*'lstm'$"):
        profile_of(write(tmp_path, forged))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "cnn"}, "is for 'cnn'"),
        ({"parameters": -1}, "of -1 parameters"),
        ({"trainable_parameters": 10**12}, "parameters are trained"),
        ({"batches": (64, 0)}, "a batch of 0"),
        ({"train_flops_per_sample": -1e9}, "an amount of -1e+09"),
        ({"train": (Operator(kind=OperatorKind.MATMUL, count=-1),)}, "an amount of -1"),
    ],
)
def test_an_impossible_profile_is_refused(wrong: dict[str, object], said: str) -> None:
    sound = profile_of("lstm")
    assert contradiction("lstm", sound) is None
    assert said in (contradiction("lstm", msgspec.structs.replace(sound, **wrong)) or "")


@pytest.mark.usefixtures("forked_children")
def test_a_flood_of_output_is_refused_and_ended_early(tmp_path: Path) -> None:
    mark = tmp_path / "end"
    flood = "for n in range(10_000):\n    print(f'{n:010}' * 10_000)\n"
    with pytest.raises(MisuseError, match=r"my_model\.py: .* 8\.00 MiB: .*my_model.*log"):
        profile_of(write(tmp_path, flood + f"open({str(mark)!r}, 'w')\n" + GOOD))
    assert not mark.exists()
    assert 0 < len(logged()) < 100_000


def test_output_flood_after_the_answer_is_also_refused(tmp_path: Path) -> None:
    source = "import atexit\natexit.register(print, 'x' * 10**8)\n"
    with pytest.raises(MisuseError, match="printed more than"):
        profile_of(write(tmp_path, source))


def test_a_slow_trace_is_announced_with_its_limit(tmp_path: Path) -> None:
    """In its own process: a warning reaches stderr unchanged only if nobody has configured logging."""
    write(tmp_path, "while True: pass\n", "mine.py")
    program = (
        "from gpubench.profile import cache\ncache.NOTICE_AFTER_S, cache.TRACE_CPU_S = 0.1, 1.0\n"
        "from gpubench.cli.app import main\nmain()"
    )
    arguments = [sys.executable, "-c", program, "predict", "show", "./mine.py"]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 2
    notice, refusal = done.stderr.splitlines()
    assert notice.startswith("mine.py is being")
    assert "for at most 1.00 s of CPU time" in notice
    assert "within 1.00 s of CPU time" in refusal


@pytest.mark.usefixtures("forked_children")
def test_a_model_that_never_finishes_is_ended_by_its_cpu_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubench.profile.cache.TRACE_CPU_S", 1.0)
    with pytest.raises(
        MisuseError, match=r"within 1\.00 s of CPU time.*; .*time steps.*; .*training loop.*__main__"
    ):
        profile_of(write(tmp_path, "while True: pass\n"))


@pytest.mark.usefixtures("forked_children")
def test_a_model_that_works_in_another_process_is_not_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpubench.profile.cache.IDLE_LIMIT_S", 1.0)
    work = "import time\nwhile time.process_time() < 3: pass"
    source = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}], check=True)\n"
    assert profile_of(write(tmp_path, source + GOOD)).parameters > 0


@pytest.mark.usefixtures("forked_children")
def test_a_model_that_never_returns_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s = 5.0
    monkeypatch.setattr("gpubench.profile.cache.IDLE_LIMIT_S", limit_s)
    mark = tmp_path / "pid"
    source = (
        "import os, subprocess, pathlib, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(mark)!r}).write_text(str(child.pid))\nsignal.pause()\n"
    )
    watch = Stopwatch()
    with pytest.raises(
        MisuseError, match=r"almost no CPU time for 5\.00 s and was killed.*; it waits: .*downloads"
    ):
        profile_of(write(tmp_path, source))
    assert watch.free_s() < 2 * limit_s + 7
    wait_until(lambda: is_gone(int(mark.read_text())))


def test_a_standard_profile_needs_no_torch() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom gpubench.profile import load_profiles, profile_of\n"
        "assert profile_of('vgg16').parameters == 138_357_544 == load_profiles()['vgg16'].parameters"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_name_starts_no_process() -> None:
    with pytest.raises(MisuseError, match="unknown workload"):
        profile_of("vgg17")
