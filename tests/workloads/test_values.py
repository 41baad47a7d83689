"""What a model reads from its tensors is known in a trace, or is noted in a step on the CPU and given to the trace."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from memory_cases import case_of, own_workload
from torch import Tensor, nn

from gpubench.discovery import load_workload
from gpubench.models import CardClass, MemoryBasis, Precision, TaskKind, WorkloadProfile
from gpubench.profile.cuda_rules import losses_on_meta
from gpubench.profile.liveness import step_trace, trace_memory, with_state
from gpubench.profile.memory import need_of
from gpubench.profile.operators import reads_at, seen_at, seen_on_meta
from gpubench.profile.quick_fakes import gpu_without_values
from gpubench.profile.trace import trace_workload
from gpubench.profile.values import Known, are_checks, given, noted, numbers_as_1
from gpubench.tensors import EveryCall
from gpubench.workload import Task, Workload, seeded

WIDTH = 300
"""So wide that a layer's weights are too large to keep their values in a trace."""


def _of(model: type[nn.Module], batch=lambda n: torch.randn(n, WIDTH)) -> Workload:
    def build(batch_size: int, _seed: int) -> Task:
        return Task(
            model=model(), batches=((batch(batch_size), None),), loss=lambda out, _: out.square().mean(),
            optimizer=torch.optim.SGD,
        )  # fmt: skip

    return own_workload(build, WIDTH)


def _profile(workload: Workload) -> WorkloadProfile:
    """Trace a workload without the other ways to train it."""
    return trace_workload(workload, ways=()).profile


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)


class Masked(_Layer):
    """Keeps a third of the channels, chosen by a list, and as many samples as pass a test."""

    def __init__(self) -> None:
        super().__init__()
        kept = self.layer.weight.new_zeros((WIDTH,), dtype=torch.bool).view(3, -1)
        kept[[True, False, False], :] = True
        self.register_buffer("kept", kept.view(-1))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)[:, self.kept]
        return out[: int((x[:, 0] > -9e9).sum())]


class Queued(_Layer):
    """Writes its results into a queue, at a place that a buffer counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(64, WIDTH))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        at = int(self.place)
        self.queue[at : at + len(x)] = out.detach()
        self.place[0] = (at + len(x)) % 64
        return out @ self.queue.T


class ByHost(_Layer):
    """Sorts its batch with NumPy, and splits it into sizes that a list holds."""

    def forward(self, x: Tensor) -> Tensor:
        order = torch.from_numpy(np.argsort(x[:, 0].numpy()))
        sizes = torch.tensor([1, len(x) - 1]).tolist()
        first, rest = self.layer(x[order]).split(sizes)
        return torch.cat((self.second(first), rest))


FROM_BATCH = {each.__name__: each for each in (Masked, Queued, ByHost)}


@pytest.mark.parametrize("name", FROM_BATCH)
def test_values_that_follow_from_the_batch_need_no_step_on_the_cpu(name: str) -> None:
    workload = _of(FROM_BATCH[name])
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        seen_on_meta(workload, 2)
    seen = seen_at(workload, 2, until_s=-math.inf)  # without any time on the CPU
    assert seen.why_on_cpu is None
    task = workload.build(2, 0)
    with seeded(0), noted() as reads:
        task.loss(task.model(task.batches[0][0]), None).backward()
    assert {key: len(found) for key, found in seen.reads[TaskKind.TRAIN].items()} == {
        key: len(found) for key, found in reads.items()
    }


def test_a_mask_selects_as_many_channels_without_values_as_with_them() -> None:
    seen = seen_at(_of(Masked), 2, until_s=-math.inf)
    task = _of(Masked).build(2, 0)
    assert task.model(task.batches[0][0]).shape == (2, WIDTH // 3)
    (counts,) = (found for key, found in seen.reads[TaskKind.TRAIN].items() if key[0] is torch.nonzero)
    assert {*counts} == {WIDTH // 3}


def test_a_tensor_has_no_values_once_an_unknown_one_is_written_into_it() -> None:
    known = Known()
    with known.followed(), torch.device("meta"):
        x = torch.ones(4)
        view = x[:2]
        assert (x.sum().item(), view.sum().item()) == (4, 2)
        x += 1
        assert view.sum().item() == 4
        wide = torch.empty(WIDTH, WIDTH)  # too large to keep values
        x[:2] = wide[0, :2]
        assert not known.has_missed
        with pytest.raises(RuntimeError, match="meta"):
            view.sum().item()
        assert known.has_missed


def test_weights_have_no_values_in_a_trace() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if self.layer.weight.sum() < 9e9 else x

    assert seen_at(_of(Small), 2, until_s=math.inf).why_on_cpu is not None


class Routed(_Layer):
    """Each sample is computed by one of two layers, which its own result selects."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer(x)
        is_second = first[:, 0] > first[:, 0].mean()
        out = first.clone()
        out[is_second] = self.second(first[is_second])
        return out


def test_a_step_given_what_was_read_takes_the_memory_of_the_real_one() -> None:
    workload = _of(Routed)
    traces = []
    seen = {n: seen_at(workload, n, math.inf) for n in (2, 4)}
    assert seen[4].why_on_cpu is not None
    reads = reads_at(workload, seen, math.inf)(4)
    with seeded(0):
        real = workload.build(4, 0)
        traces.append(step_trace(real, with_state(real, {}), is_amp=False))
    with gpu_without_values(), seeded(0):
        fake = workload.build(4, 0)
        with given(reads[TaskKind.TRAIN]):
            traces.append(step_trace(fake, with_state(fake, {}), is_amp=False))
    peaks = [max(trace.timeline).total for trace in traces]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
    flops = sum(kernel.flops for kernel in seen[4].train)
    second = sum(
        int(n) for key, found in reads[TaskKind.TRAIN].items() if key[0] is torch.nonzero for n in found
    )
    assert second > 0
    assert flops >= 4 * 2 * WIDTH**2 * 2


def test_a_model_that_reads_results_is_traced_as_the_same_without_reads() -> None:
    class Plain(_Layer):
        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.layer(x))

    class Read(Plain):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            assert out.isfinite().all()
            return out

    read, plain = (_profile(_of(each)) for each in (Read, Plain))
    assert (read.is_eager_only, plain.is_eager_only) == (True, False)
    assert read.train_flops_per_sample == plain.train_flops_per_sample
    for precision in (Precision.FP32, Precision.AMP_BF16):
        told, known = (
            need_of(each, case_of(each, TaskKind.TRAIN, precision, 256), CardClass.GDDR)
            for each in (read, plain)
        )
        assert told.basis is MemoryBasis.TRACED
        assert told.allocated.value == pytest.approx(known.allocated.value, rel=0.02)


def test_the_memory_of_a_step_that_lists_what_it_computes_is_traced() -> None:
    class Listed(_Layer):
        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x)
            return self.second(out[: len(out.detach().mean(1).tolist())])

    assert {step.task for step in _profile(_of(Listed)).memory} == {*TaskKind}


def test_what_is_read_only_in_inference_costs_no_graph_in_training() -> None:
    class Exits(_Layer):
        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x)
            return out if not self.training and out.max() > 9e9 else self.second(out)

    profile = _profile(_of(Exits))
    assert (profile.is_eager_only, profile.is_eager_in_inference) == (False, True)
    assert {step.task for step in profile.memory} == {*TaskKind}


class ByNorm(torch.optim.SGD):
    """Scales its steps by the norm of each weight, which it reads, as Adafactor does."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(weight.grad, alpha=-max(1e-3, weight.norm().item()))


class Twice(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.layer(x))


def test_an_optimizer_that_reads_norms_is_traced_without_values_but_captured_by_no_graph() -> None:
    def by(optimizer: type[torch.optim.Optimizer]) -> Workload:
        return _of(Twice).built(
            lambda build: lambda *args, **recipe: replace(build(*args, **recipe), optimizer=optimizer)
        )

    read, plain = _profile(by(ByNorm)), _profile(by(torch.optim.SGD))
    assert (read.is_eager_only, plain.is_eager_only) == (True, False)
    assert read.is_eager_in_inference is False
    assert read.memory_untraced is None
    assert [step.saved for step in read.memory] == [step.saved for step in plain.memory]


def test_a_number_that_an_optimizer_reads_is_not_one_that_the_model_reads() -> None:
    """The model reads a result each time, and its answers stay in order although the optimizer reads too."""
    with gpu_without_values(), given({(torch.ops.aten._local_scalar_dense.default, (), "float"): [5.0, 7.0]}):
        x = torch.randn(3).sum()
        seen = []
        for _ in range(2):
            seen.append(x.item())
            with numbers_as_1() as read:
                assert x.item() == 1
            assert read == [1]
    assert seen == [5, 7]


RATES = """
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

BUILT = []

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        nn.init.trunc_normal_(self.layers[0].weight, std=0.02)  # torch looks at the drawn values
        weight = self.layers[0].weight
        BUILT.append(weight.is_meta or isinstance(weight, FakeTensor))
        self.rates = [rate.item() for rate in {rates}]

    def forward(self, x):
        assert self.rates == [0, 0.25, 0.5]
        for layer in self.layers:
            x = layer(x)
        return x

def build(n):
    return Net(), torch.randn(n, 8), torch.randn(n, 8), nn.MSELoss()
"""
"""The file of a model with a rate for each layer, as in models with stochastic depth."""


@pytest.mark.parametrize(
    "rates",
    [
        "torch.linspace(0, 0.5, 3)",
        "torch.linspace(0, 0.5, 3, device='cpu')",
        "torch.tensor([0, 0.25, 0.5])",
        "torch.as_tensor([0, 0.25, 0.5])",
    ],
)
def test_values_read_while_a_model_is_built_need_no_real_build_to_trace_it(tmp_path, rates: str) -> None:
    path = tmp_path / "net.py"
    path.write_text(RATES.format(rates=rates))
    workload = load_workload(str(path))
    built = _built(workload)
    del built[:]  # what the check of the file built
    traced = trace_workload(workload, on_cpu_s=0, ways=())
    assert traced.why_on_cpu is None
    assert not traced.profile.is_eager_only
    assert {step.task for step in traced.profile.memory} == {*TaskKind}
    assert built
    assert all(built)


def _built(workload: Workload) -> list[bool]:
    task = workload.build(2, 0)
    return sys.modules[type(task.model).__module__].BUILT


def test_a_model_that_differentiates_itself_is_read_with_gradients() -> None:
    """As in force fields, the output is a gradient, in inference too."""

    class Force(_Layer):
        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            energy = self.layer(x).square().sum()
            assert not torch.isnan(energy)
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    profile = _profile(_of(Force))
    assert profile.is_eager_only
    assert {step.task for step in profile.memory} == {*TaskKind}


def test_reads_of_a_model_that_differentiates_itself_stay_in_order() -> None:
    """The first attempt at inference, without gradients, fails after some reads; the second repeats them."""

    class Force(_Layer):
        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            energy = self.layer(x).square().sum()
            assert torch.isfinite(energy)
            force = torch.autograd.grad(energy, x, create_graph=True)[0]
            assert not torch.isnan(force).any()
            return force

    assert seen_at(_of(Force), 2, math.inf).read_s > 0, (
        "in another order the trace fails, and the step runs on the CPU"
    )
    profile = _profile(_of(Force))
    assert {step.task for step in profile.memory} == {*TaskKind}


def test_a_step_that_reads_results_of_a_model_that_reads_rates_is_traced_without_values() -> None:
    class Rated(_Layer):
        def __init__(self) -> None:
            super().__init__()
            self.rate = torch.tensor([0.25])[0].item()

        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x) * self.rate
            assert not torch.isnan(out).any()
            return out

    assert seen_at(_of(Rated), 2, math.inf).read_s > 0, "otherwise the step runs on the CPU a second time"


def test_what_only_a_cpu_reads_is_not_noted() -> None:
    """A check of classes reads two integers, which a GPU does not read; the model reads another one."""

    class Classes(_Layer):
        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x)
            best = out[0].argmax()
            weight = nn.functional.one_hot(out.argmax(1), num_classes=WIDTH)
            return out[:, : best.item() + 1].sum() + (out * weight).sum()

    seen = seen_at(_of(Classes), 2, math.inf)
    assert seen.read_s > 0
    assert [len(found) for found in seen.reads[TaskKind.INFER].values()] == [1]


def test_values_are_unknown_once_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpubench.profile.values._MOST_KNOWN_S", -1.0)
    known = Known(others_as_1=True)
    with known.followed(), torch.device("meta"):
        steps = 0
        left = torch.tensor(10**6)
        while left > 0 and steps < 100:
            left -= 1
            steps += 1
        assert known.has_missed


def test_a_result_written_by_keyword_has_its_new_value() -> None:
    known = Known()
    with known.followed(), torch.device("meta"):
        count = torch.zeros((), dtype=torch.long)
        torch.sum(torch.ones(5, dtype=torch.long), 0, out=count)
        assert count.item() == 5


def test_a_tensor_with_values_is_indexed_by_its_mask() -> None:
    known = Known()
    with known.followed(), torch.device("meta"):
        every = torch.from_numpy(np.arange(9))
        assert every[every % 3 == 0].tolist() == [0, 3, 6]


def test_tensors_that_are_gone_are_not_kept() -> None:
    known = Known()
    with known.followed(), torch.device("meta"):
        for _ in range(150):
            last = torch.zeros(1024, 1024, dtype=torch.int32) + 1
        assert last.sum().item() == 2**20
    kept = sum(values.nbytes for _, values in known._values.values())
    assert kept <= 512 * 2**20


@pytest.mark.parametrize(
    ("one", "other", "only_checked"),
    [
        ([True, 0.5], [True, 0.7], True),
        ([True, 0.5], [False, 0.5], False),  # another path through the model
        ([3, 0.5], [3, 0.5], False),  # a count may differ in a larger batch
        ([True, 0.5], [True], False),
    ],
)
def test_only_conditions_and_floats_can_be_checks(
    one: list[object], other: list[object], only_checked: bool
) -> None:
    key = (torch.ops.aten.item.default, (), "float")
    assert are_checks({key: one}, {key: other}) is only_checked
    assert not are_checks({(key[0], (4,), key[2]): one}, {(key[0], (4,), key[2]): one})


def test_what_follows_from_a_large_batch_is_read_from_it() -> None:
    class Counted(_Layer):
        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x.float())
            return out if x.sum() < 100 * WIDTH else self.second(out)

    workload = _of(Counted, lambda n: torch.ones(n, WIDTH, dtype=torch.uint8))
    seen = {n: seen_at(workload, n, -math.inf) for n in (2, 4)}
    small, large = (reads_at(workload, seen, -math.inf)(n)[TaskKind.TRAIN] for n in (4, 4096))
    assert ([*small.values()], [*large.values()]) == ([[True]], [[False]])


def test_a_check_of_results_does_not_limit_the_batches_that_are_traced() -> None:
    class Checked(_Layer):
        def forward(self, x: Tensor) -> Tensor:
            out = self.second(self.layer(x))
            assert not out.isnan().any()
            assert out.abs().mean().item() >= 0
            return out

    seen = {n: seen_at(_of(Checked), n, math.inf) for n in (2, 4)}
    large = reads_at(_of(Checked), seen, until_s=-math.inf)(4096)
    assert large == seen[4].reads


def test_a_read_that_no_step_noted_still_fails() -> None:
    with pytest.raises(Exception, match="nonzero"):
        trace_memory(_of(Routed), ways=(), reads_at=lambda _: {TaskKind.TRAIN: {("other", (), None): [1]}})


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, 32, 2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0]).log_softmax(-1).transpose(0, 1)


STEPS = 50


def _speech(*, again: bool = False) -> Workload:
    def build(batch_size: int, _seed: int) -> Task:
        x, y = torch.randn(batch_size, STEPS, WIDTH), torch.randint(1, 12, (batch_size, 7))
        lengths = torch.full((batch_size,), STEPS), torch.full((batch_size,), 7)
        return Task(
            model=Speech(), batches=((x, (y, *lengths)),), optimizer=torch.optim.SGD,
            loss=lambda out, y: nn.functional.ctc_loss(out, *y), again=(lambda: None) if again else None,
        )  # fmt: skip

    return own_workload(build, STEPS, WIDTH)


def test_a_ctc_loss_needs_no_values() -> None:
    traced = trace_workload(_speech(), 0)
    assert traced.why_on_cpu is None
    assert traced.profile.memory
    assert traced.profile.is_eager_only  # a GPU's kernel copies the lengths to the host
    with gpu_without_values():
        task = _speech().build(2, 0)
        scores = task.model(task.batches[0][0])
        y = task.batches[0][1]
        loss, states = torch.ops.aten._ctc_loss.Tensor(scores, *y)
    real, states_of_real = torch._ctc_loss(
        torch.randn(scores.shape).log_softmax(-1),
        torch.ones(2, 7, dtype=torch.long),
        torch.full((2,), STEPS),
        torch.full((2,), 7),
    )
    assert (loss.shape, states.shape) == (real.shape, states_of_real.shape)


def test_the_second_step_of_a_recurrent_layer_is_not_traced_step_by_step() -> None:
    calls = []

    def call(func, args, kwargs):
        calls.append(func)
        return func(*args, **kwargs)

    with EveryCall(call), losses_on_meta():
        seen_on_meta(_speech(again=True), 2)
    assert len(calls) < 10 * STEPS


def test_products_of_groups_take_float32_without_values() -> None:
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("this torch has no products of groups")

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(2, WIDTH + 4, WIDTH + 4))

        def forward(self, x: Tensor) -> Tensor:
            ends = torch.tensor([1, len(x)], dtype=torch.int32, device=x.device)
            return torch._grouped_mm(x, self.weights, offs=ends)

    seen = seen_on_meta(_of(Experts, lambda n: torch.randn(n, WIDTH + 4)), 2)
    assert sum(kernel.flops for kernel in seen.infer) == 2 * 2 * (WIDTH + 4) ** 2
