"""Which models fit on a card, compared with whole traces and checked for consistency between sizes and ways."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from gpubench import memory, predict, rank
from gpubench.discovery import load_workload
from gpubench.models import Case, Checkpointing, StepMemory, WeightType
from gpubench.predict.memory_answer import MOST_UNITS, UNIT_TOKENS, Capacity, Room, capacity_of, load_traces
from gpubench.predict.question import NO_SPEED, case_for, question_of
from gpubench.profile import load_profiles
from gpubench.profile.allowance import card_of
from gpubench.profile.memory import judge_fit
from gpubench.profile.trace import traced_steps
from gpubench.specs import require_spec

H100, RTX_4090 = "nvidia-h100-sxm-80gb", "nvidia-geforce-rtx-4090-24gb"
A30, RTX_3080, RADEON = "nvidia-a30-24gb", "nvidia-geforce-rtx-3080-10gb", "amd-radeon-rx-7900-xtx-24gb"
RTX_3060, RTX_4060 = "nvidia-geforce-rtx-3060-12gb", "nvidia-geforce-rtx-4060-8gb"
NEW_TOKENS = 128
WAYS = ("full", "LoRA", "QLoRA", "decode, 16 bits", "decode, 8 bits", "decode, 4 bits")


def rooms(name: str) -> dict[tuple[str, str], Room]:
    found: Capacity = capacity_of(require_spec(name))
    return {(room.trace.model, room.trace.way): room for room in found.rooms}


def whole(name: str) -> StepMemory:
    """Return the shipped memory trace in which every block is recomputed, with 16-bit or 4-bit weights."""
    profile = load_profiles()[name]
    for each in (profile, *profile.variants):
        for step in each.memory:
            full = step.recipe.checkpointing is Checkpointing.FULL
            if full and step.recipe.weight_type in {WeightType.BFLOAT16, WeightType.NF4}:
                return step
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("model", "way", "name", "tokens"),
    [
        ("Llama 3.2 1B", "full", "llama_1b", 2048),
        ("Llama 3 8B", "full", "llama_8b_fsdp", 8192),
        ("Llama 3 8B", "LoRA", "llama_8b_lora", 2048),
        ("Llama 3 8B", "QLoRA", "llama_8b_qlora", 2048),
        ("Llama 3 70B", "full", "llama_70b", 8192),
    ],
)
def test_a_few_layers_give_the_figures_of_a_full_trace(model, way, name, tokens):
    (member,) = (m for m in load_traces() if (m.model, m.way) == (model, way))
    assert member.parameters == load_profiles()[name].parameters
    for batch in (1, 2, 4):
        units = batch * tokens // UNIT_TOKENS
        expected = whole(name).peak(batch).at(batch)
        assert member.step.peak(units).at(units) == pytest.approx(expected, rel=0.015)


def test_every_model_has_every_training_method_and_a_shorter_context_on_a_smaller_card():
    large, small = rooms(H100), rooms(RTX_4090)
    models = tuple(dict.fromkeys(model for model, _ in large))
    assert list(large) == [(model, way) for model in models for way in WAYS]
    assert all(small[key].context_tokens <= room.context_tokens for key, room in large.items())
    sizes = [large[model, "full"].trace.parameters for model in models]
    assert sizes == sorted(sizes)
    assert 1e9 < sizes[0] < sizes[-1] < 75e9
    for model in models:
        for ways in (("full", "LoRA", "QLoRA"), ("decode, 16 bits", "decode, 8 bits", "decode, 4 bits")):
            contexts = [large[model, way].context_tokens for way in ways]
            assert all(one <= two for one, two in pairwise(contexts))


def test_well_known_facts_about_24_gib_are_reproduced():
    """8 billion parameters: adapters fit, full training does not; 70 billion does not fit in any way."""
    found = rooms(RTX_4090)
    assert found["Llama 3 8B", "full"].context_tokens == 0
    assert found["Llama 3 8B", "LoRA"].context_tokens >= 2048
    assert found["Llama 3 8B", "QLoRA"].context_tokens > found["Llama 3 8B", "LoRA"].context_tokens
    assert {room.context_tokens for (model, _), room in found.items() if model == "Llama 3 70B"} == {0}


def test_kv_cache_takes_two_tensors_per_layer():
    """The cache of 8B takes 2 x 32 layers x 8 heads x 128 channels x 2 bytes = 131,072 bytes per token, and the prompt more."""
    (step,) = (m.step for m in load_traces() if (m.model, m.way) == ("Llama 3 8B", "decode, 16 bits"))
    grown = (step.peak(64).at(64) - step.peak(32).at(32)) / (32 * UNIT_TOKENS)
    assert 131_072 < grown < 2 * 131_072


def test_the_figures_for_a_sequence_length_come_from_its_trace():
    """Beyond all traces, the upper end of a figure would be twice its value."""
    for member in load_traces():
        assert member.step.is_traced_at(MOST_UNITS), (member.model, member.way)


@pytest.mark.parametrize(
    ("gpu_key", "way", "name", "asked"),
    [
        pytest.param(RTX_4090, "LoRA", "llama_8b_lora", {}, marks=pytest.mark.slow),
        pytest.param(A30, "LoRA", "llama_8b_lora", {}, marks=pytest.mark.slow),
        pytest.param(RTX_3080, "QLoRA", "llama_8b_qlora", {}, marks=pytest.mark.slow),
        pytest.param(RADEON, "decode, 16 bits", "llama_8b", {}, marks=pytest.mark.slow),
        pytest.param(
            RTX_3060, "decode, 8 bits", "llama_8b", {"weight_type": WeightType.INT8}, marks=pytest.mark.slow
        ),
        (RTX_4060, "decode, 4 bits", "llama_8b", {"weight_type": WeightType.INT4}),
    ],
)
def test_the_reported_context_is_the_largest_that_the_memory_verb_says_fits(gpu_key, way, name, asked):
    """All layers are traced at that context, as ``gpubench memory WORKLOAD --gpu X`` does."""
    told = rooms(gpu_key)["Llama 3 8B", way].context_tokens
    assert told > 0
    fits = [_fits(name, tokens, gpu_key, asked) for tokens in (told, told + UNIT_TOKENS)]
    assert fits == [True, False]


def _fits(name: str, tokens: int, gpu_key: str, asked: dict[str, WeightType]) -> bool:
    generates = name == "llama_8b"
    length = {"prompt_tokens": tokens - NEW_TOKENS} if generates else {"context_tokens": tokens}
    workload = load_workload(name)
    workload = workload.at(workload.recipe.changed({**asked, **length}))
    profile = msgspec.structs.replace(
        load_profiles()[name], recipe=workload.recipe, memory=traced_steps(workload)[1], variants=()
    )
    question = question_of(profile, None, batch_size=1, task=profile.tasks[0])
    case = case_for(question, require_spec(H100))  # a card known to compute in bfloat16
    assert isinstance(case, Case), case
    return judge_fit(profile, case, card_of(require_spec(gpu_key))).fits


@pytest.mark.parametrize("name", ["T4", "V100 SXM2 16GB", "RTX 2080 Ti", "Radeon VII"])
def test_card_without_bf16_gets_a_memory_answer_but_no_speed(name):
    """One rule serves memory, a card's capacity, predictions and the ranking."""
    key = require_spec(name).key
    ((answer,),) = ([card.fit for card in each.cards] for each in memory("llama_1b", gpu=name, batch_size=1))
    (twin,) = memory("llama_1b", gpu="L4", batch_size=1)[0].cards
    if require_spec(name).memory_type != "HBM2":
        assert answer.need.allocated == twin.fit.need.allocated
    assert [each.gpu_key for each in memory("llama_1b", gpu=name, batch_size=1)[0].speed_untold] == [key]
    assert memory("llama_1b", gpu="L4", batch_size=1)[0].speed_untold == ()
    assert NO_SPEED in capacity_of(require_spec(name)).speed_untold
    refusal = predict("llama_1b", gpu=name, batch_size=1)[key]
    assert NO_SPEED in refusal.reason
    assert answer.text() in refusal.reason


def test_a_ranking_names_the_cards_without_bf16_and_their_memory():
    ranking = rank("llama_8b_qlora", gpu=["T4", "L4"], as_of="2026-11-20", draws=50)
    reasons = {each.reason for each in ranking.excluded if each.gpu_key == "nvidia-tesla-t4-16gb"}
    assert any(NO_SPEED in reason and "fits" in reason for reason in reasons)
    assert "Not ranked for lack of BF16 hardware: T4." in ranking.said("note")
    at_amp = rank("bert_base", precision="amp", gpu=["T4", "L4"], as_of="2026-11-20", draws=50)
    assert not [note for note in at_amp.said("note") if "BF16" in note]


def test_batch_of_one_near_the_limit_may_fit_and_eager_is_suggested():
    (card,) = memory("llama_1b", precision="amp", gpu="L4", batch_size=4)[0].cards
    assert (card.fit.largest_batch, card.fit.one_may_fit) == (0, True)
    assert "a batch of 1 may fit" in card.fit.text()
    assert any("--execution eager" in fix.what for fix in card.fixes)
    (small,) = memory("llama_1b", precision="amp", gpu="T4", batch_size=4)[0].cards
    assert (small.fit.largest_batch, small.fit.one_may_fit) == (0, False)
    assert "not even a batch of 1 fits" in small.fit.text()
