"""Every case that a run offers, on the strict fake: workload x precision x execution, training and inference.

The default run measures a subset with each workload, each precision and each execution.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import median

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from gpubench.discovery import load_workload, workload_names
from gpubench.executions import OF_TORCH
from gpubench.measure import guards
from gpubench.measure.checks import IEEE_ERROR
from gpubench.measure.plan import plan
from gpubench.measure.request import RunRequest
from gpubench.models import (
    Case,
    Checkpointing,
    DeviceProfile,
    Execution,
    Launch,
    Precision,
    Recipe,
    Status,
    TaskKind,
    WeightType,
)
from gpubench.profile import load_profiles
from gpubench.profile.blocks import repeated_blocks
from gpubench.workload import Task
from gpubench_workloads._llama import TINY, TINY_TIED
from strict_cuda.conftest import KERNEL_S
from strict_cuda.machine import Machine

pytestmark = pytest.mark.usefixtures("in_little")
HOPPER = DeviceProfile(backend="cuda", compute_capability=(9, 0))
"""A card with every precision."""
BATCHES = 2
"""Prebuilt batches of a task: two are enough to show that each has its own graph."""
ONE_LAYER = {"layers": 1}
SMALLER = {
    "bert_base": ONE_LAYER,
    "bert_transfer": ONE_LAYER,
    "transformer": ONE_LAYER,
    "vit_b16": ONE_LAYER,
    "unet_ddpm": {"base": 8, "factors": (1, 1), "side": 8, "attended_side": 0},
    "resnet50": {"depths": (1,)},
    "resnet50_transfer": {"depths": (1,)},
    "vgg16": {"blocks": ((8,), (16,)), "image_size": 16},
    "vgg16_transfer": {"blocks": ((8,), (16,)), "image_size": 16},
    "stacked_lstm": {"length": 3},
    "lstm_cell": {"length": 3},
    "rnn_cell": {"length": 3},
    **{name: {"sizes": replace(TINY, layers=1)} for name in ("llama_8b_lora", "llama_8b_fsdp", "llama_8b")},
    "llama_1b": {"sizes": replace(TINY_TIED, layers=1)},
}
"""Settings of the tiny presets with the most kernels: the same layers, fewer times."""
SMALLER_IN_BLOCKS = {
    "unet_ddpm": SMALLER["unet_ddpm"] | {"base": 16, "factors": (1,)},  # FP8 takes multiples of 16
    "stacked_lstm": SMALLER["stacked_lstm"],
}
"""Other settings where only repeated blocks compute in a precision, because a single block is not repeated."""
SHORTER = {"loss_chunks": 2, "prompt_tokens": 12, "new_tokens": 4}
"""Settings of the recipes: repeated work is done twice, or on few tokens."""
RECURRENT = {"lstm", "lstm_large"}
"""Workloads of a fused recurrent layer and its head, where torch.compile compiles nothing."""
PIPELINES = {"augment", "augment_video"}
"""Input pipelines: they draw on the host and copy to the device, which cannot be captured."""
LIKE_ANOTHER_IN_FP8 = {"llama_8b_fsdp"}
"""Workloads that one GPU trains in FP8 exactly as it trains llama_1b."""
IN_FULL = {"lstm", "resnet50", "transformer"}
"""Workloads with every case measured at every precision in the default run: one of each kind of layer."""


@pytest.fixture(autouse=True)
def _captured_soon(monkeypatch) -> None:
    """Capture after one eager step; test_capture.py tests the steps before a capture."""
    monkeypatch.setattr(guards, "STEPS_BEFORE_CAPTURE", 1)


def offered() -> dict[tuple[str, Precision], list[Case]]:
    """Return what a full run would measure on a card with every precision, by the product's plan.

    This excludes torchao's own tensors, which report their device themselves and so are never on the fake.
    """
    profiles = {name: profile for name, profile in load_profiles().items() if profile.is_run}
    found: defaultdict[tuple[str, Precision], list[Case]] = defaultdict(list)
    for task in TaskKind:
        asked = RunRequest(
            workloads=tuple(n for n, p in profiles.items() if task is TaskKind.TRAIN or task in p.tasks),
            precisions=tuple(p for p in Precision if p is not Precision.INT8),
            executions=OF_TORCH,
            task=task,
            batch_size=2,
        )
        for planned in plan(asked, HOPPER, profiles).cases:
            case = planned.case
            known = found[case.workload, case.precision]
            if case not in known and case.weight_type is not WeightType.NF4:
                known.append(case)  # a workload with only one task has it whichever is requested
    return {key: cases for key, cases in found.items() if cases}


OFFERED = offered()


@cache
def tiny(name: str, recipe: Recipe, precision: Precision) -> Task:
    """Build the tiny preset of a workload once, as a measuring process keeps it for all of its cases."""
    less = SMALLER_IN_BLOCKS if precision.facts.in_blocks else SMALLER
    return in_few_batches(load_workload(name).at(recipe).tiny(2, 0, **less.get(name, {})))


def in_few_batches(task: Task) -> Task:
    return replace(task, batches=task.batches[:BATCHES])


def shorter(recipe: Recipe) -> Recipe:
    return recipe.changed({name: min(most, getattr(recipe, name)) for name, most in SHORTER.items()})


@cache
def has_fp8_layers(name: str) -> bool:
    """Whether repeated blocks contain a linear layer with sizes that are multiples of 16."""
    model = load_workload(name).tiny(2, 0, **SMALLER_IN_BLOCKS.get(name, {})).model
    layers = (layer for block in repeated_blocks(model) for layer in block.modules())
    return any(isinstance(x, nn.Linear) and not (x.in_features % 16 or x.out_features % 16) for x in layers)


def why_unsupported(case: Case) -> str | None:
    """Return words from the reason why a case cannot be measured; None if it can."""
    if case.execution is Execution.GRAPH and case.workload in PIPELINES:
        return "capturing"
    if case.execution is Execution.COMPILE and case.workload in RECURRENT:
        return "compiled no part"
    if case.execution is Execution.COMPILE and case.new_tokens:
        return "not with torch.compile"
    if case.checkpointing is Checkpointing.SELECTIVE and not hasattr(
        torch.utils.checkpoint, "CheckpointPolicy"
    ):
        return "needs torch 2.5"
    is_image = load_workload(case.workload).is_image
    if case.precision is Precision.FP8 and is_image and not has_fp8_layers(case.workload):
        return "multiples of 16"
    return None


def everyday(name: str, precision: Precision) -> list[Case]:
    """Return the cases of the default run: all at the first precision of a workload, and one at another precision.

    The one case is the captured training step, which needs most of torch: a graph of forward pass, backward pass
    and optimizer. Adjacent workloads in the list alternate between the other precisions. The slow tests measure
    the rest.
    """
    cases = OFFERED[name, precision]
    first, *others = (p for n, p in OFFERED if n == name)
    if name in IN_FULL or precision is first:
        return cases
    if precision is Precision.FP8 and name in LIKE_ANOTHER_IN_FP8:
        return []
    turn = list(dict.fromkeys(n for n, _ in OFFERED)).index(name)
    if precision is not others[turn % len(others)]:
        return []
    hardest = Execution.EAGER if name in PIPELINES else Execution.GRAPH
    task = load_workload(name).tasks[0]
    return [case for case in cases if (case.execution, case.task) == (hardest, task)]


EVERYDAY = {key: cases for key in OFFERED if (cases := everyday(*key))}
REST = {
    key: rest
    for key, cases in OFFERED.items()
    if (rest := [c for c in cases if c not in EVERYDAY.get(key, ())])
}


def test_among_image_models_only_those_with_attention_have_fp8():
    """Elsewhere a rule decides which models are refused; here they are named."""
    assert [has_fp8_layers(name) for name in ("vit_b16", "unet_ddpm", "resnet50", "vgg16")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(("name", "precision"), EVERYDAY)
def test_everyday_case_is_measured_end_to_end(gpu, name, precision):
    assert_measured_whole(gpu, EVERYDAY[name, precision])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), REST)
def test_less_common_case_is_measured_end_to_end(gpu, name, precision):
    assert_measured_whole(gpu, REST[name, precision])


def assert_measured_whole(gpu, cases: list[Case]) -> None:
    """Measure the cases of one workload at one precision, in turn."""
    name, precision = cases[0].workload, cases[0].precision
    if precision is Precision.FP8:
        pytest.importorskip("torchao", exc_type=ImportError)
    if name in PIPELINES:
        pytest.importorskip("kornia", exc_type=ImportError)  # today's kornia supports no torch before 2.5
    for case in cases:
        recipe = shorter(case.recipe)
        done = gpu.measure(
            name,
            tiny(name, recipe, precision),
            task=case.task,
            precision=precision,
            execution=case.execution,
            batch_size=2,
            **recipe.fields,
        )
        if (reason := why_unsupported(case)) is not None:
            assert (done.status, reason in done.reason) == (Status.UNSUPPORTED, True), done.reason
            gpu.machine.memory.underway.clear()  # as in the new process that measures the next case
            continue
        assert (done.status, done.reason) == (Status.OK, None), (
            f"{case.execution} {case.task}: {done.traceback}"
        )
        is_right(done.launch, case)
        assert gpu.machine.memory.allocated == 0
        assert not gpu.machine.memory.underway


def is_right(launch: Launch, case: Case) -> None:
    """Check that the step of a launch computed the right values, in the time of its kernels."""
    assert launch.reference_error <= case.precision.facts.loss_error
    if case.task is TaskKind.TRAIN:
        assert launch.parameters_moved
    if case.execution is Execution.GRAPH:
        assert launch.graph_error == 0.0
    elif case.execution is Execution.COMPILE:
        assert launch.graph_error <= case.precision.facts.loss_error
    kernels = round(median(launch.event_s) / KERNEL_S)  # the events span the kernels
    assert median(r.wall_s / r.steps for r in launch.rounds) == pytest.approx(kernels * KERNEL_S, rel=0.05)
    assert launch.gpu_busy == pytest.approx(1.0, rel=0.05)
    if case.new_tokens:
        assert len(launch.first_token_s) == len(launch.per_token_s) == sum(r.steps for r in launch.rounds)
        assert len(launch.token_gap_s) == (SHORTER["new_tokens"] - 1) * len(launch.first_token_s)
        assert launch.latency_s == ()


def test_the_cases_cover_all_workloads_precisions_executions_and_tasks():
    """A new workload or precision must be measured here, or listed above."""
    assert {precision for _, precision in EVERYDAY} == {precision for _, precision in OFFERED}
    run = {name for name in workload_names() if load_workload(name).is_run}
    assert {name for name, _ in OFFERED} == run - {"llama_8b_qlora"}
    usual = [precision for precision in Precision if precision.is_usual]
    for name in run:
        workload = load_workload(name)
        if not workload.precisions:
            for precision in (*usual, Precision.BF16):
                asked = {(case.execution, case.task) for case in OFFERED[name, precision]}
                assert asked == set(product(OF_TORCH, workload.tasks))


def test_strict_fp32_is_strict_in_the_process_of_the_other_precisions(make_gpu):
    """In a short run all cases share one process: each sets its switches, reads them back and proves their effect."""
    gpu = make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="as switched"))
    order = (Precision.TF32, Precision.FP32, Precision.AMP_BF16, Precision.FP32, Precision.TF32)
    for name, more in (("cnn", set()), ("lstm", {"rnn"})):
        for precision in order:
            launch = gpu.measure(name, precision=precision, batch_size=2).launch
            assert launch.switches.unexpected(precision) is None
            strict = precision is Precision.FP32
            assert launch.precision_errors.keys() == {"matmul", "conv"} | (more if strict else set())
            assert {error <= IEEE_ERROR for error in launch.precision_errors.values()} == {strict}


def test_recurrent_layers_in_tf32_are_flagged_whatever_the_switches_say(make_gpu):
    """Products and convolutions obey, so they prove nothing about recurrent layers."""
    gpu = make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="in recurrent layers"))
    errors = gpu.measure("lstm", precision=Precision.FP32, batch_size=2).launch.precision_errors
    assert {what for what, error in errors.items() if error > IEEE_ERROR} == {"rnn"}


@pytest.mark.parametrize("name", ["llama_1b", "llama_8b_lora"])
@pytest.mark.parametrize("checkpointing", Checkpointing)
def test_a_language_model_is_captured_with_each_kind_of_checkpointing(gpu, name, checkpointing):
    recipe = shorter(load_workload(name).recipe).changed({"checkpointing": checkpointing})
    built = in_few_batches(load_workload(name).at(recipe).tiny(2, 0))
    done = gpu.measure(
        name, built, precision=Precision.BF16, execution=Execution.GRAPH, batch_size=2, **recipe.fields
    )
    if checkpointing is Checkpointing.SELECTIVE and not hasattr(torch.utils.checkpoint, "CheckpointPolicy"):
        assert (done.status, "needs torch 2.5" in done.reason) == (Status.UNSUPPORTED, True)
        return
    assert (done.status, done.reason) == (Status.OK, None), (done.reason, done.traceback)
    assert done.launch.reference_error <= Precision.BF16.facts.loss_error
    assert done.launch.parameters_moved
    assert done.launch.graph_error == 0.0
    assert gpu.machine.memory.allocated == 0


def test_selective_checkpointing_is_unsupported_if_torch_lacks_it(gpu, monkeypatch):
    """Torch 2.4 lacks it."""
    monkeypatch.delattr(torch.utils.checkpoint, "CheckpointPolicy", raising=False)
    recipe = load_workload("llama_1b").recipe.changed({"checkpointing": Checkpointing.SELECTIVE})
    done = gpu.measure("llama_1b", precision=Precision.BF16, batch_size=2, **recipe.fields)
    assert (done.status, "needs torch 2.5" in done.reason) == (Status.UNSUPPORTED, True)
