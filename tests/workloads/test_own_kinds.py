"""Many kinds of user models: loaded, traced and stepped on the CPU, and ranked."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import forked_child
import msgspec
import pytest
import torch
from command import IN_SHORT, WITH_BF16, gpubench
from own_kinds import (
    CARRIES,
    DEEP_BY_PART,
    EXPERTS,
    HEAD,
    IN_A_GROUP,
    KINDS,
    LAYER_DROP,
    LOOSE,
    MOVED,
    ONE_MODEL_BY_PART,
    PROMOTED,
    RANDOM,
    TWO_TABLES,
    WITH_A_LOSS,
    pair,
)
from processor import runs_lstm
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from gpubench import rank
from gpubench.compiler import uncompiled
from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.measure import guards
from gpubench.measure.step import copied, move
from gpubench.models import Case, Execution, MemoryFormat, Precision, TaskKind, WeightType, WorkloadProfile
from gpubench.predict.question import question_of
from gpubench.profile import liveness
from gpubench.profile.operators import refusal, seen_on_meta
from gpubench.profile.trace import Traced, trace_workload
from gpubench.tensors import off_gpu, tensors_in, tensors_of
from gpubench.workload import Workload, set_mode

BATCH = 8
CASE = Case(
    workload="mine.py",
    workload_version=1,
    task=TaskKind.TRAIN,
    precision=Precision.AMP_BF16,
    execution=Execution.EAGER,
    memory_format=None,
    batch_size=BATCH,
    sample_unit="sample",
)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Workload]:
    """Return a function that loads the workload of a file with the given source."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def load_it(source: str) -> Workload:
        path = tmp_path / "mine.py"
        path.write_text(HEAD + source, encoding="utf-8")
        return load_workload(str(path))

    return load_it


def trace_as_built(workload: Workload) -> Traced:
    """Trace a workload as built; other ways to train it would be left out if they failed."""
    return trace_workload(workload, variants_s=0)


def profile_as_built(workload: Workload) -> WorkloadProfile:
    return trace_as_built(workload).profile


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_user_model_is_checked_and_can_step(load, kind):
    workload = load(KINDS[kind])
    task = workload.build(BATCH, 0)
    autocast = kind not in {"carried", "sparse buffer", "sparse by row"} or (
        kind == "carried" and runs_lstm(torch.bfloat16)
    )
    case = CASE if autocast else msgspec.structs.replace(CASE, precision=Precision.FP32)
    made = lambda: move(copied(task), case, torch.device("cpu"))  # noqa: E731
    work = made()
    expected = guards.expected_of(task, case)
    assert (expected.unchecked is not None) is (kind in RANDOM)
    assert expected.is_whole is (kind in {"not cut", "edges", "nodes", "moves its tensors"})
    error = guards.reference_errors(work, task, expected).loss
    assert error is None if kind in RANDOM else error <= Precision.AMP_BF16.facts.loss_error
    work = made()  # because the check may leave state in the model
    before = guards.fingerprint(work.model)
    assert [work.edge_loss(work.step(index), index) for index in range(2)] > [0, 0]
    assert guards.has_moved(work.model, before)


@pytest.mark.parametrize("kind", RANDOM)
def test_detecting_random_numbers_does_not_depend_on_chance(load, kind):
    """A layer that is dropped half of the time gives two equal losses half of the time."""
    task = load(KINDS[kind]).build(BATCH, 0)
    assert {guards.expected_of(task, CASE).unchecked for _ in range(10)} == {guards.RANDOM}


def test_a_check_restores_the_settings_that_it_turns_off(load):
    for kind in ("own rate", "by mode"):
        model = load(KINDS[kind]).build(BATCH, 0).model.train()
        rates = [vars(module) | {"p": getattr(module, "p", None)} for module in model.modules()]
        with guards.without_dropout(model, train=True):
            assert model.training
            assert [vars(m) | {"p": getattr(m, "p", None)} for m in model.modules()] != rates
        assert [vars(m) | {"p": getattr(m, "p", None)} for m in model.modules()] == rates


def test_check_leaves_no_state_in_a_stateful_model(load):
    task = load(KINDS["carried"]).build(BATCH, 0)
    assert guards.expected_of(task, CASE).unchecked is None
    assert task.model.state is None
    assert copied(task).model.state is None


@pytest.mark.parametrize("kind", ["carried", *CARRIES, "dict", "layer drop", "own generator"])
def test_state_carried_between_steps_is_detected(load, kind):
    expected = guards.expected_of(load(KINDS[kind]).build(BATCH, 0), CASE)
    assert expected.carries is (kind in {"carried", "own generator", *CARRIES})
    assert expected.rebinds is (kind in {"carried", *CARRIES})


def test_model_shared_by_a_file_is_copied_for_each_case(load):
    task = load(KINDS["one model"]).build(BATCH, 0)
    other = copied(task)
    move(other, CASE, torch.device("cpu")).step(0)
    assert all(a is not b for a, b in zip(task.model.parameters(), other.model.parameters(), strict=True))


def test_repeated_builds_have_the_weights_of_the_first(load):
    drawn = pair(
        head="GENERATOR = torch.Generator().manual_seed(0)\n",
        init=(
            "self.second.weight.data = torch.randn(4, 16, generator=GENERATOR); "
            "self.first.weight.data = torch.tensor(np.random.rand(16, 8) + random.random()).float()"
        ),
    )
    task = load(drawn).build(BATCH, 0)
    weights = zip(task.model.parameters(), copied(task).model.parameters(), strict=True)
    assert all(map(torch.equal, *zip(*weights, strict=True)))


def test_model_compiled_by_its_author_is_uncompiled_for_checks(load):
    workload = load(KINDS["compiled"])
    traced = sys.modules["gpubench_own_mine"].TRACED
    with uncompiled():
        move(copied(workload.build(BATCH, 0)), CASE, torch.device("cpu")).step(0)
    assert not traced or not hasattr(torch.compiler, "set_stance")


def test_a_frozen_part_stays_in_the_mode_set_by_its_author(load):
    model = load(KINDS["frozen"]).build(BATCH, 0).model
    assert [m.training for m in set_mode(model, train=True).children()] == [False, True]
    assert not any(m.training for m in set_mode(model, train=False).modules())
    assert all(m.training for m in set_mode(model, train=True).modules()), "as after from_pretrained"


def test_gpu_calls_of_a_user_model_stay_on_the_cpu_while_disabled():
    x = torch.ones(2)
    with off_gpu():
        assert x.cuda() is x
        assert x.to("cuda") is x
        assert x.to(0, non_blocking=True) is x
        assert x.to(device=torch.device("cuda", 0)) is x
        assert x.to("cuda", torch.float64).dtype is torch.float64
        assert x.to("cuda", dtype=torch.float64).dtype is torch.float64
        assert x.to(torch.float64).dtype is torch.float64
        assert x.to("cpu") is x
        assert torch.zeros(2, device="cuda").is_cpu
        assert nn.Linear(2, 2).cuda().weight.is_cpu
        torch.cuda.set_device(0)
        with torch.cuda.device(0):
            assert x.to(torch.cuda.current_device()) is x
        torch.set_default_device("cuda")
        assert torch.zeros(2).is_cpu
    with off_gpu(), torch.device("meta"), off_gpu(), off_gpu():
        assert torch.zeros(2, device="cuda:0").is_meta
        torch.set_default_device("cuda")
        assert torch.zeros(2).is_meta
    assert torch.zeros(2).is_cpu


@pytest.mark.parametrize("kind", ["derivative", "complex weights", "sparse gradients"])
def test_a_traced_forward_pass_finds_the_state_it_needs(load, kind):
    profile = profile_as_built(load(KINDS[kind]))
    assert profile.train_flops_per_sample > profile.forward_flops_per_sample > 0


@pytest.mark.parametrize("kind", ["lazy", "masked encoder", "lazy masked encoder"])
def test_lazy_layers_and_masked_encoders_are_traced_without_values(load, kind, monkeypatch):
    built = []
    monkeypatch.setattr(liveness, "_without_values", partial(_noting, liveness._without_values, built))
    traced = trace_as_built(load(KINDS[kind]))
    assert traced.why_on_cpu is None
    assert traced.profile.memory_untraced is None
    assert {type(each) for each in built} == {FakeTensor}
    sizes = {tensor.fake_device.type for tensor in built}
    assert sizes == {"cpu"}, "like all tensors of a trace, which treats them as a GPU would"


def _noting(build, built, *args):
    task = build(*args)
    built += [*task.model.parameters(), *tensors_of(task.batches)]
    return task


def test_a_step_that_gives_its_values_to_numpy_is_ranked_as_eager(load):
    profile = profile_as_built(load(KINDS["matched on the host"]))
    assert profile.is_eager_only
    assert {step.task for step in profile.memory} == {*TaskKind}


def test_a_model_that_reads_values_only_in_inference_is_trained_in_a_graph(load):
    profile = profile_as_built(load(KINDS["early exit"]))
    assert not profile.is_eager_only
    assert profile.is_eager_in_inference
    assert {step.task for step in profile.memory} == {*TaskKind}
    ways = {task: question_of(profile, None, task=task).execution for task in TaskKind}
    assert ways == {TaskKind.TRAIN: Execution.GRAPH, TaskKind.INFER: Execution.EAGER}


@pytest.mark.parametrize("source", [KINDS["teacher in inference mode"], PROMOTED])
def test_a_step_that_runs_under_a_gpus_autocast_is_offered_amp(load, source):
    profile = profile_as_built(load(source))
    assert profile.why_no_amp is None
    assert {step.is_amp for step in profile.memory} == {False, True}


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_a_models_own_autocast_is_traced_without_values_as_on_a_gpu(load):
    traced = trace_as_built(load(KINDS["own autocast"]))
    assert traced.why_on_cpu is None
    here = traced.profile.memory
    assert here[0].saved == here[1].saved, "with and without the case's autocast"
    named = load(KINDS["own autocast"].replace("(x.device.type", "('cuda'"))
    assert profile_as_built(named).memory == here
    off = load(KINDS["own autocast"].replace("torch.bfloat16", "enabled=False"))
    half = 2 * (8 + 256)  # for the input and ReLU's output, in addition to that output in float32
    saved_bytes = profile_as_built(off).memory[0].saved.bytes_per_sample
    assert here[0].saved.bytes_per_sample == saved_bytes + half


def test_the_state_of_wrapped_optimizers_is_counted(load):
    """The states are Adam's for the biases, and a momentum for the weights."""
    profile = profile_as_built(load(KINDS["two in one"]))
    state_bytes = 4 * (8 * 16 + 16 * 4) + 8 * (16 + 4)
    assert profile.optimizer_bytes_per_parameter * profile.parameters == pytest.approx(state_bytes)
    assert profile.memory_untraced is None
    numbers_of_steps = 2 * 4
    assert profile.memory[0].optimizer_bytes == state_bytes + numbers_of_steps


UNUSED = """
import random
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head, self.unused = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 64)
        self.dropped = nn.Linear(16, 16)
    def forward(self, x):
        x = self.first(x).relu()
        if random.random() < 0.5:
            x = self.dropped(x).relu()
        return self.head(x)
def build(batch_size):
    return Net(), torch.randn(batch_size, 8), torch.zeros(batch_size).long(), nn.CrossEntropyLoss()
"""


def test_weights_that_never_get_a_gradient_have_no_state_but_those_dropped_at_random_do(load):
    profile = profile_as_built(load(UNUSED))
    used = profile.parameters - (16 * 64 + 64)
    numbers_of_steps = 6 * 4
    assert {step.optimizer_bytes for step in profile.memory if step.task is TaskKind.TRAIN} == {
        8 * used + numbers_of_steps
    }


def test_the_products_of_an_optimizer_are_counted_once_per_step(load):
    profile = profile_as_built(load(KINDS["with products"]))
    products = 2 * 2 * (16 * 16 * 8 + 4 * 4 * 16)
    assert sum(each.count * each.flops_fixed for each in profile.train) == products
    assert profile.train_flops_per_sample == 2 * (2 * 8 * 16 + 3 * 16 * 4), "they do not grow with the batch"


@pytest.mark.parametrize("source", [ONE_MODEL_BY_PART, DEEP_BY_PART])
def test_the_state_of_an_optimizer_that_names_the_model_is_counted_if_the_model_is_copied(load, source):
    profile = profile_as_built(load(source))
    assert profile.optimizer_bytes_per_parameter == 8
    state_bytes = 8 * profile.parameters
    assert state_bytes < profile.memory[0].optimizer_bytes < 1.1 * state_bytes, "plus the step counts"


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_stance"), reason="torch 2.4 makes no fused optimizer without a device"
)
def test_the_state_of_an_optimizer_fused_by_its_author_is_traced_without_values(load):
    traced = trace_as_built(load(KINDS["fused by its author"]))
    assert traced.why_on_cpu is None
    assert traced.profile.optimizer_bytes_per_parameter == 8
    capturable = KINDS["fused by its author"].replace("fused", "capturable")
    assert profile_as_built(load(capturable)).optimizer_bytes_per_parameter == 8


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_tensor_of_any_layout_gives_the_tensors_that_own_its_memory():
    index, value = 8, 4
    dense = torch.eye(6)
    sizes = {
        dense.to_sparse(): 6 * (2 * index + value),
        dense.to_sparse_csr(): 7 * index + 6 * (index + value),
        dense.to_sparse_csc(): 7 * index + 6 * (index + value),
        dense.to_sparse_bsr((2, 2)): 4 * index + 3 * (index + 4 * value),
    }
    for tensor, size in sizes.items():
        assert sum(part.nbytes for part in tensors_in([tensor])) == size


def test_a_lazy_layer_takes_the_memory_of_one_with_its_sizes(load):
    sized = KINDS["lazy"]
    for lazy, usual in {
        "LazyConv2d(": "Conv2d(3, ",
        "LazyBatchNorm2d(": "BatchNorm2d(8",
        "LazyLinear(": "Linear(288, ",
    }.items():
        sized = sized.replace(lazy, usual)
    assert "Lazy" not in sized
    lazily, at_once = (profile_as_built(load(source)).memory[0] for source in (KINDS["lazy"], sized))
    assert lazily == at_once, "the batches count, too"


def test_the_memory_of_sparse_gradients_is_traced(load):
    (step, *_) = profile_as_built(load(KINDS["sparse gradients"])).memory
    touched = 2 * (8 + 16 * 4)  # rows of one sample: an index and 16 values each
    dense = 200 * 16 * 4
    assert touched <= step.peak(2).at(2) - step.peak(1).at(1) < dense
    (step, *_) = profile_as_built(load(TWO_TABLES)).memory
    state_bytes = 2 * 4 * (200 * 16 + 100 * 16 + 16 * 4 + 4)
    assert state_bytes <= step.optimizer_bytes < 1.1 * state_bytes, "SparseAdam takes no other gradients"


@pytest.mark.skipif(
    not hasattr(nn.functional, "grouped_mm"), reason="before torch 2.10 a CPU has no such kernel"
)
def test_a_product_of_grouped_samples_is_counted_and_its_memory_traced(load):
    profile = profile_as_built(load(EXPERTS))
    assert profile.forward_flops_per_sample == 2 * (8 * 16 + 16 * 16 + 16 * 4)
    assert profile.memory_untraced is None


# Torch before about 2.9 has no rule for an all-reduce on meta, so a formula gives the memory.
ALL_REDUCE_ON_META = torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta")


def test_a_step_without_its_process_group_is_refused_with_a_group_that_works(load):
    with pytest.raises(MisuseError, match="start a group of one process") as refused:
        profile_as_built(load(IN_A_GROUP))
    start = str(refused.value).rpartition("in this file: ")[2]
    traced = profile_as_built(load(f"if not torch.distributed.is_initialized():\n    {start}\n{IN_A_GROUP}"))
    torch.distributed.destroy_process_group()
    assert traced.memory_untraced is None or not ALL_REDUCE_ON_META


def test_an_optimizer_made_by_a_function_updates_as_torch_does_on_a_gpu(load):
    """The function takes no ``fused``; torch then updates all parameters at once, with temporary tensors of their size."""

    def peak(optimizer: str) -> float:
        source = pair(optimizer=optimizer).replace("16", "1600")
        (step, *_) = profile_as_built(load(source)).memory
        return step.peak(1).at(1)

    together = peak("functools.partial(torch.optim.AdamW, foreach=True)")
    assert peak("lambda parameters: torch.optim.AdamW(parameters)") == together
    assert peak("lambda parameters: torch.optim.AdamW(parameters, foreach=False)") != together
    assert peak("torch.optim.AdamW") < together, "this class takes ``fused``"


def test_a_model_stored_mostly_in_half_precision_keeps_its_other_weights(load):
    workload = load(KINDS["mixed types"].replace("(8, 16)", "(8, 64)").replace("(16", "(64"))
    assert workload.recipe.weight_type is WeightType.BFLOAT16
    task = workload.build(BATCH, 0)
    types = [p.dtype for p in task.model.parameters()]
    assert {*types} == {torch.bfloat16, torch.float32}
    case = msgspec.structs.replace(CASE, precision=Precision.BF16, weight_type=WeightType.BFLOAT16)
    work = move(copied(task), case, torch.device("cpu"))
    assert [p.dtype for p in work.model.parameters()] == types
    assert guards.reference_errors(work, task).loss <= Precision.BF16.facts.loss_error
    assert work.edge_loss(work.step(0), 0) > 0
    whole = move(load(KINDS["lazy"]).build(BATCH, 0), case, torch.device("cpu"))
    assert {p.dtype for p in whole.model.parameters()} == {torch.bfloat16}, "a float32 model is cast"
    assert {t.dtype for t in tensors_of(whole.batches[0][0])} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("kind", "forward_flops"),
    [("generates", 5 * 2 * (8 * 16 + 16 * 4)), ("complex product", 2 * (8 * 16 + 16 * 4) + 8 * 16 * 16)],
)
def test_products_in_inference_mode_and_of_complex_numbers_are_counted(load, kind, forward_flops):
    assert profile_as_built(load(KINDS[kind])).forward_flops_per_sample == forward_flops


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", ["to_sparse()", "to_sparse_csr()"])
@pytest.mark.parametrize("product", ["torch.sparse.mm(self.links, h.T)", "self.links @ h.T"])
def test_a_sparse_product_counts_only_the_stored_elements(load, layout, product):
    source = pair(
        init=f"self.register_buffer('links', torch.eye(16).{layout})",
        body=f"h = self.first(x); return self.second(({product}).T)",
    )
    profile = profile_as_built(load(source))
    first, links, second = 2 * 8 * 16, 2 * 16, 2 * 16 * 4
    assert profile.forward_flops_per_sample == first + links + second
    assert profile.train_flops_per_sample == 2 * first + 2 * links + 3 * second


def test_attention_that_trains_only_on_a_gpu_is_refused_with_one_that_does_not():
    error = NotImplementedError("FlexAttention does not support backward on CPU. Please use another device.")
    assert "F.scaled_dot_product_attention" in refusal("mine.py", error)


@pytest.mark.parametrize("several", ["{'optimizer': %s}", "[%s]", "(%s, None)"])
def test_several_optimizers_are_refused_with_the_form_of_one_that_holds_them(load, several):
    """A hook of Lightning returns these forms."""
    source = pair(optimizer=f"lambda given: {several % 'torch.optim.Adam(given)'}")
    with pytest.raises(MisuseError, match=r"mine\.py: .*return one optimizer.*that holds several"):
        profile_as_built(load(source))


def test_a_batch_in_the_second_dimension_is_refused_with_what_forward_may_do(load):
    source = pair().replace(
        "torch.randn(n, 8), torch.randint(4, (n,))", "torch.randn(8, n), torch.randint(4, (3 * n,))"
    )
    with pytest.raises(MisuseError, match=r"\(8, 2\).*must be the batch \(forward may transpose it\)"):
        load(source)


def test_sparse_gradients_with_the_default_optimizer_are_refused_with_one_that_works(load):
    source = KINDS["sparse gradients"].replace(", functools.partial(torch.optim.SGD, lr=0.1)", "")
    with pytest.raises(MisuseError, match=r"mine\.py: .*sparse gradients.*torch\.optim\.SGD"):
        profile_as_built(load(source))


# --- a loss with tensors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOOSE)
def test_loss_with_an_untracked_tensor_is_refused_with_the_fix(load, kind):
    with pytest.raises(MisuseError, match=r"mine\.py: the loss uses a tensor .*nn\.Module") as refused:
        profile_as_built(load(LOOSE[kind]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", MOVED)
def test_loss_that_moves_its_own_tensor_is_accepted(load, kind):
    assert profile_as_built(load(MOVED[kind])).memory


@pytest.mark.parametrize(
    ("kind", "parameters", "trained"),
    [
        ("class weights", 36, 36),
        ("centers", 78, 78),
        ("perceptual", 248, 72),
        ("method of the model", 36, 36),
        ("discriminator", 3259, 3259),
        ("discriminator, old weight norm", 3267, 3267),
    ],
)
def test_the_parameters_of_a_loss_count_and_its_memory_is_traced(load, kind, parameters, trained):
    assert kind in WITH_A_LOSS
    profile = profile_as_built(load(KINDS[kind]))
    assert (profile.parameters, profile.trainable_parameters) == (parameters, trained)
    assert profile.memory_untraced is None
    held = load(KINDS[kind]).build(BATCH, 0).model
    assert profile.memory[0].weights_bytes == sum(t.nbytes for t in (*held.parameters(), *held.buffers()))


def test_a_model_that_copies_a_part_of_itself_is_traced(load):
    profile = profile_as_built(load(KINDS["teacher"]))
    assert (profile.parameters, profile.trainable_parameters) == (2792, 1396)
    assert profile.memory_untraced is None


def test_a_copy_of_a_task_has_a_loss_bound_to_its_model(load):
    for kind in WITH_A_LOSS:
        task = load(KINDS[kind]).build(BATCH, 0)
        other = copied(task)
        one, two = (getattr(each.loss, "__self__", each.loss) for each in (task, other))
        assert two is not one
        assert set(two.parameters()) <= set(other.model.parameters())
        assert set(two.buffers()) <= set(other.model.buffers())


# --- the layout of images, and the whole command ------------------------------------------------------------


def test_a_view_that_needs_contiguous_images_is_detected_in_the_trace(load):
    profile = profile_as_built(load(KINDS["view"]))
    assert {profile.memory_format_at(each) for each in Precision} == {MemoryFormat.CONTIGUOUS}
    sound = profile_as_built(load(KINDS["view"].replace(".view(len(x), -1)", ".flatten(1)")))
    assert sound.memory_format_at(Precision.AMP_BF16) is MemoryFormat.CHANNELS_LAST


@pytest.mark.usefixtures("traced_here")
def test_a_view_is_measured_and_ranked_contiguous_and_both_say_so(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(HEAD + KINDS["view"], encoding="utf-8")
    command = ("--workload", "./mine.py", "--json")
    quick = ("--device", "cpu", "--micro", "none", "--precision", "amp", "--batch-size", "8")
    program = ("-c", IN_SHORT + WITH_BF16)
    ran = gpubench(None, "run", *quick, *command, cwd=tmp_path, program=program, run=forked_child.run)
    ranked = gpubench(None, "rank", *command, cwd=tmp_path, run=forked_child.run)
    (row,) = json.loads(ran.stdout)["measurements"]
    assert (row["status"], row["case"]["memory_format"]) == ("ok", "contiguous")
    assert "CONTIGUOUS" in {finding["kind"] for finding in row["findings"]}
    monkeypatch.chdir(tmp_path)
    assert {case.memory_format for case in rank("./mine.py", limit=1).cases} == {"contiguous"}
    for done in (ran, ranked):
        assert "its images are kept contiguous" in done.stderr


# --- tensors in any container -------------------------------------------------------------------------------


def test_every_tensor_is_found_and_other_values_are_kept(load):
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert [t.numel() for t in tensors_of(packed)] == [5, 3]  # the values, and the sizes of the batches
    for kind, count in (("list by sample", 2 * BATCH), ("dict", 2), ("dataclass", 2), ("moves itself", 2)):
        assert len(tensors_of(load(KINDS[kind]).build(BATCH, 0).batches[0][1])) == count


@pytest.mark.parametrize("kind", ["moves its tensors", "nodes", "packed sequence", "by name", "inner loop"])
def test_inputs_and_steps_of_any_form_are_traced(load, kind):
    profile = profile_as_built(load(KINDS[kind]))
    assert profile.parameters > 0
    assert profile.train_flops_per_sample > 0


def test_a_shared_model_of_a_file_keeps_its_values_through_a_trace(load):
    """The file holds the inputs, too, so a step cannot be traced as the file builds it."""
    source = KINDS["one model"].replace("torch.randn(n, 8),", "DATA[:n],")
    workload = load("DATA = torch.randn(512, 8)\n" + source)
    profile_as_built(workload)
    task = workload.build(BATCH, 0)
    assert float(task.loss(task.model(task.batches[0][0]), task.batches[0][1]).detach()) > 0


def test_a_layer_that_is_dropped_at_random_is_dropped_in_every_trace_or_in_none(load):
    workload, flops = load(LAYER_DROP), set()
    for state in (0, 1):  # Python's first draw is 0.84 or 0.13
        random.seed(state)
        flops.add(sum(kernel.flops for kernel in seen_on_meta(workload, 2).train))
    assert len(flops) == 1
