"""Buy or rent: after how many useful hours owning is the cheaper, as an interval, and in which words.

Terminal, page and verdict all word it here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.labels import gpus_of, offer_name
from gpubench.models import BuyOrRent, Choice, Offer, Pricing, Purchase
from gpubench.offers.columns import kinds_of
from gpubench.offers.dates import HOURS_PER_YEAR
from gpubench.recommend import economics
from gpubench.recommend.buying import PSU_SHARE, UNKNOWN_SLOTS
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.objective import cost, drawn_job_rates, hours, time_and_cost
from gpubench.recommend.ownership import HOST_W, QUOTED, Ownership, hourly, hourly_range, likely_hourly
from gpubench.recommend.request import DEFAULT_HOST, Range, RankRequest
from gpubench.units import UNKNOWN, format_number, format_percent, format_price, listing

SESSION_HOURS = 1.0
"""Of an owned machine's work at least, for which what is rented is started and billed once: nobody starts a
machine anew for each of many short jobs."""

_INTERVAL = (0.05, 0.95)


class BreakEven(NamedTuple):
    """Useful hours, and the share of all hours of a life that they are; None is never."""

    hours: float | None
    utilization: float | None


def break_even(
    owned: Ownership, rent_usd_per_hour: float, *, resale: float, utilization: float, tariff: float
) -> BreakEven:
    """Return the break-even at one rent, resale, utilization and tariff.

    30,000 USD, resale 9,000, 4 years, 650 W, PUE 1.3, 0.15 USD/kWh against 2.99 USD/h: the running cost is
    0.127 USD/h, so (30,000 - 9,000) / (2.99 - 0.127) = 7,334 h, and 7,334 / 35,040 = 0.209 of 4 years.
    """
    running = hourly(owned, resale=resale, utilization=utilization, tariff=tariff).running
    hours = economics.break_even_hours(owned.purchase_usd, resale, rent_usd_per_hour, running)
    return BreakEven(hours, economics.break_even_utilization(hours, owned.years))


def pays(each: BuyOrRent) -> bool:
    """Return whether a machine pays within its life at its likely use, and its ranges do not all deny it."""
    return each.verdict != "rent" and _payback(each)[0] == _PAYS


def against_rent(
    request: RankRequest, pool: Candidates, owned: Mapping[Offer, Ownership]
) -> tuple[BuyOrRent, ...]:
    """Weigh each owned row of the pool against the cheapest work on demand and of each commitment.

    Of short jobs it is an hour of them, one after the other: what is rented is started once, not for each.

    Args:
        request: What was asked, the job among it.
        pool: Owned and rented offers; the rivals are its rented rows.
        owned: What owning each owned offer means, in the order of the answer.
    """
    row_of = {pool.offers[row]: row for row in np.flatnonzero(pool.is_owned).tolist()}
    paid = kinds_of(pool.offers.pricing, pool.offers.term_years)
    found = []
    for offer, machine in owned.items():
        session = _session(request, pool, row_of[offer])
        _, money = time_and_cost(*session, slice(None))
        for code, (pricing, _) in enumerate(paid.values):
            if pricing in {Pricing.ON_DEMAND, Pricing.RESERVED}:
                rival = int(np.argmin(np.where(paid.codes == code, money, np.inf)))
                found.append(_weigh(*session, machine, row_of[offer], rival))
    return tuple(found)


def _session(request: RankRequest, pool: Candidates, machine: int) -> tuple[RankRequest, Candidates]:
    """Return the question of so many jobs at once as take an owned machine ``SESSION_HOURS``."""
    one = np.array([machine])
    if pool.work is None:
        return request, pool
    many = SESSION_HOURS / float(hours(request, pool, pool.rate[one], one)[0])
    if many <= 1:
        return request, pool
    work = pool.work
    drawn = None if work.drawn is None else work.drawn * many
    work = replace(work, samples=work.samples * many, drawn=drawn)
    together = msgspec.structs.replace(request, egress_usd=request.egress_usd * many)
    return together, replace(pool, work=work)


def _weigh(request: RankRequest, pool: Candidates, owned: Ownership, machine: int, rival: int) -> BuyOrRent:
    offer = pool.offers[rival]
    rent = _rent_for_an_hour(request, pool, machine, rival)
    is_committed = offer.pricing is Pricing.RESERVED
    # From the corner that favors owning to that which favors renting. A commitment is paid day and night, so
    # that little use makes its useful hour dear: there, little use favors owning, else much use does.
    uses = owned.utilization if is_committed else owned.utilization[::-1]
    rents = [
        economics.committed_usd_per_useful_hour(usd, use) if is_committed else usd
        for usd, use in zip(rent[::-1], uses, strict=True)
    ]
    favorable, likely, unfavorable = (
        break_even(owned, usd, resale=resale, utilization=use, tariff=tariff)
        for usd, use, resale, tariff in zip(rents, uses, owned.resale_usd[::-1], owned.tariff, strict=True)
    )
    verdict: Literal["buy", "rent", "depends"] = "depends" if _pays(favorable, uses[0]) else "rent"
    if _pays(unfavorable, uses[2]):
        verdict = "buy"
    low, high = hourly_range(owned)
    return BuyOrRent(
        gpu_key=owned.gpu_key,
        gpu_count=owned.gpu_count,
        instance=pool.offers[machine].instance,
        purchase_usd=owned.purchase_usd,
        power_w=owned.power_w,
        power_basis=owned.power_basis,
        usd_per_hour=likely_hourly(owned).total,
        usd_per_hour_low=low,
        usd_per_hour_high=high,
        against=f"{gpus_of(offer)} at {offer_name(offer)}",
        against_pricing=offer.pricing,
        equivalent_usd_per_hour=rents[1],
        break_even_hours=likely.hours,
        break_even_hours_low=favorable.hours,
        break_even_hours_high=unfavorable.hours,
        break_even_utilization=likely.utilization,
        break_even_utilization_low=favorable.utilization,
        break_even_utilization_high=unfavorable.utilization,
        verdict=verdict,
        quoted=owned.source == QUOTED,
        condition=owned.condition,
        host_usd=owned.host_usd,
        assumed=owned.assumed,
        years=owned.years,
        utilization=owned.utilization.likely,
    )


def _rent_for_an_hour(request: RankRequest, pool: Candidates, machine: int, rival: int) -> Range:
    """Return what the work of an hour of an owned machine costs rented [USD], before tax.

    Of a job, or a session of short ones, all is counted that its cost has: start-up, billing increments,
    storage and egress. Tax is on both, so that it leaves the break-even alone. The ends are those of the
    ratio of the two throughputs.
    """
    pair = np.array([machine, rival])

    def rent(rates: Floats) -> Floats:
        """At (2, D) rates of the two: (D,)."""
        if pool.work is None:
            return np.asarray(pool.price[rival] * rates[0] / rates[1])
        job_hours = hours(request, pool, rates, pair)
        usd = cost(request, pool, job_hours, pair)[1] / (1 + request.tax)
        at_once = 1 if request.one_job_over_all_gpus else pool.count[machine]
        return np.asarray(at_once * usd / job_hours[0])

    low, high = (float(x) for x in np.quantile(rent(drawn_job_rates(request, pool, pair)), _INTERVAL))
    likely = float(rent(pool.rate[pair][:, None])[0])
    return Range(min(low, likely), likely, max(high, likely))


def _pays(point: BreakEven, use: float) -> bool:
    return point.utilization is not None and point.utilization <= use


_DEFAULTS = RankRequest()
_USE, _TARIFF, _RESALE = _DEFAULTS.utilization, _DEFAULTS.tariff, _DEFAULTS.resale
_ASSUMED = {
    "years": f"a life of {_DEFAULTS.years:g} years",
    "utilization": (
        f"{100 * _USE.likely:.0f} % of all hours at work ({100 * _USE.low:.0f} to {100 * _USE.high:.0f} %)"
    ),
    "power_w": "board power as the power at work",
    "idle_w": "no power when idle",
    "pue": f"PUE {_DEFAULTS.pue:g}",
    "tariff_usd_per_kwh": f"${_TARIFF.likely:.2f} a kWh (${_TARIFF.low:.2f} to {_TARIFF.high:.2f})",
    "psu_watts": f"a power supply of {DEFAULT_HOST.psu_w:,.0f} W",
    "psu_share": f"a power supply loaded to {format_percent(PSU_SHARE)} at most",
    "host_w": f"{HOST_W:.0f} W for the host",
    "slots": f"{DEFAULT_HOST.slots} slots for cards",
    "card_slots": f"{UNKNOWN_SLOTS:g} slots for a card of unknown width",
    "resale_usd": (
        f"resale at {100 * _RESALE.likely:.0f} % of the price "
        f"({100 * _RESALE.low:.0f} to {100 * _RESALE.high:.0f} %)"
    ),
}
_A_HOST = f"{format_price(DEFAULT_HOST.price_usd)} for the host"
_NO_HOST = "no host to pay for"


def assumed_of(machines: Iterable[BuyOrRent | Purchase | Choice]) -> list[str]:
    """Say what was assumed of any of the machines, with its value; what was given is not among it."""
    found: dict[str, None] = {}
    for each in machines:
        host = _A_HOST if each.host_usd else _NO_HOST
        found.update(dict.fromkeys(_ASSUMED.get(name, host) for name in each.assumed))
    return sorted(found)


def assumptions(machines: Iterable[BuyOrRent | Purchase], first: str) -> str:
    """Say what was assumed of machines; where nothing was, what was given: ``first`` and the rest."""
    assumed = assumed_of(machines)
    if not assumed:
        return f"Nothing was assumed: {first}, life, power and tariff were given."
    return f"Assumed, because it was not given: {listing(assumed)}."


def must_work(each: BuyOrRent) -> str:
    """Return how much of all hours of its life a machine must work to pay, with the interval.

    "41 % of all hours (24 % to more than all)". A commitment is paid day and night, so that against one the
    hours at work decide nothing: unknown.
    """
    if each.against_pricing is Pricing.RESERVED:
        return UNKNOWN
    likely, low, high = (
        "more than all" if share is None else format_percent(share)
        for share in (
            each.break_even_utilization,
            each.break_even_utilization_low,
            each.break_even_utilization_high,
        )
    )
    words = f"{likely} hours" if each.break_even_utilization is None else f"{likely} of all hours"
    return words if likely == low == high else f"{words} ({low} to {high})"


def pays_after(each: BuyOrRent) -> str:
    """Return after how much of its life a machine has paid, at its likely use: "30 of 36 months at 50 %"."""
    verb, period = _payback(each)
    return f"{_IN_A_TABLE[verb]}{period}{_at_its_use(each, period)}"


def buying_words(each: BuyOrRent) -> str:
    """Return when a machine pays, as the rest of a sentence about it.

    "it must work 41 % of all hours; at 50 %, it pays after 30 of 36 months"
    """
    share, (verb, period) = must_work(each), _payback(each)
    condition = "" if share == UNKNOWN else f"it must work {share}; "
    use = _at_its_use(each, period).lstrip()
    return f"{condition}{use}{', ' if use else ''}it {verb}{period}"


def how_long_it_pays(each: BuyOrRent) -> str:
    """Return whether a machine pays within its life: "does not pay within 36 months"."""
    return "".join(_payback(each)).rstrip()


_PAYS, _PAYS_NOT, _NEVER = "pays after ", "does not pay within ", "never pays"
_IN_A_TABLE = {_PAYS: "", _PAYS_NOT: "not within ", _NEVER: "never"}
_WHOLE_MONTH = 1e-9
"""36.0000000001 months are 36."""


def _payback(each: BuyOrRent) -> tuple[str, str]:
    """Return whether a machine pays within its life at its likely use, and the time."""
    if each.break_even_hours is None:
        return _NEVER, ""
    if each.years is None or not each.utilization:
        return _PAYS, f"{format_number(each.break_even_hours)} h of work"
    life = f"{each.years * HOURS_PER_YEAR / economics.HOURS_PER_MONTH:.3g} months"
    if each.break_even_hours > economics.useful_hours(each.years, each.utilization):
        return _PAYS_NOT, life
    months = each.break_even_hours / each.utilization / economics.HOURS_PER_MONTH
    return _PAYS, f"{math.ceil(months - _WHOLE_MONTH)} of {life}"


def _at_its_use(each: BuyOrRent, period: str) -> str:
    return f" at {format_percent(each.utilization)}" if period and each.utilization else ""
