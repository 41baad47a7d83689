"""Commitments: the cost of a term compared with on demand, and the use above which it pays off."""

from __future__ import annotations

from gpubench.models import Pricing

from .builders import H100, L4, offer, rank_of, said

RATES = {H100: 3000.0, L4: 300.0}
YEAR = {"pricing": Pricing.RESERVED, "term_years": 1, "provider": "gcp"}
THREE = YEAR | {"term_years": 3}


def test_commitment_pays_off_from_its_price_ratio_to_on_demand():
    """2.00 against 3.20 is 62.5 %, and 1.28 for three years 40 %; the other seller has no price for a term."""
    prices = [
        offer(H100, 3.2, provider="gcp"),
        offer(H100, 2.0, **YEAR),
        offer(H100, 1.28, **THREE),
        offer(L4, 0.4, provider="aws"),
    ]
    found = rank_of(prices, RATES, commit="1y")
    text = said(found)
    assert (
        "at gcp costs $2.00 with a commitment of 1 year, billed day and night. Against $3.20 on demand at gcp, "
        "a commitment of 1 year pays off above 62 % use."
    ) in text
    assert "Against $3.20 on demand at gcp, a commitment of 3 years pays off above 40 % use." in text
    assert "No price for 1 year is known from aws." in text
    assert {row.offer.term_years for row in found.rows} == {None, 1}
    assert "ommitment" not in said(rank_of(prices, RATES))


def test_a_commitment_above_every_on_demand_price_never_pays():
    prices = [
        offer(H100, 3.2, provider="gcp"),
        offer(H100, 2.0, **YEAR),
        offer(H100, 1.9, provider="lambda"),
    ]
    text = said(rank_of(prices, RATES, commit="1y"))
    assert "Against $3.20 on demand at gcp, a commitment of 1 year pays off above 62 % use." in text
    assert "Against $1.90 on demand at lambda, a commitment of 1 year never pays off." in text


def test_without_a_known_term_only_its_absence_is_reported():
    found = rank_of([offer(H100, 3.2, provider="gcp")], RATES, commit="3y")
    assert "No price for 3 years is known from gcp." in found.said("caution")
    assert "pays off" not in said(found)


def test_other_commitment_terms_are_suggested_only_for_the_same_or_named_gpus():
    prices = [offer(H100, 3.2, provider="gcp"), offer(H100, 2.0, **YEAR), offer(L4, 0.2, **THREE)]
    prices = [*prices, offer(L4, 0.4, provider="gcp")]
    assert "3 years" not in said(rank_of(prices, RATES, commit="1y"))
    named = rank_of(prices, RATES, commit="1y", gpus=("h100", "l4"))
    assert "L4 at gcp costs $0.200 with a commitment of 3 years" in said(named)


def test_the_total_of_a_commitment_is_shown_with_the_share_of_the_job():
    found = rank_of([offer(H100, 2.0, **YEAR)], RATES, commit="1y")
    assert "A commitment is paid in full, used or not: gcp $17,520." in said(found)
