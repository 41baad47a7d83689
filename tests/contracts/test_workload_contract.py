"""The contract of every workload; for some, it also checks facts computed by hand."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import msgspec
import pytest
import torch
from definitions.rows import OF_ANOTHER_TORCH, TRACED_WITH, is_of_this_torch, totals
from fingerprints import FINGERPRINTS, OLDEST_TORCH, fingerprint
from processor import runs_lstm

from gpubench.discovery import load_workload, workload_names
from gpubench.errors import MisuseError
from gpubench.measure.step import forward, move
from gpubench.models import (
    Case,
    Checkpointing,
    Execution,
    OperatorKind,
    Precision,
    TaskKind,
    WorkloadProfile,
)
from gpubench.precisions import AMP
from gpubench.profile import load_profiles, profile_of
from gpubench.profile.trace import profile_workload, trace_workload
from gpubench.workload import Task, Workload, seeded

HAS_SELECTIVE = hasattr(torch.utils.checkpoint, "CheckpointPolicy")
CHECKPOINTING = [how for how in Checkpointing if HAS_SELECTIVE or how is not Checkpointing.SELECTIVE]


class WorkloadContract:
    """Tests that need only the module of a workload."""

    name: str
    train_ratio: tuple[float, float] = (1.0, 3.0)
    is_traced = True
    """Whether the default tests trace it; if that takes long and another workload is similar, only the slow tests do."""

    @property
    def workload(self) -> Workload:
        return load_workload(self.name)

    @property
    def profile(self) -> WorkloadProfile:
        return _profiled(self.name) if self.is_traced else load_profiles()[self.name]

    def tiny(self, batch_size: int = 4, seed: int = 0) -> Task:
        self.skip_what_torch_lacks()
        assert self.workload.tiny is not None
        return self.workload.tiny(batch_size, seed)

    def skip_what_torch_lacks(self) -> None:
        if self.workload.recipe.checkpointing is Checkpointing.SELECTIVE and not HAS_SELECTIVE:
            pytest.skip("this torch has no selective checkpointing")

    def test_workload_is_named_after_its_entry_point(self) -> None:
        assert self.workload.name == self.name
        assert self.workload.version >= 1
        assert len(self.workload.batches) >= 2
        assert self.workload.source
        assert self.workload.summary

    @property
    def has_lstm(self) -> bool:
        return any(isinstance(module, torch.nn.LSTM) for module in self.tiny().model.modules())

    @property
    def precisions(self) -> tuple[Precision, ...]:
        named = self.workload.precisions
        if not named:
            return tuple(p for p in Precision if p.is_usual)
        return tuple(p for p in Precision if p in named or (p.is_amp and AMP in named))

    def test_training_computes_up_to_three_times_the_forward_pass(self) -> None:
        if TaskKind.TRAIN not in self.workload.tasks:
            assert self.profile.train == ()
            return
        ratio = self.profile.train_flops_per_sample / self.profile.forward_flops_per_sample
        least, most = self.train_ratio
        assert least <= ratio <= most

    def test_all_arithmetic_grows_with_the_batch(self) -> None:
        assert all(
            abs(o.flops_fixed) <= 1e-9 * o.flops_per_sample
            for o in (*self.profile.train, *self.profile.infer)
        )
        assert all(o.bytes_fixed >= 0 and o.bytes_per_sample >= 0 for o in self.profile.train)

    def test_the_shipped_profile_matches_a_new_trace(self) -> None:
        """Compare the peaks of the recipes that every trace includes; the other recipes take long to trace.

        If two moments of a step need the same memory, two processes may record different ones.
        """
        if not self.is_traced:
            pytest.skip("its trace is slow: the slow tests check it")
        self.assert_is_as_traced()

    @pytest.mark.slow
    def test_slow_shipped_profile_matches_a_new_trace(self) -> None:
        if self.is_traced:
            pytest.skip("the default tests check it")
        self.assert_is_as_traced()

    def assert_is_as_traced(self) -> None:
        """Compare the shipped profile with a new one."""
        shipped, traced = load_profiles()[self.name], _profiled(self.name)
        assert TRACED_WITH.sub("", shipped.source) == traced.source
        left_out: dict[str, Any] = {"memory": (), "source": ""}
        is_exact = is_of_this_torch(shipped.source)
        if not is_exact:
            left_out |= {"train": (), "infer": ()}
            for task in shipped.tasks:
                assert totals(traced, task) == pytest.approx(totals(shipped, task), rel=OF_ANOTHER_TORCH)
        bare = [msgspec.structs.replace(each, **left_out) for each in (shipped, traced)]
        assert bare[0] == bare[1], (
            "what it computes has changed: raise its version, then run python -m tools.make profiles"
        )
        kept = {(step.task, step.is_amp, step.recipe): step for step in shipped.memory}
        assert traced.memory or traced.memory_untraced
        for step in traced.memory:
            for batch in (1, *self.workload.batches):
                peak = kept[step.task, step.is_amp, step.recipe].peak(batch).at(batch)
                apart = 1e-3 if is_exact else OF_ANOTHER_TORCH
                assert peak == pytest.approx(step.peak(batch).at(batch), rel=apart)

    def test_a_sample_has_the_stated_shape(self) -> None:
        task = _on_meta(self.name)
        assert len(task.batches) == 4
        for inputs, targets in map(_first, task.batches):
            assert tuple(inputs.shape) == (3, *self.workload.sample_shape)
            assert targets.shape[0] == 3

    @property
    def dtype(self) -> torch.dtype:
        found = getattr(torch, self.workload.recipe.weight_type)
        assert isinstance(found, torch.dtype)
        return found

    def test_tiny_task_is_built_on_the_cpu_in_the_dtype_of_its_recipe(self) -> None:
        task = self.tiny()
        assert {p.dtype for p in task.model.parameters()} <= {self.dtype}
        tensors = (*task.model.parameters(), *(t for batch in task.batches for t in _first(batch)))
        assert {t.device.type for t in tensors} == {"cpu"}

    def test_model_can_be_deep_copied_for_each_case(self) -> None:
        task = self.tiny()
        copied = copy.deepcopy(task.model)
        assert [*copied.state_dict()] == [*task.model.state_dict()]

    def test_equal_seeds_give_equal_tasks_and_keep_the_global_random_state(self) -> None:
        before = torch.random.get_rng_state()
        one, two, other = self.tiny(seed=1), self.tiny(seed=1), self.tiny(seed=2)
        assert torch.equal(before, torch.random.get_rng_state())
        assert _all_equal(one, two)
        assert not _all_equal(one, other)

    def test_inputs_are_drawn_and_not_zeros(self) -> None:
        inputs, _ = _first(self.tiny(16).batches[0])
        if inputs.is_floating_point():
            assert abs(inputs.mean()) < 0.2
            assert 0.8 < inputs.std() < 1.2
        else:
            assert inputs.unique().numel() > 4

    def test_the_loss_falls_in_thirty_steps(self) -> None:
        task = self.tiny(8)
        losses = _train(task, steps=32)
        assert sum(losses[-4:]) < sum(losses[:4])

    @pytest.mark.parametrize("precision", list(Precision))
    def test_one_step_runs_at_every_precision(self, precision: Precision) -> None:
        if precision not in self.precisions:
            assert not precision.is_usual or self.workload.precisions
            return
        autocast = {Precision.AMP_FP16: torch.float16, Precision.AMP_BF16: torch.bfloat16}.get(precision)
        if autocast and self.has_lstm and not runs_lstm(autocast):
            pytest.skip(f"oneDNN has no LSTM of {autocast} for this CPU; a GPU runs it")
        case = self.case(precision)
        tiny = self.workload.at(case.recipe).tiny
        assert tiny is not None
        work = move(tiny(4, 0), case, torch.device("cpu"))
        losses = [work.edge_loss(work.step(n), n) for n in range(2)]
        assert all(math.isfinite(x) for x in losses)

    def case(self, precision: Precision) -> Case:
        self.skip_what_torch_lacks()
        return Case(
            workload=self.name, workload_version=1, task=self.workload.tasks[0], precision=precision,
            execution=Execution.EAGER, memory_format=self.profile.memory_format_at(precision),
            batch_size=4, sample_unit=self.workload.sample_unit, **self.workload.recipe.at(precision).fields,
        )  # fmt: skip

    @pytest.mark.skipif(torch.__version__ < OLDEST_TORCH, reason="the fingerprints are of a newer torch")
    def test_change_of_the_computation_requires_a_new_workload_version(self) -> None:
        stored = json.loads(FINGERPRINTS.read_text(encoding="utf-8"))
        found = {"version": self.workload.version, "fingerprint": fingerprint(self.workload)}
        assert stored.get(self.name) == found, (
            "what it computes has changed: raise its version, then run python tests/contracts/fingerprints.py"
        )

    @pytest.mark.slow
    def test_a_full_size_step_runs_on_the_cpu(self) -> None:
        losses = _train(self.workload.build(1, 0), steps=1)
        assert all(torch.isfinite(torch.tensor(losses)))


@cache
def _profiled(name: str) -> WorkloadProfile:
    return trace_workload(load_workload(name), variants_s=0).profile


@cache
def _on_meta(name: str) -> Task:
    """Build a workload once for the tests that only read it: one of 80 layers takes a while even without values."""
    with torch.device("meta"):
        return load_workload(name).build(3, 0)


def _first(batch: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets; if there are several inputs, the first."""
    inputs, targets = batch
    return inputs[0] if isinstance(inputs, tuple) else inputs, targets


def _all_equal(one: Task, two: Task) -> bool:
    left = [*one.model.state_dict().values(), *(t for b in one.batches for t in _first(b))]
    right = [*two.model.state_dict().values(), *(t for b in two.batches for t in _first(b))]
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def _train(task: Task, steps: int) -> list[float]:
    torch.manual_seed(0)
    optimizer = task.optimizer([p for p in task.model.parameters() if p.requires_grad])
    losses = []
    for step in range(steps):
        inputs, targets = task.batches[step % len(task.batches)]
        optimizer.zero_grad()
        loss = task.loss(forward(task.model, inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class StatedContract(WorkloadContract):
    """Subclass this, and state the facts of the workload, computed by hand."""

    shape: tuple[int, ...]
    batches: tuple[int, ...]
    classes: int
    optimizer: tuple[str, float, float | None] = ("Adam", 1e-4, None)
    """Its class, learning rate and momentum."""
    parameters: int
    trainable: int | None = None
    forward_flops: float
    train_ratio = (2.5, 3.0)

    def test_the_parameter_count_matches_the_stated_one(self) -> None:
        assert self.profile.parameters == self.parameters
        assert self.profile.trainable_parameters == (self.trainable or self.parameters)

    def test_forward_flops_match_the_declared_value(self) -> None:
        assert self.profile.forward_flops_per_sample == self.forward_flops

    def test_sample_shape_and_batches_match_the_declared_ones(self) -> None:
        assert self.workload.sample_shape == self.profile.sample_shape == self.shape
        assert self.workload.batches == self.profile.batches == self.batches

    def test_the_number_of_scores_matches_the_stated_classes(self) -> None:
        task = _on_meta(self.name)
        with torch.device("meta"):
            assert forward(task.model, task.batches[0][0]).shape[-1] == self.classes

    def test_the_optimizer_matches_the_stated_one(self) -> None:
        made = self.tiny().optimizer([torch.zeros(1, requires_grad=True)])
        settings = (type(made).__name__, made.defaults["lr"], made.defaults.get("momentum"))
        assert settings == self.optimizer


class TestCnn(StatedContract):
    name = "cnn"
    shape = (1, 28, 28)
    batches = (64, 512, 4096)
    classes = 10
    parameters = 93_322
    forward_flops = 2 * (26 * 26 * 32 * 9 + 11 * 11 * 64 * 288 + 3 * 3 * 64 * 576 + 576 * 64 + 64 * 10)


class TestLstm(StatedContract):
    name = "lstm"
    shape = (20,)
    batches = (64, 512, 4096)
    classes = 1000
    parameters = 389_096
    forward_flops = 5_242_880 + 2 * 128 * 1000


class TestVgg16(StatedContract):
    name = "vgg16"
    shape = (3, 224, 224)
    batches = (32, 64, 128)
    classes = 1000
    optimizer = ("SGD", 0.01, 0.9)
    parameters = 138_357_544
    forward_flops = 30_940_528_640

    def test_training_an_image_takes_the_published_flops(self) -> None:
        assert self.profile.train_flops_per_sample == 92_648_177_664

    def test_its_convolutions_are_3x3_and_its_memory_traffic_is_as_derived(self) -> None:
        flops = _flops_by_kind(self.profile)
        assert flops[OperatorKind.CONV3X3] == pytest.approx(91.906e9, rel=1e-4)
        assert flops[OperatorKind.MATMUL] == pytest.approx(0.742e9, rel=1e-3)
        assert flops[OperatorKind.CONV] == 0
        per_sample, fixed = _bytes(self.profile)
        assert per_sample == pytest.approx(0.641e9, rel=0.03)
        assert fixed == pytest.approx(1.660e9, rel=0.001)
        assert sum(o.count for o in self.profile.train) == pytest.approx(105, rel=0.06)

    def test_parameter_names_match_torchvision(self) -> None:
        names = {n for n, _ in _on_meta(self.name).model.named_parameters()}
        convolutions = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
        modules = [*(f"features.{n}" for n in convolutions), *(f"classifier.{n}" for n in (0, 3, 6))]
        assert names == {f"{m}.{kind}" for m in modules for kind in ("weight", "bias")}


class TestSimpleCnn(StatedContract):
    name = "simple_cnn"
    shape = (3, 28, 28)
    batches = (64, 512, 4096)
    classes = 10
    parameters = 422_218
    forward_flops = 2 * (28 * 28 * 32 * 27 + 14 * 14 * 64 * 288 + 3136 * 128 + 128 * 10)


class TestLstmLarge(StatedContract):
    name = "lstm_large"
    shape = (128,)
    batches = (32, 64, 256)
    classes = 10_000
    parameters = 37_283_600
    forward_flops = 128 * 2 * (2 * 4096 * 2048 + 1024 * 10_000)


class TestRnnCell(StatedContract):
    name = "rnn_cell"
    shape = (20,)
    batches = (64, 512)
    classes = 1000
    parameters = 290_024
    forward_flops = 2 * (20 * 2 * 128 * 128 + 128 * 1000)


class TestLstmCell(StatedContract):
    name = "lstm_cell"
    shape = (20,)
    batches = (64, 512)
    classes = 1000
    parameters = 389_096
    forward_flops = 2 * (20 * 2 * 128 * 512 + 128 * 1000)

    def test_lstm_cell_matches_the_fused_lstm(self) -> None:
        """One cell written out gives the same numbers as torch's own LSTM with the same weights."""
        from gpubench_workloads.lstm_cell import GatedCell

        torch.manual_seed(0)
        cell, fused = GatedCell(8), torch.nn.LSTM(8, 8, batch_first=True)
        fused.load_state_dict({
            "weight_ih_l0": cell.inputs.weight, "bias_ih_l0": cell.inputs.bias,
            "weight_hh_l0": cell.hidden.weight, "bias_hh_l0": cell.hidden.bias,
        })  # fmt: skip
        x = torch.randn(3, 5, 8)
        torch.testing.assert_close(cell(x), fused(x)[0])


class TestStackedLstm(StatedContract):
    name = "stacked_lstm"
    is_traced = False  # as lstm_cell
    shape = (20,)
    batches = (64, 512)
    classes = 1000
    parameters = 521_192
    forward_flops = 2 * (20 * 2 * 2 * 128 * 512 + 128 * 1000)


class TestVgg16Transfer(StatedContract):
    name = "vgg16_transfer"
    shape = (3, 224, 224)
    batches = (32, 64, 128)
    classes = 10
    parameters = 14_714_688 + 6_425_354
    trainable = 6_425_354
    forward_flops = 30_693_261_312 + 2 * (25_088 * 256 + 256 * 10)
    train_ratio = (1.0, 1.01)

    def test_the_convolutions_keep_nothing_for_a_backward_pass(self) -> None:
        assert self.profile.saved_bytes_per_sample < 4 * 1.1 * (25_088 + 256 + 10)
        task = self.tiny()
        task.loss(task.model(task.batches[0][0]), task.batches[0][1]).backward()
        assert all(p.grad is None for p in task.model.features.parameters())  # type: ignore[union-attr]


class TestResnet50Transfer(StatedContract):
    name = "resnet50_transfer"
    is_traced = False  # as vgg16_transfer and resnet50
    shape = (3, 224, 224)
    batches = (32, 64, 128)
    classes = 10
    parameters = 25_557_032 - 2048 * 1000 - 1000 + 20_490
    trainable = 20_490
    forward_flops = 8_178_368_512 - 2 * 2048 * 990
    train_ratio = (1.0, 1.01)

    def test_a_training_step_does_not_change_frozen_statistics(self) -> None:
        task = self.tiny()
        before = copy.deepcopy(task.model.features.state_dict())  # type: ignore[union-attr]
        task.model.train()
        task.loss(task.model(task.batches[0][0]), task.batches[0][1]).backward()
        after = task.model.features.state_dict()  # type: ignore[union-attr]
        assert all(torch.equal(before[name], value) for name, value in after.items())
        assert all(p.grad is None for p in task.model.features.parameters())  # type: ignore[union-attr]


class TestBertTransfer(StatedContract):
    name = "bert_transfer"
    is_traced = False  # as vgg16_transfer and bert_base
    shape = (384,)
    batches = (8, 16, 32)
    classes = 2
    optimizer = ("AdamW", 1e-4, None)
    parameters = 109_483_778
    trainable = 768 * 768 + 768 + 768 * 2 + 2
    train_ratio = (1.0, 1.01)

    @property
    def forward_flops(self) -> float:
        """As many as those of bert_base, because pooler and head are the same."""
        return load_profiles()["bert_base"].forward_flops_per_sample

    def test_the_encoder_keeps_nothing_for_a_backward_pass_and_drops_nothing(self) -> None:
        task = self.tiny()
        task.model.train()
        tokens, targets = task.batches[0]
        assert torch.equal(task.model(tokens), task.model(tokens))
        task.loss(task.model(tokens), targets).backward()
        assert all(p.grad is None for p in task.model.encoder.parameters())  # type: ignore[union-attr]
        last_states = 4 * 384 * 768  # kept whole for the gradient of the pooler, which reads the first token
        assert self.profile.saved_bytes_per_sample < 1.01 * last_states


class TestResnet50(StatedContract):
    name = "resnet50"
    shape = (3, 224, 224)
    batches = (32, 64, 128)
    classes = 1000
    optimizer = ("SGD", 0.01, 0.9)
    parameters = 25_557_032
    forward_flops = 8_178_368_512

    def test_its_work_is_as_derived(self) -> None:
        flops = _flops_by_kind(self.profile)
        assert flops[OperatorKind.CONV3X3] == pytest.approx(9.017e9, rel=1e-3)
        assert flops[OperatorKind.CONV] == pytest.approx(15.270e9, rel=1e-3)
        assert flops[OperatorKind.MATMUL] == pytest.approx(0.012e9, rel=0.03)
        per_sample, fixed = _bytes(self.profile)
        assert per_sample == pytest.approx(0.910e9, rel=0.01)
        assert fixed == pytest.approx(0.307e9, rel=0.01)
        assert sum(o.count for o in self.profile.train) == pytest.approx(460, rel=0.01)

    def test_parameter_names_match_torchvision(self) -> None:
        names = [n for n, _ in _on_meta(self.name).model.named_parameters()]
        assert len(names) == 161
        for name in ("conv1.weight", "layer1.0.conv1.weight", "layer1.0.downsample.0.weight",
                     "layer2.0.downsample.1.bias", "layer3.5.bn3.weight", "layer4.2.conv3.weight", "fc.bias"):  # fmt: skip
            assert name in names

    def test_the_stride_is_on_the_3x3_convolution(self) -> None:
        block = _on_meta(self.name).model.get_submodule("layer2.0")
        assert block.conv1.stride == (1, 1)
        assert block.conv2.stride == (2, 2)


class TestBertBase(StatedContract):
    name = "bert_base"
    shape = (384,)
    batches = (8, 16, 32)
    classes = 2
    optimizer = ("AdamW", 1e-4, None)
    parameters = 109_482_240 + 2 * 768 + 2
    forward_flops = 12 * (2 * 384 * 12 * 768 * 768 + 2 * 2 * 384 * 384 * 768) + 2 * 768 * 768 + 2 * 768 * 2


class TestTransformer(StatedContract):
    name = "transformer"
    shape = (1024,)
    batches = (4, 8, 16)
    classes = 50_257
    optimizer = ("AdamW", 1e-4, None)
    parameters = 124_439_808
    forward_flops = 12 * (2 * 1024 * 12 * 768 * 768 + 2 * 2 * 1024 * 1024 * 768) + 2 * 1024 * 768 * 50_257

    def test_the_first_loss_is_near_that_of_a_uniform_guess(self) -> None:
        task = self.tiny()
        with torch.no_grad():
            loss = task.loss(task.model(task.batches[0][0]), task.batches[0][1])
        assert loss.item() == pytest.approx(math.log(64), abs=0.2)

    def test_a_token_attends_only_to_earlier_ones(self) -> None:
        task = self.tiny()
        tokens = task.batches[0][0]
        changed = tokens.clone()
        changed[:, -1] = (changed[:, -1] + 1) % 64
        with torch.no_grad():
            torch.testing.assert_close(task.model(tokens)[:, :-1], task.model(changed)[:, :-1])


class LlamaContract(StatedContract):
    """A decoder that returns its loss, never scores; a CPU step is feasible only for its tiny preset."""

    shape = (2048,)
    optimizer = ("AdamW", 1e-4, None)
    classes = 0
    layers: int
    width: int
    forward_width: int
    narrow: int

    @property
    def forward_flops(self) -> float:  # type: ignore[override]
        """Two per weight and token, plus both attention products over the whole square."""
        weights = self.layers * (
            2 * self.width * (self.width + self.narrow) + 3 * self.width * self.forward_width
        )
        length = self.shape[0]
        attention = self.layers * 2 * 2 * length * length * self.width
        return 2.0 * length * (weights + self.adapters + 128_256 * self.width) + attention

    adapters = 0

    def test_the_number_of_scores_matches_the_stated_classes(self) -> None:
        """The tiny model runs here; the test of the fingerprint runs the full one."""
        task = self.tiny()
        assert forward(task.model, task.batches[0][0]).shape == ()

    def test_the_shipped_profile_matches_a_new_trace(self) -> None:
        """Compare what needs no trace; tracing the whole model takes a minute and is for the slow tests."""
        shipped = load_profiles()[self.name]
        assert shipped.parameters == self.parameters
        assert shipped.forward_flops_per_sample == pytest.approx(self.forward_flops, rel=1e-12)
        assert {v.recipe for v in shipped.variants} == {*self.workload.variants}

    @property
    def profile(self) -> WorkloadProfile:
        return load_profiles()[self.name]

    @pytest.mark.slow
    def test_the_full_shipped_profile_matches_a_new_trace(self) -> None:
        shipped, traced = load_profiles()[self.name], _profiled(self.name)
        bare = [msgspec.structs.replace(each, memory=(), variants=()) for each in (shipped, traced)]
        assert bare[0] == bare[1]
        kept = {(step.task, step.is_amp, step.recipe): step for step in shipped.memory}
        for two in traced.memory:
            one = kept[two.task, two.is_amp, two.recipe]
            assert one.peak(1).at(1) == pytest.approx(two.peak(1).at(1), rel=1e-3)

    def test_the_parameter_count_matches_the_stated_one(self) -> None:
        model = _on_meta(self.name).model
        assert sum(p.numel() for p in model.parameters()) == self.parameters
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert trained == self.profile.trainable_parameters == (self.trainable or self.parameters)

    def test_a_full_size_step_runs_on_the_cpu(self) -> None:
        """A step takes minutes and 16 GB, so only a GPU runs it; its memory is traced."""
        assert self.profile.memory

    def test_every_recipe_computes_the_same_loss_and_gradients(self) -> None:
        found = []
        for how, chunks in product(CHECKPOINTING, (1, 3)):
            recipe = msgspec.structs.replace(self.workload.recipe, checkpointing=how, loss_chunks=chunks)
            made = self.workload.at(recipe).tiny
            assert made is not None
            task = made(2, 0)
            task.model.float()
            loss = task.loss(forward(task.model, task.batches[0][0]), task.batches[0][1])
            loss.backward()
            found.append((loss.detach(), [p.grad for p in task.model.parameters() if p.requires_grad]))
        for loss, gradients in found[1:]:
            torch.testing.assert_close(loss, found[0][0])
            torch.testing.assert_close(gradients, found[0][1])


class TestLlama1b(LlamaContract):
    name = "llama_1b"
    batches = (1, 4, 8)
    layers, width, forward_width, narrow = 16, 2048, 8192, 512
    parameters = 1_235_814_400


class OfLlama8b:
    """The sizes of its 32 layers."""

    layers, width, forward_width, narrow = 32, 4096, 14_336, 1024
    parameters = 8_030_261_248


class WithAdapters(OfLlama8b):
    """The same over a frozen base."""

    batches = (1, 2, 4)
    adapters = trainable = 13_631_488
    parameters = OfLlama8b.parameters + adapters
    train_ratio = (2.0, 2.1)


class TestLlama8bLora(WithAdapters, LlamaContract):
    name = "llama_8b_lora"

    def test_its_memory_matches_the_chunked_reference(self) -> None:
        """Checkpointed, 2,048 tokens: 16.0, 17.0 and 18.9 GiB at a batch of 1, 2 and 4 in eight chunks.

        These have unfused norms; fused norms keep 49 MiB less per sequence.
        """
        (train,) = self.profile.memory
        peaks = [train.peak(batch).at(batch) / 2**30 + batch * 49 / 1024 for batch in (1, 2, 4)]
        assert peaks == pytest.approx([16.0, 17.0, 18.9], abs=0.1)

    @pytest.mark.slow
    def test_memory_without_loss_chunks_matches_the_reference(self) -> None:
        """Without chunks, the reference has 18.5, 22.0 and 29.0 GiB."""
        (train,) = profile_of(self.name, {"loss_chunks": 1}).memory
        peaks = [train.peak(batch).at(batch) / 2**30 for batch in (1, 2, 4)]
        assert peaks == pytest.approx([18.5, 22.0, 29.0], rel=0.01)


class TestLlama8bQlora(WithAdapters, LlamaContract):
    name = "llama_8b_qlora"

    @property
    def dtype(self) -> torch.dtype:
        """The type as built, because its base is quantized on the device."""
        return torch.bfloat16

    def test_its_memory_matches_the_chunked_reference(self) -> None:
        """It is LoRA's, minus what 4 bits save, plus the largest layer unpacked through 64-bit indices.

        By hand: 6,979,321,856 weights of the blocks at 2 bytes become 0.5 + 1/64 bytes plus a factor of 2
        bytes for each 16,384.
        """
        (train,) = self.profile.memory
        (lora,) = load_profiles()["llama_8b_lora"].memory
        spared = 32 * 218_103_808 * (2 - 0.5 - 1 / 64 - 2 / 16_384)
        assert lora.weights_bytes - train.weights_bytes == pytest.approx(spared, rel=1e-4)
        for batch in (1, 2, 4):
            more = train.peak(batch).at(batch) - (lora.peak(batch).at(batch) - spared)
            assert 0 < more < 14 * 4096 * 14_336, "at most what one layer takes to unpack"

    def test_one_step_runs_at_every_precision(self) -> None:  # type: ignore[override]
        pytest.importorskip("torchao", exc_type=ImportError)
        assert self.precisions == (Precision.BF16,)
        super().test_one_step_runs_at_every_precision(Precision.BF16)


class TestLlama8bFsdp(OfLlama8b, LlamaContract):
    name = "llama_8b_fsdp"
    shape = (8192,)
    batches = (1, 2)


class TestLlama70b(LlamaContract):
    name = "llama_70b"
    shape = (8192,)
    batches = (1, 2)
    layers, width, forward_width, narrow = 80, 8192, 28_672, 1024
    parameters = 70_553_706_496


class TestLlama8b(OfLlama8b, LlamaContract):
    name = "llama_8b"
    shape = (512,)
    batches = (1, 8, 32)

    @property
    def forward_flops(self) -> float:  # type: ignore[override]
        """The prompt alone: every layer for every token, the head for the last one."""
        layers = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14_336)
        attention = 32 * 2 * 2 * 512 * 512 * 4096
        return 2.0 * 512 * layers + attention + 2 * 128_256 * 4096

    def test_the_number_of_scores_matches_the_stated_classes(self) -> None:
        task = _on_meta(self.name)
        with torch.device("meta"):
            scores = task.model(task.batches[0][0])
            assert scores.shape == (3, 128_256)
            assert task.model.next(scores.argmax(-1), torch.tensor([512])).shape == (3, 128_256)  # type: ignore[operator]

    def test_the_parameter_count_matches_the_stated_one(self) -> None:
        model = _on_meta(self.name).model
        assert sum(p.numel() for p in model.parameters()) == self.profile.parameters == self.parameters

    def test_training_computes_up_to_three_times_the_forward_pass(self) -> None:
        assert self.workload.tasks == (TaskKind.INFER,)
        assert self.profile.train == ()

    def test_the_loss_falls_in_thirty_steps(self) -> None:
        with pytest.raises(MisuseError, match="no parameter"):
            profile_workload(
                replace(self.workload, build=self.workload.tiny, tasks=(TaskKind.TRAIN,), variants=())  # type: ignore[arg-type]
            )

    def test_every_recipe_computes_the_same_loss_and_gradients(self) -> None:
        """tests/measure/test_generation.py compares the cached results with the whole sequence."""
        assert "checkpointing" not in self.workload.settings

    def test_a_token_reads_every_weight_and_the_cache(self) -> None:
        work = self.profile.decode
        assert work is not None
        assert work.weight_bytes == 2 * (self.parameters - 128_256 * 4096)
        assert work.cache_bytes_per_token == 2 * 2 * 32 * 8 * 128
        assert work.flops_per_token == pytest.approx(work.weight_bytes, rel=1e-3)


class TestVitB16(StatedContract):
    name = "vit_b16"
    shape = (3, 224, 224)
    batches = (32, 64, 128)
    classes = 1000
    optimizer = ("AdamW", 1e-4, None)
    parameters = 86_567_656
    forward_flops = (
        12 * (2 * 197 * 12 * 768 * 768 + 2 * 2 * 197 * 197 * 768) + 2 * 196 * 768 * 768 + 2 * 768 * 1000
    )


class TestUnetDdpm(StatedContract):
    name = "unet_ddpm"
    is_traced = False  # convolutions as in resnet50, attention as in vit_b16
    shape = (3, 64, 64)
    batches = (16, 32, 64)
    classes = 64  # the width of the predicted noise
    parameters = 35_746_307  # as Ho and others count their network of CIFAR-10: 35.7 M
    forward_flops = 46_740_799_488


class TestAugment(StatedContract):
    """An input pipeline has nothing to train, and its operations depend on its random numbers."""

    name = "augment"
    shape = (3, 375, 500)
    batches = (64, 256)
    parameters = 0
    forward_flops = pytest.approx(0, abs=1e4)  # geometry and colors are hardly any arithmetic

    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("kornia")

    def test_training_computes_up_to_three_times_the_forward_pass(self) -> None:
        assert self.workload.tasks == (TaskKind.INFER,)
        assert self.profile.train == ()

    test_the_number_of_scores_matches_the_stated_classes = None  # type: ignore[assignment]  # it has none

    def test_the_optimizer_matches_the_stated_one(self) -> None:
        assert [*self.tiny().model.parameters()] == []

    def test_the_loss_falls_in_thirty_steps(self) -> None:
        with pytest.raises(MisuseError, match="no parameter"):
            profile_workload(replace(self.workload, tasks=(TaskKind.TRAIN,)))

    def test_a_full_size_step_runs_on_the_cpu(self) -> None:
        task = self.workload.build(2, 0)
        with torch.inference_mode():
            assert task.model(task.batches[0][0]).shape == (2, 3, 224, 224)

    def test_output_images_have_the_expected_size_and_mean(self) -> None:
        task = self.tiny(8)
        with torch.inference_mode(), seeded(0):
            out = task.model(task.batches[0][0])
        assert out.shape == (8, 3, 16, 16)
        assert out.dtype is torch.float32
        assert out.mean().abs() < 0.5
        assert out.abs().max() <= 2.5

    def test_each_image_has_its_own_random_numbers(self) -> None:
        task = self.tiny(2)
        twice = task.batches[0][0][:1].repeat(2, 1, 1, 1)
        with torch.inference_mode(), seeded(0):
            one, two = task.model(twice)
        assert not torch.equal(one, two)


class TestAugmentVideo(TestAugment):
    """The same for clips; all frames of a clip share their random parameters."""

    name = "augment_video"
    shape = (16, 3, 256, 340)
    batches = (4, 16)

    def test_a_full_size_step_runs_on_the_cpu(self) -> None:
        task = self.workload.build(1, 0)
        with torch.inference_mode():
            assert task.model(task.batches[0][0]).shape == (1, 16, 3, 224, 224)

    def test_output_images_have_the_expected_size_and_mean(self) -> None:
        task = self.tiny(3)
        with torch.inference_mode(), seeded(0):
            out = task.model(task.batches[0][0])
        assert out.shape == (3, 4, 3, 16, 16)
        assert out.abs().max() <= 2.5

    def test_each_image_has_its_own_random_numbers(self) -> None:
        """Clips differ, but frames of a clip do not: four equal frames stay equal."""
        task = self.tiny(2)
        twice = task.batches[0][0][:1, :1].repeat(2, 4, 1, 1, 1)
        with torch.inference_mode(), seeded(0):
            one, two = task.model(twice)
        assert not torch.equal(one, two)
        assert torch.allclose(one, one[:1].expand_as(one), atol=1e-5)


@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_torchvision_agrees_on_every_parameter(name: str) -> None:
    models = pytest.importorskip("torchvision.models", exc_type=ImportError)
    with torch.device("meta"):
        ours = load_workload(name).build(1, 0).model
        theirs = getattr(models, name)()
    assert {n: tuple(p.shape) for n, p in ours.named_parameters()} == {
        n: tuple(p.shape) for n, p in theirs.named_parameters()
    }


def _flops_by_kind(profile: WorkloadProfile) -> dict[OperatorKind, float]:
    return {
        kind: sum(o.count * o.flops_per_sample for o in profile.train if o.kind is kind)
        for kind in OperatorKind
    }


def _bytes(profile: WorkloadProfile) -> tuple[float, float]:
    """Return the bytes per sample and per step, without those of the optimizer."""
    rest = [o for o in profile.train if o.kind is not OperatorKind.OPTIMIZER]
    return sum(o.count * o.bytes_per_sample for o in rest), sum(o.count * o.bytes_fixed for o in rest)


def _stated() -> set[str]:
    kinds = [kind for base in (StatedContract, LlamaContract, TestAugment) for kind in base.__subclasses__()]
    return {kind.name for kind in kinds if hasattr(kind, "name")}


for _name in sorted({*workload_names()} - _stated()):  # nothing is stated about these
    _title = f"Test{_name.title().replace('_', '')}"
    globals()[_title] = type(_title, (WorkloadContract,), {"name": _name, "__module__": __name__})


def test_every_workload_keeps_the_contract() -> None:
    held = {kind.name for kind in globals().values() if hasattr(kind, "test_inputs_are_drawn_and_not_zeros")
            and hasattr(kind, "name")}  # fmt: skip
    assert held == {*workload_names()}
