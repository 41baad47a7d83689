"""The time to generate one token: reading weights and cache from memory once, plus a fixed time.

Two numbers are fitted to 58 published decode rates of llama.cpp at batch 1 on 12 GPUs: the share of the
datasheet's bandwidth that is reached, and a fixed time per token. Other engines are predicted with the same
two numbers and marked as not validated. ``tests/decode_fit.py`` has the fit; a test checks that it still
gives these numbers.
"""

from __future__ import annotations

import math

from gpubench.models import DecodeWork, GpuSpec

VALIDATED_ENGINE = "llama.cpp"
BANDWIDTH_SHARE = 0.931137888108705
"""Share of the datasheet's bandwidth reached when reading weights and cache."""
FIXED_S = 0.0033595253159264837
"""Fixed time per token [s]."""
HALF_WIDTH = 0.3414250190429823
"""Log half-width of the interval: the largest, over all GPUs, of the median error on the rows of a GPU that
was left out of the fit."""
FACTOR = math.exp(HALF_WIDTH)
"""Ratio of a time to the lower end of its interval, and of the upper end to the time."""
COMPUTE_SHARE = 0.5
"""Assumed share of the dense tensor peak that matrix products with few rows reach. It matters only at large
batches, which no published row covers."""


def token_time(work: DecodeWork, context_tokens: float, batch_size: int, spec: GpuSpec) -> float | None:
    """Predict the time to generate one token for every sequence [s]; None if the bandwidth is unknown.

    Args:
        work: Bytes to read and FLOPs to compute for one token.
        context_tokens: Tokens in the cache of each sequence, on average over the generation.
        batch_size: Sequences generated in parallel; the weights are read once for all of them.
        spec: The card.
    """
    bandwidth = spec.memory_bandwidth_bytes_per_s
    if not bandwidth:
        return None
    moved = work.weight_bytes + batch_size * context_tokens * work.cache_bytes_per_token
    reading_s = moved / (BANDWIDTH_SHARE * bandwidth)
    peak = spec.bf16_tensor_flops_per_s or spec.fp16_tensor_flops_per_s or spec.fp32_flops_per_s
    computing_s = batch_size * work.flops_per_token / (COMPUTE_SHARE * peak) if peak else 0.0
    return max(reading_s, computing_s) + FIXED_S
