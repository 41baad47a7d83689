"""A model with many equal blocks is traced by two shorter ones, if they agree with its own trace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gpubench.models import StepMemory, TaskKind, WorkloadProfile
from gpubench.profile import shorter, trace
from gpubench.profile.liveness import trace_memory
from gpubench.profile.shorter import LEAST_BLOCKS, longest_run, with_shorter
from gpubench.workload import Task, Workload

WIDTH = 16
TOKENS = 24
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
"""It has a state, in a fifth of AdamW's operators."""


class Block(nn.Module):
    def __init__(self, wide: int = 4, scale: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.enter, self.leave = nn.Linear(WIDTH, wide * WIDTH), nn.Linear(wide * WIDTH, WIDTH)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query_key_value(self.norm(x)).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(query, key, value) * self.scale
        return x + self.leave(F.gelu(self.enter(x)))


class Net(nn.Module):
    """Embedding, blocks and head."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Skips(Net):
    """The second half of its blocks reads what the first half wrote."""

    def forward(self, tokens: Tensor) -> Tensor:
        x, before = self.words(tokens), []
        for place, block in enumerate(self.blocks):
            if place >= len(self.blocks) // 2:
                x = x + before.pop()
            x = block(x)
            before.append(x)
        return self.head(x)


class Tapped(Net):
    """A net whose head reads what some blocks wrote."""

    def forward(self, tokens: Tensor) -> Tensor:
        x, seen = self.words(tokens), []
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place in {5, 9}:
                seen.append(x)
        return self.head(sum(seen, x))


class Windowed(Net):
    """Every third block works on a window of the tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for place, block in enumerate(self.blocks):
            x = torch.cat([block(x[:, :8]), x[:, 8:]], dim=1) if place % 3 == 2 else block(x)
        return self.head(x)


class Adds(Net):
    """Training under autocast takes an operator for each pair of blocks."""

    def forward(self, tokens: Tensor) -> Tensor:
        out = super().forward(tokens)
        pairs = len(self.blocks) ** 2 if self.training and torch.is_autocast_enabled("cpu") else 0
        for _ in range(pairs):
            out = out + 1.0
        return out


class Flip(torch.autograd.Function):
    """Does in the forward pass what ``view_as`` does, and more in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Flips(Net):
    """One of its blocks differs only in its backward pass."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for place, block in enumerate(self.blocks):
            x = block(Flip.apply(x) if place == 5 else x.view_as(x))
        return self.head(x)


class Detached(Net):
    """No gradient passes one of its blocks."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for place, block in enumerate(self.blocks):
            x = block(x)
            if place == 5:
                x = x.detach()
        return self.head(x)


class Locked(Net):
    """Its lock cannot be copied."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__(blocks)
        self.lock = threading.Lock()


def in_one_sequence() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(100, WIDTH), *(Block() for _ in range(10)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 100)
    )


def partly_frozen() -> nn.Module:
    net = Net([Block() for _ in range(14)])
    net.blocks[:4].requires_grad_(False)
    return net


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def workload(model: Callable[[], nn.Module], loss_of: Callable[[nn.Module], Any] | None = None) -> Workload:
    def build(batch_size: int, seed: int) -> Task:
        tokens = torch.zeros(batch_size, TOKENS, dtype=torch.long)
        made = model()
        loss = cross_entropy if loss_of is None else loss_of(made)
        return Task(model=made, batches=((tokens, tokens),), loss=loss, optimizer=MOMENTUM)

    return Workload(
        name="net",
        version=1,
        sample_unit="sequence",
        sample_shape=(TOKENS,),
        batches=(2, 4, 8),
        is_image=False,
        source="",
        build=build,
    )


def told(of: Workload) -> tuple[WorkloadProfile, tuple[StepMemory, ...]]:
    return trace.trace_operators(of).profile, trace_memory(of, ways=())


SHORTENED = {
    "two in turn": lambda: Net([Block(wide) for _ in range(4) for wide in (4, 2)]),
    "other at both ends": lambda: Net([Block(8), *(Block() for _ in range(10)), Block(2)]),
    "other numbers": lambda: Net([Block(scale=1 / (1 + place)) for place in range(12)]),
    "in one sequence": in_one_sequence,
    "partly frozen": partly_frozen,
}
WHOLE = {
    "few": lambda: Net([Block() for _ in range(LEAST_BLOCKS - 1)]),
    "skips": lambda: Skips([Block() for _ in range(LEAST_BLOCKS)]),
    "tapped": lambda: Tapped([Block() for _ in range(12)]),
    "windowed": lambda: Windowed([Block() for _ in range(9)]),
    "other backward pass": lambda: Flips([Block() for _ in range(12)]),
    "detached": lambda: Detached([Block() for _ in range(12)]),
    "locked": lambda: Locked([Block() for _ in range(LEAST_BLOCKS)]),
    "all different": lambda: Net([Block(wide) for wide in range(1, 13)]),
}


@pytest.mark.parametrize(
    "name", ["two in turn", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SHORTENED][1:])]
)
def test_the_shorter_models_give_the_trace_of_the_full_one(name: str) -> None:
    net = workload(SHORTENED[name])
    short = with_shorter(net)
    assert short.shorter is not None
    assert told(short) == told(net)


def test_a_second_batch_size_needs_only_the_shorter_of_the_two_models() -> None:
    seen = set()

    class Noted(Net):
        def forward(self, tokens: Tensor) -> Tensor:
            if self.training and not torch.is_autocast_enabled("cpu"):
                seen.add((len(self.blocks), len(tokens)))
            return super().forward(tokens)

    net = with_shorter(workload(lambda: Noted([Block() for _ in range(12)])))
    seen.clear()
    steps = trace_memory(net, ways=())
    assert seen == {(2, 2), (3, 2), (2, 4), (2, 4096)}
    assert steps == trace_memory(workload(lambda: Net([Block() for _ in range(12)])), ways=())


def test_only_the_requested_tasks_memory_is_traced_or_all_if_it_has_none_of_them() -> None:
    net = workload(lambda: Net([Block() for _ in range(2)]))
    inferred = net.built(lambda build: build, tasks=(TaskKind.INFER,))

    def traced(of: Workload, *tasks: TaskKind) -> set[TaskKind]:
        return {step.task for step in trace.trace_workload(of, ways=(), memory_of=tasks).profile.memory}

    assert traced(net, TaskKind.TRAIN) == {TaskKind.TRAIN}
    assert traced(net, TaskKind.INFER) == {TaskKind.INFER}
    assert traced(net) == {TaskKind.TRAIN, TaskKind.INFER}
    assert traced(inferred, TaskKind.TRAIN) == {TaskKind.INFER}


def test_shortened_trace_matches_the_full_one_for_every_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes add autocast, half precision, recomputed blocks and adapters."""
    monkeypatch.setattr(shorter, "LEAST_BLOCKS", 4)
    net = workload(lambda: Net([Block() for _ in range(4)]))
    shortened = with_shorter(net)
    assert shortened.shorter is not None
    short = trace.profile_workload(shortened)
    monkeypatch.setattr(trace, "with_shorter", lambda workload: workload)
    has_selective = hasattr(torch.utils.checkpoint, "create_selective_checkpoint_contexts")  # torch 2.5
    assert len(short.memory) == (16 if has_selective else 13)
    assert short == trace.profile_workload(net)


@pytest.mark.parametrize("model", WHOLE.values(), ids=WHOLE)
def test_other_models_are_traced_in_full(model: Callable[[], nn.Module]) -> None:
    net = workload(model)
    assert with_shorter(net) is net


def test_only_the_step_that_the_shorter_models_do_not_give_is_traced_in_full() -> None:
    net = workload(lambda: Adds([Block() for _ in range(LEAST_BLOCKS)]))
    short = with_shorter(net)
    assert short.shorter is not None
    assert trace_memory(short, ways=()) == trace_memory(net, ways=())


def test_a_loss_that_refers_to_the_model_prevents_shortening() -> None:
    def with_decay(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda outputs, targets: cross_entropy(outputs, targets) + model.head.weight.square().sum()

    net = workload(lambda: Net([Block() for _ in range(LEAST_BLOCKS)]), with_decay)
    assert with_shorter(net) is net


def test_an_optimizer_that_refers_to_the_model_prevents_shortening() -> None:
    made = Net([Block() for _ in range(LEAST_BLOCKS)])
    net = workload(lambda: made)

    def with_own(build: Callable[..., Task]) -> Callable[..., Task]:
        return lambda *args: replace(build(*args), optimizer=lambda _: torch.optim.AdamW(made.parameters()))

    own = net.built(with_own)
    assert with_shorter(own) is own


def test_a_traced_model_is_not_changed() -> None:
    """A file may return one model again and again."""
    kept = Net([Block() for _ in range(12)])
    net = workload(lambda: kept)
    assert with_shorter(net).shorter is not None
    assert len(kept.blocks) == 12
    assert [*dict(kept.blocks.named_children())] == [str(place) for place in range(12)]


def test_the_longest_run_of_equal_blocks_is_found() -> None:
    two = nn.ModuleDict(
        {
            "encoder": nn.ModuleList(Block() for _ in range(6)),
            "decoder": nn.ModuleList([Block(8), *(Block() for _ in range(9))]),
        }
    )
    run = longest_run(two)
    assert run == shorter.Run("decoder", 1, 1, 9)
    assert longest_run(nn.Linear(2, 2)) is None
