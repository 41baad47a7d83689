"""Properties of every ranking, whatever the offers."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpubench
from gpubench.findings import Finding, FindingKind

from .builders import KEYS, estimate, offer, rank_of

RATES = dict(zip(KEYS, (3000.0, 500.0, 200.0, 1500.0, 1700.0), strict=True))
prices = st.integers(10, 5000).map(lambda cents: cents / 100)
pairs = st.tuples(st.sampled_from(KEYS), prices, st.sampled_from([1, 2, 8]))
markets = st.lists(pairs, min_size=2, max_size=12, unique_by=lambda p: (p[0], p[1], p[2]))
BEYOND = (Finding(kind=FindingKind.OUT_OF_DOMAIN, value="CDNA 4"),)
OPTIONS = {"width": 1.3, "draws": 100}


def offers_of(market):
    return [
        offer(key, price, gpu_count=count, instance=f"{number}-{key}")
        for number, (key, price, count) in enumerate(market)
    ]


def ranked(offers, **options):
    return rank_of(offers, RATES, **OPTIONS | options).rows


@settings(max_examples=20, deadline=None)
@given(markets, st.data())
def test_cheaper_is_never_worse(market, data):
    offers = offers_of(market)
    chosen = data.draw(st.sampled_from(offers))
    cheaper = msgspec.structs.replace(chosen, price_usd_per_hour=chosen.price_usd_per_hour / 2)
    places = [
        next(r.rank for r in ranked(some) if r.offer.instance == chosen.instance)
        for some in (offers, [cheaper if o is chosen else o for o in offers])
    ]
    assert places[1] <= places[0]


@settings(max_examples=20, deadline=None)
@given(markets, pairs)
def test_adding_an_offer_never_worsens_the_best(market, extra):
    offers = offers_of(market)
    more = [*offers, offer(extra[0], extra[1], gpu_count=extra[2], instance="extra")]
    assert ranked(more)[0].samples_per_usd.value >= ranked(offers)[0].samples_per_usd.value


@settings(max_examples=20, deadline=None)
@given(markets)
def test_removing_the_winner_promotes_the_second(market):
    offers = offers_of(market)
    rows = ranked(offers)
    rest = ranked([o for o in offers if o is not rows[0].offer])
    assert rest[0].offer == rows[1].offer
    assert [row.offer for row in rest] == [row.offer for row in rows[1:]]


@settings(max_examples=20, deadline=None)
@given(markets, st.sampled_from([2, 4, 8]), st.sampled_from(["value", "cost", "throughput"]))
def test_scaling_every_price_keeps_the_order(market, factor, sort):
    offers = offers_of(market)
    dearer = [msgspec.structs.replace(o, price_usd_per_hour=o.price_usd_per_hour * factor) for o in offers]
    before, after = ranked(offers, sort=sort), ranked(dearer, sort=sort)
    assert [(r.rank, r.tie, r.p_best, r.offer.instance) for r in before] == [
        (r.rank, r.tie, r.p_best, r.offer.instance) for r in after
    ]


@settings(max_examples=20, deadline=None)
@given(markets, st.randoms())
def test_row_order_does_not_matter(market, random):
    offers = offers_of(market)
    mixed = random.sample(offers, len(offers))
    assert ranked(mixed) == ranked(offers)


@settings(max_examples=25, deadline=None)
@given(markets)
def test_ranks_and_ties_are_consistent(market):
    """If a row ties with the leader of its rank, the leader ties with it: no row is tied alone."""
    rows = ranked(offers_of(market))
    ranks = [row.rank for row in rows]
    assert ranks == sorted(ranks)
    assert ranks[0] == 1
    assert sum(row.p_best for row in rows) == pytest.approx(1, abs=1e-9)
    for rank in set(ranks):
        group = [row for row in rows if row.rank == rank]
        tied = [row for row in group if row.tie]
        assert len(tied) != 1
        assert group[0].tie == bool(tied)
    value = [row.samples_per_usd.value for row in rows]
    assert value == sorted(value, reverse=True)


GUESSED = {key: estimate(key, RATES[key], 2.0, findings=BEYOND) for key in KEYS[:2]}


@settings(max_examples=25, deadline=None)
@given(markets)
def test_guesses_rank_after_all_figures_covered_by_the_fit(market):
    """Guesses follow all figures that the fit covers, and have separate ranks; each part is in its usual order."""
    offers = offers_of(market)
    rows = rank_of(offers, RATES | GUESSED, **OPTIONS).rows
    guessed = [bool(row.findings) for row in rows]
    ranks = [row.rank for row in rows]
    covered = guessed.count(False)
    assert ranks == sorted(ranks)
    assert guessed == sorted(guessed)
    assert not set(ranks[:covered]) & set(ranks[covered:])
    value = [-row.samples_per_usd.value for row in rows]
    for part in (value[:covered], value[covered:]):
        assert part == sorted(part)
    first, again = rows[0], rank_of(offers, RATES | GUESSED, **OPTIONS).first
    assert (again.offer.instance, again.row.p_best) == (first.offer.instance, first.p_best)
    dearer = [row for row in rows if row.samples_per_usd.value > first.samples_per_usd.value]
    assert all(row.findings and not first.findings for row in dearer)


SHIPPED = {"spot": True, "draws": 1, "as_of": "2026-11-20"}
FILTERS = {"provider": "provider", "gpu": "gpu_key", "region": "region", "count": "gpu_count"}


@cache
def without_a_filter(workload):
    """Return the row of every offer that ranks on the shipped prices."""
    return {row.offer: row for row in gpubench.rank(workload, **SHIPPED).rows}


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["resnet50", "lstm", "vgg16", "llama_8b_lora"]),
    st.sets(st.sampled_from(sorted(FILTERS)), min_size=1),
    st.data(),
)
def test_a_filter_does_not_change_the_figures_of_kept_offers(workload, names, data):
    """An offer's speed, hours and cost do not depend on the rest of the question, up to rounding."""
    every = without_a_filter(workload)
    like = data.draw(st.sampled_from(list(every)))
    asked = {name: getattr(like, FILTERS[name]) for name in names}
    asked = {
        name: value if name == "count" else [value] for name, value in asked.items() if value is not None
    }
    kept = gpubench.rank(workload, **SHIPPED, **asked).rows
    assert like in {row.offer for row in kept}
    for row in kept:
        whole = every[row.offer]
        same = pytest.approx((whole.samples_per_s.value, whole.hours.value, whole.cost_usd.value), rel=1e-12)
        assert (row.samples_per_s.value, row.hours.value, row.cost_usd.value) == same
