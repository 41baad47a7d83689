"""Every standard workload at every precision in every execution, trained and run forward, on the strict fake."""

from __future__ import annotations

from statistics import median

import pytest
import torch
import torch.utils.checkpoint

from gpubench.discovery import load_workload, workload_names
from gpubench.executions import OF_TORCH
from gpubench.measure.checks import IEEE_ERROR
from gpubench.models import Checkpointing, Execution, Precision, Recipe, Status, TaskKind, WeightType
from strict_cuda.conftest import KERNEL_S
from strict_cuda.machine import Machine

LARGE = [name for name in workload_names() if not load_workload(name).is_classic]
CLASSIC = [name for name in workload_names() if name not in LARGE]
TRAINED = [name for name in CLASSIC if TaskKind.TRAIN in load_workload(name).tasks]
USUAL = [precision for precision in Precision if precision.is_usual]
RECURRENT = {"lstm", "lstm_large"}
"""Workloads of nothing but a fused recurrent layer and its head, of which torch.compile compiles nothing."""


@pytest.mark.parametrize("precision", USUAL)
@pytest.mark.parametrize("name", TRAINED)
def test_a_case_is_measured_whole(gpu, name, precision):
    for task in TaskKind:
        for execution in OF_TORCH:
            before = gpu.machine.kernels
            done = gpu.measure(name, precision=precision, execution=execution, task=task, batch_size=2)
            launch = done.launch
            if execution is Execution.COMPILE and name in RECURRENT:
                assert done.status is Status.UNSUPPORTED
                assert "compiled nothing" in done.reason
                continue
            assert (done.status, done.reason) == (Status.OK, None), f"{execution} {task}: {done.traceback}"
            assert gpu.machine.kernels > before
            assert launch.reference_error <= precision.facts.loss_error
            if execution is Execution.GRAPH:
                assert launch.graph_error == 0.0
            elif execution is Execution.COMPILE:
                assert launch.graph_error <= precision.facts.loss_error
            step_s = median(r.wall_s / r.steps for r in launch.rounds)
            assert step_s == pytest.approx(kernels_of(launch) * KERNEL_S, rel=0.05)
            assert launch.gpu_busy == pytest.approx(1.0, rel=0.05)
            assert gpu.machine.memory.allocated == 0
            assert not gpu.machine.memory.underway


def test_strict_fp32_is_strict_in_the_process_of_the_other_precisions(make_gpu):
    """In haste all share one process: each case sets its switches, reads them back and proves their effect."""
    gpu = make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="as switched"))
    order = (Precision.TF32, Precision.FP32, Precision.AMP_BF16, Precision.FP32, Precision.TF32)
    for name, more in (("cnn", set()), ("lstm", {"rnn"})):
        for precision in order:
            launch = gpu.measure(name, precision=precision, batch_size=2).launch
            assert launch.switches.unexpected(precision) is None
            strict = precision is Precision.FP32
            assert launch.precision_errors.keys() == {"matmul", "conv"} | (more if strict else set())
            assert {error <= IEEE_ERROR for error in launch.precision_errors.values()} == {strict}


def test_recurrent_layers_in_tf32_whatever_the_switches_say_are_seen_in_their_rows(make_gpu):
    """Products and convolutions obey, and so prove nothing of them."""
    gpu = make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="in recurrent layers"))
    errors = gpu.measure("lstm", precision=Precision.FP32, batch_size=2).launch.precision_errors
    assert {what for what, error in errors.items() if error > IEEE_ERROR} == {"rnn"}


@pytest.mark.parametrize("precision", USUAL)
@pytest.mark.parametrize("name", sorted({*CLASSIC} - {*TRAINED}))
def test_what_is_only_run_forward_is_measured_too(gpu, name, precision):
    """The input pipeline: it draws on the host and sends that over, which no capture takes."""
    pytest.importorskip("kornia", exc_type=ImportError)  # today's kornia takes no torch before 2.5
    ends = {}
    for execution in OF_TORCH:
        done = gpu.measure(name, precision=precision, execution=execution, task=TaskKind.INFER, batch_size=2)
        ends[execution] = done.status
        if done.status is Status.OK:
            assert done.launch.reference_error == 0.0
            assert gpu.machine.memory.allocated == 0
        else:
            assert "capturing" in done.reason
            gpu.machine.memory.underway.clear()  # as in the new process that the next case is measured in
    assert ends == dict.fromkeys(OF_TORCH, Status.OK) | {Execution.GRAPH: Status.UNSUPPORTED}


@pytest.mark.parametrize("execution", [Execution.GRAPH])
@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [
        (name, how)
        for name in LARGE
        for how in Checkpointing
        if "checkpointing" in load_workload(name).settings
        and load_workload(name).recipe.weight_type is not WeightType.NF4  # kernels of torchao's own
    ],
)
def test_a_language_model_is_trained_in_bfloat16_by_each_kind_of_checkpointing(
    gpu, name, checkpointing, execution
):
    recipe = load_workload(name).recipe.changed({"checkpointing": checkpointing})
    done = gpu.measure(name, precision=Precision.BF16, execution=execution, batch_size=2, **recipe.fields)
    if checkpointing is Checkpointing.SELECTIVE and not hasattr(torch.utils.checkpoint, "CheckpointPolicy"):
        assert (done.status, "needs torch 2.5" in done.reason) == (Status.UNSUPPORTED, True)
        return
    assert (done.status, done.reason) == (Status.OK, None), (done.reason, done.traceback)
    assert done.launch.reference_error <= Precision.BF16.facts.loss_error
    assert done.launch.parameters_moved
    if execution is Execution.GRAPH:
        assert done.launch.graph_error == 0.0
    assert gpu.machine.memory.allocated == 0


def test_selective_checkpointing_is_unsupported_where_torch_has_none(gpu, monkeypatch):
    """As under torch 2.4."""
    monkeypatch.delattr(torch.utils.checkpoint, "CheckpointPolicy", raising=False)
    recipe = load_workload("llama_1b").recipe.changed({"checkpointing": Checkpointing.SELECTIVE})
    done = gpu.measure("llama_1b", precision=Precision.BF16, batch_size=2, **recipe.fields)
    assert (done.status, "needs torch 2.5" in done.reason) == (Status.UNSUPPORTED, True)


@pytest.mark.parametrize("execution", OF_TORCH)
def test_a_language_model_is_trained_in_fp8(gpu, execution):
    pytest.importorskip("torchao", exc_type=ImportError)
    recipe = load_workload("llama_1b").recipe
    done = gpu.measure(
        "llama_1b", precision=Precision.FP8, execution=execution, batch_size=2, **recipe.fields
    )
    assert (done.status, done.reason) == (Status.OK, None), (done.reason, done.traceback)
    assert 0 < done.launch.reference_error <= Precision.FP8.facts.loss_error
    assert done.launch.parameters_moved
    if execution is Execution.GRAPH:
        assert done.launch.graph_error == 0.0
    assert gpu.machine.memory.allocated == 0


@pytest.mark.parametrize("name", ["cnn", "resnet50"])
def test_any_model_is_cast_whole_to_bfloat16(gpu, name):
    done = gpu.measure(
        name,
        precision=Precision.BF16,
        execution=Execution.GRAPH,
        batch_size=4,
        weight_type=WeightType.BFLOAT16,
    )
    assert (done.status, done.reason) == (Status.OK, None), (done.reason, done.traceback)
    assert done.launch.reference_error <= Precision.BF16.facts.loss_error
    assert done.launch.graph_error == 0.0


@pytest.mark.parametrize("name", ["vit_b16", "unet_ddpm"])
def test_networks_of_images_are_trained_under_amp(gpu, name):
    done = gpu.measure(name, precision=Precision.AMP_BF16, execution=Execution.GRAPH, batch_size=2)
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    assert done.launch.reference_error <= Precision.AMP_BF16.facts.loss_error
    assert done.launch.graph_error == 0.0


def kernels_of(launch) -> int:
    """How many kernels a step has: its events span them, each of the same time."""
    return round(median(launch.event_s) / KERNEL_S)


@pytest.mark.parametrize("execution", OF_TORCH)
def test_a_generation_is_measured_token_by_token(gpu, execution):
    recipe = Recipe(weight_type=WeightType.BFLOAT16, prompt_tokens=12, new_tokens=4, cache_tokens=16)
    done = gpu.measure(
        "llama_8b",
        precision=Precision.BF16,
        execution=execution,
        task=TaskKind.INFER,
        batch_size=2,
        **recipe.fields,
    )
    if execution is Execution.COMPILE:
        assert (done.status, "not with torch.compile" in done.reason) == (Status.UNSUPPORTED, True)
        return
    assert (done.status, done.reason) == (Status.OK, None), (done.reason, done.traceback)
    launch = done.launch
    assert launch.reference_error <= Precision.BF16.facts.loss_error
    assert len(launch.first_token_s) == len(launch.per_token_s) == sum(r.steps for r in launch.rounds)
    assert len(launch.token_gap_s) == 3 * len(launch.first_token_s)
    assert launch.latency_s == ()
    if execution is Execution.GRAPH:
        assert launch.graph_error == 0.0
