"""Vast.ai: the cheapest verified host of each GPU model, count and country; no key needed.

Interface: https://docs.vast.ai/api (search offers). A broad query is truncated at 64 rows, so each model is
queried separately; an answer of 64 rows may be truncated. A host is one machine at one moment, so a quote
also states the number of hosts and their median price. Hosts that are often offline, or connect their GPUs
through slow PCIe adapters (risers), are skipped.
"""

from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from gpubench.groups import grouped
from gpubench.models import Pricing
from gpubench.offers.sources import (
    Complete,
    HostFacts,
    Listed,
    Quote,
    Source,
    SourceItem,
    Transport,
    country_code,
    decode,
    decode_rows,
)
from gpubench.offers.table import LEAST_PCIE_BYTES_PER_S, MAX_USD_PER_HOUR, MIN_USD_PER_HOUR
from gpubench.units import GIB

URL = "https://console.vast.ai/api/v0/bundles/"
ROWS_PER_MODEL = 64
MODELS = (
    "A10",
    "A100 PCIE",
    "A100 SXM4",
    "A40",
    "B200",
    "B300",
    "GH200 SXM",
    "H100 NVL",
    "H100 PCIE",
    "H100 SXM",
    "H200",
    "H200 NVL",
    "L4",
    "L40",
    "L40S",
    "Q RTX 6000",
    "Q RTX 8000",
    "RTX 3060",
    "RTX 3070",
    "RTX 3080",
    "RTX 3090",
    "RTX 3090 Ti",
    "RTX 4060 Ti",
    "RTX 4070",
    "RTX 4080",
    "RTX 4090",
    "RTX 5000Ada",
    "RTX 5070",
    "RTX 5070 Ti",
    "RTX 5080",
    "RTX 5090",
    "RTX 6000Ada",
    "RTX A4000",
    "RTX A5000",
    "RTX A6000",
    "RTX PRO 6000 S",
    "RTX PRO 6000 WS",
    "Tesla P100",
    "Tesla T4",
    "Tesla V100",
)


# Limits of a price; a host with a price of zero would hide all others.
_PRICE = msgspec.Meta(ge=float(MIN_USD_PER_HOUR), le=float(MAX_USD_PER_HOUR))


# Minimum reliability of a host: below it, a one-day job is likely to be interrupted.
_LEAST_RELIABILITY = 0.98
# Vast's two labels for a host vetted as a data center.
_DATA_CENTER = (1, "datacenter")
# Limits of a figure; without the upper one, its value in bytes could overflow.
_PLAUSIBLE = msgspec.Meta(ge=0, le=1e12)


class _Host(msgspec.Struct):
    gpu_name: str
    num_gpus: int
    gpu_ram: float  # MiB of one GPU
    dph_total: Annotated[float, _PRICE]  # USD per hour of the whole machine with its default disk
    host_id: int | str | None = None
    machine_id: int | str | None = None
    geolocation: str | None = None  # "Texas, US"
    hosting_type: int | str | None = None
    cpu_cores: float | None = None  # of the whole machine, like cpu_ram
    cpu_cores_effective: float | None = None  # of these GPUs
    cpu_ram: Annotated[float, _PLAUSIBLE] | None = None  # MB
    disk_space: Annotated[float, _PLAUSIBLE] | None = None  # GB
    inet_down: Annotated[float, _PLAUSIBLE] | None = None  # Mbit/s
    inet_up: Annotated[float, _PLAUSIBLE] | None = None
    verification: str | None = None
    reliability2: Annotated[float, _PLAUSIBLE] | None = None
    pcie_bw: Annotated[float, _PLAUSIBLE] | None = None  # GB/s

    @property
    def ram_gib(self) -> float | None:
        """The share of the machine's memory for these GPUs, in proportion to the cores."""
        if not (self.cpu_ram and self.cpu_cores and self.cpu_cores_effective):
            return None
        return self.cpu_ram * 1e6 / GIB * min(1.0, self.cpu_cores_effective / self.cpu_cores)

    @property
    def facts(self) -> HostFacts:
        return HostFacts(
            host_id=None if self.host_id is None else str(self.host_id),
            machine_id=None if self.machine_id is None else str(self.machine_id),
            reliability=self.reliability2 or None,
            pcie_bytes_per_s=(self.pcie_bw or 0.0) * 1e9 or None,
            download_bytes_per_s=(self.inet_down or 0.0) * 1e6 / 8 or None,
            upload_bytes_per_s=(self.inet_up or 0.0) * 1e6 / 8 or None,
            disk_bytes=round((self.disk_space or 0.0) * 1e9) or None,
        )


def fetch(transport: Transport) -> Iterator[SourceItem]:
    """Yield the listings of hosts for each model."""
    for model in MODELS:
        yield from fetch_model(model, transport)


def fetch_model(model: str, transport: Transport) -> Iterator[SourceItem]:
    """Yield one quote per memory size, count and country of a GPU model: that of the cheapest verified host.

    The note states the number of hosts with that memory size and count, and their median price. The cheapest
    quote also has both as fields.
    """
    query = {
        "gpu_name": {"eq": model},
        "verified": {"eq": True},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "type": "on-demand",
        "order": [["dph_total", "asc"]],
        "limit": ROWS_PER_MODEL,
    }
    answer = decode(transport(URL, body=query), Listed, "Vast")
    hosts, unread = decode_rows(answer.offers, _Host, f"Vast {model}")
    yield from unread
    usable = filter(_passes, hosts)
    groups = grouped(((host.gpu_name, host.num_gpus, round(host.gpu_ram / 1024)), host) for host in usable)
    for (name, count, memory_gib), group in groups.items():
        middle, by_price = median(h.dph_total for h in group), sorted(group, key=lambda h: h.dph_total)
        by_country: dict[str | None, _Host] = {}
        for host in by_price:
            by_country.setdefault(country_code((host.geolocation or "").rpartition(",")[2]), host)
        for country, host in by_country.items():
            yield Quote(
                provider="vast",
                instance=name if count == 1 else f"{count}x {name}",
                region=country,
                gpu=name,
                gpu_memory_gib=memory_gib,
                gpu_count=count,
                vcpus=host.cpu_cores_effective or None,
                ram_gib=host.ram_gib,
                price=host.dph_total,
                kind="marketplace",
                source="Vast search API, cheapest verified host of a country",
                note=f"one of {len(group)} verified hosts at one moment; their median is {middle:.3f} USD/h",
                # Each quote is one ask, so the cheapest counts for itself and for all hosts without a quote.
                ask_count=len(group) - len(by_country) + 1 if host is by_price[0] else None,
                ask_median=middle if host is by_price[0] else None,
                in_stock=True,  # the query selects rentable hosts that are not rented
                seller="secure" if host.hosting_type in _DATA_CENTER else "community",
                host=host.facts,
            )
    if len(answer.offers) < ROWS_PER_MODEL and not unread:
        yield Complete(pricings=(Pricing.ON_DEMAND,), gpu=model)


def _passes(host: _Host) -> bool:
    return (
        host.verification in {None, "verified"}
        and (host.reliability2 is None or host.reliability2 >= _LEAST_RELIABILITY)
        and (host.pcie_bw is None or host.pcie_bw * 1e9 >= LEAST_PCIE_BYTES_PER_S)
    )


SOURCE = Source("vast", "vast", fetch)
