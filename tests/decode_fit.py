"""The fit of generated tokens to published rates, and its errors with each GPU left out."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from gpubench.arrays import Floats
from gpubench.specs import load_specs
from tools.published import published_rows


class Decoder(NamedTuple):
    """The bytes of one token of a model with published decode rates.

    Attributes:
        weights: Weights that each token reads: all except the embedding.
        cache_bytes: Keys and values of one token, at 16 bits [B].
    """

    weights: float
    cache_bytes: float


MODELS = {
    "llama2_7b": Decoder(6.738e9 - 32_000 * 4096, 2 * 2 * 32 * 4096),
    "llama2_70b": Decoder(68.98e9 - 32_000 * 8192, 2 * 2 * 80 * 1024),
    "llama3_8b": Decoder(8.030e9 - 128_256 * 4096, 2 * 2 * 32 * 1024),
}
PROMPT_TOKENS = {"xiongjiedai-llamacpp-2023-12": 150, "xiongjiedai-llamacpp-2024-05": 0}
"""Prompt length of each source, as the source states it."""


class DecodeReading(NamedTuple):
    """One published rate."""

    gpu_key: str
    bytes_read: float
    token_s: float


class DecodeFit(NamedTuple):
    """The fit of ``token_s = bytes / (share x bandwidth) + fixed_s``.

    Attributes:
        half_width: Log factor of the interval: the largest error of a GPU that was left out, each by the
            median of its rows. Twelve GPUs are too few for a quantile.
        errors: |predicted / measured - 1| of every row, with its GPU left out.
    """

    share: float
    fixed_s: float
    half_width: float
    errors: tuple[float, ...]


@cache
def decode_readings() -> tuple[DecodeReading, ...]:
    """Read the published rates; on average, a token reads the cache of half of the generated tokens."""
    return tuple(
        DecodeReading(
            gpu_key=row["gpu_key"],
            bytes_read=MODELS[row["model"]].weights * float(row["weight_bits"]) / 8
            + MODELS[row["model"]].cache_bytes
            * (PROMPT_TOKENS[row["source"]] + float(row["generated_tokens"]) / 2),
            token_s=1 / float(row["tokens_per_s"]),
        )
        for row in published_rows("decode_readings.csv")
    )


@cache
def decode_fit() -> DecodeFit:
    """Fit both numbers to every row; take the errors from GPUs left out of the fit."""
    readings = decode_readings()
    keys = np.array([r.gpu_key for r in readings])
    ideal = np.array([r.bytes_read / load_specs()[r.gpu_key].memory_bandwidth_bytes_per_s for r in readings])
    measured = np.array([r.token_s for r in readings])
    errors = np.zeros(len(readings))
    worst = []
    for key in sorted({*keys.tolist()}):
        out = keys == key
        slope, fixed = _least_squares(ideal[~out], measured[~out])
        ratio = (slope * ideal[out] + fixed) / measured[out]
        errors[out] = np.abs(ratio - 1)
        worst.append(float(np.median(np.abs(np.log(ratio)))))
    slope, fixed = _least_squares(ideal, measured)
    return DecodeFit(1 / slope, fixed, half_width=max(worst), errors=tuple(errors.tolist()))


def _least_squares(ideal: Floats, measured: Floats) -> tuple[float, float]:
    """Return slope and constant with the least squared relative error; neither is below 0."""
    weighed = np.stack([ideal / measured, 1 / measured], axis=1)
    (slope, fixed), *_ = np.linalg.lstsq(weighed, np.ones(len(measured)), rcond=None)
    if fixed < 0:
        return float((ideal / measured).sum() / ((ideal / measured) ** 2).sum()), 0.0
    return float(slope), float(fixed)
