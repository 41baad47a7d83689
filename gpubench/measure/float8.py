"""Linear layers whose three products are computed in FP8, each operand scaled by its own largest value.

Activations and weights are rounded to e4m3, gradients to e5m2 (Micikevicius and others 2022,
arXiv:2209.05433); scales are made anew for each product, on the device. Weights, results and all other layers
stay as they are.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpubench.measure.quantize import NotQuantizedError
from gpubench.profile.blocks import repeated_blocks
from gpubench.workload import lacks_memory, one_line

MULTIPLE = 16
"""Of each dimension of a product in FP8: what the tensor cores take."""
_FORWARD, _BACKWARD = "float8_e4m3fn", "float8_e5m2"


def compute_in_fp8(model: nn.Module, name: str, device: torch.device) -> None:
    """Let the linear layers of the model's blocks compute in FP8; all others stay as they are.

    Args:
        model: On the device, changed in place.
        name: Of the workload, for the message.
        device: Where it lies.

    Raises:
        NotQuantizedError: If this torch or device cannot, or the model has no such layer.
    """
    reason = why_not_here(device)
    if reason is not None:
        raise NotQuantizedError(reason)
    layers = [layer for block in repeated_blocks(model) for layer in block.modules() if _can(layer)]
    if not layers:
        raise NotQuantizedError(
            f"fp8 is of the linear layers in repeated blocks, and {name} has none whose sizes are multiples "
            f"of {MULTIPLE}"
        )
    for layer in layers:
        layer.forward = MethodType(_forward, layer)


def why_not_here(device: torch.device) -> str | None:
    """Say why this torch cannot multiply in FP8 on a device; None where it can."""
    try:
        a, b = (torch.ones(MULTIPLE, MULTIPLE, device=device).to(getattr(torch, _FORWARD)) for _ in range(2))
        scaled_product(a, b.t(), out_type=torch.bfloat16)
    except (AttributeError, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        if lacks_memory(error):
            raise
        return f"torch {torch.__version__} has no FP8 products on this device: {one_line(error)}"
    return None


def scaled_product(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    *,
    out_type: torch.dtype | None = None,
    out: Tensor | None = None,
    fast: bool = True,
) -> Tensor:
    """Multiply operands in FP8.

    Shapes:
        a: (M, K), by rows; b: (K, N), by columns; scales: () float32, 1 where none is given; result: (M, N).

    Args:
        a: The left operand.
        b: The right one.
        scale_a: What the true left operand is of ``a``.
        scale_b: The same of ``b``.
        out_type: Of the result; None is that of ``out``.
        out: Takes the result.
        fast: Whether sums are kept in fewer bits, as datasheets count and forward passes allow.
    """
    one = torch.ones((), device=a.device)
    scale_a, scale_b = (one if scale is None else scale for scale in (scale_a, scale_b))
    options: dict[str, Any] = {"out_dtype": out_type} if out is None else {"out": out, "out_dtype": out.dtype}
    product: Tensor = torch._scaled_mm(  # noqa: SLF001 - torch has no other name for it
        a, b, scale_a=scale_a, scale_b=scale_b, use_fast_accum=fast, **options
    )
    return product


def _can(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Linear) or type(layer.weight.data) is not torch.Tensor:
        return False
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    rows = x.reshape(-1, layer.in_features)
    out: Tensor = _Linear.apply(rows, layer.weight)  # type: ignore[no-untyped-call]
    out = out.reshape(*x.shape[:-1], layer.out_features)
    bias: Tensor | None = layer.bias
    return out if bias is None else out + bias


class _Linear(torch.autograd.Function):
    """``x @ weight.T`` and its gradients, for x of (M, K) and weights of (N, K)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        (a, scale_a), (b, scale_b) = _rounded(x, _FORWARD), _rounded(weight, _FORWARD)
        return scaled_product(a.contiguous(), b.contiguous().t(), scale_a, scale_b, out_type=weight.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient, scale = _rounded(gradients[0], _BACKWARD)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            b, scale_b = _rounded(weight, _FORWARD)
            of_x = scaled_product(
                gradient.contiguous(), _by_columns(b), scale, scale_b, out_type=x.dtype, fast=False
            )
        if ctx.needs_input_grad[1]:
            b, scale_b = _rounded(x, _FORWARD)
            a, b = (_filled(each) for each in (gradient, b))
            of_weight = scaled_product(
                a.t().contiguous(), _by_columns(b), scale, scale_b, out_type=weight.dtype, fast=False
            )
        return of_x, of_weight


def _rounded(x: Tensor, type_name: str) -> tuple[Tensor, Tensor]:
    """Round to a type of 8 bits, and say by what the result is to be multiplied."""
    dtype = getattr(torch, type_name)
    most = torch.finfo(dtype).max
    # In the type of the tensor, so that what divides and what multiplies are the very same number.
    scale = (x.detach().abs().amax().float().clamp(min=1e-12) / most).to(x.dtype)
    return (x / scale).clamp(-most, most).to(dtype), scale.float()


def _by_columns(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def _filled(x: Tensor) -> Tensor:
    """Rows of zeros up to a multiple of what a product takes; they add nothing to its sums."""
    missing = -len(x) % MULTIPLE
    return functional.pad(x.view(torch.uint8), (0, 0, 0, missing)).view(x.dtype) if missing else x
