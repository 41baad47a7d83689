"""Peak memory from liveness, compared with real CPU steps and GPU figures, and its general properties."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from memory_cases import BY_BYTES, GPT, case_of, own_workload, trace_step, traced_bytes, traced_peak_bytes
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.interval import Interval
from gpubench.models import (
    CardClass,
    CardMemory,
    Checkpointing,
    Execution,
    MeasuredMemory,
    MemoryBasis,
    MemoryFit,
    MemoryNeed,
    OperatorKind,
    ParallelMode,
    Precision,
    Recipe,
    TaskKind,
    Trainable,
    Verdict,
    WeightType,
    WorkloadProfile,
)
from gpubench.profile import classic_names, load_profiles, profile_of
from gpubench.profile.allowance import load_allowance
from gpubench.profile.cache import Asked, contradiction
from gpubench.profile.cuda_rules import RESULT_IN_FLOAT32, TO_FLOAT32, TO_LOWER, cuda_rules
from gpubench.profile.growth import BATCHES, Moment, StepTrace, on_lines
from gpubench.profile.layout import why_no_amp
from gpubench.profile.liveness import step_trace, trace_memory, with_state
from gpubench.profile.memory import (
    COMPILED_LEAST,
    MOST_BATCH,
    UNTRACED_FACTOR,
    checkpointed,
    judge_fit,
    largest_batch,
    last_that_fits,
    need_of,
    planned_peak_bytes,
    with_adapters,
)
from gpubench.profile.memory_figures import WORKSPACE_BYTES, blas_bytes
from gpubench.profile.trace import profile_workload, trace_operators, trace_workload
from gpubench.units import GIB, MIB
from gpubench.workload import Task, Workload

CLASSIC = sorted(classic_names())
TRAINED = [name for name in CLASSIC if not name.startswith("augment")]

# --- real steps ---------------------------------------------------------------------------------------------

SCRATCH = {
    "aten::convolution",
    "aten::convolution_backward",
    "aten::addmm",
    "aten::mm",
    "aten::bmm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::add",
}
"""CPU kernels that copy operands internally and free the copy when they end.

Their libraries reorder operands, and a sum of two types first casts one operand whole, whereas a GPU's kernel
casts as it reads.
"""


def real_peak_bytes(task: Task, *, is_amp: bool, accumulate: int = 1, keep_outputs: bool = True) -> int:
    """Return the peak of the third step of a plain loop, from the memory events of torch's profiler.

    If ``keep_outputs``, the loop still refers to the model's outputs during the backward pass.
    """
    model = task.model.train()
    optimizer = task.optimizer([p for p in model.parameters() if p.requires_grad])

    def add_gradients(inputs: Any, targets: Any) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_amp):
            outputs = model(inputs)
            loss = task.loss(outputs, targets)
        if not keep_outputs:
            del outputs
        loss.backward()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for inputs, targets in task.batches[:accumulate]:
            add_gradients(inputs, targets)
        optimizer.step()

    step()
    step()
    optimizer.zero_grad(set_to_none=True)
    states = [t for state in optimizer.state.values() for t in state.values()]
    there = [*model.parameters(), *model.buffers(), *(t for batch in task.batches for t in batch), *states]
    before = sum({t.data_ptr(): t.untyped_storage().nbytes() for t in there}.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    return before + max(_levels(list(seen.profiler.kineto_results.events())))


def _levels(events: list[Any]) -> Iterator[int]:
    """Yield the allocated bytes after each moment; events within a kernel of ``SCRATCH`` count at its end."""
    spans = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() in SCRATCH]

    def moment(at_ns: int) -> int:
        return next((end for start, end in spans if start <= at_ns <= end), at_ns)

    changes = sorted((moment(e.start_ns()), e.nbytes()) for e in events if e.name() == "[memory]")
    level = 0
    for _, together in groupby(changes, key=lambda change: change[0]):
        level += sum(size for _, size in together)
        yield level


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")  # from the flags of oneDNN
@pytest.mark.parametrize("is_amp", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", TRAINED)
def test_traced_peak_matches_the_profiler_on_a_real_step(name: str, is_amp: bool) -> None:
    """CPU kernels on both sides; fused recurrent layers are written out, because the memory of oneDNN's is unknown."""
    workload = load_workload(name)
    assert workload.tiny is not None
    with torch.backends.mkldnn.flags(enabled="lstm" not in name):
        keeps, lets_go = (
            real_peak_bytes(workload.tiny(16, 0), is_amp=is_amp, keep_outputs=keep) for keep in (True, False)
        )
        with FakeTensorMode(allow_non_fake_inputs=True):
            task = workload.tiny(16, 0)
            found = step_trace(task, with_state(task, {}), is_amp=is_amp)
    assert max(found.timeline).total == pytest.approx(lets_go, rel=0.01)
    assert max(found.keeping.timeline).total == pytest.approx(keeps, rel=0.01)


@pytest.mark.parametrize("is_amp", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["bert_base", "simple_cnn"])
def test_traced_peak_matches_a_real_step_with_gradient_accumulation(name: str, is_amp: bool) -> None:
    tiny = load_workload(name).tiny
    assert tiny is not None
    real = real_peak_bytes(tiny(16, 0), is_amp=is_amp, accumulate=3)
    once = real_peak_bytes(tiny(16, 0), is_amp=is_amp)
    with FakeTensorMode(allow_non_fake_inputs=True):
        task = tiny(16, 0)
        found = step_trace(task, with_state(task, {}), is_amp=is_amp, keep_gradients=True)
    assert max(found.keeping.timeline).total == pytest.approx(real, rel=0.01)
    assert real > once


# --- figures for GPUs ---------------------------------------------------------------------------------------


FOUR_BYTES_A_SCORE = 4 * 1024 * 50_257 / GIB
"""Four bytes for each score of one sequence of the transformer [GiB], which its controls count once too often.

In float32 the controls hold the outputs through the backward pass, which gpubench's loop does not. Under
autocast they take the logarithms of ``cross_entropy`` in float32, as in torch's documentation but not in its
dispatcher; an H100 agreed with gpubench.
"""
CONTROLS = [  # GiB, counted once by another program of this kind, which gave LSTM layers no reserve space
    ("vgg16", 64, True, 4.40),
    ("resnet50", 128, True, 5.79),
    ("bert_base", 32, True, 5.82),
    ("lstm_large", 64, True, 1.60 + 0.19 - 4 * 64 * 128 * 10_000 / GIB),
    ("vgg16_transfer", 64, True, 1.13),
    ("transformer", 8, True, 9.56 - 8 * FOUR_BYTES_A_SCORE),
    ("transformer", 16, True, 17.5 - 16 * FOUR_BYTES_A_SCORE),
    ("vgg16", 64, False, 6.02),
    ("resnet50", 64, False, 5.47),
    ("transformer", 8, False, 12.1 - 8 * FOUR_BYTES_A_SCORE),
]


def _step_bytes(profile: WorkloadProfile, batch: int, precision: Precision) -> float:
    """The predicted peak of a training step, without cuBLAS's workspaces."""
    case = case_of(profile, TaskKind.TRAIN, precision, batch)
    return planned_peak_bytes(profile, case) - WORKSPACE_BYTES


@pytest.mark.parametrize(("name", "batch", "is_amp", "gib"), CONTROLS)
def test_the_shipped_memory_lines_match_the_control_figures(
    name: str, batch: int, is_amp: bool, gib: float
) -> None:
    """BERT's control counts two bytes where CUDA's dropout keeps a mask of one byte: 0.24 GiB."""
    peak = _step_bytes(load_profiles()[name], batch, Precision.AMP_BF16 if is_amp else Precision.FP32)
    assert peak / GIB == pytest.approx(gib, rel=0.045 if name == "bert_base" else 0.015)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch", "is_amp", "gib"), CONTROLS)
def test_a_trace_at_full_size_lies_on_the_shipped_lines(
    name: str, batch: int, is_amp: bool, gib: float
) -> None:
    del gib
    told = _step_bytes(load_profiles()[name], batch, Precision.AMP_BF16 if is_amp else Precision.FP32)
    workload = load_workload(name)
    traced = traced_peak_bytes(workload.build, batch, TaskKind.TRAIN, is_amp=is_amp)
    assert told == pytest.approx(traced, rel=0.002)


def test_a_language_model_needs_its_logits_in_float32() -> None:
    """By hand 15.5 GB: weights, state, layers, and a matrix of logits in half precision and two in float32."""
    profile = load_profiles()["transformer"]
    assert _step_bytes(profile, 16, Precision.AMP_BF16) == pytest.approx(15.5e9, rel=0.01)
    batch = largest_batch(profile, case_of(profile, TaskKind.TRAIN, Precision.AMP_BF16, 1), card(24))
    assert 14 <= batch < 20, "not 36, which needs 40 GB"


@pytest.mark.parametrize(
    "name",
    ["cnn", "lstm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert_base", "resnet50"))],
)
def test_the_shipped_memory_lines_match_a_new_trace(name: str) -> None:
    workload, shipped = load_workload(name), load_profiles()[name]
    as_built = [step for step in shipped.memory if step.recipe == Recipe()]
    for one, two in zip(trace_memory(workload, 0), as_built, strict=True):
        assert (one.task, one.is_amp) == (two.task, two.is_amp)
        for n in (1, 64, 4096):
            peaks = [max(x.fixed_bytes + n * x.bytes_per_sample for x in s.lines) for s in (one, two)]
            assert peaks[0] == pytest.approx(peaks[1], rel=0.02)  # torch's releases differ slightly


def test_a_requested_recipe_is_traced_even_if_no_time_is_left() -> None:
    """A user's model has no settings: weights in half precision and recomputed blocks are variants of it."""

    def build(batch_size: int, _seed: int) -> Task:
        layers = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)))
        return _task_of(layers, (torch.randn(batch_size, 4, 16), torch.zeros(batch_size)), _mean_square)

    workload = _own(build=build)
    asked = Asked(fields={"checkpointing": "full"}, optional=("checkpointing",), precisions=("bf16",))
    requested = asked.requested(workload)
    wanted = Recipe(weight_type=WeightType.BFLOAT16, checkpointing=Checkpointing.FULL)
    assert wanted in requested
    assert wanted not in {step.recipe for step in trace_memory(workload, 0)}
    assert wanted in {step.recipe for step in trace_memory(workload, 0, requested=requested)}


# --- tensors that a GPU keeps -------------------------------------------------------------------------------


def _task_of(model: nn.Module, batch: Any, loss: Any = nn.functional.mse_loss) -> Task:
    """A task with one batch; by default its targets are its inputs."""
    pair = batch if isinstance(batch, tuple) else (batch, batch)
    return Task(model=model, batches=(pair,), loss=loss, optimizer=torch.optim.SGD)


def _mean_square(outputs: torch.Tensor, _: Any) -> torch.Tensor:
    return outputs.float().square().mean()


def _own(
    model: Callable[[], nn.Module] | None = None, build: Callable[[int, int], Task] | None = None
) -> Workload:
    """A workload of 64 numbers in each sample, or with its own build."""

    def of_64(batch_size: int, _seed: int) -> Task:
        assert model is not None
        return _task_of(model(), (torch.randn(batch_size, 64), torch.arange(batch_size)), _mean_square)

    return own_workload(build or of_64, 64)


def _need(
    name: str,
    precision: Precision = Precision.FP32,
    batch: int = 64,
    on: CardClass = CardClass.HBM,
    **others: Any,
) -> MemoryNeed:
    """What a training step of a standard workload needs; ``measured`` and ``accumulate`` may be given, too."""
    given = {key: others.pop(key) for key in ("measured", "accumulate") if key in others}
    profile = load_profiles()[name]
    return need_of(profile, case_of(profile, TaskKind.TRAIN, precision, batch, **others), on, **given)


def _peak(model: Callable[[], nn.Module], shape: tuple[int, ...], *, is_amp: bool = True) -> int:
    def build(batch_size: int, _seed: int) -> Task:
        batch = torch.randn(batch_size, *shape), torch.zeros(())
        return _task_of(model(), batch, lambda outputs, _: outputs.float().mean())

    return traced_peak_bytes(build, 8, TaskKind.TRAIN, is_amp=is_amp)


class Attention(nn.Module):
    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


def test_attention_keeps_no_matrix_of_scores_in_any_caller() -> None:
    one, two = (_peak(Attention, (length, 32)) for length in (512, 1024))
    assert two < 2.1 * one


def test_cross_entropy_takes_its_logarithms_in_half_precision_under_cudas_autocast() -> None:
    """By hand, per score: 2 bytes of logarithms, 4 cast for the sum, 4 of their gradient; if kept, 2 of the score."""

    def build(batch_size: int, _seed: int) -> Task:
        scores, words = torch.randn(batch_size, 4), torch.zeros(batch_size, dtype=torch.int64)
        model = nn.Linear(4, 100_000, bias=False)
        return _task_of(model, (scores, words), nn.functional.cross_entropy)

    def traced(keeps: bool) -> float:
        step = trace_step(_own(build=build), TaskKind.TRAIN, is_amp=True)
        return (step.keeping if keeps else step).lines[-1].bytes_per_sample

    assert traced(keeps=False) / 100_000 == pytest.approx(10, rel=0.001)
    assert traced(keeps=True) / 100_000 == pytest.approx(12, rel=0.001)
    with cuda_rules(), torch.autocast("cpu", torch.bfloat16):
        assert nn.functional.cross_entropy(torch.randn(2, 3).bfloat16(), torch.tensor([0, 1])).item() > 0


@pytest.mark.skipif(torch.__version__ < "2.9", reason="CUDA's kernel of it is newer than this torch")
def test_rms_norm_keeps_its_input_and_no_normed_values() -> None:
    """CUDA's kernel, from torch 2.9 on: each of ten norms keeps its input, and one number per row."""

    def kept(norms: int) -> float:
        model = nn.Sequential(nn.Linear(64, 64), *(nn.RMSNorm(64) for _ in range(norms)))
        batch = torch.randn(8, 64, requires_grad=True)
        with FakeTensorMode(allow_non_fake_inputs=True), cuda_rules():
            task = _task_of(model, batch)
            return step_trace(task, with_state(task, {}), is_amp=False).saved

    assert kept(12) - kept(2) == 10 * 8 * (64 + 1) * 4


def test_layer_norm_keeps_float32_under_cudas_autocast() -> None:
    """Ten norms after one linear layer: the input of each is cast and kept."""
    width, rows, norms = 64, 128, 10
    plain = nn.Linear(width, width)
    bare = _peak(lambda: nn.Sequential(plain, nn.Identity()), (rows, width))
    normed = _peak(lambda: nn.Sequential(plain, *(nn.LayerNorm(width) for _ in range(norms))), (rows, width))
    one = 8 * rows * width * 4
    assert norms * one <= normed - bare <= (norms + 3) * one


def test_dropout_keeps_a_byte_for_each_value() -> None:
    width, rows, layers = 64, 1000, 20
    linear = nn.Linear(width, width)
    one, many = (
        _peak(lambda n=n: nn.Sequential(linear, *[nn.Dropout(0.5)] * n), (rows, width))
        for n in (5, 5 + layers)
    )
    assert many - one == layers * 8 * rows * width


def test_a_recurrent_layer_keeps_its_gates() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(64, 64, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0]

    one, two = (_peak(Last, (steps, 64), is_amp=False) for steps in (100, 200))
    reserve = 3 * 8 * 100 * 64 * 6 * 4
    assert reserve < two - one < 2 * reserve


def test_checkpointing_saves_memory() -> None:
    class Deep(nn.Module):
        def __init__(self, *, again: bool) -> None:
            super().__init__()
            self.again = again
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(8)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
            return x

    kept, again = (_peak(lambda a=a: Deep(again=a), (256, 32)) for a in (False, True))
    assert again < 0.6 * kept


def test_every_operator_that_cudas_autocast_casts_is_known() -> None:
    """Torch lists its rules by overload; a new one must be added to the right list."""
    listed = torch._C._dispatch_get_registrations_for_dispatch_key
    missing = {n.removeprefix("aten::") for n in set(listed("AutocastCUDA")) - set(listed("AutocastCPU"))}
    widest = "addcdiv addcmul atan2 bilinear cross dot index_put scatter_add tensordot vdot"
    below = "_convolution convolution cudnn_convolution cudnn_convolution_transpose"
    cells = (
        "gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell _thnn_fused_gru_cell _thnn_fused_lstm_cell _cudnn_rnn"
    )
    fused = "_scaled_dot_product_flash_attention"
    left = {*widest.split(), *below.split(), *cells.split(), fused}
    left |= {
        name for name in missing if "imname" in name or ".names_" in name
    }  # tensors with named dimensions, in older torch
    assert missing - left <= TO_FLOAT32 | RESULT_IN_FLOAT32 | TO_LOWER


def test_a_trace_leaves_torch_unchanged() -> None:
    dropped = nn.Dropout(0.5)(torch.ones(1000, requires_grad=True))
    was_collecting = gc.isenabled()
    with cuda_rules():
        pass
    trace_memory(load_workload("cnn"))
    assert gc.isenabled() == was_collecting
    assert torch.backends.mha.get_fastpath_enabled()
    again = nn.Dropout(0.5)(torch.ones(1000, requires_grad=True))
    assert type(again.grad_fn) is type(dropped.grad_fn)
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.functional.layer_norm(torch.ones(2, 4).bfloat16(), (4,)).dtype is torch.bfloat16


# --- steps that are not linear in the batch -----------------------------------------------------------------


class Pairs(nn.Module):
    """Each sample interacts with every other, as in a contrastive loss over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 32), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) @ self.two(x).T


class Triplets(nn.Module):
    """Each sample interacts with every pair of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apart = torch.cdist(self.layer(x), self.layer(x))
        return apart[:, :, None] - apart[:, None, :]


class InPieces(nn.Module):
    """A large batch is processed in pieces of 300."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([checkpoint(self.layers, piece, use_reentrant=False) for piece in x.split(300)])


class UpTo(nn.Module):
    """Accepts no batch above 50."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 50:
            raise ValueError("at most 50")
        return self.layer(x)


class LookedAtPairs(Pairs):
    """Pairs with a check of the input's bytes, which no trace can follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.untyped_storage()[0] >= 0
        return super().forward(x)


class CheckedPairs(Pairs):
    """Pairs with a check of the result, which a trace can follow if it knows what was read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        assert torch.isfinite(out).all()
        return out


class LookedAtLine(nn.Linear):
    """A layer, linear in the batch, with a check of the input's bytes."""

    def __init__(self) -> None:
        super().__init__(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.untyped_storage()[0] >= 0
        return super().forward(x)


def _profile_as_asked(workload: Workload) -> WorkloadProfile:
    """Trace large batches too, but not the other ways to train."""
    return trace_workload(workload, ways=()).profile


def test_quadratic_growth_is_found_by_a_large_batch_if_values_of_results_are_read() -> None:
    read, plain = (_profile_as_asked(_own(model)) for model in (CheckedPairs, Pairs))
    assert read.is_eager_only
    told, known = (
        need_of(each, case_of(each, TaskKind.TRAIN, Precision.FP32, 32_768), CardClass.HBM)
        for each in (read, plain)
    )
    assert told.basis is MemoryBasis.TRACED
    assert 0.7 * known.allocated.value < told.allocated.value < 1.1 * known.allocated.value
    assert told.allocated.high > known.allocated.value


def test_an_untraceable_step_with_quadratic_growth_is_not_extrapolated_by_a_line() -> None:
    """At 32,768 the scores alone are 4 GiB; a line through 2 and 4 samples gave 1 GiB, "fits"."""
    line, told, traced = (_profile_as_asked(_own(model)) for model in (LookedAtLine, LookedAtPairs, Pairs))
    assert line.saved_bytes_per_pair == traced.saved_bytes_per_pair == 0 < told.saved_bytes_per_pair
    needs = [
        need_of(p, case_of(p, TaskKind.TRAIN, Precision.FP32, 32_768), CardClass.HBM) for p in (told, traced)
    ]
    assert [need.basis for need in needs] == [MemoryBasis.FORMULA, MemoryBasis.TRACED]
    assert needs[0].device.low < needs[1].device.value < needs[1].device.high < needs[0].device.high


BENT = {"pairs": (Pairs, 1.03), "triplets": (Triplets, 1.05), "in pieces": (InPieces, 4.0)}


@pytest.mark.parametrize("name", ["pairs", "triplets", pytest.param("in pieces", marks=pytest.mark.slow)])
def test_a_step_that_is_not_linear_in_its_batch_gets_the_traced_figures(name: str) -> None:
    model, most = BENT[name]
    workload = _own(model)
    profile = _profile_as_asked(workload)
    for batch in (3, 700, 4096, 10_000):
        case = case_of(profile, TaskKind.TRAIN, Precision.FP32, batch)
        need = need_of(profile, case, CardClass.HBM)
        told = traced_bytes(profile, case, need)
        real = traced_peak_bytes(workload.build, batch, TaskKind.TRAIN, is_amp=False)
        assert 0.999 * real <= need.allocated.high
        if batch == 4096:
            assert told == pytest.approx(real, rel=0.002)
        elif name != "in pieces":
            assert 0.99 * real <= told <= most * real
        assert (need.not_linear is None) == (batch == 3)
    if name != "in pieces":
        largest = largest_batch(profile, case_of(profile, TaskKind.TRAIN, Precision.FP32, 1), card(24))
        real = traced_peak_bytes(workload.build, largest, TaskKind.TRAIN, is_amp=False)
        assert 16 * GIB < real < 24 * GIB


def test_a_batch_beyond_all_that_could_be_traced_is_predicted_with_a_wider_bound() -> None:
    profile = _profile_as_asked(_own(UpTo))
    cases = [case_of(profile, TaskKind.TRAIN, Precision.FP32, n) for n in (16, 4096)]
    inside, beyond = (need_of(profile, case, CardClass.HBM) for case in cases)
    assert inside.not_linear is None
    assert "16" in beyond.not_linear
    highest = [need.allocated.high - WORKSPACE_BYTES for need in (inside, beyond)]
    traced = [traced_bytes(profile, case, need) for case, need in zip(cases, (inside, beyond), strict=True)]
    wider = highest[1] / traced[1] / (highest[0] / traced[0])
    assert wider == pytest.approx(2, rel=0.1), "the share of the outputs differs slightly"


def test_batches_made_by_numpy_are_not_enlarged_for_a_trace() -> None:
    asked = []

    def build(batch_size: int, _seed: int) -> Task:
        asked.append(batch_size)
        inputs = torch.from_numpy(np.zeros((batch_size, 250_000), dtype="float32"))
        return _task_of(nn.Linear(250_000, 1), (inputs, inputs[:, :1]))

    steps = trace_memory(_own(build=build), 0.5)
    assert {step.largest_traced for step in steps} <= {64, 16, 4}
    assert max(asked) <= 64, "a megabyte each"


# --- general properties -------------------------------------------------------------------------------------


@given(
    bends=st.lists(st.tuples(st.integers(1, 5000), st.floats(1e3, 1e9)), max_size=4),
    last_slope=st.floats(1e3, 1e9),
    usable=st.floats(1e8, 1e12),
    accumulate=st.integers(1, 3),
)
def test_the_last_batch_along_pieces_of_lines_is_found_in_few_steps(
    bends: list[tuple[int, float]], last_slope: float, usable: float, accumulate: int
) -> None:
    """Each bend gives a piece of the line: its length in samples, and the bytes per sample."""
    looks: list[int] = []

    def spare_bytes(batch: int) -> float:
        looks.append(batch)
        left, spare = -(-batch // accumulate), usable
        for length, slope in bends:
            spare -= min(left, length) * slope
            left -= min(left, length)
        return spare - left * last_slope

    found = last_that_fits(spare_bytes)
    assert len(looks) <= (5 if accumulate == 1 and not bends else 30)
    assert found == 0 or spare_bytes(found) >= 0
    assert found == MOST_BATCH or spare_bytes(found + 1) < 0


@given(
    name=st.sampled_from(CLASSIC),
    batch=st.integers(1, 10_000),
    task=st.sampled_from(TaskKind),
    precision=st.sampled_from(Precision),
)
def test_more_samples_never_need_less_memory(
    name: str, batch: int, task: TaskKind, precision: Precision
) -> None:
    profile = load_profiles()[name]
    one, two = (planned_peak_bytes(profile, case_of(profile, task, precision, n)) for n in (batch, batch + 1))
    assert one <= two
    if profile.memory:
        infer = planned_peak_bytes(profile, case_of(profile, TaskKind.INFER, precision, batch))
        assert infer <= planned_peak_bytes(profile, case_of(profile, TaskKind.TRAIN, precision, batch))


@pytest.mark.parametrize("name", TRAINED)
def test_autocast_halves_no_weights_but_saves_activations(name: str) -> None:
    """A step needs less memory per sample, but copies of the weights in addition."""
    slopes = {
        s.is_amp: s.lines[-1].bytes_per_sample
        for s in load_profiles()[name].memory
        if s.task is TaskKind.TRAIN and s.recipe == Recipe()
    }
    assert slopes[True] < 0.82 * slopes[False]


def test_recomputed_blocks_save_memory_if_a_model_has_blocks() -> None:
    """A transformer's layers and a ResNet's bottlenecks are repeated blocks; VGG16 is one sequence of single layers."""
    slopes = {
        (name, s.recipe.checkpointing): s.lines[-1].bytes_per_sample
        for name in ("bert_base", "resnet50", "vgg16")
        for s in load_profiles()[name].memory
        if s.task is TaskKind.TRAIN and s.is_amp and s.recipe.weight_type is WeightType.FLOAT32
    }
    none, some, every = Checkpointing
    assert slopes["bert_base", every] < 0.3 * slopes["bert_base", none]
    assert slopes["resnet50", every] < 0.6 * slopes["resnet50", none]
    for name in ("bert_base", "resnet50"):
        assert 1.1 * slopes[name, every] < slopes[name, some] < 0.9 * slopes[name, none]
    assert {how for name, how in slopes if name == "vgg16"} == {none}
    bert, vgg = load_profiles()["bert_base"], load_profiles()["vgg16"]
    plain = case_of(bert, TaskKind.TRAIN, Precision.AMP_BF16, 64)
    cheap, again = checkpointed(bert, plain)
    needs = [need_of(bert, case, CardClass.HBM).device.high for case in (again, cheap, plain)]
    assert needs[0] < 0.5 * needs[2]
    assert needs[0] < needs[1] < needs[2]
    assert checkpointed(vgg, case_of(vgg, TaskKind.TRAIN, Precision.AMP_BF16, 64)) == ()


@pytest.mark.skipif(torch.__version__ < "2.5", reason="this torch has no selective checkpointing")
def test_selective_checkpointing_keeps_attention_and_every_second_product() -> None:
    """By hand, per layer in float32: its input, the first and the third product, and attention's output and sums."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(64, 64, bias=False) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k = self.first(x)[:, None], self.second(x)[:, None]
            seen = nn.functional.scaled_dot_product_attention(q, k, q)
            return x + self.third(seen[:, 0]).relu()

    class Deep(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    def saved(layers: int, how: Checkpointing) -> float:
        workload = _own(build=lambda n, _: _task_of(Deep(layers), torch.randn(n, 1024, 64)))
        step = trace_step(workload, TaskKind.TRAIN, is_amp=False, recipe=Recipe(checkpointing=how))
        assert step.saved is not None
        return step.saved.bytes_per_sample

    one = 1024 * 64 * 4
    sums = 1024 * 4
    none, some, every = (saved(10, how) - saved(4, how) for how in Checkpointing)
    assert every == 6 * one, "the input of each layer alone"
    assert some == 6 * (one + 2 * one + one + sums), "the first and the third product, and attention"
    assert none > some


def test_weights_in_half_precision_halve_everything_that_follows_from_them() -> None:
    bert = load_profiles()["bert_base"]
    steps = {
        s.recipe.weight_type: s
        for s in bert.memory
        if s.task is TaskKind.TRAIN and not s.is_amp and s.recipe.checkpointing is Checkpointing.NONE
        if s.recipe.trainable is Trainable.FULL
    }
    full, half = steps[WeightType.FLOAT32], steps[WeightType.BFLOAT16]
    for name in ("weights_bytes", "trained_bytes", "optimizer_bytes"):
        assert getattr(half, name) == pytest.approx(getattr(full, name) / 2, rel=0.01)
    assert half.peak(32).at(32) == pytest.approx(full.peak(32).at(32) / 2, rel=0.05)
    case = case_of(bert, TaskKind.TRAIN, Precision.TF32, 32, weight_type=WeightType.BFLOAT16)
    assert need_of(bert, case, CardClass.HBM).basis is MemoryBasis.TRACED


# --- several GPUs -------------------------------------------------------------------------------------------


def _on(
    count: int, mode: ParallelMode, name: str = "transformer", batch: int = 1, **others: Any
) -> MemoryNeed:
    return _need(name, Precision.AMP_BF16, batch, gpu_count=count, parallel_mode=mode, **others)


def test_data_parallel_gpus_have_a_second_copy_of_the_gradients() -> None:
    one, two = (_on(count, ParallelMode.DDP) for count in (1, 2))
    weights = 4 * load_profiles()["transformer"].parameters
    assert two.allocated.value - one.allocated.value == pytest.approx(weights, rel=0.01)
    assert two.device.high - one.device.high > weights + GIB, "communication takes memory, too"
    assert _on(8, ParallelMode.DDP).device == two.device


def test_sharded_weights_shrink_with_the_gpus_and_activations_do_not() -> None:
    needs = {count: _on(count, ParallelMode.FSDP, batch=8) for count in (2, 4, 8, 1024)}
    parameters = load_profiles()["transformer"].parameters
    for count, need in needs.items():
        assert need.basis is MemoryBasis.TRACED
        assert need.parts.weights_bytes == pytest.approx(4 * parameters / count, rel=0.01)
        assert need.parts.optimizer_bytes == pytest.approx(8 * parameters / count, rel=0.01)
    values = [need.device.value for need in needs.values()]
    assert values == sorted(values, reverse=True)
    rest = [n.parts.activations_bytes + n.parts.gradients_bytes for n in needs.values()]
    assert max(rest) < 1.02 * min(rest)
    assert needs[8].device.value < _on(8, ParallelMode.DDP, batch=8).device.value


def test_a_model_without_blocks_is_gathered_in_full() -> None:
    """Each of two GPUs stores half of VGG16's weights and states, and all weights while it computes."""
    need = _on(2, ParallelMode.FSDP, "vgg16", batch=1)
    whole = 4 * load_profiles()["vgg16"].parameters
    assert need.parts.weights_bytes == pytest.approx(whole / 2, rel=0.01)
    assert need.parts.activations_bytes > whole


def test_an_untraced_step_gets_the_formula_and_says_so() -> None:
    need = _on(1, ParallelMode.SINGLE, weight_type=WeightType.INT4)
    assert need.basis is MemoryBasis.FORMULA
    assert "int4" in need.untraced
    assert need.device.high > need.device.value > need.device.low
    profile = load_profiles()["transformer"]
    case = case_of(profile, TaskKind.TRAIN, Precision.FP32, 1, weight_type=WeightType.INT4)
    assert "not traced: no" in judge_fit(profile, case, card(24)).text()


def test_adapters_need_neither_gradients_nor_states_of_the_weights() -> None:
    profile = load_profiles()["transformer"]
    case = case_of(profile, TaskKind.TRAIN, Precision.AMP_BF16, 4)
    found = list(with_adapters(profile, case))
    assert [each.trainable for each in found] == [Trainable.LORA, Trainable.QLORA]
    for adapted in found:
        need = need_of(profile, adapted, CardClass.HBM)
        assert need.basis is MemoryBasis.TRACED
        assert need.parts.optimizer_bytes < 0.2 * profile.parameters
        assert need.parts.gradients_bytes < 0.2 * profile.parameters
        assert need.parts.weights_bytes < 2.2 * profile.parameters
    assert not list(with_adapters(load_profiles()["resnet50"], case))


def test_adding_adapters_needs_as_much_memory_as_building_with_them() -> None:
    """One sample of Llama 3 8B at 8,192 tokens equals four of 2,048.

    Our workload has adapters only on attention; on every linear layer, adapters of rank 16 are 42 million
    parameters, 0.3 GiB with gradients and states.
    """
    whole = load_profiles()["llama_8b_fsdp"]
    full = {**whole.recipe.fields, "checkpointing": Checkpointing.FULL}
    case = case_of(whole, TaskKind.TRAIN, Precision.BF16, 1, **full)
    for adapted, name in zip(with_adapters(whole, case), ("llama_8b_lora", "llama_8b_qlora"), strict=True):
        built = load_profiles()[name]
        theirs = case_of(built, TaskKind.TRAIN, Precision.BF16, 4, **built.recipe.fields)
        told, traced = (
            need_of(profile, each, CardClass.HBM).allocated.value / GIB
            for profile, each in ((whole, adapted), (built, theirs))
        )
        assert traced <= told < traced + 0.9


def test_frozen_layers_save_nothing() -> None:
    frozen, trained = (load_profiles()[n] for n in ("vgg16_transfer", "vgg16"))
    for precision in (Precision.FP32, Precision.AMP_BF16):
        train, infer = (
            planned_peak_bytes(frozen, case_of(frozen, task, precision, 64))
            for task in (TaskKind.TRAIN, TaskKind.INFER)
        )
        assert train < 1.1 * infer
        assert train < 0.4 * planned_peak_bytes(trained, case_of(trained, TaskKind.TRAIN, precision, 64))


def card(gib: float, card_class: CardClass = CardClass.GDDR) -> CardMemory:
    return CardMemory(listed_bytes=gib * GIB, usable_bytes=gib * GIB, card_class=card_class)


@pytest.mark.parametrize("card_class", CardClass)
@pytest.mark.parametrize("name", CLASSIC)
def test_device_memory_includes_tensors_and_a_context(name: str, card_class: CardClass) -> None:
    """This applies to both ends, even if the interval of the device is wide or the step is small."""
    profile = load_profiles()[name]
    context = load_allowance().classes[card_class].overhead_bytes
    for task, precision, batch in product(profile.tasks, (Precision.FP32, Precision.AMP_FP16), (1, 64, 4096)):
        need = need_of(profile, case_of(profile, task, precision, batch), card_class)
        ends = [(f.low, f.value, f.high) for f in (need.allocated, need.reserved, need.device)]
        assert all(low <= high for one, two in pairwise(ends) for low, high in zip(one, two, strict=True))
        assert need.device.high >= need.allocated.high + context


@given(
    name=st.sampled_from(CLASSIC),
    gib=st.floats(1, 200),
    scale=st.floats(0.5, 2),
    traced=st.booleans(),
    card_class=st.sampled_from(CardClass),
)
def test_the_largest_batch_is_the_largest_that_fits(
    name: str, gib: float, scale: float, traced: bool, card_class: CardClass
) -> None:
    profile = load_profiles()[name]
    if not traced:
        profile = msgspec.structs.replace(profile, memory=())
    task = profile.tasks[0]
    on = msgspec.structs.replace(card(gib, card_class), listed_bytes=1.07 * gib * GIB)
    found = largest_batch(profile, case_of(profile, task, Precision.FP32, 1), on, scale=scale)
    both = [
        judge_fit(profile, case_of(profile, task, Precision.FP32, max(1, n)), on, scale=scale)
        for n in (found, found + 1)
    ]
    assert found == 0 or both[0].fits
    assert found == MOST_BATCH or not both[1].fits
    assert {fit.largest_batch for fit in both} == {found} or found in {0, MOST_BATCH}


@given(
    name=st.sampled_from(CLASSIC),
    batch=st.integers(1, 10_000),
    task=st.sampled_from(TaskKind),
    precision=st.sampled_from(Precision),
    card_class=st.sampled_from(CardClass),
    measured=st.none() | st.floats(1e6, 1e12),
    traced=st.booleans(),
)
def test_the_three_figures_are_ordered_and_the_parts_add_up(  # noqa: PLR0917 - drawn by name
    name: str,
    batch: int,
    task: TaskKind,
    precision: Precision,
    card_class: CardClass,
    measured: float | None,
    traced: bool,
) -> None:
    profile = load_profiles()[name]
    if not traced:
        profile = msgspec.structs.replace(profile, memory=(), memory_untraced="it reads its values")
    need = need_of(
        profile,
        case_of(profile, task, precision, batch),
        card_class,
        measured=None if measured is None else MeasuredMemory(allocated_bytes=measured),
    )
    for figure in (need.allocated, need.reserved, need.device):
        assert figure.low <= figure.value <= figure.high
    assert need.allocated.value <= need.reserved.value < need.device.value
    assert need.allocated.high <= need.reserved.high < need.device.high
    parts = need.parts
    total = sum(getattr(parts, name) for name in parts.__struct_fields__)
    assert total == pytest.approx(need.device.high)
    if measured is not None:
        assert (need.basis, need.untraced) == (MemoryBasis.MEASURED, None)
        assert need.allocated == Interval(measured, measured, measured)
    elif traced and profile.memory:
        assert (need.basis, need.untraced) == (MemoryBasis.TRACED, None)
        assert min(getattr(parts, name) for name in parts.__struct_fields__) >= 0
    else:
        assert need.basis is MemoryBasis.FORMULA
        assert need.untraced


def test_fit_verdict_uses_the_upper_memory_bound() -> None:
    profile = load_profiles()["resnet50"]

    def answer(gib: float) -> MemoryFit:
        return judge_fit(profile, case_of(profile, TaskKind.TRAIN, Precision.FP32, 64), card(gib))

    device = answer(24).need.device
    fits, tight, large = (
        answer((end / GIB) + more)
        for end, more in ((device.high, 0.1), (device.high, -0.1), (device.low, -0.1))
    )
    assert [x.verdict for x in (fits, tight, large)] == [
        Verdict.FITS,
        Verdict.MAY_FIT,
        Verdict.DOES_NOT_FIT,
    ]
    assert fits.text().startswith("fits (needs ")
    assert fits.text() == f"fits ({fits.needs_text()})"
    ran = tight.after_a_run(64)
    assert (ran.verdict_text(), ran.needs_text()) == ("fits", f"it ran here; {tight.needs_text()}")
    assert all(x.text() == f"{x.verdict_text()} ({x.needs_text()})" for x in (fits, ran))
    assert tight.text() == f"may fit ({tight.needs_text()}); largest batch {tight.largest_batch}"
    assert large.text() == f"does not fit ({large.needs_text()}); largest batch {large.largest_batch}"
    assert large.largest_batch <= tight.largest_batch < 64 <= fits.largest_batch
    assert "batch of 1 fits" in answer(0.5).text()


def test_each_measured_memory_figure_replaces_its_predicted_one() -> None:
    profile = load_profiles()["resnet50"]
    case = case_of(profile, TaskKind.TRAIN, Precision.FP32, 64)
    measured = MeasuredMemory(
        allocated_bytes=6.5 * GIB, reserved_bytes=7 * GIB, device_bytes=8 * GIB, card_class=CardClass.HBM
    )
    here, there = (need_of(profile, case, of, measured=measured) for of in (CardClass.HBM, CardClass.GDDR))
    assert here.basis is MemoryBasis.MEASURED
    assert [f.value for f in (here.allocated, here.reserved, here.device)] == [6.5 * GIB, 7 * GIB, 8 * GIB]
    assert here.device.low == here.device.high == 8 * GIB
    assert there.reserved == here.reserved
    assert there.device.value < here.device.value, "a CUDA context takes less on that class"
    assert there.device.low < there.device.value < there.device.high
    apart = need_of(profile, case, CardClass.HBM, measured=msgspec.structs.replace(measured, same_card=False))
    assert apart.device.low < 8 * GIB < apart.device.high < 9 * GIB
    read = MeasuredMemory(allocated_bytes=6.5 * GIB, reserved_bytes=7 * GIB)
    without = need_of(profile, case, CardClass.HBM, measured=read)
    assert without.device.low > 7 * GIB


def test_cache_measured_with_a_peak_is_not_a_need() -> None:
    """An H100 measured 7.8 GiB of tensors, 13.6 reserved and 14.5 in use: cuDNN's trials had taken free memory."""
    sizes = {"allocated_bytes": 7.8 * GIB, "reserved_bytes": 13.6 * GIB, "device_bytes": 14.5 * GIB}
    need = _need("vgg16", measured=MeasuredMemory(**sizes, card_class=CardClass.HBM))
    assert need.reserved.high < 9.2 * GIB
    assert need.device.high < 11.2 * GIB


def test_strict_fp32_convolution_workspace_counts_as_a_memory_need() -> None:
    """An H100 measured 7,989 MiB of tensors, 6,160 of them in the trace; a run limited to less failed.

    TF32 and layers without convolutions need no such workspace.
    """
    told = _need("vgg16")
    assert told.allocated.value == pytest.approx(7989 * MIB, rel=0.03)
    assert told.allocated.low < told.allocated.value < told.allocated.high
    assert 1.8 * GIB < told.algorithm_bytes < 2 * GIB
    without = _need("vgg16", Precision.TF32)
    assert without.algorithm_bytes == 0
    for figure in ("allocated", "reserved", "device"):
        one, two = getattr(told, figure), getattr(without, figure)
        assert one.high - two.high == pytest.approx(told.algorithm_bytes)
        assert one.value - two.value == pytest.approx(told.algorithm_bytes / 1.25)
    assert _need("bert_base").algorithm_bytes == 0
    read = MeasuredMemory(allocated_bytes=7989 * MIB, card_class=CardClass.HBM, same_card=False)
    elsewhere = _need("vgg16", measured=read)
    assert elsewhere.allocated.value == 7989 * MIB, "memory measured on that card is needed on this one"
    assert elsewhere.algorithm_bytes == 0, "the measurement includes what cuDNN took"


@pytest.mark.parametrize(("card_class", "mib"), [(CardClass.HBM, 32), (CardClass.GDDR, 8.125)])
def test_cublas_keeps_a_workspace_for_each_thread_with_products(card_class: CardClass, mib: float) -> None:
    """Autograd's own thread has the second one; its size is constant, and likely tensors include it, as in torch."""
    profile = load_profiles()["vgg16"]
    for task, threads in ((TaskKind.TRAIN, 2), (TaskKind.INFER, 1)):
        for batch in (8, 64):
            case = case_of(profile, task, Precision.AMP_BF16, batch)
            need = need_of(profile, case, card_class)
            blas = blas_bytes(profile, case, card_class)
            assert blas == threads * mib * MIB
            tensors = planned_peak_bytes(profile, case) - WORKSPACE_BYTES
            assert need.allocated.value == pytest.approx(tensors + blas)
            assert need.parts.activations_bytes < tensors, "a workspace is no activation"
    bare = msgspec.structs.replace(
        profile, train=tuple(op for op in profile.train if op.kind is not OperatorKind.MATMUL)
    )
    assert blas_bytes(bare, case_of(bare, TaskKind.TRAIN, Precision.AMP_BF16, 8), card_class) == 0


def test_a_measured_peak_replaces_the_model() -> None:
    traced, measured = (
        _need("resnet50", measured=read) for read in (None, MeasuredMemory(allocated_bytes=12 * GIB))
    )
    assert traced.device.high < 12 * GIB < measured.device.low
    widths = [need.device.high / need.device.value for need in (traced, measured)]
    assert widths[1] < widths[0]


def test_the_largest_batch_agrees_with_a_measurement_of_this_batch() -> None:
    """A batch measured to fit is not above the largest batch, and one measured not to fit is above it."""
    profile = load_profiles()["resnet50"]
    case = case_of(profile, TaskKind.TRAIN, Precision.FP32, 64)
    need = need_of(profile, case, CardClass.GDDR).device
    for usable_bytes, read_bytes, verdict in (
        (0.9 * need.low, 0.5 * need.low, Verdict.FITS),
        (1.1 * need.high, 2.0 * need.high, Verdict.DOES_NOT_FIT),
    ):
        on = card(usable_bytes / GIB)
        assert (largest_batch(profile, case, on) >= 64) is (verdict is not Verdict.FITS), (
            "the model errs here"
        )
        read = MeasuredMemory(
            allocated_bytes=read_bytes - 0.5 * GIB, device_bytes=read_bytes, card_class=CardClass.GDDR
        )
        fit = judge_fit(profile, case, on, measured=read)
        assert fit.verdict is verdict
        assert (fit.largest_batch >= 64) is fit.fits


def test_a_step_that_fits_only_eagerly_is_reported_so() -> None:
    """The card is between the upper ends of an eager step and a CUDA graph; below both the step does not fit."""
    profile = load_profiles()["transformer"]
    eager = case_of(profile, TaskKind.TRAIN, Precision.AMP_BF16, 8)
    graph = msgspec.structs.replace(eager, execution=Execution.GRAPH)
    bound = judge_fit(profile, eager, card(80)).need.device.high / GIB
    between, below = (judge_fit(profile, graph, card(bound + more)) for more in (0.1, -0.1))
    assert (between.verdict, between.in_eager_steps) == (Verdict.FITS, True)
    assert "in eager steps" in between.text()
    assert between.need.device.high < need_of(profile, graph, CardClass.HBM).device.high
    assert (below.fits, below.in_eager_steps) == (False, False)
    room = judge_fit(profile, graph, card(80))
    assert (room.fits, room.in_eager_steps) == (True, False)
    assert between.graph_largest_batch == 6
    assert between.eager_largest_batch == between.largest_batch == 8
    assert between.largest_text() == "largest batch 6 in a CUDA graph, 8 in eager steps"
    assert (below.graph_largest_batch, below.eager_largest_batch) == (6, 7)
    assert room.largest_text() == f"largest batch {room.largest_batch}"
    many = judge_fit(profile, msgspec.structs.replace(graph, batch_size=60), card(bound + 0.1))
    assert many.text().endswith(f"; {between.largest_text()}"), (
        "the same card gets the same answer for every batch"
    )
    assert many.largest_batch == 6
    small = judge_fit(profile, msgspec.structs.replace(eager, batch_size=1), card(80)).need.device.high / GIB
    lone = judge_fit(profile, graph, card(small + 0.05))
    assert lone.text().startswith("does not fit (")
    assert lone.text().endswith("); largest batch 1 in eager steps alone")
    several = msgspec.structs.replace(graph, gpu_count=8)
    assert not judge_fit(profile, several, card(bound + 1.1)).in_eager_steps, "they take eager steps anyway"


def test_eager_peak_says_nothing_about_pinned_graph_memory() -> None:
    sizes = {
        "allocated_bytes": 10_865 * MIB, "reserved_bytes": 15_014 * MIB, "device_bytes": 17_447 * MIB,
    }  # fmt: skip
    reads = (
        MeasuredMemory(**sizes, card_class=CardClass.HBM, in_graph=is_graph) for is_graph in (False, True)
    )
    of_eager, of_graph = (
        _need("transformer", batch=8, execution=Execution.GRAPH, measured=read) for read in reads
    )
    assert of_graph.reserved == Interval(*[15_014.0 * MIB] * 3)
    transient = of_eager.reserved.high - of_eager.reserved.low
    assert of_eager.reserved.value == of_eager.reserved.high, (
        "the memory that the graph finds pinned counts as likely"
    )
    assert of_eager.reserved.low < of_graph.reserved.value, "as cache it is not needed"
    assert transient == pytest.approx(3_141 * MIB, rel=1e-3)
    assert of_eager.device.low + transient <= of_eager.device.value <= of_eager.device.high


def test_a_compiled_step_may_need_less_than_the_eager_one_that_was_traced() -> None:
    eager, compiled = (
        _need("transformer", Precision.AMP_BF16, 8, execution=how)
        for how in (Execution.EAGER, Execution.COMPILE)
    )
    assert compiled.reserved.low == pytest.approx(COMPILED_LEAST * eager.reserved.low)
    assert compiled.device.low < eager.device.low
    assert (compiled.device.value, compiled.device.high) == (eager.device.value, eager.device.high)


def test_frozen_weights_have_no_gradient_and_gradients_can_be_kept() -> None:
    """VGG16 has 553 MB of weights and as much of gradients and momentum; frozen layers have neither."""
    parts = {name: _need(name, batch=1).parts for name in ("vgg16", "vgg16_transfer")}
    weights = 4 * load_profiles()["vgg16"].parameters
    assert parts["vgg16"].weights_bytes == pytest.approx(weights, rel=1e-3)
    assert parts["vgg16"].optimizer_bytes == pytest.approx(weights, rel=1e-3)
    assert parts["vgg16"].gradients_bytes == pytest.approx(weights, rel=0.05)
    trained = 4 * load_profiles()["vgg16_transfer"].trainable_parameters
    assert parts["vgg16_transfer"].gradients_bytes <= trained

    def build(batch_size: int, _seed: int) -> Task:
        model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1000))
        return _task_of(model, torch.randn(batch_size, 1000))

    once, kept = (
        traced_peak_bytes(build, 4000, TaskKind.TRAIN, is_amp=False, keep_gradients=k) for k in (False, True)
    )
    assert kept - once == pytest.approx(8e6, rel=0.02)


def test_kept_gradients_do_not_count_as_saved_activations() -> None:
    def saved_bytes(*, keep_gradients: bool) -> int:
        task = _task_of(nn.Linear(10, 10), torch.zeros(8, 10))
        return step_trace(task, with_state(task, {}), is_amp=False, keep_gradients=keep_gradients).saved

    assert saved_bytes(keep_gradients=True) == saved_bytes(keep_gradients=False)


@pytest.mark.parametrize("name", ["cnn", "vgg16"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP_BF16])
def test_a_batch_in_micro_batches_is_predicted_as_a_trace_that_keeps_gradients(
    name: str, precision: Precision
) -> None:
    profile = load_profiles()[name]
    case = case_of(profile, TaskKind.TRAIN, precision, 23)
    need = need_of(profile, case, CardClass.HBM, accumulate=3)
    traced = traced_peak_bytes(
        load_workload(name).build, 8, TaskKind.TRAIN, is_amp=precision.is_amp, keep_gradients=True
    )
    assert traced_bytes(profile, case, need) == pytest.approx(traced, rel=1e-4)
    assert need.parts.gradients_bytes == pytest.approx(4 * profile.trainable_parameters, rel=1e-3)


def test_accumulated_gradients_count_on_each_of_several_gpus() -> None:
    """Each of two GPUs has half of the gradients if sharded, else all of them and their buckets."""
    profile = load_profiles()["bert_base"]
    whole = 4 * profile.trainable_parameters
    for mode, held in ((ParallelMode.FSDP, 0.5 * whole), (ParallelMode.DDP, 2 * whole)):
        case = case_of(profile, TaskKind.TRAIN, Precision.AMP_BF16, 32, gpu_count=2, parallel_mode=mode)
        once, cut = (need_of(profile, case, CardClass.HBM, accumulate=n) for n in (1, 4))
        assert held <= cut.parts.gradients_bytes < held + 0.6 * whole
        assert cut.device.value < once.device.value
    plain = case_of(profile, TaskKind.TRAIN, Precision.AMP_BF16, 32)
    on = card(24)
    one, four = (largest_batch(profile, plain, on, accumulate=n) for n in (1, 4))
    assert 3.5 * one < four <= 4 * one
    assert judge_fit(profile, msgspec.structs.replace(plain, batch_size=four), on, accumulate=4).fits
    assert not judge_fit(profile, msgspec.structs.replace(plain, batch_size=four + 1), on, accumulate=4).fits


def test_a_micro_batch_of_one_that_may_fit_counts_as_a_batch_of_one_that_may_fit() -> None:
    """Gradients are kept between micro-batches; without them a batch of 1 would fit."""
    profile = load_profiles()["transformer"]
    case = case_of(profile, TaskKind.TRAIN, Precision.FP32, 4)
    on = card(need_of(profile, case, CardClass.GDDR, accumulate=4).device.high / GIB - 0.1)
    assert judge_fit(profile, msgspec.structs.replace(case, batch_size=1), on).fits
    fit = judge_fit(profile, case, on, accumulate=4)
    assert (fit.verdict, fit.largest_batch, fit.one_may_fit) == (Verdict.MAY_FIT, 0, True)


# --- steps that cannot be traced ----------------------------------------------------------------------------


@pytest.mark.usefixtures("traced_here")
def test_a_model_that_no_trace_can_follow_gets_an_upper_bound_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "net.py"
    path.write_text(BY_BYTES)
    profile = profile_of(str(path))
    assert profile.memory == ()
    assert "not traced" in caplog.text
    assert profile.memory_untraced is not None
    assert profile.memory_untraced in caplog.text
    weights = 4 * profile.parameters
    assert (
        planned_peak_bytes(profile, case_of(profile, TaskKind.INFER, Precision.FP32, 1))
        > UNTRACED_FACTOR * weights
    )


def test_a_value_dependent_model_that_is_slow_on_the_cpu_gets_the_formula(tmp_path: Path) -> None:
    """A GPT with one condition runs out of time before its first step, or in the middle of it."""
    text = GPT.replace("128_000, 2048, 768, 12, 12", "100, 16, 32, 1, 2")
    slow = text.replace(
        "        for layer in",
        "        if x.sum() < 9e9:\n            end = time.process_time() + 0.012\n"
        "            while time.process_time() < end:\n                pass\n        for layer in",
    )
    path = tmp_path / "gpt.py"
    path.write_text(
        "import time\n"
        + slow.replace("torch.arange(x.shape[1])", "torch.arange(x.shape[1], device=x.device)")
    )
    workload = load_workload(str(path))
    whole = trace_workload(workload, 0, 600.0)
    assert "took too long" not in whole.why_on_cpu
    for on_cpu_s in (0.0, 0.01):
        cut = trace_workload(workload, 0, on_cpu_s)
        assert "took too long" in cut.why_on_cpu, on_cpu_s
        assert cut.profile.memory_untraced is not None
        assert "on the values" in cut.profile.memory_untraced
        assert cut.profile.parameters == whole.profile.parameters
        told = [
            need_of(each.profile, case_of(each.profile, TaskKind.TRAIN, Precision.FP32, 64), CardClass.GDDR)
            for each in (cut, whole)
        ]
        assert told[0].basis is MemoryBasis.FORMULA
        assert told[0].allocated.value == pytest.approx(told[1].allocated.value, rel=0.02)
        flops = cut.profile.train_flops_per_sample
        assert flops == pytest.approx(whole.profile.train_flops_per_sample, rel=0.02)


class _Routed(nn.Module):
    """Each expert computes the samples sent to it; their number depends on values."""

    def __init__(self, wait: Callable[[int], None]) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 2), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.wait = wait

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.wait(len(x))
        chosen = self.gate(x).argmax(-1)
        out = x.clone()
        for n, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == n)
            out = out.index_add(0, rows, expert(x[rows]))
        return out


def _routed(wait: Callable[[int], None]) -> Workload:
    return _own(build=lambda batch_size, _: _task_of(_Routed(wait), torch.randn(batch_size, 8)))


def test_an_expert_with_fewer_samples_in_a_larger_batch_is_no_contradiction() -> None:
    """A batch of two goes to the first expert, a batch of four to the second."""
    fixed = _routed(lambda _: None)

    def build(batch_size: int, seed: int) -> Task:
        task = fixed.build(batch_size, seed)
        task.model.gate.bias.data[int(batch_size > 2)] = 9e9
        return task

    profile = trace_operators(replace(fixed, build=build)).profile
    assert contradiction(fixed.name, profile) is None
    assert profile.forward_flops_per_sample == 2 * (8 * 2 + 8 * 8)


def test_the_limit_of_a_value_dependent_model_ignores_other_programs() -> None:
    told = trace_workload(_routed(lambda _: time.sleep(0.1)), 0, on_cpu_s=2.0)
    assert "took too long" not in (told.why_on_cpu or "")
    assert told.profile.train_flops_per_sample > 0


def test_optional_trace_of_a_value_dependent_model_is_skipped_on_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent_s = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: spent_s[0])

    def slow_beyond_four(batch: int) -> None:
        spent_s[0] += 100.0 if batch > 4 else 0.1

    told = trace_workload(_routed(slow_beyond_four), 0, on_cpu_s=50.0)
    assert told.profile.train_flops_per_sample > 0
    assert told.profile.saved_bytes_per_pair == 0
    with pytest.raises(MisuseError, match=r"too long on this CPU.*make the model smaller, or measure"):
        trace_workload(_routed(slow_beyond_four), 0, on_cpu_s=0.0)


def test_a_slow_step_with_conditions_that_add_no_products_is_traced_with_all_of_them_true() -> None:
    """As in a detector, which selects the places that its loss compares."""

    def loss(out: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        near = (out - goal).abs() < 0.5
        (rows,) = torch.where(near.any(1))
        return out[near].square().sum() + out[rows].sum()

    own = _own(build=lambda batch_size, _: _task_of(nn.Linear(8, 8), torch.randn(batch_size, 8), loss))
    told = trace_workload(own, 0, on_cpu_s=0.0)
    assert "took too long" in (told.why_on_cpu or "")
    assert told.profile.train_flops_per_sample == 2 * 2 * 8 * 8


def test_a_step_too_slow_for_the_cpu_does_not_run_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spent_s = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: spent_s[0])

    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(x) is torch.Tensor and not x.is_meta:
                spent_s[0] += 100.0
            out = super().forward(x)
            return out if out.sum() < 9e9 else x

    workload = _own(build=lambda batch_size, _: _task_of(Slow(8, 8), torch.randn(batch_size, 8)))
    traced = trace_workload(workload, 0, on_cpu_s=50.0)
    assert "took too long" in (traced.why_on_cpu or "")
    assert spent_s == [100.0]


def test_a_cpu_without_memory_says_nothing_about_autocast() -> None:
    class Large(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise MemoryError

    own = _own(build=lambda batch_size, _: _task_of(Large(8, 8), torch.randn(batch_size, 8)))
    assert why_no_amp(own) is None


def test_different_operators_at_another_batch_leave_one_line_through_the_peaks() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1000, 1000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(len(x)):
                x = self.layer(x)
            return x

    workload = _own(build=lambda batch_size, _: _task_of(Odd(), torch.randn(batch_size, 1000)))
    profile = profile_workload(workload)
    assert {len(step.lines) for step in profile.memory} == {1}
    for n in (2, 4):
        traced = traced_peak_bytes(workload.build, n, TaskKind.TRAIN, is_amp=False)
        assert _step_bytes(profile, n, Precision.FP32) == pytest.approx(traced)


BYTES = st.integers(0, 1000)
MOMENTS = st.lists(
    st.tuples(BYTES, st.integers(0, 20), st.floats(0, 1)).map(
        lambda each: [Moment(each[0] + n * each[1], int(each[0] * each[2])) for n in BATCHES]
    ),
    min_size=1,
    max_size=30,
)


@given(MOMENTS)
@example([[Moment(100, 0)] * 2, [Moment(136, 40)] * 2, [Moment(220, 200)] * 2])
def test_the_peak_with_any_share_of_the_gradients_is_the_highest_of_all_moments(moments: Any) -> None:
    """Only lines that are the highest somewhere are kept, and none may be missing for any share of the gradients."""
    traces = [StepTrace(each, 0, 0, 0, 0) for each in zip(*moments, strict=True)]
    step = on_lines(*traces, TaskKind.TRAIN, is_amp=False, recipe=Recipe())
    for at, batch in enumerate(BATCHES):
        for share in (0.0, 0.125, 0.25, 0.5, 1.0):
            line = step.peak(batch, share)
            highest = max(pair[at].total - (1 - share) * pair[0].gradients for pair in moments)
            assert line.at(batch) - (1 - share) * line.gradient_bytes == pytest.approx(highest)


@pytest.mark.parametrize("bytes_more", range(8))
def test_if_two_lines_are_equal_without_gradients_the_higher_one_with_them_is_kept(
    bytes_more: int,
) -> None:
    high, low = Moment(120 + bytes_more, 20), Moment(100 + bytes_more, 0)
    trace = StepTrace([low, high], 0, 0, 0, 0)
    step = on_lines(trace, trace, TaskKind.TRAIN, is_amp=False, recipe=Recipe())
    assert [line.gradient_bytes for line in step.lines] == [20.0]


def test_an_older_profile_is_read_and_falls_back_to_the_formula() -> None:
    old = msgspec.to_builtins(load_profiles()["cnn"])
    del old["memory"], old["memory_untraced"]
    profile = msgspec.convert(old, WorkloadProfile)
    assert profile.memory == ()
    assert planned_peak_bytes(profile, case_of(profile, TaskKind.TRAIN, Precision.FP32, 64)) > WORKSPACE_BYTES


# --- recipes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "gib"), [(1, 16.0), (2, 17.0), (4, 18.9)])
def test_eight_billion_parameter_lora_matches_the_reference_memory(batch: int, gib: float) -> None:
    """Frozen in bfloat16, every layer recomputed, 2,048 tokens, the loss in eight chunks.

    The controls also keep the normalized values of the current layer, which RMSNorm as one kernel does not:
    49 MiB per sequence.
    """
    profile = load_profiles()["llama_8b_lora"]
    case = case_of(profile, TaskKind.TRAIN, Precision.BF16, batch, **profile.recipe.fields)
    need = need_of(profile, case, CardClass.HBM)
    assert need.basis is MemoryBasis.TRACED
    assert traced_bytes(profile, case, need) / GIB == pytest.approx(gib - 0.048 * batch, rel=0.005)


def test_each_recipe_is_predicted_from_its_own_trace() -> None:
    """Llama 3.2 1B: bfloat16 weights and states take 6 bytes per parameter, float32 ones 12."""
    profile = load_profiles()["llama_1b"]
    parts = {}
    for recipe in (profile.recipe, *(variant.recipe for variant in profile.variants)):
        case = case_of(profile, TaskKind.TRAIN, Precision.TF32, 4, **recipe.fields)
        need = need_of(profile, case, CardClass.HBM)
        assert need.basis is MemoryBasis.TRACED
        parts[recipe.weight_type, recipe.checkpointing] = need.parts
    none, every = Checkpointing.NONE, Checkpointing.FULL
    for weight_type, size in ((WeightType.BFLOAT16, 6), (WeightType.FLOAT32, 12)):
        states = parts[weight_type, none].weights_bytes + parts[weight_type, none].optimizer_bytes
        assert states == pytest.approx(size * profile.parameters, rel=0.01)
        assert parts[weight_type, every].saved_bytes < 0.2 * parts[weight_type, none].saved_bytes
