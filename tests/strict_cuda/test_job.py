"""The first process of a job and its exchanges, on the strict fake, with gloo instead of NCCL.

The job has no other process here: the tests see each exchange, but not the results of two processes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import pytest
import torch
from own_kinds import HEAD, pair
from torch import distributed

from gpubench.discovery import load_workload
from gpubench.measure import micro
from gpubench.measure.messages import STORE_VARIABLE, Place, Setup
from gpubench.measure.team import AllReduce, Steps, Team, _run_block, _sum_up, open_store, share
from gpubench.models import FindingKind, ParallelMode, Precision, Status
from strict_cuda.conftest import BRIEF, step_s
from strict_cuda.machine import Machine

pytestmark = pytest.mark.usefixtures("in_little")
KIB = 2**10
SIZES = (4 * KIB, 64 * KIB)
REPEATS = 8
EXCHANGE_S, KERNEL_S = 2e-2, 2e-5
PROCESSES = 4
BLOCKS = 2
"""Encoder layers of the tiny BERT."""


@pytest.fixture
def kernels():
    """Count how often each kernel is issued."""
    return Counter()


@pytest.fixture
def gpu(make_gpu, kernels):
    def cost(name):
        kernels[name] += 1
        return EXCHANGE_S if "allreduce" in name else KERNEL_S

    return make_gpu(Machine(cost=cost))


@pytest.fixture
def team(gpu, tmp_path, monkeypatch):
    """A job of one process with the fake device."""
    monkeypatch.setenv(STORE_VARIABLE, f"{tmp_path / 'store'}")
    gpu.desk.team = Team(
        Setup(device=gpu.profile, budget=BRIEF, seed=0),
        gpu.desk.hardware,
        Place(rank=0, size=1, local_rank=0, local_size=1),
    )
    yield gpu.desk.team
    distributed.destroy_process_group()
    open_store.cache_clear()


# --- steps --------------------------------------------------------------------------------------------------


def test_a_step_of_ddp_contains_one_exchange(gpu, team):
    done = gpu.measure("cnn", gpu_count=2, parallel_mode=ParallelMode.DDP)
    assert EXCHANGE_S < step_s(done) < 1.5 * EXCHANGE_S


@pytest.mark.parametrize("used", [True, False])
def test_a_step_of_ddp_may_leave_a_head_unused(gpu, team, tmp_path, monkeypatch, used):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "mine.py"
    path.write_text(HEAD + pair(init="pass" if used else "self.spare = nn.Linear(8, 4)"), encoding="utf-8")
    task = load_workload(str(path)).build(4, 0)
    work = share(gpu.work("mine.py", task, gpu_count=2, parallel_mode=ParallelMode.DDP))
    assert work.model.find_unused_parameters is not used
    assert all(p.grad is None for p in work.model.parameters())
    done = gpu.measure("mine.py", task, gpu_count=2, parallel_mode=ParallelMode.DDP)
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    said = [finding.kind for finding in done.launch.findings]
    assert said.count(FindingKind.UNUSED_PARAMETERS) == (not used)


@pytest.mark.skipif(
    not hasattr(torch, "accelerator"), reason="in older torch, gloo sums part of a gradient on the host"
)
def test_fsdp_shards_each_block_separately(gpu, team, kernels):
    """One kernel combines a block's gradients for their exchange, and another combines the rest."""
    done = gpu.measure("bert_base", gpu_count=2, parallel_mode=ParallelMode.FSDP)
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    steps = kernels["aten::native_layer_norm_backward"] / (2 * BLOCKS + 1)
    joined = sum(count for name, count in kernels.items() if name.startswith("fsdp::chunk_cat"))
    assert joined == (BLOCKS + 1) * steps


@pytest.mark.parametrize("mode", [ParallelMode.DDP, ParallelMode.FSDP])
def test_multi_gpu_job_runs_in_fp8_replicated_and_sharded(gpu, team, kernels, mode):
    pytest.importorskip("torchao", exc_type=ImportError)
    recipe = load_workload("llama_1b").recipe
    done = gpu.measure(
        "llama_1b",
        precision=Precision.FP8,
        batch_size=2,
        gpu_count=2,
        parallel_mode=mode,
        **recipe.fields,
    )
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    assert done.launch.parameters_moved
    assert 0 < done.launch.reference_error <= Precision.FP8.facts.loss_error
    assert kernels["aten::_scaled_mm"] > 0


def test_peer_processes_run_the_announced_steps_and_synchronize(gpu, team):
    work = share(gpu.work("cnn", gpu_count=2, parallel_mode=ParallelMode.DDP))
    _run_block(work, Steps(first=0, count=2), gpu.desk.hardware)
    began_s = time.perf_counter()
    _run_block(work, Steps(first=2, count=3), gpu.desk.hardware)
    assert time.perf_counter() - began_s == pytest.approx(3 * EXCHANGE_S, rel=0.1)


# --- sums over all processes --------------------------------------------------------------------------------


def test_the_rate_of_an_exchange_is_that_of_the_bus(gpu, team, monkeypatch):
    """Each of four processes sends and receives one and a half times the summed bytes."""
    monkeypatch.setattr(micro, "ALL_REDUCE_BYTES", SIZES)
    monkeypatch.setattr(micro, "ALL_REDUCE_BLOCK_BYTES", SIZES[0] * REPEATS)
    team.size = PROCESSES
    waits, wait = Counter[str](), team.wait

    def counted() -> None:
        waits["device and all processes"] += 1
        wait()

    monkeypatch.setattr(team, "wait", counted)
    torch.cuda.reset_peak_memory_stats()
    small, large = micro.run_all_reduce(team, gpu.desk.hardware, BRIEF, gpu.desk.telemetry)
    assert (small.repeats, large.repeats) == (REPEATS, 1)
    for found, size in zip((small, large), SIZES, strict=True):
        assert found.value == pytest.approx(1.5 * size / EXCHANGE_S, rel=0.02)
    assert SIZES[1] <= torch.cuda.max_memory_allocated() < 2 * SIZES[1]
    # Gloo returns when the sum is complete, NCCL does not; the calls show that the clock waits.
    assert waits.total() >= 2 * (small.n + large.n)


def test_peer_processes_run_the_announced_all_reduces_and_synchronize(gpu, team):
    began_s = time.perf_counter()
    _sum_up(AllReduce(size=SIZES[0], count=5), gpu.desk.hardware)
    assert time.perf_counter() - began_s == pytest.approx(5 * EXCHANGE_S, rel=0.1)
