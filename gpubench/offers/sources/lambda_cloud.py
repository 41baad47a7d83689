"""Lambda: every instance type; needs an API key in LAMBDA_API_KEY.

Interface: https://docs.lambda.ai/public-cloud/cloud-api (list available instance types). Prices are the same
in all regions, so the offers have no region.
"""

import os
from collections.abc import Iterator

import msgspec

from gpubench.models import Pricing
from gpubench.offers.sources import (
    Complete,
    Quote,
    Source,
    SourceItem,
    SourceSkippedError,
    Transport,
    decode,
    decode_rows,
)

URL = "https://cloud.lambda.ai/api/v1/instance-types"
KEY_VARIABLE = "LAMBDA_API_KEY"


class _Specs(msgspec.Struct):
    vcpus: int
    memory_gib: float
    gpus: int | None = None


class _Type(msgspec.Struct):
    name: str
    description: str
    price_cents_per_hour: float
    specs: _Specs
    gpu_description: str | None = None


class _Entry(msgspec.Struct):
    instance_type: _Type
    regions_with_capacity_available: list[msgspec.Raw] | None = None


class _Answer(msgspec.Struct):
    data: dict[str, msgspec.Raw]


def fetch(transport: Transport) -> Iterator[SourceItem]:
    """Yield one quote per instance type with a GPU."""
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        raise SourceSkippedError(f"no API key: set {KEY_VARIABLE} to read Lambda's prices")
    raw = transport(URL, headers={"Authorization": f"Bearer {key}"})
    entries, unread = decode_rows(decode(raw, _Answer, "Lambda").data.values(), _Entry, "Lambda")
    yield from unread
    for entry in entries:
        machine, regions = entry.instance_type, entry.regions_with_capacity_available
        if machine.specs.gpus == 0 or machine.name.startswith("cpu"):
            continue
        named_count = machine.name.removeprefix("gpu_").partition("x_")[0]  # of "gpu_8x_h100_sxm5"
        yield Quote(
            provider="lambda",
            instance=machine.name,
            region=None,
            gpu=machine.gpu_description or machine.description,
            gpu_count=machine.specs.gpus or (named_count if named_count.isdigit() else ""),
            vcpus=machine.specs.vcpus,
            ram_gib=machine.specs.memory_gib,
            price=machine.price_cents_per_hour / 100,
            source="Lambda cloud API, instance types",
            in_stock=None if regions is None else bool(regions),
        )
    if not unread:
        yield Complete(pricings=(Pricing.ON_DEMAND,))


SOURCE = Source("lambda", "lambda", fetch)
