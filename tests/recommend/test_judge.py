"""The core: the ranked offers, their order and figures, and the excluded offers."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import msgspec
import pytest

import gpubench
from gpubench.errors import MisuseError
from gpubench.models import Finding, FindingKind, Pricing
from gpubench.options import request_from
from gpubench.predict.question import Refusal
from gpubench.recommend.candidates import LINK_SIGMA
from gpubench.recommend.lines import headline, lines
from gpubench.recommend.rank import check, document
from gpubench.recommend.request import RankRequest
from gpubench.stats import Z90

from .builders import (
    A100,
    H100,
    L4,
    T4,
    TODAY,
    estimate,
    evidence_of,
    judge,
    log_normal,
    offer,
    rank_of,
    said,
)


def test_an_instance_counts_all_its_gpus():
    """Independent jobs: 8 x 3000 / 24.00 equals 3000 / 3.00; one job over all keeps 0.9 of it."""
    offers = [offer(H100, 24.0, gpu_count=8, instance="eight")]
    alone = rank_of(offers, {H100: 3000.0}).rows[0]
    assert (alone.samples_per_s.value, alone.scaling_efficiency, alone.scaling_basis) == (
        24000,
        1,
        "independent jobs",
    )
    together = rank_of(offers, {H100: 3000.0}, jobs="ddp").rows[0]
    assert together.samples_per_s.value == pytest.approx(21600)
    assert (together.scaling_efficiency, together.scaling_basis) == (0.9, "modeled")


def test_offers_of_several_gpus_that_cannot_fit_one_job_are_left_out_with_the_reason():
    """With as many jobs as GPUs, each has the memory of one."""
    offers = [offer(H100, 24.0, gpu_count=8), offer(H100, 3.0), offer(L4, 3.2, gpu_count=8)]
    answers = {"vgg16": {key: estimate(key, 3000.0) for key in (H100, L4)}}

    def refuse(name, spec, count, alone):
        return f"{name} on {count}: too tight" if spec.key == H100 else None

    def counts(**options):
        request = check(RankRequest(workloads=("vgg16",), draws=10, relative=True, **options))
        evidence = replace(evidence_of(answers), why_no_room=refuse)
        found = judge(request, offers, lambda keys: evidence, today=TODAY)
        return {(row.offer.gpu_key, row.offer.gpu_count) for row in found.rows}, found.excluded

    rows, excluded = counts(jobs="ddp")
    assert rows == {(H100, 1), (L4, 8)}
    assert "vgg16 on 8: too tight" in str(excluded)
    assert counts(jobs="independent")[0] == rows | {(H100, 8)}


def test_the_interval_of_value_is_that_of_throughput_and_an_unknown_one_stays_unknown():
    row = rank_of([offer(H100, 3.0)], {H100: 3000.0}, width=1.25).rows[0]
    assert (row.samples_per_s.low, row.samples_per_s.high) == pytest.approx((2400, 3750))
    assert row.samples_per_usd.low == pytest.approx(3600 * 2400 / 3)
    assert row.samples_per_usd.high == pytest.approx(3600 * 3750 / 3)
    row = rank_of([offer(H100, 3.0)], {H100: 3000.0}).rows[0]
    assert (row.samples_per_s.low, row.samples_per_usd.high) == (None, None)


def test_a_combination_has_the_weakest_basis_of_its_parts():
    from gpubench.recommend.speeds import combine

    tables = {"a": {H100: estimate(H100, 200, basis="measured")}, "b": {H100: estimate(H100, 800)}}
    assert combine(tables, {}, log_normal, 10, 0).estimates[0].basis == "predicted"


def test_a_refused_gpu_is_left_out_with_its_reason():
    ranking = rank_of(
        [offer(H100), offer(L4, 0.4)], {H100: 3000.0, L4: Refusal(gpu_key=L4, reason="no rates")}
    )
    assert [row.offer.gpu_key for row in ranking.rows] == [H100]
    assert [(e.gpu_key, e.reason) for e in ranking.excluded] == [(L4, "no rates")]


def test_historic_attached_spot_and_free_offers_are_not_ranked_by_default():
    offers = [
        offer(H100, 2.0),
        offer(H100, 1.0, kind="historic"),
        offer(H100, 1.1, kind="attach-fee"),
        offer(H100, 1.2, pricing=Pricing.SPOT),
        offer(H100, 0),
    ]
    ranking = rank_of(offers, {H100: 3000.0})
    assert [float(row.offer.price_usd_per_hour) for row in ranking.rows] == [2.0]
    assert len(ranking.excluded) == 4
    with_spot = rank_of(offers, {H100: 3000.0}, spot=True)
    assert [float(row.offer.price_usd_per_hour) for row in with_spot.rows] == [1.2, 2.0]


def test_a_stale_price_is_marked_or_left_out_on_request():
    offers = [offer(H100, 2.0, price_date="2026-11-01"), offer(H100, 1.0, price_date="2026")]
    rows = rank_of(offers, {H100: 3000.0}, max_price_age_days=1_000).rows
    assert [[str(f.kind) for f in row.findings] for row in rows] == [[FindingKind.STALE_PRICE], []]
    assert [row.price_age_days for row in rows] == [323, 19]
    for asked in ({}, {"max_price_age_days": 30}):
        assert [row.price_age_days for row in rank_of(offers, {H100: 3000.0}, **asked).rows] == [19]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"gpus": ("h100",)}, {H100}),
        ({"gpus": ("NVIDIA L4", "t4")}, {L4, T4}),
        ({"providers": ("ACME",)}, {H100, T4}),
        ({"regions": ("eu",)}, {L4}),
        ({"count": 8}, {H100}),
        ({"max_usd_per_hour": 0.5}, {L4, T4}),
        ({"min_memory_gib": 24}, {H100, L4}),
        ({"min_memory_gib": 24, "max_usd_per_hour": 1}, {L4}),
    ],
)
def test_each_filter_keeps_only_matching_offers(options, left):
    offers = [
        offer(H100, 20.0, gpu_count=8),
        offer(L4, 0.4, provider="globex", region="EU-west"),
        offer(T4, 0.3),
    ]
    ranking = rank_of(offers, {H100: 3000.0, L4: 500.0, T4: 200.0}, **options)
    assert {row.offer.gpu_key for row in ranking.rows} == left
    assert {e.gpu_key for e in ranking.excluded} == {H100, L4, T4} - left


def test_an_empty_answer_says_which_filter_removed_how_many():
    offers = [offer(H100, 3.0), offer(H100, 4.0), offer(L4, 0.4, kind="historic")]
    with pytest.raises(
        MisuseError, match="none of the 3 offers is left: the setting max-usd-per-hour removed 2"
    ):
        rank_of(offers, {H100: 3000.0}, max_usd_per_hour=1)


def test_an_empty_answer_names_the_reason_that_excluded_most_offers():
    def refused(key, reason):
        return Refusal(gpu_key=key, reason=reason)

    rates = {key: refused(key, "no published measurements") for key in (H100, L4)}
    with pytest.raises(MisuseError, match="no published measurements"):
        rank_of([offer(H100), offer(L4), offer(T4)], rates | {T4: refused(T4, "another vendor's")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": ("h1000",)}, "unknown GPU 'h1000'; nearest known"),
        ({"providers": ("acm",)}, "unknown provider 'acm'; nearest known: acme"),
        ({"regions": ("eu-wset",)}, "unknown region 'eu-wset'; nearest known: eu-west"),
        ({"regions": ("mars",)}, "unknown region 'mars'; nearest known: eu, us, asia"),
        ({"samples": 5, "epochs": 2}, "--samples contradicts"),
        ({"epochs": 2}, "go together"),
        ({"deadline_hours": 2}, "--deadline-hours needs a job, and the setting relative"),
        ({"mix": {"vgg16": 0.5}}, "the setting mix names its own workloads"),
        (
            {"workloads": (), "mix": {"vgg16": 0.5, "lstm": 0.3}},
            "the shares of the setting mix sum to 0.8: they must sum to 1",
        ),
        ({"relative": True, "samples": 1e6}, "the setting relative ranks without a job"),
        ({"epochs": 90, "workloads": ("lstm",)}, "samples = epochs x dataset size"),
    ],
)
def test_misuse_is_one_clear_line(options, message):
    with pytest.raises(MisuseError, match=message) as caught:
        rank_of([offer(H100, region="EU-west")], {H100: 3000.0}, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sort": "price"}, "'price' is unknown; choose from value, time, cost, throughput, joules"),
        ({"precision": "fp64"}, "'fp64' is unknown"),
        ({"cooling": "water"}, "'water' is unknown; choose from active"),
        ({"max_usd_per_hour": -1}, "must be at least 0"),
        ({"samples": float("nan")}, "must be a number from 1e-09 to 1e.15, above 0"),
        ({"hour_worth": 1e308}, "must be a number from 1e-09 to 1e.15, at least 0"),
        ({"dataset_gb": 1e308}, "dataset_gb 1e.308 must be a number from"),
        ({"epochs": 1e308}, "epochs 1e.308 must be a number from"),
        ({"deadline_hours": 1e-300}, "deadline_hours 1e-300 must be a number from"),
        ({"batch_size": 0}, "must be from 1"),
        ({"budget_usd": 0}, "must be above 0"),
        ({"deadline_hours": -2}, "must be above 0"),
        ({"max_purchase_usd": 0}, "must be above 0"),
        ({"slots": 0}, "must be at least 1"),
    ],
)
def test_a_value_outside_of_its_limits_is_one_clear_line(options, message):
    with pytest.raises(MisuseError, match=message) as caught:
        gpubench.rank("vgg16", **options)
    assert "\n" not in str(caught.value)


def test_deadlines_and_budgets_apply_at_the_slow_end():
    """1e9 images at 3,000/s take 92.6 h; at 3,000 / 1.25 they take 115.7 h, at 3 USD/h for 347.2 USD."""
    offers, rates = [offer(H100, 3.0)], {H100: 3000.0}
    assert rank_of(offers, rates, width=1.25, samples=1e9, deadline_hours=116, budget_usd=348).rows
    with pytest.raises(MisuseError, match=r"--deadline-hours .* 92.6 h \(116 h .*above 115"):
        rank_of(offers, rates, width=1.25, samples=1e9, deadline_hours=115)
    with pytest.raises(MisuseError, match=r"\$277.78 \(.* \$347.22\).* \$300.00"):
        rank_of(offers, rates, width=1.25, samples=1e9, budget_usd=300)


def test_a_spot_row_states_how_much_work_it_may_lose():
    """1.38 / 1.00 - 1 = 0.38."""
    offers = [
        offer(H100, 1.0, pricing=Pricing.SPOT, instance="same"),
        offer(H100, 1.38, instance="same"),
        offer(H100, 1.1, pricing=Pricing.SPOT, instance="other"),
    ]
    ranking = rank_of(offers, {H100: 3000.0}, spot=True)
    assert [row.spot_break_even for row in ranking.rows] == [pytest.approx(0.38), None, None]
    assert " 38 %" in said(ranking)


def test_a_host_bound_row_says_that_a_faster_gpu_does_not_help():
    bound = Finding(kind=FindingKind.HOST_BOUND, value=0.8, limit=0.7)
    offers = [offer(H100, 1.0, vcpus=4)]
    verdict = said(rank_of(offers, {H100: estimate(H100, 900, findings=(bound,))}))
    assert "this batch size" in verdict


def test_a_host_bound_prediction_is_a_guess_and_wins_against_no_interval():
    """Without an interval nothing is known of its worst case, so it would win as if it were certain."""
    bound = Finding(kind=FindingKind.HOST_BOUND, value=0.8, limit=0.7)
    rates = {H100: estimate(H100, 900, findings=(bound,)), L4: estimate(L4, 800, 1.1)}
    found = rank_of([offer(H100, 1.0), offer(L4, 1.0)], rates, samples=1e8)
    assert [row.offer.gpu_key for row in found.rows] == [L4, H100]
    assert {answer.row.offer.gpu_key for answer in found.answers.values()} == {L4}
    assert "H100 SXM5 80GB may be faster, but its figure is a guess." in said(found)
    measured = msgspec.structs.replace(rates[H100], basis="measured")
    again = rank_of([offer(H100, 1.0), offer(L4, 1.0)], rates | {H100: measured}, samples=1e8)
    assert again.answers["fastest"].row.offer.gpu_key == H100


def test_a_host_bound_measurement_carries_the_name_of_its_cpu():
    """Only a ranked GPU is named, and only if its figure is based on this kind of measurement."""
    rates = {
        H100: estimate(H100, 900, host_cpu="AMD EPYC 9354\x1b[31m"),
        L4: estimate(L4, 200),
        T4: estimate(T4, 100, host_cpu="Other"),
    }
    ranking = rank_of([offer(H100, 1.0), offer(L4, 1.0)], rates)
    (note,) = [note for note in ranking.said("note") if "limited by the host's CPU" in note]
    assert "AMD EPYC 9354" in note
    assert "H100" in note
    assert not {"\x1b", "L4", "Other"} & {*note, *note.split()}
    assert [row.estimate.host_cpu for row in ranking.rows] == ["AMD EPYC 9354\x1b[31m", None]


def test_among_several_workloads_a_host_bound_one_names_its_cpu():
    bound = {H100: estimate(H100, 400, host_cpu="Some CPU"), A100: estimate(A100, 200)}
    tables = {"cnn": {H100: estimate(H100, 400), A100: estimate(A100, 200)}, "lstm": bound}
    ranking = judge(
        RankRequest(workloads=("cnn", "lstm"), draws=10),
        [offer(H100, 2.0)],
        lambda keys: evidence_of(tables),
        today=TODAY,
        drawer=log_normal,
    )
    assert ranking.rows[0].estimate.host_cpu == "Some CPU"


def test_dominated_offer_names_the_dominating_one_and_its_advantage():
    offers = [offer(H100, 2.0, instance="cheap"), offer(H100, 3.0, instance="dear"), offer(L4, 0.1)]
    rows = rank_of(offers, {H100: 3000.0, L4: 200.0}).rows
    by_name = {row.offer.instance: row for row in rows}
    assert by_name["cheap"].pareto
    assert not by_name["dear"].pareto
    assert by_name["dear"].dominated_by.startswith("acme cheap: ")


def test_several_workloads_are_shown_as_multiples_of_the_reference():
    """H100 at 400/s against A100 at 200/s is 2 x; at 2 USD/h a dollar buys 2 / 2 = 1 hour of an A100's work."""
    tables = {name: {H100: estimate(H100, 400), A100: estimate(A100, 200)} for name in ("cnn", "lstm")}
    ranking = judge(
        RankRequest(workloads=("cnn", "lstm"), draws=10, relative=True),
        [offer(H100, 2.0)],
        lambda keys: evidence_of(tables),
        today=TODAY,
        drawer=log_normal,
    )
    assert ranking.by_reference
    assert ranking.throughput_of(ranking.rows[0]).value == pytest.approx(2)
    assert ranking.value_of(ranking.rows[0]).value == pytest.approx(1)
    assert ranking.value_unit == "A100 SXM4 80GB hours per dollar"
    assert "1.00 A100 SXM4 80GB hours per dollar" in headline(ranking)
    alone = rank_of([offer(H100, 2.0)], {H100: 400.0, A100: 200.0})
    assert not alone.by_reference
    assert alone.value_unit == "images per dollar"


def test_an_unstated_form_factor_ranks_as_the_slowest_and_says_so():
    unstated = "nvidia-h100-unstated-80gb"
    ranking = rank_of([offer(unstated)], {unstated: 1700.0})
    assert any("slowest" in note for note in ranking.said("note"))
    assert "(SXM or PCIe)" in headline(ranking)


def test_hardware_that_cannot_run_these_workloads_says_why():
    tpu = "google-tpu-v5e"
    ranking = rank_of([offer(H100), offer(tpu)], {H100: 3000.0, tpu: Refusal(gpu_key=tpu, reason="Google")})
    assert "JAX" in ranking.excluded[0].reason


def test_commitments_rank_on_request_and_state_their_cost_when_idle():
    offers = [offer(H100, 3.0), offer(H100, 2.0, pricing=Pricing.RESERVED, term_years=1)]
    ranking = rank_of(offers, {H100: 3000.0}, commit="1y")
    assert [row.offer.pricing for row in ranking.rows] == [Pricing.RESERVED, Pricing.ON_DEMAND]
    assert any(" 2.0 times as much" in note for note in ranking.said("note"))


def test_the_python_function_accepts_plain_words_and_numbers(tmp_path):
    given = {"gpu": "h100", "workload": ["cnn"], "utilization": 0.5, "results": str(tmp_path)}
    request = request_from(RankRequest, given, "rank")
    assert request.gpus == ("h100",)
    assert request.workloads == ("cnn",)
    assert request.utilization == (0.5, 0.5, 0.5)
    assert request.results == tmp_path


def test_the_document_states_each_fact_once():
    """The answers refer to rows; of two offers excluded for the same reason, one is the example."""
    offers = [offer(H100), offer(L4, 1, kind="historic"), offer(L4, 2, kind="historic"), offer(L4, 0.2)]
    asked = {"samples": 1e8, "limit": 1, "hour_worth_usd": 2}
    ranking = rank_of(offers, {H100: 3000.0, L4: 200.0}, width=1.2, **asked)
    written = msgspec.json.decode(msgspec.json.encode(document(ranking)))
    assert written["schema"] == "gpubench.ranking/3"
    assert written["job"] == {"samples": 1e8, "words": "100 million images"}
    assert (written["hour_worth_usd"], written["settings"]) == (2.0, [])
    assert [row["gpu_key"] for row in written["rows"]] == [H100]
    assert written["answers"]["cheapest"] == {"row": 0, "p_best": ranking.rows[0].p_cheapest, "toss_up": None}
    assert written["answers"]["fastest"] == {"row": 0, "p_best": 1.0, "toss_up": None}
    assert written["answers"]["sensible"] == {"row": 0, "p_best": ranking.rows[0].p_best, "toss_up": None}
    (left_out,) = written["excluded"]
    assert left_out["count"] == 2
    assert "historic" in left_out["example"]
    assert {each["kind"] for each in written["sentences"]} <= {
        "answer",
        "asked",
        "sureness",
        "caution",
        "next",
        "note",
    }
    assert written["sentences"][0]["kind"] == "answer"
    (row,) = written["rows"]
    assert (row["price_usd_per_hour"], row["seller"], row["stack"], row["total_usd"]) == (
        2.0,
        "cloud",
        "torch",
        pytest.approx(4 * 1e8 / 3000 / 3600, rel=1e-4),  # 2 USD of rent and 2 of waiting for each hour
    )


def test_an_answer_that_is_not_among_the_rows_follows_them():
    """An L4 at 0.1 USD/h is the cheapest and an H100 at 2 USD/h the fastest, so a limit of one row gives two."""
    ranking = rank_of([offer(H100), offer(L4, 0.1)], {H100: 3000.0, L4: 500.0}, samples=1e8, limit=1)
    written = document(ranking)
    assert len(ranking.rows) == 1
    assert [row["gpu_key"] for row in written["rows"]] == [L4, H100]
    assert [written["answers"][name]["row"] for name in ("cheapest", "fastest")] == [0, 1]


def test_doubts_about_the_price_of_the_choice_reach_its_row_and_the_notes():
    hosts = [offer(H100, price, kind="marketplace", instance=str(price)) for price in (2.0, 3.0, 4.5)]
    first = msgspec.structs.replace(hosts[0], note="cheapest of two verified hosts")
    ranking = rank_of([first, *hosts[1:]], {H100: 3000.0}, samples=1e8)
    assert "the median of 3 listings is $3.00" in said(ranking)
    assert any(note.endswith(f": {first.note}.") for note in ranking.said("note"))
    assert ranking.rows[0].offer.note == first.note
    assert not any("host" in note for note in rank_of([offer(H100)], {H100: 3000.0}).said("note"))


def test_a_frame_has_the_same_columns_as_the_json():
    ranking = rank_of([offer(H100), offer(L4, 0.4)], {H100: 3000.0, L4: 500.0})
    frame = ranking.to_frame()
    assert list(frame["gpu_key"]) == [H100, L4]
    assert list(frame.columns) == list(document(ranking)["rows"][0])


def test_hostile_names_reach_no_terminal():
    hostile = offer(H100, instance="x\x1b[2J[/red]\u202e")
    ranking = rank_of([hostile], {H100: 3000.0})
    shown = f"{said(ranking)} {headline(ranking)}"
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_a_row_at_another_batch_is_reported_and_shown():
    alike = estimate(L4, 900.0)
    other = msgspec.structs.replace(alike, case=msgspec.structs.replace(alike.case, batch_size=32))
    note = "Not every GPU is ranked at the requested batch; a table with rows that differ has a batch column."
    offers = [offer(H100, 2.0), offer(L4, 1.0)]
    assert note in rank_of(offers, {H100: 3000.0, L4: other}).said("note")
    assert note not in rank_of(offers, {H100: 3000.0, L4: alike}).said("note")
    assert note not in rank_of(offers[:1], {H100: 3000.0, L4: other}).said("note")


def test_rivals_of_one_gpu_are_told_apart_by_their_number():
    """Prices of half a year ago leave open whether one L4 or two at 1.8 times its speed are more sensible."""
    old = {"price_date": "2026-05-20"}
    offers = [offer(L4, 1.0, **old), offer(L4, 1.9, gpu_count=2, provider="other", **old), offer(T4, 9.0)]
    found = rank_of(offers, {L4: 1000.0, T4: 100.0}, width=1.3, samples=1e9, hour_worth_usd=0.125, draws=2000)
    sensible = found.answers["sensible"]
    assert {each[:2] for each in sensible.toss_up} == {(L4, 1), (L4, 2)}
    told = [each.text for each in found.sentences if each.text.startswith("A toss-up")]
    assert told
    assert all("1x L4" in text and "2x L4" in text for text in told)
    shown = " ".join(chance for line in lines(found) for chance in line.chances)
    assert f"(or {sensible.toss_up[1][1]}x L4 " in shown


def test_an_answer_is_a_toss_up_below_odds_of_two_to_one_and_names_both_chances():
    offers = [offer(H100, 2.0), offer(A100, 2.0, gpu_count=2)]
    asked = {"width": 1.5, "samples": 1e9, "draws": 2000, "hour_worth_usd": 0.01}
    even = rank_of(offers, {H100: 1000.0, A100: 555.0}, **asked)
    named, rival = even.answers["cheapest"].toss_up
    assert {named[:2], rival[:2]} == {(H100, 1), (A100, 2)}
    assert named[0] == even.answers["cheapest"].row.offer.gpu_key
    assert named[2] + rival[2] == pytest.approx(1)
    assert named[2] < 2 * rival[2]
    (told,) = {each.text for each in even.sentences if each.text.startswith("A toss-up")}
    assert named[2] < rival[2]
    assert re.fullmatch(r"A toss-up: .* leads on the likely figures, but .* wins more often\.", told)
    ahead = rank_of(offers, {H100: 1000.0, A100: 500.0}, **asked)
    mine, other = ahead.answers["cheapest"].toss_up
    assert mine[2] > other[2]
    assert any(each.text.startswith("A toss-up for the cheapest:") for each in ahead.sentences)

    clear = rank_of(offers, {H100: 1000.0, A100: 100.0}, **asked)
    assert {name: each.toss_up for name, each in clear.answers.items()} == dict.fromkeys(clear.answers)
    assert "toss-up" not in said(clear)


def test_offers_of_the_same_gpus_add_up_in_a_toss_up():
    offers = [offer(H100, 2.0), offer(H100, 2.001, provider="other"), offer(A100, 1.0)]
    ranking = rank_of(offers, {H100: 1000.0, A100: 490.0}, width=1.3, samples=1e9, draws=2000)
    chances = {row.offer.gpu_key: 0.0 for row in ranking.rows}
    for row in ranking.rows:
        chances[row.offer.gpu_key] += row.p_cheapest
    cheapest = ranking.answers["cheapest"]
    assert dict(each[::2] for each in cheapest.toss_up) == pytest.approx(chances)
    assert cheapest.p_best == pytest.approx(chances[cheapest.row.offer.gpu_key])
    # Both offers of the fastest GPU finish at the same time and share its chance.
    fastest = ranking.answers["fastest"]
    assert fastest.p_best == pytest.approx(2 * fastest.row.p_fastest)


def test_an_assumed_start_up_has_an_interval_and_a_given_one_has_none():
    asked = {"width": 1.2, "samples": 3.6e6, "draws": 4000}
    (assumed,) = rank_of([offer(H100, 2.0)], {H100: 1000.0}, startup_minutes=None, **asked).rows
    (given,) = rank_of([offer(H100, 2.0)], {H100: 1000.0}, startup_minutes=10.0, **asked).rows
    assert assumed.hours.value == given.hours.value == pytest.approx(1 + 1 / 6)
    assert given.hours.high == pytest.approx(1.2 + 1 / 6)
    speed, start = math.log(given.hours.high / given.hours.value), math.log((1 + 2 / 6) / (1 + 1 / 6))
    assert assumed.hours.high == pytest.approx(given.hours.value * math.exp(math.hypot(speed, start)))
    assert assumed.cost_usd.high > given.cost_usd.high


def test_a_deadline_is_met_even_if_the_start_up_is_long():
    """One hour of work and ten minutes of start; twenty minutes would be 1.33 h."""
    asked = {"samples": 3.6e6, "deadline_hours": 1.25}
    assert rank_of([offer(H100, 2.0)], {H100: 1000.0}, width=1.01, startup_minutes=10.0, **asked).rows
    with pytest.raises(MisuseError, match="if slow"):
        rank_of([offer(H100, 2.0)], {H100: 1000.0}, width=1.01, startup_minutes=None, **asked)


def test_the_link_of_a_private_host_is_less_certain_than_that_of_a_cloud():
    """Eight GPUs keep nine tenths of their speed, so an error of the link counts by one tenth."""
    offers = [offer(H100, 8.0, gpu_count=8, kind=kind, provider=kind) for kind in ("vm", "marketplace")]
    ranking = rank_of(offers, {H100: 1000.0}, width=1.1, samples=1e9)
    width = {
        row.offer.kind: math.log(row.samples_per_s.high / row.samples_per_s.value) for row in ranking.rows
    }
    more = math.sqrt(width["marketplace"] ** 2 - width["vm"] ** 2)
    assert more == pytest.approx(Z90 * LINK_SIGMA * 0.1)


def test_streams_of_inference_share_the_work_and_the_cost_is_that_of_the_instance():
    """1e9 samples at 8,000/s take 34.7 h; the instance costs 16 USD/h for its eight GPUs together."""
    offers, rates = [offer(H100, 16.0, gpu_count=8)], {H100: 1000.0}
    (row,) = rank_of(offers, rates, task="infer", samples=1e9).rows
    assert row.hours.value == pytest.approx(1e9 / 8000 / 3600)
    assert row.cost_usd.value == pytest.approx(16 * 1e9 / 8000 / 3600, rel=1e-3)
    (each,) = rank_of(offers, rates, task="infer", samples=1e9, jobs="independent").rows
    assert each.hours.value == pytest.approx(8 * row.hours.value)
    assert each.cost_usd.value == pytest.approx(row.cost_usd.value, rel=1e-3)
