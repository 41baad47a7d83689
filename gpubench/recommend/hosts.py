"""Requirements of a job on its host: memory, disk, PCIe lanes.

A value that no source states is reported as missing, never assumed.

vCPUs are judged by the images that they prepare; too few slow a row down instead of excluding it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from gpubench.models import Offer, TaskKind, WorkloadProfile
from gpubench.offers.table import LEAST_PCIE_BYTES_PER_S
from gpubench.units import GIB, format_bytes

RAM_OVER_WEIGHTS = 1.2
"""Memory needed to load a file of weights, relative to the file: it is read, checked and copied to the
GPU."""
RAM_BYTES_PER_GPU = 4 * GIB
"""Of one process with its CUDA context and its loaders, assumed."""
DISK_OVER_WEIGHTS = 2
"""The file of weights, and one that is saved."""
SYSTEM_DISK_BYTES = 20 * GIB
"""Of the system, torch and its libraries, assumed."""
SIXTEEN_BITS_FROM = 1e9
"""From this many parameters on, language models are published in bfloat16 or float16."""
PHOTOGRAPH_FILE_BYTES = 110_000
"""Mean file size of ILSVRC 2012: 138 GB of 1,281,167 training images."""


class HostNeed(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements of a job on its host; 0 if unknown.

    Attributes:
        weights_bytes: Size of the largest weights file, in its usual type.
        disk_bytes: Size of system, weights and photographs.
    """

    weights_bytes: float = 0.0
    disk_bytes: float = 0.0

    def ram_bytes(self, gpu_count: int) -> float:
        """Memory that a host with this many GPUs needs [B]."""
        weights = self.weights_bytes
        return RAM_OVER_WEIGHTS * weights + RAM_BYTES_PER_GPU * gpu_count if weights else 0.0


NOTHING_ASKED = HostNeed()


def need_of(profiles: Iterable[WorkloadProfile], task: str, images: float) -> HostNeed:
    """Return the needs of the most demanding workload.

    Args:
        profiles: The workloads. Weights of a large language model are in 16 bits, others in float32.
        task: train or infer; only training reads a data set.
        images: Photographs in the data set, 0 if unknown.
    """
    every = list(profiles)
    large = [p.tokens_per_sample is not None and p.parameters >= SIXTEEN_BITS_FROM for p in every]
    weights = max(p.parameters * (2.0 if is_large else 4.0) for p, is_large in zip(every, large, strict=True))
    reads = task == TaskKind.TRAIN and any(each.takes_photographs for each in every)
    data = images * PHOTOGRAPH_FILE_BYTES if reads else 0.0
    return HostNeed(weights_bytes=weights, disk_bytes=SYSTEM_DISK_BYTES + DISK_OVER_WEIGHTS * weights + data)


class Gate(NamedTuple):
    """A requirement on a host: its column, the minimum, and the text for a host below it.

    ``fields`` are the columns it uses, its own first; ``unsaid`` is the text for an offer without that value.
    """

    option: str
    fields: tuple[str, ...]
    least: Callable[[HostNeed, int], float]
    short: str
    unsaid: str


GATES = (
    Gate(
        "too little RAM in the host",
        ("ram_bytes", "gpu_count"),
        HostNeed.ram_bytes,
        "its {has} of RAM are under the {least} that loading takes",
        "RAM ({least} needed)",
    ),
    Gate(
        "too small a disk in the host",
        ("disk_bytes",),
        lambda need, _: need.disk_bytes,
        "its disk of {has} is under the {least} that system, weights and data take",
        "disk ({least} needed)",
    ),
    Gate(
        "GPUs on a riser",
        ("pcie_bytes_per_s",),
        lambda _, __: LEAST_PCIE_BYTES_PER_S,
        "its GPUs get {gigabytes:.2g} GB/s over PCIe, as on a riser of one lane",
        "lanes of PCIe",
    ),
)


def lacks(gate: Gate, offer: Offer, need: HostNeed) -> str | None:
    """Return why a host fails a requirement; None if it meets it or the value is unknown."""
    has, least = getattr(offer, gate.fields[0]), gate.least(need, offer.gpu_count)
    if has is None or has >= least:
        return None
    return gate.short.format(has=format_bytes(has), least=format_bytes(least), gigabytes=has / 1e9)


def unsaid(offer: Offer, need: HostNeed) -> Iterator[str]:
    """Yield the unstated facts about an offer's host, with the job's requirement."""
    silent = (gate for gate in GATES if need.weights_bytes and getattr(offer, gate.fields[0]) is None)
    yield from (gate.unsaid.format(least=format_bytes(gate.least(need, offer.gpu_count))) for gate in silent)
