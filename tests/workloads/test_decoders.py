"""Published decoders by their names: shapes, the closed form of their steps, and the answers to users."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command import here

from gpubench import memory, predict
from gpubench.decoders import Decoder, find_decoder, load_decoders
from gpubench.discovery import load_workload, workload_names
from gpubench.errors import MisuseError
from gpubench.models import (
    Checkpointing,
    Estimate,
    OperatorKind,
    Recipe,
    Stack,
    StepMemory,
    Trainable,
    Verdict,
    WeightType,
    WorkloadProfile,
)
from gpubench.profile import load_profiles
from gpubench.profile.decoder_step import USUAL, profile_at
from gpubench.profile.trace import trace_workload
from gpubench.recipes import ADAPTER_BASES
from gpubench.units import GIB

COUNTED_WITHIN = 5e-4
"""The table rounds to 0.1 million; for GPT-J, Phi and OLMo 2 its counts leave out the bias of the head, or norms."""
BATCHES = (1, 2, 4, 16, 64)
OF_A_TRACE = {
    "llama_8b_lora": "llama-3-8b",
    "llama_8b_qlora": "llama-3-8b",
    "llama_8b_fsdp": "llama-3-8b",
    "llama_1b": "llama-3.2-1b",
    "llama_70b": "llama-3-70b",
}


def decoder(name: str, **changes: Any) -> Decoder:
    found = find_decoder(name)
    assert found is not None
    return msgspec.structs.replace(found, **changes)


# --- the table ----------------------------------------------------------------------------------------------


def test_the_parameters_of_each_row_follow_from_its_shape() -> None:
    off = {row.hub_name: row.counted_parameters / row.parameters - 1 for row in load_decoders()}
    assert not {name: error for name, error in off.items() if abs(error) > COUNTED_WITHIN}
    assert all(row.source and row.licence for row in load_decoders())


def test_each_name_means_one_model_and_is_not_a_workload() -> None:
    meant: dict[str, set[str]] = {}
    for row in load_decoders():
        for name in (*row.aliases, row.hub_name, row.hub_name.partition("/")[2], f"hf:{row.hub_name}"):
            meant.setdefault(name.casefold(), set()).add(row.hub_name)
            found = find_decoder(name)
            assert found is not None
            assert found.hub_name == row.hub_name
    assert all(len(models) == 1 for models in meant.values())
    assert len(load_decoders()) >= 150
    assert not [name for name in workload_names() if find_decoder(name)]


@pytest.mark.parametrize(
    ("typed", "hub_name"),
    [
        ("Llama 3.1 8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("llama3.1-8b", "meta-llama/Meta-Llama-3.1-8B"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B"),
        ("qwen2-57b", "Qwen/Qwen2-57B-A14B"),  # not Qwen2.5 7B, which differs only in the point
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),  # there is no base model of that name
        ("qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_a_name_is_recognized_in_common_spellings(typed: str, hub_name: str) -> None:
    assert decoder(typed).hub_name == hub_name


def test_local_folder_with_the_name_of_a_hub_model_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_decoder("hf:Qwen/Qwen2.5-7B") is not None
    (tmp_path / "Qwen" / "Qwen2.5-7B").mkdir(parents=True)
    assert find_decoder("hf:Qwen/Qwen2.5-7B") is None
    assert find_decoder("Qwen/Qwen2.5-7B") is None
    assert find_decoder("qwen2.5-7b") is not None


# --- the closed form compared with traces -------------------------------------------------------------------


def _totals(profile: WorkloadProfile) -> dict[OperatorKind, tuple[float, float]]:
    count: Counter[OperatorKind] = Counter()
    moved: Counter[OperatorKind] = Counter()
    for each in profile.train:
        count[each.kind] += each.count
        moved[each.kind] += each.count * (each.bytes_fixed + 2 * each.bytes_per_sample)
    return {kind: (count[kind], moved[kind]) for kind in count}


def _peaks(step: StepMemory) -> list[float]:
    return [step.peak(batch).at(batch) for batch in BATCHES]


def _shipped() -> Iterator[Any]:
    for name, alias in OF_A_TRACE.items():
        for traced in (load_profiles()[name], *load_profiles()[name].variants):
            recipe = traced.recipe
            if recipe.checkpointing is Checkpointing.FULL and recipe.weight_type is not WeightType.FLOAT32:
                yield pytest.param(traced, alias, id=f"{name}, {recipe.words}")


@pytest.mark.parametrize(("traced", "alias"), [*_shipped()])
def test_closed_form_profile_matches_a_trace(traced: WorkloadProfile, alias: str) -> None:
    recipe = msgspec.structs.replace(traced.recipe, context_tokens=traced.sample_shape[0])
    told = profile_at(decoder(alias), alias, recipe)
    assert told.parameters == traced.parameters
    assert told.trainable_parameters == traced.trainable_parameters
    assert told.blocks == traced.blocks
    assert told.forward_flops_per_sample == pytest.approx(traced.forward_flops_per_sample, rel=1e-9)
    assert told.train_flops_per_sample == pytest.approx(traced.train_flops_per_sample, rel=0.002)
    assert told.hardware_flops_per_sample == pytest.approx(traced.hardware_flops_per_sample, rel=0.002)
    for kind, (count, moved) in _totals(traced).items():
        assert _totals(told)[kind][0] == pytest.approx(count, rel=0.03)
        assert _totals(told)[kind][1] == pytest.approx(moved, rel=0.01)
    mine, theirs = told.memory[0], traced.memory[0]
    assert mine.weights_bytes == pytest.approx(theirs.weights_bytes, rel=1e-4)
    for field in ("trained_bytes", "optimizer_bytes"):
        assert getattr(mine, field) == pytest.approx(getattr(theirs, field), rel=1e-4)
    # Norms are one kernel each in the closed form; those of transformers are not, and keep more.
    for told_bytes, traced_bytes in zip(_peaks(mine), _peaks(theirs), strict=True):
        assert -0.01 <= told_bytes / traced_bytes - 1 <= 0.06


def test_only_peft_casts_embedding_and_head_to_float32() -> None:
    recipe = USUAL.changed({"trainable": "qlora"})
    row = decoder("llama-3-8b")
    told = [profile_at(row, "x", recipe.changed({"stack": stack})).memory[0] for stack in ("plain", "torch")]
    assert told[0].weights_bytes - told[1].weights_bytes == 2 * 2 * row.embedding_parameters


def _small(name: str, **changes: Any) -> Decoder:
    row = decoder(name)
    shared = 2 if row.key_value_heads < row.heads else 8
    sizes: dict[str, Any] = {
        "width": 128, "heads": 8, "key_value_heads": shared, "head_width": 16,
        "forward_width": 320 if row.gated else 512, "vocabulary": 2000, "context": 256,
    }  # fmt: skip
    return msgspec.structs.replace(row, **sizes | changes)


_OF_ALL = {"vocab_size": 2000, "max_position_embeddings": 256, "hidden_size": 128}
_OF_LLAMA = _OF_ALL | {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 320,
}
_OF_GPT2 = {"n_embd": 128, "n_head": 8, "vocab_size": 2000, "n_positions": 256}
_OF_NEOX = _OF_ALL | {"num_attention_heads": 8, "intermediate_size": 512}
_MIXED = _OF_LLAMA | {"intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2}
_LATENT = _OF_ALL | {
    "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 320, "moe_intermediate_size": 96,
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "kv_lora_rank": 32, "q_lora_rank": None,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1,
}  # fmt: skip
_SPARSE = {"experts": 8, "active_experts": 2, "expert_width": 96}
_OF_GPTJ = _OF_GPT2 | {"rotary_dim": 8}
_OF_OPT = _OF_ALL | {"num_attention_heads": 8, "ffn_dim": 512, "word_embed_proj_dim": 128}
_OF_MPT = {"d_model": 128, "n_heads": 8, "vocab_size": 2000, "max_seq_len": 256}
UNCOUNTED = {"gpt_oss": 8 + 8}
"""Parameters of a layer that the table leaves out: attention sinks, and biases of the router."""
HUB = {
    "llama": ("LlamaForCausalLM", _OF_LLAMA, _small("llama-3.1-8b"), 0.05),
    "qwen2": ("Qwen2ForCausalLM", _OF_LLAMA, _small("qwen2.5-7b"), 0.05),
    "qwen3": ("Qwen3ForCausalLM", _OF_LLAMA, _small("qwen3-8b"), 0.10),
    "gemma3_text": ("Gemma3ForCausalLM", _OF_LLAMA, _small("gemma-3-1b"), 0.10),
    "gemma2": ("Gemma2ForCausalLM", _OF_LLAMA | {"sliding_window": 256}, _small("gemma-2-9b"), 0.05),
    "granite": ("GraniteForCausalLM", _OF_LLAMA, _small("granite-3.0-8b"), 0.05),
    "gptj": ("GPTJForCausalLM", _OF_GPTJ, _small("gpt-j-6b"), 0.05),
    "mpt": ("MptForCausalLM", _OF_MPT, _small("mpt-7b"), 0.06),
    "gpt_oss": ("GptOssForCausalLM", _MIXED | {"pad_token_id": 0}, _small("gpt-oss-20b", **_SPARSE), 0.05),
    "opt": ("OPTForCausalLM", _OF_OPT, _small("opt-1.3b", position_rows=258), 0.05),
    "gpt2": ("GPT2LMHeadModel", _OF_GPT2, _small("gpt2", position_rows=256), 0.05),
    "gpt_neox": ("GPTNeoXForCausalLM", _OF_NEOX, _small("pythia-1b"), 0.05),
    "mixtral": ("MixtralForCausalLM", _MIXED, _small("mixtral-8x7b", **_SPARSE), 0.10),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        _LATENT,
        _small("deepseek-v2-lite", key_value_rank=32, rotary_width=8, shared_width=96, **_SPARSE),
        0.10,
    ),
}


EVERYDAY = {"gemma3_text", "gpt2", "gpt_oss", "llama", "mixtral"}
"""Families for the default run: fused and separate projections, experts, sliding windows, tied heads."""


@pytest.mark.parametrize(
    ("kind", "trainable"),
    [
        *((kind, Trainable.FULL) for kind in sorted(EVERYDAY)),
        *((kind, Trainable.LORA) for kind in ("llama", "gpt_oss")),
        *(
            pytest.param(kind, Trainable.FULL, marks=pytest.mark.slow)
            for kind in sorted(HUB.keys() - EVERYDAY)
        ),
        *(
            pytest.param(kind, Trainable.LORA, marks=pytest.mark.slow)
            for kind in ("gemma2", "gptj", "gpt_neox")
        ),
    ],
)
def test_decoder_parameters_match_transformers_for_each_family(
    kind: str, trainable: Trainable, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    architecture, fields, shape, within = HUB[kind]
    # Two layers are one of each kind where kinds alternate; beside small adapters the rest of the model weighs
    # more, so they take four.
    layers = 2 if trainable is Trainable.FULL else 4
    shape = msgspec.structs.replace(shape, layers=layers)
    fields = {
        "model_type": kind,
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "tie_word_embeddings": shape.tied,
        **fields,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    recipe = Recipe(
        weight_type=WeightType.BFLOAT16, trainable=trainable, context_tokens=200, loss_chunks=8
    )  # in chunks: an unchunked loss is modeled as in the trainers of transformers
    traced = trace_workload(load_workload(f"hf:{tmp_path}").at(recipe), 0).profile
    told = profile_at(shape, kind, recipe)
    one_product = kind in {"gpt2", "gpt_neox"}  # queries, keys and values share a product, so fewer adapters
    if trainable is Trainable.FULL or not one_product:
        left_out = layers * UNCOUNTED.get(kind, 0)
        assert told.parameters == traced.parameters - left_out
        trained = traced.trainable_parameters - (left_out if trainable is Trainable.FULL else 0)
        assert told.trainable_parameters == trained
    if not shape.experts:  # a trace does not see inside a product of all experts at once
        assert told.forward_flops_per_sample == pytest.approx(traced.forward_flops_per_sample, rel=0.02)
    for told_bytes, traced_bytes in zip(_peaks(told.memory[0]), _peaks(traced.memory[0]), strict=True):
        assert told_bytes == pytest.approx(traced_bytes, rel=within)


def test_moe_flops_count_only_the_experts_used_per_token() -> None:
    sparse = decoder("mixtral-8x7b")
    dense = msgspec.structs.replace(sparse, experts=0, forward_width=2 * sparse.expert_width)
    one, two = (profile_at(each, "x", USUAL) for each in (sparse, dense))
    assert one.forward_flops_per_sample == pytest.approx(two.forward_flops_per_sample, rel=1e-9)
    assert one.parameters > 3 * two.parameters


# --- the software stacks ------------------------------------------------------------------------------------

PEFT_LAYERS = Path(__file__).parents[1] / "data" / "peft_layers.csv"
"""The operators of one Qwen2 block with random weights, without products, unpacking and views. They are the
operators that TorchDispatchMode saw in two blocks minus those in one, forward and backward, on a CPU under
autocast to bfloat16. Transformers 5.23, PEFT 0.21.2 (rank 16 on attention,
``prepare_model_for_kbit_training`` for a base in 4 bits), bitsandbytes 0.50.2.
"""


def _peft_layers() -> list[dict[str, Any]]:
    with PEFT_LAYERS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _of_one_layer(row: dict[str, Any], stack: Stack = Stack.PLAIN) -> tuple[float, int]:
    """Return the predicted elements that a token moves in one layer, and its kernels other than unpacking ones."""
    recipe = Recipe(checkpointing=row["checkpointing"], context_tokens=256, stack=stack)
    sizes = {name: int(row[name]) for name in ("width", "heads", "key_value_heads", "forward_width")}
    found = []
    for layers in (1, 2):
        shape = decoder("qwen2.5-1.5b", layers=layers, head_width=64, vocabulary=1024, **sizes)
        step = profile_at(shape, "x", recipe.changed({"trainable": row["trainable"]})).train
        moved = [each for each in step if each.kind is OperatorKind.MEMORY]
        found.append(
            (
                sum(each.count * each.bytes_per_sample / 4 / 256 for each in moved),
                sum(each.count for each in step if each.bytes_per_sample),
            )
        )
    return found[1][0] - found[0][0], found[1][1] - found[0][1]


@pytest.mark.parametrize("row", _peft_layers(), ids=lambda row: "-".join(list(row.values())[:6]))
def test_plain_stack_layer_runs_the_kernels_observed_in_peft(row: dict[str, Any]) -> None:
    """Over a base in 4 bits, only the bytes that float32 adds to the layer over 16 bits are compared."""
    moved, kernels = _of_one_layer(row)
    assert kernels == pytest.approx(int(row["kernels"]) + int(row["products"]), rel=0.01)
    if row["trainable"] == "lora":
        assert moved == pytest.approx(float(row["elements_per_token"]), rel=0.03)
        return
    half = next(other for other in _peft_layers() if list(other.values())[1:6] == list(row.values())[1:6])
    more = float(row["bytes_per_token"]) - float(half["bytes_per_token"])
    assert 2 * (moved - _of_one_layer(half)[0]) == pytest.approx(more, rel=0.03)


READ = (
    ("qwen2.5-0.5b", 1024, 3.30, 3337),
    ("qwen2.5-1.5b", 1024, 4.36, 2483),
    ("qwen2.5-1.5b", 2048, 7.10, 2327),
    ("qwen2.5-1.5b", 4096, 13.56, 1662),
    ("qwen2.5-3b", 1024, 5.54, 1303),
    ("qwen2.5-7b", 1024, 11.23, 923),
)
"""QLoRA at batch 1 with transformers, PEFT, TRL and bitsandbytes on an RTX 4080 under Windows without flash
attention.

The columns are tokens, reserved GiB, tokens/s. Source: DaoyuanLi2816/can-i-finetune-this,
docs/rtx4080_baselines.md, MIT; one reading each.
"""


def test_speed_of_a_plain_stack_on_windows_is_in_the_interval() -> None:
    ratios = []
    for name, tokens, _, tokens_per_s in READ:
        asked = {"qlora": True, "gpu": "RTX 4080", "batch_size": 1, "context": tokens}
        (told,) = predict(name, **asked, stack="no-flash").values()
        assert isinstance(told, Estimate)
        assert told.case.execution == "eager"
        assert told.low is not None
        assert told.high is not None
        assert told.low <= tokens_per_s / tokens <= told.high
        ratios.append(told.samples_per_s * tokens / tokens_per_s)
    assert sum(abs(1 / ratio - 1) for ratio in ratios) / len(ratios) < 0.15


ON_AN_A100 = (
    (2048, 8, 3550.48, 4079.28),
    (4096, 4, 3461.64, 3682.15),
    (8192, 2, 3204.21, 3528.93),
)
"""Llama 3 8B with transformers and PEFT (rank 8), flash attention and full checkpointing on one A100 SXM 80GB.

The columns are tokens, batch, and tokens/s for all weights and for LoRA. Source:
VectorInstitute/vectorlm@0703e075:docs/reference_throughput.md, torch 2.2.2; not fitted.
"""


def test_speed_of_a_plain_stack_on_an_a100_is_in_the_interval() -> None:
    """The mean error is the one that docs/prediction-evidence.md states."""
    errors = []
    for tokens, batch_size, *read in ON_AN_A100:
        for is_lora, tokens_per_s in zip((False, True), read, strict=True):
            asked = {"gpu": "A100 SXM 80GB", "batch_size": batch_size, "context": tokens, "lora": is_lora}
            (told,) = predict("llama-3-8b", **asked).values()
            assert isinstance(told, Estimate)
            assert told.low is not None
            assert told.high is not None
            assert told.low * tokens <= tokens_per_s <= told.high * tokens
            errors.append(abs(tokens_per_s / tokens / told.samples_per_s - 1))
    assert sum(errors) / len(errors) == pytest.approx(0.084, abs=0.0005)


def test_a_case_that_ran_with_all_scores_in_memory_is_not_refused() -> None:
    """Each of the published cases that train all weights ran, but needs more by the usual figure."""
    for tokens, batch_size, *_ in ON_AN_A100:
        asked = {"gpu": "A100 SXM 80GB", "batch_size": batch_size, "context": tokens}
        (told,) = memory("llama-3-8b", **asked)
        assert told.cards[0].fit.verdict is Verdict.MAY_FIT
        assert told.need.device.low is not None
        assert told.need.device.low < 80 * GIB < (told.need.device.value or 0)
    (chunked,) = memory("llama-3-8b", **asked, loss_chunks=8)
    (by_torch,) = memory("llama-3-8b", **asked, stack="torch")
    for other in (chunked, by_torch):  # their loops are known, so the lower end is that of a trace
        figure = other.need.allocated
        assert figure.low == pytest.approx(figure.value, rel=0.04)


@pytest.mark.parametrize(("how", "read"), [("lora", 0.86), ("qlora", 0.71)])
def test_fused_kernels_gain_as_much_over_a_plain_stack_as_published(how: str, read: float) -> None:
    """The published ratios are for an 8B model on an A100, at 4,096 tokens with full checkpointing."""
    rates = []
    for stack in (Stack.PLAIN, Stack.FUSED):
        request = {how: True, "gpu": "A100 SXM 80GB", "batch_size": 1, "context": 4096, "stack": stack}
        (told,) = predict("llama-3.1-8b", **request).values()
        assert isinstance(told, Estimate)
        rates.append(told.samples_per_s)
    assert rates[0] / rates[1] == pytest.approx(read, rel=0.10)


def test_no_message_suggests_a_precision_that_the_model_lacks() -> None:
    with pytest.raises(
        MisuseError, match=r"at bf16: they are stored in bfloat16; leave out --recipe weight-type"
    ):
        memory("llama-2-7b", gpu="H100", precision="bf16", weight_type="float32")


@pytest.mark.parametrize(("name", "tokens", "reserved_gib"), [row[:3] for row in READ])
def test_the_reserved_memory_of_a_plain_stack_is_in_the_interval(
    name: str, tokens: int, reserved_gib: float
) -> None:
    (told,) = memory(name, gpu="RTX 4080", qlora=True, batch_size=1, execution="eager", context=tokens)
    figure = told.need.reserved
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low <= reserved_gib * GIB <= figure.high
    assert figure.value == pytest.approx(reserved_gib * GIB, rel=0.16)


def test_every_model_is_predicted_with_each_training_method() -> None:
    rows = load_decoders()
    assert len(rows) > 200
    for row in rows:
        _is_told_in_each_way(row)


def _is_told_in_each_way(row: Decoder) -> None:
    ways = {Trainable.FULL: WeightType.BFLOAT16, **ADAPTER_BASES}
    told = [
        profile_at(row, "x", msgspec.structs.replace(USUAL, trainable=how, weight_type=base))
        for how, base in ways.items()
    ]
    full, lora, qlora = (each.memory[0] for each in told)
    assert full.peak(1).at(1) > lora.peak(1).at(1)
    upcast = 2.0 * row.embedding_parameters * (1 if row.tied else 2)
    assert lora.weights_bytes > qlora.weights_bytes - upcast
    assert full.weights_bytes == 2 * row.counted_parameters
    assert 2 * row.counted_parameters < lora.weights_bytes < 2.1 * row.counted_parameters
    by_way = {step.recipe.checkpointing: step for step in told[1].memory if step.recipe.trainable == "lora"}
    none, some, all_again = (by_way[how].peak(64).at(64) for how in Checkpointing)
    assert none > some > all_again
    dense = 6 * (row.counted_parameters - row.embedding_parameters) * told[0].sample_shape[0]
    if not row.experts:
        assert told[0].train_flops_per_sample > 0.9 * dense


# --- answers to users ---------------------------------------------------------------------------------------

_ASK = """
import json, sys, time
from gpubench import memory, predict, rank
answers, times = [], []
for name in ("qwen2.5-7b", "hf:Qwen/Qwen2.5-7B", "Llama 3.1 8B"):
    for way in (None, "lora", "qlora"):
        before = time.process_time()
        how = {way: True} if way else {}
        fit = memory(name, gpu="H200", **how)[0]
        speed = predict(name, gpu="H200", **how)["nvidia-h200-sxm-141gb"]
        ranking = rank(name, limit=3, samples=20_000, **how)
        answers.append([name, way, fit.case.workload, speed.case.workload, ranking.rows[0].estimate.case.workload])
        times.append(time.process_time() - before)
print(json.dumps({"answers": answers, "times": times, "torch": "torch" in sys.modules}))
"""


def test_a_name_is_answered_quickly_and_without_torch() -> None:
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True)
    said = json.loads(asked.stdout)
    assert not said["torch"]
    assert max(said["times"]) < 3.0  # seconds of CPU for three questions
    for name, way, *told in said["answers"]:
        assert told == [name] * 3, way


def test_an_answer_names_the_model_as_typed() -> None:
    for asked, words in (
        (["Llama 3.1 8B", "--lora", "--samples", "20000"], "Llama 3.1 8B, 20,000 sequences, "),
        (["memory", "hf:Qwen/Qwen2.5-7B", "--gpu", "L40S"], "hf:Qwen/Qwen2.5-7B bf16"),
        (["memory", "hf:Qwen/Qwen2.5-7B", "--gpu", "L40S"], "the shape of the model"),
    ):
        done = here(*asked)
        assert done.returncode == 0
        assert words in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["memory", "qwen2.5-9b", "--gpu", "L4"], "nearest known: .*qwen2.5-3b"),
        (["rank", "mistral-8b"], "give its config.json|hf:PATH/config.json"),
        (
            ["memory", "hf:Qwen/Qwen2.5-9B", "--gpu", "L4"],
            "^gpubench: hf:Qwen2.5-9B: .*known without a file are .*qwen2.5-3b",
        ),
        (["gemma4-12b"], "nearest known: gemma-?3-12b.*hf:PATH/config.json"),
        (["run", "qwen2.5-7b"], "use `gpubench rank qwen2.5-7b` or `gpubench memory qwen2.5-7b`"),
        (
            ["memory", "qwen2.5-7b", "--gpu", "L4", "--context", "200000"],
            "exceed the model's context of 131,072",
        ),
    ],
)
def test_an_unknown_name_gets_similar_names_and_what_to_provide(asked: list[str], words: str) -> None:
    done = here(*asked)
    assert done.returncode == 2
    assert re.search(words, done.stderr)
