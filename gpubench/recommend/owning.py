"""The cost of buying and running a machine, and the hours of use after which owning is cheaper than renting.

This module also builds the texts about owning for the terminal, the page and the verdict.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Literal

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.errors import MisuseError
from gpubench.labels import card_condition, gpu_name, gpus_of, offer_name
from gpubench.models import BuyOrRent, Choice, GpuSpec, Offer, PriceCondition, Pricing, Row
from gpubench.offers.dates import HOURS_PER_YEAR
from gpubench.offers.hardware import PLANNING_VALUE, CardPrice, Host, card_prices, hosts, parse_owned
from gpubench.offers.table import kinds_of
from gpubench.recommend.candidates import QUOTED, Candidates
from gpubench.recommend.economics import HOURS_PER_MONTH
from gpubench.recommend.factors import cooling_of
from gpubench.recommend.objective import cost, drawn_job_rates, hours, time_and_cost
from gpubench.recommend.request import Range, RankRequest
from gpubench.specs import load_specs
from gpubench.units import UNKNOWN, count, format_number, format_percent, format_price

# Maximum number of cards to buy together: as many as fit in the largest host.
_MOST_CARDS = 8

PSU_SHARE = 0.8
"""Maximum load of a power supply as a share of its rating, because cards briefly exceed their board power."""

# Slots assumed for a card of unknown width: as many as the widest card in gpus.csv takes.
_UNKNOWN_SLOTS = 3.0

# For the comparison with rent, shorter jobs are grouped into sessions of this length; a rented machine is
# started once per session.
_SESSION_HOURS = 1.0

_USD_STEP = Decimal("0.000001")  # computed hourly prices are rounded to this
# Quantiles at the ends of a 90 % interval.
_INTERVAL = (0.05, 0.95)

_DEFAULTS = RankRequest()


def _percent(shares: Range, whole: str) -> str:
    low, likely, high = (f"{100 * share:.0f}" for share in shares)
    return f"{likely} % of {whole} ({low} to {high} %)"


# Values that can be assumed, each with its text and the request field that overrides it, if there is one.
_ASSUMABLE: Mapping[str, tuple[str, str | None]] = {
    "years": (f"a life of {_DEFAULTS.years:g} years", "years"),
    "utilization": (f"work during {_percent(_DEFAULTS.utilization, 'all hours')}", "utilization"),
    "power_w": ("board power as the power under load", None),
    "pue": (f"PUE {_DEFAULTS.pue:g}", "pue"),
    "tariff_usd_per_kwh": ("${1:.2f} per kWh (${0:.2f} to {2:.2f})".format(*_DEFAULTS.tariff), "tariff"),
    "resale_usd": (f"resale at {_percent(_DEFAULTS.resale, 'the price')}", "resale"),
    "host_usd": ("a {name} for {price_usd} as the host", "host_usd"),
    "idle_w": ("no power when idle", None),
    "psu_watts": (
        f"a power supply of {{psu_watts:,.0f}} W (loaded to {format_percent(PSU_SHARE)} at most)",
        "psu_watts",
    ),
    "host_w": ("{power_w:.0f} W for the host", None),
    "slots": (f"{{slots:g}} slots for cards ({_UNKNOWN_SLOTS:g} for a card of unknown width)", "slots"),
}


@dataclass(frozen=True, slots=True)
class Ownership:
    """One machine that is owned or for sale; a range is (low, likely, high).

    Attributes:
        purchase_usd: Price of the GPUs or of the complete computer, plus ``host_usd``.
        host_usd: The price of the host, as far as ``purchase_usd`` includes it; 0 if it adds no cost.
        condition: Kind of price: of new or used cards, a launch price, or a quote.
        resale_usd: Resale value of the machine at the end of its life, including the host.
        power_w, idle_w: Power of all GPUs under load, and when idle [W].
        most_w: Power of all GPUs that the power supply must provide [W]: as stated by the owner, else board
            power; None if both are unknown.
        host_w: Power of the rest of the machine under load [W]; 0 for a complete machine with one GPU.
        host: The host of the cards, with its limits; None for a complete computer.
        is_planned: Whether the price is a planning figure, not from an observed listing.
        price_note: Range, kind and source of the price, and whether it is for each card.
        assumed: The values that were not given, so their defaults are used.
    """

    gpu_key: str
    gpu_count: int
    purchase_usd: float
    resale_usd: Range
    years: float
    utilization: Range
    power_w: float
    idle_w: float
    pue: float
    tariff: Range
    upkeep_usd_per_hour: float
    price_date: str
    source: str
    host_usd: float = 0.0
    host_w: float = 0.0
    host: Host | None = None
    price_note: str | None = None
    is_planned: bool = False
    condition: PriceCondition = PriceCondition.QUOTED
    assumed: tuple[str, ...] = ()
    most_w: float | None = None


# --- the cost of a useful hour --------------------------------------------------------------------------


def hourly(owned: Ownership, resale: float, utilization: float, tariff: float) -> tuple[float, float]:
    """Return the capital and running cost of a useful hour [USD] at one resale value, utilization and tariff.

    A useful hour is an hour in which the machine works.
    """
    capital = (owned.purchase_usd - resale) / (owned.years * HOURS_PER_YEAR * utilization)
    idle_w = owned.idle_w * (1 - utilization) / utilization  # a useful hour also pays for idle hours
    energy = (owned.power_w + owned.host_w + idle_w) / 1000 * owned.pue * tariff
    return capital, energy + owned.upkeep_usd_per_hour


def hourly_range(owned: Ownership) -> Range:
    """Return the cost of a useful hour [USD] at the best, likely and worst resale, utilization and tariff."""
    corners = zip(owned.resale_usd[::-1], owned.utilization[::-1], owned.tariff, strict=True)
    return Range(*(sum(hourly(owned, *corner)) for corner in corners))


# A quote that differs by more than this factor from every listed price of the card is likely a mistake, such
# as the price of one of eight cards.
_QUOTE_RATIO = 3.0


def quote_doubt(owned: Ownership) -> str | None:
    """Return how far a quote is from the listed prices of its card, in a few words; None if it is not far."""
    listed = [float(p.price_usd) for p in card_prices() if p.gpu_key == owned.gpu_key and not p.is_computer]
    each_usd = (owned.purchase_usd - owned.host_usd) / owned.gpu_count
    if owned.condition is not PriceCondition.QUOTED or not each_usd or not listed:
        return None
    which, near_usd = ("lowest", min(listed)) if each_usd < min(listed) else ("highest", max(listed))
    if min(listed) / _QUOTE_RATIO <= each_usd <= max(listed) * _QUOTE_RATIO:
        return None
    return f"{format_number(each_usd / near_usd, 2)} times the {which} listed price"


def card_share(owned: Ownership) -> float:
    """Return the share of a useful hour's cost that is proportional to the card price, at expected values.

    For two cards at 600 USD each and a host at 800, the cards account for 0.6 of the capital cost and none of
    the running cost. For a quote, which is certain, the share is 0.
    """
    if owned.condition is PriceCondition.QUOTED:
        return 0.0
    likely = owned.resale_usd.likely, owned.utilization.likely, owned.tariff.likely
    capital, running = hourly(owned, *likely)
    cards = (1 - owned.host_usd / owned.purchase_usd) * capital
    return cards / (capital + running) if cards else 0.0


def offer_of(owned: Ownership) -> Offer:
    """Return owned hardware as an offer priced at the expected cost of a useful hour."""
    years = f"{count(owned.years, 'year')} at {format_percent(owned.utilization.likely)}"
    if not owned.purchase_usd:
        years = "yours"
    return Offer(
        provider=QUOTED if owned.source == QUOTED else "buy",
        instance=", ".join(filter(None, (card_condition(owned.condition), years))),
        region=None,
        gpu_key=owned.gpu_key,
        gpu_count=owned.gpu_count,
        vcpus=None,
        ram_bytes=None,
        price_usd_per_hour=Decimal(str(hourly_range(owned).likely)).quantize(_USD_STEP),
        pricing=Pricing.OWNED,
        kind="owned",
        price_date=owned.price_date,
        source=owned.source,
    )


# --- hardware to compare --------------------------------------------------------------------------------


def ownerships(
    request: RankRequest, power_w: Mapping[str, float], today: date, own_keys: Collection[str] = ()
) -> list[Ownership]:
    """Return the hardware to compare: the buyer's quotes and, with ``--buy``, every card for sale.

    A card for sale has a dated price and a known board power. A quote for a GPU replaces that GPU's prices.
    Cards are bought in the requested number. If no number is requested, it is one, or 1 to 8 if a purchase
    limit or the jobs per month are given. A computer is sold as a unit.

    Args:
        request: The quotes, and the ranges for every value that the quotes omit.
        power_w: Measured mean power of one GPU under load, by GPU key.
        today: The date of a quote.
        own_keys: Devices that the user measured and that are not in the table: ``cpu``, a Mac.

    Raises:
        MisuseError: If a quote cannot be parsed, or the power of its GPU is unknown.
    """
    quotes = [parse_owned(text, own_keys) for text in request.own if not is_a_host(text)]
    if len(quotes) < len(request.own):  # the buyer has a PC for the cards
        request = msgspec.structs.replace(request, host_usd=0.0)
    assumable = [name for name, (_, field) in _ASSUMABLE.items() if not (field and request.was_given(field))]
    found = [
        _machine(
            request,
            power_w,
            CardPrice(
                gpu_key=gpu_key,
                condition=PriceCondition.QUOTED,
                price_usd=Decimal(str(given["purchase_usd"] / count)),
                price_date=today.isoformat(),
                source=QUOTED,
            ),
            count,
            given,
            assumable=assumable,
        )
        for gpu_key, count, given in quotes
    ]
    several = request.max_purchase_usd is not None or request.jobs_per_month is not None
    counts = range(1, _MOST_CARDS + 1) if several else range(1, 2)
    if request.count is not None:
        counts = range(request.count, request.count + 1)
    most_usd = math.inf if request.max_purchase_usd is None else request.max_purchase_usd
    quoted = {gpu_key for gpu_key, *_ in quotes}
    for_sale = (price for price in card_prices() if request.buys and price.gpu_key not in quoted)
    for each in (price for price in for_sale if load_specs()[price.gpu_key].board_power_w is not None):
        if each.is_computer and (several or each.gpu_count == 1):
            found.append(
                _machine(request, power_w, each, each.gpu_count, {"host_usd": 0.0}, assumable=assumable)
            )
        elif not each.is_computer:  # the smallest number is reported even if it exceeds the limit
            some = (n for n in counts if n == counts[0] or n * float(each.price_usd) <= most_usd)
            found += [_machine(request, power_w, each, count, {}, assumable=assumable) for count in some]
    return found


def is_a_host(spec: str) -> bool:
    """Return whether a text describes a host without a GPU."""
    return spec.strip().casefold() == "pc"


def _machine(
    request: RankRequest,
    power_w: Mapping[str, float],
    price: CardPrice,
    gpu_count: int,
    given: Mapping[str, float],
    *,
    assumable: Iterable[str],
) -> Ownership:
    # Complete a description from the request, a measurement, or the datasheet.
    gpu_key, spec = price.gpu_key, load_specs().get(price.gpu_key)
    is_quoted = price.condition is PriceCondition.QUOTED  # its host adds no cost unless a price is given
    board_w = None if spec is None else spec.board_power_w
    one_gpu_w = given.get("power_w", power_w.get(gpu_key, board_w))
    if one_gpu_w is None:
        raise MisuseError(
            f"--have {gpu_name(gpu_key)}: its power is not known; append it, for example ', 300 W'"
        )
    most_w = given.get("power_w", board_w)
    host = _host_of(request, price, spec, gpu_count, one_gpu_w)
    usual_usd = 0.0 if is_quoted or host is None else host.price_usd
    host_usd = given.get("host_usd", usual_usd if request.host_usd is None else request.host_usd)
    cards_usd = float(price.price_usd) * (1 if price.is_computer else gpu_count)
    purchase_usd = given.get("purchase_usd", cards_usd) + host_usd
    # A computer with several GPUs is assumed to draw as much besides them as the largest host.
    rest_w = hosts()[-1].power_w if host is None and gpu_count > 1 else 0.0
    certain = {field: Range.of(value) for field, value in given.items()}
    known = {*given, *(["power_w"] if gpu_key in power_w else []), *(["host_w"] if host is None else [])}
    if is_quoted:  # the buyer chose the host, so none of its limits are assumed
        known |= {"psu_watts", "slots"}
    return Ownership(
        gpu_key=gpu_key,
        gpu_count=gpu_count,
        purchase_usd=purchase_usd,
        resale_usd=certain.get("resale_usd", Range(*(share * purchase_usd for share in request.resale))),
        years=given.get("years", request.years),
        utilization=certain.get("utilization", request.utilization),
        power_w=one_gpu_w * gpu_count,
        idle_w=given.get("idle_w", 0.0) * gpu_count,
        pue=given.get("pue", request.pue),
        tariff=certain.get("tariff_usd_per_kwh", request.tariff),
        upkeep_usd_per_hour=given.get("upkeep_usd_per_hour", 0.0),
        price_date=price.price_date,
        source=price.source,
        host_usd=host_usd,
        host_w=rest_w if host is None else host.power_w,
        host=host,
        price_note=None if is_quoted else _price_note(price),
        is_planned=price.statistic == PLANNING_VALUE,
        condition=price.condition,
        assumed=tuple(name for name in assumable if name not in known),
        most_w=None if most_w is None else most_w * gpu_count,
    )


def _host_of(
    request: RankRequest, price: CardPrice, spec: GpuSpec | None, gpu_count: int, one_gpu_w: float
) -> Host | None:
    # Return the host for the cards; None for a complete computer: one for sale, a Jetson, this CPU, a Mac.
    if price.is_computer or spec is None or spec.line == "Jetson":
        return None
    if price.condition is PriceCondition.QUOTED or request.host_usd is not None:
        return hosts()[0]  # the user has it or knows its price
    return host_for(request, spec, gpu_count, one_gpu_w)


def host_for(request: RankRequest, spec: GpuSpec | None, gpu_count: int, one_gpu_w: float) -> Host:
    """Return the cheapest host that can take this many cards, or else the most expensive host."""
    has_fan = spec is None or cooling_of(spec) == "active"

    def holds(host: Host) -> bool:
        psu_watts, slots = request.psu_watts or host.psu_watts, request.slots or host.slots
        return (
            (has_fan or host.has_airflow)
            and one_gpu_w * gpu_count + host.power_w <= psu_watts * PSU_SHARE
            and slots_of(spec, gpu_count) <= slots
        )

    return next(filter(holds, hosts()), hosts()[-1])


def slots_of(spec: GpuSpec | None, gpu_count: int) -> float:
    """Return the slots that this many cards take."""
    width = _UNKNOWN_SLOTS if spec is None or spec.slot_count is None else spec.slot_count
    return width * gpu_count


def _price_note(price: CardPrice) -> str:
    # Describe the kind of price: "$1,000 to 1,300 each, editorial guide; SOURCE (CC BY-NC-SA 4.0)".
    low, high = price.price_low_usd, price.price_high_usd
    ends = "" if low is None or high is None or low == high else f"{format_price(float(low))} to {high:,.0f} "
    each = "" if price.is_computer else "each "
    what = ", ".join(filter(None, (f"{ends}{each}".strip() if ends else "", price.statistic)))
    terms = f" ({price.license})" if price.license else ""
    return f"{what}; {price.source}{terms}"


def with_utilization(
    machines: Iterable[Ownership], rows: Iterable[Row], request: RankRequest
) -> list[Ownership]:
    """Return the machines, each with the utilization that follows from the jobs per month.

    4 jobs of 73 h take 4 x 73 / 730 = 40 % of all hours. Independent jobs use one card each, so on two cards
    they take 20 %. 14 jobs take 140 %, more than one machine can do.

    Args:
        machines: The machines; each one that is ranked gets a new utilization.
        rows: The ranking of the machines, with the hours of one job.
        request: The request, with the jobs per month.
    """
    jobs_per_month = request.jobs_per_month
    assert jobs_per_month is not None  # called only for a request with this setting
    job_hours = {row.offer: row.hours.value for row in rows}

    def used(machine: Ownership) -> Ownership:
        one_job_hours = job_hours.get(offer_of(machine))
        if one_job_hours is None:
            return machine
        at_once = 1 if request.shares_work else machine.gpu_count
        use = jobs_per_month * one_job_hours / HOURS_PER_MONTH / at_once
        assumed = tuple(name for name in machine.assumed if name != "utilization")
        return replace(machine, utilization=Range.of(use), assumed=assumed)

    return list(map(used, machines))


# --- buy or rent ----------------------------------------------------------------------------------------


def break_even(
    owned: Ownership, rent_usd_per_hour: float, resale: float, utilization: float, tariff: float
) -> float | None:
    """Return the useful hours after which owning is cheaper, at one rent and one set of costs; None if never.

    Example: 30,000 USD, resale 9,000, 4 years, 650 W, PUE 1.3, 0.15 USD/kWh, against 2.99 USD/h. The running
    cost is 0.12675 USD/h, so (30,000 - 9,000) / (2.99 - 0.12675) = 7,334 h.
    """
    _, running = hourly(owned, resale, utilization, tariff)
    saved = rent_usd_per_hour - running
    return (owned.purchase_usd - resale) / saved if saved > 0 else None


def against_rent(pool: Candidates, owned: Mapping[Offer, Ownership]) -> tuple[BuyOrRent, ...]:
    """Compare each owned machine with the cheapest rental on demand, and with that of each commitment term.

    Args:
        pool: Owned and rented offers; the rented ones are the alternatives.
        owned: The machine behind each owned offer, in the order of the ranking.
    """
    row_of = {pool.offers[row]: row for row in np.flatnonzero(pool.is_owned).tolist()}
    paid = kinds_of(pool.offers.pricing, pool.offers.term_years)
    found = []
    for offer, machine in owned.items():
        session = _session(pool, row_of[offer])
        _, usd = time_and_cost(session, slice(None))
        for code, (pricing, _) in enumerate(paid.values):
            if pricing in {Pricing.ON_DEMAND, Pricing.RESERVED}:
                rival = int(np.argmin(np.where(paid.codes == code, usd, np.inf)))
                found.append(_weigh(session, machine, row_of[offer], rival))
    return tuple(found)


def _session(pool: Candidates, machine: int) -> Candidates:
    # Return the offers with the work of a session: one job, or as many as take the owned machine an hour.
    one, work = np.array([machine]), pool.work
    jobs = 1.0 if work is None else _SESSION_HOURS / float(hours(pool, pool.rate[one], one)[0])
    if work is None or jobs <= 1:
        return pool
    session = pool.with_request(egress_usd=pool.request.egress_usd * jobs)
    return replace(session, work=replace(work, samples=work.samples * jobs))


def _weigh(pool: Candidates, owned: Ownership, machine: int, rival: int) -> BuyOrRent:
    offer = pool.offers[rival]
    is_committed = offer.pricing is Pricing.RESERVED
    # Each range runs from the values that favor owning to those that favor renting. High use favors owning,
    # except against a commitment, which is billed around the clock: low use raises its cost per useful hour.
    uses = owned.utilization if is_committed else owned.utilization[::-1]
    rents = [
        usd / use if is_committed else usd
        for usd, use in zip(_rent_for_an_hour(pool, machine, rival)[::-1], uses, strict=True)
    ]
    corners = zip(rents, owned.resale_usd[::-1], uses, owned.tariff, strict=True)
    pays_after = [break_even(owned, *corner) for corner in corners]
    of_life = [None if each is None else each / (owned.years * HOURS_PER_YEAR) for each in pays_after]
    shares = [None if share is None or share > 1 else share for share in of_life]
    pays_there = [share is not None and share <= use for share, use in zip(shares, uses, strict=True)]
    verdict: Literal["buy", "rent", "depends"] = "depends" if pays_there[0] else "rent"
    low, likely, high = hourly_range(owned)
    return BuyOrRent(
        gpu_key=owned.gpu_key,
        gpu_count=owned.gpu_count,
        instance=pool.offers[machine].instance,
        condition=owned.condition,
        purchase_usd=owned.purchase_usd,
        host_usd=owned.host_usd,
        price_date=owned.price_date,
        power_w=owned.power_w,
        usd_per_hour=likely,
        usd_per_hour_low=low,
        usd_per_hour_high=high,
        against=f"{gpus_of(offer)} at {offer_name(offer)}",
        against_pricing=offer.pricing,
        equivalent_usd_per_hour=rents[1],
        break_even_hours=pays_after[1],
        break_even_hours_low=pays_after[0],
        break_even_hours_high=pays_after[2],
        break_even_utilization=shares[1],
        break_even_utilization_low=shares[0],
        break_even_utilization_high=shares[2],
        verdict="buy" if pays_there[2] else verdict,
        assumed=owned.assumed,
        years=owned.years,
        utilization=owned.utilization.likely,
    )


def _rent_for_an_hour(pool: Candidates, machine: int, rival: int) -> Range:
    """Return the rental cost of the work that an owned machine does in an hour [USD], before tax.

    For a job, or a session of short ones, the whole cost counts: startup, billing increments, storage and
    egress. Tax applies to both sides, so it does not affect the break-even. The range covers the uncertainty
    of the two throughputs.
    """
    pair = np.array([machine, rival])

    def rent(rates: Floats) -> Floats:
        """Return (D,) costs at (2, D) rates of the two machines."""
        if pool.work is None:
            return np.asarray(pool.price[rival] * rates[0] / rates[1])
        job_hours = hours(pool, rates, pair)
        usd = cost(pool, job_hours, pair)[1] / (1 + pool.request.tax)
        at_once = 1 if pool.request.shares_work else pool.count[machine]
        return np.asarray(at_once * usd / job_hours[0])

    low, high = np.quantile(rent(drawn_job_rates(pool, pair)), _INTERVAL).tolist()
    likely = float(rent(pool.rate[pair][:, None])[0])
    return Range(min(low, likely), likely, max(high, likely))


# --- texts ----------------------------------------------------------------------------------------------


def assumed_of(machines: Iterable[BuyOrRent | Choice]) -> list[str]:
    """Return the values that were assumed for any of the machines, in words."""
    return sorted(
        {
            "no host to pay for"
            if name == "host_usd" and not each.host_usd
            else _assumption(name, each.host_usd)
            for each in machines
            for name in each.assumed
        }
    )


def _assumption(name: str, host_usd: float | None) -> str:
    host = next((each for each in hosts() if each.price_usd == host_usd), hosts()[0])
    fields = msgspec.structs.asdict(host) | {"price_usd": format_price(host.price_usd)}
    return _ASSUMABLE[name][0].format(**fields)


def must_work(each: BuyOrRent) -> str:
    """Return the utilization at which a machine pays off, with its interval.

    Example: "41 % of all hours (24 % to over 100 %)". Against a commitment, it is unknown: the commitment is
    billed around the clock, so its cost per useful hour depends on the utilization.
    """
    if each.against_pricing is Pricing.RESERVED:
        return UNKNOWN
    shares = (each.break_even_utilization, each.break_even_utilization_low, each.break_even_utilization_high)
    likely, low, high = ("over 100 %" if share is None else format_percent(share) for share in shares)
    words = f"{likely} of all hours"
    return words if likely == low == high else f"{words} ({low} to {high})"


def payback(each: BuyOrRent) -> str:
    """Return whether a machine pays off within its life, as the predicate of a sentence.

    Examples: "pays off after 30 of 36 months at 50 %", "does not pay off within 36 months at 50 %".
    """
    if each.break_even_hours is None:
        return "never pays off"
    life = f"{12 * each.years:.3g} months at {format_percent(each.utilization)}"
    if each.break_even_hours > each.years * HOURS_PER_YEAR * each.utilization:
        return f"does not pay off within {life}"
    months = each.break_even_hours / each.utilization / HOURS_PER_MONTH
    return f"pays off after {math.ceil(months - 1e-9)} of {life}"  # 36.0000000001 months are 36
