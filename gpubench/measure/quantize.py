"""Weights in fewer bits, by torchao: each linear layer keeps its type of activations."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gpubench.errors import GpuBenchError
from gpubench.models import Case, ParallelMode, WeightType
from gpubench.profile.blocks import frozen_layers
from gpubench.workload import lacks_memory, one_line

INSTALL = "pip install 'gpubench[quantized]'"
QUANTIZED = frozenset({WeightType.INT8, WeightType.INT4})
GROUP = 128
"""Weights that share a scale and a zero point at 4 bits."""


BLOCK = 64
"""Weights of NF4 that share a scale."""
SCALES = 256
"""Scales of NF4 that share a factor, where a layer has as many."""


class NotQuantizedError(GpuBenchError):
    """So few bits cannot be had here, of weights or of products; none are held in more under that name."""


def quantize(model: nn.Module, weight_type: WeightType) -> None:
    """Replace the weights of the model's linear layers, where they lie.

    Raises:
        NotQuantizedError: With the reason: torchao is absent, or has no kernel for this device.
    """
    quantization = _torchao(weight_type)
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


def place_narrow(model: nn.Module, case: Case, device: torch.device) -> None:
    """Put the frozen layers of a model's blocks on the device in NF4, one after the other.

    A card never holds the whole of it at 16 bits: it may not have the room.

    Raises:
        NotQuantizedError: As ``quantize``; or the case shards the model, or has nothing that is frozen.
    """
    if case.parallel_mode is ParallelMode.FSDP:
        raise NotQuantizedError("a base in nf4 is not sharded over GPUs: use --jobs ddp")
    layers = frozen_layers(model)
    if not layers:
        raise NotQuantizedError(f"{case.workload} has no frozen linear layer that could lie in nf4")
    quantization = _torchao(WeightType.NF4)
    for layer in layers:
        blocks = layer.weight.numel() // BLOCK
        try:
            narrow = quantization.to_nf4(layer.weight.detach().to(device), BLOCK, math.gcd(blocks, SCALES))
        except (TypeError, ValueError, AssertionError, NotImplementedError, RuntimeError) as error:
            if lacks_memory(error):
                raise
            raise NotQuantizedError(
                f"torchao has no nf4 for a layer of {tuple(layer.weight.shape)} on this device: "
                f"{one_line(error)}"
            ) from error
        layer.weight = nn.Parameter(narrow, requires_grad=False)


def _torchao(weight_type: WeightType) -> Any:
    try:
        from torchao import quantization
    except ImportError:
        raise NotQuantizedError(
            f"{weight_type} weights need torchao, which is not installed: {INSTALL}"
        ) from None
    if weight_type is WeightType.NF4 and not hasattr(quantization, "to_nf4"):
        raise NotQuantizedError(f"this torchao has no nf4 weights: {INSTALL}")
    return quantization


def _refuse_unchanged(model: nn.Module, weight_type: WeightType) -> None:
    """A library that leaves layers as they are, without a word, has quantized nothing."""
    plain = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and type(layer.weight.data) is torch.Tensor
    ]
    if plain:
        raise NotImplementedError(f"{plain[0]} was left as it was, not in {weight_type}")
