"""Buy or rent: the cost of owning, when it pays, and the limits of the location."""

from __future__ import annotations

import math
import re
from datetime import date
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpubench
from gpubench.errors import MisuseError
from gpubench.models import Pricing
from gpubench.offers.hardware import card_prices, hosts
from gpubench.recommend.candidates import QUOTED, drawn_rates
from gpubench.recommend.lines import lines
from gpubench.recommend.owning import (
    Ownership,
    break_even,
    hourly,
    hourly_range,
    must_work,
    offer_of,
    ownerships,
    payback,
)
from gpubench.recommend.rank import check
from gpubench.recommend.request import Range, RankRequest
from gpubench.specs import load_specs
from gpubench.units import format_usd

from .builders import (
    A100,
    H100,
    L4,
    RTX5090,
    TODAY,
    estimate,
    evidence_of,
    judge,
    log_normal,
    offer,
    rank_of,
    said,
)


def machine(**changes) -> Ownership:
    """The worked example: 30,000 USD, resale 9,000, 4 years at 0.5, 650 W, PUE 1.3, 0.15 USD/kWh."""
    fields = {
        "gpu_key": H100,
        "gpu_count": 1,
        "purchase_usd": 30_000.0,
        "resale_usd": Range.of(9_000.0),
        "years": 4.0,
        "utilization": Range.of(0.5),
        "power_w": 650.0,
        "idle_w": 0.0,
        "pue": 1.3,
        "tariff": Range.of(0.15),
        "upkeep_usd_per_hour": 0.0,
        "price_date": "2026-11-20",
        "source": "own",
    }
    return Ownership(**fields | changes)


def test_idle_power_is_charged_to_the_useful_hours():
    """(650 + 60 x (1 - 0.5) / 0.5) W = 710 W: 0.71 x 1.3 x 0.15 = 0.13845 USD."""
    assert hourly(machine(idle_w=60.0), 9000, 0.5, 0.15)[1] == pytest.approx(0.13845)


@settings(deadline=None)
@given(st.floats(1, 100), st.floats(1000, 1e6))
def test_at_the_break_even_owning_and_renting_cost_the_same(rent, purchase):
    owned = machine(purchase_usd=purchase)
    hours = break_even(owned, rent, resale=0.3 * purchase, utilization=0.5, tariff=0.15)
    assert hours * rent == pytest.approx(0.7 * purchase + hours * hourly(owned, 0, 0.5, 0.15)[1])


@pytest.mark.parametrize(
    ("quote", "host_w"),
    [
        ("1x RTX 5090, 450 USD", 150.0),
        ("1x RTX 5090, 450 USD, host 1000 USD", 150.0),
        ("cpu, 450 USD", 0.0),
        ("Jetson AGX Orin 64GB, 450 USD", 0.0),
    ],
)
def test_the_power_of_the_machine_around_a_card_counts_whether_bought_or_owned(quote, host_w):
    """350 W of the card alone make owning look cheaper than renting; 500 W of the whole machine do not."""
    request = RankRequest(own=(f"{quote}, 3 years, 50 %, 350 W, 0.2 USD/kWh",))
    owned = ownerships(request, {}, TODAY, own_keys={"cpu"})[0]
    assert owned.host_w == host_w
    assert ("host_w" in owned.assumed) == bool(host_w)
    _, running = hourly(owned, *(each.likely for each in (owned.resale_usd, owned.utilization, owned.tariff)))
    assert running == pytest.approx((350 + host_w) / 1000 * owned.pue * 0.2)


def test_a_range_of_assumptions_is_a_range_of_cost():
    """Best: resale 15,000, use 1, tariff 0: 15,000 / 35,040 = 0.428. Worst: none, 0.25, 0.30: 3.425 + 0.2535."""
    wide = machine(
        resale_usd=Range(0, 9000, 15000), utilization=Range(0.25, 0.5, 1), tariff=Range(0, 0.15, 0.3)
    )
    low, _, high = hourly_range(wide)
    assert low == pytest.approx(0.4281, abs=1e-4)
    assert high == pytest.approx(3.4247 + 0.2535, abs=1e-3)


def weigh(machines, rented, rates, width=None, basis="predicted", **options):
    owned = {offer_of(each): each for each in machines}
    request = check(RankRequest(workloads=("vgg16",), draws=400, **options))
    answers = {key: estimate(key, rate, width, basis) for key, rate in rates.items()}
    evidence = evidence_of({"vgg16": answers})
    return judge(
        request,
        rented,
        lambda keys: evidence,
        today=TODAY,
        drawer=log_normal,
        owned=owned,
    )


def test_an_owned_machine_ranks_by_its_useful_hour_and_states_its_break_even():
    """At 1.325 USD/h it beats 2.99 for the same GPU; the break-even is that of the worked example."""
    ranking = weigh([machine()], [offer(H100, 2.99)], {H100: 3000})
    assert ranking.rows[0].offer.pricing is Pricing.OWNED
    (decision,) = ranking.buy_or_rent
    assert decision.equivalent_usd_per_hour == pytest.approx(2.99)
    assert decision.break_even_hours == pytest.approx(7334, abs=1)
    assert decision.break_even_utilization == pytest.approx(0.209, abs=5e-4)
    assert decision.verdict == "buy"
    assert "Buying 1x H100" in said(ranking)


@pytest.mark.parametrize(
    ("source", "basis", "known"),
    [(QUOTED, "measured", True), (QUOTED, "predicted", False), ("a shop", "measured", False)],
)
def test_only_the_users_measured_machine_has_an_interval_narrower_than_its_model(source, basis, known):
    """A rate is known to 6 % for any card of a model in any host, and to 3.2 % for one card in one host."""
    ranking = weigh(
        [machine(source=source)], [offer(H100, 2.99)], {H100: 3000}, width=1.06, basis=basis, samples=1e9
    )
    own = next(row for row in ranking.rows if row.offer.pricing is Pricing.OWNED)
    rented = next(row for row in ranking.rows if row.offer.pricing is not Pricing.OWNED)
    widths = [math.log(row.samples_per_s.high / row.samples_per_s.low) / 2 for row in (own, rented)]
    alone = math.sqrt(math.log(1.06) ** 2 - math.log(1.05) ** 2 - math.log(1.006) ** 2)
    assert widths == pytest.approx([alone if known else math.log(1.06), math.log(1.06)])


def test_owning_is_compared_with_the_cheapest_rent_at_equal_throughput():
    """L4 at 0.40 USD/h for 600/s is 0.40 x 3000 / 600 = 2.00 USD/h for the 3,000/s owned; H100 asks 2.99."""
    ranking = weigh([machine()], [offer(H100, 2.99), offer(L4, 0.4)], {H100: 3000, L4: 600})
    assert ranking.buy_or_rent[0].equivalent_usd_per_hour == pytest.approx(2.0)


def test_renting_wins_if_rent_is_below_the_running_cost():
    ranking = weigh([machine()], [offer(H100, 0.10)], {H100: 3000})
    decision = ranking.buy_or_rent[0]
    assert (decision.verdict, decision.break_even_hours) == ("rent", None)
    assert "does not pay off against" in said(ranking)


def rtx_3090(**changes):
    """A card of 1,207 USD, resold at 362, against 0.130 USD/h; the running cost is 0.35 kW x 0.15 = 0.0525."""
    fields = {
        "purchase_usd": 1207.0,
        "resale_usd": Range.of(362.0),
        "years": 3.0,
        "power_w": 350.0,
        "pue": 1.0,
    }
    return machine(**fields | changes)


def test_a_break_even_is_reported_as_hours_that_it_must_work_and_months_until_it_pays():
    """845 / (0.130 - 0.0525) = 10,903 h: 41 % of 26,280 h; at 0.5 x 730 h a month 29.9 of 36 months."""
    ranking = weigh([rtx_3090()], [offer(H100, 0.13)], {H100: 3000})
    (decision,) = ranking.buy_or_rent
    assert decision.break_even_hours == pytest.approx(10_903, abs=1)
    assert (decision.years, decision.utilization) == (3, 0.5)
    assert must_work(decision) == "41 % of all hours"
    assert payback(decision) == "pays off after 30 of 36 months at 50 %"
    assert payback(decision) in said(ranking)


def test_a_machine_that_does_not_pay_within_its_life_says_so():
    """10,903 h at 0.3 x 730 h a month are 49.8 months; at 0.060 USD/h 845 / 0.0075 = 112,667 h, over 26,280."""
    little = rtx_3090(utilization=Range(0.1, 0.3, 0.9))
    (decision,) = weigh([little], [offer(H100, 0.13)], {H100: 3000}).buy_or_rent
    assert payback(decision).endswith("not pay off within 36 months at 30 %")
    assert must_work(decision).startswith("41 % of all hours")
    (decision,) = weigh([rtx_3090()], [offer(H100, 0.06)], {H100: 3000}).buy_or_rent
    assert must_work(decision).startswith("over 100 %")
    assert payback(decision).endswith("not pay off within 36 months at 50 %")
    (decision,) = weigh([rtx_3090()], [offer(H100, 0.04)], {H100: 3000}).buy_or_rent
    assert payback(decision).startswith("never")


def test_break_even_interval_ends_are_shown_as_shares_of_all_hours():
    wide = rtx_3090(resale_usd=Range(0.0, 362.0, 800.0), tariff=Range(0.1, 0.15, 0.35))
    (decision,) = weigh([wide], [offer(H100, 0.13)], {H100: 3000}).buy_or_rent
    ends = re.findall(r"over 100 %|\d+ %", must_work(decision))
    assert ends == ["41 %", "16 %", "over 100 %"]


def test_payback_time_against_a_commitment_is_independent_of_utilization():
    """A commitment is paid around the clock, so the utilization of a machine does not matter."""
    committed = offer(H100, 0.13, pricing=Pricing.RESERVED, term_years=3)
    (decision,) = weigh([rtx_3090()], [offer(L4, 9.0, kind="historic"), committed], {H100: 3000}).buy_or_rent
    assert must_work(decision) == "—"
    assert payback(decision) == "pays off after 12 of 36 months at 50 %"


@settings(max_examples=60, deadline=None)
@given(st.floats(0.06, 5), st.floats(0.05, 1), st.floats(0.5, 6))
def test_both_forms_of_a_break_even_agree(rent, use, years):
    """It pays off within its life exactly if the utilization it needs is no higher than the given one."""
    owned = rtx_3090(utilization=Range.of(use), years=years)
    (decision,) = weigh([owned], [offer(H100, rent)], {H100: 3000}).buy_or_rent
    share = decision.break_even_utilization
    if share is None or abs(share - use) > 1e-9:
        assert (share is not None and share < use) == payback(decision).startswith("pays")


def test_wide_assumptions_give_no_verdict():
    wide = machine(
        resale_usd=Range(0, 9000, 15000), utilization=Range(0.05, 0.5, 0.9), tariff=Range(0.1, 0.2, 0.4)
    )
    decision = weigh([wide], [offer(H100, 2.99)], {H100: 3000}).buy_or_rent[0]
    assert decision.verdict == "depends"
    assert decision.break_even_hours_low < decision.break_even_hours < decision.break_even_hours_high


def test_a_break_even_against_another_gpu_has_the_interval_of_the_throughput_ratio():
    sure = weigh([machine()], [offer(L4, 0.4)], {H100: 3000, L4: 600}).buy_or_rent[0]
    unsure = weigh([machine()], [offer(L4, 0.4)], {H100: 3000, L4: 600}, width=1.3).buy_or_rent[0]
    assert sure.break_even_hours_low == pytest.approx(sure.break_even_hours_high)
    assert unsure.break_even_hours_low < sure.break_even_hours < unsure.break_even_hours_high


def test_a_commitment_is_a_separate_rival_and_expensive_when_little_used():
    """1.80 USD/h for three years, used half of the time, is 3.60 USD per useful hour."""
    committed = offer(H100, 1.8, pricing=Pricing.RESERVED, term_years=3)
    ranking = weigh([machine()], [offer(H100, 2.99), committed], {H100: 3000})
    by_pricing = {each.against_pricing: each for each in ranking.buy_or_rent}
    expected = 21_000 / (3.6 - 0.12675)
    assert by_pricing[Pricing.RESERVED].break_even_hours == pytest.approx(expected, rel=1e-3)
    assert by_pricing[Pricing.RESERVED].equivalent_usd_per_hour == pytest.approx(3.6)
    assert "(reserved 3 y)" in by_pricing[Pricing.RESERVED].against
    assert all(row.offer.pricing is not Pricing.RESERVED for row in ranking.rows)


def test_a_commitment_is_expensive_when_little_used_and_cheap_when_much_used():
    """Used 1 hour in 10, a useful hour at 1.80 USD/h costs 18.00; used 9 hours in 10, it costs 2.00."""
    committed = offer(H100, 1.8, pricing=Pricing.RESERVED, term_years=3)
    owned = machine(utilization=Range(0.1, 0.5, 0.9))
    (found,) = weigh([owned], [committed], {H100: 3000}, commit="1y").buy_or_rent
    ends = (found.break_even_hours_low, found.break_even_hours_high)
    assert ends == pytest.approx((21_000 / (18 - 0.12675), 21_000 / (2 - 0.12675)))


def test_a_provider_or_region_does_not_exclude_owned_hardware():
    rented = [offer(H100, 2.99), offer(H100, 2.5, provider="globex", region="eu-1")]
    for options in ({"providers": ("globex",)}, {"regions": ("eu",)}):
        rows = weigh([machine()], rented, {H100: 3000}, **options).rows
        assert [row.offer.provider for row in rows] == ["own", "globex"]


def test_only_buying_or_only_renting_can_be_requested():
    rows = weigh([machine()], [offer(H100, 2.99)], {H100: 3000}, rent_or_buy="buy").rows
    assert [row.offer.pricing for row in rows] == [Pricing.OWNED]
    rows = weigh([machine()], [offer(H100, 2.99)], {H100: 3000}, rent_or_buy="rent").rows
    assert [row.offer.pricing for row in rows] == [Pricing.ON_DEMAND]


def test_the_circuit_and_the_fan_limit_what_can_be_installed():
    four = machine(gpu_key=RTX5090, gpu_count=4, power_w=2300.0)
    passive = machine(gpu_key=L4, power_w=72.0)
    rates = {RTX5090: 900, L4: 300, H100: 3000}
    ranking = weigh([four, passive], [offer(H100, 2.99)], rates, circuit_watts=1840)
    assert {row.offer.gpu_key for row in ranking.rows} == {L4, H100}
    assert "2,300 W, above 1,840 W" in ranking.excluded[0].reason
    ranking = weigh([four, passive], [offer(H100, 2.99)], rates, own_fan=True)
    assert {row.offer.gpu_key for row in ranking.rows} == {RTX5090, H100}


def test_quotes_come_before_dated_prices_and_only_a_jetson_has_a_launch_price():
    specs = load_specs()
    cards = [each for each in card_prices() if each.gpu_count == 1]  # a server is considered only for a sum
    street = {each.gpu_key for each in cards if specs[each.gpu_key].board_power_w is not None}
    request = RankRequest(rent_or_buy="buy", own=("RTX 5090, 4000 USD, 500 W",))
    found = ownerships(request, {}, date(2026, 11, 20))
    assert {each.gpu_key for each in found} == street
    quoted = next(each for each in found if each.gpu_key == RTX5090)
    assert (quoted.purchase_usd, quoted.power_w) == (4000, 500)
    assert quoted.price_date == "2026-11-20"
    for each in found:
        assert (each.condition == "launch price") == (specs[each.gpu_key].line == "Jetson")


def test_measured_power_comes_before_board_power():
    request = RankRequest(own=("RTX 5090, 4000 USD",))
    board = ownerships(request, {}, TODAY)[0]
    measured = ownerships(request, {RTX5090: 480.0}, TODAY)[0]
    assert (board.power_w, measured.power_w) == (575, 480)
    assert "power_w" in board.assumed
    assert "power_w" not in measured.assumed


def test_a_device_that_only_the_user_measured_can_be_owned():
    found = ownerships(RankRequest(own=("cpu, 800 USD, 65 W",)), {}, TODAY, {"cpu"})
    assert (found[0].gpu_key, found[0].power_w) == ("cpu", 65)
    with pytest.raises(MisuseError):
        ownerships(RankRequest(own=("cpu, 800 USD, 65 W",)), {}, TODAY)


def test_a_gpu_without_a_price_is_named_if_nothing_ranks():
    with pytest.raises(MisuseError, match=r"--have 'A100 .* USD'"):
        rank_of([offer(A100, 2.0), offer(H100, 3.0)], {A100: 1.0}, rent_or_buy="buy", gpus=("a100",))


JOB_OF_RENT = st.fixed_dictionaries(
    {
        "samples": st.sampled_from([2e7, 1e8]),
        "startup_minutes": st.sampled_from([0, 10, 45]),
        "billing_minutes": st.sampled_from([None, 60]),
        "storage_usd_per_month": st.sampled_from([0, 900]),
        "egress_usd": st.sampled_from([0, 5]),
        "tax": st.sampled_from([0, 0.2]),
        "jobs": st.sampled_from(["ddp", "independent"]),
    }
)


@settings(max_examples=40, deadline=None)
@given(JOB_OF_RENT, st.floats(0.2, 6), st.floats(300, 6000), st.sampled_from([1, 2]))
def test_owning_pays_off_within_its_life_exactly_when_its_job_costs_less_than_renting(
    extras, usd, rate, count
):
    rent = [offer(L4, f"{usd:.9f}", gpu_count=2), offer(RTX5090, f"{usd * 1.1:.9f}")]
    rates = {H100: 3000.0, L4: rate / 2, RTX5090: rate}
    ranking = weigh([machine(gpu_count=count)], rent, rates, **extras)
    rows = {row.offer.gpu_key: row for row in ranking.rows}
    own, rented = rows.pop(H100), min(rows.values(), key=lambda row: row.cost_usd.value)
    (weighed,) = ranking.buy_or_rent
    # An hour of owned hardware is rounded to a millionth of a dollar, so costs near each other are not compared.
    if abs(own.cost_usd.value / rented.cost_usd.value - 1) > 1e-3:
        assert payback(weighed).startswith("pays") == (own.cost_usd.value < rented.cost_usd.value)
    at_once = count if extras["jobs"] == "independent" else 1
    an_hour = at_once * rented.cost_usd.value / own.hours.value / (1 + extras["tax"])
    assert weighed.equivalent_usd_per_hour == pytest.approx(an_hour)


def test_start_up_cost_counts_in_the_break_even():
    """1.08e7 / 3,000 / 3600 = 1 h. Rented it is 1.5 h of 2.99 with half an hour of startup, 4.485 for an hour
    of work: 21,000 / (4.485 - 0.12675) = 4,818 h, not the 7,334 of a life without starts. Tax is on both."""
    for tax in (0.0, 0.2):
        job = {"samples": 1.08e7, "startup_minutes": 30, "tax": tax}
        (weighed,) = weigh([machine()], [offer(H100, 2.99)], {H100: 3000}, **job).buy_or_rent
        assert weighed.equivalent_usd_per_hour == pytest.approx(4.485, abs=1e-3)
        assert weighed.break_even_hours == pytest.approx(4818.5, abs=1)


def test_a_job_on_an_owned_machine_has_no_startup_and_no_storage_cost():
    """An hour at 1.325 USD. Rented: 1.5 h at 2.99, a disk for 0.10 an hour and 5 USD of egress, 9.635 USD."""
    job = {"samples": 1.08e7, "startup_minutes": 30, "storage_usd_per_month": 73, "egress_usd": 5}
    own, rented = weigh([machine()], [offer(H100, 2.99)], {H100: 3000}, **job).rows
    assert (own.hours.value, rented.hours.value) == pytest.approx((1, 1.5))
    assert (own.cost_usd.value, rented.cost_usd.value) == pytest.approx((1.325, 9.635), abs=1e-3)


def test_for_many_short_jobs_a_rental_is_started_and_billed_once():
    """A minute of work each: an hour of jobs has one start of ten minutes, not sixty, so it costs 7 / 6 of
    2.99.

    A billing increment of two hours is charged once; each of the sixty jobs pays for its own egress.
    """
    minute = {"samples": 3000 * 60.0, "startup_minutes": 10}
    for extras, usd in (
        ({}, 2.99 * 7 / 6),
        ({"billing_minutes": 120}, 2.99 * 2),
        ({"egress_usd": 0.01}, 2.99 * 7 / 6 + 0.6),
    ):
        ranking = weigh([machine()], [offer(H100, 2.99)], {H100: 3000}, **minute, **extras)
        assert ranking.buy_or_rent[0].equivalent_usd_per_hour == pytest.approx(usd, rel=1e-3)
    an_hour = weigh([machine()], [offer(H100, 2.99)], {H100: 3000}, samples=3000 * 3600.0, startup_minutes=10)
    assert an_hour.buy_or_rent[0].equivalent_usd_per_hour == pytest.approx(2.99 * 7 / 6, rel=1e-3)


def test_the_rival_of_short_jobs_is_the_cheapest_for_an_hour_of_them():
    """Per job, the expensive fast machine costs less; per hour of jobs, the cheap slow one does."""
    rent = [offer(L4, 0.9, instance="slow"), offer(RTX5090, 3.0, instance="fast")]
    rates = {H100: 3000.0, L4: 1000.0, RTX5090: 3000.0}
    asked = {"samples": 3000 * 600.0, "startup_minutes": 2}
    (weighed,) = weigh([machine()], rent, rates, **asked).buy_or_rent
    assert "slow" in weighed.against
    assert weighed.equivalent_usd_per_hour == pytest.approx(0.9 * (3 + 2 / 60), rel=1e-3)


def test_a_purchase_is_compared_with_rent_that_meets_the_deadline():
    """The L4 at 0.30 would do 3.6e7 for 7.50 USD in 25 h; within 12 h only the H100 does it, 3.33 h at 3.00."""
    rent = [offer(L4, 0.3, instance="slow"), offer(H100, 3.0, instance="in time")]
    rates = {H100: 3000.0, L4: 400.0}
    for deadline_hours, against in ((None, "slow"), (12, "in time")):
        ranking = weigh([machine()], rent, rates, samples=3.6e7, deadline_hours=deadline_hours)
        assert [against in each.against for each in ranking.buy_or_rent] == [True]


def test_the_draws_of_a_measured_machine_are_as_narrow_as_its_interval():
    """Draws of one H100: the first row keeps half of its log width, the second all of it."""
    draws = 1000 * np.exp(0.1 * np.random.default_rng(0).standard_normal((1, 400)))
    one = np.ones(2)
    pool = SimpleNamespace(
        request=RankRequest(draws=400),
        speeds=SimpleNamespace(draws=draws, samples_per_s=np.array([1000.0]), keys=(H100,)),
        gpu=np.zeros(2, dtype=int),
        width_factor=np.array([0.5, 1.0]),
        spread=np.zeros(2),
        vcpu_limit=np.full(2, np.inf),
        **dict.fromkeys(("count", "pace", "delivered"), one),
    )
    here, kind = drawn_rates(pool, np.array([0, 1]))
    assert here == pytest.approx(1000 * np.sqrt(draws[0] / 1000))
    assert kind == pytest.approx(draws[0])


def test_an_owned_machine_costs_its_energy_and_is_compared_with_the_best_rental():
    """Without a price, the machine is already paid for: only the 350 W of the card and the power of the host cost."""
    found = gpubench.rank("resnet50", have=["RTX 3090"], draws=50, as_of="2026-11-20")
    (mine,) = [row for row in found.rows if row.offer.pricing is Pricing.OWNED]
    assert float(mine.offer.price_usd_per_hour) == pytest.approx(
        (350 + hosts()[0].power_w) / 1000 * 0.15, rel=1e-3
    )
    assert mine.offer.instance == "yours"
    assert not found.buy_or_rent
    (line,) = [line for line in lines(found) if line.choice.offer == mine.offer]
    assert "Cheapest" in line.names
    assert format_usd(mine.cost_usd.value) in found.verdict


def test_naming_a_gpu_to_rent_keeps_the_machine_it_is_compared_with():
    def ranked(**asked):
        rows = gpubench.rank("resnet50", draws=50, as_of="2026-11-20", **asked).rows
        return {(row.offer.gpu_key, row.offer.gpu_count) for row in rows}

    quote = "4x RTX PRO 6000 Blackwell Workstation Edition, 36000 USD"
    assert ranked(gpu="8x H100 SXM", have=[quote]) == {
        ("nvidia-h100-sxm-80gb", 8),
        ("nvidia-rtx-pro-6000-blackwell-workstation-96gb", 4),
    }
    assert ranked(gpu="RTX 4090", buy=True, have=["RTX 3090"]) == {
        ("nvidia-geforce-rtx-4090-24gb", 1),
        ("nvidia-geforce-rtx-3090-24gb", 1),
    }


def test_an_owned_machine_that_is_not_ranked_is_listed_with_the_reason():
    found = gpubench.rank("llama_8b_lora", have=["RTX 3060"], draws=50, as_of="2026-11-20", deadline_hours=3)
    assert not [row for row in found.rows if row.offer.pricing is Pricing.OWNED]
    (line,) = [note for note in found.said("asked") if note.startswith("Your 1x RTX 3060")]
    assert "is not ranked: " in line


def test_an_owned_computer_adds_no_cost_to_the_cards_to_buy():
    found = gpubench.rank("resnet50", have=["PC"], max_purchase_usd=500, draws=50, as_of="2026-11-20")
    assert found.first.host_usd == 0
    assert found.first.purchase_usd <= 500
