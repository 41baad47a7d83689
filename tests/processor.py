"""What the processor under the tests can compute; this differs between machines."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn


@cache
def runs_lstm(dtype: torch.dtype) -> bool:
    """Whether oneDNN has an LSTM for this CPU that trains under autocast to a type: bf16 needs AVX-512, fp16 more."""
    layer = nn.LSTM(16, 16)
    try:
        with torch.autocast("cpu", dtype=dtype):
            layer(torch.zeros(4, 2, 16))
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        return False
    return True
