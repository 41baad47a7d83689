"""Capture and replay of a step, and its times by clock, events and profiler, on the strict fake."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpubench.discovery import load_workload
from gpubench.measure import guards
from gpubench.measure.guards import prepare
from gpubench.measure.messages import Phase
from gpubench.measure.step import move
from gpubench.models import Execution, Precision, Status, TaskKind
from gpubench.workload import Task
from strict_cuda import tensors
from strict_cuda.conftest import KERNEL_S
from strict_cuda.machine import Machine
from strict_cuda.models import acting, task
from strict_cuda.tensors import TRIAL_BYTES, WORKSPACE_BYTES

pytestmark = pytest.mark.usefixtures("in_little")
ANY_MODEL = [precision for precision in Precision if precision.facts.only is None]


def work_of(gpu, name="cnn", built=None, **changes):
    return gpu.work(name, built, **({"execution": Execution.GRAPH} | changes))


def first_steps(work, count=2):
    for index in range(count):
        work.step(index)


# --- the graphs ---------------------------------------------------------------------------------------------


def test_each_batch_has_its_graph_and_graphs_are_replayed_in_turn(gpu):
    work = work_of(gpu, task=TaskKind.INFER)
    expected = [work.step(index).clone() for index in range(len(work.batches))]
    advance = prepare(work)
    for index in (0, 1, 2, 3, 4, 1):
        assert torch.equal(advance(index), expected[index % len(expected)])


def test_a_replay_trains_as_eager_steps_do(gpu):
    """Ten replays give the same parameters as ten eager steps, dropout included."""
    ends = []
    for way in ("eager", "graph"):
        work = work_of(gpu, "bert_base", precision=Precision.AMP_FP16)
        first_steps(work)
        advance = prepare(work)
        state = guards._State(work)
        torch.manual_seed(5)
        if way == "eager":
            advance = work.step
        for index in range(10):
            advance(index)
        ends.append([p.detach().cpu() for p in work.model.parameters()])
        state.restore()
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_the_graphs_of_one_step_share_their_memory(gpu):
    work = work_of(gpu, "vgg16")
    first_steps(work)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    one = Task(model=work.model, batches=work.batches[:1], loss=work.loss, optimizer=torch.optim.SGD)
    advance = prepare(move(one, work.case, gpu.desk.hardware.device))
    torch.cuda.empty_cache()
    single = torch.cuda.memory_reserved() - before
    del advance
    gpu.desk.hardware.release()
    advance = prepare(work)
    torch.cuda.empty_cache()
    assert 0 < torch.cuda.memory_reserved() - before < 1.5 * single
    del advance


def test_a_capture_waits_for_its_warm_up_and_leaves_no_race(gpu):
    work = work_of(gpu)
    first_steps(work)  # nobody has waited for them
    advance = prepare(work)
    side = {s.number for s in gpu.machine.streams if s.issued} - {gpu.machine.default.number}
    assert side
    for index in range(6):
        advance(index)
    assert torch.isfinite(advance(0)).item()


# --- the time of a step -------------------------------------------------------------------------------------


def test_the_clock_waits_for_the_device_at_both_edges(make_gpu):
    """Ten kernels of 1 ms each are issued in 50 µs; earlier kernels do not count."""
    gpu = make_gpu()
    x = torch.zeros(4, device="cuda")
    clock = gpu.desk.hardware.clock()

    def work():
        for _ in range(10):
            x.add_(1)

    work()
    assert clock.time(work) == pytest.approx(10 * KERNEL_S, rel=0.01)


def test_events_span_the_device_time_of_each_step(gpu):
    work = work_of(gpu, execution=Execution.EAGER)
    first_steps(work)
    kernels = count(gpu, lambda: work.step(0))
    assert guards.event_times(work.step, 3) == pytest.approx((kernels * KERNEL_S,) * 3, rel=0.02)


def test_issue_times_separate_the_host_from_the_device(gpu):
    work = work_of(gpu, execution=Execution.EAGER)
    first_steps(work)
    kernels = count(gpu, lambda: work.step(0))
    issued, whole = guards.host_issue_times(work.step, gpu.desk.hardware.clock())[:2]
    assert issued == pytest.approx(kernels * gpu.machine.issue_s, rel=0.05)
    assert whole == pytest.approx(kernels * KERNEL_S, rel=0.05)


@pytest.mark.parametrize(("kernel_s", "share"), [(1e-3, 1.0), (2.5e-6, 0.5)], ids=["GPU-bound", "host-bound"])
def test_the_busy_share_is_that_of_the_kernels(make_gpu, kernel_s, share):
    gpu = make_gpu(Machine(cost=lambda name: kernel_s))
    work = work_of(gpu, execution=Execution.EAGER)
    first_steps(work)
    assert guards.busy_share(work.step, gpu.desk.hardware.clock()) == pytest.approx(share, rel=0.1)


def test_no_step_of_a_round_waits_for_the_device(make_gpu):
    """Steps that never wait take the longer of host time and device time; steps that wait take the sum."""
    gpu = make_gpu(Machine(cost=lambda name: 5e-6))
    waits = count_waits(gpu, lambda work: [work.step(i) for i in range(3)])
    assert waits == 0


def test_the_peak_is_that_of_the_steps_and_not_of_trials_or_current_use(gpu):
    done = gpu.measure("vgg16")
    held = sum(p.numel() for p in load_workload("vgg16").tiny(4, 0).model.parameters()) * 4
    steps = done.launch.peak_memory_bytes - WORKSPACE_BYTES
    assert 3 * held < steps < 60 * 2**20  # weights, moments and gradients; no trial of 64 MiB
    assert done.launch.peak_memory_bytes <= done.launch.peak_reserved_bytes < 200 * 2**20 + WORKSPACE_BYTES


def test_a_graph_reserves_little_more_than_the_eager_step(gpu):
    """The cache is emptied before the capture, so the private pool replaces the memory of eager steps."""
    eager, graph = (
        gpu.measure("vgg16", execution=execution).launch for execution in (Execution.EAGER, Execution.GRAPH)
    )
    assert graph.peak_memory_bytes < 1.1 * eager.peak_memory_bytes + WORKSPACE_BYTES
    assert graph.peak_reserved_bytes < 1.2 * eager.peak_reserved_bytes + WORKSPACE_BYTES


LITTLE_BYTES = 20 * 2**20
"""The size of one segment of the allocator."""


@pytest.fixture
def deep(monkeypatch) -> Task:
    """A task of 40 MiB of activations, compared with which a workspace is small."""
    monkeypatch.setattr(tensors, "WORKSPACE_BYTES", LITTLE_BYTES)
    return task(nn.Sequential(*(nn.Linear(16, 16) for _ in range(20))), 16, batch=32768)


def test_eager_steps_before_a_capture_do_not_inflate_reserved_memory(gpu, deep):
    """A cache serves the stream that filled it, so a step would need the activations of its 20 layers twice."""
    reserved = {}
    for execution in (Execution.EAGER, Execution.GRAPH):
        done = gpu.measure("own", deep, batch_size=32768, execution=execution)
        reserved[execution] = done.launch.peak_reserved_bytes
    assert reserved[Execution.GRAPH] < 1.2 * reserved[Execution.EAGER] + LITTLE_BYTES


def test_the_memory_of_the_check_of_a_graph_is_released_before_timing(gpu, deep, monkeypatch):
    """The check also runs eager steps; with their memory in the cache, an H200 showed twice the memory of VGG16."""
    held = {}
    send = gpu.line.send

    def note(message):
        if isinstance(message, Phase):
            held[message.name] = gpu.machine.memory.reserved
        send(message)

    monkeypatch.setattr(gpu.line, "send", note)
    done = gpu.measure("own", deep, batch_size=32768, execution=Execution.GRAPH)
    assert 0 < held["warm-up"] <= done.launch.peak_reserved_bytes + LITTLE_BYTES


def test_memory_of_earlier_trials_is_not_the_memory_of_the_steps(gpu):
    """cuDNN's trials take free memory; their blocks stay cached unless they are released."""
    done = gpu.measure("cnn", execution=Execution.EAGER)
    assert done.launch.peak_reserved_bytes < done.launch.peak_memory_bytes + TRIAL_BYTES / 2


def test_earlier_captures_do_not_change_the_peak_of_a_graph(gpu):
    """A workspace of cuBLAS outlives the stream for which it was allocated, unless it is released."""
    peaks = []
    for _ in range(3):
        peaks.append(gpu.measure("lstm", execution=Execution.GRAPH).launch.peak_memory_bytes)
        assert not gpu.desk.is_spent(Status.OK)
    assert peaks[0] == peaks[1] == peaks[2]


def test_the_allocator_is_read_while_a_case_warms_up(gpu):
    before = gpu.desk.hardware.step_state()
    x = torch.zeros(2**22, device="cuda")
    grown = gpu.desk.hardware.step_state()
    assert before.retries == grown.retries == 0
    assert grown.segments == before.segments + 1
    del x


def test_a_users_model_that_only_looks_at_its_input_on_the_device_is_captured(gpu):
    done = gpu.measure("own", acting(lambda out: out.relu().mul(2)), execution=Execution.GRAPH)
    assert (done.status, done.launch.graph_error) == (Status.OK, 0.0)


def count(gpu, work) -> int:
    before = gpu.machine.kernels
    work()
    gpu.desk.hardware.clock().synchronize()
    return gpu.machine.kernels - before


def count_waits(gpu, steps) -> int:
    """Count how often the host waits inside steps of every precision."""
    waits = 0
    real = gpu.machine.drain

    def drain(*args, **kwargs):
        nonlocal waits
        waits += 1
        return real(*args, **kwargs)

    for precision in ANY_MODEL:
        work = work_of(gpu, execution=Execution.EAGER, precision=precision)
        first_steps(work)
        gpu.machine.drain = drain
        steps(work)
        gpu.machine.drain = real
    return waits
