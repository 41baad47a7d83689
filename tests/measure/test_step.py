"""Precision switches, the step, its execution and its guards: real torch on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import msgspec
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpubench.discovery import load_workload
from gpubench.errors import NoDeviceError
from gpubench.measure import guards
from gpubench.measure.guards import prepare
from gpubench.measure.launch import failure, relative_difference, skipped_steps, worse
from gpubench.measure.step import (
    Hardware,
    check_device,
    is_fused,
    make_optimizer,
    move,
    open_hardware,
    probe_errors,
    read_switches,
    switches_for,
)
from gpubench.models import DeviceProfile, Execution, MemoryFormat, Precision, Status, Switches, TaskKind
from gpubench.probe.host import instructions
from gpubench.workload import Task

CPU = torch.device("cpu")
NEW_SWITCHES = torch.__version__ >= "2.9"
"""Older torch has only the two legacy switches."""
FP32_PRECISIONS = ("conv_fp32_precision", "rnn_fp32_precision", "matmul_fp32_precision")


BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""The bf16 instructions, as /proc/cpuinfo names them."""


@pytest.fixture
def tiny():
    """The cnn workload's own tiny preset."""
    return load_workload("cnn").tiny(4, 0)


def test_strict_switches_read_back_ieee_and_everything_is_restored():
    before = read_switches()
    with switches_for(Precision.FP32) as strict:
        assert strict == Switches(
            cudnn_allow_tf32=False,
            matmul_allow_tf32=False,
            **dict.fromkeys(FP32_PRECISIONS, "ieee" if NEW_SWITCHES else None),
        )
    assert read_switches() == before
    with pytest.raises(RuntimeError, match="inside"), switches_for(Precision.TF32):
        raise RuntimeError("inside")
    assert read_switches() == before


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.AMP_FP16, Precision.AMP_BF16])
def test_tf32_and_amp_turn_tf32_on_everywhere(precision):
    with switches_for(precision) as found:
        assert found.cudnn_allow_tf32 is True
        assert found.matmul_allow_tf32 is True
        assert {getattr(found, name) for name in FP32_PRECISIONS} == {"tf32" if NEW_SWITCHES else None}


def test_a_switch_that_reads_back_otherwise_is_named():
    ieee = dict.fromkeys(FP32_PRECISIONS, "ieee") | {"conv_fp32_precision": "none"}
    wrong = Switches(cudnn_allow_tf32=False, matmul_allow_tf32=False, **ieee)
    assert wrong.unexpected(Precision.FP32) == "conv_fp32_precision=none"
    old_torch = Switches(cudnn_allow_tf32=True, matmul_allow_tf32=True, **dict.fromkeys(FP32_PRECISIONS))
    assert old_torch.unexpected(Precision.TF32) is None
    assert old_torch.unexpected(Precision.FP32) == "cudnn_allow_tf32=True"


class RoundedToBf16(TorchDispatchMode):
    """Float32 products of operands rounded to bf16, which imitate a reduced precision on any processor."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in {torch.ops.aten.mm.default, torch.ops.aten.convolution.default}:
            args = [
                a.bfloat16().float() if isinstance(a, torch.Tensor) and a.dtype == torch.float32 else a
                for a in args
            ]
        return func(*args, **(kwargs or {}))


def test_the_probe_sees_operands_that_were_rounded():
    with RoundedToBf16():
        errors = probe_errors(CPU)
    assert errors.keys() == {"matmul", "conv"}
    assert min(errors.values()) > 1e-4


LOWERED = """
import json, os, torch
from torch.nn import functional
from gpubench.measure.step import probe_errors
from gpubench.precisions import PROOF_CHANNELS, PROOF_IMAGE, PROOF_SIZE

NOT_IN_BF16 = 1 + 2**-12
kernel = torch.zeros(PROOF_CHANNELS, PROOF_CHANNELS, 3, 3)
kernel[:, :, 1, 1] = torch.eye(PROOF_CHANNELS)
images = torch.full((4, PROOF_CHANNELS, PROOF_IMAGE, PROOF_IMAGE), NOT_IN_BF16)
same = {
    "matmul": torch.full((PROOF_SIZE, PROOF_SIZE), NOT_IN_BF16) @ torch.eye(PROOF_SIZE),
    "conv": functional.conv2d(images, kernel, padding=1),
}
lowered = [name for name, found in same.items() if (found != NOT_IN_BF16).any()]
print(json.dumps([lowered, probe_errors(torch.device("cpu"))]), flush=True)
os._exit(0)  # to delete all of torch's modules takes half a second
"""
"""Multiplies a number that needs 13 bits by one, in the sizes of the probe, and lists the operators that rounded it."""


def test_precision_probe_detects_onednn_reduced_precision():
    """oneDNN's own variable, read when the library loads: float32 is computed in bf16 if possible."""
    done = subprocess.run(
        [sys.executable, "-c", LOWERED],
        env=os.environ | {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"},
        capture_output=True,
        text=True,
        check=True,
    )
    lowered, errors = json.loads(done.stdout)
    assert {name for name, error in errors.items() if error > 1e-4} == set(lowered)
    if not lowered:
        pytest.skip(
            "ONEDNN_DEFAULT_FPMATH_MODE=BF16 changes no float32 product on this processor "
            f"(bf16 instructions: {', '.join(sorted(BF16 & instructions())) or 'none'})"
        )


def test_a_training_step_updates_and_its_loss_falls(tiny, make_case):
    work = move(tiny, make_case(), CPU)
    before = guards.fingerprint(work.model)
    losses = [work.edge_loss(work.step(i), i) for i in range(60)]
    assert guards.has_moved(work.model, before)
    assert sum(losses[-8:]) < sum(losses[:8])
    assert all(p.grad is not None for p in work.model.parameters())


def test_a_frozen_optimizer_is_detected(tiny, make_case):
    still = Task(
        model=tiny.model, batches=tiny.batches, loss=tiny.loss, optimizer=partial(torch.optim.SGD, lr=0.0)
    )
    work = move(still, make_case(), CPU)
    before = guards.fingerprint(work.model)
    work.step(0)
    assert not guards.has_moved(work.model, before)


def test_inference_leaves_no_autograd_and_reads_a_loss_at_the_edge(tiny, make_case):
    work = move(tiny, make_case(task=TaskKind.INFER), CPU)
    result = work.step(0)
    assert work.optimizer is None
    assert not work.model.training
    assert result.is_inference()
    assert work.edge_loss(result, 0) == pytest.approx(2.3, abs=0.3)


def test_amp_computes_in_bf16_and_keeps_weights_in_float32(tiny, make_case):
    seen = []
    tiny.model[0].register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    work = move(tiny, make_case(precision=Precision.AMP_BF16), CPU)
    work.step(0)
    assert seen == [torch.bfloat16]
    assert {p.dtype for p in work.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "scaled", "cached"),
    [
        ({"precision": Precision.AMP_FP16, "execution": Execution.GRAPH}, True, False),
        ({"precision": Precision.AMP_FP16}, True, True),
        ({"precision": Precision.AMP_FP16, "task": TaskKind.INFER}, False, True),
        ({"precision": Precision.AMP_BF16, "execution": Execution.GRAPH}, False, False),
        ({"precision": Precision.AMP_BF16, "execution": Execution.COMPILE}, False, True),
    ],
)
def test_fp16_trains_with_a_scaler_and_a_graph_has_no_weight_cache(tiny, make_case, changes, scaled, cached):
    work = move(tiny, make_case(**changes), CPU)
    assert (work.scaler is not None) is scaled
    with work.autocast():
        assert torch.is_autocast_cache_enabled() is cached


def test_channels_last_reaches_weights_and_images(tiny, make_case):
    work = move(tiny, make_case(memory_format=MemoryFormat.CHANNELS_LAST), CPU)
    assert work.model[3].weight.is_contiguous(memory_format=torch.channels_last)
    assert work.batch(0)[0].is_contiguous(memory_format=torch.channels_last)


def test_optimizers_are_fused_if_possible_and_capturable_in_a_graph(make_case):
    model = nn.Linear(2, 2)
    adam = make_optimizer(partial(torch.optim.Adam, lr=1e-4), model, make_case())
    assert adam.param_groups[0]["fused"] is True
    assert adam.param_groups[0]["capturable"] is False
    graph = make_case(execution=Execution.GRAPH)
    assert make_optimizer(partial(torch.optim.SGD, lr=1e-4), model, graph).param_groups[0]["fused"] is True
    own = make_optimizer(lambda parameters: torch.optim.Adagrad(parameters, lr=0.1), model, make_case())
    assert isinstance(own, torch.optim.Adagrad)
    chosen = make_optimizer(partial(torch.optim.Adam, lr=1e-4, fused=False), model, make_case())
    assert chosen.param_groups[0]["fused"] is False


def test_an_optimizer_that_refuses_fused_is_built_without_it(make_case):
    class Fussy(torch.optim.SGD):
        def __init__(self, parameters, fused=False):
            if fused:
                raise RuntimeError("`fused=True` requires all the params to be floating point")
            super().__init__(parameters, lr=0.1)

    assert isinstance(make_optimizer(Fussy, nn.Linear(2, 2), make_case()), Fussy)


def test_the_first_loss_agrees_with_float32_on_the_cpu(make_case):
    task, again = load_workload("cnn").tiny(8, 0), load_workload("cnn").tiny(8, 0)
    assert guards.reference_errors(move(again, make_case(batch_size=8), CPU), task).loss < 1e-6
    amp = make_case(batch_size=8, precision=Precision.AMP_BF16)
    assert 0 < guards.reference_errors(move(again, amp, CPU), task).loss < 2e-2


@pytest.mark.parametrize(("batch", "seen"), [(8, 4), (3, 3)])
def test_both_sides_of_the_reference_see_four_samples_at_most(make_case, batch, seen):
    task, again = load_workload("cnn").tiny(batch, 0), load_workload("cnn").tiny(batch, 0)
    counts = []
    for model in (task.model, again.model):
        model.register_forward_pre_hook(lambda _model, inputs: counts.append(len(inputs[0])))
    guards.reference_errors(move(again, make_case(batch_size=batch), CPU), task)
    assert counts == [seen] * 3, "twice on the CPU, once on the device"


def test_a_model_that_computes_something_else_is_detected(make_case):
    task, other = load_workload("cnn").tiny(8, 0), load_workload("cnn").tiny(8, 0)
    with torch.no_grad():
        other.model[0].weight.mul_(1.5)
    assert guards.reference_errors(move(other, make_case(batch_size=8), CPU), task).loss > 1e-4


def of_images(*more):
    """A convolution with batch norm, more layers, and a head."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), *more, nn.Flatten(), nn.Linear(72, 3))
    batch = (torch.randn(8, 1, 8, 8), torch.zeros(8, dtype=torch.long))
    return Task(
        model=model,
        batches=(batch,),
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )


def test_the_reference_leaves_dropout_and_batch_statistics_as_they_were(make_case):
    task = of_images(nn.Dropout(0.5))
    work = move(of_images(nn.Dropout(0.5)), make_case(batch_size=8), CPU)
    before = {name: buffer.clone() for name, buffer in work.model.named_buffers()}
    assert guards.reference_errors(work, task).loss < 1e-6
    assert all(torch.equal(before[name], buffer) for name, buffer in work.model.named_buffers())
    assert all(module.training for module in work.model.modules())


def normed():
    """A model with batch norm statistics far from those of any batch."""
    task = of_images()
    task.model[1].running_mean.fill_(3.0)
    task.model[1].running_var.fill_(9.0)
    return task


@pytest.mark.parametrize("kind", list(TaskKind))
def test_both_sides_of_the_reference_work_in_the_mode_of_the_task(make_case, kind):
    task = normed()
    work = move(normed(), make_case(batch_size=8, task=kind), CPU)
    assert guards.reference_errors(work, task).loss < 1e-6
    assert all(module.training for module in task.model.modules())
    assert work.model.training is (kind is TaskKind.TRAIN)
    assert torch.equal(task.model[1].running_mean, torch.full((2,), 3.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_infinitely_far_from_a_finite_one(value):
    assert relative_difference(value, 2.0) == float("inf")
    assert relative_difference(2.0, value) is None
    assert relative_difference(2.0, 2.5) == pytest.approx(0.2)


def test_a_replay_of_the_same_work_agrees_and_of_other_work_is_detected(make_case):
    """On the CPU the eager step replaces the replay; the comparison restores all state on both sides."""
    task = load_workload("cnn").tiny(8, 0)
    work = move(task, make_case(batch_size=8), CPU)
    for index in range(3):
        work.step(index)
    state = [p.detach().clone() for p in work.model.parameters()]
    assert guards.graph_error(work, prepare(work)) == 0.0
    assert all(torch.equal(a, b) for a, b in zip(state, work.model.parameters(), strict=True))

    def forgets_to_update(index):
        saved = [p.detach().clone() for p in work.model.parameters()]
        loss = work.step(index)
        with torch.no_grad():
            for parameter, value in zip(work.model.parameters(), saved, strict=True):
                parameter.copy_(value)
        return loss

    assert guards.graph_error(work, forgets_to_update) > 1e-4


def test_larger_of_two_probe_errors_is_kept_and_nan_is_worst():
    before = {"matmul": 5e-7, "conv": 3e-4, "a": float("nan"), "b": 1e-7}
    after = {"matmul": 3e-4, "conv": 5e-7, "a": 1e-7, "b": float("inf")}
    assert worse(before, after) == {"matmul": 3e-4, "conv": 3e-4, "a": None, "b": None}


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (partial(torch.optim.Adam, lr=1e-4), True),
        (partial(torch.optim.Adam, lr=1e-4, fused=False), False),
        (lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, foreach=False), False),
        (lambda parameters: torch.optim.RMSprop(parameters, lr=0.1), False),
    ],
)
def test_whether_an_optimizer_is_fused_is_reported(make_case, factory, expected):
    assert is_fused(make_optimizer(factory, nn.Linear(2, 2), make_case())) is expected
    assert is_fused(None) is None


def test_skipped_steps_are_counted_from_the_gradient_scale():
    assert skipped_steps([65536.0, 65536.0, 32768.0, 8192.0, 16384.0]) == 3
    assert skipped_steps([1.0]) == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            Status.OUT_OF_MEMORY,
        ),
        (MemoryError(), Status.OUT_OF_MEMORY),
        (ValueError("mine"), Status.FAILED),
    ],
)
def test_an_exception_becomes_a_status(error, status):
    assert failure(error, 8, "build")[0] is status


# --- the clock of a device ----------------------------------------------------------------------------------


def hardware(kind: str) -> Hardware:
    return Hardware(device=torch.device(kind))


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu", "mtia"])
def test_a_clock_waits_for_its_device_as_torch_does(kind):
    assert hardware(kind).clock().synchronize is getattr(torch, kind).synchronize


@pytest.mark.parametrize("kind", ["hpu", "privateuseone", "vulkan", "meta"])
def test_a_device_that_torch_cannot_wait_for_is_refused_in_one_line(kind):
    with pytest.raises(NoDeviceError) as refused:
        hardware(kind).clock()
    assert f"torch.{kind}.synchronize" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_device_that_torch_cannot_wait_for_is_not_opened(cpu):
    with pytest.raises(NoDeviceError, match="synchronize"):
        open_hardware(msgspec.structs.replace(cpu, backend="hpu"))


def test_backend_from_another_package_is_found_in_the_torch_namespace(monkeypatch):
    calls = []
    module = ModuleType("torch.hpu")
    module.synchronize = lambda: calls.append("waited")
    module.reset_peak_memory_stats = lambda: calls.append("reset")
    module.max_memory_allocated = lambda: 7
    monkeypatch.setattr(torch, "hpu", module, raising=False)
    hpu = hardware("hpu")
    assert hpu.clock().time(lambda: calls.append("worked")) >= 0
    hpu.call("reset_peak_memory_stats")
    assert calls == ["waited", "worked", "waited", "reset"]
    assert hpu.call("max_memory_allocated") == 7
    assert hpu.call("max_memory_reserved") is None
    assert hpu.step_state().segments is None


def test_cpu_timer_needs_no_synchronization_and_reports_no_memory():
    cpu = hardware("cpu")
    assert cpu.clock().time(lambda: None) >= 0
    cpu.call("reset_peak_memory_stats")
    cpu.call("set_per_process_memory_fraction", 0.5)
    cpu.release()
    assert cpu.call("max_memory_allocated") is None
    assert cpu.call("max_memory_reserved") is None
    assert cpu.memory_bytes() is None


@pytest.mark.parametrize(("bus", "ok"), [(0x0C, True), (0x0D, False)])
def test_amd_gpu_is_matched_to_torch_by_bus_id_only(monkeypatch, bus, ok):
    """ROCm's torch has its own names and UUIDs."""
    seen = SimpleNamespace(
        name="AMD Instinct MI300X OAM",
        major=9,
        minor=4,
        total_memory=192 << 30,
        uuid="1234",
        pci_domain_id=2,
        pci_bus_id=bus,
        pci_device_id=0,
        multi_processor_count=300,
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda rank: seen)
    profile = DeviceProfile(
        backend="rocm", name="AMD Instinct MI300X", pci_bus_id="0002:0c:00.0", sm_count=304
    )
    if ok:
        assert check_device(profile) == ()
    else:
        with pytest.raises(NoDeviceError, match="PCI bus id"):
            check_device(profile)
