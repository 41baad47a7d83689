"""What the child that lists OpenCL devices answers; apart, so that it loads little else."""

from __future__ import annotations

import msgspec


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A device as its platform answers, in OpenCL's own units."""

    platform: str
    name: str
    vendor: str
    is_cpu: bool
    compute_units: int
    clock_mhz: int
    memory_bytes: int
    unified_memory: bool
    version: str
    driver: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Every device in the order of the OpenCL loader, and what kept others from being listed."""

    devices: tuple[Listed, ...] = ()
    problems: tuple[str, ...] = ()
