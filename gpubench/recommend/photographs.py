"""Photographs that a host decodes and augments: what its GPUs take, against what its vCPUs prepare."""

from __future__ import annotations

import math
from collections.abc import Collection

from gpubench.models import Offer
from gpubench.recommend.request import RankRequest

IMAGES_PER_VCPU_S = 150.0
"""Photographs that one vCPU augments in a second, assumed: one process of ``gpubench feed`` on a server core,
decoding not counted. That verb measures a host of one's own."""


def share_of(request: RankRequest, photographs: Collection[str]) -> float:
    """Return which share of the samples are photographs; 0 where nothing need be prepared.

    Of several workloads at their geometric mean no job is made, so that nothing need be fed.

    Args:
        request: What was asked.
        photographs: Workloads that train on decoded photographs.
    """
    names = request.workload_names
    if request.mix:
        return sum(request.mix[name] for name in names if name in photographs) / sum(request.mix.values())
    return float(len(names) == 1 and names[0] in photographs)


def fed_rate(offer: Offer, share: float) -> float:
    """Return the samples/s that the vCPUs of an instance keep up with; infinite where no limit is known.

    They must keep up with what its GPUs take while they work: of spot with what it does before any is lost.
    """
    if not share or offer.vcpus is None:
        return math.inf
    return offer.vcpus * IMAGES_PER_VCPU_S / share
