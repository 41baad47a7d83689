"""A few steps of a case, as ``check --cuda`` tries it: its report, and its number of steps."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
import torch

from gpubench.cuda_check.run import AMOUNTS
from gpubench.executions import OF_TORCH
from gpubench.measure import guards, proofs
from gpubench.measure.case import try_batch
from gpubench.measure.messages import Prove, TryBatch
from gpubench.models import Execution, Precision, Status
from gpubench.readings import h200_readings
from gpubench.workload import Task
from strict_cuda.machine import Fault, Machine
from strict_cuda.models import acting


def tried(gpu, name: str = "cnn", built=None, **changes):
    case = gpu.case(name, built, **changes)
    return try_batch(TryBatch(reference=name, case=case), gpu.desk)


@pytest.mark.parametrize("execution", OF_TORCH)
def test_a_trial_reports_what_a_measurement_reports_before_its_first_round(gpu, execution):
    done = tried(gpu, execution=execution, precision=Precision.AMP_BF16)
    launch = done.launch
    assert (done.status, done.reason, done.traceback) == (Status.OK, None, None)
    assert launch.switches.unexpected(Precision.AMP_BF16) is None
    assert launch.precision_errors.keys() == {"matmul", "conv"}
    assert launch.reference_error < 2e-2
    assert (launch.graph_error is None) == (execution is Execution.EAGER)
    assert launch.peak_memory_bytes > 0
    assert launch.rounds == ()


def test_a_trial_that_cannot_be_captured_is_unsupported_and_a_failed_one_keeps_its_traceback(make_gpu):
    done = tried(make_gpu(), "own", acting(lambda out: out.sum().item()), execution=Execution.GRAPH)
    assert (done.status, done.spent) == (Status.UNSUPPORTED, True)
    assert "capturing" in done.reason
    fault = Fault("addmm", lambda: RuntimeError("CUDA error: unspecified launch failure"), after=3)
    done = tried(make_gpu(Machine(faults=[fault])))
    assert (done.status, done.spent) == (Status.FAILED, True)
    assert "unspecified launch failure" in done.traceback


def test_the_reference_loss_is_computed_once_for_all_precisions_and_executions(gpu, monkeypatch):
    computed = []
    expected_of = guards.expected_of
    monkeypatch.setattr(guards, "expected_of", lambda *a: computed.append(1) or expected_of(*a))
    case = gpu.case("cnn")
    for precision in (Precision.FP32, Precision.TF32):
        for execution in (Execution.EAGER, Execution.GRAPH):
            order = msgspec.structs.replace(case, precision=precision, execution=execution)
            assert try_batch(TryBatch(reference="cnn", case=order), gpu.desk).status is Status.OK
    assert computed == [1]
    assert tried(gpu, "lstm").status is Status.OK
    assert computed == [1, 1]


PROOFS_S = {"clock": 10.1, "graph": 5.8, "load": 18.2}
"""Time of warm-up and blocks for each proof on an H100, from its confirmed check, at steps of 22.1 ms."""


def few_kernels() -> Task:
    """A task with a step of a dozen kernels: a proof of half a minute takes a thousand steps."""
    batches = tuple((torch.randn(4, 8), torch.zeros(4, dtype=torch.long)) for _ in range(4))
    return Task(
        model=torch.nn.Linear(8, 4),
        batches=batches,
        loss=torch.nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.01),
    )


@pytest.mark.parametrize("what", ["clock", "graph", "load"])
def test_proof_duration_matches_a_card_with_the_same_step_time(make_gpu, what):
    """Time is that of the device's clock, and the steps are as long as VGG16's on an H200."""
    step_s = next(
        s.step_s[Execution.EAGER]
        for s in h200_readings().steps
        if (s.workload, s.precision) == ("vgg16", Precision.AMP_BF16)
    )
    state = {"kernel_s": 0.0}
    gpu = make_gpu(Machine(cost=lambda name: state["kernel_s"], issue_s=1e-6))
    execution = Execution.GRAPH if what == "graph" else Execution.EAGER
    case = gpu.case("cnn", few_kernels(), precision=Precision.AMP_BF16, execution=execution)
    work = proofs.move(gpu.desk.task("cnn", case), case, gpu.desk.hardware.device)
    work.step(0)
    before = gpu.machine.kernels
    work.step(1)
    state["kernel_s"] = step_s / (gpu.machine.kernels - before)
    del work
    gpu.desk.tasks.clear()
    case = gpu.case("cnn", few_kernels(), precision=case.precision, execution=case.execution)
    began_ns = gpu.machine.now_ns
    order = Prove(
        what=what,
        reference="cnn",
        case=case,
        fours=AMOUNTS.fours,
        block_s=AMOUNTS.block_s,
        load_s=AMOUNTS.load_s,
        settle_s=AMOUNTS.settle_s,
    )
    done = proofs.prove(order, gpu.desk)
    assert done.status is Status.OK, done.traceback
    took_s = (gpu.machine.now_ns - began_ns) * 1e-9
    assert took_s == pytest.approx(PROOFS_S[what], rel=0.3)
