"""Shared by several memory tests: a case from its parts, a model that cannot be traced, and own readings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench.models import (
    CardClass,
    Case,
    Execution,
    MemoryNeed,
    OperatorKind,
    Precision,
    Recipe,
    StepMemory,
    TaskKind,
    WorkloadProfile,
)
from gpubench.profile import liveness, load_profiles
from gpubench.profile.growth import BATCHES, StepTrace, on_lines, without_equal_loop
from gpubench.profile.liveness import GPU_OPTIONS, step_trace, with_state
from gpubench.profile.memory import need_of
from gpubench.profile.memory_figures import blas_bytes
from gpubench.profile.quick_fakes import gpu_without_values
from gpubench.record.store import newest_runs
from gpubench.workload import Task, Workload, seeded


def own_workload(build: Callable[[int, int], Task], *shape: int) -> Workload:
    """A user's workload of float samples with this shape."""
    return Workload(
        name="own", version=1, sample_unit="x", sample_shape=shape, batches=(2,), is_image=False, source="test",
        build=build,
    )  # fmt: skip


def trace_step(
    workload: Workload,
    task: TaskKind,
    *,
    is_amp: bool,
    keep_gradients: bool = False,
    recipe: Recipe | None = None,
) -> StepMemory:
    """Trace one task at one precision, with the workload's recipe or another."""
    with gpu_without_values() as mode:
        made = liveness._Tracer(workload, recipe or workload.recipe, mode)
        one, two = (followed(made.at(n).task, task, is_amp, keep_gradients) for n in BATCHES)
    return without_equal_loop(on_lines(one, two, task, is_amp=is_amp, recipe=made.recipe))


def followed(task: Task, kind: TaskKind, is_amp: bool, keep_gradients: bool) -> StepTrace:
    """Trace one step of a task on tensors without values, after the optimizer state exists."""
    with seeded(0):
        optimizer = with_state(task, GPU_OPTIONS) if kind is TaskKind.TRAIN else None
        return step_trace(task, optimizer, is_amp=is_amp, keep_gradients=keep_gradients)


def traced_peak_bytes(
    build: Callable[[int, int], Task],
    batch_size: int,
    task: TaskKind,
    *,
    is_amp: bool,
    keep_gradients: bool = False,
) -> int:
    """Peak memory of one step at one batch size, after the optimizer state exists [B]."""
    with gpu_without_values():
        with seeded(0):
            built = build(batch_size, 0)
        return max(followed(built, task, is_amp, keep_gradients).timeline).total


BY_BYTES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x) if x.untyped_storage()[0] >= 0 else -self.layer(x)

def build(n):
    return Net(), torch.randn(n, 4), torch.randn(n, 4), nn.MSELoss()
"""
"""A file of a user's model that reads the bytes of its storage, which no trace can follow."""

GPT = """
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, TOKENS, WIDTH, LAYERS, HEADS = 128_000, 2048, 768, 12, 12

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.joint(self.one(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.narrow(F.gelu(self.wide(self.two(x))))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last(x))

def build(n):
    tokens = torch.randint(VOCABULARY, (n, TOKENS))
    return GPT(), tokens, tokens, lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten())

def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)
"""
"""A file of a user's language model with scores larger than all else: 8 x 2,048 tokens x 128,000 words."""


def case_of(
    profile: WorkloadProfile, task: TaskKind, precision: Precision, batch_size: int, **others: Any
) -> Case:
    """A case of a workload, eager and on one GPU by default."""
    given = {"execution": Execution.EAGER, "memory_format": None} | others
    return Case(
        workload=profile.name,
        workload_version=profile.version,
        task=task,
        precision=precision,
        batch_size=batch_size,
        sample_unit=profile.sample_unit,
        **given,
    )


def traced_bytes(profile: WorkloadProfile, case: Case, need: MemoryNeed) -> float:
    """Tensors of a traced step: the allocated figure without cuBLAS's workspaces."""
    assert need.allocated.value is not None
    return need.allocated.value - blas_bytes(profile, case, CardClass.HBM)


FIRST_RUN = "20261122t163414z-7514fa86"
"""Only in this run did the check of a graph, which takes eager steps, keep its cache."""


class Held(NamedTuple):
    """The memory readings of a run, and the figures for the same case.

    Attributes:
        is_sound: Whether the memory in use and the reserved memory include no cache that a step does not need.
    """

    case: Case
    is_sound: bool
    allocated: float
    reserved: float
    device: float
    need: MemoryNeed

    @property
    def allocated_error(self) -> float:
        """Error of the likely figure."""
        assert self.need.allocated.value is not None
        return abs(self.need.allocated.value / self.allocated - 1)


@cache
def own_readings() -> tuple[Held, ...]:
    """The readings of the runs that ship with the package; the fit uses none of them.

    Two kinds include cache that a step does not need: the cache of cuDNN's trials (eager steps that convolve; a
    capture empties the cache), and the cache of the check of a graph.
    """
    found = []
    for run in newest_runs(Path(__file__).parents[1] / "results/example").runs:
        for row in run.measurements:
            profile, in_graph = load_profiles()[row.case.workload], row.case.execution is Execution.GRAPH
            convolves = any(op.kind in {OperatorKind.CONV, OperatorKind.CONV3X3} for op in profile.train)
            if row.device_bytes is not None:
                assert row.peak_memory_bytes is not None
                assert row.peak_reserved_bytes is not None
                found.append(
                    Held(
                        case=row.case,
                        is_sound=run.run_id != FIRST_RUN if in_graph else not convolves,
                        allocated=row.peak_memory_bytes,
                        reserved=row.peak_reserved_bytes,
                        device=row.device_bytes,
                        need=need_of(profile, row.case, CardClass.HBM),
                    )
                )
    return tuple(found)


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """One case in its own process on an H100.

    Attributes:
        compiled_loss: Whether the loss was compiled with the model, which gpubench never does.
        limit_bytes: Limit of torch's allocator.
        idle_beside_graph_bytes: Memory in segments of the usual pool that the graph could not use.
        error: How it ended.
    """

    workload: str
    precision: Precision
    execution: Execution
    batch_size: int
    compiled_loss: bool = False
    limit_bytes: int | None = None
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    idle_beside_graph_bytes: int | None = None
    device_bytes: int | None = None
    error: str | None = None

    @property
    def need(self) -> MemoryNeed:
        profile = load_profiles()[self.workload]
        case = case_of(profile, TaskKind.TRAIN, self.precision, self.batch_size, execution=self.execution)
        return need_of(profile, case, CardClass.HBM)


class AloneFile(msgspec.Struct, frozen=True, kw_only=True):
    readings: tuple[Alone, ...]


ALONE = msgspec.json.decode(
    (Path(__file__).parent / "data/memory_h100.json").read_bytes(), type=AloneFile
).readings


BY_DISPATCHER = """
import torch
@torch.library.custom_op("mine::fast", mutates_args=(), device_types="cuda")
def fast(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
fast.register_autograd(lambda ctx, grad: grad)
"""
BY_ASSERTION = """
import torch


class Fast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda, "tensors of CUDA only"
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad
fast = Fast.apply
"""


def raising(error: str) -> str:
    """The same, with a kernel that refuses CPU tensors in its own words."""
    return BY_ASSERTION.replace('assert x.is_cuda, "tensors of CUDA only"', f"raise {error}")


WITH_KERNEL = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 4096), nn.Linear(4096, 8)
    def forward(self, x):
        return self.two(fast(self.one(x)).relu())
def build(batch_size):
    return Net(), torch.randn(batch_size, 64), torch.randint(2, (batch_size,)), nn.CrossEntropyLoss()
"""
