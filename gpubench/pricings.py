"""The pricing of an offer, and the kind of its price."""

from __future__ import annotations

from enum import StrEnum


class Pricing(StrEnum):
    """The pricing of an offer."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"


class PriceCondition(StrEnum):
    """The kind of a price. For rent it is a provider's list price, or a single host's ask.

    For cards it is the buyer's quote, a price new or used, or the vendor's launch price; ``unstated`` if a
    listing does not say.
    """

    LIST = "list"
    SINGLE_HOST = "single host"
    QUOTED = "quoted"
    NEW = "new"
    USED = "used"
    LAUNCH_PRICE = "launch price"
    UNSTATED = "unstated"
