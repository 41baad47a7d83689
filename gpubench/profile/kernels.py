"""FLOPs and bytes of one operator, from the shapes it is called with.

FLOPs are 2 per multiply-add; of a convolution they are counted from shapes, because torch's own counter
counts the backward pass of grouped convolutions several times over. Bytes are inputs plus outputs at 4 bytes
per element; views move nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpubench.models import OperatorKind

if TYPE_CHECKING:
    from torch import Tensor

BYTES_PER_ELEMENT = 4
DEPTHWISE_MAX_CHANNELS = 4
"""A grouped convolution with at most so many input channels per group counts as depthwise."""


@dataclass(frozen=True)
class Kernel:
    """One operator at one batch size."""

    kind: OperatorKind
    flops: float
    bytes: float


def kernels_of(name: str, is_view: bool, args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    """Cost of one aten call, as the kernels a GPU would run for it.

    Args:
        name: Of the operator, without overload: ``addmm``.
        is_view: Whether the output is a window on an input.
        args: Its positional arguments.
        out: What it returned.
    """
    if is_view or name in _FREE:
        return ()
    special = _SPECIAL.get(name)
    if special is not None:
        return special(args, out)
    return (Kernel(OperatorKind.MEMORY, 0.0, moved(args, out)),)


def moved(*values: Any) -> float:
    """Bytes of all tensors in these arguments; an expanded tensor counts what is stored of it."""
    stored = (
        min(t.numel(), t.untyped_storage().nbytes() // max(1, t.element_size())) for t in _tensors(values)
    )
    return float(BYTES_PER_ELEMENT * sum(stored))


def matmul(m: int, n: int, k: int) -> Kernel:
    """Product of (m, k) and (k, n)."""
    elements = m * k + k * n + m * n
    return Kernel(OperatorKind.MATMUL, 2.0 * m * n * k, float(BYTES_PER_ELEMENT * elements))


def memory(elements: float) -> Kernel:
    """An operator that only reads and writes so many elements."""
    return Kernel(OperatorKind.MEMORY, 0.0, BYTES_PER_ELEMENT * elements)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


# --- operators that are not simply inputs plus outputs -----------------------------------------------------


def _two_dimensional(first: int) -> Callable[[Sequence[Any], Any], tuple[Kernel, ...]]:
    """Cost of mm and addmm, whose factors start at this argument."""

    def cost(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
        left, right = args[first], args[first + 1]
        flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
        return (Kernel(OperatorKind.MATMUL, flops, moved(args, out)),)

    return cost


def _batched(first: int) -> Callable[[Sequence[Any], Any], tuple[Kernel, ...]]:
    """Cost of bmm and baddbmm, whose factors start at this argument."""

    def cost(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
        left, right = args[first], args[first + 1]
        flops = 2.0 * left.shape[0] * left.shape[1] * left.shape[2] * right.shape[2]
        return (Kernel(OperatorKind.MATMUL, flops, moved(args, out)),)

    return cost


def _convolution(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
    kind = _convolution_kind(weight, stride, dilation, transposed, groups)
    return (Kernel(kind, _convolution_flops(x, weight, out, transposed), moved(x, weight, out)),)


def _convolution_backward(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    """Data gradient and weight gradient; the bias gradient, a sum, goes with the latter."""
    grad, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args[:11]
    kind = _convolution_kind(weight, stride, dilation, transposed, groups)
    flops = _convolution_flops(x, weight, grad, transposed)
    kernels = []
    if wanted[0]:
        kernels.append(Kernel(kind, flops, moved(grad, weight, out[0])))
    if wanted[1]:
        kernels.append(Kernel(kind, flops, moved(grad, x, out[1], out[2])))
    return tuple(kernels)


def _convolution_flops(x: Tensor, weight: Tensor, out: Tensor, transposed: bool) -> float:
    """2 x outputs x (input channels per group) x kernel area; the other way round when transposed."""
    positions = x.numel() if transposed else out.numel()
    return 2.0 * positions * weight[0].numel()


def _convolution_kind(
    weight: Tensor, stride: Sequence[int], dilation: Sequence[int], transposed: bool, groups: int
) -> OperatorKind:
    if groups > 1 and weight.shape[1] <= DEPTHWISE_MAX_CHANNELS:
        return OperatorKind.DEPTHWISE
    plain = not transposed and set(stride) == {1} and set(dilation) == {1}
    return OperatorKind.CONV3X3 if plain and tuple(weight.shape[2:]) == (3, 3) else OperatorKind.CONV


def _batch_norm(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    """In training its input is read twice: for the statistics, and to apply them."""
    training = next(a for a in args if isinstance(a, bool))
    again = moved(args[0]) if training else 0.0
    return (Kernel(OperatorKind.MEMORY, 0.0, moved(args, out) + again),)


def _batch_norm_backward(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    """Its input is read for the two sums and again for the result."""
    return (Kernel(OperatorKind.MEMORY, 0.0, moved(args, out) + moved(args[1])),)


_FREE = frozenset({
    "_unsafe_view", "detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "sym_size", "sym_numel", "_local_scalar_dense", "set_", "_reshape_alias",
})  # fmt: skip
"""Operators that launch no kernel."""

_SPECIAL: dict[str, Callable[[Sequence[Any], Any], tuple[Kernel, ...]]] = {
    "mm": _two_dimensional(0),
    "addmm": _two_dimensional(1),
    "bmm": _batched(0),
    "baddbmm": _batched(1),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}
