"""Converts linear layers to fewer bits with torchao: weights only, or weights and activations.

In FP8, each operand of a layer's three products is scaled by its own largest value, computed on the device
for each product. Activations and weights are rounded to e4m3, gradients to e5m2 (Micikevicius and others
2022, arXiv:2209.05433). Stored weights, results and all other layers keep their types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn

from gpubench.foreign_code import lacks_memory, one_line
from gpubench.installing import pip_install
from gpubench.measure.capability import NotHereError
from gpubench.models import Case, ParallelMode, WeightType
from gpubench.profile.blocks import SCALES_PER_FACTOR, WEIGHTS_PER_SCALE, frozen_layers, repeated_blocks

# The weight types to which ``quantize`` converts.
QUANTIZED = frozenset({WeightType.INT8, WeightType.INT4})
GROUP = 128
"""Number of weights that share a scale and a zero point at 4 bits."""
INT8_MULTIPLE = 8
"""Both sizes of an int8 layer must be multiples of this; torchao computes other layers on the host."""
FP8_MULTIPLE = 16
"""Each dimension of an FP8 product must be a multiple of this, as tensor cores require."""


def quantize(model: nn.Module, weight_type: WeightType) -> None:
    """Quantize the weights of the model's linear layers in place.

    Raises:
        NotHereError: If torchao is missing, or has no kernel for this device.
    """
    quantization = _torchao(weight_type)
    with refusing(f"torchao has no {weight_type} weights for this device"):
        if weight_type is WeightType.INT8:
            config = quantization.Int8WeightOnlyConfig()
        else:
            config = quantization.Int4WeightOnlyConfig(
                group_size=GROUP, int4_packing_format="tile_packed_to_4d"
            )
        quantization.quantize_(model, config)
        left = [name for name, layer in model.named_modules() if is_unquantized_linear(layer)]
        if left:  # torchao may silently leave layers unquantized
            raise NotImplementedError(f"{left[0]} was not converted to {weight_type}")


def compute_in_int8(model: nn.Module, name: str, device: torch.device) -> None:
    """Make the linear layers compute in 8 bits: weights are rounded once, activations in each pass.

    Weights are scaled per output, activations per row, each by its largest value (Zafrir and others 2019,
    arXiv:1910.06188, use one scale per tensor). All other layers stay unchanged.

    Args:
        model: The model on the device, changed in place.
        name: The workload's name, for the message.
        device: The model's device.

    Raises:
        NotHereError: If torchao is missing, this torch or device has no int8 products, or the model has no
            suitable layer.
    """
    quantization = _torchao("int8", "products")
    layers = {layer for layer in model.modules() if is_unquantized_linear(layer, INT8_MULTIPLE)}
    if not layers:
        raise NotHereError(
            f"int8 applies to linear layers, and {name} has none in full precision with sizes that are "
            f"multiples of {INT8_MULTIPLE}"
        )
    if (reason := why_no_products("int8", device)) is not None:
        raise NotHereError(reason)
    with refusing("torchao has no int8 layers for this device"):
        # By default, torchao's compiler settings, such as TF32, would persist for all later cases.
        config = quantization.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
        quantization.quantize_(model, config, filter_fn=lambda layer, _: layer in layers)
    if any(is_unquantized_linear(layer) for layer in layers):
        raise NotHereError(f"torchao did not convert a linear layer of {name} to int8")


def why_no_products(kind: Literal["int8", "FP8"], device: torch.device) -> str | None:
    """Say why this torch cannot multiply in 8 bits on a device; None if it can."""
    try:
        with refusing(f"torch {torch.__version__} has no {kind} products on this device"):
            if kind == "int8":
                ones = torch.ones(32, 32, dtype=torch.int8, device=device)
                multiply_int8(ones, ones)
            else:
                ones = torch.ones(FP8_MULTIPLE, FP8_MULTIPLE, device=device).to(torch.float8_e4m3fn)
                scaled_product(ones, ones.t())
    except NotHereError as error:
        return str(error)
    return None


@contextmanager
def refusing(words: str) -> Iterator[None]:
    """Turn an error into a ``NotHereError`` with these words and its own; out-of-memory errors pass through.

    Raises:
        NotHereError: For every kind of error that torch and torchao raise if they lack the requested type.
    """
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError, AssertionError, RuntimeError) as error:
        if lacks_memory(error):
            raise
        raise NotHereError(f"{words}: {one_line(error)}") from error


def multiply_int8(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply matrices of 8-bit integers.

    Shapes:
        a: (M, K) int8, with more than 16 rows on a GPU; b: (K, N) int8; out and result: (M, N) int32.
    """
    return torch._int_mm(a, b, out=out)  # noqa: SLF001 - torch has no public name for it


def is_unquantized_linear(layer: nn.Module, multiple: int = 1) -> TypeGuard[nn.Linear]:
    """Return whether a layer is linear and unquantized, with both sizes divisible by ``multiple``."""
    if not isinstance(layer, nn.Linear) or type(layer.weight.data) is not torch.Tensor:
        return False
    return layer.in_features % multiple == 0 and layer.out_features % multiple == 0


def place_in_nf4(model: nn.Module, case: Case, device: torch.device) -> None:
    """Move the frozen layers of a model's blocks to the device in NF4, one after another.

    The device never holds the whole model at 16 bits, because it may lack the memory for that.

    Raises:
        NotHereError: As in ``quantize``, or if the case shards the model or has no frozen layer.
    """
    if case.parallel_mode is ParallelMode.FSDP:
        raise NotHereError("a base model in nf4 is not sharded over GPUs: use --jobs ddp")
    layers = frozen_layers(model)
    if not layers:
        raise NotHereError(f"{case.workload} has no frozen linear layer that could be stored in nf4")
    quantization = _torchao(WeightType.NF4)
    for layer in layers:
        blocks = layer.weight.numel() // WEIGHTS_PER_SCALE
        with refusing(f"torchao has no nf4 for a layer of {tuple(layer.weight.shape)} on this device"):
            weight = quantization.to_nf4(
                layer.weight.detach().to(device), WEIGHTS_PER_SCALE, math.gcd(blocks, SCALES_PER_FACTOR)
            )
        layer.weight = nn.Parameter(weight, requires_grad=False)


def _torchao(weight_type: str, what: str = "weights") -> Any:
    if find_spec("torchao") is None:
        raise NotHereError(
            f"{weight_type} {what} need torchao, which is not installed: {pip_install('torchao')}"
        )
    with refusing(f"the installed torchao does not work with torch {torch.__version__}"):
        from torchao import quantization
    if weight_type is WeightType.NF4 and not hasattr(quantization, "to_nf4"):
        raise NotHereError(f"this torchao has no nf4 weights: {pip_install('torchao')}")
    return quantization


def compute_in_fp8(model: nn.Module, name: str, device: torch.device) -> None:
    """Make the linear layers of the model's blocks compute in FP8; all other layers stay unchanged.

    Call this before the model is sharded: a layer with only a part of its weight is not recognized.

    Args:
        model: The model on any device, changed in place.
        name: The workload's name, for the message.
        device: The device on which the model will run.

    Raises:
        NotHereError: If this torch or device has no FP8 products, torchao is missing, or the model has no
            suitable layer.
    """
    if (reason := why_no_products("FP8", device)) is not None:
        raise NotHereError(reason)
    layers = {
        layer
        for block in repeated_blocks(model)
        for layer in block.modules()
        # A subclass with its own forward pass may compute something else.
        if is_unquantized_linear(layer, FP8_MULTIPLE) and type(layer).forward is nn.Linear.forward
    }
    if not layers:
        raise NotHereError(
            f"fp8 applies to linear layers in repeated blocks, and {name} has none with sizes that are "
            f"multiples of {FP8_MULTIPLE}"
        )
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise NotHereError(
            f"linear layers in fp8 need torchao, which cannot be imported: {pip_install('torchao')} "
            f"({one_line(error)})"
        ) from None
    convert_to_float8_training(
        model,
        config=Float8LinearConfig(pad_inner_dim=True),  # a batch's tokens may not be a multiple of 16
        module_filter_fn=lambda layer, _: layer in layers,
    )


def scaled_product(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiply operands in FP8 with fast accumulation, which datasheets assume and forward passes allow.

    Shapes:
        a: (M, K), by rows; b: (K, N), by columns; result: (M, N) bfloat16.

    Args:
        a: The left operand, with a scale of 1.
        b: The right operand, with a scale of 1.
        out: Receives the result.
    """
    one = torch.ones((), device=a.device)
    product: Tensor = torch._scaled_mm(  # noqa: SLF001 - torch has no public name for it
        a, b, scale_a=one, scale_b=one, use_fast_accum=True, out_dtype=torch.bfloat16, out=out
    )
    return product
