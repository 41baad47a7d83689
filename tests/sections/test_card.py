"""The decision card: 60 words, and every promised element among them, whatever the names and figures are."""

from __future__ import annotations

from decimal import Decimal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from recommend.builders import A100, H100, L4, RTX5090, offer, rank_of
from recommend.cards import assert_card_is_whole, card_of

from gpubench.findings import Finding, FindingKind
from gpubench.interval import Interval
from gpubench.labels import gpu_name
from gpubench.models import (
    Change,
    Choice,
    Decision,
    ParallelMode,
    PriceCondition,
    Pricing,
    Ranking,
    SentenceKind,
    Sureness,
)
from gpubench.recommend.verdict import ONLY_OFFER
from gpubench.sections.verdict import after_the_headline
from gpubench.specs import load_specs

RATES = {H100: 3000.0, A100: 1000.0, RTX5090: 900.0, L4: 400.0}
RANKED = rank_of([offer(key, 1 + i) for i, key in enumerate(RATES)], RATES, width=1.3, samples=108e6)

GPUS = st.sampled_from(sorted(load_specs()))
USD = st.floats(0.01, 99_999)


MEMORY_TEXTS = (
    "fits (needs 0.439 to 1.13 of 24 GiB)",
    "fits in eager steps, maybe not in a CUDA graph of 32.3 GiB (needs 17.2 to 30.1 of 32 GiB)",
    "fits (needs 0.439 to 1.13 of 24 GiB; not traced: what it does depends on its values (net.py line 10))",
    "fits (it ran here; needs 12.5 of 16 GiB)",
    None,
)


GUESS = Finding(kind=FindingKind.OUT_OF_DOMAIN, value="Ampere")


def changed(choice: Choice, *, offer=None, estimate=None, row=None, **changes) -> Choice:
    """Return a choice whose offer, estimate, row and own facts are other ones."""
    replace = msgspec.structs.replace
    its = choice.row
    its = replace(
        its,
        offer=replace(its.offer, **offer or {}),
        estimate=replace(its.estimate, **estimate or {}),
        **row or {},
    )
    return replace(choice, row=its, **changes)


@st.composite
def decisions(draw) -> Decision:
    """A decision with any GPUs, prices, dates, hurdles, doubts and chances that one can have."""
    base = RANKED.decision
    price = draw(USD)
    expected = price * draw(st.sampled_from([1, 1.3]))
    cost = draw(USD)
    choice = changed(
        base.choice,
        offer={
            "gpu_key": draw(GPUS),
            "gpu_count": draw(st.sampled_from([1, 8])),
            "provider": draw(st.sampled_from(["vast", "google-colab"])),
            "pricing": draw(st.sampled_from([Pricing.ON_DEMAND, Pricing.SPOT])),
            "price_date": draw(st.sampled_from(["2026-10-04", "2026-08", "2025"])),
            "price_usd_per_hour": Decimal(price),
            "vcpus": 6,
        },
        estimate={
            "fits_memory": draw(st.sampled_from([True, None])),
            "memory_text": draw(st.sampled_from(MEMORY_TEXTS)),
            "findings": (GUESS,) if draw(st.booleans()) else (),
        },
        row={
            "price_age_days": draw(st.sampled_from([0, 49, 325])),
            "usd_per_hour": Interval(expected, expected, expected),
            "hours": Interval(draw(st.floats(0.02, 5000))),
            "cost_usd": Interval(cost, cost / 2, cost * 2),
            "findings": draw(st.sampled_from([(), (Finding(kind=FindingKind.EAGER_MEMORY),)])),
            "parallel_mode": draw(st.sampled_from([ParallelMode.SINGLE, ParallelMode.FSDP])),
            "p_best": 0.3,
        },
        condition=draw(st.sampled_from([PriceCondition.LIST, PriceCondition.SINGLE_HOST])),
        memory_margin_bytes=draw(st.integers(1, 10**12)),
        feed_vcpus=draw(st.sampled_from([None, 6, 6.3, 12.8])),
        price_doubt=draw(st.sampled_from([None, "$0.01, a hundredth of what four other providers list"])),
        p_best_of_gpu=draw(st.sampled_from([0.3, 0.56])),
    )
    other = changed(
        base.runner_up,
        offer={"gpu_key": draw(GPUS), "gpu_count": draw(st.sampled_from([1, 8]))},
        estimate={"basis": draw(st.sampled_from(["measured", "predicted"]))},
        row={"cost_usd": Interval(draw(USD))},
    )
    measured = changed(
        base.by_gpu[-1],
        offer={"gpu_key": draw(GPUS)},
        estimate={"basis": "measured"},
        row={"cost_usd": Interval(draw(USD))},
    )
    by_gpu = (choice, other, *([measured] if draw(st.booleans()) else []))
    return msgspec.structs.replace(
        base,
        job=msgspec.structs.replace(
            base.job,
            words=draw(
                st.sampled_from(["90 epochs of ImageNet", "24 h of one A100 SXM4 80GB", "3.5 epochs of 60,000 images"])
            ),
        ),
        choice=choice,
        runner_up=other,
        by_gpu=by_gpu,
        sureness=Sureness(p_best=0.3, p_near_best=draw(st.floats(0, 1)), regret_usd=draw(USD), regret_share=0.1),
        change=Change(kind="price", value=price, threshold=draw(USD)),
        unfitted=draw(st.sampled_from([None, "speeds of inference are predicted from few published measurements"])),
    )  # fmt: skip


def decided(decision: Decision) -> Ranking:
    return msgspec.structs.replace(RANKED, decision=decision)


@settings(max_examples=25)
@given(decisions())
def test_the_card_is_whole_in_sixty_words_whatever_was_decided(decision):
    assert_card_is_whole(decided(decision))


def test_of_one_gpu_its_offers_are_compared():
    """No GPU was there to be compared with: nothing is said of a GPU as the cheapest."""
    asked = [
        offer(L4, 1.0, provider="here"),
        offer(L4, 1.1, provider="here"),
        offer(L4, 1.2, provider="there"),
    ]
    ranking = rank_of(asked, RATES, width=1.3, samples=108e6)
    headline, facts = card_of(ranking)
    assert " at here for $1.00/h" in headline
    assert "GPU" not in facts["How sure"].value
    assert facts["Runner-up"].value.startswith("L4, there, ")
    assert facts["Runner-up"].detail == "above $1.20/h the runner-up wins"
    assert_card_is_whole(ranking)


def test_of_one_provider_the_next_offer_is_the_runner_up():
    ranking = rank_of([offer(L4, 1.0), offer(L4, 2.5, gpu_count=2)], RATES, width=1.3, samples=108e6)
    assert card_of(ranking)[1]["Runner-up"].value.startswith("2x L4, ")
    assert_card_is_whole(ranking)


def test_an_offer_alone_has_no_rival():
    _, facts = card_of(rank_of([offer(L4, 1.0)], RATES, width=1.3, samples=108e6))
    assert facts["How sure"].value == ONLY_OFFER
    assert "Runner-up" not in facts


def test_the_best_that_was_measured_stands_beside_a_prediction():
    decision = RANKED.decision
    mine = changed(decision.by_gpu[-1], estimate={"basis": "measured"})
    others = decision.by_gpu[:-1]
    _, facts = card_of(decided(msgspec.structs.replace(decision, by_gpu=(*others, mine))))
    assert facts["Best measured"].value.startswith(gpu_name(mine.offer.gpu_key))


def test_a_name_with_a_full_stop_ends_no_sentence():
    """The second sentence on is told below the table: no rest of the first, and no sureness once more."""
    provider = "Acme Inc. How sure"
    ranking = rank_of([offer(key, 1 + i, provider=provider) for i, key in enumerate(RATES)], RATES, width=1.3)
    answer, *others = ranking.sentences
    assert (answer.kind, provider in answer.text) == (SentenceKind.ANSWER, True)
    assert SentenceKind.SURENESS in {each.kind for each in others}
    expected = [each.text for each in others if each.kind is SentenceKind.BESIDE]
    assert after_the_headline(ranking) == expected
    assert ranking.verdict.startswith(answer.text)
