"""The strict fake itself: these tests break each CUDA rule on which other tests depend."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn

from strict_cuda.install import installed
from strict_cuda.machine import (
    CAPTURED_EVENT,
    INVALIDATED,
    ISOLATION,
    NOT_PERMITTED,
    NOT_READY,
    UNJOINED,
    Fault,
    Machine,
    RaceError,
)


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


def captured(work, **options):
    """Capture what a function does, after a warm-up; return the graph and the result of the function."""
    warm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = work()
    return graph, result


def test_streams_and_events_are_named_in_annotations(device):
    assert torch.cuda.Stream | None
    assert torch.cuda.Event | None


def test_tensors_report_their_device_and_do_not_mix(device):
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


def test_a_backward_pass_on_the_host_stays_there(device):
    """The gradient of a clamp creates a tensor from nothing."""
    here = torch.randn(4, requires_grad=True)
    here.clamp_min(0.5).sum().backward()
    assert not here.grad.is_cuda
    there = torch.randn(4, device="cuda", requires_grad=True)
    there.clamp_min(0.5).sum().backward()
    assert there.grad.is_cuda


def test_operators_that_cudas_autocast_bans_are_refused(device):
    there, here = torch.rand(2, device="cuda"), torch.rand(2)
    assert nn.functional.binary_cross_entropy(there, there).is_cuda
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.functional.binary_cross_entropy(there, there)
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.BCELoss()(there, there)
        assert nn.functional.binary_cross_entropy(here, here) > 0
        with torch.autocast("cuda", enabled=False):
            assert nn.functional.binary_cross_entropy(there, there).is_cuda


def test_incompatible_types_are_refused(device):
    there, half = torch.zeros(2, device="cuda"), torch.ones(2, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match="same scalar type"):
        there.index_add_(0, torch.arange(2, device="cuda"), half)


def test_a_tensor_made_from_numbers_is_copied_to_the_device(device):
    assert torch.tensor([1.0], device="cuda").is_cuda
    assert torch.tensor([], device="cuda").is_cuda
    assert torch.tensor([1.0], device="cuda", requires_grad=True).is_leaf
    assert torch.as_tensor([1.0], device="cuda").is_cuda
    assert torch.tensor([1.0]).is_cpu
    assert torch.tensor([1.0], device="meta").is_meta


def test_a_tensor_can_be_moved_to_the_device_of_another(device):
    there = torch.zeros(2, dtype=torch.float16, device="cuda")
    moved = torch.ones(2).to(there)
    assert (moved.is_cuda, moved.dtype) == (True, torch.float16)
    assert there.to(moved) is there
    assert not there.to(torch.ones(2)).is_cuda


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


def test_streams_run_concurrently_unless_one_waits(device):
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


def test_an_unrecorded_event_blocks_nothing(device):
    event = torch.cuda.Event()
    assert event.query()
    event.synchronize()
    torch.cuda.Stream().wait_event(event)


def test_waiting_for_an_event_does_not_cover_later_work(device):
    x, y = (torch.zeros(2, device="cuda") for _ in range(2))
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    x.add_(1)
    event.record()
    y.add_(1)
    side.wait_event(event)
    with torch.cuda.stream(side):
        x.add_(1)
        with pytest.raises(RaceError):
            y.add_(1)


def test_work_recorded_before_a_synchronized_event_is_safe_to_use(device):
    x, event = torch.zeros(2, device="cuda"), torch.cuda.Event()
    event.record()
    event.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
    torch.cuda.synchronize()
    assert x.tolist() == [1, 1]


def test_streams_are_reused_in_turn_from_a_pool_of_32(device):
    made = [torch.cuda.Stream() for _ in range(33)]
    assert len(set(map(id, made))) == 32
    assert made[32] is made[0]
    assert device.machine.default not in made


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
def test_synchronizing_during_capture_invalidates_it_and_breaks_the_allocator(device, wait):
    x = torch.zeros(2, device="cuda")
    with pytest.raises(RuntimeError, match=INVALIDATED) as caught:
        captured(lambda: wait(x))
    assert NOT_PERMITTED in str(caught.value.__context__)
    with pytest.raises(RuntimeError, match="captures_underway"):
        torch.cuda.empty_cache()


def test_torch_from_2_12_ends_a_broken_capture_properly(device):
    device.machine.old_allocator = False
    x = torch.zeros(2, device="cuda")
    with pytest.raises(RuntimeError, match=INVALIDATED):
        captured(x[0].item)
    torch.cuda.empty_cache()


def test_a_capture_on_the_default_stream_or_without_a_warm_up_is_refused(device):
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    x = torch.zeros(2, device="cuda")
    with pytest.raises(RaceError, match="side stream"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)


def test_another_stream_runs_its_kernels_during_a_capture(device):
    """torch's streams are non-blocking: even the legacy default stream may be used during the capture of one."""
    x, y = (torch.zeros(2, device="cuda") for _ in range(2))
    warm()
    graph = torch.cuda.CUDAGraph()
    beside = torch.cuda.Stream()
    with torch.cuda.graph(graph):
        x.add_(1)
        with torch.cuda.stream(beside):
            assert not torch.cuda.is_current_stream_capturing()
            y.add_(1)
        device.machine.default.wait_stream(beside)
        with torch.cuda.stream(device.machine.default):
            y.add_(10)
    torch.cuda.synchronize()
    assert (x.tolist(), y.tolist()) == ([0.0, 0.0], [11.0, 11.0])
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([1.0, 1.0], [11.0, 11.0])


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda y, beside: beside.synchronize(), NOT_PERMITTED),
        (lambda y, beside: torch.cuda.synchronize(), NOT_PERMITTED),
        (lambda y, beside: y[0].item(), NOT_PERMITTED),
        (lambda y, beside: torch.empty(2**25, device="cuda"), NOT_PERMITTED),
        (lambda y, beside: torch.cuda.Event().query(), None),
        (lambda y, beside: beside.record_event().query(), NOT_PERMITTED),
    ],
    ids=["synchronize", "device", "item", "cudaMalloc", "event never recorded", "event"],
)
def test_during_a_capture_no_other_stream_may_wait_or_take_memory_from_the_driver(device, act, words):
    x, y = (torch.zeros(2, device="cuda") for _ in range(2))
    beside = torch.cuda.Stream()

    def work():
        x.add_(1)
        with torch.cuda.stream(beside):
            act(y, beside)

    if words is None:
        captured(work)
        return
    with pytest.raises(RuntimeError, match=INVALIDATED) as caught:
        captured(work)
    assert words in str(caught.value.__context__)


def test_capture_can_reuse_memory_cached_by_a_side_stream(device):
    x, beside = torch.zeros(2, device="cuda"), torch.cuda.Stream()
    warm()
    with torch.cuda.stream(beside):
        held = torch.empty(1024, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
        with torch.cuda.stream(beside):
            taken = torch.empty(1024, device="cuda").zero_()
    assert taken.data_ptr() != held.data_ptr()


def forked(x, y, *, join: bool) -> None:
    """Use x and y in two streams of one capture."""
    origin, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x.add_(1)
    side.wait_stream(origin)
    with torch.cuda.stream(side):
        assert torch.cuda.is_current_stream_capturing()
        y.add_(1)
    if join:
        origin.wait_stream(side)
    x.add_(1)


def test_joined_fork_becomes_part_of_the_graph(device):
    x, y = (torch.zeros(2, device="cuda") for _ in range(2))
    graph, _ = captured(lambda: forked(x, y, join=True))
    assert (x.tolist(), y.tolist()) == ([0.0, 0.0], [0.0, 0.0])
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([2.0, 2.0], [1.0, 1.0])


@pytest.mark.parametrize("old", [True, False])
def test_a_fork_that_is_not_joined_ends_the_capture_and_leaves_the_streams_usable(device, old):
    device.machine.old_allocator = old
    x, y = (torch.zeros(2, device="cuda") for _ in range(2))
    warm()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=UNJOINED), torch.cuda.graph(graph):
        forked(x, y, join=False)
    with pytest.raises(RuntimeError, match="preceding successful capture"):
        graph.replay()
    assert bool(device.machine.memory.underway) == old
    assert y.add_(1).tolist() == [1.0, 1.0]


def test_a_race_between_two_streams_of_a_capture_is_detected(device):
    x = torch.zeros(2, device="cuda")
    warm()
    with pytest.raises(RaceError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        origin, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(origin)
        x.add_(1)
        with torch.cuda.stream(side):
            x.add_(1)


def test_captured_and_uncaptured_work_do_not_wait_for_each_other(device):
    x = torch.zeros(2, device="cuda")
    warm()
    beside = torch.cuda.Stream()

    def broken(act):
        with (
            pytest.raises(RuntimeError, match=INVALIDATED) as caught,
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            x.add_(1)
            act(torch.cuda.current_stream())
        return str(caught.value.__context__)

    device.machine.old_allocator = False
    assert ISOLATION in broken(lambda origin: origin.wait_stream(beside))
    assert NOT_PERMITTED in broken(device.machine.default.wait_stream)
    kept = []
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
        kept.append(torch.cuda.current_stream().record_event())
    for act in (kept[0].query, kept[0].synchronize, lambda: beside.wait_event(kept[0])):
        with pytest.raises(RuntimeError, match=CAPTURED_EVENT):
            act()


def test_seeding_during_capture_is_an_error(device):
    with pytest.raises(RuntimeError, match="set_current_seed"):
        captured(lambda: torch.cuda.manual_seed(1))


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


def test_a_graph_does_not_keep_the_workspace_of_its_products(device):
    x = torch.ones(4, 4, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x @ x
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        x @ x
    graph.replay()
    torch._C._cuda_clearCublasWorkspaces()
    with pytest.raises(RaceError, match="workspace of cuBLAS"):
        graph.replay()


def test_graph_does_not_keep_its_inputs_alive(device):
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
    graph, out = captured(lambda: nn.functional.dropout(x))
    torch.manual_seed(3)
    eager = [nn.functional.dropout(x).tolist() for _ in range(2)]
    torch.manual_seed(3)
    for expected in eager:
        torch.rand(7)  # the host's numbers differ
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


def test_segments_have_the_sizes_that_the_allocator_takes_from_the_driver(device):
    memory = device.machine.memory
    for asked, reserved in (
        (512, 2),
        (2**20, 2),
        (2**20 + 1, 20),
        (10 * 2**20 - 512, 20),
        (10 * 2**20, 10),
        (10 * 2**20 + 1, 12),
        (33 * 2**20, 34),
    ):
        x = torch.empty(asked, dtype=torch.uint8, device="cuda")
        assert (asked, memory.reserved) == (asked, reserved * 2**20)
        del x
        torch.cuda.empty_cache()


def test_request_that_exceeds_memory_after_rounding_is_refused(device):
    device.machine.memory.total = 11 * 2**20
    for asked in (2 * 2**20, 11 * 2**20):  # segments of 20 and 12 MiB
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(asked, dtype=torch.uint8, device="cuda")


def test_cache_is_released_only_before_a_request_would_be_refused(device):
    memory = device.machine.memory
    memory.total = 44 * 2**20
    x = torch.empty(12 * 2**20, dtype=torch.uint8, device="cuda")
    del x
    y = torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda")
    assert (memory.reserved, memory.retries) == (32 * 2**20, 0)
    z = torch.empty(14 * 2**20, dtype=torch.uint8, device="cuda")
    assert (memory.reserved, memory.retries) == (34 * 2**20, 1)
    del y, z


def test_a_partly_used_segment_is_not_released(device):
    x, y = (torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(2))
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 20 * 2**20
    x = torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda")  # the piece next to y
    assert torch.cuda.memory_reserved() == 20 * 2**20
    del x, y
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_the_rest_of_a_large_block_counts_as_allocated_if_it_is_not_split_off(device):
    x = torch.empty(11 * 2**20 + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 12 * 2**20
    del x
    assert torch.cuda.memory_allocated() == 0


def test_memory_cached_by_one_stream_is_not_given_to_another(device):
    x = torch.empty(2**20, dtype=torch.uint8, device="cuda")
    del x
    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.empty(2**20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == 2 * 2 * 2**20
    del x


def test_per_process_memory_fraction_is_enforced_by_the_allocator_only(device):
    total = device.machine.memory.total
    assert torch.cuda.get_per_process_memory_fraction() == 1
    torch.cuda.set_per_process_memory_fraction(30 * 2**20 / total)
    assert torch.cuda.get_per_process_memory_fraction() == 30 * 2**20 / total
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(31 * 2**20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info() == (total, total)
    with pytest.raises(ValueError, match="fraction"):
        torch.cuda.set_per_process_memory_fraction(1.5)


def test_a_capture_that_failed_keeps_the_memory_of_its_pool(device):
    device.machine.old_allocator = False
    x = torch.zeros(2**20, device="cuda")
    warm()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=INVALIDATED), torch.cuda.graph(graph):
        (x * 2)[0].item()
    del graph
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() > before


def test_the_allocator_gives_no_figure_that_torch_does_not_document(device):
    documented = inspect.getdoc(torch.cuda.memory.memory_stats)
    for name in torch.cuda.memory_stats():
        kind, _, part = name.partition(".")
        pattern = rf'"{kind}\.\{{all,.*\}}\.\{{current,peak' if part else rf'"{kind}"'
        assert re.search(pattern, documented), name


def test_memory_of_a_graph_stays_reserved_until_the_graph_is_deleted(device):
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


def test_a_sticky_error_fails_every_later_call(device):
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


def test_dropout_inside_recurrent_layers_has_its_own_random_numbers_and_memory(device):
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
    with pytest.raises(RaceError, match="freed"):  # the eager step has recreated the state
        graph.replay()


def test_transfers_take_time_and_only_page_locked_ones_let_the_host_continue(device):
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


def test_an_optimizer_that_is_not_capturable_is_refused_inside_a_capture(device):
    model = nn.Linear(8, 4).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    with pytest.raises(RuntimeError, match="capturable is False"):
        captured(optimizer.step)
