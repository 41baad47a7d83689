"""The recipe of a case, from request to model: weights, checkpointing, loss chunks."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from gpubench import memory, predict
from gpubench.cli.app import app
from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.measure.plan import plan
from gpubench.measure.request import RunRequest
from gpubench.measure.step import built, move
from gpubench.models import Checkpointing, Execution, Precision, Trainable, WeightType
from gpubench.options import asked_recipe
from gpubench.profile import classic_names, profile_of, profiles_of


def planned(device, **asked):
    request = RunRequest(**asked)
    profiles = profiles_of(request.workloads, asked_recipe(request), gpu_count=request.gpu_count)
    return plan(request, device, profiles, (device,) * (request.gpus - 1))


def test_a_model_of_a_billion_weights_is_trained_in_bfloat16_and_also_under_amp(h100):
    made = planned(h100, workloads=("llama_1b",), executions=("graph",))
    found = {p.case.precision: p.case for p in made.cases}
    assert {*found} == {Precision.BF16, Precision.AMP_BF16}
    assert found[Precision.BF16].weight_type is WeightType.BFLOAT16
    assert found[Precision.AMP_BF16].weight_type is WeightType.FLOAT32
    assert {c.loss_chunks for c in found.values()} == {8}
    assert {c.checkpointing for c in found.values()} == {Checkpointing.NONE}


def test_the_requested_recipe_is_in_the_case_and_its_profile(h100):
    made = planned(
        h100, workloads=("llama_1b",), executions=("graph",), precisions=("bf16",), checkpointing="full"
    )
    (one,) = made.cases
    assert one.case.checkpointing is Checkpointing.FULL
    assert "full checkpointing" in one.case.label
    usual, again = profile_of("llama_1b"), profile_of("llama_1b", {"checkpointing": "full"})
    assert again.recipe.checkpointing is Checkpointing.FULL
    assert again.train_flops_per_sample == usual.train_flops_per_sample == one.flops_per_sample
    assert one.hardware_flops_per_sample == again.hardware_flops_per_sample
    extra = again.hardware_flops_per_sample - usual.hardware_flops_per_sample
    head = 2 * 2048 * 2048 * 128_256
    last = 16 * 2 * 2048 * 8192 * 2048  # the last product of each layer: nothing needs its output again
    assert extra == pytest.approx(usual.forward_flops_per_sample - head - last)


@pytest.mark.usefixtures("traced_as_asked")
@pytest.mark.parametrize(
    ("name", "asked", "tokens"),
    [
        ("llama_1b", {}, 2048),
        pytest.param("llama_1b", {"context_tokens": 512}, 512, marks=pytest.mark.slow),
        ("vit_b16", {}, None),
        ("llama_8b", {"task": "infer"}, None),
    ],
)
def test_case_records_its_tokens_per_sample(h100, name, asked, tokens):
    """A generation has no single number: prompt tokens are computed at once, new tokens one by one."""
    made = planned(h100, workloads=(name,), executions=("graph",), **asked)
    assert {each.tokens_per_sample for each in made.cases} == {tokens}


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        ({}, Checkpointing.FULL),
        ({"gpus": 7, "jobs": "fsdp"}, Checkpointing.FULL),
        ({"gpus": 8, "jobs": "fsdp"}, Checkpointing.SELECTIVE),
        ({"gpus": 4, "nnodes": 2, "jobs": "fsdp"}, Checkpointing.SELECTIVE),
        ({"gpus": 2, "jobs": "fsdp", "checkpointing": "selective"}, Checkpointing.SELECTIVE),
        ({"gpus": 8, "jobs": "fsdp", "checkpointing": "full"}, Checkpointing.FULL),
    ],
)
def test_below_eight_gpus_every_block_is_computed_again_by_default(h100, asked, how):
    """The row of one GPU has the recipe of the job, so the gain from more GPUs is for the same work."""
    made = planned(h100, workloads=("llama_8b_fsdp",), executions=("eager",), **asked)
    cases = [planned.case for planned in made.cases]
    assert {case.gpu_count for case in cases} == {1, asked.get("gpus", 1) * asked.get("nnodes", 1)}
    assert {case.checkpointing for case in cases} == {how}
    (work,) = {planned.hardware_flops_per_sample for planned in made.cases}
    named = profile_of("llama_8b_fsdp", {"checkpointing": how.value})
    assert work == named.hardware_flops_per_sample


def test_a_frozen_base_stays_in_its_type_and_other_precisions_are_refused(h100):
    (one,) = planned(h100, workloads=("llama_8b_lora",), executions=("graph",)).cases
    assert (one.case.trainable, one.case.weight_type) == (Trainable.LORA, WeightType.BFLOAT16)
    with pytest.raises(MisuseError, match="supports bf16, not fp32"):
        planned(h100, workloads=("llama_8b_lora",), precisions=("fp32",))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"workloads": ("cnn",), "checkpointing": "full"}, "cnn: checkpointing full cannot be set"),
        ({"workloads": ("cnn",), "trainable": "lora"}, "cnn: --lora cannot be set: it has only one recipe"),
        ({"workloads": ("cnn",), "context_tokens": 12}, "cnn: --context 12 cannot be set: .*; leave it out"),
        (
            {"workloads": ("llama_1b",), "prompt_tokens": 512},
            "it takes weight_type, checkpointing, loss_chunks",
        ),
    ],
)
def test_a_recipe_option_that_a_workload_lacks_is_refused_in_one_line(h100, asked, words):
    with pytest.raises(MisuseError, match=words) as caught:
        planned(h100, **asked)
    assert "\n" not in str(caught.value)


def test_all_excludes_workloads_that_need_a_large_card():
    assert "vgg16" in classic_names()
    assert not {"llama_1b", "llama_8b_lora"} & {*classic_names()}


def test_any_model_is_cast_for_bf16_and_the_cast_is_in_the_case(h100):
    made = planned(h100, workloads=("cnn",), precisions=("bf16",), executions=("eager",), batch_size=2)
    case = made.cases[0].case
    assert (case.precision, case.weight_type) == (Precision.BF16, WeightType.BFLOAT16)
    assert case.execution is Execution.EAGER
    work = move(built("cnn", case, 0), case, torch.device("cpu"))
    assert {p.dtype for p in work.model.parameters()} == {torch.bfloat16}
    assert work.batches[0][0].dtype is torch.bfloat16
    assert work.edge_loss(work.step(0), 0) > 0


def test_changed_recipe_builds_a_changed_model():
    workload = load_workload("llama_1b")
    again = workload.at(workload.recipe.changed({"checkpointing": "full", "loss_chunks": 2}))
    assert again.name == workload.name
    model = again.tiny(2, 0).model
    assert (model.recipe.checkpointing, model.recipe.loss_chunks) == (Checkpointing.FULL, 2)


@pytest.mark.parametrize("verb", [("memory",), ("predict", "show"), ("rank",), ("run", "--device", "cpu")])
@pytest.mark.parametrize(
    ("weights", "precision"), [("float32", "bf16"), ("bfloat16", "amp"), ("float16", "fp32")]
)
def test_weights_that_a_precision_would_override_are_refused_by_every_verb(verb, weights, precision):
    words = (*verb, "--workload", "vgg16", "--recipe", f"weight-type={weights}", "--precision", precision)
    refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, MisuseError), refused
    assert f"vgg16: weights in {weights} at {precision}" in str(refused)
    assert "\n" not in str(refused)


@pytest.mark.parametrize("ask", [memory, predict])
def test_options_given_with_a_profile_are_not_dropped(ask):
    profile = profile_of("llama_1b")
    given = [profile] if ask is memory else profile
    found = ask(given, gpu="L4", batch_size=1, checkpointing="full")
    case = found[0].case if ask is memory else found["nvidia-l4-24gb"].case
    assert case.checkpointing is Checkpointing.FULL
    with pytest.raises(MisuseError, match="loss in 3 chunks"):
        ask(given, gpu="L4", batch_size=1, loss_chunks=3)
    with pytest.raises(MisuseError, match="float32 at bf16"):
        ask(given, gpu="L4", batch_size=1, precision="bf16", weight_type="float32")
