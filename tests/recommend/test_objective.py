"""The objective of a ranking: the cost or time of a job, including everything, in every figure of a row."""

from __future__ import annotations

import random
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpubench
from gpubench.errors import MisuseError
from gpubench.interval import Interval
from gpubench.models import Pricing
from gpubench.specs import load_specs

from .builders import H100, KEYS, L4, RTX5090, T4, estimate, offer, rank_of, said

RATES = dict(zip(KEYS, (3000.0, 500.0, 200.0, 1500.0, 1700.0), strict=True))


def test_spot_losses_count_in_the_order_of_offers():
    """1e8 / 3,000 / 3600 = 9.259 h. Spot: 9.259 x 1.9 x 1.00 = 17.59 USD; on demand 9.259 x 1.50 = 13.89."""
    offers = [offer(H100, 1.0, pricing=Pricing.SPOT), offer(H100, 1.5)]
    for sort in ("value", "cost"):
        ranking = rank_of(offers, {H100: 3000.0}, samples=1e8, spot=True, spot_lost=0.9, sort=sort)
        first, second = ranking.rows
        assert first.offer.pricing is Pricing.ON_DEMAND
        assert (first.cost_usd.value, second.cost_usd.value) == (
            pytest.approx(13.889, abs=1e-3),
            pytest.approx(17.593, abs=1e-3),
        )
        assert (first.p_best, second.p_best) == (1, 0)
        assert first.pareto
        assert not second.pareto
        assert ranking.verdict.startswith(
            "Cheapest · Sensible · Fastest: 1x H100 SXM5 80GB, acme (cloud): 9.26 h, $13.89"
        )
    kept = rank_of(offers, {H100: 3000.0}, samples=1e8, spot=True, spot_lost=0.4)
    assert kept.rows[0].offer.pricing is Pricing.SPOT


def test_a_data_set_is_uploaded_before_the_first_step_at_an_uncertain_speed():
    """45 GB at 100 Mbit/s are 3,600 s: one more hour of rent; in nine of ten cases half to twice that."""
    given = {"samples": 3000 * 3600 * 5.0, "startup_minutes": 0}
    (known,) = rank_of([offer(H100, 2.0)], {H100: 3000.0}, 1.2, **given).rows
    ranking = rank_of([offer(H100, 2.0)], {H100: 3000.0}, 1.2, **given, dataset_gb=45)
    (sent,) = ranking.rows
    assert (known.hours.value, sent.hours.value) == (pytest.approx(5), pytest.approx(6))
    assert sent.cost_usd.value == pytest.approx(12)
    assert 1.3 < sent.hours.high - 6 < 1.6  # errors of an hour, in speed and in upload, add in quadrature
    assert any(
        "60 minutes before the first step, 45 GB of upload included" in note for note in ranking.said("asked")
    )


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (("lium",), [("aws", H100), ("aws", L4)]),
        (("AWS",), [("lium", H100)]),
        (("Amazon",), [("lium", H100)]),
        (("Lium.",), [("aws", H100), ("aws", L4)]),
        (("h100",), [("aws", L4)]),
        (("lium", "l4"), [("aws", H100)]),
    ],
)
def test_a_provider_or_a_gpu_is_excluded_by_name(names, left):
    offers = [
        offer(H100, 2.0, provider="lium"),
        offer(H100, 2.1, provider="aws"),
        offer(L4, 1.0, provider="aws"),
    ]
    ranking = rank_of(offers, {H100: 3000.0, L4: 500.0}, excluded=names)
    assert [(row.offer.provider, row.offer.gpu_key) for row in ranking.rows] == left
    assert {each.rule for each in ranking.excluded} == {"--exclude"}


@pytest.mark.parametrize(("typed", "meant"), [("limu", "lium"), ("blackwel", "Blackwell")])
def test_an_exclusion_that_matches_nothing_is_refused_with_the_nearest_name(typed, meant):
    with pytest.raises(MisuseError, match=f"unknown provider or GPU '{typed}'; nearest known: {meant}"):
        rank_of([offer(H100, 2.0, provider="lium")], {H100: 3000.0}, excluded=(typed,))


def test_without_a_job_lost_work_is_lost_throughput():
    """3,000 / 1.25 = 2,400/s: a dollar buys 3600 x 2400 / 1.00 = 8.64 M on spot, 3600 x 3000 / 1.20 = 9.0 M."""
    offers = [offer(H100, 1.0, pricing=Pricing.SPOT), offer(H100, 1.2)]
    on_demand, spot = rank_of(offers, {H100: 3000.0}, width=1.2, spot=True, spot_lost=0.25).rows
    assert spot.offer.pricing is Pricing.SPOT
    assert spot.samples_per_s.value == pytest.approx(2400)
    assert spot.samples_per_s.low == pytest.approx(2000)
    assert (on_demand.samples_per_usd.value, spot.samples_per_usd.value) == (
        pytest.approx(9.0e6),
        pytest.approx(8.64e6),
    )
    assert (on_demand.p_best, spot.p_best) == (1, 0)
    unlost = rank_of(offers, {H100: 3000.0}, spot=True).rows
    assert [row.offer.pricing for row in unlost] == [Pricing.SPOT, Pricing.ON_DEMAND]


def test_the_loss_allowed_on_spot_does_not_depend_on_the_assumed_loss():
    """10 h of work plus one hour before it at 2.00 USD cost 22 USD, as do 22 h of spot at 1.00 USD: 21 h of
    work, of which 11 repeat lost work, 1.1 times 10.
    """
    offers = [offer(H100, 1.0, pricing=Pricing.SPOT, instance="x"), offer(H100, 2.0, instance="x")]
    job = {"samples": 10 * 3600 * 3000, "startup_minutes": 60}
    for lost in (0.0, 0.5):
        rows = rank_of(offers, {H100: 3000.0}, **job, spot=True, spot_lost=lost).rows
        assert rows[0].spot_break_even == pytest.approx(1.1, abs=1e-4)


def test_concurrent_jobs_share_the_price_of_their_machine():
    """An hour of work on each of 8 GPUs for 8.00 USD/h: 1.00 USD per job, as on one GPU for 1.00 USD/h."""
    offers = [offer(H100, 8.0, gpu_count=8), offer(H100, 1.0)]
    rows = rank_of(offers, {H100: 3000.0}, samples=3000 * 3600, jobs="independent").rows
    assert [row.cost_usd.value for row in rows] == pytest.approx([1.0, 1.0])


def test_a_bill_by_the_hour_decides_and_equal_bills_go_to_the_faster():
    """0.4 h and 2.4 h are billed as 1 h and 3 h: 3.00 USD against 1.80 USD; at 1.00 USD both cost 3.00."""
    offers, options = [offer(H100, 3.0), offer(L4, 0.6)], {"samples": 4.32e6, "billing_minutes": 60}
    assert rank_of(offers, RATES, **options).rows[0].offer.gpu_key == L4
    alike = rank_of([offer(L4, 1.0), offer(H100, 3.0)], RATES, **options).rows
    assert [(row.offer.gpu_key, row.cost_usd.value, row.p_best) for row in alike] == [
        (H100, pytest.approx(3.0), 0.5),
        (L4, pytest.approx(3.0), 0.5),
    ]


def test_time_is_the_time_of_the_job_and_the_fastest_is_named_by_it():
    """On spot 1e8 / (3,000 / 1.9) / 3600 = 17.59 h; on demand at two thirds of the speed 13.89 h."""
    offers = [offer(H100, 1.0, pricing=Pricing.SPOT), offer(RTX5090, 9.0)]
    rates = {H100: 3000.0, RTX5090: 2000.0}
    options = {"samples": 1e8, "spot": True, "spot_lost": 0.9}
    by_time = rank_of(offers, rates, **options, sort="time")
    assert [row.offer.gpu_key for row in by_time.rows] == [RTX5090, H100]
    for found in (by_time, rank_of(offers, rates, **options)):
        assert found.verdict.startswith("Cheapest · Sensible: 1x H100")
        assert "Fastest: 1x RTX 5090" in found.verdict
        assert "13.9 h" in found.verdict


@pytest.mark.parametrize(
    ("sort", "job", "sorted_by"),
    [
        ("value", {}, "value"),
        ("cost", {}, "value"),
        ("time", {}, "throughput"),
        ("throughput", {}, "throughput"),
        ("value", {"samples": 1e6}, "cost"),
        ("cost", {"samples": 1e6}, "cost"),
        ("time", {"samples": 1e6}, "time"),
        ("throughput", {"samples": 1e6}, "throughput"),
        ("joules", {}, "joules"),
        ("joules", {"samples": 1e6}, "joules"),
    ],
)
def test_ranking_states_its_sort_key(sort, job, sorted_by):
    ranking = rank_of([offer(H100), offer(L4, 0.3)], RATES, sort=sort, **job)
    assert ranking.sorted_by == sorted_by


def test_rows_sorted_by_energy_follow_their_joules_per_sample():
    """Eight GPUs need as much energy per sample as one, except for the loss from working together."""
    offers = [offer(H100, 3.0), offer(H100, 20.0, gpu_count=8), offer(L4, 0.3)]
    watts = {H100: 600.0, L4: 60.0}
    told = {key: estimate(key, RATES[key], power_w=Interval(each)) for key, each in watts.items()}
    ranking = rank_of(offers, told, sort="joules", samples=1e6)
    joules = [row.joules_per_sample for row in ranking.rows]
    assert joules == sorted(joules)
    assert joules[0] == pytest.approx(60 / 500)
    assert "1x L4 uses the least energy, about 0.120 J" in said(ranking)
    assert "Next by energy: 1x H100 SXM5 80GB at " in said(ranking)


def test_the_next_by_energy_are_other_gpus_with_their_intervals():
    watts = {H100: 600.0, L4: 60.0}
    told = {
        key: estimate(key, RATES[key], 1.2, power_w=Interval(each, each / 2, each * 2))
        for key, each in watts.items()
    }
    ranking = rank_of([offer(H100, 3.0), offer(L4, 0.3), offer(L4, 0.4)], told, sort="joules", samples=1e6)
    (next_to_it,) = (line for line in said(ranking).split(". ") if line.startswith("Next by energy"))
    assert "L4" not in next_to_it
    assert re.search(r" at [\d.]+ J \([\d.]+ to [\d.]+\)", next_to_it), next_to_it
    alone = rank_of([offer(L4, 0.3)], told, sort="joules", samples=1e6)
    assert "Next by energy" not in said(alone)


def test_energy_ranking_accepts_only_one_workload():
    with pytest.raises(MisuseError, match="--sort joules compares the samples of one workload"):
        gpubench.rank(("vgg16", "cnn"), sort="joules")


@pytest.mark.parametrize("lost", [10, 20, float("inf"), -0.1])
def test_a_share_of_lost_work_is_below_ten_so_that_a_percentage_is_refused(lost):
    with pytest.raises(MisuseError, match=r"spot.lost") as caught:
        gpubench.rank("vgg16", spot=True, spot_lost=lost)
    assert "\n" not in str(caught.value)


def test_an_allowed_spot_loss_above_one_can_be_given_as_an_option():
    """At 1.00 against 2.50 USD/h all work may be repeated one and a half times: then both cost the same."""
    offers = [offer(H100, 1.0, pricing=Pricing.SPOT, instance="x"), offer(H100, 2.5, instance="x")]
    ranking = rank_of(offers, {H100: 3000.0}, spot=True)
    assert ranking.rows[0].spot_break_even == pytest.approx(1.5)
    assert "unless interruptions add 150 % to the work" in said(ranking)
    at_it = rank_of(offers, {H100: 3000.0}, spot=True, spot_lost=1.5).rows
    assert at_it[0].samples_per_usd.value == pytest.approx(at_it[1].samples_per_usd.value)


def test_an_offer_beyond_the_detailed_rows_can_still_win():
    """For one GPU, four at 2.40 USD have the more expensive start and the cheaper work: they win if the GPU is slow."""
    many = [offer(H100, 1.0 + n / 1e6, instance=f"n{n:04}") for n in range(1010)]
    large = offer(H100, 2.4, gpu_count=4, instance="large")
    options = {"samples": 1.08e7, "startup_minutes": 20, "jobs": "ddp"}
    rows = rank_of([*many, large], {H100: 3000.0}, width=2.0, **options).rows
    place = next(i for i, row in enumerate(rows) if row.offer is large)
    assert place > 1000
    assert rows[place].p_best > 0.02


prices = st.integers(10, 5000).map(lambda cents: cents / 100)
pricings = st.sampled_from([Pricing.ON_DEMAND, Pricing.SPOT])
pairs = st.tuples(st.sampled_from(KEYS), prices, st.sampled_from([1, 2, 8]), pricings)
markets = st.lists(pairs, min_size=2, max_size=10)
jobs = st.fixed_dictionaries(
    {
        "samples": st.one_of(st.none(), st.integers(5, 9).map(lambda power: 10.0**power)),
        "spot_lost": st.floats(0, 0.95),
        "startup_minutes": st.sampled_from([None, 0.0, 45.0]),
        "billing_minutes": st.sampled_from([None, 1.0, 60.0]),
        "egress_usd": st.sampled_from([0.0, 3.0]),
        "storage_usd_per_month": st.sampled_from([0.0, 50.0]),
        "jobs": st.sampled_from(["ddp", "independent"]),
    }
)


def offers_of(market):
    return [
        offer(key, price, gpu_count=count, pricing=pricing, instance=f"{number}-{key}")
        for number, (key, price, count, pricing) in enumerate(market)
    ]


def ranked(market, **options):
    return rank_of(offers_of(market), RATES, **{"width": 1.3, "draws": 60, "spot": True} | options)


@settings(max_examples=25, deadline=None)
@given(markets, jobs, st.sampled_from(["value", "cost"]))
def test_no_row_of_a_job_costs_less_than_the_one_above_it(market, job, sort):
    costs = [row.cost_usd.value for row in ranked(market, **job, sort=sort).rows]
    assert costs == sorted(costs)


@settings(max_examples=25, deadline=None)
@given(markets, jobs)
def test_no_row_takes_less_time_than_the_one_above_it_if_sorted_by_time(market, job):
    hours = [row.hours.value for row in ranked(market, **job, sort="time").rows]
    assert hours == sorted(hours)


@settings(max_examples=25, deadline=None)
@given(markets, jobs)
def test_without_an_interval_the_cheapest_job_is_certainly_the_best(market, job):
    start = 10.0 if job["startup_minutes"] is None else job["startup_minutes"]  # a given value is certain
    rows = ranked(market, **job | {"startup_minutes": start}, width=None).rows
    least = rows[0].cost_usd.value
    chances = [row.p_best for row in rows]
    assert sum(chances) == pytest.approx(1)
    assert all((row.p_best > 0) == (row.cost_usd.value == pytest.approx(least, abs=0)) for row in rows)


@settings(max_examples=25, deadline=None)
@given(markets, jobs, st.floats(0, 0.95), st.sampled_from(["value", "time", "throughput"]), st.booleans())
def test_losing_more_work_never_raises_a_spot_row(market, job, more, sort, with_job):
    """Only the rows above it that are not spot are counted, because other spot rows lose more too."""
    less, more = sorted((job["spot_lost"], more))
    options = job if with_job else {}
    before, after = (ranked(market, **options | {"spot_lost": lost}, sort=sort).rows for lost in (less, more))
    for old, new in ((a, b) for a in before for b in after if a.offer is b.offer or a.offer == b.offer):
        if old.offer.pricing is Pricing.SPOT:
            assert on_demand_above(after, new) >= on_demand_above(before, old)
            assert new.samples_per_usd.value <= old.samples_per_usd.value
            assert (new.cost_usd.value or 0) >= (old.cost_usd.value or 0)
            assert (new.hours.value or 0) >= (old.hours.value or 0)


def on_demand_above(rows, row):
    return sum(other.offer.pricing is Pricing.ON_DEMAND for other in rows[: rows.index(row)])


@settings(max_examples=25, deadline=None)
@given(markets, jobs, st.floats(0, 0.95), st.sampled_from(["value", "time"]))
def test_losing_more_work_never_raises_the_only_spot_row(market, job, more, sort):
    market = [(key, price, count, Pricing.ON_DEMAND) for key, price, count, _ in market]
    market[0] = (*market[0][:3], Pricing.SPOT)
    less, more = sorted((job["spot_lost"], more))
    (old, before), (new, after) = (
        next((i, row) for i, row in enumerate(rows) if row.offer.pricing is Pricing.SPOT)
        for rows in (ranked(market, **job | {"spot_lost": lost}, sort=sort).rows for lost in (less, more))
    )
    assert new >= old
    assert after.rank >= before.rank
    assert after.p_best <= before.p_best + 1e-12


@settings(max_examples=25, deadline=None)
@given(markets, jobs)
def test_the_pareto_set_compares_hours_cost_and_memory_of_the_job(market, job):
    rows = ranked(market, **job).rows
    figures = [
        (row.hours.value, row.cost_usd.value, -load_specs()[row.offer.gpu_key].memory_bytes) for row in rows
    ]
    for row, own in zip(rows, figures, strict=True):
        beaten = any(all(np.less_equal(other, own)) and other != own for other in figures)
        assert row.pareto != beaten


@settings(max_examples=30, deadline=None)
@given(markets, jobs)
def test_rows_of_one_rank_are_together_in_a_job_too(market, job):
    ranks = [row.rank for row in ranked(market, **job).rows]
    assert ranks == sorted(ranks)
    assert ranks[0] == 1


def test_the_order_does_not_depend_on_the_order_of_the_offers():
    market = [(H100, 2.0, 1, Pricing.ON_DEMAND), (L4, 0.5, 2, Pricing.SPOT), (T4, 0.3, 1, Pricing.SPOT)]
    options = {"samples": 1e7, "spot_lost": 0.3, "billing_minutes": 60}
    names = [row.offer.instance for row in ranked(market, **options).rows]
    rows = rank_of(
        [msgspec.structs.replace(o) for o in reversed(offers_of(market))],
        RATES, width=1.3, draws=60, spot=True, **options,
    ).rows  # fmt: skip
    assert [row.offer.instance for row in rows] == names


def test_equal_offers_are_sorted_by_name_among_hundreds():
    """Ten prices shared by thirty offers each, in any order of the input: sorted by price, then by name."""
    alike = [offer(H100, 1 + price / 10, instance=f"i{name:02}") for price in range(10) for name in range(30)]
    random.Random(1).shuffle(alike)
    rows = rank_of(alike, RATES, samples=1e7, draws=60).rows
    expected = [(1 + price / 10, f"i{name:02}") for price in range(10) for name in range(30)]
    assert [(float(row.offer.price_usd_per_hour), row.offer.instance) for row in rows] == expected
