"""The pricing of an offer, and the kind of its price."""

from __future__ import annotations

from enum import StrEnum


class Pricing(StrEnum):
    """How an offer is paid for: by the hour, by the hour as spot, reserved for a term, or by owning it."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"


class PriceCondition(StrEnum):
    """The kind of a price. A rental has a provider's list price, or a single host's price.

    A card to buy has the buyer's quote, a price for new or used cards, or the vendor's launch price;
    ``unstated`` if a listing does not say whether the card is new.
    """

    LIST = "list"
    SINGLE_HOST = "single host"
    QUOTED = "quoted"
    NEW = "new"
    USED = "used"
    LAUNCH_PRICE = "launch price"
    UNSTATED = "unstated"
