"""An offer with a date and a price, for tests in which little else matters."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from gpubench.models import Offer, Pricing

H100 = "nvidia-h100-sxm-80gb"


def dated(day: str, price: float, **changes: Any) -> Offer:
    """Return an on-demand offer of one H100 by a cloud, except for these changes."""
    fields: dict[str, Any] = {
        "provider": "acme",
        "instance": "x",
        "region": None,
        "gpu_key": H100,
        "gpu_count": 1,
        "vcpus": None,
        "ram_bytes": None,
        "price_usd_per_hour": Decimal(str(price)),
        "pricing": Pricing.ON_DEMAND,
        "kind": "vm",
        "price_date": day,
        "source": "test",
    }
    return Offer(**fields | changes)
