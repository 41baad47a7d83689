"""The answer to an option is on the first screen, however little space the three answers leave."""

from __future__ import annotations

import functools
import re

import pytest
from click.testing import CliRunner
from command import settings

from gpubench import rank
from gpubench.cli.app import app
from gpubench.errors import MisuseError
from gpubench.pricings import Pricing
from gpubench.recommend.lines import lines
from gpubench.sections.answer import answer_table

A_SUM = r"\$[\d.,]+"

ASKED = {
    "tokens of a served model": ("llama_8b --task infer", rf"A million tokens cost {A_SUM} .*static batch of 8"),
    "lost spot machines": ("resnet50 --provider aws --spot", r"Spot stays cheaper than its seller's on-demand price unless interruptions add \d+ % to the work"),
    "spot that is not the first row": ("resnet50 --spot", r"one spot interruption in 24 hours, checkpoints every 54 minutes"),
    "one year": ("resnet50 --gpu h100 --commit 1y", rf"{A_SUM} with a commitment of 1 year.* {A_SUM} on demand .* pays off above \d+ % use"),
    "three years beside it": ("resnet50 --gpu h100 --commit 1y", rf"{A_SUM} with a commitment of 3 years"),
    "too small a sum": ("--max-purchase-usd 500", r"\$500 does not cover a PC and a card that does this job; the PC is assumed to cost \$1,000"),
    "a card alone": ("--max-purchase-usd 500", rf"--have pc.*{A_SUM} buys .*\(used\): the job in"),
    "rented for a sum": ("--max-purchase-usd 500", r"\$500 rents .* for \d+ of these jobs"),
    "the PC in a sum": ("--max-purchase-usd 1500", r"\$1,000 of that is for a PC for the cards; `--have pc` leaves that out"),
    "the server in a sum": ("--max-purchase-usd 100000", r"\$12,000 of that is for a GPU server: these cards do not fit a desktop"),
    "what one has": ("resnet50 --have h100", rf"Your 1x H100 .* {A_SUM} \(energy only\)"),
    "rent compared with an owned machine": ("resnet50 --have h100", rf"[Rr]enting .* costs {A_SUM} and takes"),
    "what to run if weights can be sharded": (
        "llama-3.1-70b --qlora --have '2x RTX 3090'", r"all weights on each GPU; .* with `--count 2 --jobs fsdp`"
    ),
    "what does not fit": ("llama-3.1-70b --qlora --have '2x RTX 3090'", r"Your 2x RTX 3090 is not ranked: .* of 24 GiB"),
    "how many by then": ("llama-3.1-8b --lora --gpu h100 --deadline-hours 72", r"The fewest GPUs that finish within 3.00 days"),
    "adapters": ("llama-3.1-8b --lora --samples 20000", r"LoRA.* 2,048 tokens \(`--context`\), batch 2 per GPU, with plain PEFT .*stack=fused"),
    "adapters in 4 bits": ("mistral-7b --qlora", r"QLoRA"),
    "all weights": ("hf:Qwen/Qwen2.5-7B", r"[Aa]ll weights"),
    "data to send": ("resnet50 --dataset-gb 200", r"200 GB of upload included"),
    "much data to send": ("resnet50 --dataset-gb 5000 --gpu l4", r"start 6,680 minutes before the first step, 5,000 GB of upload included"),
    "a single epoch": ("resnet50 --epochs 1 --gpu l4", r"^resnet50, 1 epoch of ImageNet"),
    "a single sample": ("resnet50 --samples 1 --gpu l4", r"^resnet50, 1 image, "),
    "a single GPU": ("resnet50 --have l4 --count 2", r"Your 1x L4 is not ranked: 1 GPU, not 2"),
    "a batch on cards of a size": ("vit_b16 --gpu '16 GB'", r"Batch 64 on .*: fits \(needs [\d.]+ to [\d.]+ of 16 GiB"),
    "its own batch": ("vit_b16 --gpu 16gb --batch-size max", r"RTX 5080 \d+"),
    "what a budget leaves out": ("resnet50 --budget-usd 10", r"Left out of \d+ offers: \d+ may exceed \$10\.00\."),
    "what both limits leave out": ("resnet50 --budget-usd 20 --deadline-hours 10", r"\d+ may exceed 10\.0 h and \d+ may exceed"),
    "epochs of a known data set": ("resnet50 --epochs 10", r"resnet50, 10 epochs of ImageNet, "),
    "a workload as people write it": ("BERT-base", r"^bert_base, "),
    "a guess may be faster": ("resnet50 --sort time", r"[Gg]uess"),
}  # fmt: skip


@functools.cache
def screen(words: str, columns: str = "80") -> str:
    from shlex import split

    done = CliRunner().invoke(app, ["rank", *split(words)], env={"COLUMNS": columns, "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(("words", "told"), ASKED.values(), ids=ASKED)
def test_answer_to_the_question_is_on_the_first_screen(words, told):
    assert re.search(told, " ".join(screen(words).split()))


def test_epochs_of_a_known_data_set_are_converted_to_samples():
    found = rank("resnet50", epochs=90, draws=50)
    assert found.job.samples == rank("resnet50", draws=50).job.samples
    with pytest.raises(MisuseError, match="go together"):
        rank("vgg16", epochs=90)


@pytest.mark.parametrize(
    ("gpus", "models"), [(["mi300x", "h100"], {"mi300x", "h100"}), (["1x H100", "4x L40S"], {"h100", "l40s"})]
)
def test_each_named_gpu_has_its_own_line(gpus, models):
    found = rank("vgg16", gpu=gpus, draws=50)
    named = {line.choice.offer.gpu_key.split("-")[1] for line in lines(found)}
    assert models <= named
    told = " ".join(found.said("asked"))
    assert re.search(r"Per dollar, .* does [\d.]+ times \([\d.]+ to [\d.]+\) the work of", told)


def test_named_card_to_buy_gets_a_line_in_the_answer():
    """New cards are above the sum and rent was not requested, so used cards are the answer."""
    asked = {"have": "pc", "count": 1, "max_purchase_usd": 1500}
    found = rank("vgg16", gpu=["RTX 5080", "RTX 3090"], draws=50, **asked)
    named = {line.choice.offer.gpu_key: line.choice.condition for line in lines(found)}
    assert named == {"nvidia-geforce-rtx-5080-16gb": "used", "nvidia-geforce-rtx-3090-24gb": "used"}
    assert not [each.text for each in found.sentences if "is not ranked" in each.text]


def test_users_pc_has_the_slots_and_power_of_a_desktop():
    """Eight cards of 220 W are 1,760 W; a desktop has a supply of 1,200 W and six slots."""
    found = rank("vgg16", have="pc", max_purchase_usd=1500, draws=50)
    sets = [row for row in found.rows if row.offer.pricing == "owned"]
    assert sets
    assert max(row.offer.gpu_count for row in sets) <= 3
    roomy = rank("vgg16", have="pc", max_purchase_usd=1500, draws=50, psu_watts=3000, slots=16)
    assert max(row.offer.gpu_count for row in roomy.rows) > 3


def test_a_named_gpu_that_cannot_be_ranked_is_listed_with_the_reason():
    """A TPU runs no CUDA program; the T4 next to it is ranked."""
    found = rank("resnet50", gpu=["TPU v5e", "T4"], draws=50)
    assert {row.offer.gpu_key.split("-")[2] for row in found.rows} == {"t4"}
    (reason,) = [text for text in found.said("asked") if text.startswith("TPU v5e is not ranked: ")]
    assert "JAX" in reason
    with pytest.raises(MisuseError, match="not ranked: runs JAX"):
        rank("resnet50", gpu=["TPU v5e"])
    with pytest.raises(MisuseError, match="unknown GPU 'RTX 4900'"):
        rank("resnet50", gpu=["RTX 4900", "T4"])


def test_an_empty_answer_says_what_would_leave_an_offer():
    with pytest.raises(MisuseError, match="; the available numbers of GPUs: 1, 2, 4, "):
        rank("resnet50", gpu=["a100"], count=3, draws=50)
    with pytest.raises(MisuseError, match="on each; `gpubench memory` says what would help"):
        rank("llama-3.1-405b", samples=10, draws=50)


def test_a_default_batch_that_does_not_fit_gives_way_to_the_largest_that_does():
    """A requested batch is kept: the card is then excluded, with what would help."""
    asked = {"samples": 20_000, "qlora": True, "have": "RTX 3090", "draws": 50}
    found = rank("llama-3.1-8b", **asked)
    (mine,) = found.owned
    assert mine.row.estimate.case.batch_size == 1
    assert mine.row.estimate.batch_choice == "largest"
    assert "Smaller batch to fit in memory: 1x RTX 3090 at 1; others use 2." in found.said("caution")
    (job,) = [text for text in found.said("asked") if text.startswith("The job trains ")]
    assert "batch 2 per GPU" in job
    kept = rank("llama-3.1-8b", **asked, batch_size=2)
    assert not kept.owned
    (removed,) = [text for text in kept.said("asked") if text.startswith("Your 1x RTX 3090 is not ranked: ")]
    assert removed.endswith(
        "largest batch 1; to rank it anyway, name it with --gpu; `gpubench memory` says what would help."
    )


def test_an_offer_that_fits_only_sharded_is_flagged_before_payment():
    """All weights of an 8B model need about 66 GiB: eight cards of 40 GB have room for shards, one of 141 GB for all."""
    asked = {"samples": 20_000, "draws": 50}
    (told,) = [
        text
        for text in rank("llama-3.1-8b", **asked, gpu=["8x A100 SXM4 40GB"]).said("caution")
        if "can hold this job only sharded (FSDP)" in text
    ]
    assert told.startswith("8x A100 SXM4 40GB ")
    alone = rank("llama-3.1-8b", **asked, gpu=["1x H200 SXM"]).said("caution")
    assert not [text for text in alone if "sharded" in text]


def test_a_purchase_states_that_a_job_pays_a_share_of_it():
    found = rank("resnet50", max_purchase_usd=3000, draws=50)
    assert any(
        "a share of the purchase, used 50 % of all hours for 3 years" in t for t in found.said("asked")
    )


def test_a_purchase_is_used_for_the_stated_jobs_of_a_month():
    """The jobs set the use of each machine: 18 h of 730 h are 2.5 %, not the usual half of all hours."""
    found = rank("resnet50", max_purchase_usd=3000, jobs_per_month=1, draws=50)
    (told,) = [t for t in found.said("asked") if "a share of the purchase" in t]
    assert told.endswith("a share of the purchase, used for 1 job a month for 3 years.")
    found = rank("resnet50", max_purchase_usd=3000, jobs_per_month=100_000, draws=50)
    assert found.said("asked")[0] == "$3,000 buys no card that does 100,000 of these jobs a month."


def test_the_cost_of_owning_a_quoted_machine_states_its_own_life_and_use():
    quote = "2x RTX 4090, 100 USD, host 0 USD, 2 years, 80 %, 380 W"
    found = rank("vgg16", have=[quote], draws=50)
    (told,) = [t for t in found.said("answer") if t.startswith("Owning 2x RTX 4090 costs ")]
    assert told.endswith("if it is busy 80 % of all hours for 2 years, after a purchase for $100.")


def test_the_rent_compared_with_owning_is_that_of_the_same_work():
    """A slower card is rented for longer, so the figure compared is not the seller's price per hour."""
    found = rank("resnet50", buy=True, max_watts=100, draws=50)
    compared = next(each for each in found.buy_or_rent if each.against_pricing is Pricing.ON_DEMAND)
    said = [t for t in found.said("answer") if t.startswith("Buying 1x Jetson")]
    assert f"{compared.against} at ${compared.equivalent_usd_per_hour:.3g}/h for the same work: it" in said[0]


def test_the_fastest_is_the_cheapest_offer_of_the_fastest_machine():
    """Sellers of one machine differ by the possible loss on a private host: 1.5 %."""
    found = rank("llama-3.1-8b", samples=20_000, qlora=True, gpu=["A100 SXM4 40GB"], count=1, draws=50)
    fastest = found.answers["fastest"].row
    same = [row for row in found.rows if row.hours.value <= 1.02 * min(r.hours.value for r in found.rows)]
    assert fastest.cost_usd.value == min(row.cost_usd.value for row in same)


def test_a_country_is_a_region_and_offers_without_a_region_are_counted():
    found = rank("resnet50", region=["Germany"], draws=50)
    assert any(
        re.fullmatch(r"Left out: \d+ offers of unknown region\.", text) for text in found.said("asked")
    )
    assert found.rows


def test_a_single_named_gpu_needs_no_extra_line():
    found = rank("vgg16", gpu=["h100"], draws=50)
    assert not [line for line in lines(found) if line.names == "Also named"]
    assert "Per dollar, " not in " ".join(found.said("asked"))


def test_a_named_gpu_that_is_also_the_best_of_a_cloud_has_one_line():
    found = rank("resnet50", gpu=["h100", "l4", "rtx 4090"], draws=50)
    assert found.cloud.offer in [each.offer for each in found.asked]
    shown = [line.choice.offer for line in lines(found)]
    assert len(shown) == len(set(shown))


def test_a_cost_states_that_it_includes_tax_and_egress():
    with settings(tax=0.19, egress_usd=18):
        shown = " ".join(screen.__wrapped__("resnet50 --dataset-gb 200").split())
    assert "19 % tax" in shown
    assert "$18.00 for egress" in shown


def test_memory_size_as_gpu_name_is_accepted_in_any_spelling():
    tables = [
        answer_table(rank("vit_b16", gpu=[name], draws=50)).rows for name in ("16gb", "16 GB", "16 GiB")
    ]
    assert tables[0] == tables[1] == tables[2]


def test_gpu_count_without_offers_is_refused_with_the_offered_counts():
    with pytest.raises(MisuseError, match=r"no offer has 3x RTX 3090.*: offers have 1.* of them"):
        rank("vgg16", gpu=["3x RTX 3090"])


def test_unmeetable_limit_is_named_in_the_first_sentence():
    with pytest.raises(MisuseError) as told:
        rank("resnet50", budget_usd=1)
    first, _, rest = str(told.value).partition(":")
    assert "--budget-usd" in first
    assert len(str(told.value).split()) < 60
    assert re.search(r"--budget-usd [\d.]+ would leave 1x ", rest)


def test_a_model_that_fits_no_gpu_is_refused_for_its_memory():
    """Some cards also have no kernels, but the reason is the memory that 671 billion parameters need."""
    with pytest.raises(MisuseError, match="not even a batch of 1 fits") as refused:
        rank("deepseek-v3", qlora=True)
    assert "kernels" not in str(refused.value)


@pytest.mark.parametrize("name", ["gpu", "provider", "region"])
def test_a_blank_name_is_refused(name):
    """An unset shell variable gives this: ``--region "$REGION"``."""
    with pytest.raises(MisuseError, match=rf"{name} is empty: give a value, or leave it out"):
        rank("vgg16", draws=50, **{name: [" "]})


def test_a_machine_that_costs_nothing_is_not_ranked_and_the_reason_says_what_to_give():
    found = rank("vgg16", have="RTX 3090, 0 USD/kWh", draws=50)
    assert any(
        "costs nothing per hour: give its price or the tariff" in each.text for each in found.sentences
    )


def test_the_nearest_machine_of_ones_own_or_to_buy_is_named_as_that():
    with pytest.raises(MisuseError) as told:
        rank("resnet50", max_purchase_usd=2000, deadline_hours=5, draws=50)
    assert re.search(
        r"the nearest is 2x RTX 3080 Ti to buy \(used, 3 years at 50 %\): takes ", str(told.value)
    )
    assert re.search(r"--deadline-hours [\d.]+ would leave 2x RTX 3080 Ti to buy \(used", str(told.value))
    with pytest.raises(
        MisuseError, match=r"the nearest is 1x RTX 3060 12GB of yours \(3 years at 50 %\): takes "
    ):
        rank("resnet50", have=["RTX 3060, 300 USD"], gpu=["3060"], buy=True, deadline_hours=0.5, draws=50)


def test_ones_own_card_that_may_not_fit_is_ranked_if_named_and_the_answer_says_so():
    asked = {
        "have": "RTX 3060",
        "qlora": True,
        "loss_chunks": 8,
        "batch_size": 1,
        "samples": 1000,
        "draws": 50,
    }
    (told,) = [t for t in rank("llama-3.1-8b", **asked).said("asked") if t.startswith("Your 1x RTX 3060")]
    assert "may fit (needs " in told
    assert told.endswith("to rank it anyway, name it with --gpu; `gpubench memory` says what would help.")
    (named,) = rank("llama-3.1-8b", **asked, gpu=["RTX 3060"], buy=True).owned
    assert named.row.estimate.may_fit


@pytest.mark.parametrize(
    ("workload", "precision", "is_said"),
    [("resnet50", "amp", True), ("resnet50", "fp32", False), ("lstm", "amp", False)],
)
def test_the_layout_that_a_prediction_assumes_is_said_of_images(workload, precision, is_said):
    told = rank(workload, precision=precision, gpu="rtx 4090", draws=50).said("sureness")
    assert any("channels_last" in each for each in told) is is_said


def test_a_question_about_spot_that_leaves_no_spot_price_says_so():
    options = {"workload": "resnet50", "spot": True, "draws": 50}
    words = "None of the remaining prices is a spot price."
    assert words in rank(seller="secure", **options).said("caution")
    assert words not in rank(gpu="a100", **options).said("caution")


def test_a_measured_gpu_is_said_to_hold_the_batch_that_it_ran():
    told = rank("resnet50", min_memory_gib=100, provider="koyeb", gpu="h200", draws=50).said("asked")
    assert "Batch 64 on H200 SXM 141GB: fits (it ran)." in told


@pytest.mark.parametrize(
    ("quote", "doubt"),
    [
        ("8x H100 SXM, 3000 USD", "0.013 times the lowest listed price"),
        ("RTX 3090, 70000 USD", "47 times the highest listed price"),
        ("RTX 3090, 700 USD", None),
        ("2x RTX 3090, 1400 USD, host 9000 USD", None),
        ("RTX 3090", None),
    ],
)
def test_a_quote_far_from_the_listed_prices_of_its_card_is_cautioned(quote, doubt):
    """The price of one card, given for eight, won without a word."""
    told = " ".join(rank("resnet50", have=quote, draws=50).said("caution"))
    assert ("listed price" in told) is (doubt is not None)
    assert (doubt or "") in told


def test_an_exclusion_of_nothing_is_told():
    said = rank("resnet50", draws=50, exclude=("titan x", "vast", "h100")).said("asked")
    assert [each for each in said if "--exclude" in each] == ["No offer matches `--exclude titan x`."]
