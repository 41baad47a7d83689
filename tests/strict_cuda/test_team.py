"""Two GPUs in one data-parallel job, each process with its own strict fake; gloo instead of NCCL."""

from __future__ import annotations

import pytest

from gpubench.measure.launcher import Launcher
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.models import Case, Execution, Precision, Status, TaskKind
from gpubench.probe.probe import probe
from strict_cuda.conftest import BRIEF

KERNEL_S = 1e-3

# Each process draws from its own seed. The targets of the first are 0, those of the second 1: the weight
# converges to 0.5 if gradients are averaged.
AVERAGED = """
import torch
from gpubench.workload import Task
from torch import distributed, nn

def rank():
    return distributed.get_rank() if distributed.is_initialized() else 0

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 3.0 + 4.0 * rank()))
    def forward(self, x):
        assert self.weight.is_cuda == x.is_cuda
        return self.weight.expand(len(x), 1) * 1

def build(batch_size):
    targets = torch.full((batch_size, 1), float(torch.initial_seed() % 2))
    batch = torch.ones(batch_size, 1), targets
    return Task(model=Net(), batches=(batch,), loss=nn.functional.mse_loss, optimizer=SGD)

def SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


@pytest.fixture
def job(inside_gpu, tmp_path):
    """``job(count)``: a measurement of the model on this many GPUs."""
    file = tmp_path / "averaged.py"
    file.write_text(AVERAGED)

    def measure(count: int):
        inside_gpu(["h200", "h200"], kernel_s=KERNEL_S)
        first, second = (d for d in probe().devices if d.backend == "cuda")
        case = Case(
            workload="averaged",
            workload_version=1,
            task=TaskKind.TRAIN,
            precision=Precision.TF32,
            execution=Execution.EAGER,
            memory_format=None,
            batch_size=4,
            sample_unit="sample",
            gpu_count=count,
        )
        budget = BRIEF.__class__(
            **{f: getattr(BRIEF, f) for f in BRIEF.__struct_fields__} | {"launches": 1, "timed_s": 0.3}
        )
        plan = Plan(
            budget=budget,
            seed=0,
            cases=(PlannedCase(reference=f"{file}", case=case),),
            on_cpu=False,
            peers=(second,),
        )
        (measurement,) = Launcher(plan, first).run()
        assert measurement.status is Status.OK, measurement.reason
        return measurement

    return measure


def test_two_gpu_job_trains_one_model_and_synchronizes_when_timed(job):
    alone, together = job(1), job(2)
    assert alone.launches[0].rounds[-1].loss < 0.1
    assert together.launches[0].rounds[-1].loss == pytest.approx(0.25, abs=0.1)
    for measurement in (alone, together):
        # about ten kernels of 1 ms each: without a wait the clock would see only their issue, about 50 µs
        assert measurement.step_time_s > 5 * KERNEL_S
    assert together.samples_per_s * together.step_time_s == pytest.approx(2 * 4)
