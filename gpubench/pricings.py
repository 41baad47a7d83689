"""How an offer is paid."""

from __future__ import annotations

from enum import StrEnum


class Pricing(StrEnum):
    """How an offer is paid."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"
