"""Break-evens for people: terminal, page and verdict all word them here.

Whatever came from outside is stripped of control characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpubench.models import BuyOrRent, Choice, Estimate, Pricing, Purchase
from gpubench.recommend.buying import PSU_SHARE, UNKNOWN_SLOTS
from gpubench.recommend.economics import HOURS_PER_MONTH, HOURS_PER_YEAR, useful_hours
from gpubench.recommend.owning import HOST_W
from gpubench.recommend.request import DEFAULT_HOST, RankRequest
from gpubench.units import UNKNOWN, format_number, format_percent, listing


def batches_of(estimates: Sequence[Estimate]) -> tuple[int, ...]:
    """The batch of each workload that a figure is made of, in their order."""
    return tuple(estimate.case.batch_size for estimate in estimates)


def gpus_needed(fewest: int) -> str:
    """Say how many GPUs a job needs for its memory: ``fits on 1``, ``needs 2 with FSDP``."""
    return "fits on 1" if fewest == 1 else f"needs {fewest} with FSDP"


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
_A_HOST = f"${DEFAULT_HOST.price_usd:,.0f} for the host"
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
    life = f"{each.years * HOURS_PER_YEAR / HOURS_PER_MONTH:.3g} months"
    if each.break_even_hours > useful_hours(each.years, each.utilization):
        return _PAYS_NOT, life
    months = each.break_even_hours / each.utilization / HOURS_PER_MONTH
    return _PAYS, f"{math.ceil(months - _WHOLE_MONTH)} of {life}"


def _at_its_use(each: BuyOrRent, period: str) -> str:
    return f" at {format_percent(each.utilization)}" if period and each.utilization else ""
