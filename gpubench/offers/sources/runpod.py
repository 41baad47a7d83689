"""RunPod: the price of one GPU of each type, the cheaper of secure and community cloud; no key needed.

Interface: https://docs.runpod.io (GraphQL, gpuTypes). Its spot price has equalled the on-demand price, so
only on-demand is taken. ``stockStatus`` is High, Medium or Low, and null where none is free.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpubench.models import Pricing
from gpubench.offers.sources import (
    Complete,
    Quote,
    Said,
    Source,
    SourceError,
    Transport,
    decode,
    decode_rows,
)

URL = "https://api.runpod.io/graphql"
QUERY = (
    "query { gpuTypes { id displayName memoryInGb securePrice communityPrice "
    "lowestPrice(input: {gpuCount: 1}) { stockStatus } } }"
)


class _Lowest(msgspec.Struct):
    stockStatus: str | None = None  # noqa: N815 - the provider's spelling


class _GpuType(msgspec.Struct):
    id: str
    displayName: str  # noqa: N815 - the provider's spelling
    memoryInGb: float | None = None  # noqa: N815
    securePrice: float | None = None  # noqa: N815
    communityPrice: float | None = None  # noqa: N815
    lowestPrice: _Lowest | None = None  # noqa: N815


class _GpuTypes(msgspec.Struct):
    gpuTypes: list[msgspec.Raw]  # noqa: N815


class _Answer(msgspec.Struct):
    data: _GpuTypes | None = None
    errors: list[msgspec.Raw] = []


def fetch(transport: Transport) -> Iterator[Said]:
    """Yield one quote per GPU type that has a price."""
    answer = decode(transport(URL, body={"query": QUERY}), _Answer, "RunPod")
    if answer.data is None:
        raise SourceError("RunPod answered with an error instead of prices")
    gpus, unread = decode_rows(answer.data.gpuTypes, _GpuType, "RunPod")
    yield from unread
    for gpu in gpus:
        prices = {"community": gpu.communityPrice, "secure": gpu.securePrice}
        offered = {cloud: price for cloud, price in prices.items() if price}
        if not offered:
            continue
        cloud = min(offered, key=lambda name: offered[name])
        yield Quote(
            provider="runpod",
            instance=gpu.displayName,
            region=None,
            gpu=gpu.id,
            gpu_memory_gib=gpu.memoryInGb,
            gpu_count=1,
            price=offered[cloud],
            kind="marketplace",
            source="RunPod GraphQL API",
            note=f"{cloud} cloud, the cheaper of {len(offered)}",
            in_stock=None if gpu.lowestPrice is None else gpu.lowestPrice.stockStatus is not None,
        )
    if not (answer.errors or unread):
        yield Complete(pricings=(Pricing.ON_DEMAND,))


SOURCE = Source("runpod", "runpod", fetch)
