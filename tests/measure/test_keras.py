"""Keras as a framework: its models, its steps on each backend, and its refusals."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from builders import case_of, run_of

from gpubench.children import run_child
from gpubench.effects import Result, framework_effects
from gpubench.errors import MisuseError
from gpubench.measure import capability
from gpubench.measure.messages import CaseDone
from gpubench.measure.plan import check_request, plan
from gpubench.measure.request import RunRequest
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Framework,
    Launch,
    Measurement,
    Precision,
    Round,
    Status,
    TaskKind,
)
from gpubench.profile import load_profiles
from gpubench.profile.cache import Answer
from gpubench.sections.data import of_run
from gpubench.sections.measured import frameworks, host

CPU = DeviceProfile(backend="cpu", name="a processor", core_count=2)
GPU = DeviceProfile(backend="cuda", name="a card")
KERAS = (Framework.KERAS_TORCH, Framework.KERAS_TENSORFLOW, Framework.KERAS_JAX)

BACKEND = """
import sys
import numpy as np
from gpubench.discovery import keras_models
from functools import partial
from gpubench.measure import keras_case
from gpubench.measure.keras_case import KerasBench, measure_case
from gpubench.measure.messages import MeasureCase
from gpubench.models import *
from gpubench.measure.budget import QUICK
from gpubench.probe.probe import open_telemetry
import msgspec
framework = Framework(sys.argv[1])
models = keras_models()
budget = msgspec.structs.replace(QUICK, timed_s=0.5, warmup_steps=2, warmup_least_s=0.0, warmup_most_s=0.3,
                                 round_s=0.01, window_s=0.02, curve_steps=2)
device = DeviceProfile(backend="cpu", name="a processor", core_count=2)
bench = KerasBench(framework=framework, budget=budget, seed=0, telemetry=open_telemetry(device).__enter__(),
                   profile=device)
tiny = {name: partial(models.MODELS[name], **small) for name, small in models.TINY.items()}
own = keras_case.build_of
keras_case.build_of = lambda reference, framework: tiny.get(reference) or own(reference, framework)
ends = []
for order in sys.argv[2:]:
    name, precision, execution = order.rsplit("/", 2)
    case = Case(workload=name, workload_version=1, task=TaskKind.TRAIN, precision=Precision(precision),
                execution=Execution(execution), memory_format=None, batch_size=4, sample_unit="image",
                framework=framework)
    ends.append(measure_case(MeasureCase(reference=name, case=case, launch=0), bench))
foreign = sorted({"torch", "tensorflow", "jax"} & sys.modules.keys())
sys.stdout.write(msgspec.json.encode({"ends": ends, "loaded": foreign}).decode())
"""


@pytest.fixture(scope="module", autouse=True)
def _quick_compiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let jax keep its compiled code for the next process.

    Eager steps compile each operation for each shape: hundreds for a small model, on one processor.
    """
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("jax")))
        changed.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        changed.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


def in_child(framework: Framework, *orders: str) -> dict:
    """Measure tiny models in a process with one backend, as the measuring child does."""
    variables = {**os.environ, **capability.variables_of(framework, CPU)}
    if framework is Framework.KERAS_JAX:
        variables["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BACKEND, framework.value, *orders],
        env=variables,
        capture_output=True,
        text=True,
        timeout=500,  # on a busy machine: six cases take about 40 s of CPU time
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return msgspec.json.decode(done.stdout)


def _each(execution: str) -> list[str]:
    """The four standard workloads at fp32, and one at each of the mixed precisions."""
    standard = [f"{name}/fp32/{execution}" for name in ("cnn", "lstm", "vgg16", "vgg16_transfer")]
    return [*standard, *(f"cnn/{mixed}/{execution}" for mixed in ("amp-bf16", "amp-fp16"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "orders"),
    [
        (Framework.KERAS_TORCH, _each("eager")),
        (Framework.KERAS_TENSORFLOW, [*_each("tf-graph"), "cnn/fp32/compile"]),
        (Framework.KERAS_JAX, _each("compile")),
    ],
    ids=KERAS,
)
def test_cases_are_measured_end_to_end_on_each_backend(framework: Framework, orders: list[str]) -> None:
    """One process measures them in turn, as in a run, because importing a backend takes most of the time."""
    pytest.importorskip("keras")
    pytest.importorskip(capability.KERAS[framework].backend)
    said = in_child(framework, *orders)
    for order, end in zip(orders, said["ends"], strict=True):
        assert end["status"] == "ok", (order, end["reason"], end["traceback"])
        launch, precision = end["launch"], Precision(order.split("/")[1])
        assert len(launch["rounds"]) >= 2, order
        assert all(r["wall_s"] > 0 for r in launch["rounds"]), order
        assert launch["parameters_moved"] is True, order
        errors = launch["precision_errors"]
        assert set(errors) == {"matmul", "conv"}, order
        if precision is Precision.FP32:
            assert all(error < 1e-5 for error in errors.values()), f"TF32 is not off: {order}"
            assert launch["switches"]["matmul_allow_tf32"] is False, order
        else:
            assert 0 < launch["reference_error"] < precision.facts.loss_error, order
        if not order.endswith("eager"):
            assert launch["graph_error"] < precision.facts.loss_error, order
    if framework is Framework.KERAS_JAX:
        assert said["loaded"] == ["jax"], "another framework was loaded too"


def compiled_file(
    path: Path, model: str, *, loss: str = "mse", optimizer: str = "sgd", before: str = "", within: str = ""
) -> Path:
    """Write a file that builds and compiles a Keras model.

    Args:
        path: The file.
        model: The model as an expression of ``keras``.
        loss, optimizer: Their names.
        before, within: Lines before the import of Keras, and at the start of ``build``.
    """
    build = "".join(f"    {line}\n" for line in (*within.splitlines(), f"model = {model}"))
    path.write_text(
        f"{before}import keras\ndef build(batch_size):\n{build}"
        f"    model.compile(optimizer='{optimizer}', loss='{loss}')\n    return model\n",
        encoding="utf-8",
    )
    return path


ONE_OUTPUT = "keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])"
PAGE = Path(__file__).parents[2] / "docs" / "devices.md"
COMMANDS = re.findall(r"^gpubench run .*--framework.*", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_page_of_frameworks_has_two_commands() -> None:
    assert len(COMMANDS) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("line", COMMANDS)
def test_documented_framework_command_measures_the_named_frameworks(line: str, tmp_path: Path) -> None:
    """Each command runs as written, but on the CPU and in fewer rounds."""
    words = shlex.split(line)
    asked = words[words.index("--framework") + 1].split(",")
    for framework in asked:
        pytest.importorskip(
            "torch" if framework == "torch" else capability.KERAS[Framework(framework)].backend
        )
    compiled_file(
        tmp_path / "my_keras_model.py", "keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])"
    )
    quick = ("--quick", "--micro", "none", "--device", "cpu", "--json", "--results", "results")
    done = subprocess.run(
        [sys.executable, "-m", *words, *quick], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["measurements"]
    measured = {row["case"].get("framework", "torch") for row in rows if row["status"] == "ok"}
    assert measured == set(asked)


@pytest.mark.slow
def test_compiled_keras_model_accepts_loss_names(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    orders = []
    for loss in ("mse", "sparse_categorical_crossentropy", "categorical_crossentropy"):
        layers = "keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation='softmax')])"
        model = compiled_file(tmp_path / f"{loss}.py", layers, loss=loss, optimizer="adam")
        orders.append(f"{model}/fp32/compile")
    for order, end in zip(orders, in_child(Framework.KERAS_JAX, *orders)["ends"], strict=True):
        assert end["status"] == "ok", (order, end["reason"])


@pytest.mark.slow
def test_compiled_keras_model_with_scalar_outputs_must_return_its_data_too(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    model = compiled_file(
        tmp_path / "scalar.py",
        "keras.Model(inputs, keras.ops.sum(keras.layers.Dense(1)(inputs), axis=-1))",
        within="inputs = keras.Input((3,))",
    )
    (end,) = in_child(Framework.KERAS_JAX, f"{model}/fp32/eager")["ends"]
    assert end["status"] == "failed"
    assert "return model, inputs, targets, loss" in end["reason"]


@pytest.mark.slow
def test_a_model_that_leaves_its_folder_is_found_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    leaves = {"before": "import os\nos.chdir('/')\n", "within": "os.chdir('/tmp')"}
    compiled_file(tmp_path / "leaving.py", ONE_OUTPUT, **leaves)
    monkeypatch.chdir(tmp_path)
    asked = run_child(
        ("-m", "gpubench.measure.keras_case"),
        ("leaving.py:build", Framework.KERAS_JAX),
        Answer,
        time_limit_s=200,
        environment={**os.environ, "KERAS_BACKEND": "jax"},
    )
    assert asked.answer is not None
    assert asked.answer.error is None
    assert asked.answer.profile is not None


@pytest.mark.slow
def test_a_model_that_sets_another_backend_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    before = "import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'\n"
    model = compiled_file(tmp_path / "other.py", ONE_OUTPUT, before=before)
    (end,) = in_child(Framework.KERAS_JAX, f"{model}/fp32/compile")["ends"]
    assert end["status"] == "failed"
    assert "tensorflow" in end["reason"]
    assert "--framework keras-tensorflow" in end["reason"]


GPU_IN_JAX = """
import jax
from gpubench.measure import keras_case
from gpubench.models import Framework

def no_driver(*_, **__):
    raise RuntimeError("Unable to initialize backend 'cuda': no driver")
jax.devices = no_driver
try:
    keras_case.on_device(Framework.KERAS_JAX, is_cpu=False)
except keras_case.capability.NotHereError as error:
    assert "no driver" in str(error)
else:
    raise AssertionError("a GPU that does not open was accepted")

steps = object.__new__(keras_case.Steps)
steps.framework, steps._state, waited = Framework.KERAS_JAX, ("what the last step gives",), []
jax.block_until_ready = waited.append
steps.clock().time(lambda: None)
assert waited == [steps._state] * 2, "the clock timed the issue of steps instead of the steps"
"""


@pytest.mark.slow
def test_the_clock_waits_for_jax_and_a_gpu_that_fails_to_open_is_reported() -> None:
    pytest.importorskip("jax")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GPU_IN_JAX],
        env={**os.environ, **capability.variables_of(Framework.KERAS_JAX, CPU)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_an_uncompiled_keras_step_is_never_called_compiled(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    model = tmp_path / "uncompiled.py"
    model.write_text(
        "import keras\n"
        "def build(batch_size):\n"
        "    layer = keras.layers.Dense(1)\n"
        "    layer.supports_jit = False\n"
        "    model = keras.Sequential([keras.Input((3,)), layer])\n"
        "    model.compile(optimizer='sgd', loss='mse')\n"
        "    return model\n",
        encoding="utf-8",
    )
    compiled, eager = in_child(Framework.KERAS_JAX, f"{model}/fp32/compile", f"{model}/fp32/eager")["ends"]
    assert (compiled["status"], eager["status"]) == ("unsupported", "ok")
    assert "(Dense)" in compiled["reason"]


@pytest.mark.slow
def test_parameters_are_those_of_torch_except_the_second_bias_of_the_lstm() -> None:
    pytest.importorskip("keras")
    script = (
        "import json; from gpubench.discovery import keras_models\n"
        "def of(build):\n"
        "    model = build(1, 0).model\n"
        "    trained = sum(v.value.size for v in model.trainable_variables)\n"
        "    return model.count_params(), trained\n"
        "print(json.dumps({name: of(build) for name, build in keras_models().MODELS.items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    in_keras, in_torch = json.loads(done.stdout), load_profiles()
    assert in_keras["cnn"] == [93_322, 93_322]
    assert in_keras["lstm"] == [388_584, 388_584]
    assert in_torch["lstm"].parameters == 389_096
    for name, (parameters, trained) in in_keras.items():
        fewer = capability.fewer_parameters()[name]
        assert parameters == in_torch[name].parameters - fewer, name
        assert trained == in_torch[name].trainable_parameters - fewer, name


@pytest.mark.parametrize(
    ("absent", "framework", "machine", "device", "line"),
    [
        ("jax", "keras-jax", "x86_64", CPU, "'jax>=0.7,<1'"),
        ("keras jax", "keras-jax", "x86_64", CPU, "'keras>=3.12,<4' 'jax>=0.7,<1'"),
        ("keras", "keras-tensorflow", "x86_64", CPU, "'keras>=3.12,<4'"),
        ("keras tensorflow", "keras-tensorflow", "x86_64", CPU, "'keras>=3.12,<4' 'tensorflow-cpu>=2.20,<3'"),
        ("tensorflow", "keras-tensorflow", "aarch64", CPU, "'tensorflow>=2.20,<3'"),
        ("keras jax", "keras-jax", "x86_64", GPU, "'keras>=3.12,<4' 'jax[cuda13]>=0.7,<1'"),
        ("tensorflow", "keras-tensorflow", "aarch64", GPU, "'tensorflow[and-cuda]>=2.20,<3'"),
    ],
)
def test_missing_framework_backend_is_refused_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
    *,
    absent: str,
    framework: str,
    machine: str,
    device: DeviceProfile,
    line: str,
) -> None:
    monkeypatch.setattr(capability, "find_spec", lambda name: None if name in absent.split() else object())
    monkeypatch.setattr(capability.platform, "machine", lambda: machine)
    capability.need_frameworks([Framework.TORCH, Framework.KERAS_TORCH] if absent == "jax" else [], device)
    with pytest.raises(MisuseError, match=f": pip install {re.escape(line)}$"):
        capability.need_frameworks([Framework(framework)], device)


def _planned(**given: object) -> dict[tuple[Framework, Execution, Precision], str | None]:
    """Return every case of a plan, with the reason if it is unsupported."""
    request = RunRequest(**{"workloads": ("cnn",), "budget": "quick"} | given)
    made = plan(request, CPU, {name: load_profiles()[name] for name in request.workloads})
    cases = {p.case: None for p in made.cases} | {m.case: m.reason for m in made.unsupported}
    return {(c.framework, c.execution, c.precision): reason for c, reason in cases.items()}


def test_each_framework_is_measured_in_its_own_executions() -> None:
    found = _planned(frameworks=("torch", *KERAS), precisions=("fp32",))
    assert list(found) == [
        (Framework.TORCH, Execution.EAGER, Precision.FP32),
        (Framework.KERAS_TORCH, Execution.EAGER, Precision.FP32),
        (Framework.KERAS_TENSORFLOW, Execution.COMPILE, Precision.FP32),
        (Framework.KERAS_TENSORFLOW, Execution.TF_GRAPH, Precision.FP32),
        (Framework.KERAS_JAX, Execution.COMPILE, Precision.FP32),
    ]
    assert not any(found.values())


def test_a_framework_named_twice_is_measured_once() -> None:
    request = RunRequest(frameworks=("keras-jax", "keras-jax"), precisions=("fp32",), workloads=("cnn",))
    assert len(plan(request, CPU, {"cnn": load_profiles()["cnn"]}).cases) == 1


@pytest.mark.parametrize("given", [{"gpus": 2}, {"batch_size": "max"}, {"micro": "only"}])
def test_torch_only_options_are_refused_before_anything_is_measured(given: dict[str, object]) -> None:
    request = RunRequest(**{"frameworks": ("torch", "keras-jax"), "workloads": ("cnn",)} | given)
    if "micro" in given:
        request = msgspec.structs.replace(request, workloads=RunRequest().workloads)
    with pytest.raises(MisuseError, match=r"--framework keras-jax$"):
        check_request(request, ["cnn"])


@pytest.mark.slow
def test_a_result_forged_by_a_keras_model_is_rejected(tmp_path: Path) -> None:
    """The model writes the message into the measuring process's pipe as soon as it is built there."""
    pytest.importorskip("jax")
    rounds = tuple(Round(steps=1000, wall_s=0.008) for _ in range(20))
    line = msgspec.json.encode(CaseDone(status=Status.OK, launch=Launch(index=0, rounds=rounds))).decode()
    model = tmp_path / "forges.py"
    model.write_text(
        "import os, sys, keras, numpy as np\n"
        "def build(batch_size):\n"
        "    if 'gpubench.measure.worker' in sys.orig_argv:\n"
        f"        os.write(int(sys.orig_argv[sys.orig_argv.index('-m') + 3]), {line!r}.encode() + bytes([10]))\n"
        "    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])\n"
        "    x = np.zeros((batch_size, 3), 'float32'); y = np.zeros((batch_size,), 'int32')\n"
        "    return model, x, y, keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "gpubench",
                "run",
                str(model),
                "--device",
                "cpu",
                "--micro",
                "none",
                "--json",
            ),
            *("--framework", "keras-jax", "--precision", "fp32", "--results", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    (row,) = json.loads(done.stdout)["measurements"]
    assert (row["status"], row["launches"][0]["rounds"]) == ("failed", [])
    assert all(each in row["reason"] for each in ("20 rounds", "the 0 it reported"))


@pytest.mark.parametrize("framework", KERAS)
def test_keras_step_cannot_run_as_a_cuda_graph(framework: Framework) -> None:
    case = case_of(framework=framework, execution=Execution.GRAPH)
    assert "has no graph: only torch has it" in (capability.why_no_framework(case, CPU, is_own=False) or "")


def test_unsupported_keras_features_are_reported() -> None:
    said = {
        "not available as a Keras model": case_of(framework=KERAS[2], workload="resnet50"),
        "in training": case_of(framework=KERAS[2], task=TaskKind.INFER),
        "keras-tensorflow": case_of(execution=Execution.TF_GRAPH),
        "has no tf-graph": case_of(framework=KERAS[2], execution=Execution.TF_GRAPH),
    }
    for words, case in said.items():
        assert words in (capability.why_no_framework(case, CPU, is_own=False) or ""), words


def test_no_backend_preallocates_memory() -> None:
    for framework in KERAS:
        variables = capability.variables_of(framework, CPU)
        assert variables["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
        assert variables["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
        assert variables["KERAS_BACKEND"] == capability.KERAS[framework].backend
    assert capability.variables_of(Framework.TORCH, CPU) == {}


def _result(case: Case, step_s: float) -> Result:
    rounds = tuple(Round(steps=10, wall_s=10 * step_s * (1 + 0.001 * (n % 3))) for n in range(12))
    row = Measurement(case=case, status=Status.OK, launches=(Launch(index=0, rounds=rounds),))
    run = run_of(row, budget="quick", device=CPU)
    return Result(run=run, measurement=row)


def test_each_framework_is_compared_with_torch_at_equal_work() -> None:
    jax = case_of(framework=Framework.KERAS_JAX, execution=Execution.COMPILE)
    larger = msgspec.structs.replace(jax, batch_size=128)
    (pair,) = framework_effects([_result(case_of(), 0.010), _result(jax, 0.020), _result(larger, 0.030)])
    assert (pair.result.case, pair.baseline.case) == (jax, case_of())
    assert pair.value == pytest.approx(0.5)
    assert pair.interval.low is not None
    assert pair.interval.low < 0.5


def test_the_gain_of_a_compiled_keras_step_is_not_reported_for_torch() -> None:
    eager, graph, jitted = (
        _result(case_of(framework=Framework.KERAS_TENSORFLOW, execution=execution), step_s)
        for execution, step_s in (
            (Execution.EAGER, 0.02),
            (Execution.TF_GRAPH, 0.015),
            (Execution.COMPILE, 0.01),
        )
    )
    rows = tuple(each.measurement for each in (eager, graph, jitted))
    said, _ = host(of_run(msgspec.structs.replace(eager.run, measurements=rows)))
    assert said.text.startswith("No graph has a reliable measurement")


def test_terminal_and_page_show_the_framework_overhead() -> None:
    jax = case_of(framework=Framework.KERAS_JAX, execution=Execution.COMPILE)
    torch, other = _result(case_of(), 0.010), _result(jax, 0.020)
    both = msgspec.structs.replace(torch.run, measurements=(torch.measurement, other.measurement))
    _, told = frameworks(of_run(both))
    assert "keras-jax" in told.rows[0][0]
    assert told.rows[0][1] == "torch eager"
    assert told.rows[0][2].startswith("0.500")
    assert frameworks(of_run(torch.run)) == [], "one framework has nothing to be compared with"
