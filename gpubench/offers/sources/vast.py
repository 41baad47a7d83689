"""Vast.ai: the cheapest verified host of each GPU model and count; no key needed.

Interface: https://docs.vast.ai/api (search offers). A broad query is cut at 64 rows, so each model is
asked for by itself; an answer of 64 rows may be cut. A host is one machine at one moment: quotes carry the
number of hosts and their median. Hosts that are often away, or whose GPUs hang on a riser, are passed over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from gpubench.models import Pricing
from gpubench.offers.plausible import MAX_USD_PER_HOUR, MIN_USD_PER_HOUR
from gpubench.offers.sources import Complete, Quote, Said, Source, Transport, decode, decode_rows

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


_PRICE = msgspec.Meta(ge=float(MIN_USD_PER_HOUR), le=float(MAX_USD_PER_HOUR))
"""A host that asks nothing would be the cheapest of its like, and hide them."""


LEAST_RELIABILITY = 0.98
"""Share of the time that a host is to be there: below it, a job of a day is likely to be cut."""
LEAST_PCIE_GB_PER_S = 5.0
"""Measured bandwidth to a GPU; a slot of eight lanes has 6 and more, a riser of one lane under 1."""


class _Host(msgspec.Struct):
    gpu_name: str
    num_gpus: int
    gpu_ram: float  # MiB of one GPU
    dph_total: Annotated[float, _PRICE]  # USD per hour of the whole machine with its default disk
    cpu_cores_effective: float | None = None
    verification: str | None = None
    reliability2: float | None = None
    pcie_bw: float | None = None  # GB/s


class _Answer(msgspec.Struct):
    offers: list[msgspec.Raw]


def fetch(transport: Transport) -> Iterator[Said]:
    """Yield what hosts ask for each model."""
    for model in MODELS:
        yield from fetch_model(model, transport)


def fetch_model(model: str, transport: Transport) -> Iterator[Said]:
    """Yield one quote per GPU memory and count of a model: the cheapest verified host."""
    query = {
        "gpu_name": {"eq": model},
        "verified": {"eq": True},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "type": "on-demand",
        "order": [["dph_total", "asc"]],
        "limit": ROWS_PER_MODEL,
    }
    answer = decode(transport(URL, body=query), _Answer, "Vast")
    hosts, unread = decode_rows(answer.offers, _Host, f"Vast {model}")
    yield from unread
    alike: dict[tuple[str, int, int], list[_Host]] = defaultdict(list)
    for host in hosts:
        if _passes(host):
            alike[host.gpu_name, host.num_gpus, round(host.gpu_ram / 1024)].append(host)
    for (name, count, memory_gib), group in alike.items():
        cheapest = min(group, key=lambda host: host.dph_total)
        middle = median(host.dph_total for host in group)
        yield Quote(
            provider="vast",
            instance=name if count == 1 else f"{count}x {name}",
            region=None,
            gpu=name,
            gpu_memory_gib=memory_gib,
            gpu_count=count,
            vcpus=cheapest.cpu_cores_effective or None,
            price=cheapest.dph_total,
            kind="marketplace",
            source="Vast search API, cheapest verified host",
            note=f"cheapest of {len(group)} verified hosts at one moment; their median is {middle:.3f} USD/h",
            ask_count=len(group),
            ask_median=middle,
            in_stock=True,  # asked for: rentable and not rented
        )
    if len(answer.offers) < ROWS_PER_MODEL and not unread:
        yield Complete(pricings=(Pricing.ON_DEMAND,), gpu=model)


def _passes(host: _Host) -> bool:
    """Return whether a host is good enough to be quoted; what it does not say is not held against it."""
    return (
        host.verification in {None, "verified"}
        and (host.reliability2 is None or host.reliability2 >= LEAST_RELIABILITY)
        and (host.pcie_bw is None or host.pcie_bw >= LEAST_PCIE_GB_PER_S)
    )


SOURCE = Source("vast", "vast", fetch)
