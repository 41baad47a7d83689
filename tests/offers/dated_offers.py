"""An offer with a date and a price, for tests in which little else matters."""

from __future__ import annotations

from typing import Any

from recommend.builders import offer

from gpubench.models import Offer


def dated(day: str, price: float, **changes: Any) -> Offer:
    """Return an on-demand offer of one H100 by a cloud, except for these changes."""
    return offer(price=price, **{"instance": "x", "price_date": day} | changes)
