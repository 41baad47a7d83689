"""Linear layers whose three products are computed in FP8, by torchao, and the product alone.

Each operand is scaled by its own largest value, made anew for each product on the device; activations and
weights are rounded to e4m3, gradients to e5m2 (Micikevicius and others 2022, arXiv:2209.05433). Weights,
results and all other layers stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpubench.measure.quantize import INSTALL, NotQuantizedError, is_whole, why_no_products
from gpubench.profile.blocks import repeated_blocks
from gpubench.workload import one_line

MULTIPLE = 16
"""Of each dimension of a product in FP8: what the tensor cores take."""
_FORWARD = "float8_e4m3fn"


def compute_in_fp8(model: nn.Module, name: str, device: torch.device) -> None:
    """Let the linear layers of the model's blocks compute in FP8; all others stay as they are.

    Called before the model is shared out: a layer that holds a part of its weight is not recognized.

    Args:
        model: Changed in place, wherever it lies.
        name: Of the workload, for the message.
        device: Where it will be run.

    Raises:
        NotQuantizedError: If this torch or device cannot, torchao is absent, or the model has no such layer.
    """
    reason = why_not_here(device)
    if reason is not None:
        raise NotQuantizedError(reason)
    layers = {layer for block in repeated_blocks(model) for layer in block.modules() if _can(layer)}
    if not layers:
        raise NotQuantizedError(
            f"fp8 is of the linear layers in repeated blocks, and {name} has none whose sizes are multiples "
            f"of {MULTIPLE}"
        )
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise NotQuantizedError(
            f"linear layers in fp8 need torchao, which cannot be imported: {INSTALL} ({one_line(error)})"
        ) from None
    convert_to_float8_training(
        model,
        config=Float8LinearConfig(pad_inner_dim=True),  # tokens of a batch may be no multiple of 16
        module_filter_fn=lambda layer, _: layer in layers,
    )


def why_not_here(device: torch.device) -> str | None:
    """Say why this torch cannot multiply in FP8 on a device; None where it can."""

    def multiply() -> object:
        a, b = (torch.ones(MULTIPLE, MULTIPLE, device=device).to(getattr(torch, _FORWARD)) for _ in range(2))
        return scaled_product(a, b.t())

    return why_no_products("FP8", multiply)


def scaled_product(
    a: Tensor, b: Tensor, *, out_type: torch.dtype = torch.bfloat16, out: Tensor | None = None
) -> Tensor:
    """Multiply operands in FP8, its sums in fewer bits, as datasheets count and forward passes allow.

    Shapes:
        a: (M, K), by rows; b: (K, N), by columns; result: (M, N).

    Args:
        a: The left operand; its scale is 1, as that of the other.
        b: The right one.
        out_type: Of the result.
        out: Takes the result, of that type.
    """
    one = torch.ones((), device=a.device)
    product: Tensor = torch._scaled_mm(  # noqa: SLF001 - torch has no other name for it
        a, b, scale_a=one, scale_b=one, use_fast_accum=True, out_dtype=out_type, out=out
    )
    return product


def _can(layer: nn.Module) -> bool:
    """Whether a layer is an ordinary one; one with a forward pass of its own computes something else."""
    return is_whole(layer, MULTIPLE) and type(layer).forward is nn.Linear.forward
