"""Where a process of a job stands, as torchrun tells it by variables. No torch here."""

from __future__ import annotations

import os
from dataclasses import dataclass

MODULE = "gpubench.measure.worker"
"""What a process that measures runs."""
JOINED = "joined"
"""Tells a child that it is the first of the processes that a user's torchrun has started."""
STORE_VARIABLE = "GPUBENCH_JOB_STORE"
"""Names the file by which the processes of one machine find each other: nothing listens for it."""


@dataclass(frozen=True)
class Place:
    """Where a process stands.

    Attributes:
        rank, size: Among all processes of the job.
        local_rank, local_size: Among those of this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def machines(self) -> int:
        """How many the job is on, with as many processes on each."""
        return self.size // self.local_size

    @classmethod
    def here(cls) -> Place:
        """Read the place of this process."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return cls(*(int(os.environ[name]) for name in names))


def place_under_torchrun() -> Place | None:
    """Return the place of a process that a user's torchrun has started with others; None for every other."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    place = Place.here()
    return place if place.size > 1 else None
