"""Generation with a key-value cache: the same tokens as the plain forward pass, one by one, and their times."""

from __future__ import annotations

import sys

import msgspec
import pytest
import torch
from builders import case_of

from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.measure.capability import NotHereError
from gpubench.measure.step import built, move
from gpubench.models import (
    Case,
    Launch,
    Measurement,
    Precision,
    Recipe,
    Status,
    TaskKind,
    WeightType,
)
from gpubench.record.figures import measurement_document

RECIPE = Recipe(weight_type=WeightType.FLOAT32, prompt_tokens=5, new_tokens=6, cache_tokens=11)


def case(recipe: Recipe = RECIPE, batch_size: int = 3) -> Case:
    asked = {"task": TaskKind.INFER, "precision": Precision.BF16, "batch_size": batch_size}
    return case_of("llama_8b", **asked, **recipe.fields)


def tiny(recipe: Recipe = RECIPE, batch_size: int = 3):
    return load_workload("llama_8b").at(recipe).tiny(batch_size, 0)


def test_generation_with_a_cache_gives_the_tokens_of_the_full_forward_pass():
    task = tiny()
    model, prompts = task.model.double(), task.batches[0][0]
    whole = prompts
    with torch.inference_mode():
        for _ in range(RECIPE.new_tokens):
            whole = torch.cat((whole, model(whole).argmax(-1, keepdim=True)), dim=1)
        scores = model(prompts)
        ids = [scores.argmax(-1)]
        for place in range(5, 10):
            scores = model.next(ids[-1], torch.tensor([place]))
            ids.append(scores.argmax(-1))
        torch.testing.assert_close(scores, model(whole[:, :-1]))
    assert torch.equal(torch.stack(ids, dim=1), whole[:, 5:])


def test_a_step_generates_every_token_and_times_each_on_the_host():
    work = move(tiny(), case(), torch.device("cpu"))
    first, again = work.step(0).clone(), work.step(0)
    assert first.shape == (3, 64)
    assert torch.equal(first, again), "greedy: nothing is drawn"
    assert not torch.equal(first, work.step(1)), "another batch, other prompts"
    assert [len(times) for times in work.tokens_at_s] == [6, 6, 6]
    assert all(times == tuple(sorted(times)) and times[0] > 0 for times in work.tokens_at_s)


def test_a_prompt_longer_than_the_context_is_refused_in_one_line():
    recipe = Recipe(weight_type=WeightType.BFLOAT16, prompt_tokens=30, new_tokens=4, cache_tokens=34)
    with pytest.raises(MisuseError, match=r"prompt of 30 tokens and 4 new ones .* 32 tokens") as caught:
        tiny(recipe)
    assert "\n" not in str(caught.value)
    with pytest.raises(MisuseError, match=" 8,192"):  # before the model is built
        load_workload("llama_8b").at(load_workload("llama_8b").recipe.changed({"prompt_tokens": 8065}))
    with pytest.raises(MisuseError, match=" 8,192"):
        built("llama_8b", case(load_workload("llama_8b").recipe.changed({"prompt_tokens": 9000})), 0)


def test_latencies_and_rates_of_a_generation_are_derived_from_its_times():
    """By hand: first token after 0.5 s, then 0.01 s per token, but 0.05 s for one in fifty."""
    gaps = tuple(0.05 if n % 50 == 0 else 0.01 for n in range(1000))
    launch = Launch(
        index=0, first_token_s=(0.5, 0.5, 0.7), per_token_s=(0.011, 0.012, 0.013), token_gap_s=gaps
    )
    row = Measurement(case=case(batch_size=4), status=Status.OK, launches=(launch,))
    assert row.first_token_s == 0.5
    assert row.per_token_s == 0.012
    assert (row.token_latency_s(0.50), row.token_latency_s(0.99)) == (0.01, 0.05)
    assert row.decoded_tokens_per_s == pytest.approx(4 / 0.012)
    assert row.prefill_tokens_per_s == pytest.approx(4 * 5 / 0.5)
    few = msgspec.structs.replace(row, launches=(msgspec.structs.replace(launch, token_gap_s=gaps[:999]),))
    assert few.token_latency_s(0.99) is None
    assert measurement_document(row)["token_latency_p99_s"] == 0.05


def test_quantiles_of_tokens_are_defined_like_those_of_passes():
    times = tuple(n / 1000 for n in range(1, 1001))
    launch = Launch(index=0, latency_s=times, token_gap_s=times)
    row = Measurement(case=case(batch_size=4), status=Status.OK, launches=(launch,))
    assert (row.token_latency_s(0.50), row.token_latency_s(0.99)) == (0.5, 0.99)
    assert (row.latency_p50_s, row.latency_p99_s) == (0.5, 0.99)


def quantized(weight_type: WeightType):
    recipe = RECIPE.changed({"weight_type": weight_type})
    return move(tiny(recipe), case(recipe), torch.device("cpu"))


def test_scores_at_eight_bits_are_close_to_those_at_sixteen():
    pytest.importorskip("torchao", exc_type=ImportError)
    whole = move(tiny(RECIPE.changed({"weight_type": WeightType.BFLOAT16})), case(), torch.device("cpu"))
    narrow = quantized(WeightType.INT8)
    prompts = whole.batches[0][0]
    with torch.inference_mode():
        expected, found = whole.model(prompts), narrow.model(prompts)
    assert not torch.equal(found, expected)
    assert (found - expected).norm() < 0.05 * expected.norm()
    assert narrow.step(0).shape == (3, 64)


def test_unavailable_weight_types_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(NotHereError, match=r"torchao>=0\.15"):
        quantized(WeightType.INT4)


def test_four_bits_on_a_cpu_are_refused_with_the_reason_of_torchao():
    pytest.importorskip("torchao", exc_type=ImportError)
    with pytest.raises(NotHereError, match="no int4 weights") as caught:
        quantized(WeightType.INT4)
    assert "\n" not in str(caught.value)
