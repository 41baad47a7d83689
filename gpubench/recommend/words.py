"""Names of GPUs and offers for people; whatever came from outside is stripped of control characters."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.models import Estimate, Offer, Pricing
from gpubench.specs import load_specs
from gpubench.units import UNKNOWN, format_number, format_usd, plain

_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_NARROW = 0.1


def gpu_name(key: str) -> str:
    """Return the short name of a GPU: ``nvidia-h100-sxm-80gb`` is "H100 SXM5 80GB" or as its row says."""
    spec = load_specs().get(key)
    if spec is None:
        return plain(key)
    name = spec.name.removeprefix("NVIDIA ").removeprefix("AMD ")
    return name.replace("Tesla ", "").replace("GeForce ", "")


def offer_name(offer: Offer) -> str:
    """Return who sells what: "aws p5.48xlarge", "vast (spot)", with the region where one is known."""
    if offer.pricing is Pricing.OWNED:
        return plain(f"{offer.provider}: {offer.instance}", 60)
    words = [offer.provider, offer.instance]
    if offer.region:
        words.append(offer.region)
    if offer.pricing is not Pricing.ON_DEMAND:
        term = f" {offer.term_years} y" if offer.term_years else ""
        words.append(f"({offer.pricing}{term})")
    return plain(" ".join(words), 60)


def gpus_of(offer: Offer) -> str:
    """Return the GPUs of an offer: "8x H100 SXM5 80GB"."""
    return f"{offer.gpu_count}x {gpu_name(offer.gpu_key)}"


def price_of(offer: Offer) -> str:
    """Return the price of an offer: "$2.14/h"."""
    return f"{format_usd(float(offer.price_usd_per_hour))}/h"


def listing(names: list[str], most: int = 3) -> str:
    """Join names: "A", "A and B", "A, B and C", "A, B, C and 4 more".

    >>> listing(["A", "B"]), listing(["A", "B", "C", "D", "E"])
    ('A and B', 'A, B, C and 2 more')
    """
    shown = names[:most]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def compact(value: float | None, low: float | None, high: float | None, to: str = " to ") -> str:
    """Return an estimate and its interval in few characters, with the digits that the interval supports.

    >>> compact(9.9e6, 5.9e6, 17e6), compact(3166.4, 3150.2, 3181.9, "-"), compact(0.5, None, None)
    ('9.9M (5.9 to 17)', '3.17k (3.15-3.18)', '0.50')
    """
    if value is None:
        return UNKNOWN
    step, prefix = next((pair for pair in _STEPS if value >= pair[0]), (1.0, ""))
    if low is None or high is None:
        return f"{format_number(value / step, 2)}{prefix}"
    digits = 3 if high - low < _NARROW * value else 2
    figures = [format_number(figure / step, digits) for figure in (value, low, high)]
    return f"{figures[0]}{prefix} ({figures[1]}{to}{figures[2]})"


def batches_of(estimates: Sequence[Estimate]) -> tuple[int, ...]:
    """The batch of each workload that a figure is made of, in their order."""
    return tuple(estimate.case.batch_size for estimate in estimates)
