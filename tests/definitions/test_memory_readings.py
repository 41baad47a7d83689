"""Rows of data/memory_readings.csv, compared with the trace of the definition that they name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from memory_cases import case_of, trace_step
from torch import nn

from definitions import (
    bert_mlm,
    convnext,
    diffusion,
    focalnet,
    llama,
    lora,
    reformer,
    regnet,
    resnets,
    t5,
    vgg_bn,
    whisper,
)
from gpubench.discovery import load_workload
from gpubench.models import Checkpointing, ParallelMode, Precision, Recipe, TaskKind, WeightType
from gpubench.profile import load_profiles
from gpubench.profile.blocks import block_sizes
from gpubench.profile.memory_figures import on_several
from gpubench.workload import Workload
from tools.make import load_readings


@dataclass(frozen=True)
class Traced:
    """A definition, its number of parameters from its paper or its authors' code, and how it is trained.

    Attributes:
        keep_gradients: Whether gradients stay in memory between steps instead of being freed.
    """

    workload: Workload
    parameters_m: float
    keep_gradients: bool = True


MODELS = {
    "resnet50_sgd": Traced(resnets.RESNET50, 25.557),
    "resnet152_adam": Traced(resnets.RESNET152, 60.193, keep_gradients=False),
    "whisper_tiny": Traced(whisper.DEFINITION, 8.307),
    "bert_mlm": Traced(bert_mlm.DEFINITION, 109.514),
    "convnext_large": Traced(convnext.DEFINITION, 197.767),
    "focalnet_base_lrf": Traced(focalnet.DEFINITION, 88.750, keep_gradients=False),
    "reformer": Traced(reformer.DEFINITION, 5.976),
    "regnet_y_128gf": Traced(regnet.DEFINITION, 644.813),
    "t5_small": Traced(t5.DEFINITION, 60.507),
    "vgg16_bn": Traced(vgg_bn.DEFINITION, 138.366, keep_gradients=False),
    "stable_diffusion_1.5": Traced(
        diffusion.DEFINITION, 859.521 + diffusion.FROZEN / 1e6, keep_gradients=False
    ),
}
LORA = {"qwen_7b_lora": (lora.QWEN_7B, 7864.5), "qwen_1.8b_lora": (lora.QWEN_1_8B, 1890.5)}
LLAMA = "llama3.1_8b_fsdp"
READINGS = [*load_readings().itertuples(index=False)]


def parameters_m(workload: Workload) -> float:
    with torch.device("meta"):
        return sum(p.numel() for p in workload.build(1, 0).model.parameters()) / 1e6


@pytest.mark.parametrize("name", MODELS)
def test_a_definition_has_the_published_number_of_parameters(name: str) -> None:
    """It is within 0.01 % of the model of that name in torchvision or transformers."""
    assert parameters_m(MODELS[name].workload) == pytest.approx(MODELS[name].parameters_m, rel=1e-4)


def test_every_reading_has_its_definition() -> None:
    assert {r.model for r in READINGS} == {*MODELS, *LORA, LLAMA}


@pytest.mark.parametrize("name", MODELS)
def test_memory_reading_states_whether_its_model_has_convolutions(name: str) -> None:
    with torch.device("meta"):
        modules = list(MODELS[name].workload.build(1, 0).model.modules())
    convolves = any(isinstance(module, (nn.Conv1d, nn.Conv2d)) for module in modules)
    assert {r.convolves for r in READINGS if r.model == name} == {convolves}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["amp", "fp32"])
@pytest.mark.parametrize("name", MODELS)
def test_memory_readings_contain_the_traced_memory(name: str, precision: str) -> None:
    rows = [r for r in READINGS if (r.model, r.precision) == (name, precision)]
    if not rows:
        pytest.skip("not read at this precision")
    model = MODELS[name]
    traced = trace_step(
        model.workload, TaskKind.TRAIN, is_amp=precision == "amp", keep_gradients=model.keep_gradients
    )
    loop = traced.keeping or traced  # the suite's loop holds the outputs until the step ends
    for row in rows:
        assert row.traced_bytes == pytest.approx(loop.peak(row.batch_size).at(row.batch_size), rel=0.01)


def lora_peak_bytes(row: Any) -> float:
    sizes, _ = LORA[row.model]
    assert row.seq_len is not None
    workload = lora.definition(row.model, sizes, row.seq_len, lora.QWEN_SOURCE)
    return trace_step(workload, TaskKind.TRAIN, is_amp=True, keep_gradients=True).peak(1).at(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [r for r in READINGS if r.model in LORA], ids=lambda r: f"{r.model}-{r.seq_len}"
)
def test_lora_readings_at_each_length_match_their_trace(row: Any) -> None:
    assert row.traced_bytes == pytest.approx(lora_peak_bytes(row), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "how"), [(8192, Checkpointing.SELECTIVE), (32_768, Checkpointing.FULL)])
def test_each_share_of_a_large_model_matches_its_trace(length: int, how: Checkpointing) -> None:
    """Gathered weights are in bfloat16 and shards in float32, as in torchtitan."""
    workload = llama.definition(length)
    recipe = Recipe(weight_type=WeightType.BFLOAT16, checkpointing=how)
    step = trace_step(workload, TaskKind.TRAIN, is_amp=False, recipe=recipe)
    with torch.device("meta"):
        model = workload.build(1, 0).model
    rows = [r for r in READINGS if (r.model, r.seq_len, r.checkpointing) == (LLAMA, length, how)]
    assert rows
    profile = msgspec.structs.replace(
        load_profiles()["transformer"],
        parameters=sum(p.numel() for p in model.parameters()),
        blocks=block_sizes(model),
    )
    assert profile.parameters == 8_030_261_248
    for row in rows:
        case = case_of(
            profile, TaskKind.TRAIN, Precision.AMP_BF16, row.batch_size, gpu_count=row.gpu_count,
            parallel_mode=ParallelMode.FSDP, checkpointing=how,
        )  # fmt: skip
        held = on_several(step, profile, case, stored=2.0)
        assert row.traced_bytes == pytest.approx(held.total + held.separate, rel=0.01)


TRACE_LLAMA = """
import re
from pathlib import Path
from definitions import lora
from gpubench.models import TaskKind
from memory_cases import trace_step
traced = trace_step(lora.LLAMA, TaskKind.TRAIN, is_amp=True)
# This program's peak alone; getrusage would include the process that started it.
most_kib = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(traced.weights_bytes, 1024 * int(most_kib))
"""


@pytest.mark.slow
def test_eight_billion_parameters_are_traced_within_a_gigabyte() -> None:
    """The memory of the whole process counts; its 16 GB of weights hold no values."""
    ran = subprocess.run(
        [sys.executable, "-c", TRACE_LLAMA],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        check=True,
        capture_output=True,
        text=True,
    )
    weights_bytes, most_bytes = map(float, ran.stdout.split())
    assert weights_bytes == pytest.approx(16.07e9, rel=0.01)
    assert most_bytes < 1e9


@pytest.mark.timing
@pytest.mark.parametrize(
    ("workload", "limit_s"),
    [
        *((load_workload(n), 3.0) for n in ("vgg16", "resnet50", "bert_base", "transformer", "unet_ddpm")),
        (lora.LLAMA, 10.0),
    ],
    ids=lambda x: x.name if isinstance(x, Workload) else "",
)
def test_trace_finishes_within_its_cpu_limit(workload: Workload, limit_s: float) -> None:
    """Trace one training step at one precision, at both batch sizes."""
    torch.set_num_threads(1)
    before = time.process_time()
    trace_step(workload, TaskKind.TRAIN, is_amp=True)
    took_s = time.process_time() - before
    print(f"{workload.name}: {took_s:.2f} s of CPU")
    assert took_s < limit_s
