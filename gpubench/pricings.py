"""How an offer is paid, and what its price is."""

from __future__ import annotations

from enum import StrEnum


class Pricing(StrEnum):
    """How an offer is paid."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"


class PriceCondition(StrEnum):
    """What a price is.

    Of rent a provider's list price, or what a single host asks. Of cards the buyer's own quote, what they
    cost new or used, or the maker's launch price; ``unstated`` where a listing does not say which.
    """

    LIST = "list"
    SINGLE_HOST = "single host"
    QUOTED = "quoted"
    NEW = "new"
    USED = "used"
    LAUNCH_PRICE = "launch price"
    UNSTATED = "unstated"
