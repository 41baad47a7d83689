"""A model from its Hugging Face config: traced, measured and refused, without weights and without a network."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers

from gpubench import memory, predict, rank
from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.measure.step import move
from gpubench.models import (
    Case,
    Estimate,
    Execution,
    MemoryBasis,
    Precision,
    TaskKind,
    Trainable,
    WeightType,
)
from gpubench.profile import cache, child, profile_of, trace
from gpubench.profile.cache import Asked
from gpubench.profile.trace import trace_workload
from gpubench.user_model import files_of, own_name
from gpubench.workload import Workload

pytestmark = pytest.mark.skipif(
    not transformers.utils.is_torch_available(),
    reason=f"transformers {transformers.__version__} does not work with torch {torch.__version__}",
)
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}
ONE_LAYER = LLAMA | {"num_hidden_layers": 1}
"""As small as possible, for tests in which the size does not matter."""
OF_A_LAYER = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32
PARAMETERS = 2 * OF_A_LAYER + 2 * 64 * 32 + 32


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """Write a config into a folder with its name; return the reference."""

    def write(fields: Any = LLAMA, name: str = "Small-Llama") -> str:
        path = tmp_path / name / "config.json"
        path.parent.mkdir(exist_ok=True)
        raw = fields if isinstance(fields, str | bytes) else json.dumps(fields)
        path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        return f"hf:{path}"

    return write


def at(reference: str, **asked: Any) -> Workload:
    workload = load_workload(reference)
    return workload.at(workload.recipe.changed(asked))


def case_of(workload: Workload) -> Case:
    return Case(
        workload=workload.name, workload_version=workload.version, task=TaskKind.TRAIN, precision=Precision.BF16,
        execution=Execution.EAGER, memory_format=None, batch_size=2, sample_unit="sequence",
        **workload.recipe.fields,
    )  # fmt: skip


def test_hugging_face_workload_has_its_folder_name_and_expected_parameter_count(config):
    """Two layers have 2 x 32 x 32 + 2 x 32 x 16 + 3 x 32 x 64 and two norms; add embedding, head and last norm."""
    reference = config()
    profile = trace_workload(load_workload(reference), 0).profile
    assert profile.name == own_name(reference) == "hf:Small-Llama"
    assert profile.parameters == PARAMETERS
    assert (profile.sample_shape, profile.tokens_per_sample, profile.memory_untraced) == ((64,), 64, None)
    assert own_name(reference.removesuffix("/config.json")) == "hf:Small-Llama"
    folder, (path,) = files_of(reference)
    assert str(path.relative_to(folder)) == "Small-Llama/config.json"


def test_hugging_face_model_runs_the_same_kernels_as_the_standard_decoder(config):
    """The same kernels in number and size: products, attention, loss in chunks."""
    from gpubench_workloads import _llama

    like = load_workload("llama_8b_fsdp")
    tiny = _llama.replace(like, build=like.tiny, variants=()).at(
        like.recipe.changed({"checkpointing": "none", "context_tokens": 64})
    )
    sizes = LLAMA | {"hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 2}
    chunked = at(config(sizes), loss_chunks=like.recipe.loss_chunks)
    ours, theirs = (trace_workload(each, 0).profile for each in (tiny, chunked))
    assert theirs.parameters == ours.parameters
    assert theirs.forward_flops_per_sample == ours.forward_flops_per_sample
    assert theirs.train_flops_per_sample == ours.train_flops_per_sample
    peaks = [profile.memory[0].peak(4).at(4) for profile in (theirs, ours)]
    assert peaks[1] <= peaks[0] <= 1.4 * peaks[1], "their norms are written out, ours are one kernel each"


@pytest.mark.slow
def test_the_loss_is_unchunked_by_default_and_chunks_are_suggested_if_they_help(config, traced_here):
    """Scores of 50,000 words for each of 2,048 tokens, several times in float32, are most of this model's memory."""
    sizes = LLAMA | {"vocab_size": 50_000, "max_position_embeddings": 2048}
    assert load_workload(config(sizes)).recipe.loss_chunks == 1
    (answer,) = memory(config(sizes), gpu="RTX 3060", batch_size=16)
    (card,) = answer.cards
    (helps,) = [fix for fix in card.fixes if "--recipe loss-chunks=8" in fix.what]
    assert helps.fit.need.basis is MemoryBasis.TRACED
    assert helps.fit.need.allocated.value < answer.need.allocated.value / 2
    (in_chunks,) = memory(config(sizes), gpu="RTX 3060", batch_size=16, loss_chunks=8)
    assert in_chunks.need.allocated == helps.fit.need.allocated


def test_chunks_that_a_model_cannot_have_are_refused(config, traced_as_asked):
    sizes = LLAMA | {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    assert memory(config(sizes), gpu="L4")[0].case.loss_chunks == 1
    with pytest.raises(MisuseError, match="8 chunks"):
        memory(config(sizes), gpu="L4", loss_chunks=8)


def test_autocast_over_float32_weights_is_offered_on_request(config, traced_as_asked):
    reference = config(ONE_LAYER)
    assert load_workload(reference).precisions == ("bf16",)
    (amp,) = memory(reference, gpu="L4", precision="amp")
    assert (amp.case.precision, amp.case.weight_type) == (Precision.AMP_BF16, WeightType.FLOAT32)
    assert amp.need.basis is MemoryBasis.TRACED
    assert amp.need.parts.weights_bytes >= 4 * (PARAMETERS - OF_A_LAYER)
    assert isinstance(predict(reference, gpu="T4", precision="amp")["nvidia-tesla-t4-16gb"], Estimate)
    for asked in ({"qlora": True}, {"weight_type": "bfloat16"}):
        with pytest.raises(MisuseError, match="at amp"):
            memory(reference, gpu="L4", precision="amp", **asked)


@pytest.mark.parametrize("asked", [{}, {"trainable": "lora", "checkpointing": "full", "context_tokens": 32}])
def test_the_loss_of_a_hugging_face_model_falls_on_the_cpu(config, asked):
    workload = at(config(), **asked)
    work = move(workload.build(2, 0), case_of(workload), torch.device("cpu"))
    losses = [work.edge_loss(work.step(n), n) for n in range(24)]
    assert sum(losses[-4:]) < sum(losses[:4])
    trained = sum(p.numel() for p in work.model.parameters() if p.requires_grad)
    adapters = 2 * 16 * (2 * (32 + 32) + 2 * (32 + 16))
    assert trained == (adapters if asked else sum(p.numel() for p in work.model.parameters()))


def test_adapters_choose_the_type_of_their_base(config):
    reference = config()
    lora, qlora = (at(reference, trainable=how).recipe for how in ("lora", "qlora"))
    assert (lora.trainable, lora.weight_type) == (Trainable.LORA, WeightType.BFLOAT16)
    assert (qlora.trainable, qlora.weight_type) == (Trainable.QLORA, WeightType.NF4)


def test_four_bit_base_model_trains_with_torchao(config):
    quantization = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    workload = at(config(), trainable="qlora")
    work = move(workload.build(2, 0), case_of(workload), torch.device("cpu"))
    narrow = [
        m for m in work.model.modules() if isinstance(getattr(m, "weight", None), quantization.NF4Tensor)
    ]
    assert len(narrow) == 2 * 7
    assert work.edge_loss(work.step(0), 0) > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 64, "n_positions": 64},
        {"model_type": "mixtral", "num_local_experts": 2, **SIZES, "num_hidden_layers": 1},
        {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SIZES, "num_hidden_layers": 1},
    ],
    ids=lambda fields: fields["model_type"],
)
def test_other_architectures_are_traced_in_full(config, fields):
    traced = trace_workload(at(config(fields), trainable="lora"), 0)
    assert (traced.why_on_cpu, traced.profile.memory_untraced) == (None, None)
    assert 0 < traced.profile.trainable_parameters < traced.profile.parameters


def test_code_and_types_that_a_config_names_are_ignored(config, tmp_path):
    hostile = {
        "auto_map": {"AutoConfig": "evil.Config"}, "torch_dtype": "float64", "_attn_implementation": "org/kernel",
        "quantization_config": {"quant_method": "gptq"},
    }  # fmt: skip
    (tmp_path / "Small-Llama").mkdir()
    (tmp_path / "Small-Llama" / "evil.py").write_text("raise SystemExit(3)")
    assert {p.dtype for p in load_workload(config(LLAMA | hostile)).build(1, 0).model.parameters()} == {
        torch.bfloat16
    }


def test_no_private_field_of_transformers_gets_through(config):
    """Versions before 5.3 load the kernel that one of these fields names, and thus its code."""
    private = {"_attn_implementation_internal": "org/kernel", "_name_or_path": "org/model"}
    hostile = private | {"trust_remote_code": True}
    fields = LLAMA | hostile | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4} | hostile}
    workload = load_workload(config(fields))
    made = workload.build.keywords["described"]
    assert hostile.keys().isdisjoint(made.fields)
    assert made.fields["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b'{"model_type": "\xff"}', "is not JSON"),
        ("[1]", 'has no "model_type"'),
        ({"model_type": "llamaa"}, 'knows no architecture "llamaa"; did you mean'),
        ({"model_type": "llama\x1b[2J"}, "knows no architecture"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000 must be from 1 to 2,000"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers 0 must be from 1"),
        ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 10**7}}, "num_hidden_layers 10000000"),
        ({"model_type": "vit", "num_labels": 10**9}, "num_labels 1000000000 must be from 0 to 100,000"),
        (LLAMA | {"architectures": 5}, "hf:Small-Llama: "),
        (LLAMA | {"hidden_size": "wide"}, "hf:Small-Llama: "),
        ({"model_type": "clap"}, "no language model or image classifier"),
    ],
)
def test_a_config_without_a_model_is_one_line(config, fields, message):
    with pytest.raises(MisuseError) as caught:
        load_workload(config(fields))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_torch_that_transformers_does_not_support_is_one_line(config, monkeypatch):
    """Torch 2.4 is one: for it, transformers has configs but no models."""
    import_module("gpubench_workloads._hugging_face")._types.cache_clear()
    monkeypatch.setattr(transformers.utils, "is_torch_available", lambda: False)
    with pytest.raises(MisuseError) as caught:
        load_workload(config(LLAMA))
    for words in (transformers.__version__, torch.__version__, "newer torch"):
        assert words in str(caught.value)


def test_a_missing_file_and_too_long_a_context_are_one_line(config, tmp_path):
    with pytest.raises(MisuseError, match=f"there is no {tmp_path}/none/config.json") as missing:
        load_workload(f"hf:{tmp_path}/none/config.json")
    assert missing.value.__cause__ is None  # so that its message names no log
    assert str(missing.value).endswith("or its folder"), "the name of the file says nothing about the model"
    with pytest.raises(MisuseError, match=r"65 tokens .* 64 tokens"):
        at(config(), context_tokens=65)


@pytest.mark.parametrize(
    ("fields", "asked", "words"),
    [
        ({}, {"context_tokens": 65}, r"sequences of 65 tokens exceed the model's context of 64 tokens"),
        ({"num_key_value_heads": 3}, {}, "4 attention heads cannot share 3 key-value heads equally"),
        ({"model_type": 7}, {}, 'has no "model_type": it is not the config of a model'),
    ],
)
def test_an_invalid_file_is_reported_before_a_process_is_started(config, monkeypatch, fields, asked, words):
    monkeypatch.setattr(cache, "run_child", None)  # calling it would be a TypeError
    with pytest.raises(MisuseError, match=words):
        profile_of(config(LLAMA | fields), asked)


def test_the_context_of_a_multimodal_model_is_that_of_its_text_part(config, monkeypatch):
    monkeypatch.setattr(cache, "run_child", None)
    whole = {"model_type": "llava", "max_position_embeddings": 9, "text_config": LLAMA}
    with pytest.raises(MisuseError, match=r"65 tokens .* 64 tokens"):
        profile_of(config(whole), {"context_tokens": 65})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"trainable": "qlora", "weight_type": "bfloat16"}, "base in nf4: omit weight-type=bfloat16"),
        ({"trainable": "lora", "weight_type": "int4"}, "16 or 32 bits, not in int4"),
        (
            {"weight_type": "int8"},
            "int8 are only for generation, which llama_8b does: to train, add --qlora or leave",
        ),
        ({"weight_type": "nf4"}, "nf4 is only for the base under QLoRA's adapters: add --qlora"),
        ({"trainable": "qlora", "weight_type": "int4"}, "base in nf4: omit weight-type=int4"),
        ({"prompt_tokens": 12}, "prompt tokens 12 cannot be set"),
    ],
)
def test_contradictory_settings_are_reported_before_a_model_is_built(config, monkeypatch, asked, words):
    monkeypatch.setattr(trace, "trace_workload", None)
    answer = child._answer(config(), asked=Asked(fields=asked))
    assert words in answer.error
    assert answer.traceback is None


@pytest.mark.usefixtures("traced_here")
@pytest.mark.parametrize(
    ("asked", "precision"),
    [({}, "amp"), ({"lora": True}, None), ({"loss_chunks": 8}, "amp")],
)
def test_the_request_is_traced_even_without_time_for_other_ways(config, monkeypatch, asked, precision):
    """Otherwise a slow machine would report less for the same question, and verbs would disagree."""
    monkeypatch.setattr(child, "MOST_VARIANTS_S", 0.0)
    reference, card = config(ONE_LAYER), "A100 SXM4 80GB"
    asked = asked if precision is None else {"precision": precision, **asked}
    (needed,) = memory(reference, gpu=[card], **asked)
    assert needed.need.basis is MemoryBasis.TRACED
    (found,) = predict(reference, gpu=[card], **asked).values()
    assert found.device_bytes == needed.need.device_bytes


@pytest.mark.usefixtures("traced_here")
def test_a_ranking_has_the_memory_figures_of_the_memory_verb(config, monkeypatch):
    monkeypatch.setattr(child, "MOST_VARIANTS_S", 0.0)
    reference, card = config(ONE_LAYER), "A100 SXM4 80GB"
    (needed,) = memory(reference, precision="amp", gpu=[card])
    row = rank(reference, precision="amp", gpu=[card], limit=1).rows[0]
    assert row.estimate.device_bytes == needed.need.device_bytes


@pytest.mark.usefixtures("traced_here")
def test_a_model_is_built_once_and_announced_once_for_any_request(config, caplog, monkeypatch):
    """A question with adapters, checkpointing and a context takes one process; its files take another, unannounced."""
    monkeypatch.setattr(cache, "NOTICE_AFTER_S", 0.0)
    cache._say_once.cache_clear()
    started = []
    run_child = cache.run_child

    def counted(*arguments, **how):
        started.append(arguments)
        return run_child(*arguments, **how)

    monkeypatch.setattr(cache, "run_child", counted)
    asked = {"trainable": "lora", "checkpointing": "full", "context_tokens": 32}
    reference = config(ONE_LAYER)
    profile = profile_of(reference, asked, gpu_count=2)
    assert profile.recipe == load_workload(reference).recipe.changed(asked)
    assert profile.sample_shape == (32,)
    files = cache.files_of(reference)[1]
    assert [path.name for path in files] == ["config.json"]
    assert len(started) == 2
    assert sum("being built" in record.message for record in caplog.records) == 1


def test_a_sequence_longer_than_the_context_is_refused_without_a_traceback(config):
    """A deliberate error counts as misuse, wherever the trace raises it, so no message names a log."""
    sizes = {name: size for name, size in LLAMA.items() if name != "max_position_embeddings"}
    answer = child._answer(config(sizes), asked=Asked(fields={"context_tokens": 2049}))
    assert re.search(r"2,049 tokens .* 2,048", answer.error)  # by transformers' default
    assert answer.traceback is None
    broken = child._answer(config(LLAMA | {"hidden_size": 2**40, "vocab_size": 2**40}))
    assert "Traceback" in broken.traceback


def test_sizes_too_large_for_any_machine_are_refused_in_one_line(config):
    with pytest.raises(MisuseError, match="hf:Small-Llama: cannot run") as caught:
        trace_workload(load_workload(config(LLAMA | {"hidden_size": 2**40, "vocab_size": 2**40})), 0)
    assert "\n" not in str(caught.value)
