"""The caching allocator of the fake device: blocks in segments, bytes counted, and refusals at the limit.

Source: c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator, with its default settings (no expandable
segments, no largest size to split, no garbage collection).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

MIB = 1024**2
MIN_BLOCK = 512
"""Every size is a multiple of this [B]. Source: c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize and round_size."""
SMALL = MIB
"""The largest request that the small pool serves [B]. Source: c10/cuda/CUDACachingAllocator.cpp, kSmallSize."""
SMALL_SEGMENT = 2 * MIB
"""Source: c10/cuda/CUDACachingAllocator.cpp, kSmallBuffer."""
LARGE = 10 * MIB
"""Large requests below this size share segments [B]. Source: c10/cuda/CUDACachingAllocator.cpp, kMinLargeAlloc."""
LARGE_SEGMENT = 20 * MIB
"""Source: c10/cuda/CUDACachingAllocator.cpp, kLargeBuffer."""
ROUND_LARGE = 2 * MIB
"""Source: c10/cuda/CUDACachingAllocator.cpp, kRoundLarge."""
UNDERWAY = (
    'captures_underway.empty() INTERNAL ASSERT FAILED at "c10/cuda/CUDACachingAllocator.cpp":3941, '
    "please report a bug to PyTorch."
)
"""Source: c10/cuda/CUDACachingAllocator.cpp, synchronize_and_free_events; the message is from pull request 180395."""


def segment_size(rounded: int) -> int:
    """Return the size of the segment taken from the driver for a request [B].

    Source: c10/cuda/CUDACachingAllocator.cpp, get_allocation_size.
    """
    if rounded <= SMALL:
        return SMALL_SEGMENT
    if rounded < LARGE:
        return LARGE_SEGMENT
    return -(-rounded // ROUND_LARGE) * ROUND_LARGE


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment, in use or cached; its neighbors are the adjacent pieces of the segment.

    Source: c10/cuda/CUDACachingAllocator.cpp, struct Block.
    """

    pool: Pool
    size: int
    number: int
    free: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass(eq=False)
class Pool:
    """The cached blocks for one purpose, smallest first.

    Source: c10/cuda/CUDACachingAllocator.cpp, struct BlockPool and get_pool: small and large requests are
    separate, captures have their own pools, and a block serves the stream for which it was first taken.
    """

    small: bool
    capture: object
    cached: list[tuple[int, int, Block]] = field(default_factory=list)
    segments: int = 0

    def insert(self, block: Block) -> None:
        block.free = True
        insort(self.cached, (block.size, block.number, block))

    def remove(self, block: Block) -> None:
        block.free = False
        del self.cached[bisect_left(self.cached, (block.size, block.number))]


@dataclass
class Memory:
    """The device's allocator and its counters [B]."""

    total: int = 80 * 1024**3
    fraction: float | None = None
    allocated: int = 0
    peak: int = 0
    reserved: int = 0
    most_reserved: int = 0
    peak_reserved: int = 0
    retries: int = 0
    refused: int = 0
    pools: dict[object, Pool] = field(default_factory=dict)
    underway: set[object] = field(default_factory=set)
    """Pools with active captures, as far as the allocator knows."""
    users: Counter[object] = field(default_factory=Counter)
    """The graphs and captures that hold each pool."""
    malloc: Callable[[], None] = lambda: None
    """Called before memory is taken from the driver; raises if a capture forbids that."""

    def __post_init__(self) -> None:
        self._numbers = itertools.count()

    def take(self, size: int, stream: int = 0, capture: object = None) -> Block:
        """Allocate for a stream; ``capture`` is the pool of its capture.

        Source: c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator::malloc: the cache, then a new
        segment, then a new segment after releasing the cache, which requires that no capture is active.

        Raises:
            OutOfMemoryError: With the allocator's message.
        """
        rounded = max(1, -(-size // MIN_BLOCK)) * MIN_BLOCK
        small = rounded <= SMALL
        key = (capture, stream, small)
        pool = self.pools.get(key) or self.pools.setdefault(key, Pool(small, capture))
        block = self._cached(pool, rounded) or self._segment(pool, rounded)
        if block is None and not self.underway:
            self.retries += 1
            self._release()
            self.pools[key] = pool
            block = self._segment(pool, rounded)
        if block is None:
            self.refused += 1
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {segment_size(rounded) / MIB:.2f} MiB. GPU 0 has a total "
                f"capacity of {self.total / MIB:.2f} MiB of which {self.unreserved / MIB:.2f} MiB is free."
            )
        self._split(block, rounded)
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def give(self, block: Block) -> None:
        """Free a block: it is merged with its free neighbors and cached for its stream, not released.

        Source: c10/cuda/CUDACachingAllocator.cpp, free_block and try_merge_blocks.
        """
        self.allocated -= block.size
        pool = block.pool
        if block.before is not None and block.before.free:
            block = self._joined(block.before, block)
        if block.after is not None and block.after.free:
            block = self._joined(block, block.after)
        pool.insert(block)

    def empty_cache(self) -> None:
        """Release the cache to the driver.

        Source: c10/cuda/CUDACachingAllocator.cpp, emptyCache and synchronize_and_free_events, which asserts
        that no capture is active; up to torch 2.11 an invalidated capture stays so (pull request 180395).
        """
        if self.underway:
            raise RuntimeError(UNDERWAY)
        self._release()

    @property
    def unreserved(self) -> int:
        """The free memory from cudaMemGetInfo, whatever share of it this process may take [B].

        Source: torch/cuda/memory.py, mem_get_info.
        """
        return self.total - self.reserved

    def begin_capture(self, capture: object) -> None:
        """Serve a capture from its own pool.

        Source: c10/cuda/CUDACachingAllocator.cpp, beginAllocateToPool.
        """
        if capture in self.users and not self.users[capture]:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.users[capture] += 1
        self.underway.add(capture)

    def end_capture(self, capture: object) -> None:
        """Source: c10/cuda/CUDACachingAllocator.cpp, endAllocateToPool."""
        self.underway.discard(capture)

    def release_pool(self, capture: object) -> None:
        """Let the memory of a graph be released with the cache, once no other graph uses it.

        Source: c10/cuda/CUDACachingAllocator.cpp, releasePool.
        """
        self.users[capture] -= 1

    def _cached(self, pool: Pool, rounded: int) -> Block | None:
        """Source: c10/cuda/CUDACachingAllocator.cpp, get_free_block: the smallest sufficient cached block."""
        place = bisect_left(pool.cached, (rounded,))
        if place == len(pool.cached):
            return None
        block = pool.cached.pop(place)[2]
        block.free = False
        return block

    def _segment(self, pool: Pool, rounded: int) -> Block | None:
        """Take a segment from the driver; None if not enough memory is left.

        Source: c10/cuda/CUDACachingAllocator.cpp, alloc_block: the share of this process is checked first,
        then cudaMalloc is called."""
        size = segment_size(rounded)
        if self.fraction is not None and self.reserved + size > int(self.total * self.fraction):
            return None
        self.malloc()
        if size > self.unreserved:
            return None
        self.reserved += size
        self.most_reserved = max(self.most_reserved, self.reserved)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        pool.segments += 1
        return Block(pool, size, next(self._numbers))

    def _split(self, block: Block, rounded: int) -> None:
        """Cache the rest of a block that is larger than requested.

        Source: c10/cuda/CUDACachingAllocator.cpp, should_split: from a large block only more than 1 MiB is split off.
        """
        left = block.size - rounded
        if left < MIN_BLOCK or (not block.pool.small and left <= SMALL):
            return
        rest = Block(block.pool, left, next(self._numbers), before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, rounded
        block.pool.insert(rest)

    def _joined(self, first: Block, second: Block) -> Block:
        """Source: c10/cuda/CUDACachingAllocator.cpp, try_merge_blocks."""
        for block in (first, second):
            if block.free:
                block.pool.remove(block)
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first

    def _release(self) -> None:
        """Release only whole segments, and none from a pool that a graph uses.

        Source: c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks and release_blocks.
        """
        for key, pool in [*self.pools.items()]:
            if pool.capture is not None and self.users[pool.capture]:
                continue
            for size, _, block in [*pool.cached]:
                if block.before is None and block.after is None:
                    pool.remove(block)
                    pool.segments -= 1
                    self.reserved -= size
            if not pool.segments:
                del self.pools[key]

    def stats(self) -> dict[str, int]:
        """Return the figures under the names of torch.cuda.memory_stats.

        Source: torch/cuda/memory.py, memory_stats.
        """
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": self.reserved,
            "segment.all.current": sum(pool.segments for pool in self.pools.values()),
            "num_alloc_retries": self.retries,
            "num_ooms": self.refused,
        }
