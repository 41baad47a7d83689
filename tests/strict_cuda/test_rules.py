"""The strict fake itself: each rule of CUDA that the other tests lean on, broken by hand."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn

from strict_cuda.install import installed
from strict_cuda.machine import INVALIDATED, NOT_PERMITTED, NOT_READY, Fault, Machine, RaceError


@pytest.fixture
def device():
    with installed(Machine(cost=lambda name: 1e-3)) as made:
        yield made


def warm() -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.zeros(1, device="cuda").add_(1)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def test_tensors_say_where_they_are_and_do_not_mix(device):
    here, there = torch.zeros(2), torch.zeros(2, device="cuda")
    assert (there.device, there.is_cuda, here.is_cuda) == (torch.device("cuda", 0), True, False)
    assert torch.zeros_like(there).is_cuda
    assert (there + 1).is_cuda
    assert (there * torch.tensor(2.0)).is_cuda  # a host scalar may take part
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    with pytest.raises(TypeError, match=r"Tensor\.cpu"):
        there.numpy()
    assert not there.cpu().is_cuda
    assert there.tolist() == [0.0, 0.0]


def test_a_module_moves_and_its_gradients_lie_where_it_does(device):
    model = nn.Linear(2, 2).to("cuda")
    loss = model(torch.ones(1, 2, device="cuda")).sum()
    loss.backward()
    assert model.weight.is_cuda
    assert model.weight.grad.is_cuda


def test_the_host_runs_ahead_until_it_waits(device):
    x, began = torch.zeros(2, device="cuda"), device.machine.now_ns
    x.add_(1)
    assert device.machine.now_ns - began < 1e6
    assert x[0].item() == 1.0
    assert device.machine.now_ns - began >= 1e6


def test_a_full_queue_makes_the_host_wait(device):
    x, began = torch.zeros(2, device="cuda"), device.machine.now_ns
    for _ in range(1100):
        x.add_(1)
    assert device.machine.now_ns - began > 50e6


def test_events_that_have_not_passed_cannot_be_read(device):
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.zeros(2, device="cuda")
    before.record()
    x.add_(1)
    after.record()
    with pytest.raises(RuntimeError, match=NOT_READY):
        before.elapsed_time(after)
    torch.cuda.synchronize()
    assert before.elapsed_time(after) == pytest.approx(1.0, rel=0.01)
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(after)


def test_streams_run_beside_each_other_unless_told_to_wait(device):
    x, side = torch.zeros(2, device="cuda"), torch.cuda.Stream()
    with pytest.raises(RaceError), torch.cuda.stream(side):
        x.add_(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
    with pytest.raises(RaceError):
        x.add_(1)
    torch.cuda.synchronize()
    x.add_(1)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x[0].item(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.empty_cache(),
        lambda x: torch.ones(2).to("cuda"),
    ],
    ids=["item", "cpu", "nonzero", "mask", "equal", "synchronize", "empty_cache", "upload"],
)
def test_a_capture_takes_nothing_that_waits_and_breaks_the_allocator(device, wait):
    x = torch.zeros(2, device="cuda")
    warm()
    with pytest.raises(RuntimeError, match=INVALIDATED) as caught, torch.cuda.graph(torch.cuda.CUDAGraph()):
        wait(x)
    assert NOT_PERMITTED in str(caught.value.__context__)
    with pytest.raises(RuntimeError, match="captures_underway"):
        torch.cuda.empty_cache()


def test_torch_from_2_12_ends_a_broken_capture_properly(device):
    device.machine.old_allocator = False
    x = torch.zeros(2, device="cuda")
    warm()
    with pytest.raises(RuntimeError, match=INVALIDATED), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x[0].item()
    torch.cuda.empty_cache()


def test_a_capture_on_the_default_stream_or_without_a_warm_up_is_refused(device):
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    x = torch.zeros(2, device="cuda")
    with pytest.raises(RaceError, match="side stream"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)


def test_a_capture_runs_nothing_and_a_replay_computes_again_into_the_same_memory(device):
    x = torch.zeros(2, device="cuda")
    warm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        out = x * 10
    assert x.tolist() == [0.0, 0.0]
    assert out.isnan().all()
    address = out.data_ptr()
    for step in (1, 2):
        graph.replay()
        assert (x.tolist(), out.tolist()) == ([step] * 2, [10 * step] * 2)
    assert out.data_ptr() == address


def test_a_graph_does_not_keep_what_it_reads(device):
    x = torch.zeros(2, device="cuda")
    warm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
    del x
    with pytest.raises(RaceError, match="freed"):
        graph.replay()


def test_a_replay_draws_the_random_numbers_that_an_eager_step_would(device):
    x = torch.ones(64, device="cuda")
    warm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = nn.functional.dropout(x)
    torch.manual_seed(3)
    eager = [nn.functional.dropout(x).tolist() for _ in range(2)]
    torch.manual_seed(3)
    for expected in eager:
        torch.rand(7)  # the host's numbers are others
        graph.replay()
        assert out.tolist() == expected


def test_bytes_are_counted_refused_and_kept_until_the_cache_is_emptied(device):
    memory = device.machine.memory
    memory.total = 64 * 2**20
    x = torch.zeros(8 * 2**20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 8 * 2**20
    assert torch.cuda.memory_reserved() == 20 * 2**20
    del x
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (0, 20 * 2**20)
    assert torch.cuda.max_memory_allocated() == 8 * 2**20
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate"):
        torch.zeros(65 * 2**20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_alloc_retries"] > 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0


def test_the_allocator_gives_no_figure_that_torch_does_not_document(device):
    documented = inspect.getdoc(torch.cuda.memory.memory_stats)
    for name in torch.cuda.memory_stats():
        kind, _, part = name.partition(".")
        pattern = rf'"{kind}\.\{{all,.*\}}\.\{{current,peak' if part else rf'"{kind}"'
        assert re.search(pattern, documented), name


def test_memory_of_a_graph_stays_its_own_until_it_is_gone(device):
    x = torch.zeros(2**20, device="cuda")
    warm()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with torch.cuda.graph(graph):
        y = x * 2
    del y
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() > before
    del graph
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


def test_an_error_that_sticks_fails_every_later_call(device):
    x = torch.zeros(2, device="cuda")
    device.machine.faults.append(
        Fault("add", lambda: RuntimeError("CUDA error: illegal address"), sticky=True)
    )
    for call in (lambda: x.add_(1), lambda: x.mul_(1), torch.cuda.synchronize, torch.cuda.empty_cache):
        with pytest.raises(RuntimeError, match="illegal address"):
            call()


def test_cudnn_computes_no_gradient_of_a_recurrent_layer_in_eval_mode(device):
    layer = nn.LSTM(4, 4).to("cuda")
    x = torch.ones(1, 1, 4, device="cuda")
    layer(x)[0].sum().backward()
    layer.eval()
    with torch.no_grad():
        layer(x)
    with pytest.raises(RuntimeError, match="training mode"):
        layer(x)[0].sum().backward()


def test_dropout_inside_recurrent_layers_has_random_numbers_and_memory_of_its_own(device):
    layer = nn.LSTM(4, 4, 2, dropout=0.5).to("cuda")
    x = torch.ones(3, 1, 4, device="cuda")
    layer(x)
    warm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        out = layer(x)[0]
    torch.manual_seed(0)
    graph.replay()
    replayed = out.tolist()
    torch.manual_seed(0)
    with torch.no_grad():
        assert layer(x)[0].tolist() != replayed
    with pytest.raises(RaceError, match="freed"):  # the eager step has made the state anew
        graph.replay()


def test_transfers_take_time_and_only_page_locked_ones_let_the_host_go_on(device):
    size = 25_000_000
    machine, there = device.machine, torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    for pinned in (False, True):
        host = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
        began = machine.now_ns
        there.copy_(host, non_blocking=True)
        assert (machine.now_ns - began < 1e6) == pinned
        torch.cuda.synchronize()
        assert machine.now_ns - began == pytest.approx(1e6, rel=0.2)
    assert there.sum().item() == size


def test_the_gradient_scaler_and_fused_optimizers_work_for_real(device):
    model = nn.Linear(8, 4).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    before = model.weight.detach().cpu()
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(2, 8, device="cuda")).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0**40  # steps with gradients beyond fp16 were skipped
    assert not torch.equal(before, model.weight.cpu())
