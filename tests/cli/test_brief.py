"""Short documents for scripts: in 8 kB, what a decision needs, with the same figures as the full documents."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import msgspec
import pytest
from command import here

from gpubench.recommend import rank
from gpubench.recommend.request import RankRequest

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
EXAMPLES = [
    line.replace('"RTX 4090"', "rtx-4090").split()[1:]
    for line in re.findall(r"`(gpubench [^`]*--json --brief)`", PAGE.read_text(encoding="utf-8"))
]
MOST_BYTES = 8000
LONGEST = [
    (*words.split(), "--json", "--brief")
    for words in (
        "rank",
        "rank resnet50 --max-purchase-usd 30000",
        "rank gpt2 --dataset-gb 100 --deadline-hours 100",
        "rank mixtral-8x7b --qlora --dataset-gb 100",
        "rank resnet50 --gpu h100,l40s,a100,l4 --commit 1y --have h100",
        "predict show resnet50",
        "predict show resnet50 --sort energy --power-limit 250",
        "memory llama_8b_lora",
        "memory",
    )
]


def said(*arguments: str):
    done = here(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [*EXAMPLES, *LONGEST], ids=" ".join)
def test_a_short_document_is_one_line_of_at_most_8_kb(arguments):
    text = said(*arguments)
    assert len(text.encode()) <= MOST_BYTES
    assert text.count("\n") == 1
    json.loads(text)


def test_folders_and_price_tables_of_the_user_are_reported_as_they_were_typed(tmp_path):
    table = tmp_path / "mine.csv"
    columns = "provider,instance,gpu_key,gpu_count,price_usd_per_hour,price_date"
    table.write_text(f"{columns}\nlab,mine,RTX 4090,1,0.40,{time.strftime('%Y-%m-%d')}\n", encoding="utf-8")
    asked = ("rank", "resnet50", "--offers", str(table), "--results", str(tmp_path), "--json", "--brief")
    question = json.loads(said(*asked))["question"]
    assert str(table) in json.dumps(question)


def test_the_page_has_an_example_for_each_verb():
    assert {each[0] for each in EXAMPLES} == {"rank", "memory", "predict"}


def test_a_question_that_no_offer_answers_exits_as_documented_without_a_document():
    (example,) = (each for each in EXAMPLES if "--budget-usd" in each)
    asked = [*example[:-2], "--json", "--brief"]
    asked[asked.index("--budget-usd") + 1] = "0.01"
    done = here(*asked)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--budget-usd" in done.stderr
    assert "exit 2 if none qualifies" in PAGE.read_text(encoding="utf-8")


def test_the_example_of_this_machine_lists_its_devices():
    assert "`gpubench probe --json` | `devices[]`" in PAGE.read_text(encoding="utf-8")
    (device, *_) = json.loads(said("probe", "--json"))["devices"]
    assert device["name"]


def test_a_short_ranking_has_the_answers_of_the_full_one():
    whole, short = (json.loads(said("rank", "resnet50", "--json", *more)) for more in ((), ("--brief",)))
    for name, answer in whole["answers"].items():
        row = short["rows"][short["answers"][name]["row"]]
        for key, value in whole["rows"][answer["row"]].items():
            assert row[key] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)
        assert short["answers"][name]["p_best"] == answer["p_best"]
    assert {row["instance"] for row in short["rows"]} == {
        whole["rows"][each["row"]]["instance"] for each in whole["answers"].values()
    }
    verdict = [each for each in whole["sentences"] if each["kind"] != "note"]
    assert [each for each in short["sentences"] if each["kind"] != "note"] == verdict


def test_a_short_ranking_counts_its_omissions_and_omits_no_caution(monkeypatch):
    asked = RankRequest(workloads=("resnet50",), spot=True)
    ranking = rank.rank(asked)
    whole = rank.brief_document(ranking, asked)
    monkeypatch.setattr(rank, "BRIEF_BYTES", len(msgspec.json.encode(whole)) - 200)
    short = rank.brief_document(ranking, asked)
    assert (whole["more"], short["more"]) == (0, len(whole["sentences"]) - len(short["sentences"]))
    assert short["more"] > 0
    lost = [each for each in whole["sentences"] if each not in short["sentences"]]
    assert {each["kind"] for each in lost} <= {"answer", "sureness"}
    assert short["sentences"][0] == whole["sentences"][0]
    monkeypatch.setattr(rank, "BRIEF_BYTES", 0)
    left = rank.brief_document(ranking, asked)["sentences"]
    assert {each["kind"] for each in left} <= {"asked", "caution"}


def test_a_short_prediction_has_the_fastest_and_counts_the_others():
    whole, short = (
        json.loads(said("predict", "show", "resnet50", "--json", *more)) for more in ((), ("--brief",))
    )
    told = short["estimates"]
    guessed = {each["gpu_key"] for each in whole["estimates"] if "OUT_OF_DOMAIN" in str(each["findings"])}
    every = sorted(whole["estimates"], key=lambda each: (each["gpu_key"] in guessed, -each["samples_per_s"]))
    assert [each["gpu_key"] for each in told] == [each["gpu_key"] for each in every[: len(told)]]
    assert told[0]["samples_per_s"] == every[0]["samples_per_s"] > told[-1]["samples_per_s"]
    assert short["more"] == len(every) - len(told) > 0
    assert short["refused"] == len(whole["refused"])


def test_a_short_prediction_can_be_sorted_by_energy_with_intervals():
    told = json.loads(said("predict", "show", "resnet50", "--sort", "energy", "--json", "--brief"))[
        "estimates"
    ]
    joules = [each["joules_per_sample"] for each in told]
    assert joules == sorted(joules)
    assert all(
        each["joules_per_sample_low"] < each["joules_per_sample"] < each["joules_per_sample_high"]
        for each in told
    )


def test_a_short_prediction_has_the_cost_and_savings_of_a_power_limit():
    asked = ("predict", "show", "resnet50", "--gpu", "a100", "--power-limit", "250", "--json", "--brief")
    (told,) = json.loads(said(*asked))["estimates"]
    assert told["gpu_key"] == "nvidia-a100-sxm-80gb"
    assert told["capped_time_low"] <= told["capped_time"] <= told["capped_time_high"]
    assert told["capped_energy_low"] < told["capped_energy"] < 1 < told["capped_energy_high"] < 1.2


def test_a_short_memory_answer_has_every_card_with_its_verdict():
    whole, short = (json.loads(said("memory", "vgg16", "--json", *more)) for more in ((), ("--brief",)))
    assert short["device_bytes"] == whole["device_bytes"]
    for mine, card in zip(short["cards"], whole["cards"], strict=True):
        assert mine == {name: card[name] for name in mine}
        assert set(mine) == {"gpu_keys", "memory_bytes", "verdict", "largest_batch"}


def test_a_short_memory_answer_has_the_recipe_and_says_it_comes_from_the_shape():
    told = json.loads(said("memory", "qwen2.5-7b", "--qlora", "--gpu", "H100", "--json", "--brief"))
    recipe = (told["trainable"], told["weight_type"], told["checkpointing"], told["stack"])
    assert recipe == ("qlora", "nf4", "full", "plain")
    assert told["basis"] == "shape"
    network = json.loads(said("memory", "vgg16", "--json", "--brief"))
    assert (network["basis"], network["trainable"]) == ("traced", "full")
    assert "context_tokens" not in network


def test_a_short_refusal_says_why():
    done = here("predict", "show", "llama-3.1-70b", "--qlora", "--gpu", "RTX 3090", "--json", "--brief")
    assert done.returncode == 2
    told = json.loads(done.stdout)
    assert (told["estimates"], told["refused"]) == ([], 1)
    assert "does not fit" in told["reasons"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rank", "vgg16", "--brief"), "--brief shortens the output of --json: give both"),
        (("memory", "vgg16", "--brief"), "--brief shortens the output of --json: give both"),
        (("memory", "--gpu", "L4", "--json", "--brief"), "takes no other option: add a workload"),
    ],
)
def test_an_option_without_effect_is_refused_in_one_line(arguments, words):
    done = here(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
