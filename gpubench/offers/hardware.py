"""Hardware to own: purchase prices of cards, and ``--have`` descriptions of machines.

``nvidia-geforce-rtx-4090-24gb, 1900 USD, 3 years`` states a card, its price and its service life. This module
only reads and checks descriptions; ``recommend`` computes the cost per hour.
"""

import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from functools import cache

import msgspec

from gpubench.errors import MisuseError
from gpubench.folders import data_table
from gpubench.models import PriceCondition
from gpubench.names import counted, normalize
from gpubench.offers.dates import price_day
from gpubench.options import FIGURE, GROUPED, figure
from gpubench.specs import find_spec, load_specs, usual_spec
from gpubench.units import plain

# --- prices of cards -------------------------------------------------------------------------------------

PLANNING_VALUE = "planning value"
"""The ``statistic`` of a price that is a planning figure: no listing was observed."""
CONDITIONS = frozenset(
    {PriceCondition.NEW, PriceCondition.USED, PriceCondition.UNSTATED, PriceCondition.LAUNCH_PRICE}
)
"""The kinds of card prices in the table."""


class CardPrice(msgspec.Struct, frozen=True, kw_only=True):
    """One dated price of a card, or of a complete computer with its GPUs [USD].

    A developer kit without a dated shop price has its launch price, with the release date.

    Attributes:
        gpu_count: Number of GPUs in a computer; 1 for a card.
        is_computer: Whether it is a complete computer, which needs no host.
        price_low_usd, price_high_usd: The range that the source states.
        statistic: How the price summarizes the listings, for example as the mean of the 3 cheapest.
        license: License of the source's data, if it restricts use.
    """

    gpu_key: str
    gpu_count: int = 1
    is_computer: bool = False
    condition: PriceCondition
    price_usd: Decimal
    price_low_usd: Decimal | None = None
    price_high_usd: Decimal | None = None
    price_date: str
    statistic: str = ""
    license: str | None = None
    source: str


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A computer that houses the cards, at an assumed price.

    Attributes:
        slots: Number of slots for cards.
        has_airflow: Whether it cools cards that have no fan.
        power_w: Power draw under load, without its cards.
    """

    name: str
    price_usd: float
    psu_watts: float
    slots: float
    has_airflow: bool
    power_w: float
    source: str


@cache
def hosts() -> tuple[Host, ...]:
    """Return the hosts of data/hosts.csv, the cheapest first."""
    return tuple(sorted(data_table("hosts.csv", Host), key=lambda host: host.price_usd))


@cache
def card_prices() -> tuple[CardPrice, ...]:
    """Return every price of data/card_prices.csv, in the order of the table.

    Raises:
        MisuseError: If a cell has the wrong type, the source is missing, the GPU or condition is unknown, the
            date is invalid, the price is not above 0, or two rows have the same card and condition.
    """
    prices: dict[tuple[str, int, bool, str], CardPrice] = {}
    for price in data_table("card_prices.csv", CardPrice):
        identity = price.gpu_key, price.gpu_count, price.is_computer, price.condition
        wrong = {
            "its GPU is not in gpus.csv": price.gpu_key not in load_specs(),
            f"its condition is {price.condition}": price.condition not in CONDITIONS,
            "its price is not above 0": not price.price_usd > 0,
            "an earlier row has the same card and condition": identity in prices,
        }
        try:
            price_day(price.price_date)
        except ValueError as error:
            wrong[str(error)] = True
        if reasons := [words for words, is_so in wrong.items() if is_so]:
            row = f"{plain(price.gpu_key)} at {price.price_usd} USD"
            raise MisuseError(
                f"card_prices.csv, {row}: {reasons[0]}; correct the row, or unset GPUBENCH_DATA"
            )
        prices[identity] = price
    return tuple(prices.values())


# --- a machine in one line -------------------------------------------------------------------------------


# Other spellings of "30,000 USD": "$30,000", "USD 30,000", "30k".
_DOLLARS = re.compile(rf"(?:\$|usd) ?({FIGURE})(?: usd)?|(?<![\d.,])({FIGURE})(?<=[kKM])$", re.IGNORECASE)
_NUMBER = rf"(?P<value>{FIGURE})"
_FORMS: tuple[tuple[str, str, float], ...] = (
    # field, pattern of a complete part, factor to the field's unit; labeled prices come before the bare one
    ("resale_usd", rf"resale {_NUMBER} usd", 1.0),
    ("host_usd", rf"host {_NUMBER} usd", 1.0),
    ("upkeep_usd_per_hour", rf"upkeep {_NUMBER} usd/h", 1.0),
    ("tariff_usd_per_kwh", rf"(?:tariff )?{_NUMBER} usd/kwh", 1.0),
    ("purchase_usd", rf"(?:price )?{_NUMBER} usd", 1.0),
    ("years", rf"(?:life )?{_NUMBER} years?", 1.0),
    ("utilization", rf"(?:utili[sz]ation |used )?{_NUMBER} ?%(?: used)?", 0.01),
    ("utilization", rf"utili[sz]ation {_NUMBER}", 1.0),
    ("idle_w", rf"idle {_NUMBER} w", 1.0),
    ("power_w", rf"(?:power )?{_NUMBER} w", 1.0),
    ("pue", rf"pue {_NUMBER}", 1.0),
)
_LIMITS: Mapping[str, tuple[float, float]] = {
    "purchase_usd": (1.0, 1e8),
    "host_usd": (0.0, 1e8),
    "resale_usd": (0.0, 1e8),
    "years": (0.1, 30.0),
    "utilization": (0.001, 1.0),
    "power_w": (1.0, 1e5),
    "idle_w": (0.0, 1e5),
    "pue": (1.0, 5.0),
    "tariff_usd_per_kwh": (0.0, 10.0),
    "upkeep_usd_per_hour": (0.0, 1e4),
}
# Sums of money: a figure such as 1.500 is rejected, because its point may separate thousands.
_SUMS = frozenset({"purchase_usd", "host_usd", "resale_usd"})
_EXAMPLE = (
    "'2x nvidia-geforce-rtx-4090-24gb, 3800 USD, host 1500 USD, resale 900 USD, 3 years, 60 %, 380 W, "
    "PUE 1.2, 0.25 USD/kWh'"
)


def parse_owned(spec: str, own_keys: Collection[str] = ()) -> tuple[str, int, dict[str, float]]:
    """Read one ``--have`` description.

    Args:
        spec: Parts separated by commas: the GPU (``2x NAME`` for two), then optional parts in any order: its
            price in USD (without one it is already owned), ``host``, ``resale`` and ``upkeep`` in USD, years,
            percent of hours used, W, PUE, USD/kWh.
        own_keys: Devices that occur only in the user's own runs: ``cpu``, a Mac, a laptop's GPU.

    Returns:
        Key and number of the GPUs, and the given values: ``purchase_usd`` of all GPUs without the host (0 if
        not given), ``host_usd``, ``resale_usd`` of GPUs and host at the end, ``years`` of life,
        ``utilization`` as a share of all hours, ``power_w`` and ``idle_w`` of one GPU, ``pue``,
        ``tariff_usd_per_kwh``, and ``upkeep_usd_per_hour`` under load.

    Raises:
        MisuseError: If the GPU is missing, unknown or never ranked, or if a part is not understood, given
            twice, or outside its limits.
    """
    machine, _, rest = plain(spec, 500).partition(",")
    if not machine.strip():
        raise MisuseError(f"--have names no GPU; write it like {_EXAMPLE}")
    stated, name = counted(" ".join(machine.split()))
    gpu_count = 1 if stated is None else stated
    known, words = find_spec(name), {*normalize(name).replace("-", " ").split()}
    # A name that is not in the GPU table may mean a device of the user's runs, by words of its key.
    own = [key for key in {*own_keys} - {*load_specs()} if words and words <= {*key.split("-")}]
    own_key = own[0] if len(own) == 1 else name
    key = own_key if known is None else known.key
    if key not in own_keys:
        gpu = usual_spec(name)
        key = gpu.key
        if gpu.variants or gpu.not_ranked_because:
            why = gpu.not_ranked_because or f"its form factor varies: name one of {', '.join(gpu.variants)}"
            raise MisuseError(f"--have: {gpu.short_name} cannot be ranked: {why}")
    if not 1 <= gpu_count <= 64:
        raise MisuseError(f"--have: {gpu_count} GPUs; give 1 to 64")
    values: dict[str, float] = {}
    # A comma separates parts, unless it separates the thousands of a number: 30,000.
    for part in re.findall(rf"(?:(?<![\d.]){FIGURE}|[^,])+", rest):
        field, value = _read(" ".join(part.split()))
        if field in values:
            raise MisuseError(f"--have gives {_words(field)} twice ({part.strip()!r}); once is enough")
        values[field] = value
    total = values.setdefault("purchase_usd", 0.0) + values.get("host_usd", 0.0)
    if values.get("resale_usd", 0.0) > total:
        raise MisuseError(f"--have: resale {values['resale_usd']:g} USD is above the {total:g} USD paid")
    return key, gpu_count, values


def _read(part: str) -> tuple[str, float]:
    for field, pattern, factor in _FORMS:
        found = re.fullmatch(pattern, _DOLLARS.sub(r"\1\2 USD", part), re.IGNORECASE | re.ASCII)
        if found:
            value = figure(found["value"]) * factor
            low, high = _LIMITS[field]
            if field in _SUMS and GROUPED.fullmatch(found["value"]):
                raise MisuseError(f"--have: {part!r} can mean thousands: write {value * 1000:.0f} USD")
            if not low <= value <= high:
                raise MisuseError(f"--have: {_words(field)} {part!r} is outside {low:g} to {high:g}")
            return field, value
    raise MisuseError(f"--have: {part!r} is not understood; write it like {_EXAMPLE}")


def _words(field: str) -> str:
    return field.partition("_usd")[0].removesuffix("_w")
