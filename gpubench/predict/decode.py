"""Time of one generated token: weights and cache are read from memory once, plus a fixed time.

Two numbers, fitted on published decode rates of llama.cpp at batch 1 with every GPU left out in turn: the
share of the data sheet's bandwidth that is reached, and a fixed time per token. Other engines are predicted
by the same two numbers and marked as not validated.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from gpubench.arrays import Floats
from gpubench.folders import data_rows
from gpubench.models import DecodeWork, GpuSpec
from gpubench.specs import load_specs

READINGS_FILE = "decode_readings.csv"
VALIDATED_ENGINE = "llama.cpp"
COMPUTE_SHARE = 0.5
"""Products of few rows reach this share of the dense tensor peak; it matters only at large batches, and no
measured row covers it."""


class Decoder(NamedTuple):
    """The bytes of one token of a model whose decode rates were published.

    Attributes:
        weights: Weights that each token reads: all but the embedding.
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
"""Prompt length of each source, as it states it."""


class DecodeReading(NamedTuple):
    """One published rate."""

    gpu_key: str
    model: str
    weight_bits: float
    bytes_read: float
    token_s: float


class DecodeFit(NamedTuple):
    """The fit of ``token_s = bytes / (share x bandwidth) + fixed_s``.

    Attributes:
        half_width: Log factor of the interval: the largest error of a GPU that was left out, each by the
            median of its rows. Twelve GPUs are too few for a quantile.
        errors: |predicted / measured - 1| of every row, its GPU left out.
    """

    share: float
    fixed_s: float
    half_width: float
    errors: tuple[float, ...]


class TokenTime(NamedTuple):
    """Time of one token of every sequence in the batch [s], with the ends of its interval."""

    value: float
    low: float
    high: float


@cache
def decode_readings() -> tuple[DecodeReading, ...]:
    """Read the published rates; a token reads, on average, the cache of half of those generated."""
    return tuple(
        DecodeReading(
            gpu_key=row["gpu_key"],
            model=row["model"],
            weight_bits=float(row["weight_bits"]),
            bytes_read=MODELS[row["model"]].weights * float(row["weight_bits"]) / 8
            + MODELS[row["model"]].cache_bytes
            * (PROMPT_TOKENS[row["source"]] + float(row["generated_tokens"]) / 2),
            token_s=1 / float(row["tokens_per_s"]),
        )
        for row in data_rows(READINGS_FILE)
    )


@cache
def decode_fit() -> DecodeFit:
    """Fit both numbers on every row; take the errors from GPUs left out of the fit."""
    readings = [r for r in decode_readings() if _bandwidth(r.gpu_key)]
    keys = np.array([r.gpu_key for r in readings])
    ideal = np.array([r.bytes_read / _bandwidth(r.gpu_key) for r in readings])
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


def token_time(work: DecodeWork, context_tokens: float, batch_size: int, spec: GpuSpec) -> TokenTime | None:
    """Predict the time of one token of every sequence; None if the card's bandwidth is not known.

    Args:
        work: What one token reads and computes.
        context_tokens: Tokens in the cache of each sequence, on average over the generation.
        batch_size: Sequences side by side: the weights are read once for all of them.
        spec: The card.
    """
    bandwidth = spec.memory_bandwidth_bytes_per_s
    if not bandwidth:
        return None
    fit = decode_fit()
    moved = work.weight_bytes + batch_size * context_tokens * work.cache_bytes_per_token
    reading_s = moved / (fit.share * bandwidth)
    peak = spec.bf16_tensor_flops_per_s or spec.fp16_tensor_flops_per_s or spec.fp32_flops_per_s
    computing_s = batch_size * work.flops_per_token / (COMPUTE_SHARE * peak) if peak else 0.0
    likely = max(reading_s, computing_s) + fit.fixed_s
    factor = math.exp(fit.half_width)
    return TokenTime(likely, likely / factor, likely * factor)


def _bandwidth(key: str) -> float:
    spec = load_specs().get(key)
    return 0.0 if spec is None else spec.memory_bandwidth_bytes_per_s or 0.0


def _least_squares(ideal: Floats, measured: Floats) -> tuple[float, float]:
    """Return slope and constant with the least squared relative error; neither is below 0."""
    weighed = np.stack([ideal / measured, 1 / measured], axis=1)
    (slope, fixed), *_ = np.linalg.lstsq(weighed, np.ones(len(measured)), rcond=None)
    if fixed < 0:
        return float((ideal / measured).sum() / ((ideal / measured) ** 2).sum()), 0.0
    return float(slope), float(fixed)
