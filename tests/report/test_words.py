"""Numbers and names as the report words them."""

from __future__ import annotations

import re

import pytest

from gpubench.effects import Result
from gpubench.labels import offer_name
from gpubench.report.page import render
from gpubench.sections import data
from gpubench.sections.answer import in_full

from . import samples


def test_a_partial_price_date_says_how_old_it_may_be():
    row = samples.ranked(1, samples.offer(samples.H200, "2.20", price_date="2026"), 3000.0)
    assert data.price_date_words(row).endswith(" 323 days old")


def test_many_cases_are_summed_up_in_one_line():
    cases = [
        samples.case(w, 64, p)
        for w in ("cnn", "lstm")
        for p in (samples.Precision.AMP_BF16, samples.Precision.AMP_FP16)
    ]
    assert data.cases_words(cases) == "cnn and lstm, training, amp-bf16 or amp-fp16, graph, batch 64"


@pytest.mark.parametrize("kind", ["md", "html"])
@pytest.mark.parametrize("run", [samples.cpu_run, samples.h200_run])
@pytest.mark.parametrize(("launches", "digits"), [(1, 3), (3, 4)])
def test_a_figure_of_one_launch_has_three_digits(launches, digits, run, kind):
    """At 3,611.5 images/s every round is within 0.01 %, but other launches would differ by more."""
    m = samples.measurement(samples.case("vgg16", 64), 64 / 3611.5, spread=1e-5, launches=launches)
    figures = re.findall(r"\b3,6[\d.]+", render(samples.report_data(run(measurements=(m,))), kind))
    assert figures
    assert {len(re.sub(r"\D", "", each).rstrip("0")) for each in figures} == {digits}


def owned(key: str, use: str):
    """Return the row of a machine that is owned and busy for this share of all hours."""
    own = {"provider": "own", "instance": f"3 years at {use}", "pricing": samples.Pricing.OWNED}
    return samples.ranked(1, samples.offer(key, "2.20", **own), 3000.0)


def test_owned_card_is_not_shown_as_an_offer_of_a_provider():
    row = owned(samples.H200, "50 %")
    assert offer_name(row.offer) == "own: 3 years at 50 %"
    assert "useful hour" in data.price_date_words(row)


def test_each_owned_machine_is_shown_with_its_own_utilization():
    """Only one machine is the best to own; the cost of the other assumes another share of busy hours."""
    keys = {samples.H200: 0.6, "nvidia-geforce-rtx-4090-24gb": 0.5}
    best, other = (samples.choice(owned(key, f"{use:.0%}")) for key, use in keys.items())
    ranking = samples.ranking(
        answers={"cheapest": samples.Answer(choice=best), "fastest": samples.Answer(choice=other)},
        best_to_own=best,
        best_to_own_use=0.6,
        buy_or_rent=tuple(
            samples.buy_or_rent(gpu_key=each.offer.gpu_key, instance=each.offer.instance, utilization=use)
            for each, use in ((best, 0.6), (other, 0.5))
        ),
    )
    shown = {fact.term: fact.value for fact in in_full(ranking).rows}
    assert "if busy 60 %" in shown["Cheapest"]
    assert "if busy 50 %" in shown["Fastest"]


def test_the_headline_figure_is_the_heaviest_without_doubt():
    doubt = (samples.Finding(kind=samples.FindingKind.NOT_CONVERGED, value=0.03, limit=0.02),)
    heavy, light = (
        samples.measurement(samples.case(name, 64), step_s, findings=findings)
        for name, step_s, findings in (("vgg16", 0.1, doubt), ("cnn", 0.01, ()))
    )
    results = [Result(run=samples.h200_run(), measurement=m) for m in (heavy, light)]
    (fact,) = data.measured_facts(results)
    assert fact.detail.partition("; ")[2].startswith("cnn, ")
    (alone,) = data.measured_facts(results[:1])
    assert alone.detail.endswith("flagged NOT_CONVERGED")
