"""RunPod: the prices of one GPU of each type, in its secure and its community cloud; no key needed.

Interface: https://docs.runpod.io (GraphQL, gpuTypes). Its spot price has equalled the on-demand price, so
only on-demand is taken. ``stockStatus`` is High, Medium or Low, and null where none is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

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


class _Cloud(NamedTuple):
    """One of the two: its own data centers have a list price, the community's hosts ask theirs."""

    seller: Literal["secure", "community"]
    kind: str
    suffix: str


CLOUDS = (_Cloud("community", "marketplace", ""), _Cloud("secure", "vm", " (secure)"))


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
    """Yield a quote per GPU type and cloud that has a price."""
    answer = decode(transport(URL, body={"query": QUERY}), _Answer, "RunPod")
    if answer.data is None:
        raise SourceError("RunPod answered with an error instead of prices")
    gpus, unread = decode_rows(answer.data.gpuTypes, _GpuType, "RunPod")
    yield from unread
    for gpu in gpus:
        is_free = None if gpu.lowestPrice is None else gpu.lowestPrice.stockStatus is not None
        offered = [cloud for cloud in CLOUDS if getattr(gpu, f"{cloud.seller}Price")]
        for cloud in offered:
            yield Quote(
                provider="runpod",
                instance=gpu.displayName + cloud.suffix,
                region=None,
                gpu=gpu.id,
                gpu_memory_gib=gpu.memoryInGb,
                gpu_count=1,
                price=getattr(gpu, f"{cloud.seller}Price"),
                kind=cloud.kind,
                seller=cloud.seller,
                source="RunPod GraphQL API",
                note=f"{cloud.seller} cloud",
                in_stock=None if is_free and len(offered) > 1 else is_free,  # of which one, it does not say
            )
    if not (answer.errors or unread):
        yield Complete(pricings=(Pricing.ON_DEMAND,))


SOURCE = Source("runpod", "runpod", fetch)
