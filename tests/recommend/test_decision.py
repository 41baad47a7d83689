"""The decision as data: three winners, their chances, what would change them, and what to know before paying."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import numpy as np
import pytest

from gpubench import rank
from gpubench.errors import MisuseError
from gpubench.findings import Finding, FindingKind
from gpubench.models import Pricing
from gpubench.recommend.candidates import FEED_FACTOR, IMAGES_PER_VCPU_S, feed_errors
from gpubench.recommend.evidence import Evidence
from gpubench.recommend.owning import offer_of, ownerships
from gpubench.recommend.rank import check
from gpubench.recommend.request import RankRequest
from gpubench.sections.answer import rank_words

from .builders import (
    A100,
    H100,
    L4,
    RTX5090,
    TODAY,
    estimate,
    judge,
    log_normal,
    offer,
    rank_of,
    said,
    scaler,
)
from .test_owning import machine

RATES = {H100: 3000.0, L4: 500.0, RTX5090: 1500.0, A100: 1700.0}


def market():
    return [
        offer(H100, 3.0, provider="hyper", region="us", vcpus=26, instance="a"),
        offer(H100, 3.0, provider="hyper", region="eu", vcpus=26, instance="b"),
        offer(H100, 2.5, provider="host", kind="marketplace"),
        offer(L4, 0.6, provider="aws", region="us-east-1"),
        offer(RTX5090, 1.0, provider="aws"),
    ]


def test_best_offer_of_each_gpu_lists_its_other_sellers():
    by_gpu = rank_of(market(), RATES).by_gpu
    assert [choice.offer.gpu_key for choice in by_gpu] == [RTX5090, H100, L4]
    h100 = by_gpu[1]
    (hyper,) = h100.also_at
    assert (hyper.offer.provider, hyper.usd_per_hour, hyper.offer.gpu_count) == ("hyper", 3.0, 1)


def test_the_regions_and_the_quota_of_a_cloud_are_listed():
    only_h100 = rank_of(market()[:2], RATES).first
    assert only_h100.regions == ("us", "eu")
    assert only_h100.needs_quota is None
    assert rank_of(market()[3:4], RATES).first.needs_quota


def test_row_limit_does_not_change_the_decision():
    whole, cut = (rank_of(market(), RATES, limit=limit) for limit in (None, 1))
    assert len(cut.rows) == 1
    assert (cut.answers, cut.by_gpu) == (whole.answers, whole.by_gpu)


def test_predicted_inference_is_flagged_if_it_decides():
    rates = {H100: estimate(H100, 3000.0, basis="measured"), A100: 1700.0}
    offers = [offer(H100, 2.0), offer(A100, 1.2)]
    few = "Inference speeds are predicted from few"
    assert few in said(rank_of(offers, rates, task="infer", samples=1e9))
    assert few not in said(rank_of(offers[:1], rates, task="infer", samples=1e9))
    assert few not in said(rank_of(offers, rates, samples=1e9))


def of_photographs(offers, answers, owned=None, **options):
    """Rank a workload that trains on photographs, which the vCPUs of an offer must prepare."""
    options = {"workloads": ("vgg16",)} | options
    return judge(
        check(RankRequest(**options)),
        offers,
        lambda keys: Evidence(answers={"vgg16": answers}, scaler=scaler, photographs=frozenset({"vgg16"})),
        today=TODAY,
        drawer=log_normal,
        owned=owned or {},
    )


def test_the_vcpus_needed_for_feeding_are_shown_with_each_choice():
    """3,000 photographs/s take 20 vCPUs at 150/s each."""
    ranking = of_photographs(market()[:1], {H100: estimate(H100, 3000.0)})
    choice = ranking.first
    assert choice.feed_images_per_s == 3000
    assert choice.feed_vcpus == pytest.approx(3000 / IMAGES_PER_VCPU_S)
    assert choice.can_feed
    assert any("3,000 photographs/s" in note and "it has 26." in note for note in ranking.said("note"))


def hungry():
    """Return offers whose GPU takes 3,000 photographs/s: 20 vCPUs prepare them at 150/s each, 10 only half."""
    return [
        offer(H100, 2.0, instance="ten", vcpus=10),
        offer(H100, 3.0, instance="twenty", vcpus=20),
        offer(H100, 4.0, instance="unknown"),
    ]


def test_an_offer_that_cannot_feed_its_gpus_says_so_in_its_row_and_before_it_is_paid():
    cheap = msgspec.structs.replace(hungry()[0], price_usd_per_hour=Decimal("1.4"))
    ranking = of_photographs([cheap, *hungry()[1:]], {H100: estimate(H100, 3000.0)})
    ten = next(row for row in ranking.rows if row.offer.instance == "ten")
    others = [row for row in ranking.rows if row is not ten]
    (bound,) = (finding for finding in ten.findings if finding.kind is FindingKind.FEED_BOUND)
    assert (bound.value, bound.limit) == (pytest.approx(20), 10)
    assert not any(f.kind is FindingKind.FEED_BOUND for row in others for f in row.findings)
    (caution,) = [each for each in ranking.said("caution") if "decoding" in each]
    assert caution == "Image decoding slows 1x H100 SXM5 80GB: 10 of 20 vCPUs needed (assumed)."


def test_vcpu_limited_offer_ranks_by_the_rate_its_vcpus_can_feed():
    """5.4 million photographs: half an hour at 3,000/s for 1.50 and 2.00 USD; an hour at 1,500/s for 2.00."""
    kinds = {"samples": 5.4e6, "startup_minutes": 0}
    ranking = of_photographs(hungry(), {H100: estimate(H100, 3000.0)}, **kinds)
    twenty, unknown, ten = ranking.rows
    assert [row.offer.instance for row in ranking.rows] == ["twenty", "unknown", "ten"]
    assert (ten.samples_per_s.value, ten.gpus_samples_per_s) == (1500, 3000)
    assert (ten.hours.value, ten.cost_usd.value) == (pytest.approx(1), pytest.approx(2))
    assert ten.p_best < twenty.p_best
    assert ten.samples_per_usd.value == pytest.approx(1500 * 3600 / 2)
    assert (unknown.samples_per_s.value, unknown.hours.value) == (3000, pytest.approx(0.5))
    assert ten.dominated_by is not None
    assert twenty.pareto
    (reason,) = (
        each.reason
        for each in of_photographs(
            hungry(), {H100: estimate(H100, 3000.0)}, **kinds, budget_usd=1.99
        ).excluded
        if each.instance == "ten"
    )
    assert "costs $2.00 (up to $2.00), above $1.99" in reason
    by_time = of_photographs(hungry(), {H100: estimate(H100, 3000.0)}, **kinds, sort="time").rows
    assert [row.offer.instance for row in by_time] == ["twenty", "unknown", "ten"]


def test_no_draw_makes_an_offer_faster_than_its_vcpus_can_feed():
    """19 vCPUs feed about 2,850/s; if the GPU consumes more, the same machine with enough vCPUs is better."""
    twins = [offer(H100, 2.0, instance="19", vcpus=19), offer(H100, 2.0, instance="99", vcpus=99)]
    answers = {H100: estimate(H100, 3000.0, 1.3)}
    found = of_photographs(twins, answers, samples=1e8, draws=4000)
    enough, few = found.rows
    slower = np.mean(log_normal(list(answers.values()), 4000, 0)[0] <= 2850 * feed_errors(0, 4000))
    assert 0.1 < slower < 0.9
    assert (enough.offer.instance, few.p_best) == ("99", pytest.approx(slower / 2, abs=1e-3))
    assert few.samples_per_s.value == 2850
    assert few.samples_per_s.high == enough.samples_per_s.high == pytest.approx(3900)
    assert few.samples_per_s.low == 2850 / FEED_FACTOR


def test_vcpu_starved_offer_for_gpu_hours_combines_both_uncertainties():
    """The work of 24 A100 hours is known within a factor of 1.3 and feeding within 2: together 2.1."""
    answers = {H100: estimate(H100, 3000.0, 1.1), A100: estimate(A100, 1700.0, 1.3)}
    (row,) = of_photographs([offer(H100, 2.0, vcpus=2)], answers, draws=4000, startup_minutes=0).rows
    assert row.hours.value == pytest.approx(24 * 1700 / 300)
    ends = row.hours.value / row.hours.low, row.hours.high / row.hours.value
    assert ends == pytest.approx((2.1, 2.1), rel=0.05)


def test_rent_with_vcpus_for_half_of_its_gpus_costs_twice_as_much():
    owned = {offer_of(each): each for each in [machine()]}

    def for_an_hour(vcpus: float | None) -> float:
        rent = offer(H100, 0.5, vcpus=vcpus)
        asked = {"samples": 1e9, "startup_minutes": 0, "owned": owned, "rent_or_buy": "buy"}
        found = of_photographs([rent], {H100: estimate(H100, 3000.0)}, **asked)
        return found.buy_or_rent[0].equivalent_usd_per_hour

    assert for_an_hour(None) == for_an_hour(20)
    assert for_an_hour(10) == pytest.approx(2 * for_an_hour(20), rel=1e-3)


def test_a_deadline_and_a_budget_apply_at_the_speed_that_the_vcpus_feed():
    """5.4 million photographs take half an hour at 3,000/s, for 1.50 or 2 USD; ten vCPUs take an hour, for 2 USD."""
    kinds = {"samples": 5.4e6, "startup_minutes": 0}
    answers = {H100: estimate(H100, 3000.0)}
    for limit, names in (
        ({"deadline_hours": 0.9}, {"twenty", "unknown"}),
        ({"deadline_hours": 1.1}, {"ten", "twenty", "unknown"}),
        ({"budget_usd": 1.9}, {"twenty"}),
    ):
        rows = of_photographs(hungry(), answers, **kinds, **limit).rows
        assert {row.offer.instance for row in rows} == names
    late = of_photographs(hungry(), answers, **kinds, deadline_hours=0.9).excluded
    (reason,) = (each.reason for each in late if each.instance == "ten")
    assert "1.00 h" in reason
    assert "its 10 vCPUs" in reason


def test_spot_is_fed_at_its_speed_before_lost_work():
    """Half of the work is repeated, so 3,000/s are 2,000/s of useful work.

    Ten vCPUs feed 1,500 of 3,000, so 1,000/s are left, and 5.4 million photographs take an hour and a half.
    """
    spot = offer(H100, 2.0, vcpus=10, pricing=Pricing.SPOT)
    answers = {H100: estimate(H100, 3000.0)}
    asked = {"spot": True, "spot_lost": 0.5, "samples": 5.4e6, "startup_minutes": 0}
    ranking = of_photographs([spot], answers, **asked)
    choice = ranking.first
    assert (choice.row.samples_per_s.value, choice.feed_images_per_s) == (
        pytest.approx(1000),
        pytest.approx(3000),
    )
    (bound,) = (each for each in choice.row.findings if each.kind is FindingKind.FEED_BOUND)
    assert (bound.value, bound.limit) == (pytest.approx(20), 10)
    assert of_photographs([spot], answers, **asked, deadline_hours=1.51).rows
    with pytest.raises(MisuseError, match="--deadline-hours"):
        of_photographs([spot], answers, **asked, deadline_hours=1.49)


def test_a_guess_ranks_after_all_others_and_is_never_the_fastest():
    """The L4's figure is a guess: three times as fast as the H100, and far cheaper."""
    beyond = (Finding(kind=FindingKind.OUT_OF_DOMAIN, value="CDNA 4"),)
    market = [offer(H100, 3.0), offer(L4, 0.1, provider="guess"), offer(A100, 30.0)]
    rates = {H100: estimate(H100, 3000.0, 1.1), L4: estimate(L4, 9000.0, 4.0, findings=beyond), A100: 1700.0}
    for sort in ("cost", "time", "value", "throughput"):
        ranking = rank_of(market, rates, samples=1e8, sort=sort)
        assert [(row.rank, row.offer.gpu_key) for row in ranking.rows] == [(1, H100), (2, A100), (3, L4)]
        assert ranking.answers["fastest"].row.offer.gpu_key == H100
    of_guesses = rank_of(market[1:2], rates, samples=1e8)
    assert [(row.rank, row.offer.gpu_key) for row in of_guesses.rows] == [(1, L4)]


def test_every_row_of_a_shared_rank_is_marked():
    """H100 and A100 tie; the more expensive H100 between them shares their rank, and an L4 has its own."""
    offers = [
        offer(H100, 3.0),
        offer(H100, 3.3, instance="dearer"),
        offer(A100, 1.2),
        offer(L4, 9.0),
    ]
    ranking = rank_of(offers, {H100: 3000.0, A100: 1000.0, L4: 300.0}, width=1.5, samples=1e8)
    words = [rank_words(ranking)(row) for row in ranking.rows]
    assert [row.tie for row in ranking.rows] == [True, False, True, False]
    assert words == ["1=", "1=", "1=", "4"]
    assert [line.split()[0] for line in repr(ranking).splitlines() if " at acme" in line] == words


def test_hardware_to_buy_is_shown_with_a_ranking_of_rent():
    request = check(RankRequest(workloads=("vgg16",)))
    buying = msgspec.structs.replace(request, rent_or_buy="buy")
    machines = {offer_of(each): each for each in ownerships(buying, {}, TODAY)}
    answers = {"vgg16": {key: estimate(key, rate) for key, rate in RATES.items()}}
    ranking = judge(
        request,
        market(),
        lambda keys: Evidence(answers=answers, scaler=scaler),
        today=TODAY,
        drawer=log_normal,
        for_sale=machines,
    )
    own = ranking.best_to_own
    assert (own.source, own.offer.gpu_key, own.row.rank, own.row.p_best) == ("own", RTX5090, None, None)
    assert own.condition == "used"
    assert own.purchase_usd == pytest.approx(4795 + 1000), "the card and a host"
    assert all(row.offer.pricing is not Pricing.OWNED for row in ranking.rows)


def test_one_row_per_gpu_keeps_the_best_of_each_regardless_of_the_limit():
    """The choice, its chances and the number of offers still cover all offers; for a single GPU every offer is listed."""
    every = rank_of(market(), RATES, samples=1e8)
    few = rank_of(market(), RATES, samples=1e8, one_a_gpu=True)
    assert [row.offer.gpu_key for row in few.rows] == [each.offer.gpu_key for each in every.by_gpu]
    assert all(row in every.rows for row in few.rows)
    assert (few.answers, few.by_gpu) == (every.answers, every.by_gpu)
    assert (few.offer_count, len(few.rows), len(every.rows)) == (5, 3, 5)
    assert len(rank_of(market(), RATES, samples=1e8, one_a_gpu=True, limit=1).rows) == 1
    assert len(rank_of(market(), RATES, samples=1e8, one_a_gpu=True, gpus=("h100",)).rows) == 3


def test_if_owning_is_cheaper_a_line_says_why_it_is_not_chosen():
    """On the shipped prices; a card to buy is assumed to work half of all hours for 3 years."""
    ranking = rank("vgg16", limit=1, draws=50)
    own, choice = ranking.best_to_own, ranking.first
    found = [each for each in ranking.said("answer") if each.startswith("Owning ")]
    assert bool(found) == (own.row.cost_usd.value < choice.row.cost_usd.value)
    dear = rank("vgg16", limit=1, draws=50, utilization="0.01-0.02", resale="0")
    assert dear.best_to_own.row.cost_usd.value > dear.first.row.cost_usd.value
    assert not any(each.startswith("Owning ") for each in dear.said("answer"))


def test_each_winner_includes_its_price_note():
    noted = [msgspec.structs.replace(each, note=f"note of {each.provider}") for each in market()]
    noted_of = {each.offer.provider: each.price_note for each in rank_of(noted, RATES).by_gpu}
    assert noted_of["aws"] == "note of aws"
    assert noted_of["host"] == "note of host"
    own = rank("vgg16", limit=1, draws=50).best_to_own
    assert own.price_note, "the source of a card's price"


def test_hardware_above_the_budget_is_not_shown_with_the_choice():
    assert rank("vgg16", limit=1, draws=1, budget_usd=500).best_to_own is None
    assert rank("vgg16", limit=1, draws=1, budget_usd=5000).best_to_own.purchase_usd <= 5000
