"""How an offer is paid, and what its price is."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, cast


class Pricing(StrEnum):
    """How an offer is paid."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"


PriceLabel = Literal["list", "single host", "quote", "new", "used", "launch price", "unlabeled"]
"""A ``PriceCondition`` as ``Choice.price_label`` stores it."""


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

    @property
    def label(self) -> PriceLabel:
        """The condition as ``price_label`` stores it, where two are called otherwise."""
        return cast("PriceLabel", _LABELS.get(self, self.value))

    @classmethod
    def of_label(cls, label: PriceLabel) -> PriceCondition:
        """Return the condition that is stored so."""
        return next(each for each in cls if each.label == label)


_LABELS = {PriceCondition.QUOTED: "quote", PriceCondition.UNSTATED: "unlabeled"}
