"""`gpubench memory`: figures, cards and fixes, on the terminal and as JSON; bad input in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import here
from memory_cases import BY_ASSERTION, BY_BYTES, BY_DISPATCHER, GPT, WITH_KERNEL, raising

from gpubench.errors import MisuseError
from gpubench.models import Checkpointing
from gpubench.predict.estimate import predict
from gpubench.profile import cache, load_profiles

FIGURES = ("allocated_bytes", "reserved_bytes", "device_bytes")


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """Return a function that runs the verb without any results and returns exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        done = here("memory", *arguments, "--results", tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_document_has_three_separate_figures(ask: Any) -> None:
    code, out, _ = ask("transformer", "--gpu", "nvidia-geforce-rtx-4090-24gb", "--batch-size", "32", "--json")
    answer = json.loads(out)
    assert code == 0
    for name in FIGURES:
        assert answer[f"{name}_low"] <= answer[name] <= answer[f"{name}_high"]
    assert answer["allocated_bytes"] < answer["reserved_bytes"] < answer["device_bytes"]
    parts = answer["parts"]
    whole = sum(size for name, size in parts.items() if name != "activations_bytes")
    assert whole == pytest.approx(answer["device_bytes_high"], abs=10)
    assert parts["activations_bytes"] == pytest.approx(parts["saved_bytes"] + parts["transient_bytes"], abs=2)
    assert (answer["basis"], answer["not_traced"]) == ("traced", None)


def test_each_suggested_fix_has_its_own_figures(ask: Any) -> None:
    key = "nvidia-geforce-rtx-4090-24gb"
    _, out, _ = ask("bert_base", "--gpu", key, "--batch-size", "160", "--precision", "fp32", "--json")
    (card,) = json.loads(out)["cards"]
    assert card["verdict"] == "does not fit"
    fixes = {fix["what"].split(",")[0]: fix for fix in card["fixes"]}
    kinds = (
        "automatic mixed precision",
        "activation checkpointing",
        f"batch {card['largest_batch']}",
        "4 GPUs",
    )
    for kind in kinds:
        (fix,) = (m for what, m in fixes.items() if what.startswith(kind) and "FSDP" not in what)
        assert fix["device_bytes_high"] < card["device_bytes_high"]
    assert fixes[f"batch {card['largest_batch']}"]["fits"]
    assert fixes["4 GPUs"]["fits"]
    assert fixes["4 GPUs with FSDP"]["parts"]["weights_bytes"] < 0.3 * card["parts"]["weights_bytes"]
    assert any(what.startswith("adapters on a") for what in fixes)
    (again,) = (m for what, m in fixes.items() if what.startswith("activation checkpointing"))
    assert fixes["selective activation checkpointing"]["device_bytes"] > again["device_bytes"]
    assert again["fits"]
    assert again["device_bytes"] < 0.4 * card["device_bytes"]


def test_memory_verdict_and_its_parts_are_printed_on_the_terminal(ask: Any) -> None:
    _, out, _ = ask("resnet50", "--gpu", "nvidia-tesla-t4-16gb")
    assert re.search(r"(?m)^T4 +GDDR +\d+ +fits \(needs ", out), "every verb calls it by this name"
    assert "nvidia" not in out
    assert "optimizer state" in out
    assert "fastest convolution" not in out
    _, strict, _ = ask("vgg16", "--gpu", "nvidia-tesla-t4-16gb", "--precision", "fp32")
    assert all(each in strict for each in ("up to 1.91 GiB that", "cuDNN"))
    _, every, _ = ask()
    trained = [name for name, p in load_profiles().items() if "train" in p.tasks and p.is_classic]
    assert [line.split()[0] for line in every.splitlines()[2:]] == trained


def test_several_gpus_and_checkpointing_can_be_requested(ask: Any) -> None:
    """Each of four GPUs stores a quarter of BERT's weights and states, 438 MB and twice that."""
    shared = "--gpu", "nvidia-h100-sxm-80gb", "--precision", "fp32", "--json"
    alone, four = (
        json.loads(ask("bert_base", *more, *shared)[1])
        for more in ((), ("--count", "4", "--jobs", "fsdp", "--recipe", "checkpointing=full"))
    )
    assert (four["gpu_count"], four["parallel_mode"], four["checkpointing"]) == (4, "fsdp", "full")
    assert (alone["gpu_count"], alone["parallel_mode"], alone["checkpointing"]) == (1, "single", "none")
    for part in ("weights_bytes", "optimizer_bytes"):
        assert four["parts"][part] == pytest.approx(alone["parts"][part] / 4, rel=0.01)
    assert four["parts"]["saved_bytes"] < 0.3 * alone["parts"]["saved_bytes"]


@pytest.mark.parametrize(
    ("more", "mode"),
    [((), "fsdp"), (("--jobs", "ddp"), "ddp")],
)
def test_a_model_made_for_sharding_is_sharded_in_a_job_by_default(
    ask: Any, more: tuple[str, ...], mode: str
) -> None:
    """Each of 8 H100s has room for its share of a job that is too large for one; the answer says so."""
    wanted = "llama_8b_fsdp", "--gpu", "nvidia-h100-sxm-80gb", "--batch-size", "2", "--count", "8", *more
    document = json.loads(ask(*wanted, "--json")[1])
    assert document["parallel_mode"] == mode
    assert (document["cards"][0]["verdict"] == "fits") is (mode == "fsdp")
    assert f"--jobs {mode}" in ask(*wanted)[1]


def test_the_recipe_of_a_job_depends_on_its_number_of_gpus(ask: Any) -> None:
    for count, how in ((1, "full"), (7, "full"), (8, "selective")):
        job = "llama_8b_fsdp", "--gpu", "nvidia-h200-sxm-141gb", "--jobs", "fsdp", "--count", f"{count}"
        answer, told = (
            json.loads(ask(*job, *given, "--json")[1]) for given in ((), ("--recipe", f"checkpointing={how}"))
        )
        assert (answer["checkpointing"], answer["gpu_count"]) == (how, count)
        assert answer == told
    _, out, _ = ask("llama_8b_fsdp", "--gpu", "nvidia-geforce-rtx-5090-32gb", "--json")
    (card,) = json.loads(out)["cards"]
    shared = [fix["what"] for fix in card["fixes"] if "FSDP" in fix["what"] and fix["verdict"] == "fits"]
    (how,) = shared
    assert all(each in how for each in ("8 GPUs with FSDP", "batch 1 ", "activation checkpointing"))


def test_a_batch_split_into_micro_batches_keeps_its_size_and_its_gradients(ask: Any) -> None:
    shared = "bert_base", "--gpu", "nvidia-geforce-rtx-4090-24gb", "--batch-size", "256", "--json"
    whole, cut = (json.loads(ask(*shared, *more)[1]) for more in ((), ("--accumulate", "3")))
    assert [(a["batch_size"], a["accumulate"]) for a in (whole, cut)] == [(256, 1), (256, 3)]
    assert cut["parts"]["gradients_bytes"] == cut["parts"]["weights_bytes"]
    (told,) = (m for m in whole["cards"][0]["fixes"] if m["what"].startswith("gradients accumulated"))
    assert told["what"].endswith("over 3 micro-batches of 86"), "the fewest that fit"
    assert told["fits"]
    assert told["device_bytes_high"] == cut["device_bytes_high"]
    assert cut["cards"][0]["fits"]
    two = json.loads(ask(*shared, "--accumulate", "2")[1])["cards"][0]
    assert not two["fits"]


def test_a_model_that_only_generates_runs_inference_by_default(ask: Any) -> None:
    answer = json.loads(ask("llama_8b", "--recipe", "weight-type=int4", "--gpu", "rtx-4090", "--json")[1])
    assert (answer["task"], answer["weight_type"], answer["basis"]) == ("infer", "int4", "traced")
    assert answer["cache_tokens"] > 0
    assert answer["parts"]["optimizer_bytes"] == 0


def test_large_numbers_have_separators_wherever_they_appear(ask: Any) -> None:
    """They are in sentences on batches, on micro-batches and on what each of several GPUs needs."""
    batch = "300000000"
    _, out, _ = ask("transformer", "--gpu", "rtx-4090", "--batch-size", batch)
    assert f"batch {300_000_000:,}" in out
    assert re.search(r"over \d[\d,]*,\d{3} micro-batches", out)
    assert not re.search(r"\d{5}", out)
    _, cut, _ = ask("vgg16", "--gpu", "rtx-4090", "--batch-size", batch, "--accumulate", "100000000")
    assert "in 100,000,000 micro-batches" in cut
    _, _, error = ask("vgg16", "--gpu", "rtx-4090", "--batch-size", "1000", "--accumulate", "20000")
    assert "accumulate 20,000: a batch of 1,000 has fewer samples than that" in error


def test_memory_of_a_compiled_step_includes_figures_for_a_compiled_loss(ask: Any) -> None:
    """Only compiled steps have these figures, next to those that decide the verdict."""
    asked = "transformer", "--gpu", "rtx-4090"
    compiled, eager = (
        json.loads(ask(*asked, "--execution", how, "--json")[1]) for how in ("compile", "eager")
    )
    ends = [compiled[f"compiled_loss_bytes{end}"] for end in ("_low", "", "_high")]
    assert ends == sorted(ends)
    assert ends[2] <= compiled["reserved_bytes_high"] == eager["reserved_bytes_high"]
    assert compiled["cards"][0]["compiled_loss_bytes"] == ends[1]
    assert eager["compiled_loss_bytes"] is None
    _, text, _ = ask(*asked, "--execution", "compile")
    told = (
        f"reserves about {ends[1] / 2**30:.2f} GiB ({ends[0] / 2**30:.2f} GiB to {ends[2] / 2**30:.1f} GiB)"
    )
    assert f"also compiles its loss {told}; gpubench does not" in text
    assert "compiles its loss" not in ask(*asked)[1]
    assert "compiles its loss" not in ask("bert_base", *asked[1:], "--execution", "compile")[1]


def test_checkpointing_of_a_model_without_blocks_says_why_it_was_not_traced(ask: Any) -> None:
    _, out, _ = ask("vgg16", "--recipe", "checkpointing=full", "--gpu", "rtx-4090")
    assert "not traced" in out


@pytest.mark.parametrize("execution", ["graph", "eager"])
@pytest.mark.parametrize("batch_size", [6, 12, 40])
def test_memory_verdict_of_a_card_is_consistent_everywhere(ask: Any, execution: str, batch_size: int) -> None:
    """An 8 GiB Radeon has run a published step that the bound for its class would refuse."""
    asked = "vgg16", "--gpu", "amd-radeon-rx-7700s-8gb", "--batch-size", f"{batch_size}"
    answer = json.loads(ask(*asked, "--execution", execution, "--json")[1])
    (card,) = answer["cards"]
    ends = [f"{figure}{end}" for figure in FIGURES for end in ("", "_low", "_high")]
    if card["in_eager_steps"]:
        assert card["graph_bytes_high"] == answer["device_bytes_high"] > card["usable_bytes"]
    else:
        assert card["graph_bytes_high"] is None
        assert [answer[key] for key in ends] == [card[key] for key in ends]
    assert card["fits"] == (card["device_bytes_high"] <= card["usable_bytes"])
    assert all(card[key] <= card["usable_bytes"] for key in ends) or not card["fits"]
    _, text, _ = ask(*asked, "--execution", execution)
    assert (
        ("published step" in text)
        == answer["as_published"]
        == (answer["basis"] == "traced" and (answer["device_bytes_high"] == card["usable_bytes"]))
    )


def test_with_several_cards_the_answer_names_the_card_of_the_top_figures(ask: Any) -> None:
    """The cards are of different classes, so the answer names the GeForce; a single card needs no name."""
    radeon, geforce = "amd-radeon-rx-7700s-8gb", "nvidia-geforce-rtx-4090-24gb"
    both = "vgg16", "--gpu", f"{radeon},{geforce}", "--batch-size", "12", "--execution", "eager"
    answer = json.loads(ask(*both, "--json")[1])
    assert answer["gpu_key"] == geforce
    (whose,) = (card for card in answer["cards"] if card["gpu_keys"] == [geforce])
    assert answer["device_bytes_high"] == whose["device_bytes_high"]
    assert "On RTX 4090, based on" in ask(*both)[1]
    assert "On RX 7700S" not in ask("vgg16", "--gpu", radeon)[1]


def test_an_eager_step_says_nothing_about_the_pinned_memory_of_a_graph(ask: Any) -> None:
    asked = "vgg16", "--gpu", "amd-radeon-rx-7700s-8gb", "--json"
    graph, eager = (
        json.loads(ask(*asked, "--batch-size", "12", "--execution", how)[1])["cards"][0]
        for how in ("graph", "eager")
    )
    assert (eager["fits"], eager["in_eager_steps"]) == (True, False)
    assert (graph["fits"], graph["in_eager_steps"]) == (True, True)
    assert graph["largest_batch"] >= 12
    small = json.loads(ask(*asked, "--batch-size", "6")[1])["cards"][0]
    assert (small["fits"], small["in_eager_steps"]) == (True, False)


def test_suggested_micro_batch_count_is_the_minimum_that_fits(ask: Any) -> None:
    """A published step ran on this Radeon, so the bound for its class does not decide here."""
    asked = "vgg16", "--gpu", "amd-radeon-rx-7700s-8gb", "--batch-size", "40", "--json"
    (card,) = json.loads(ask(*asked)[1])["cards"]
    (told,) = (fix for fix in card["fixes"] if fix["what"].startswith("gradients accumulated"))
    parts = int(told["what"].split()[3])
    fits = [
        json.loads(ask(*asked, "--accumulate", f"{n}")[1])["cards"][0]["fits"] for n in (parts - 1, parts)
    ]
    assert fits == [False, True]
    assert told["fits"]


def test_a_card_without_a_workload_lists_the_models_that_fit(ask: Any) -> None:
    card = "--gpu", "nvidia-geforce-rtx-4090-24gb"
    code, out, _ = ask(*card)
    assert code == 0
    assert "Llama 3 8B" in out
    _, document, _ = ask(*card, "--json")
    (only,) = json.loads(document)["gpus"]
    found = {(row["model"], row["way"]): row for row in only["models"]}
    row = found["Llama 3 8B", "LoRA"]
    assert row["largest_context_tokens"] % 1024 == 0 < row["largest_context_tokens"]
    assert row["device_bytes_low"] < row["device_bytes"] < row["device_bytes_high"] <= only["usable_bytes"]
    code, _, err = ask(*card, "--batch-size", "4")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "add a workload" in err


def test_without_a_gpu_named_cards_are_sorted_by_size(ask: Any) -> None:
    _, out, _ = ask("vgg16", "--json")
    cards = json.loads(out)["cards"]
    sizes = [card["usable_bytes"] for card in cards]
    assert sizes == sorted(sizes)
    largest = [card["largest_batch"] for card in cards]
    assert largest[0] < largest[-1]
    assert len({key for card in cards for key in card["gpu_keys"]}) > 80


BLOCKS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)
    def forward(self, x):
        return self.narrow(self.wide(x).relu())

def build(n):
    return nn.Sequential(Block(), Block()), torch.randn(n, 9, 16), torch.zeros(n, 9, 16), nn.MSELoss()
"""


@pytest.mark.usefixtures("traced_here")
@pytest.mark.parametrize(("shown", "is_traced"), [((), False), (("--gpu", "t4"), True), (("--json",), True)])
def test_other_ways_to_train_are_traced_only_if_the_answer_shows_them(
    ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: Any, is_traced: bool
) -> None:
    (tmp_path / "blocks.py").write_text(BLOCKS)
    trace, answers = cache._trace_in_child, []
    monkeypatch.setattr(cache, "_trace_in_child", lambda *given: answers.append(trace(*given)) or answers[-1])
    code, out, _ = ask(tmp_path / "blocks.py", "--batch-size", "4_000_000", *shown)
    assert code == 0
    traced = {step.recipe.checkpointing for answer in answers for step in answer.profile.memory}
    assert (Checkpointing.FULL in traced) is is_traced
    assert ("activation checkpointing of every block" in out) is is_traced


@pytest.mark.usefixtures("traced_as_asked")
def test_a_users_language_model_needs_its_scores_in_float32(ask: Any, tmp_path: Path) -> None:
    """By hand at 8 x 2,048 tokens: a matrix of scores in half precision and two in float32 are 21.0 GB.

    Weights and AdamW's states are 2.2 GB, their copies in half precision 0.4, layers about 5.5: too much for
    a card of 24 GB, though the formula gave 19.3. A loop that keeps the scores takes 4.2 more; one with the
    whole loss in float32, 8.4.
    """
    path = tmp_path / "gpt.py"
    path.write_text(GPT)
    cards = ("--gpu", "nvidia-geforce-rtx-4090-24gb", "--gpu", "nvidia-l40s-48gb")
    _, out, _ = ask(str(path), *cards, "--batch-size", "8", "--precision", "amp-bf16", "--json")
    answer = json.loads(out)
    assert answer["basis"] == "traced"
    assert answer["allocated_bytes"] == pytest.approx(29.1e9, rel=0.03)
    assert answer["allocated_bytes_high"] > 37.5e9
    assert [card["verdict"] for card in answer["cards"]] == ["does not fit", "fits"]


@pytest.mark.usefixtures("forked_children")
def test_a_model_that_cannot_be_traced_has_the_widest_bound(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(BY_BYTES)
    code, out, err = ask(str(path), "--gpu", "nvidia-tesla-t4-16gb", "--json")
    answer = json.loads(out)
    assert code == 0
    assert "Traceback" not in err
    assert answer["basis"] == "formula"
    assert "(net.py line 10)" in answer["not_traced"]
    assert answer["allocated_bytes_high"] > 2 * answer["allocated_bytes"]


@pytest.mark.usefixtures("traced_here")
@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (BY_DISPATCHER, "mine::fast has no kernel for the CPU (net.py line"),
        (BY_ASSERTION, "one of its kernels takes only CUDA tensors (net.py line 8)"),
        (BY_ASSERTION.replace(', "tensors of CUDA only"', ""), "only CUDA tensors (net.py line 8)"),
        (raising("RuntimeError('x must be a CUDA tensor')"), "only CUDA tensors (net.py line 8)"),
        (
            raising("RuntimeError('0 active drivers ([]). There should only be one.')"),
            "tensors (net.py line 8)",
        ),
        (
            raising("ValueError('Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)')"),
            "only CUDA tensors (net.py line 8)",
        ),
    ],
)
def test_cuda_only_kernel_gets_the_widest_memory_bound(
    ask: Any, tmp_path: Path, kernel: str, why: str
) -> None:
    path = tmp_path / "net.py"
    path.write_text(kernel + WITH_KERNEL)
    code, out, err = ask(str(path), "--gpu", "nvidia-tesla-t4-16gb", "--batch-size", "1024", "--json")
    assert (code, "Traceback" in err) == (0, False)
    answer = json.loads(out)
    assert answer["basis"] == "formula"
    assert why in answer["not_traced"]
    assert "register_fake" in answer["not_traced"]
    assert answer["allocated_bytes_high"] > 2 * answer["allocated_bytes"]


@pytest.mark.usefixtures("traced_here")
@pytest.mark.parametrize("kernel", [BY_DISPATCHER, pytest.param(BY_ASSERTION, marks=pytest.mark.slow)])
def test_bound_of_a_cuda_only_kernel_covers_the_trace_without_it(
    ask: Any, tmp_path: Path, kernel: str
) -> None:
    path, plain = tmp_path / "net.py", tmp_path / "plain.py"
    path.write_text(kernel + WITH_KERNEL)
    plain.write_text("import torch\nfast = torch.clone\n" + WITH_KERNEL)
    answer, traced = (
        json.loads(ask(str(each), "--gpu", "nvidia-tesla-t4-16gb", "--batch-size", "1024", "--json")[1])
        for each in (path, plain)
    )
    assert (answer["basis"], traced["basis"]) == ("formula", "traced")
    assert answer["allocated_bytes_high"] > traced["allocated_bytes"] > answer["allocated_bytes_low"]
    with pytest.raises(MisuseError, match="FLOPs cannot be"):
        predict(str(path), precision="amp", gpu="nvidia-tesla-t4-16gb")


@pytest.mark.usefixtures("traced_here")
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("fast = lambda x: missing(x)\n", "NameError"),
        ("fast = lambda x: x[:, :3]\n", "RuntimeError"),
        ("def fast(x):\n    assert x.shape[1] == 3\n", "AssertionError"),
        ("def fast(x):\n    raise NotImplementedError('later')\n", "NotImplementedError: later"),
        ("def fast(x):\n    assert x.is_cuda\n", "register_fake"),
        (raising("RuntimeError('the rows are not sorted')"), "RuntimeError: the rows are not sorted"),
        (raising("ValueError('3 is not a width') # of CUDA"), "ValueError: 3 is not a width"),
        ("def fast(x):\n    raise RuntimeError('needs a gpu')\n", "RuntimeError: needs a gpu"),
    ],
)
def test_an_error_other_than_a_missing_kernel_is_reported_as_the_models_own(
    ask: Any, tmp_path: Path, kernel: str, message: str
) -> None:
    path = tmp_path / "net.py"
    path.write_text(kernel + WITH_KERNEL)
    code, _, err = ask(str(path), "--gpu", "nvidia-tesla-t4-16gb")
    assert (code, "one training step" in err) == (2, True)
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch",), "unknown workload 'nosuch'; nearest known: none; `gpubench list` shows"),
        (("vgg16", "--gpu", "nosuch"), "unknown GPU 'nosuch'"),
        (("./never_traced.py", "--gpu", "nosuch"), "unknown GPU 'nosuch'"),
        (("vgg16", "--batch-size", "0"), "must be at least 1"),
        (("vgg16", "--batch-size", "9" * 26), "must be a number from 1e-09 to 1e+15, at least 1"),
        (("vgg16", "--batch-size", "9" * 14), "more than any step can have"),
        (("vgg16", "--batch-size", "9" * 14, "--accumulate", "9" * 13), "more than any step can have"),
        (("vgg16", "--precision", "int4"), "--precision 'int4' is unknown"),
        (("vgg16", "--precision", "int8", "--gpu", "nvidia-tesla-t4-16gb"), "inference (--task infer) only"),
        (("vgg16", "--task", "sleep"), "--task 'sleep' is unknown"),
        (("vgg16", "--count", "0"), "--count 0"),
        (("vgg16", "--gpu", "0x L4"), "state 0 GPUs: give one number, at least 1"),
        (("vgg16", "--jobs", "pipeline"), "--jobs 'pipeline' is unknown"),
        (("vgg16", "--accumulate", "0"), "--accumulate 0 must be at least 1"),
        (("vgg16", "--accumulate", "65"), "accumulate 65: a batch of 64 has fewer samples"),
        (("vgg16", "--accumulate", "2", "--task", "infer"), "accumulate 2: an inference step"),
        (("llama_8b", "--recipe", "weight-type=nf4"), "nf4 is only for the base under QLoRA's adapters"),
        (("llama_8b", "--task", "train"), "leave out --task train, or use llama_8b_fsdp, llama_8b_lora"),
    ],
)
def test_bad_input_is_one_line(ask: Any, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = ask(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_an_answer_for_no_gpu_is_misuse_as_in_predict_show(ask: Any) -> None:
    code, out, err = ask("transformer", "--precision", "fp8", "--gpu", "T4", "--gpu", "A40", "--json")
    answer = json.loads(out)
    assert (code, answer["cards"]) == (2, [])
    assert {each["reason"] for each in answer["refused"]} == {
        "T4 has no FP8 tensor cores",
        "A40 has no FP8 tensor cores",
    }
    assert "no GPU has an answer: T4 has no FP8 tensor cores; A40 has no FP8 tensor cores" in err
    assert ask("transformer", "--precision", "fp8", "--gpu", "T4", "--gpu", "L4", "--json")[0] == 0


def test_training_throughput_is_refused_for_a_workload_that_is_never_trained() -> None:
    with pytest.raises(MisuseError, match="llama_8b is never trained"):
        predict(workload="llama_8b", task="train", gpu=["nvidia-l4-24gb"])
    (answer,) = predict(workload="llama_8b", gpu=["nvidia-l4-24gb"]).estimates
    assert answer.case.task == "infer"


def test_all_workloads_means_those_that_have_the_precision(ask: Any) -> None:
    code, out, _ = ask("--precision", "fp8", "--json")
    named = {answer["workload"] for answer in json.loads(out)["workloads"]}
    assert code == 0
    assert "transformer" in named
    assert "cnn" not in named


def test_a_number_before_the_gpu_name_is_the_number_of_gpus(ask: Any) -> None:
    """A common way to ask: "does it fit on 2x RTX 3090"."""
    asked = ("llama-3.1-70b", "--qlora", "--json", "--brief")
    by_name, by_count = (
        json.loads(ask(*asked, *more)[1])
        for more in (("--gpu", "2x RTX 3090"), ("--gpu", "RTX 3090", "--count", "2"))
    )
    assert by_name == by_count
    assert (by_name["gpu_count"], by_name["parallel_mode"]) == (2, "ddp")
    (card,) = by_name["cards"]
    assert (card["verdict"], card["fits_with"]) == ("does not fit", "8 GPUs with FSDP, batch 1 on each")
    code, _, said = ask(*asked, "--gpu", "2x RTX 3090", "--count", "4")
    assert (code, said.count("\n")) == (2, 1)
