"""Named random numbers from a counter-based generator, which the page's script also implements.

Each number is a hash of seed, names and index, so a named quantity has the same draws everywhere, in Python
and on the page. The hash is 32-bit FNV-1a of seed and names (the key), then the finalizer of MurmurHash3 over
index and key. A normal number is the inverse normal distribution function at a uniform one.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from gpubench.arrays import Floats

# 2^32 divided by the golden ratio: it spreads consecutive indices.
_GOLDEN = np.uint32(0x9E3779B9)
# Wichura 1988, Algorithm AS 241, PPND7: about seven digits of the normal number.
_CENTRAL, _TAIL = 0.425, 5.0
INVERSE_NORMAL = {
    "near": (
        (59.109374720, 159.29113202, 50.434271938, 3.3871327179),
        (67.187563600, 78.757757664, 17.895169469, 1),
    ),
    "far": (
        (0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777),
        (0.12021132975, 0.73700164250, 1),
    ),
    "farthest": (
        (0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150),
        (0.012258202635, 0.24197894225, 1),
    ),
}
"""Coefficients of numerator and denominator: near the median, far from it, and farthest."""


def uniforms(n: int, seed: int, *names: str) -> Floats:
    """Return (n,) uniform numbers between 0 and 1, both excluded.

    Args:
        n: Number of draws.
        seed: Equal seeds give equal numbers.
        names: Names of the drawn quantity.
    """
    key = 0x811C9DC5
    for byte in "\0".join((str(seed), *names)).encode("utf-8", errors="replace"):
        key = ((key ^ byte) * 0x01000193) & 0xFFFFFFFF
    mixed = _mixed(
        _mixed(np.arange(1, n + 1, dtype=np.uint32) * _GOLDEN) ^ _mixed(np.array([key], np.uint32))
    )
    return np.asarray((mixed + 0.5) / 2.0**32, dtype=np.float64)


def normals(n: int, seed: int, *names: str) -> Floats:
    """Return (n,) standard normal numbers; arguments as in ``uniforms``."""
    p = uniforms(n, seed, *names)
    q = p - 0.5
    r = np.sqrt(-np.log(np.minimum(p, 1 - p)))
    outer = np.where(r <= _TAIL, _ratio("far", r - 1.6), _ratio("farthest", r - _TAIL))
    inner = q * _ratio("near", 0.180625 - q * q)
    return np.where(np.abs(q) <= _CENTRAL, inner, np.copysign(outer, q))


def _mixed(
    x: np.ndarray[tuple[int, ...], np.dtype[np.uint32]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def _ratio(name: str, x: Floats) -> Floats:
    # Horner's rule; numpy's polyval takes longer for so few numbers.
    above, below = (reduce(lambda y, each: y * x + each, of, np.zeros_like(x)) for of in INVERSE_NORMAL[name])
    return np.asarray(above / below)
