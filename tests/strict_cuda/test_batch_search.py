"""The largest batch that fits, found by trials and then measured, on the strict fake."""

from __future__ import annotations

from collections import deque
from functools import partial

import pytest
import torch
from torch import nn

from gpubench.measure import launcher, worker
from gpubench.measure.batch_search import fits, largest_that_fits
from gpubench.measure.budget import QUICK
from gpubench.measure.case import try_batch
from gpubench.measure.messages import Ready, Setup, TryBatch
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.measure.step import Hardware
from gpubench.models import Execution, Finding, FindingKind, Status
from gpubench.workload import Task
from strict_cuda.conftest import KERNEL_S
from strict_cuda.machine import Fault, Machine
from strict_cuda.tensors import WORKSPACE_BYTES

MIB = 2**20
WIDTH = 256


def wide(batch: int) -> Task:
    """A task with 768 KiB of weights, so copies of weights and moments count next to the batch."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    batches = tuple((torch.randn(batch, WIDTH), torch.randn(batch, WIDTH)) for _ in range(2))
    return Task(
        model=model,
        batches=batches,
        loss=nn.functional.mse_loss,
        optimizer=partial(torch.optim.Adam, lr=1e-3),
    )


@pytest.fixture
def tried(make_gpu):
    """``tried(execution, total, batch)``: the result of one trial in its own process."""

    def trial(execution: Execution, total: int, batch: int):
        gpu = make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="as switched"))
        gpu.machine.memory.total = total
        case = gpu.case("own", wide(batch), execution=execution, batch_size=batch)
        return try_batch(TryBatch(reference="own", case=case), gpu.desk)

    return trial


@pytest.mark.parametrize("execution", [Execution.EAGER, Execution.GRAPH])
def test_the_batch_that_a_search_finds_can_be_measured_and_a_larger_one_cannot(make_gpu, tried, execution):
    streams = 2 if execution is Execution.GRAPH else 1  # the default one, and the one that is captured
    total = streams * WORKSPACE_BYTES + 14 * MIB

    def fits(batch: int) -> bool:
        done = tried(execution, total, batch)
        assert done.status in {Status.OK, Status.OUT_OF_MEMORY}, done.reason
        assert done.spent == (done.status is Status.OUT_OF_MEMORY)
        return done.status is Status.OK

    found = largest_that_fits(fits, 500, resolution=1 / 8)
    assert found > 200
    for batch, status in ((found, Status.OK), (2 * found, Status.OUT_OF_MEMORY)):
        gpu = make_gpu(Machine(cost=lambda name: KERNEL_S, tf32="as switched"))
        gpu.machine.memory.total = total
        assert gpu.measure("own", wide(batch), execution=execution, batch_size=batch).status is status


@pytest.mark.parametrize("operator", ["mm", "addmm", "_fused_adam", "clone"])
def test_out_of_memory_in_any_phase_means_the_batch_does_not_fit(make_gpu, operator):
    words = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    for execution in (Execution.EAGER, Execution.GRAPH):
        gpu = make_gpu(Machine(faults=[Fault(operator, lambda: RuntimeError(words), after=1)]))
        case = gpu.case("own", wide(8), execution=execution, batch_size=8)
        assert try_batch(TryBatch(reference="own", case=case), gpu.desk).status is Status.OUT_OF_MEMORY


def test_batch_trial_that_fails_for_another_reason_reports_it(make_gpu):
    gpu = make_gpu(Machine(faults=[Fault("addmm", lambda: ValueError("unlucky"))]))
    done = try_batch(TryBatch(reference="own", case=gpu.case("own", wide(8), batch_size=8)), gpu.desk)
    assert done.status is Status.FAILED
    assert "unlucky" in done.reason


@pytest.fixture
def processes(make_gpu, monkeypatch):
    """The devices of the processes that a search starts; each process runs in this one, with its own fake device."""
    started = []

    class InHere:
        swept = ()

        def __init__(self, environment, module, arguments=()):
            self.said = deque()
            first = [Fault("mm", lambda: RuntimeError("CUDA error: out of memory"), capturing=True)]
            self.gpu = make_gpu(Machine(faults=[] if started else first))
            started.append(self.gpu)

        def send(self, command):
            if isinstance(command, Setup):
                self.said.append(next(m for m in self.gpu.line.sent if isinstance(m, Ready)))
                return
            batch = command.case.batch_size
            self.gpu.case("own", wide(batch), execution=command.case.execution, batch_size=batch)
            worker.serve(command, self.gpu.desk, self.gpu.line)
            self.said.append(self.gpu.line.sent[-1])

        def receive(self, until_s):
            return self.said.popleft()

        def end(self):
            pass

        def output(self):
            return ""

    monkeypatch.setattr(launcher, "Child", InHere)
    return started


def test_batch_that_ran_out_of_memory_does_not_share_its_process_with_the_next(make_gpu, processes):
    """The allocator of a process believes that the capture continues after it ran out of memory."""
    gpu = make_gpu()
    case = gpu.case("own", wide(8), execution=Execution.GRAPH, batch_size=8)
    planned = PlannedCase(reference="own", case=case)
    trials = launcher.Launcher(Plan(budget=QUICK, seed=0, cases=(planned,)), gpu.profile)
    found = [fits(trials, planned, lambda *_: None, batch) for batch in (8, 4, 2)]
    assert found == [False, True, True]
    assert len(processes) == 2


def test_a_step_that_spills_into_host_memory_is_reported_and_does_not_fit(gpu, monkeypatch):
    """Drivers on Windows and WSL do this instead of refusing; no such machine was available."""
    case = gpu.case("cnn", batch_size=8)
    assert spilled(gpu.measure("cnn", batch_size=8)) == []
    monkeypatch.setattr(Hardware, "memory_bytes", lambda self: 2**20)
    assert len(spilled(gpu.measure("cnn", batch_size=8))) == 1
    tried = try_batch(TryBatch(reference="cnn", case=case), gpu.desk)
    assert tried.status is Status.OUT_OF_MEMORY
    assert "host's memory" in tried.reason


def spilled(done) -> list[Finding]:
    return [found for found in done.launch.findings if found.kind is FindingKind.MEMORY_SPILLED]
