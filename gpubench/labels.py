"""Display names of GPUs and offers for terminal, page, sentences and messages.

Control characters are removed from third-party text.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpubench.models import BuyOrRent, MicroResult, Offer, PriceCondition, Pricing, Row
from gpubench.specs import load_specs
from gpubench.units import format_usd, plain

PRICING_WORDS = {
    Pricing.ON_DEMAND: "on demand",
    Pricing.SPOT: "spot",
    Pricing.RESERVED: "reserved",
    Pricing.OWNED: "owned",
}

SELLERS: Mapping[str, str] = {"cloud": "cloud", "secure": "vetted host", "community": "private host"}
"""Kinds of seller: a company or, on a marketplace, a vetted host or any host."""

FRONTIER = "no other offer is both faster and cheaper"
"""The caption of the Pareto line of offers."""

HOST_LISTING = "host's listing"
"""What a host's price on a marketplace is called; it follows the word "one"."""

CONDITION_WORDS = {
    PriceCondition.LIST: "list price",
    PriceCondition.SINGLE_HOST: f"one {HOST_LISTING}",
    PriceCondition.QUOTED: "as quoted",
    PriceCondition.NEW: "new",
    PriceCondition.USED: "used",
    PriceCondition.LAUNCH_PRICE: "launch price",
    PriceCondition.UNSTATED: "new or used not stated",
}


def pricing_words(offer: Offer) -> str:
    """Return the pricing in words: "on demand", "spot", "reserved 3 y"."""
    term = f" {offer.term_years} y" if offer.term_years else ""
    return f"{PRICING_WORDS[offer.pricing]}{term}"


def card_condition(condition: PriceCondition) -> str:
    """Return the condition of cards to buy: "used"; an empty text for a quote or if unknown."""
    is_stated = condition not in {PriceCondition.QUOTED, PriceCondition.UNSTATED}
    return CONDITION_WORDS[condition] if is_stated else ""


def gpu_name(key: str) -> str:
    """Return the short name of a GPU; a key that is not in the table stands for itself.

    >>> gpu_name("nvidia-geforce-rtx-4090-24gb"), gpu_name("strange-9000")
    ('RTX 4090', 'strange-9000')
    """
    spec = load_specs().get(key)
    return plain(key if spec is None else spec.short_name, 60)


def micro_name(result: MicroResult) -> str:
    """Return the name of a micro-benchmark: its kind, its precision and its size."""
    return " ".join(filter(None, (result.name, result.precision, result.size)))


def gpus(key: str, count: int) -> str:
    """Return a number of GPUs of one model in words.

    >>> gpus("nvidia-geforce-rtx-4090-24gb", 4)
    '4x RTX 4090'
    """
    return f"{count}x {gpu_name(key)}"


def gpus_of(offer: Offer | BuyOrRent) -> str:
    """Return the GPUs of an offer, or of a machine in a buy-or-rent comparison: "8x H100 SXM5 80GB"."""
    return gpus(offer.gpu_key, offer.gpu_count)


def gpus_at(offer: Offer) -> str:
    """Return GPUs and seller: "8x H100 SXM5 80GB at aws p5.48xlarge", "1x RTX 4090 to buy (used)"."""
    if offer.pricing is Pricing.OWNED:
        ownership = "to buy" if offer.provider == "buy" else "of yours"
        return f"{gpus_of(offer)} {ownership} ({plain(offer.instance, 60)})"
    return f"{gpus_of(offer)} at {offer_name(offer)}"


def offer_name(offer: Offer) -> str:
    """Return seller and product: "aws p5.48xlarge us-east-1", "vast (spot)", "own: 3 years at 50 %"."""
    if offer.pricing is Pricing.OWNED:
        return plain(f"{offer.provider}: {offer.instance}", 60)
    words = (
        offer.provider,
        "" if offer.instance == gpu_name(offer.gpu_key) else offer.instance,  # the GPU is already shown
        offer.region,
        "" if offer.pricing is Pricing.ON_DEMAND else f"({pricing_words(offer)})",
    )
    return plain(" ".join(filter(None, words)), 60)


def full_name(offer: Offer) -> str:
    """Return provider, instance and region in full: "aws p5.48xlarge us-east-1"."""
    return plain(f"{offer.provider} {offer.instance} {offer.region or ''}".strip())


def offer_lines(offer: Offer, mark: str = "") -> str:
    """Return an offer as a cell of a table: its GPUs, and below them seller and product."""
    return f"{gpus_of(offer)}{mark}\n{offer_name(offer)}"


def price_of(row: Row) -> str:
    """Return the expected price of the entire instance: "$2.14/h"."""
    return f"{format_usd(row.usd_per_hour.value)}/h"
