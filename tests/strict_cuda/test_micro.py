"""The micro-benchmarks on the strict fake: each figure matches the fake device."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpubench.measure import micro, probes, worker
from gpubench.measure.messages import MeasureMicro, MicroDone
from gpubench.models import Finding, FindingKind, Status
from gpubench.specs import load_specs
from gpubench.tensors import EveryCall
from strict_cuda.conftest import BRIEF
from strict_cuda.machine import Fault, Machine

MIB = 2**20
LAUNCHES = 50
COPY_S, GEMM_S, ADD_S, ISSUE_S = 4e-3, 2e-3, 3e-6, 5e-6
KERNELS_S = {"aten::mm": GEMM_S, "aten::copy_": COPY_S, "aten::add_": ADD_S}
BUDGET = msgspec.structs.replace(BRIEF, micro_s=0.05)
CACHE_BYTES = micro.CACHE_BYTES


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    in_fp8 = {"fp8": (64,)}  # the CPU computes it in a simple loop
    monkeypatch.setattr(micro, "GEMM_SIZES", dict.fromkeys(micro.GEMM_SIZES, (256,)) | in_fp8)
    monkeypatch.setattr(micro, "COPY_BYTES", MIB)
    monkeypatch.setattr(micro, "TRANSFER_BYTES", MIB)
    monkeypatch.setattr(micro, "CACHE_BYTES", MIB)
    monkeypatch.setattr(micro, "LAUNCHES", LAUNCHES)
    monkeypatch.setattr(probes, "MICRO_WARM_S", 0.02)  # the fake device needs no warming


@pytest.fixture
def run(make_gpu):
    def results(machine=None):
        gpu = make_gpu(
            machine or Machine(issue_s=ISSUE_S, cost=lambda name: KERNELS_S.get(name, 1e-4)), BUDGET
        )
        desk = gpu.desk
        found = list(micro.run_micro(desk.hardware, desk.profile, BUDGET, desk.telemetry))
        alone = [f for f in found if isinstance(f, Finding)]
        return {(r.name, r.precision): r for r in found if r not in alone}, gpu, alone

    return results


def test_micro_benchmark_figures_match_the_simulated_device(run):
    found, gpu, alone = run()
    for precision in ("tf32", "fp16", "bf16"):
        product = found["gemm", precision]
        assert product.value == pytest.approx(2 * 256**3 / GEMM_S, rel=0.01), precision
    assert found["device copy", None].value == pytest.approx(2 * MIB / COPY_S, rel=0.01)
    for way in ("host to device", "device to host"):
        for kind in ("pinned", "pageable"):
            rate = found[f"{way} {kind}", None].value
            assert rate == pytest.approx(gpu.machine.transfer_bytes_per_s, rel=0.2), (way, kind)
    assert found["launch device", None].value == pytest.approx(ADD_S, rel=0.5)  # plus a gap
    assert found["launch wall", None].value == pytest.approx(ISSUE_S, rel=0.1)
    assert gpu.machine.memory.allocated == 0
    assert alone == []


OTHERS = {
    ("device copy", None),
    *(
        (f"{way} {kind}", None)
        for way in ("host to device", "device to host")
        for kind in ("pinned", "pageable")
    ),
    *((f"launch {clock}", None) for clock in ("device", "wall")),
}


def no_memory() -> RuntimeError:
    return RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def test_a_product_too_large_for_the_device_is_measured_at_half_its_size_and_says_so(run, monkeypatch):
    monkeypatch.setattr(micro, "LEAST_GEMM", 64)
    after_the_proof = Fault("aten::mm", no_memory, after=1)
    once = Machine(cost=lambda name: KERNELS_S.get(name, 1e-4), faults=[after_the_proof])
    found, gpu, alone = run(once)
    first = found.pop(("gemm", "fp32"))
    assert (first.size, [f.kind for f in first.findings]) == ("128", [FindingKind.MEMORY_REFUSED])
    assert first.findings[0].value.startswith("gemm fp32 of 256; ")
    assert {found["gemm", name].size for name in ("tf32", "fp16", "bf16")} == {"256"}, (
        "the others are as large as ever"
    )
    assert found.keys() >= OTHERS
    assert alone == []
    assert gpu.machine.memory.allocated == 0


def test_products_that_never_fit_are_named_and_the_rest_is_measured(run):
    """Without memory for a matrix product, strict fp32 is not even proven."""
    never = Machine(
        cost=lambda name: KERNELS_S.get(name, 1e-4), faults=[Fault("aten::mm", no_memory, times=10**6)]
    )
    found, gpu, alone = run(never)
    assert {f.kind for f in alone} == {FindingKind.MEMORY_REFUSED}
    assert [f.value.partition("; ")[0] for f in alone] == [
        "the proof of strict fp32",
        *(f"gemm {name} of 256" for name in ("tf32", "fp16", "bf16")),
    ]
    assert found.keys() - {("gemm", "fp8"), ("gemm", "int8")} == OTHERS
    assert gpu.machine.memory.allocated == 0


def test_out_of_memory_in_a_micro_benchmark_is_reported_and_cases_still_run(make_gpu):
    gpu = make_gpu(Machine(cost=lambda name: 1e-4, faults=[Fault("aten::mm", no_memory, times=3)]), BUDGET)
    worker.serve(MeasureMicro(), gpu.desk, gpu.line)
    told = [each for each in gpu.line.sent if isinstance(each, MicroDone)]
    assert [each.finding.kind for each in told if each.finding] == [FindingKind.MEMORY_REFUSED] * 3
    assert [each.last for each in told] == [False] * (len(told) - 1) + [True]
    assert gpu.measure("cnn").status is Status.OK


def test_products_in_fp32_prove_their_precision_next_to_the_others(run):
    found, *_ = run()
    assert FindingKind.TF32_IN_FORCE not in {f.kind for f in found["gemm", "fp32"].findings}


def test_products_that_are_not_ieee_are_flagged(run):
    machine = Machine(cost=lambda name: 1e-3, tf32="always")
    found, *_ = run(machine)
    assert FindingKind.TF32_IN_FORCE in {f.kind for f in found["gemm", "fp32"].findings}


def test_the_cache_is_cleared_outside_the_timed_region(run):
    """Clearing takes 10 ms here, and no figure includes it."""
    found, *_ = run(Machine(cost=lambda name: 1e-2 if "zero_" in name else 1e-3))
    assert found["gemm", "bf16"].value == pytest.approx(2 * 256**3 / 1e-3, rel=0.01)


def test_cache_is_flushed_between_gemm_repetitions(run):
    """Before each product, the buffer that clears the cache is written."""
    kernels = []
    run(Machine(cost=lambda name: kernels.append(name) or 1e-3))
    told = [name for name in kernels if name in {"aten::mm", "aten::zero_"}]
    products = [place for place, name in enumerate(told) if name == "aten::mm"]
    assert len(products) > 10
    assert all(told[place - 1] == "aten::zero_" for place in products)


def test_cache_flush_buffer_is_larger_than_any_cache(gpu, monkeypatch):
    monkeypatch.setattr(micro, "CACHE_BYTES", CACHE_BYTES)
    monkeypatch.setattr(probes, "MICRO_WARM_S", 0.0)
    written = []

    def note(operator, args, kwargs):
        if operator is torch.ops.aten.zero_.default:
            written.append(args[0].nbytes)
        return operator(*args, **kwargs)

    with EveryCall(note):
        micro.measure_probe(micro.gemm("bf16", 64), gpu.desk.hardware, BUDGET)
    assert written
    assert min(written) > max(spec.l2_bytes or 0 for spec in load_specs().values())


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_gemm_probe_executes_the_flops_it_reports(gpu, precision):
    probe = micro.gemm(precision, 64)
    multiply = probe.make(gpu.desk.hardware.device)
    with FlopCounterMode(display=False) as counted:
        multiply()
    assert counted.get_total_flops() == probe.work


def test_every_gemm_is_timed_with_the_switches_of_its_precision(run, monkeypatch):
    """Neither products in fp32 nor the copies of their proof ever see TF32 on; all others do."""
    allowed, now = {}, ["fp32"]
    measure = micro.measure_probe

    def measured(probe, *args, **kwargs):
        now.append(probe.precision)
        return measure(probe, *args, **kwargs)

    def cost(name):
        if name == "aten::mm":
            allowed.setdefault(now[-1], set()).add(torch.backends.cuda.matmul.allow_tf32)
        return 1e-3

    monkeypatch.setattr(micro, "measure_probe", measured)
    run(Machine(cost=cost))
    assert allowed["fp32"] == {False}
    assert allowed["tf32"] == allowed["bf16"] == {True}


def test_transfer_uses_pinned_or_pageable_memory_as_named(gpu):
    for pinned in (True, False):
        copy = micro.transfer(MIB, to_device=True, pinned=pinned).make(torch.device("cuda", 0))
        torch.cuda.synchronize()
        before = gpu.machine.now_ns
        copy()
        waited = gpu.machine.now_ns - before >= MIB / gpu.machine.transfer_bytes_per_s * 1e9
        assert waited is not pinned
