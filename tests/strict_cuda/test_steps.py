"""The parts of a row other than its captures: rounds, memory, the check of a graph, on the strict fake."""

from __future__ import annotations

from statistics import median

import pytest
import torch
from torch import nn

from gpubench.measure import guards
from gpubench.measure.guards import prepare
from gpubench.measure.loop import Loop
from gpubench.measure.messages import Ready
from gpubench.models import Execution, Precision, Status, TaskKind
from strict_cuda.conftest import KERNEL_S, step_s
from strict_cuda.machine import Machine
from strict_cuda.models import acting, task
from strict_cuda.tensors import WORKSPACE_BYTES

LAUNCH_BOUND = 2.5e-6
"""A kernel that runs for half of its launch time."""


def wide(layers=4, side=1024):
    """Make a task with 4 MiB of weights per layer and almost no activations."""
    return task(nn.Sequential(*(nn.Linear(side, side) for _ in range(layers))), side)


# --- rounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 6])
def test_a_round_waits_for_the_device_only_at_its_edges(gpu, steps):
    """A round waits once before, once after, and once for the loss, whatever the number of steps."""
    work = gpu.work("own", acting(lambda out: None))
    loop = Loop(
        advance=work.step, edge_loss=work.edge_loss, clock=gpu.desk.clock(), batches=len(work.batches)
    )
    loop.round(2)
    waits, real = [], gpu.machine.drain
    gpu.machine.drain = lambda *args, **kwargs: waits.append(args) or real(*args, **kwargs)
    loop.round(steps)
    assert len(waits) == 3


def test_graph_removes_launch_overhead_from_steps(make_gpu):
    """If kernels are shorter than their launches, a replay takes the time of the kernels."""
    rows = {}
    for execution in (Execution.EAGER, Execution.GRAPH):
        gpu = make_gpu(Machine(cost=lambda name: LAUNCH_BOUND))
        rows[execution] = gpu.measure("own", wide(layers=16, side=8), execution=execution)
    assert step_s(rows[Execution.GRAPH]) < 0.7 * step_s(rows[Execution.EAGER])


def test_issue_times_begin_with_an_idle_device(gpu):
    work = gpu.work("own", acting(lambda out: None))
    for index in range(2):
        work.step(index)
    gpu.desk.clock().synchronize()
    alone = guards.host_issue_times(work.step, gpu.desk.clock())
    x = torch.zeros(1, device="cuda")
    for _ in range(50):
        x.add_(1)
    assert guards.host_issue_times(work.step, gpu.desk.clock()) == pytest.approx(alone, abs=KERNEL_S)


def test_a_latency_spans_all_the_work_of_its_pass(gpu):
    done = gpu.measure("own", acting(lambda out: None, batch=1), batch_size=1, task=TaskKind.INFER)
    assert len(done.launch.latency_s) > 1
    assert min(done.launch.latency_s) >= median(done.launch.event_s) > KERNEL_S


def test_images_are_channels_last_in_every_step_of_such_a_case(gpu):
    layouts = set()

    class Looking(nn.Conv2d):
        def forward(self, images):
            layouts.add(images.is_contiguous(memory_format=torch.channels_last))
            return super().forward(images)

    net = nn.Sequential(Looking(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 4))
    work = gpu.work("own", task(net, 3, 8, 8), precision=Precision.TF32)
    work.step(0)
    assert layouts == {True}


def test_cudnn_tries_its_algorithms_on_each_new_shape(gpu):
    """The setting is on, and the child reports it."""
    (ready,) = (message for message in gpu.line.sent if isinstance(message, Ready))
    assert ready.cudnn_benchmark is True
    assert torch.backends.cudnn.benchmark is True


# --- memory -------------------------------------------------------------------------------------------------


def test_the_peak_includes_what_a_step_frees_before_it_ends(gpu):
    """Activations of 20 layers, all freed when the step is over."""
    layers, side, batch = 20, 16, 4096
    deep = task(nn.Sequential(*(nn.Linear(side, side) for _ in range(layers))), side, batch=batch)
    done = gpu.measure("own", deep, batch_size=batch)
    assert done.launch.peak_memory_bytes - WORKSPACE_BYTES > layers * side * batch * 4


def test_an_inference_keeps_nothing_for_a_backward_pass(gpu):
    layers, side, batch = 20, 16, 4096
    deep = task(nn.Sequential(*(nn.Linear(side, side) for _ in range(layers))), side, batch=batch)
    done = gpu.measure("own", deep, batch_size=batch, task=TaskKind.INFER)
    inputs = 2 * side * batch * 4
    assert done.launch.peak_memory_bytes - WORKSPACE_BYTES - inputs < layers / 2 * side * batch * 4


def test_the_peak_of_a_graph_is_not_that_of_its_check(gpu):
    """A step needs weights and gradients; the check also keeps a second copy of the weights."""
    peaks = []
    for execution in (Execution.EAGER, Execution.GRAPH):
        done = gpu.measure("own", wide(), execution=execution)
        assert done.status is Status.OK
        peaks.append(done.launch.peak_memory_bytes)
    weights = 4 * 1024**2 * 4
    assert peaks[1] < peaks[0] + weights / 2


# --- the check of a graph -----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_the_check_of_a_graph_leaves_no_trace(gpu, optimizer):
    """Weights, running statistics, moments and the gradient scale are unchanged."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    built = task(model, 8, optimizer=optimizer)
    work = gpu.work("own", built, precision=Precision.AMP_FP16, execution=Execution.GRAPH)
    for index in range(3):
        work.step(index)
    advance = prepare(work)
    advance(0)

    def seen():
        moments = [v for state in work.optimizer.state.values() for v in state.values()]
        tensors = [*work.model.parameters(), *work.model.buffers(), *moments, work.scaler._scale]
        return [t.detach().cpu().tolist() for t in tensors if isinstance(t, torch.Tensor)]

    before = seen()
    assert guards.graph_error(work, advance) == 0.0
    assert seen() == before


def test_a_step_that_a_graph_freezes_is_detected(gpu):
    """Python decides again in each eager step; a replay repeats the decision of its capture."""
    own = acting(lambda out: out * (1 if torch.cuda.is_current_stream_capturing() else 2))
    done = gpu.measure("own", own, execution=Execution.GRAPH)
    assert done.launch.graph_error > 10 * Precision.FP32.facts.loss_error
