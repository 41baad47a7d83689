"""The micro-benchmarks on the strict fake: each figure is the one that the fake device was given."""

from __future__ import annotations

import msgspec
import pytest
import torch

from gpubench.measure import micro
from gpubench.models import FindingKind
from strict_cuda.conftest import BRIEF
from strict_cuda.machine import Machine

MIB = 2**20
LAUNCHES = 50
COPY_S, GEMM_S, ADD_S, ISSUE_S = 4e-3, 2e-3, 3e-6, 5e-6
KERNELS_S = {"aten::mm": GEMM_S, "aten::copy_": COPY_S, "aten::add_": ADD_S}
BUDGET = msgspec.structs.replace(BRIEF, micro_s=0.05)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(micro, "GEMM_SIZES", dict.fromkeys(micro.GEMM_SIZES, (256,)))
    monkeypatch.setattr(micro, "COPY_BYTES", MIB)
    monkeypatch.setattr(micro, "TRANSFER_BYTES", MIB)
    monkeypatch.setattr(micro, "CACHE_BYTES", MIB)
    monkeypatch.setattr(micro, "LAUNCHES", LAUNCHES)


@pytest.fixture
def run(make_gpu):
    def results(machine=None, *, strict, **options):
        gpu = make_gpu(
            machine or Machine(issue_s=ISSUE_S, cost=lambda name: KERNELS_S.get(name, 1e-4)), BUDGET
        )
        desk = gpu.desk
        found = micro.run_micro(
            desk.hardware, desk.profile, BUDGET, desk.telemetry, strict=strict, **({"others": True} | options)
        )
        return {(r.name, r.precision): r for r in found}, gpu

    return results


def test_every_figure_is_that_of_the_device(run):
    found, gpu = run(strict=False)
    for precision in ("tf32", "fp16", "bf16"):
        product = found["gemm", precision]
        assert product.value == pytest.approx(2 * 256**3 / GEMM_S, rel=0.01), precision
    assert found["device copy", None].value == pytest.approx(2 * MIB / COPY_S, rel=0.01)
    for way in ("host to device", "device to host"):
        for kind in ("pinned", "pageable"):
            rate = found[f"{way} {kind}", None].value
            assert rate == pytest.approx(gpu.machine.transfer_bytes_per_s, rel=0.2), (way, kind)
    assert found["launch device", None].value == pytest.approx(ADD_S, rel=0.5)  # and the gap of its events
    assert found["launch wall", None].value == pytest.approx(ISSUE_S, rel=0.1)
    assert gpu.machine.memory.allocated == 0


def test_strict_products_are_of_fp32_alone_and_prove_their_precision(run):
    found, _ = run(strict=True, others=False)
    assert set(found) == {("gemm", "fp32")}
    assert FindingKind.TF32_IN_FORCE not in {f.kind for f in found["gemm", "fp32"].findings}


def test_products_that_are_not_ieee_are_doubted(run):
    machine = Machine(cost=lambda name: 1e-3, tf32="always")
    found, _ = run(machine, strict=True, others=False)
    assert FindingKind.TF32_IN_FORCE in {f.kind for f in found["gemm", "fp32"].findings}


def test_the_cache_is_cleared_outside_what_is_timed(run):
    """Clearing takes 10 ms here, and no figure has it in."""
    found, _ = run(Machine(cost=lambda name: 1e-2 if "zero_" in name else 1e-3), strict=False, others=False)
    assert found["gemm", "bf16"].value == pytest.approx(2 * 256**3 / 1e-3, rel=0.01)


def test_no_operand_is_left_in_the_cache_for_the_next_repetition(run):
    """Between two products something as large as the cache is written."""
    kernels = []
    run(Machine(cost=lambda name: kernels.append(name) or 1e-3), strict=False, others=False)
    told = [name for name in kernels if name in {"aten::mm", "aten::zero_"}]
    products = [place for place, name in enumerate(told) if name == "aten::mm"]
    assert len(products) > 10
    assert all(told[place - 1] == "aten::zero_" for place in products)


def test_transfers_lie_in_the_memory_that_their_name_says(gpu):
    for pinned in (True, False):
        copy = micro.transfer(to_device=True, pinned=pinned, size=MIB).make(torch.device("cuda", 0))
        torch.cuda.synchronize()
        before = gpu.machine.now_ns
        copy()
        waited = gpu.machine.now_ns - before >= MIB / gpu.machine.transfer_bytes_per_s * 1e9
        assert waited is not pinned
