"""AWS: Linux prices of GPU instances, on demand and reserved, from the price list.

It needs AWS credentials that boto3 can find, with the permission ``pricing:GetProducts``. Reserved means
standard without upfront payment. Spot prices are in the catalog that gpuhunt collects.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from gpubench.installing import pip_install
from gpubench.models import Pricing
from gpubench.offers.sources import (
    Complete,
    Quote,
    Source,
    SourceError,
    SourceItem,
    SourceSkippedError,
    Transport,
    decode_rows,
)

PRICING_REGION = "us-east-1"
MAX_PAGES = 500
PRODUCT_FILTERS = {
    "instanceFamily": "GPU instance",
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}
_TERMS = {"1yr": 1, "3yr": 3}


class _Attributes(msgspec.Struct, rename="camel"):
    instance_type: str
    region_code: str | None = None
    vcpu: str | None = None
    memory: str | None = None
    gpu: str | None = None


class _Product(msgspec.Struct):
    attributes: _Attributes


class _Dimension(msgspec.Struct, rename="camel"):
    unit: str
    price_per_unit: dict[str, str]


class _TermAttributes(msgspec.Struct, rename="pascal", frozen=True):
    lease_contract_length: str | None = None
    offering_class: str | None = None
    purchase_option: str | None = None


class _Term(msgspec.Struct, rename="camel"):
    price_dimensions: dict[str, _Dimension]
    term_attributes: _TermAttributes = _TermAttributes()


class _Terms(msgspec.Struct, rename="pascal"):
    on_demand: dict[str, _Term] = {}
    reserved: dict[str, _Term] = {}


class _Listing(msgspec.Struct):
    product: _Product
    terms: _Terms


def fetch(_transport: Transport) -> Iterator[SourceItem]:
    """Yield the quotes of every region; the transport is unused, because boto3 sends requests itself."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError

        client = _client()
    except ImportError:
        raise SourceSkippedError(f"boto3 is not installed: {pip_install('boto3')}") from None
    try:
        texts = [text.encode() for text in _price_list(client)]
    except (BotoCoreError, ClientError) as error:
        raise SourceError(f"AWS price list failed: {error}") from None
    listings, unread = decode_rows(texts, _Listing, "AWS price list")
    yield from unread
    for listing in listings:
        yield from _list_quotes(listing)
    if not unread:
        yield Complete(pricings=(Pricing.ON_DEMAND, Pricing.RESERVED))


def _client() -> Any:
    import boto3
    from botocore.config import Config

    session = boto3.Session()
    if session.get_credentials() is None:
        raise SourceSkippedError("no AWS credentials: see `aws configure`, or set AWS_PROFILE")
    config = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 4})
    return session.client("pricing", region_name=PRICING_REGION, config=config)


def _price_list(client: Any) -> Iterator[str]:
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in PRODUCT_FILTERS.items()]
    pages = client.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
    for number, page in enumerate(pages):
        if number >= MAX_PAGES:
            raise SourceError(f"AWS price list has more than {MAX_PAGES} pages: stopped")
        yield from page["PriceList"]


def _list_quotes(listing: _Listing) -> Iterator[Quote]:
    machine = listing.product.attributes
    terms: list[tuple[_Term, int | None]] = [(term, None) for term in listing.terms.on_demand.values()]
    for term in listing.terms.reserved.values():
        facts = term.term_attributes
        years = _TERMS.get(facts.lease_contract_length or "")
        if years and facts.offering_class == "standard" and facts.purchase_option == "No Upfront":
            terms.append((term, years))
    for term, term_years in terms:
        for dimension in term.price_dimensions.values():
            price = dimension.price_per_unit.get("USD")
            if dimension.unit != "Hrs" or not price or not price.strip("0."):
                continue  # zeros mark other capacity states of the same machine
            yield Quote(
                provider="aws",
                instance=machine.instance_type,
                region=machine.region_code,
                gpu="",
                gpu_count=machine.gpu,
                vcpus=machine.vcpu,
                ram_gib=(machine.memory or "").removesuffix("GiB").replace(",", "").strip() or None,
                price=price,
                pricing=Pricing.RESERVED if term_years else Pricing.ON_DEMAND,
                term_years=term_years,
                source="AWS Price List API",
                note="standard, no upfront" if term_years else None,
            )


SOURCE = Source("aws", "aws", fetch)
