"""Where one process of a job stands among the others."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Where a process stands, as torch's launcher tells it.

    Attributes:
        rank, size: Among all processes of the job.
        local_rank, local_size: Among those of this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int

    @property
    def spans_machines(self) -> bool:
        """Whether the job has processes on other machines."""
        return self.size > self.local_size

    @classmethod
    def here(cls) -> Place:
        """Read the place of this process."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
        rank, size, local_rank, local_size, port = (int(os.environ[name]) for name in names)
        return cls(rank, size, local_rank, local_size, os.environ["MASTER_ADDR"], port)


def is_echo(error: BaseException) -> bool:
    """Whether an error only tells that another process was lost: the exchange with it has failed."""
    from torch import distributed

    broken = getattr(distributed, "DistError", None)
    words = f"{error}"
    return isinstance(error, RuntimeError) and (
        (broken is not None and isinstance(error, broken)) or "gloo" in words or "Connection closed" in words
    )
