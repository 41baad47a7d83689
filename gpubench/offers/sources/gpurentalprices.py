"""The ledger of gpurentalprices.com: prices of clouds without another source here; no key needed.

It is updated daily under CC BY 4.0; https://github.com/adriannutiu/gpu-rental-prices describes each field.
Its prices are per GPU, for the smallest machine of each cloud. Clouds with another source are skipped here,
because that source knows their instances.
"""

import re
from collections.abc import Iterator

import msgspec

from gpubench.models import Pricing
from gpubench.offers.sources import (
    Listed,
    Quote,
    Source,
    SourceItem,
    Transport,
    decode,
    decode_rows,
    kind_of,
    own_sources,
)

URL = "https://gpurentalprices.com/api/latest.json"
CLOUDS = frozenset(
    {
        *("coreweave", "crusoe", "digitalocean", "hotaisle", "hyperstack", "jarvislabs", "latitude"),
        *("massedcompute", "ovhcloud", "scaleway", "spheron", "tensordock", "thundercompute", "together"),
        *("voltagepark", "vultr"),
    }
)
"""The clouds to read, unless they have a source of their own; they rent machines, not API calls."""
_PROVIDER_NAMES = {"ovh": "ovhcloud"}
# The pricing of each kind; reserved prices come without a term and are skipped.
_KINDS = {"on-demand": Pricing.ON_DEMAND, "community": Pricing.ON_DEMAND, "spot": Pricing.SPOT}
# Memory size at the end of an A100's name, in gigabytes.
_SIZE = re.compile(r"-(40|80)$")


class _Row(msgspec.Struct):
    provider: str
    gpu: str
    vram_gb: float
    usd_hr: float
    kind: str
    source_url: str
    fetched_at: str
    min_gpus: int = 1


def fetch(transport: Transport) -> Iterator[SourceItem]:
    """Yield one quote per cloud, GPU and pricing; the ledger never states that it is complete."""
    rows, unread = decode_rows(
        decode(transport(URL), Listed, "gpurentalprices").offers, _Row, "gpurentalprices"
    )
    yield from unread
    clouds = CLOUDS - {source.provider for source in own_sources()}
    for row in rows:
        provider, pricing = _PROVIDER_NAMES.get(row.provider, row.provider), _KINDS.get(row.kind)
        if provider in clouds and pricing is not None:
            yield Quote(
                provider=provider,
                instance=row.gpu if row.min_gpus == 1 else f"{row.min_gpus}x {row.gpu}",
                region=None,
                gpu=_SIZE.sub(r"-\1gb", row.gpu),
                gpu_memory_gib=row.vram_gb,
                gpu_count=row.min_gpus,
                price=row.usd_hr * row.min_gpus,
                pricing=pricing,
                kind=kind_of(provider),
                price_date=row.fetched_at[:10],
                source=f"GPU rental price data by gpurentalprices.com, CC BY 4.0, from {row.source_url}",
            )


SOURCE = Source("gpurentalprices", "gpurentalprices", fetch)
