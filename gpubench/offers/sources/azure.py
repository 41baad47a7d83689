"""Azure Retail Prices: every N-series machine, on demand, spot and reserved; no key needed.

Interface: https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices
The answer names neither the GPU nor the vCPUs; they are looked up in the table of instances.
"""

from collections.abc import Iterator

import msgspec

from gpubench.models import Pricing
from gpubench.offers.dates import HOURS_PER_YEAR
from gpubench.offers.sources import (
    Complete,
    Quote,
    Source,
    SourceError,
    SourceItem,
    Transport,
    decode,
    decode_rows,
    same_host,
)

URL = "https://prices.azure.com/api/retail/prices"
FILTER = "serviceName eq 'Virtual Machines' and startswith(armSkuName, 'Standard_N') and priceType eq '{}'"
PRICE_TYPES = ("Consumption", "Reservation")
# Sovereign clouds, which list prices but rent only to government agencies.
_CLOSED_REGIONS = ("usgov", "usdod")
MAX_PAGES = 300
_TERMS = {"1 Year": 1, "3 Years": 3}


class _Item(msgspec.Struct):
    currencyCode: str  # noqa: N815 - the provider's spelling
    retailPrice: float  # noqa: N815
    armRegionName: str  # noqa: N815
    meterName: str  # noqa: N815
    productName: str  # noqa: N815
    unitOfMeasure: str  # noqa: N815
    type: str
    armSkuName: str  # noqa: N815
    reservationTerm: str | None = None  # noqa: N815


class _Page(msgspec.Struct):
    Items: list[msgspec.Raw]
    NextPageLink: str | None = None


def fetch(transport: Transport) -> Iterator[SourceItem]:
    """Yield one quote per Linux price of a complete machine, page by page."""
    is_complete = True
    for price_type in PRICE_TYPES:
        raw = transport(URL, params={"$filter": FILTER.format(price_type)})
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            page = decode(raw, _Page, "Azure Retail Prices")
            items, unread = decode_rows(page.Items, _Item, "Azure Retail Prices")
            yield from unread
            yield from filter(None, map(_quote, items))
            is_complete = is_complete and not unread
            if not page.NextPageLink:
                break
            if not same_host(URL, page.NextPageLink):
                raise SourceError("Azure Retail Prices names a next page on another host: refused")
            if page.NextPageLink in seen:
                raise SourceError("Azure Retail Prices leads back to a page already read: stopped")
            seen.add(page.NextPageLink)
            raw = transport(page.NextPageLink)
        else:
            raise SourceError(f"Azure Retail Prices has more than {MAX_PAGES} pages: stopped")
    if is_complete:
        yield Complete(pricings=(Pricing.ON_DEMAND, Pricing.SPOT, Pricing.RESERVED))


def _quote(item: _Item) -> Quote | None:
    # Return a quote, or None for Windows, low priority, dedicated hosts and closed clouds.
    if item.armRegionName.startswith(_CLOSED_REGIONS):
        return None
    if "Windows" in item.productName or "Low Priority" in item.meterName or "Dedicated" in item.productName:
        return None
    if item.currencyCode != "USD" or item.unitOfMeasure != "1 Hour" or not item.armSkuName:
        return None
    pricing, term_years, price = Pricing.ON_DEMAND, None, item.retailPrice
    if item.type == "Reservation":
        term_years = _TERMS.get(item.reservationTerm or "")
        if term_years is None:
            return None
        # A reservation is priced for its whole term.
        pricing, price = Pricing.RESERVED, round(item.retailPrice / (HOURS_PER_YEAR * term_years), 6)
    elif "Spot" in item.meterName:
        pricing = Pricing.SPOT
    return Quote(
        provider="azure",
        instance=item.armSkuName,
        region=item.armRegionName or None,
        gpu="",
        gpu_count=None,
        price=price,
        pricing=pricing,
        term_years=term_years,
        source="Azure Retail Prices API",
    )


SOURCE = Source("azure", "azure", fetch)
