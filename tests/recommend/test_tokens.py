"""Cost of a million tokens and time per token, from a buyer's question to the rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import here
from predict.runs import run_of

from gpubench.errors import MisuseError
from gpubench.models import Precision, TaskKind
from gpubench.predict.estimate import estimate
from gpubench.predict.question import Question, Refusal, case_for, question_of
from gpubench.predict.roofline import token_time
from gpubench.profile import load_profiles, profile_of
from gpubench.recommend.economics import generation_times, token_costs
from gpubench.recommend.evidence import Runs, gather
from gpubench.recommend.rank import document, rank
from gpubench.recommend.request import RankRequest
from gpubench.specs import require_spec
from gpubench.units import format_duration
from recommend.builders import H100, offer, rank_of

EXAMPLE = Path(__file__).resolve().parents[2] / "results" / "example"


@pytest.fixture(scope="module")
def lora():
    return rank("llama_8b_lora", gpu=["h100", "rtx 4090"], as_of="2026-11-20", draws=50)


@pytest.fixture(scope="module")
def generated():
    return rank("llama_8b", gpu=["h100", "rtx 4090"], batch_size=8, as_of="2026-11-20", draws=50)


@pytest.mark.parametrize(
    ("gpu", "precision", "runs"),
    [
        ("mi300x", "bf16", True),
        ("mi300x", "fp8", False),
        ("radeon vii", "bf16", False),
        ("t4", "bf16", False),
    ],
)
def test_bf16_of_another_vendor_follows_from_the_rate_in_its_row(gpu, precision, runs):
    """On AMD a rate in the row means support; on NVIDIA a compute capability of at least 8.0 does."""
    question = question_of(load_profiles()["llama_1b"], precision, batch_size=1)
    answer = case_for(question, require_spec(gpu))
    assert isinstance(answer, Refusal) != runs
    if precision == "fp8":
        assert "NVIDIA" in answer.reason, "the card has FP8, but gpubench supports it only on NVIDIA's"


def test_the_cost_of_a_million_training_tokens_follows_from_the_throughput(lora):
    row = next(row for row in lora.rows if row.offer.gpu_count == 1)
    flat = row.flat()
    assert flat["precision"] == "bf16"
    tokens_per_usd = 3600 * flat["samples_per_s"] * 2048 / flat["price_usd_per_hour"]
    assert flat["usd_per_million_tokens"] == pytest.approx(1e6 / tokens_per_usd)
    training = token_costs(row)["training"]
    assert training.low < flat["usd_per_million_tokens"] < training.high


def test_a_million_tokens_are_counted_by_the_requested_context():
    found = document(rank("gpt2", gpu=["h100"], context=512, as_of="2026-11-20", draws=50))
    row = next(row for row in found["rows"] if row["gpu_count"] == 1)
    tokens_per_usd = 3600 * row["samples_per_s"] * 512 / row["price_usd_per_hour"]
    assert row["usd_per_million_tokens"] == pytest.approx(1e6 / tokens_per_usd)


def test_generation_time_is_prompt_time_plus_memory_bound_tokens(generated):
    row = next(row for row in generated.rows if row.offer.gpu_key == "nvidia-geforce-rtx-4090-24gb")
    times, costs = generation_times(row.estimate), token_costs(row)
    token_s = token_time(profile_of("llama_8b").decode, 512 + 64, 8, require_spec("RTX 4090"))
    assert times.per_token_s.value == pytest.approx(token_s)
    whole = 8 / (row.samples_per_s.value / row.offer.gpu_count)
    first_s = times.first_token_s.value
    assert whole == pytest.approx(first_s + 127 * token_s)
    usd_per_s = row.usd_per_hour.value / row.offer.gpu_count / 3600
    assert costs["decode"].value == pytest.approx(1e6 * usd_per_s * token_s / 8)
    assert row.flat()["usd_per_million_tokens"] == costs["decode"].value
    assert costs["prefill"].value == pytest.approx(1e6 * usd_per_s * first_s / 8 / 512)
    assert "not validated" in row.estimate.method


def test_a_ranking_shows_the_cost_of_a_million_tokens():
    done = here("rank", "llama_8b", "--gpu", "h100", "--batch-size", "8", "--explain", COLUMNS="400")
    assert done.returncode == 0
    shown = done.stdout
    head = next(line for line in shown.splitlines() if line.startswith("GPUs and offer"))
    assert all(each in head for each in ("prompts of one static batch", "generated in one static batch"))
    assert "Static batch: " in shown


def test_latency_limit_for_generation_applies_per_token(generated):
    row = generated.rows[0]
    limit_ms = 1000 * generation_times(row.estimate).per_token_s.high
    kept = rank(
        "llama_8b",
        gpu=[row.offer.gpu_key],
        count=row.offer.gpu_count,
        batch_size=8,
        task="infer",
        max_latency_ms=limit_ms * 1.01,
    )
    assert kept.rows
    assert kept.rows[0].samples_per_s == row.samples_per_s
    with pytest.raises(MisuseError, match="a token at batch 8 may take"):  # inference is implied
        rank("llama_8b", gpu=[row.offer.gpu_key], batch_size=8, max_latency_ms=limit_ms * 0.99)


@pytest.mark.slow
@pytest.mark.usefixtures("traced_as_asked")
def test_a_latency_limit_is_per_token_even_for_given_lengths():
    """The model of these lengths is traced, not shipped; its tokens still have a time and a cost."""
    asked = {"gpu": ["h100-sxm"], "prompt_tokens": 300, "new_tokens": 40, "as_of": "2026-11-20", "draws": 50}
    row = rank("llama_8b", **asked).rows[0]
    first_s, token_s = (each.value for each in generation_times(row.estimate))
    assert 0 < token_s < first_s < row.latency_s
    assert row.latency_s == pytest.approx(first_s + 39 * token_s)
    assert row.usd_per_million_tokens > 0
    with pytest.raises(MisuseError, match=r"\d+\.\d ms, above 0.01 ms"):
        rank("llama_8b", **asked, max_latency_ms=0.01)


def test_a_generation_without_token_times_is_refused_under_a_latency_limit():
    asked = Question(
        profile=profile_of("llama_8b"), precision=Precision.BF16, batch_size=1, task=TaskKind.INFER
    )
    run = run_of(H100, (case_for(asked, require_spec(H100)), 4.0))
    request = RankRequest(
        workloads=("llama_8b",), precision="bf16", task="infer", batch_size=1, max_latency_ms=500.0
    )
    answer = gather(request, [H100], Runs((run,), ())).answers["llama_8b"][H100]
    assert isinstance(answer, Refusal)
    assert "is not known" in answer.reason


def test_a_ranking_shows_the_token_time_that_its_limit_applies_to():
    """The time of the whole batch, far above any limit on a token, is secondary; the column is named accordingly."""
    asked = ("llama_8b", "--gpu", "h100", "--batch-size", "8", "--max-latency-ms", "50")
    shown = here("rank", *asked, "--table", "--explain", COLUMNS="700").stdout
    row = rank("llama_8b", gpu="h100", batch_size=8, max_latency_ms=50).rows[0]
    assert "per token" in shown
    assert "Latency" not in shown
    token = format_duration(generation_times(row.estimate).per_token_s.value)
    assert f"{token} ({format_duration(row.latency_s)} per batch)" in shown


def test_inference_of_a_training_workload_is_refused_and_a_latency_limit_on_training():
    with pytest.raises(MisuseError, match=r"llama_8b_lora .*: leave out --task"):
        rank("llama_8b_lora", task="infer", as_of="2026-11-20", draws=50)
    for names in (("llama_8b_lora",), ("llama_8b", "vgg16")):
        with pytest.raises(MisuseError, match="--max-latency-ms is for"):
            rank(workload=names, max_latency_ms=20.0)


def test_a_measured_generation_is_priced_by_its_token_times():
    batch, spec = 8, require_spec(H100)
    asked = Question(
        profile=profile_of("llama_8b"), precision=Precision.BF16, batch_size=batch, task=TaskKind.INFER
    )
    run = run_of(H100, (case_for(asked, spec), 4.0), first_token_s=(0.1,) * 50, per_token_s=(0.015,) * 50)
    measured = estimate(asked, [spec], own=[run])[H100]
    (row,) = rank_of([offer(H100, 3.6)], {H100: measured}, workloads=("llama_8b",), task="infer").rows
    costs = token_costs(row)
    assert costs["prefill"].value == pytest.approx(1e6 * 0.001 * 0.1 / batch / 512)
    assert costs["decode"].value == pytest.approx(1e6 * 0.001 * 0.015 / batch)
    assert costs["decode"].low < costs["decode"].value < costs["decode"].high


def test_fp8_is_ranked_where_it_was_measured_and_otherwise_refused_with_the_run_needed():
    measured = rank("llama_1b", precision="fp8", results=EXAMPLE, as_of="2026-11-22", draws=50)
    assert {(row.offer.gpu_key, row.estimate.basis) for row in measured.rows} == {(H100, "measured")}
    with pytest.raises(MisuseError, match=r"never predicted.*`gpubench run (.*)`") as refused:
        rank("llama_1b", precision="fp8", checkpointing="full", as_of="2026-11-22", draws=50)
    command = str(refused.value).rpartition("gpubench run ")[2].partition("`")[0].split()
    asked = {
        "--workload": "llama_1b",
        "--precision": "fp8",
        "--execution": "graph",
        "--recipe": "checkpointing=full",
    }
    assert asked.items() <= dict(zip(command[::2], command[1::2], strict=True)).items()
    with pytest.raises(
        MisuseError, match=r"^fp8 applies to the linear layers in repeated blocks, and cnn has none$"
    ):
        rank(precision="fp8", as_of="2026-11-22", draws=50)


def test_weights_of_fewer_bits_take_less_time_and_memory():
    half, narrow = profile_of("llama_8b"), profile_of("llama_8b", {"weight_type": "int4"})
    spec = require_spec("RTX 4090")
    times = [token_time(p.decode, 576, 1, spec) for p in (half, narrow)]
    assert times[1] < 0.5 * times[0]
    assert narrow.memory[0].weights_bytes < 0.35 * half.memory[0].weights_bytes
    assert load_profiles()["llama_8b"].at(narrow.recipe) is not None


def test_a_ranking_of_a_language_model_needs_no_torch_and_under_three_seconds_of_cpu():
    code = (
        "import sys, time\n"
        "from gpubench.recommend.rank import rank\n"
        "assert rank('llama_8b_lora', as_of='2026-11-20').rows\n"
        "assert 'torch' not in sys.modules\n"
        "print(time.process_time())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert float(done.stdout) < 3
