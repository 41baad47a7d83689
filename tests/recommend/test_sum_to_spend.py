"""A purchase budget buys sets of cards with a suitable host, or complete computers; too small a one gives advice."""

from __future__ import annotations

import math
import re

import pytest

import gpubench
from gpubench.errors import MisuseError
from gpubench.offers.hardware import PLANNING_VALUE, card_prices, hosts
from gpubench.recommend.factors import cooling_of
from gpubench.recommend.lines import lines, what_of
from gpubench.recommend.owning import host_for, ownerships
from gpubench.recommend.rank import document
from gpubench.recommend.request import RankRequest
from gpubench.specs import load_specs

from .builders import TODAY

RTX3090, L40 = "nvidia-geforce-rtx-3090-24gb", "nvidia-l40-48gb"


def spend(usd, *names, **options):
    return gpubench.rank(*names, max_purchase_usd=usd, as_of="2026-11-20", draws=100, **options)


def told(ranking):
    return {line.names: what_of(line.choice) for line in lines(ranking)}


def host_of(gpu_key, count, **options):
    spec = load_specs()[gpu_key]
    return host_for(RankRequest(**options), spec, count, spec.board_power_w).name


def test_the_host_is_the_cheapest_that_fits_the_cards():
    """Three RTX 3090s of 350 W and 3 slots need 1,050 W and 9 slots, more than a desktop or workstation has."""
    assert [host_of(RTX3090, n) for n in (1, 2, 3, 5)] == [
        "desktop PC",
        "desktop PC",
        "GPU server",
        "GPU server",
    ]
    assert host_of("nvidia-rtx-6000-ada-48gb", 4) == "workstation"  # 4 x 300 + 300 W, 8 slots
    assert host_of(L40, 1) == "GPU server"  # it has no fan
    assert host_of(RTX3090, 3, psu_watts=2000, slots=9) == "desktop PC"


def test_budget_of_30000_dollars_yields_a_multi_gpu_set():
    found = spend(30000, "resnet50")
    most, best = found.answers["fastest"].choice, found.answers["cheapest"].choice
    assert most.row.offer.gpu_count >= 4
    assert best.purchase_usd < most.purchase_usd <= 30000
    (most_told,) = (what for name, what in told(found).items() if "Most work" in name)
    assert most_told.startswith(f"{most.row.offer.gpu_count}x ")
    assert f"with a host, ${best.purchase_usd:,.0f}" in told(found)["Best per dollar"]
    bought = {(each.gpu_key, each.gpu_count): each for each in found.buy_or_rent}
    for (key, count), each in bought.items():
        spec = load_specs()[key]
        host = next((host for host in hosts() if host.price_usd == each.host_usd), None)
        if host is not None:
            assert spec.board_power_w * count + host.power_w <= 0.8 * host.psu_watts
            assert (spec.slot_count or 3) * count <= host.slots


def test_the_most_work_for_the_sum_is_the_fastest_set_and_the_best_per_dollar_the_cheapest_job():
    found = spend(30000, "resnet50")
    rows = [row for row in found.rows if not row.estimate.is_extrapolated]
    assert found.answers["fastest"].row.hours.value == min(row.hours.value for row in rows)
    assert found.answers["cheapest"].row.cost_usd.value == min(row.cost_usd.value for row in rows)


def test_budget_of_500_dollars_explains_what_it_buys():
    """With a PC it buys a card; without, the sentence gives the number of jobs at the cheapest rent."""
    found = spend(500, "resnet50")
    none, with_pc, rent = found.said("asked")[:3]
    assert none == "$500 does not cover a PC and a card that does this job; the PC is assumed to cost $1,000."
    assert with_pc.startswith("With your own PC (`--have pc`), $4")
    jobs = math.floor(500 / found.answers["cheapest"].row.cost_usd.value)
    assert rent.endswith(f"for {jobs} of these jobs.")
    assert found.first.source != "own"
    assert none in [each["text"] for each in document(found)["sentences"]]
    at_hand = spend(500, "resnet50", have=["pc"])
    assert at_hand.first.source == "own"
    assert none not in at_hand.said("asked")


def test_a_sum_that_buys_only_cards_too_slow_for_the_jobs_is_not_said_to_buy_none():
    """$1,620 buys a PC and a card, but none that is fast enough for 40 jobs a month."""
    assert spend(1620, "resnet50").first.purchase_usd
    none = spend(1620, "resnet50", jobs_per_month=40).said("asked")[0]
    assert none.startswith("$1,620 does not cover a PC and a card that does 40 of these jobs a month;")


def test_a_sum_that_adds_nothing_to_the_card_at_hand_is_explained():
    """If the sum does not cover a PC, the card at hand would be the only row, without an explanation."""
    found = spend(600, "resnet50", have=["RTX 3060"])
    none, with_pc = found.said("asked")[:2]
    assert none.startswith("$600 does not cover a PC and a card that does this job;")
    assert "buys" in with_pc
    assert "RTX 3060 12GB" not in with_pc
    assert {"own", "vast"} <= {row.offer.provider for row in found.rows}
    assert not any(re.search("rents .* at own", text) for text in found.said("asked"))
    assert len(spend(600, "resnet50", have=["RTX 3060"], buy=True).rows) == 1, "rentals were ruled out"
    in_own_pc = spend(20, "resnet50", have=["RTX 3060", "pc"]).said("asked")
    assert in_own_pc[0] == "$20 buys no card that does this job."
    assert not any(text.startswith("In your PC") for text in in_own_pc)


def test_budget_too_small_for_any_card_is_reported():
    found = spend(20, "resnet50", have=["pc"])
    assert found.said("asked")[0] == "$20 buys no card that does this job."
    with pytest.raises(MisuseError, match="offers is left"):
        spend(20, "resnet50", buy=True)


@pytest.mark.parametrize("condition", ["new", "used"])
def test_only_cards_in_the_requested_condition_are_bought(condition):
    found = spend(30000, "resnet50", condition=condition)
    assert {each.condition for each in found.buy_or_rent} == {condition}
    left_out = [each for each in found.excluded if each.rule == "--condition"]
    assert {each.reason for each in left_out} == {f"it is not sold {condition}"}


def test_no_card_without_a_fan_goes_into_ones_own_pc():
    """A desktop does not cool an H100 PCIe; a server at the stated price does."""
    at_hand = spend(100_000, "resnet50", have=["pc"])
    assert "passive" not in {cooling_of(load_specs()[each.gpu_key]) for each in at_hand.buy_or_rent}
    left_out = {each.gpu_key for each in at_hand.excluded if each.rule == "a card without a fan"}
    assert "nvidia-h100-pcie-80gb" in left_out
    in_a_server = spend(100_000, "resnet50", host_usd=9000)
    assert any(each.gpu_key == "nvidia-h100-pcie-80gb" for each in in_a_server.buy_or_rent)


def test_complete_system_is_bought_without_a_separate_host():
    (node,) = [
        each
        for each in ownerships(RankRequest(max_purchase_usd=1e6), {}, TODAY)
        if (each.gpu_key, each.gpu_count) == ("nvidia-b200-sxm-180gb", 8) and not each.is_planned
    ]
    assert (node.purchase_usd, node.host_usd, node.host) == (450000, 0, None)
    assert node.host_w == hosts()[-1].power_w
    found = spend(1_000_000, "resnet50")
    assert found.answers["fastest"].row.offer.gpu_key == "nvidia-b200-sxm-180gb"


def test_modules_and_cards_without_a_current_price_are_bought_only_if_named():
    found = spend(1_000_000, "resnet50")
    reasons = {(each.gpu_key, each.rule): each.reason for each in found.excluded if each.provider == "buy"}
    old = "a card without a current price (naming the card with --gpu ranks it)"
    assert "days old" in reasons["nvidia-rtx-a6000-48gb", old]
    assert "planning figure" in reasons["nvidia-rtx-pro-5000-blackwell-48gb", old]
    named = spend(50000, "resnet50", gpu=["rtx a6000"])
    assert named.answers["fastest"].row.offer.gpu_key == "nvidia-rtx-a6000-48gb"
    module = gpubench.rank("resnet50", max_purchase_usd=50000, gpu=["h100-sxm"], as_of="2026-11-20", draws=50)
    assert {each.reason for each in module.excluded if "module" in each.rule} <= {
        "it is a module (SXM5), which fits no host for cards"
    }
    assert module.first.source != "own"


def test_each_card_price_lies_within_its_own_range():
    prices = card_prices()
    assert PLANNING_VALUE in {each.statistic for each in prices}
    for each in prices:
        low, high = each.price_low_usd, each.price_high_usd
        assert (low or each.price_usd) <= each.price_usd <= (high or each.price_usd)


def test_without_a_named_model_the_answer_says_how_to_name_one():
    assert "toy networks; name yours" in gpubench.rank(draws=50).said("caution")[0]
    assert not [each for each in gpubench.rank("vgg16", draws=50).said("caution") if "toy networks" in each]


def test_a_gpu_that_is_not_ranked_is_named_with_a_comparable_one():
    with pytest.raises(
        MisuseError, match=r"Apple M4 is not ranked: .*; among ranked GPUs, the \w+ .*nearest"
    ):
        gpubench.rank("resnet50", gpu=["m4"])
    with pytest.raises(
        MisuseError, match="there is no figure for 'rtx 4090 laptop': each laptop's maker sets"
    ):
        gpubench.rank("resnet50", gpu=["rtx 4090 laptop"])


@pytest.mark.parametrize("name", ["laptop RTX 4060", "4060 mobile", "RTX-4070-notebook"])
def test_a_laptop_without_a_figure_is_refused_equally_wherever_it_is_named(name):
    for asked in (
        lambda: gpubench.rank("resnet50", have=[name]),
        lambda: gpubench.predict("resnet50", gpu=[name]),
        lambda: gpubench.memory("resnet50", gpu=[name]),
    ):
        with pytest.raises(
            MisuseError,
            match=r"each laptop's maker sets the power, and thus speed, of its GPU.*RTX 5060 Laptop",
        ):
            asked()


def of_the_fewest(ranking):
    return next(each for each in ranking.said("asked") if "The fewest GPUs" in each)


def test_the_fewest_gpus_that_finish_in_time_are_named():
    """One H100 takes 9 h; 8 of them finish within 2 h and are the fewest that do."""
    relaxed = gpubench.rank("resnet50", gpu=["h100"], deadline_hours=72, as_of="2026-11-20", draws=50)
    assert ": 1x H100" in of_the_fewest(relaxed)
    hard = gpubench.rank("resnet50", gpu=["h100"], deadline_hours=2, as_of="2026-11-20", draws=50)
    fewest = min(row.offer.gpu_count for row in hard.rows)
    assert f": {fewest}x H100" in of_the_fewest(hard)
    assert "The fewest GPUs that finish within 2.00 h" in of_the_fewest(hard)
    with pytest.raises(StopIteration):
        of_the_fewest(gpubench.rank("resnet50", deadline_hours=72, as_of="2026-11-20", draws=50))


def test_serving_is_priced_per_million_tokens_and_described():
    served = gpubench.rank("llama_8b", as_of="2026-11-20", draws=50)
    (text,) = [each for each in served.said("asked") if each.startswith("A million tokens")]
    assert re.search(
        r"in the prompt and \$.* generated on 1x RTX \w+, in a static batch of 8 on each GPU", text
    )
    assert "512 in and 128 out" in text
    images = gpubench.rank("resnet50", task="infer", as_of="2026-11-20", draws=50)
    assert not [each for each in images.said("asked") if each.startswith("A million tokens")]


def test_a_users_host_is_answered_with_the_best_card_for_it():
    found = gpubench.rank("resnet50", have=["pc"], as_of="2026-11-20", draws=50)
    card = found.best_to_own
    (text,) = [each for each in found.said("asked") if each.startswith("In your PC, 1x ")]
    assert f"for ${card.purchase_usd:,.0f} would do the job in" in text
    assert not card.host_usd
    owned = gpubench.rank("resnet50", have=["pc", "RTX 4090"], as_of="2026-11-20", draws=50)
    assert not [each for each in owned.said("asked") if "for $0" in each], "a card that is owned has no price"


@pytest.mark.parametrize("options", [{"max_purchase_usd": 500}, {"have": ["pc"]}])
def test_without_a_job_advice_on_a_card_names_what_a_dollar_buys(options):
    found = gpubench.rank("resnet50", relative=True, as_of="2026-11-20", draws=100, **options)
    (advice,) = (
        each.text for each in found.sentences if "your PC" in each.text or "your own PC" in each.text
    )
    assert "images per dollar" in advice
    assert "job" not in advice
