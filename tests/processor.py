"""What the processor under the tests can compute: it differs from machine to machine."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from gpubench.probe.cpu import BACKEND


@cache
def has_bf16() -> bool:
    """Whether a run at AMP is offered on this CPU."""
    return "bf16" in BACKEND.profile().tensor_core_precisions


@cache
def runs_lstm(dtype: torch.dtype) -> bool:
    """Whether oneDNN has an LSTM of a type for this CPU: bf16 wants AVX-512, and fp16 more."""
    layer = nn.LSTM(16, 16, dtype=dtype)
    try:
        layer(torch.zeros(4, 2, 16, dtype=dtype))
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        return False
    return True
