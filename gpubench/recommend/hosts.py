"""What a job takes of its host: memory, disk, lanes. What no source says is said, never assumed.

How many vCPUs a job takes is told by what they prepare, and slows a row in place of leaving it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from gpubench.models import Offer, TaskKind, WorkloadProfile
from gpubench.offers.table import LEAST_PCIE_BYTES_PER_S
from gpubench.units import GIB, format_bytes

RAM_OVER_WEIGHTS = 1.2
"""Memory that loading a file of weights takes, over the file: it is read, checked and copied to the GPU."""
RAM_BYTES_PER_GPU = 4 * GIB
"""Of one process with its CUDA context and its loaders, assumed."""
DISK_OVER_WEIGHTS = 2
"""The file of weights, and one that is saved."""
SYSTEM_DISK_BYTES = 20 * GIB
"""Of the system, torch and its libraries, assumed."""
SIXTEEN_BITS_FROM = 1e9
"""Language models of so many parameters are published in bfloat16 or float16."""
PHOTOGRAPH_FILE_BYTES = 110_000
"""Mean file of ILSVRC 2012: 138 GB of 1,281,167 training images."""


class HostNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a job takes of its host; 0 where nothing was asked about.

    Attributes:
        weights_bytes: Of the largest file of weights, in the type that such files have.
        disk_bytes: Of system, weights and photographs.
    """

    weights_bytes: float = 0.0
    disk_bytes: float = 0.0

    def ram_bytes(self, gpu_count: int) -> float:
        """Memory that a host of so many GPUs needs [B]."""
        return RAM_OVER_WEIGHTS * self.weights_bytes + RAM_BYTES_PER_GPU * gpu_count


NOTHING_ASKED = HostNeed()


def need_of(profiles: Iterable[WorkloadProfile], task: str, images: float) -> HostNeed:
    """Return what the most demanding of some workloads takes.

    Args:
        profiles: A file of a large language model is in 16 bits, any other in float32.
        task: train or infer; only training reads a data set.
        images: Photographs in the data set, 0 where nobody knows.
    """
    every = list(profiles)
    weights = max(map(_file_bytes, every))
    reads = task == TaskKind.TRAIN and any(each.takes_photographs for each in every)
    data = images * PHOTOGRAPH_FILE_BYTES if reads else 0.0
    return HostNeed(weights_bytes=weights, disk_bytes=SYSTEM_DISK_BYTES + DISK_OVER_WEIGHTS * weights + data)


def _file_bytes(profile: WorkloadProfile) -> float:
    is_large = profile.tokens_per_sample is not None and profile.parameters >= SIXTEEN_BITS_FROM
    return profile.parameters * (2.0 if is_large else 4.0)


def lacks_ram(offer: Offer, need: HostNeed) -> str | None:
    """Return why the memory of a host is too small; None where it is not, or is not known."""
    least = need.ram_bytes(offer.gpu_count)
    if not need.weights_bytes or offer.ram_bytes is None or offer.ram_bytes >= least:
        return None
    return (
        f"its {format_bytes(offer.ram_bytes)} of RAM are under the {format_bytes(least)} that loading takes"
    )


def lacks_disk(offer: Offer, need: HostNeed) -> str | None:
    """Return why the disk of a host is too small; None where it is not, or is not known."""
    if offer.disk_bytes is None or offer.disk_bytes >= need.disk_bytes:
        return None
    takes = f"the {format_bytes(need.disk_bytes)} that system, weights and data take"
    return f"its disk of {format_bytes(offer.disk_bytes)} is under {takes}"


def lacks_lanes(offer: Offer, _need: HostNeed) -> str | None:
    """Return why the link of a host to its GPUs is too slow; None where it is not, or is not known."""
    if offer.pcie_bytes_per_s is None or offer.pcie_bytes_per_s >= LEAST_PCIE_BYTES_PER_S:
        return None
    return f"its GPUs get {offer.pcie_bytes_per_s / 1e9:.2g} GB/s over PCIe, as on a riser of one lane"


def unsaid(offer: Offer, need: HostNeed) -> Iterator[str]:
    """Yield what an offer does not say of its host, with what the job takes of it."""
    if not need.weights_bytes:
        return
    if offer.ram_bytes is None:
        yield f"RAM ({format_bytes(need.ram_bytes(offer.gpu_count))} needed)"
    if offer.disk_bytes is None:
        yield f"disk ({format_bytes(need.disk_bytes)} needed)"
    if offer.pcie_bytes_per_s is None:
        yield "lanes of PCIe"
