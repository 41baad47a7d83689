"""The caching allocator of the fake device: bytes allocated, reserved and refused.

Source: c10/cuda/CUDACachingAllocator.cpp for sizes and for the order of attempts (cache, new segment, release
of the cache unless a capture is underway, error); torch/cuda/memory.py for the names of the figures.
Blocks of one pool are not told apart: a pool is as good as its free bytes, without fragmentation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

MIB = 1024**2
_ROUND = 512
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_LARGE, _LARGE_SEGMENT = 10 * MIB, 20 * MIB
_UNDERWAY = (
    'captures_underway.empty() INTERNAL ASSERT FAILED at "c10/cuda/CUDACachingAllocator.cpp":3941, '
    "please report a bug to PyTorch."
)


@dataclass
class Pool:
    """Memory that serves one purpose: everything eager, or the captures that share a handle."""

    reserved: int = 0
    free: int = 0
    segments: int = 0
    graphs: int = 0


@dataclass
class Memory:
    """What the allocator of the device counts [B]."""

    total: int = 80 * 1024**3
    fraction: float = 1.0
    allocated: int = 0
    peak: int = 0
    most_reserved: int = 0
    retries: int = 0
    refused: int = 0
    pools: dict[object, Pool] = field(default_factory=lambda: {None: Pool()})
    current: object = None
    underway: set[object] = field(default_factory=set)
    """Pools for whose sake captures are underway, as the allocator believes."""

    @property
    def reserved(self) -> int:
        """Bytes taken from the driver."""
        return sum(pool.reserved for pool in self.pools.values())

    @property
    def limit(self) -> int:
        """Bytes that this process may take."""
        return int(self.total * self.fraction)

    def take(self, size: int) -> tuple[object, int]:
        """Allocate; return the pool and the rounded size, to give back.

        Raises:
            OutOfMemoryError: In the allocator's words.
        """
        rounded = max(_ROUND, -(-size // _ROUND) * _ROUND)
        pool = self.pools.setdefault(self.current, Pool())
        if pool.free < rounded and not self._grow(pool, rounded):
            self.refused += 1
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB. GPU 0 has a total capacity of "
                f"{self.total / MIB:.2f} MiB of which {(self.limit - self.reserved) / MIB:.2f} MiB is free."
            )
        pool.free -= rounded
        self.allocated += rounded
        self.peak = max(self.peak, self.allocated)
        return self.current, rounded

    def give(self, block: tuple[object, int]) -> None:
        """Free a block: its bytes go back to its pool, not to the driver."""
        key, rounded = block
        self.allocated -= rounded
        if key in self.pools:
            self.pools[key].free += rounded

    def empty_cache(self) -> None:
        """Hand free memory back to the driver.

        Source: release_cached_blocks asserts that no capture is underway; up to torch 2.11 an invalidated
        capture stays so (mended by pytorch/pytorch#180395).
        """
        if self.underway:
            raise RuntimeError(_UNDERWAY)
        self._release()

    def _release(self) -> None:
        for key, pool in [*self.pools.items()]:
            if pool.graphs:
                continue
            pool.reserved -= pool.free
            pool.free = 0
            if pool.reserved == 0:
                pool.segments = 0
                if key is not None:
                    del self.pools[key]

    def _grow(self, pool: Pool, rounded: int) -> bool:
        segment = rounded
        if rounded <= _SMALL:
            segment = _SMALL_SEGMENT
        elif rounded < _LARGE:
            segment = _LARGE_SEGMENT
        for size in (segment, rounded):
            if self.reserved + size > self.limit and not self.underway:
                self.retries += 1
                self._release()
            if self.reserved + size <= self.limit:
                pool.reserved += size
                pool.free += size
                pool.segments += 1
                self.most_reserved = max(self.most_reserved, self.reserved)
                return True
        return False

    def stats(self) -> dict[str, int]:
        """Return the figures under the names that torch.cuda.memory_stats has."""
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": self.reserved,
            "segment.all.current": sum(pool.segments for pool in self.pools.values()),
            "num_alloc_retries": self.retries,
            "num_ooms": self.refused,
        }
