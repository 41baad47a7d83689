"""What a budget buys: cards and a host whose power supply and slots suffice; utilization from the jobs per month."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from command import here

import gpubench
from gpubench.errors import MisuseError
from gpubench.interval import Interval
from gpubench.labels import gpus_of
from gpubench.models import PriceCondition
from gpubench.offers.dates import price_day
from gpubench.offers.hardware import card_prices, hosts
from gpubench.offers.table import Offers
from gpubench.recommend.filters import apply, owned_host_filters, within_purchase_limit
from gpubench.recommend.owning import assumed_of, offer_of, ownerships, with_utilization
from gpubench.recommend.rank import check
from gpubench.recommend.request import Range, RankRequest
from gpubench.specs import load_specs

from .builders import L4, TODAY, offer
from .test_owning import machine, weigh

RTX3090 = "nvidia-geforce-rtx-3090-24gb"
EVERYTHING = (
    "years",
    "utilization",
    "power_w",
    "pue",
    "tariff_usd_per_kwh",
    "resale_usd",
    "host_usd",
    "idle_w",
    "psu_watts",
    "host_w",
    "slots",
)


def cards(count=1, **changes):
    """Return RTX 3090s at 1,207 USD each plus a host for 1,000 USD; a card takes 350 W and 3 slots."""
    fields = {
        "gpu_key": RTX3090, "gpu_count": count, "purchase_usd": 1207.0 * count + 1000, "host_usd": 1000.0,
        "power_w": 350.0 * count, "host": hosts()[0], "condition": PriceCondition.USED, "assumed": EVERYTHING, "source": "a report", "years": 3.0,
    }  # fmt: skip
    return machine(**fields | changes)


def given(one, *names):
    """Return a machine with these values given rather than assumed; by default, the limits of its host."""
    names = names or ("psu_watts", "slots")
    return replace(one, assumed=tuple(name for name in one.assumed if name not in names))


def left_out(one, **options):
    """Return the option that excludes a machine, and the reason; None if it may be bought."""
    owned = {offer_of(one): one}
    _, fallen = apply(list(owned_host_filters(RankRequest(**options), owned)), owned)
    return (fallen[0].option, fallen[0].reason) if fallen else None


def too_dear(*machines, **options):
    """Return why each machine above the purchase limit is left out, the cheapest last."""
    owned = {offer_of(each): each for each in machines}
    return [each.reason for each in within_purchase_limit(RankRequest(**options), Offers.of(owned), owned)[1]]


def test_a_budget_must_cover_cards_and_host():
    """Two cards cost 2 x 1,207 + 1,000 = 3,414 USD, three 4,621."""
    assert too_dear(cards(2), max_purchase_usd=3414) == []
    reasons = too_dear(cards(2), cards(3), max_purchase_usd=3413)
    assert reasons == [
        "$4,621 including a host at $1,000, above $3,413",
        "$3,414 including a host at $1,000, above $3,413",
    ]


def test_cards_and_host_draw_at_most_four_fifths_of_the_power_supply():
    """2 x 350 + 150 = 850 W: within 0.8 x 1,200 = 960 of a new host and 0.8 x 1,063 = 850.4, above 0.8 x 1,062."""
    two, three = cards(2, host_w=150.0), cards(3, host_w=150.0)
    assert left_out(two) is None
    assert left_out(given(two), psu_watts=1063) is None
    assert left_out(given(two), psu_watts=1062)[0] == "the setting psu-watts"
    option, reason = left_out(given(three, "slots"), slots=9)  # 1,050 + 150 = 1,200
    assert option == "the setting psu-watts"
    assert "1,050 W" in reason


def test_cards_must_fit_the_slots():
    """Two RTX 3090s take 6 slots; a card of unknown width counts as 3."""
    assert left_out(given(cards(2)), slots=6) is None
    assert left_out(given(cards(2)), slots=5)[0] == "the setting slots"
    wide = "nvidia-geforce-rtx-5060-ti-16gb"
    assert load_specs()[wide].slot_count is None
    assert left_out(given(cards(2, gpu_key=wide)), slots=6) is None
    assert left_out(given(cards(2, gpu_key=wide)), slots=5)[0] == "the setting slots"


def test_passively_cooled_card_needs_an_explicit_host():
    passive = cards(gpu_key=L4)
    assert "fan" in left_out(passive)[0]
    assert left_out(given(passive, "host_usd")) is None


def test_quoted_machines_have_only_the_given_limits():
    """The owner of four cards already has a host for them."""
    quoted = given(cards(4, condition=PriceCondition.QUOTED, source="own"))
    assert left_out(quoted) is None
    assert left_out(quoted, psu_watts=1600)[0] == "the setting psu-watts"


def test_the_watts_that_an_owner_states_count_against_the_power_supply():
    """450 + 150 W are above 0.8 x 600; a card limited to 220 W is not. A mean that was measured is no limit."""
    key = "nvidia-geforce-rtx-4090-24gb"
    (usual,) = ownerships(RankRequest(own=(key,)), {key: 220.0}, TODAY)
    (limited,) = ownerships(RankRequest(own=(f"{key}, 220 W",)), {}, TODAY)
    assert left_out(usual, psu_watts=600)[0] == "the setting psu-watts"
    assert left_out(limited, psu_watts=600) is None


# --- the jobs of a month ------------------------------------------------------------------------------------


class Row:
    """The two relevant fields of a row: a job of 73 h."""

    def __init__(self, one):
        self.offer, self.hours = offer_of(one), Interval(73.0)


def used(one, **options):
    request = RankRequest(**{"samples": 1e6, "jobs_per_month": 4, "max_purchase_usd": 1e4} | options)
    (found,) = with_utilization([one], [Row(one)], request)
    return found


def test_the_jobs_of_a_month_set_the_utilization():
    """4 x 73 / 730 = 0.4 of all hours; independent jobs take one of the two cards each: 0.2."""
    assert used(cards(2)).utilization == Range.of(pytest.approx(0.4))
    assert used(cards(2), jobs="independent").utilization == Range.of(pytest.approx(0.2))
    assert "utilization" not in used(cards(2)).assumed


def test_jobs_for_more_than_one_machine_state_the_number_needed():
    """30 jobs of 73 h are 3 months of work, 31 need a fourth machine, and 10 fill all the hours of one."""
    assert left_out(used(cards(), jobs_per_month=10), jobs_per_month=10) is None
    for jobs, needed in ((30, 3), (31, 4)):
        option, reason = left_out(used(cards(), jobs_per_month=jobs), jobs_per_month=jobs)
        assert option == "the setting jobs-per-month"
        assert f"{jobs} jobs" in reason
        assert re.search(rf"\b{needed} of these machines", reason)


def test_cost_of_a_useful_hour_follows_from_the_number_of_jobs():
    """(2,207 - 30 % of it) / (3 x 8,760 x 0.1) = 0.5879, and 0.35 kW x 0.15 = 0.0525: 0.6404 USD."""
    request = check(
        RankRequest(workloads=("vgg16",), samples=1e6, jobs_per_month=1, own=("RTX 3090, 1 USD",))
    )
    one = cards(resale_usd=Range.of(0.3 * 2207), tariff=Range.of(0.15), pue=1.0)
    (found,) = with_utilization([one], [Row(one)], request)
    assert float(offer_of(found).price_usd_per_hour) == pytest.approx(0.6404, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_purchase_usd": 3000.0, "rent_or_buy": "rent"}, "rent contradicts --max-purchase-usd"),
        (
            {"jobs_per_month": 4.0, "rent_or_buy": "buy", "relative": True},
            "relative ranks without one",
        ),
        ({"jobs_per_month": 4.0, "samples": 1e6}, "add --buy, --max-purchase-usd or --have"),
        (
            {"jobs_per_month": 4.0, "samples": 1e6, "rent_or_buy": "buy", "utilization": Range.of(0.3)},
            "leave out the setting utilization",
        ),
    ],
)
def test_a_contradictory_request_is_refused_in_one_line(options, message):
    with pytest.raises(MisuseError, match=message):
        check(RankRequest(**options))


# --- prices and assumptions ---------------------------------------------------------------------------------


def test_every_card_price_has_a_condition_a_date_and_a_source():
    prices = card_prices()
    assert len(prices) >= 20
    kinds = [(each.gpu_key, each.gpu_count, each.is_computer, each.condition) for each in prices]
    assert len(set(kinds)) == len(kinds)
    for each in prices:
        assert each.gpu_key in load_specs()
        assert each.price_usd > 0
        assert price_day(each.price_date)
        assert each.condition in {"new", "used", "unstated", "launch price"}
        assert each.statistic
        assert each.license or "GPU Poet" not in each.source
        assert len(each.source) > 20


def test_new_and_used_are_separate():
    """The RTX 5070 costs 557 used and 835 new; both with a host of 1,000."""
    found = {
        (each.gpu_key, each.condition): each.purchase_usd
        for each in ownerships(RankRequest(rent_or_buy="buy"), {}, TODAY)
    }
    key = "nvidia-geforce-rtx-5070-12gb"
    assert (found[key, "used"], found[key, "new"]) == (1557, 1835)
    labels = {offer_of(each).instance for each in ownerships(RankRequest(rent_or_buy="buy"), {}, TODAY)}
    assert {label.partition("3 years")[0] for label in labels} == {"new, ", "used, ", "launch price, ", ""}


def test_a_jetson_is_bought_at_its_launch_price_without_a_host():
    """A developer kit is a whole computer, so a set never has two; the answer names the kind of price."""
    kits = {
        each.gpu_key: each
        for each in ownerships(RankRequest(max_purchase_usd=3000.0), {}, TODAY)
        if "jetson" in each.gpu_key
    }
    orin = kits["nvidia-jetson-agx-orin-64gb"]
    assert (orin.purchase_usd, orin.host_usd, orin.gpu_count) == (1999, 0, 1)
    assert all(each.condition == "launch price" and each.gpu_count == 1 for each in kits.values())
    assert left_out(orin, slots=1, psu_watts=400) is None
    found = gpubench.rank(gpu=["jetson agx orin"], max_purchase_usd=3000, draws=50)
    assert found.first.condition == "launch price"
    assert found.first.offer.price_date == "2023"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"years": 4.0}, "years"),
        ({"asked": ("years",)}, "years"),
        ({"tariff": Range.of(0.2)}, "tariff_usd_per_kwh"),
        ({"asked": ("utilization",)}, "utilization"),
        ({"resale": Range.of(0.1)}, "resale_usd"),
        ({"pue": 1.2}, "pue"),
        ({"host_usd": 1000.0}, "host_usd"),
        ({"psu_watts": 1200.0}, "psu_watts"),
        ({"slots": 6}, "slots"),
    ],
)
def test_a_given_value_is_not_called_assumed_even_if_it_equals_the_default(given, field):
    (bare, *_) = ownerships(RankRequest(rent_or_buy="buy"), {}, TODAY)
    (told, *_) = ownerships(RankRequest(rent_or_buy="buy", **given), {}, TODAY)
    assert field in bare.assumed
    assert set(bare.assumed) - set(told.assumed) == {field}


OF_A_HOST = {"psu_watts", "host_w", "slots"}


def limits_assumed(**given):
    """Return the assumptions about the host of any card to buy."""
    found = ownerships(RankRequest(rent_or_buy="buy", **given), {}, TODAY)
    return {field for each in found for field in each.assumed} & OF_A_HOST


def test_the_limits_of_a_host_are_listed_as_assumptions_if_they_matter():
    """An existing host counts as a desktop, unless the settings describe it."""
    assert limits_assumed() == OF_A_HOST
    assert limits_assumed(psu_watts=850.0, slots=4) == {"host_w"}
    assert limits_assumed(host_usd=0.0) == OF_A_HOST
    assert limits_assumed(host_usd=0.0, psu_watts=2000.0, slots=9) == {"host_w"}


def test_power_supply_of_a_host_does_not_depend_on_its_price():
    """3 x 350 + 150 = 1,200 W, above 0.8 x 1,200 = 960 W, also for an existing PC."""
    fields = {"gpu_count": 3, "power_w": 1050.0, "host_w": 150.0}
    for host_usd in (800.0, 0.0):
        bought = ownerships(RankRequest(rent_or_buy="buy", count=3, host_usd=host_usd, slots=9), {}, TODAY)
        one = next(each for each in bought if each.gpu_key == RTX3090 and each.condition == "used")
        assert {name: getattr(one, name) for name in fields} == fields
        assert (left_out(one, slots=9) or (None,))[0] == "the setting psu-watts"


def test_every_assumption_is_reported_with_its_value():
    bought = weigh([cards(resale_usd=Range.of(600.0))], [offer(RTX3090, 1.0)], {RTX3090: 500}).buy_or_rent
    assert assumed_of(bought) == [
        "$0.15 per kWh ($0.10 to 0.35)",
        "150 W for the host",
        "6 slots for cards (3 for a card of unknown width)",
        "PUE 1",
        "a desktop PC for $1,000 as the host",
        "a life of 3 years",
        "a power supply of 1,200 W (loaded to 80 % at most)",
        "board power as the power under load",
        "no power when idle",
        "resale at 30 % of the price (15 to 50 %)",
        "work during 50 % of all hours (25 to 90 %)",
    ]
    owned = machine(assumed=("host_usd",))
    assert len(assumed_of(weigh([owned], [offer(L4, 1.0)], {owned.gpu_key: 500, L4: 100}).buy_or_rent)) == 1


# --- the whole answer ---------------------------------------------------------------------------------------


def test_the_answer_states_the_purchase_its_condition_and_its_price(tmp_path):
    asked = ["rank", "vgg16", "--max-purchase-usd", "3000", "--table", "--as-of", "2026-11-20"]
    shown = here(*asked, "--results", tmp_path, NO_COLOR="1").stdout
    words = " ".join(shown.split())
    assert "Best per dollar" in words
    assert re.search(r"[1-8]x RTX [\w ]+, (new|used)", words)
    assert re.search(r"with a host, \$[12],\d{3}", words)
    assert "Best within $3,000" in shown
    assert "a desktop PC for $1,000 as the host" in words


@pytest.mark.parametrize(
    ("jobs", "weighed", "words"), [(1, "rent", "does not pay off"), (7, "depends", "can pay off")]
)
def test_purchase_that_does_not_pay_off_is_compared_with_the_cheaper_rent(jobs, weighed, words):
    """Each job takes 33 h; the card is used for three years."""
    asked = {"max_purchase_usd": 3000, "jobs_per_month": jobs, "hour_worth": 0}
    found = gpubench.rank("resnet50", **asked, as_of="2026-11-20", draws=50)
    assert (found.first.source, found.buy_or_rent[0].verdict) == ("own", weighed)
    told = " ".join(found.said("answer", "asked"))
    assert f"Buying {gpus_of(found.first.offer)} for ${found.first.purchase_usd:,.0f} {words} against" in told
    assert f"${found.first.purchase_usd:,.0f} rents " in told


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("years", 1e-300),
        ("host_usd", 1e30),
        ("pue", 1e30),
        ("jobs_per_month", 1e308),
        ("jobs_per_month", 1e-300),
    ],
)
def test_an_absurd_figure_about_owning_is_refused(field, value):
    with pytest.raises(MisuseError, match=f"{field} .* must be"):
        gpubench.rank("resnet50", buy=True, **{field: value})
