"""RunPod: the price of one GPU of each type in its secure and its community cloud; no key needed.

Interface: https://docs.runpod.io (GraphQL, gpuTypes). Its spot price has equaled the on-demand price, so only
the latter is read. ``stockStatus`` is High, Medium or Low, or null if none is free.
"""

from collections.abc import Iterator
from typing import Annotated, TypeAlias

import msgspec

from gpubench.models import Pricing, Seller
from gpubench.offers.sources import (
    Complete,
    HostFacts,
    Quote,
    Source,
    SourceError,
    SourceItem,
    Transport,
    country_code,
    decode,
    decode_rows,
)
from gpubench.units import GIB

URL = "https://api.runpod.io/graphql"
_PRICES = "id displayName memoryInGb securePrice communityPrice"
_MACHINE = "stockStatus minVcpu minMemory minDisk minDownload minUpload countryCode"
QUERY = (
    f"query {{ gpuTypes {{ {_PRICES} "
    f"community: lowestPrice(input: {{gpuCount: 1, secureCloud: false}}) {{ {_MACHINE} }} "
    f"secure: lowestPrice(input: {{gpuCount: 1, secureCloud: true}}) {{ {_MACHINE} }} }} }}"
)
# Fallback if the first query is refused; it has no machine data.
_PLAIN_QUERY = f"query {{ gpuTypes {{ {_PRICES} lowestPrice(input: {{gpuCount: 1}}) {{ stockStatus }} }} }}"


# RunPod's two clouds: listings of community hosts, and list prices of its own data centers. For each: the
# seller, the kind of the offers, and the suffix of their names.
_CLOUDS: tuple[tuple[Seller, str, str], ...] = (
    ("community", "marketplace", ""),
    ("secure", "vm", " (secure)"),
)


# Without the upper limit, a value in bytes could overflow.
_Figure: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None


class _Lowest(msgspec.Struct):
    """The smallest machine with one free GPU."""

    stockStatus: str | None = None  # noqa: N815 - the provider's spelling
    minVcpu: _Figure = None  # noqa: N815
    minMemory: _Figure = None  # noqa: N815 - GB
    minDisk: _Figure = None  # noqa: N815 - GB
    minDownload: _Figure = None  # noqa: N815 - Mbit/s
    minUpload: _Figure = None  # noqa: N815
    countryCode: str | None = None  # noqa: N815

    @property
    def facts(self) -> HostFacts:
        return HostFacts(
            download_bytes_per_s=(self.minDownload or 0.0) * 1e6 / 8 or None,
            upload_bytes_per_s=(self.minUpload or 0.0) * 1e6 / 8 or None,
            disk_bytes=round((self.minDisk or 0.0) * 1e9) or None,
        )


class _GpuType(msgspec.Struct):
    id: str
    displayName: str  # noqa: N815 - the provider's spelling
    memoryInGb: float | None = None  # noqa: N815
    securePrice: float | None = None  # noqa: N815
    communityPrice: float | None = None  # noqa: N815
    lowestPrice: _Lowest | None = None  # noqa: N815
    community: _Lowest | None = None
    secure: _Lowest | None = None


class _GpuTypes(msgspec.Struct):
    gpuTypes: list[msgspec.Raw]  # noqa: N815


class _Answer(msgspec.Struct):
    data: _GpuTypes | None = None
    errors: list[msgspec.Raw] = []


def fetch(transport: Transport) -> Iterator[SourceItem]:
    """Yield one quote per GPU type and cloud with a price."""
    answer = _query(transport, QUERY) or _query(transport, _PLAIN_QUERY)
    if answer is None or answer.data is None:
        raise SourceError("RunPod answered with an error instead of prices")
    gpus, unread = decode_rows(answer.data.gpuTypes, _GpuType, "RunPod")
    yield from unread
    for gpu in gpus:
        offered = [cloud for cloud in _CLOUDS if getattr(gpu, f"{cloud[0]}Price")]
        for seller, kind, suffix in offered:
            there: _Lowest | None = getattr(gpu, seller)
            lowest = there or gpu.lowestPrice
            is_free = None if lowest is None else lowest.stockStatus is not None
            # The fallback answer does not say in which of the two clouds a GPU is free.
            in_stock = None if is_free and there is None and len(offered) > 1 else is_free
            machine = there or _Lowest()
            country = country_code(machine.countryCode)
            yield Quote(
                provider="runpod",
                instance=gpu.displayName + suffix,
                region=None,
                gpu=gpu.id,
                gpu_memory_gib=gpu.memoryInGb,
                gpu_count=1,
                vcpus=machine.minVcpu or None,
                ram_gib=(machine.minMemory or 0.0) * 1e9 / GIB or None,
                price=getattr(gpu, f"{seller}Price"),
                kind=kind,
                seller=seller,
                source="RunPod GraphQL API",
                note=f"{seller} cloud" + (f"; free in {country}" if country else ""),
                in_stock=in_stock,
                host=machine.facts,
            )
    if not (answer.errors or unread):
        yield Complete(pricings=(Pricing.ON_DEMAND,))


def _query(transport: Transport, query: str) -> _Answer | None:
    try:
        answer = decode(transport(URL, body={"query": query}), _Answer, "RunPod")
    except SourceError:
        if query == _PLAIN_QUERY:
            raise
        return None
    return answer if answer.data is not None else None


SOURCE = Source("runpod", "runpod", fetch)
