"""What owning costs: a purchase, its resale, its energy, spread over the hours that do useful work."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import NamedTuple

import msgspec

from gpubench.errors import MisuseError
from gpubench.labels import card_condition, gpu_name
from gpubench.models import GpuSpec, Offer, PriceCondition, Pricing
from gpubench.offers.hardware import ASSUMABLE, Owned, card_prices, parse_owned
from gpubench.recommend import economics
from gpubench.recommend.request import DEFAULT_HOST, Range, RankRequest
from gpubench.specs import find_spec, load_specs
from gpubench.units import format_percent, format_price

HOST_W = 150.0
"""What the machine around the cards draws at work [W], be it bought with them or there already."""
OWNED_KIND, UNPRICED_KIND = "owned", "unpriced"
QUOTED = "own"
"""The source of the buyer's own quote; else it is that of the dated price of a card."""

_LEAST_USD = Decimal("0.000001")
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Ownership:
    """One machine that is owned or could be bought; a range is low, likely, high.

    Attributes:
        purchase_usd: GPUs and the counted share of the host.
        host_usd: That share.
        condition: Of the cards: that of the dated price; quoted, where the price is the buyer's own.
        resale_usd: What they bring at the end.
        power_w: All GPUs at work; ``power_basis`` is measured, given or board power.
        host_w: The machine around them at work; none where what is owned is the whole machine.
        assumed: What was not given and holds a default, the limits of its host among it.
        use: Share of all hours of one such machine that the jobs of a month take; None where none are told.
    """

    gpu_key: str
    gpu_count: int
    purchase_usd: float
    resale_usd: Range
    years: float
    utilization: Range
    power_w: float
    power_basis: str
    idle_w: float
    pue: float
    tariff: Range
    upkeep_usd_per_hour: float
    price_date: str
    source: str
    host_usd: float = 0.0
    condition: PriceCondition = PriceCondition.QUOTED
    assumed: tuple[str, ...] = ()
    use: float | None = None
    host_w: float = 0.0

    @property
    def machine_count(self) -> int:
        """How many such machines do the jobs of a month: 1.4 of the hours of one take two."""
        return 1 if self.use is None else max(1, math.ceil(self.use - _ROUNDING))

    @property
    def in_all_usd(self) -> float:
        """What all of them cost [USD]."""
        return self.purchase_usd * self.machine_count

    @property
    def hosts_usd(self) -> float:
        """What the counted share of all their hosts costs [USD]."""
        return self.host_usd * self.machine_count


class Hourly(NamedTuple):
    """Cost of a useful hour [USD]."""

    capital: float
    running: float

    @property
    def total(self) -> float:
        """Capital and running cost together."""
        return self.capital + self.running


def hourly(owned: Ownership, *, resale: float, utilization: float, tariff: float) -> Hourly:
    """Return what a useful hour costs at one resale, utilization and tariff.

    30,000 USD, resale 9,000, 4 years at 0.5, 650 W, PUE 1.3, 0.15 USD/kWh: 17,520 useful hours, capital
    21,000 / 17,520 = 1.199, energy 0.65 x 1.3 x 0.15 = 0.127, together 1.325 USD.
    """
    hours = economics.useful_hours(owned.years, utilization)
    power_w = owned.power_w + owned.host_w
    energy = economics.energy_usd_per_hour(power_w, owned.pue, tariff, owned.idle_w, utilization)
    return Hourly(
        economics.capital_usd_per_hour(owned.purchase_usd, resale, hours), energy + owned.upkeep_usd_per_hour
    )


def likely_hourly(owned: Ownership) -> Hourly:
    """Return the cost of a useful hour at the likely values."""
    return hourly(
        owned,
        resale=owned.resale_usd.likely,
        utilization=owned.utilization.likely,
        tariff=owned.tariff.likely,
    )


def card_share(owned: Ownership) -> float:
    """Return the share of a useful hour's cost that goes with the price of the cards, at the likely values.

    Two cards of 600 USD and a host of 800: 0.6 of the capital, and none of the energy. A quote is certain: 0.
    """
    if owned.condition is PriceCondition.QUOTED:
        return 0.0
    cost = likely_hourly(owned)
    return (1 - owned.host_usd / owned.purchase_usd) * cost.capital / cost.total


def hourly_range(owned: Ownership) -> tuple[float, float]:
    """Return the cheapest and the dearest useful hour over the ranges."""
    best = hourly(
        owned, resale=owned.resale_usd.high, utilization=owned.utilization.high, tariff=owned.tariff.low
    )
    worst = hourly(
        owned, resale=owned.resale_usd.low, utilization=owned.utilization.low, tariff=owned.tariff.high
    )
    return best.total, worst.total


def offer_of(owned: Ownership) -> Offer:
    """Return owned hardware as an offer: its price is the likely cost of a useful hour."""
    years = f"{owned.years:g} years at {format_percent(owned.utilization.likely)}"
    terms = ", ".join(filter(None, (card_condition(owned.condition), years)))
    return Offer(
        provider=QUOTED if owned.source == QUOTED else "buy",
        instance=terms,
        region=None,
        gpu_key=owned.gpu_key,
        gpu_count=owned.gpu_count,
        vcpus=None,
        ram_bytes=None,
        price_usd_per_hour=Decimal(str(likely_hourly(owned).total)).quantize(_LEAST_USD),
        pricing=Pricing.OWNED,
        kind=OWNED_KIND,
        price_date=owned.price_date,
        source=owned.source,
    )


def ownerships(
    request: RankRequest,
    power_w: Mapping[str, float],
    today: date,
    own_keys: Iterable[str] = (),
) -> list[Ownership]:
    """Return the hardware to weigh: the buyer's quotes, and with ``--buy`` every card with a dated price.

    A quote for a GPU stands in place of those prices; a launch price is taken of a Jetson alone, and called
    so. Under a limit of the
    purchase, or for so many jobs a month, one card and two of each are weighed, else as many as asked for.

    Args:
        request: Holds the quotes and the ranges of what they leave open.
        power_w: Measured mean power of one GPU at work, by GPU key.
        today: The date of a quote.
        own_keys: Devices that the user measured and the table does not know: ``cpu``, a Mac.
    """
    quotes = [_read(text, set(own_keys)) for text in request.own]
    day = today.isoformat()
    found = [_resolve(quote, request, power_w, price_date=day, source=QUOTED) for quote in quotes]
    if request.buys:
        found += _at_dated_prices(request, power_w, {quote.gpu_key for quote in quotes})
    return found


def unpriced_offers(priced: Iterable[str]) -> list[Offer]:
    """Return a place-holder, never ranked, for each GPU that could be bought at a price nobody has named.

    Its note shows the launch price where there is one.
    """
    known = {*priced, *(each.gpu_key for each in card_prices())}
    found = []
    for spec in load_specs().values():
        if spec.key in known:
            continue
        launch = (
            f"launched at {format_price(float(spec.launch_price_usd))}, "
            if spec.launch_price_usd is not None
            else ""
        )
        found.append(
            Offer(
                provider="buy",
                instance=gpu_name(spec.key),
                region=None,
                gpu_key=spec.key,
                gpu_count=1,
                vcpus=None,
                ram_bytes=None,
                price_usd_per_hour=Decimal(0),
                pricing=Pricing.OWNED,
                kind=UNPRICED_KIND,
                price_date=str(spec.release_year or 1970),
                source="none",
                note=f"{launch}no dated price: quote it with --own '{gpu_name(spec.key)}, PRICE USD'",
            )
        )
    return found


def _read(text: str, own_keys: Collection[str]) -> Owned:
    """Read a quote; its GPU may also be a device that only the user's own runs know."""
    name, comma, rest = text.partition(",")
    spec = find_spec(name)
    key = spec.key if spec else name.strip().casefold()
    if key not in own_keys or (spec is not None and not spec.not_ranked_because):
        return parse_owned(text)
    known = next(iter(load_specs()))  # the rest of the line reads the same for any GPU
    return msgspec.structs.replace(parse_owned(f"{known}{comma}{rest}"), gpu_key=key)


def _at_dated_prices(
    request: RankRequest, power_w: Mapping[str, float], quoted: set[str]
) -> Iterator[Ownership]:
    counts: tuple[int, ...] = (1,)
    if request.count is not None:
        counts = (request.count,)
    elif request.max_purchase_usd is not None or request.jobs_per_month is not None:
        counts = (1, 2)
    for each in card_prices():
        if each.gpu_key in quoted:
            continue
        whole = is_a_computer(load_specs()[each.gpu_key])
        for count in (1,) if whole else counts:
            owned = Owned(
                gpu_key=each.gpu_key,
                gpu_count=count,
                purchase_usd=float(each.price_usd) * count,
                assumed=tuple(field for field in ASSUMABLE if not (whole and field == "host_usd")),
            )
            yield _resolve(
                owned,
                request,
                power_w,
                price_date=each.price_date,
                source=each.source,
                condition=each.condition,
            )


def is_a_computer(spec: GpuSpec | None) -> bool:
    """Return whether what is sold is a computer, and no card for one: the developer kit of a Jetson."""
    return spec is not None and spec.line == "Jetson"


def host_power_w(gpu_key: str) -> float:
    """Return what the machine around a card draws at work [W]; a kit, this CPU, a Mac is the machine: 0."""
    spec = find_spec(gpu_key)
    return 0.0 if spec is None or is_a_computer(spec) else HOST_W


def _resolve(
    owned: Owned,
    request: RankRequest,
    power_w: Mapping[str, float],
    *,
    price_date: str,
    source: str,
    condition: PriceCondition = PriceCondition.QUOTED,
) -> Ownership:
    """Fill what a description leaves open: from the request's ranges, a measurement, the datasheet."""
    to_buy, host_usd = condition is not PriceCondition.QUOTED, owned.host_usd
    if "host_usd" in owned.assumed:  # cards to buy need one, what is owned already stands in one
        usual = DEFAULT_HOST.price_usd if to_buy else 0.0
        host_usd = usual if request.host_usd is None else request.host_usd
    purchase = owned.purchase_usd + host_usd
    one_gpu_w, basis = _power(owned, power_w)
    host_w = host_power_w(owned.gpu_key)
    resale = Range(*(share * purchase for share in request.resale))
    is_open = set(owned.assumed)
    return Ownership(
        gpu_key=owned.gpu_key,
        gpu_count=owned.gpu_count,
        purchase_usd=purchase,
        resale_usd=resale if "resale_usd" in is_open else Range.of(owned.resale_usd),
        years=request.years if "years" in is_open else owned.years,
        utilization=request.utilization if "utilization" in is_open else Range.of(owned.utilization),
        power_w=one_gpu_w * owned.gpu_count,
        host_w=host_w,
        power_basis=basis,
        idle_w=owned.idle_w * owned.gpu_count,
        pue=request.pue if "pue" in is_open else owned.pue,
        tariff=request.tariff if "tariff_usd_per_kwh" in is_open else Range.of(owned.tariff_usd_per_kwh),
        upkeep_usd_per_hour=owned.upkeep_usd_per_hour,
        price_date=price_date,
        source=source,
        host_usd=host_usd,
        condition=condition,
        assumed=(
            *(
                field
                for field in owned.assumed
                if not (field == "power_w" and basis == "measured")
                and not (field in _OPTIONS and request.was_given(_OPTIONS[field]))
            ),
            *_limits_assumed(owned, request, buys_a_host=to_buy and host_usd > 0),
        ),
    )


def _limits_assumed(owned: Owned, request: RankRequest, *, buys_a_host: bool) -> Iterator[str]:
    """Yield what is assumed of the host's power, and of power supply and slots that a purchase is held to.

    A host that is bought has those of the default one unless others are given; of a host that is there
    already only what is given counts.
    """
    if buys_a_host and request.psu_watts is None:
        yield "psu_watts"
    if buys_a_host or request.psu_watts is not None:
        yield "psu_share"
    if host_power_w(owned.gpu_key):
        yield "host_w"
    if buys_a_host and request.slots is None:
        yield "slots"
    spec = find_spec(owned.gpu_key)
    in_slots = (buys_a_host or request.slots is not None) and not is_a_computer(spec)
    if in_slots and (spec is None or spec.slot_count is None):
        yield "card_slots"


_OPTIONS = {
    "years": "years",
    "utilization": "utilization",
    "pue": "pue",
    "tariff_usd_per_kwh": "tariff",
    "resale_usd": "resale",
    "host_usd": "host_usd",
}
"""The field of the request that gives what a description leaves open."""


def _power(owned: Owned, power_w: Mapping[str, float]) -> tuple[float, str]:
    """Return what one GPU draws at work [W], and where the figure is from."""
    spec = load_specs().get(owned.gpu_key)
    if owned.power_w is not None:
        return owned.power_w, "given"
    if owned.gpu_key in power_w:
        return power_w[owned.gpu_key], "measured"
    if spec is not None and spec.board_power_w is not None:
        return spec.board_power_w, "board power, assumed"
    raise MisuseError(f"--own {gpu_name(owned.gpu_key)}: its power is not known; add it: ', 300 W'")
