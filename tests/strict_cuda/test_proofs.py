"""The proofs of ``check --cuda`` on the strict fake: a sound device passes, a broken harness does not.

The readings are judged by the same rules as those of a real card.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import pytest
import torch
from cuda_check.builders import check

from gpubench.cuda_check.judge import judge
from gpubench.cuda_check.run import WAITING, waiting_case
from gpubench.measure import guards, proofs
from gpubench.measure.case import try_batch
from gpubench.measure.loop import Clock, Loop
from gpubench.measure.messages import Prove, TryBatch
from gpubench.measure.proofs import prove
from gpubench.measure.step import Hardware, Work
from gpubench.models import (
    CaseRow,
    CudaCheck,
    Execution,
    Precision,
    Status,
    TelemetrySample,
)
from strict_cuda.conftest import KERNEL_S
from strict_cuda.machine import NOT_PERMITTED, Machine
from strict_cuda.tensors import WORKSPACE_BYTES

WATTS = 600.0
TICK_S = 0.1


@pytest.fixture
def proven(make_gpu, monkeypatch):
    """``proven(what, machine)``: a check that contains the readings of one proof on that machine."""
    monkeypatch.setattr(proofs, "WARM_S", 0.1)

    def read(what: str, machine: Machine | None = None, gpu=None, **changes) -> CudaCheck:
        gpu = gpu or make_gpu(machine or Machine(cost=lambda name: KERNEL_S, tf32="as switched"))
        fields = {"precision": Precision.AMP_BF16} | changes
        order = Prove(
            what=what,
            reference="cnn",
            case=gpu.case("cnn", **fields),
            fours=2,
            block_s=0.2,
            load_s=12.0,
            settle_s=2.0,
        )
        done = prove(order, gpu.desk)
        assert (done.status, done.reason) == (Status.OK, None), done.traceback
        if what == "precision":
            return check(precisions=(done.precision,))
        return check(**{what: getattr(done, what)})

    return read


def states(made: CudaCheck, part: str) -> dict[str, str]:
    return {v.what: v.state for v in judge(made) if v.part == part}


def state_of(made: CudaCheck, part: str, words: str) -> str:
    """Return the state of the only row of a part with these words in its name."""
    (state,) = (v.state for v in judge(made) if v.part == part and words in v.what)
    return state


# --- precision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", Precision)
def test_every_precision_of_a_sound_device_is_as_exact_as_it_should_be(proven, precision):
    made = proven("precision", precision=precision)
    assert states(made, "precision")[f"{precision} against float64"] == "ok"


def test_fp32_proof_includes_a_control_that_fails(proven):
    made = proven("precision", precision=Precision.FP32)
    controls = made.precisions[0].control_errors
    assert controls.keys() == made.precisions[0].errors.keys() == {"matmul", "conv", "rnn"}
    assert min(controls.values()) > 1e-4
    blind = proven("precision", Machine(cost=lambda name: KERNEL_S, tf32="never"), precision=Precision.FP32)
    assert set(states(blind, "precision").values()) == {"ok", "undecided"}
    assert proven("precision", precision=Precision.AMP_BF16).precisions[0].control_errors == {}


def test_tf32_that_ignores_the_switches_is_detected(proven):
    made = proven("precision", Machine(tf32="always"), precision=Precision.FP32)
    assert states(made, "precision")["fp32 against float64"] == "FAILED"
    assert made.precisions[0].switches.unexpected(Precision.FP32) is None
    # Matrix product, convolution and recurrent layer alike.
    assert min(made.precisions[0].errors.values()) > 1e-4


def test_tf32_that_never_takes_effect_is_detected(proven):
    made = proven("precision", Machine(tf32="never"), precision=Precision.TF32)
    assert states(made, "precision")["tf32 against float64"] == "FAILED"


# --- clock --------------------------------------------------------------------------------------------------


def test_the_clock_of_a_sound_device_agrees_with_a_hand_written_loop_and_with_events(proven, monkeypatch):
    """Each compared block is a round of the loop that times every measurement; one more round warms up."""
    counts, real = [], Loop.round
    monkeypatch.setattr(Loop, "round", lambda loop, steps: counts.append(steps) or real(loop, steps))
    made = proven("clock")
    assert set(states(made, "clock").values()) == {"ok"}
    blocks = (*made.clock.by_hand.first_s, *made.clock.events.first_s)
    assert counts.count(counts[-1]) == 1 + len(blocks)


def test_check_detects_a_timer_that_never_synchronizes(proven, monkeypatch):
    monkeypatch.setattr(Hardware, "clock", lambda self: Clock())
    made = proven("clock", Machine(cost=lambda name: KERNEL_S, issue_s=KERNEL_S / 10))
    assert state_of(made, "clock", "CUDA-event") == "FAILED"
    assert state_of(made, "clock", "without synchronizing") == "FAILED"


def test_check_detects_a_harness_slower_than_a_hand_written_loop(proven, monkeypatch):
    step = Work.step

    def slowly(self, index):
        result = step(self, index)
        torch.ones(1, device="cuda").add_(1)  # a kernel or two more than the step needs
        return result

    monkeypatch.setattr(Work, "step", slowly)
    assert state_of(proven("clock"), "clock", "hand-written") == "FAILED"


def test_a_host_bound_step_leaves_the_clock_undecided(proven):
    made = proven("clock", Machine(cost=lambda name: 1e-6, issue_s=KERNEL_S))
    assert (
        state_of(made, "clock", "without synchronizing")
        == state_of(made, "clock", "hand-written")
        == "undecided"
    )


def test_events_that_run_at_another_speed_are_detected(proven, monkeypatch):
    times = proofs.guards.event_times
    monkeypatch.setattr(proofs.guards, "event_times", lambda *a: tuple(1.05 * t for t in times(*a)))
    assert state_of(proven("clock"), "clock", "CUDA-event") == "FAILED"


# --- graph --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [Precision.TF32, Precision.AMP_FP16])
def test_sound_device_passes_the_hand_written_graph_comparison(proven, precision):
    made = proven("graph", execution=Execution.GRAPH, precision=precision)
    assert set(states(made, "graph").values()) == {"ok"}


def test_a_graph_that_omits_part_of_the_step_is_detected(proven, monkeypatch):
    def forward_only(work: Work):
        def step(index: int):
            inputs, targets = work.batch(index)
            with torch.no_grad(), work.autocast():
                return work.loss(work.model(inputs), targets)

        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(0)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            loss = step(0)

        def replay(index: int):
            graph.replay()
            return loss

        return replay

    monkeypatch.setattr(proofs, "prepare", forward_only)
    made = proven("graph", execution=Execution.GRAPH)
    assert list(states(made, "graph").values()) == ["FAILED"]


def test_an_eager_step_reported_as_a_graph_is_detected(proven, monkeypatch):
    monkeypatch.setattr(proofs, "prepare", lambda work: work.step)
    machine = Machine(cost=lambda name: KERNEL_S / 2, issue_s=KERNEL_S)  # the host cannot keep up
    made = proven("graph", machine, execution=Execution.GRAPH)
    assert list(states(made, "graph").values()) == ["FAILED"]


# --- load ---------------------------------------------------------------------------------------------------


class Ticking:
    """A sampler on the device's clock, with one sample every tenth of a second."""

    running = False

    def __init__(self, telemetry, now_s) -> None:
        self._telemetry, self._now_s = telemetry, now_s
        self.source = telemetry.source

    def __enter__(self):
        Ticking.running, self._next_s = True, self._now_s()
        return self.drain

    def __exit__(self, *_) -> None:
        Ticking.running = False

    def energy_j(self):
        return self._telemetry.energy_j()

    def drain(self):
        taken = []
        while self._next_s <= self._now_s():
            taken.append(TelemetrySample(t_s=self._next_s, power_w=self._telemetry.power_w))
            self._next_s += TICK_S
        return taken


@pytest.fixture
def loaded(make_gpu, proven, monkeypatch):
    """``loaded(scale, cost)``: the check of a device with an energy counter at this multiple of its power.

    ``cost`` is the relative increase in kernel time while it is sampled.
    """
    monkeypatch.setattr(proofs, "sampling", Ticking)

    def read(scale: float | None = 1.0, cost: float = 0.0, source: str = "nvml") -> CudaCheck:
        # Longer kernels, so the same time takes a quarter of the steps.
        machine = Machine(cost=lambda name: 4 * KERNEL_S * (1 + cost * Ticking.running))
        gpu = make_gpu(machine)
        gpu.desk.telemetry = SimpleNamespace(
            source=source,
            fault=None,
            power_w=WATTS,
            energy_j=lambda: None if scale is None else scale * WATTS * machine.now_ns * 1e-9,
        )
        return proven("load", gpu=gpu)

    return read


def test_counter_and_power_of_a_sound_device_agree_over_ten_seconds(loaded):
    made = loaded()
    assert set(states(made, "load").values()) == {"ok"}
    assert made.load.region_s == pytest.approx(10.0, abs=0.5)
    assert made.load.samples[0].t_s < -1.5


@pytest.mark.parametrize("scale", [0.8, 1.2, 0.0])
def test_a_counter_that_is_off_by_a_fifth_or_does_not_move_is_detected(loaded, scale):
    assert state_of(loaded(scale), "load", "counted energy") == "FAILED"


def test_a_device_without_a_counter_is_not_judged_by_it(loaded):
    assert state_of(loaded(None), "load", "counted energy") == "left out"


def test_telemetry_that_costs_two_percent_is_detected(loaded):
    assert state_of(loaded(cost=0.02), "load", "telemetry") == "FAILED"


def test_a_device_without_telemetry_has_no_telemetry_cost(loaded):
    made = loaded(source="none")
    assert state_of(made, "load", "telemetry") == "left out"


# --- injected faults ----------------------------------------------------------------------------------------


def waiting(gpu) -> CudaCheck:
    case = waiting_case(Precision.AMP_BF16)
    gpu.desk.tasks.clear()
    done = try_batch(TryBatch(reference=WAITING, case=case), gpu.desk)
    row = CaseRow(
        case=case,
        status=done.status,
        reason=done.reason,
        cause=done.cause,
        reference_error=0.0,
        graph_error=0.0,
    )
    made = check()
    return msgspec.structs.replace(made, faults=msgspec.structs.replace(made.faults, waiting=row))


@pytest.mark.parametrize("old", [True, False], ids=["torch to 2.11", "torch from 2.12"])
def test_model_that_synchronizes_is_refused_for_a_graph_with_the_cause(make_gpu, old):
    made = waiting(make_gpu(Machine(old_allocator=old)))
    assert NOT_PERMITTED in made.faults.waiting.reason
    assert state_of(made, "faults", "that synchronizes") == "ok"


def test_check_detects_a_capture_that_silently_allows_synchronization(make_gpu, monkeypatch):
    """Every replay would then use the number from the capture: a wrong answer, and a fast one."""
    drain = Machine.drain

    def silently(self, stream=None, name="synchronize"):
        if self.capture is None:
            drain(self, stream, name)

    monkeypatch.setattr(Machine, "drain", silently)
    made = waiting(make_gpu())
    assert state_of(made, "faults", "that synchronizes") == "FAILED"


def test_check_detects_a_refusal_without_its_cause(make_gpu, monkeypatch):
    monkeypatch.setattr(guards, "_hides_the_cause", lambda error: False)
    made = waiting(make_gpu())
    assert state_of(made, "faults", "that synchronizes") == "FAILED"


def test_exceeding_a_memory_cap_counts_as_out_of_memory(gpu):
    gpu.desk.hardware.call(
        "set_per_process_memory_fraction", (WORKSPACE_BYTES + 64 * 2**20) / gpu.machine.memory.total
    )
    torch.backends.cudnn.benchmark = False
    seen = {}
    for batch in (64, 4096):
        done = try_batch(TryBatch(reference="cnn", case=gpu.case("cnn", batch_size=batch)), gpu.desk)
        seen[batch] = done.status
    assert seen == {64: Status.OK, 4096: Status.OUT_OF_MEMORY}


# --- failures of a proof ------------------------------------------------------------------------------------


def test_failed_proof_reports_its_error_and_ends_its_process(gpu, monkeypatch):
    @contextmanager
    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield

    monkeypatch.setattr(torch.cuda, "stream", broken)
    case = gpu.case("cnn", execution=Execution.GRAPH)
    done = prove(Prove(what="graph", reference="cnn", case=case), gpu.desk)
    assert (done.status, done.spent) == (Status.FAILED, True)
    assert "illegal memory access" in done.reason
    assert "Traceback" in done.traceback


def test_proof_out_of_memory_is_reported(gpu):
    gpu.machine.memory.fraction = 1e-5  # no segment fits beside the one that is already cached
    case = gpu.case("vgg16", batch_size=64)
    done = prove(Prove(what="clock", reference="vgg16", case=case), gpu.desk)
    assert done.status is Status.OUT_OF_MEMORY


def test_a_finished_proof_leaves_nothing_on_the_device(gpu, monkeypatch):
    monkeypatch.setattr(proofs, "WARM_S", 0.05)
    case = gpu.case("cnn", execution=Execution.GRAPH)
    done = prove(Prove(what="graph", reference="cnn", case=case, fours=1, block_s=0.05), gpu.desk)
    assert (done.status, done.spent) == (Status.OK, False)
    gpu.desk.tasks.clear()
    assert gpu.machine.memory.allocated == 0


def test_blocks_run_in_an_order_that_cancels_a_steady_drift():
    order = []
    made = proofs.in_fours(lambda: order.append("a") or 1.0, lambda: order.append("b") or 2.0, fours=3)
    assert "".join(order) == "abba" * 3
    assert (made.first_s, made.second_s) == ((1.0,) * 6, (2.0,) * 6)
