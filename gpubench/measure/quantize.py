"""Weights in fewer bits, by torchao: each linear layer keeps its type of activations."""

from __future__ import annotations

import torch
from torch import nn

from gpubench.errors import GpuBenchError
from gpubench.models import WeightType
from gpubench.workload import lacks_memory, one_line

INSTALL = "pip install 'gpubench[quantized]'"
QUANTIZED = frozenset({WeightType.INT8, WeightType.INT4})
GROUP = 128
"""Weights that share a scale and a zero point at 4 bits."""


class NotQuantizedError(GpuBenchError):
    """The weights cannot be held in so few bits here; they are never held in more under that name."""


def quantize(model: nn.Module, weight_type: WeightType) -> None:
    """Replace the weights of the model's linear layers, where they lie.

    Raises:
        NotQuantizedError: With the reason: torchao is absent, or has no kernel for this device.
    """
    try:
        from torchao import quantization
    except ImportError:
        raise NotQuantizedError(
            f"{weight_type} weights need torchao, which is not installed: {INSTALL}"
        ) from None
    try:
        if weight_type is WeightType.INT8:
            config = quantization.Int8WeightOnlyConfig()
        else:
            config = quantization.Int4WeightOnlyConfig(
                group_size=GROUP, int4_packing_format="tile_packed_to_4d"
            )
        quantization.quantize_(model, config)
        _refuse_unchanged(model, weight_type)
    except (ImportError, TypeError, ValueError, AssertionError, NotImplementedError, RuntimeError) as error:
        if lacks_memory(error):
            raise
        raise NotQuantizedError(
            f"torchao has no {weight_type} weights for this device: {one_line(error)}"
        ) from error


def _refuse_unchanged(model: nn.Module, weight_type: WeightType) -> None:
    """A library that leaves layers as they are, without a word, has quantized nothing."""
    plain = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and type(layer.weight.data) is torch.Tensor
    ]
    if plain:
        raise NotImplementedError(f"{plain[0]} was left as it was, not in {weight_type}")
