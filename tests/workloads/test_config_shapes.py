"""A Hugging Face config of a known family is answered from its shape as if it were traced; others are traced."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpubench import memory
from gpubench.decoders import described_decoder
from gpubench.errors import MisuseError
from gpubench.models import MemoryBasis, StepMemory, WorkloadProfile
from gpubench.profile import cache, profile_of, trace
from gpubench.user_model import config_of, load_own

SIZES = {
    "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 2000, "max_position_embeddings": 256,
}  # fmt: skip
FAMILIES = {
    "granite": "Granite", "llama": "Llama", "mistral": "Mistral", "olmo2": "Olmo2", "qwen2": "Qwen2",
    "qwen3": "Qwen3",
}  # fmt: skip
LARGE = SIZES | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip


def config(kind: str = "llama", **fields: Any) -> dict[str, Any]:
    named = {"model_type": kind, "architectures": [f"{FAMILIES.get(kind, kind)}ForCausalLM"]}
    usual = {"hidden_act": "silu", "tie_word_embeddings": False, "sliding_window": None}
    return named | usual | SIZES | fields


def written(folder: Path, fields: dict[str, Any]) -> str:
    path = folder / "Small" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fields))
    return f"hf:{path}"


def _peaks(step: StepMemory) -> list[float]:
    return [step.peak(batch).at(batch) for batch in (1, 2, 4, 16)]


def _identity(profile: WorkloadProfile) -> dict[str, Any]:
    told_otherwise = {
        "train", "infer", "memory", "variants", "is_by_shape", "train_flops_per_sample", "saved_bytes_per_sample",
    }  # fmt: skip
    names = set(profile.__struct_fields__) - told_otherwise
    return {name: getattr(profile, name) for name in names}


ASKED = ({}, {"checkpointing": "full"}, {"trainable": "lora"}, {"trainable": "qlora"})


@pytest.mark.parametrize(
    ("kind", "tied", "asked"),
    [
        ("llama", False, {}),
        *(
            pytest.param(kind, kind == "qwen3", {}, marks=pytest.mark.slow)
            for kind in FAMILIES
            if kind != "llama"
        ),
        *(pytest.param("llama", True, asked, marks=pytest.mark.slow) for asked in ASKED),
        *(pytest.param("qwen3", False, asked, marks=pytest.mark.slow) for asked in ASKED[1:]),
    ],
)
@pytest.mark.usefixtures("traced_as_asked")
def test_the_shape_gives_the_same_profile_as_a_trace(
    kind: str, tied: bool, asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name, version, parameters and recipe are equal, so both methods find the same measurements."""
    pytest.importorskip("transformers")
    reference = written(tmp_path, config(kind, tie_word_embeddings=tied))
    way = {asked["trainable"]: True} if "trainable" in asked else asked
    told = profile_of(reference, asked)
    (at_once,) = memory(reference, gpu="L4", **way)
    monkeypatch.setattr(cache, "described_decoder", lambda _: None)
    traced = profile_of(reference, asked)
    (slow,) = memory(reference, gpu="L4", **way)
    assert (told.is_by_shape, traced.is_by_shape) == (True, False)
    assert _identity(told) == _identity(traced)
    assert told.train_flops_per_sample == pytest.approx(traced.train_flops_per_sample, rel=0.02)
    for told_bytes, traced_bytes in zip(_peaks(told.memory[0]), _peaks(traced.memory[0]), strict=True):
        assert told_bytes == pytest.approx(traced_bytes, rel=0.05)
    assert (at_once.need.basis, slow.need.basis) == (MemoryBasis.SHAPE, MemoryBasis.TRACED)
    figure = at_once.need.device
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low <= slow.need.device.value <= figure.high


@pytest.mark.parametrize("end", ["", "/config.json"])
def test_a_tilde_after_hf_means_the_home_folder(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shell expands it there."""
    written(tmp_path, config())
    monkeypatch.setenv("HOME", str(tmp_path))
    found = config_of(f"hf:~/Small{end}")
    assert found is not None
    assert found["model_type"] == "llama"


@pytest.mark.parametrize(
    "fields",
    [
        config("mixtral", num_local_experts=8),
        config("gemma3_text"),
        config(attention_bias=True),
        config(mlp_bias=True),
        config(hidden_act="gelu"),
        config(auto_map={"AutoConfig": "evil.Config"}),
        config(num_experts=8),
        config("mistral", sliding_window=4096),
        config("qwen2", sliding_window=4096, use_sliding_window=True),
        config("qwen3", head_dim=None),
        config(head_dim=None, num_attention_heads=6),
        config(architectures=["LlamaForSequenceClassification"]),
        config(architectures=None),
        config(num_key_value_heads=None),
        config(num_hidden_layers=True),
        config(num_hidden_layers=1000),
        config(hidden_size="wide"),
        config(tie_word_embeddings="no"),
        config(text_config=SIZES),
        config(quantization_config={"quant_method": "gptq"}),
    ],
)
def test_config_that_its_shape_cannot_describe_is_traced(fields: dict[str, Any]) -> None:
    assert described_decoder(fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        config(head_dim=None, attention_bias=False, mlp_bias=False, pretraining_tp=1, rope_scaling=None),
        config("qwen2", sliding_window=131072, use_sliding_window=False, max_window_layers=28),
        config(**LARGE),
    ],
)
def test_fields_that_change_neither_work_nor_memory_are_ignored(fields: dict[str, Any]) -> None:
    found = described_decoder(fields)
    assert found is not None
    assert (found.layers, found.width) == (fields["num_hidden_layers"], fields["hidden_size"])
    assert found.head_width == fields["hidden_size"] // fields["num_attention_heads"]


@pytest.mark.parametrize(
    "asked",
    [{"precisions": ["amp"]}, {"asked": {"checkpointing": "selective"}}, {"asked": {"weight_type": "int8"}}],
)
def test_a_recipe_outside_the_closed_form_is_traced(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    started: list[Any] = []

    def refuse(*arguments: Any, **_: Any) -> None:
        started.append(arguments)
        raise MisuseError("is traced")

    monkeypatch.setattr(cache, "run_child", refuse)
    with pytest.raises(MisuseError, match=r"is traced|int8"):
        profile_of(written(tmp_path, config()), **asked)
    assert started or "int8" in str(asked)


_ASK = """
import sys, time
from gpubench import memory, predict, rank
for way in ({}, {"lora": True}, {"qlora": True}):
    assert memory(sys.argv[1], gpu="H100", **way)[0].need.basis == "shape"
    predict(sys.argv[1], gpu="H100", **way)
rank(sys.argv[1], limit=1, lora=True)
assert "torch" not in sys.modules
assert time.process_time() < 4.0
"""


def test_a_config_of_70_billion_is_answered_quickly_and_without_torch(tmp_path: Path) -> None:
    reference = written(tmp_path, config(**LARGE))
    subprocess.run([sys.executable, "-c", _ASK, reference], check=True)
    with pytest.raises(MisuseError, match=r"9,000 tokens exceed .* 4,096"):
        profile_of(reference, {"context_tokens": 9000})


# Layers that repeat

GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 9, "n_head": 4,
    "vocab_size": 500, "n_positions": 64,
}  # fmt: skip
DEEPSEEK = config(
    "deepseek_v3", architectures=["DeepseekV3ForCausalLM"], num_hidden_layers=11, first_k_dense_replace=3,
    n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32, kv_lora_rank=16,
    q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=8, head_dim=8,
)  # fmt: skip
GEMMA = config("gemma2", architectures=["Gemma2ForCausalLM"], num_hidden_layers=12, sliding_window=64)
MIXTRAL = config("mixtral", architectures=["MixtralForCausalLM"], num_hidden_layers=8, num_local_experts=4)


@pytest.mark.parametrize(
    "fields",
    [GPT2, *(pytest.param(each, marks=pytest.mark.slow) for each in (DEEPSEEK, GEMMA, MIXTRAL))],
    ids=lambda fields: fields["model_type"],
)
def test_a_model_of_repeated_layers_is_derived_from_two_shorter_ones(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All figures are those of a full trace, even with dense first layers, alternating attention or experts."""
    pytest.importorskip("transformers")
    whole = load_own(written(tmp_path, fields))
    assert whole.shorter is not None
    monkeypatch.setattr(trace, "with_shorter", lambda workload: workload)
    told, traced = (trace.trace_workload(each).profile for each in (whole, replace(whole, shorter=None)))
    amounts = {"train", "infer", "memory"}
    for name in set(told.__struct_fields__) - amounts:
        assert getattr(told, name) == getattr(traced, name), name
    assert set(told.train) == set(traced.train)
    assert set(told.infer) == set(traced.infer)
    assert len(told.memory) == len(traced.memory) > 2
    for one, two in zip(told.memory, traced.memory, strict=True):
        assert _peaks(one) == pytest.approx(_peaks(two))


@pytest.mark.parametrize(
    "fields",
    [
        GPT2 | {"n_layer": 5},
        config("t5", architectures=["T5ForConditionalGeneration"], num_layers=12),
        config(
            "qwen2", num_hidden_layers=12, sliding_window=64, use_sliding_window=True, max_window_layers=9
        ),
    ],
    ids=lambda fields: fields["model_type"],
)
def test_few_layers_and_layers_that_do_not_repeat_are_traced_in_full(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    assert load_own(written(tmp_path, fields)).shorter is None
