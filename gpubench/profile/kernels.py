"""The kernels that a GPU would run for each operator: FLOPs and bytes, from the shapes of its arguments.

FLOPs are 2 per multiply-add, 8 per complex one; for a convolution they are computed from shapes, because
torch's own counter counts the backward pass of grouped convolutions several times. Bytes are inputs plus
outputs at 4 bytes per element, 8 per complex one; views move nothing.

Some library calls are a few kernels on a GPU but many on the meta device; they are recorded as on a GPU. A
fused RNN (cuDNN) is recorded as its GEMMs: the input products over the whole sequence at once, the recurrent
products step by step, reading the weights each time, and one gradient product per weight. Scaled dot-product
attention keeps no matrix of scores. Dropout is one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gpubench.models import OperatorKind
from gpubench.tensors import replaced, tensors_in

BYTES_PER_ELEMENT = 4
DEPTHWISE_MAX_CHANNELS = 4
"""A grouped convolution with at most this many input channels per group counts as depthwise."""


@dataclass(frozen=True)
class Kernel:
    """The cost of one kernel at one batch size."""

    kind: OperatorKind
    flops: float
    bytes: float


def kernels_of(name: str, is_view: bool, args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    """Return the kernels that a GPU would run for one aten call.

    Args:
        name: Name of the operator, without overload: ``addmm``.
        is_view: Whether the output is a view of an input.
        args: Positional arguments of the call.
        out: Result of the call.
    """
    if is_view or name in _FREE:
        return ()
    if name in _SPECIAL:
        return _SPECIAL[name](args, out)
    return (Kernel(OperatorKind.MEMORY, 0.0, moved(args, out)),)


def moved(*values: Any) -> float:
    """Return the bytes of all tensors in these arguments; an expanded tensor counts only its storage."""
    stored = (
        min(t.numel(), t.untyped_storage().nbytes() // max(1, t.element_size())) * (1 + t.is_complex())
        for t in tensors_in(values)
    )
    return float(BYTES_PER_ELEMENT * sum(stored))


def matmul(m: int, n: int, k: int) -> Kernel:
    """Return the kernel that multiplies (m, k) by (k, n)."""
    elements = m * k + k * n + m * n
    return Kernel(OperatorKind.MATMUL, 2.0 * m * n * k, float(BYTES_PER_ELEMENT * elements))


def memory(elements: float) -> Kernel:
    """Return a kernel that only reads and writes this many elements."""
    return Kernel(OperatorKind.MEMORY, 0.0, BYTES_PER_ELEMENT * elements)


# --- operators that are not simply inputs plus outputs -----------------------------------------------------


def _product(first: int) -> Callable[[Sequence[Any], Any], tuple[Kernel, ...]]:
    # The cost function of a product of matrices; the left factor is argument ``first``.

    def cost(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
        left, right = args[first], args[first + 1]
        # In a grouped product, each left matrix multiplies only some columns of a single matrix on the right,
        # so the number of groups is no factor
        summed = left.shape[-right.ndim :]
        flops = (8.0 if left.is_complex() else 2.0) * math.prod(summed) * right.shape[-1]
        return (Kernel(OperatorKind.MATMUL, flops * _density(left) * _density(right), moved(args, out)),)

    return cost


def _density(factor: Tensor) -> float:
    # The share of a matrix that is stored: 1 unless it is sparse.
    *_, values = tensors_in([factor])
    return values.numel() / max(1, factor.numel())


def _convolution(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
    kind = _convolution_kind(weight, stride, dilation, transposed, groups)
    return (Kernel(kind, _convolution_flops(x, weight, out, transposed), moved(x, weight, out)),)


def _convolution_backward(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    """Return the kernels of the data gradient and the weight gradient, which includes the bias gradient."""
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
    # 2 x outputs x (input channels per group) x kernel area; inputs and outputs are swapped if transposed
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
    # In training the input is read twice: for the statistics, and to apply them.
    is_training = next(a for a in args if isinstance(a, bool))
    return (Kernel(OperatorKind.MEMORY, 0.0, moved(args, args[:1] if is_training else (), out)),)


def _batch_norm_backward(args: Sequence[Any], out: Any) -> tuple[Kernel, ...]:
    # The input is read for the two sums and again for the result
    return (Kernel(OperatorKind.MEMORY, 0.0, moved(args, args[1], out)),)


# Operators that launch no kernel
_FREE = frozenset({
    "_unsafe_view", "detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty",
    "new_empty_strided", "sym_size", "sym_numel", "_local_scalar_dense", "set_", "_reshape_alias",
})  # fmt: skip

_SPECIAL: dict[str, Callable[[Sequence[Any], Any], tuple[Kernel, ...]]] = {
    "mm": _product(0),
    "addmm": _product(1),
    "bmm": _product(0),
    "baddbmm": _product(1),
    "_grouped_mm": _product(0),
    "_sparse_addmm": _product(1),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}


RNN_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Recurrent layers, and the number of gates of each."""
STATES_KEPT = 2
"""In addition to its gates, cuDNN's reserve space holds the state and output of each step."""


@dataclass
class Recorder:
    """The kernels recorded in one pass, in order."""

    kernels: list[Kernel] = field(default_factory=list)
    paused: bool = False

    def add(self, *kernels: Kernel) -> None:
        """Append kernels unless paused."""
        if not self.paused:
            self.kernels.extend(kernels)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Record nothing inside the block."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


class FusedCalls(TorchFunctionMode):
    """Answers fused calls with tensors of the right shape, and records their cost on a GPU."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Handle RNNs, attention and dropout; let everything else pass."""
        del types
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in RNN_GATES and _is_plain_rnn(args):
            return _rnn(self._recorder, name, args)
        if name == "scaled_dot_product_attention":
            return _attention(self._recorder, args, kwargs)
        # A backward pass may recompute checkpointed layers, with calls that this mode does not see
        if name in {"multi_head_attention_forward", "backward"}:
            with self._recording_inside():
                return func(*args, **kwargs)
        if name == "dropout" and func.__module__ == "torch.nn.functional":
            return _dropout(self._recorder, func, args, kwargs)
        return func(*args, **kwargs)

    @contextmanager
    def _recording_inside(self) -> Iterator[None]:
        """Record calls inside a torch function written in Python too; this mode does not see them."""
        dropout = torch.nn.functional.dropout
        with replaced(
            torch.nn.functional,
            scaled_dot_product_attention=lambda *a, **k: _attention(self._recorder, a, k),
            dropout=lambda *a, **k: _dropout(self._recorder, dropout, a, k),
        ):
            yield


# --- dropout --------------------------------------------------------------------------------------------


def _dropout(
    recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with recorder.pause():
        out = func(*args, **kwargs)
    x = args[0] if args else kwargs["input"]
    if out is not x or (kwargs.get("inplace") and kwargs.get("training", True)):
        recorder.add(memory(3 * x.numel()))  # input, output, mask
    return out


# --- recurrent networks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """One layer in one direction: its sizes, and the kernels that follow from them."""

    batch: int
    steps: int
    inputs: int
    hidden: int
    gates: int

    def forward(self) -> Iterator[Kernel]:
        """Yield the input product over the sequence, then a recurrent product and the gates at every step."""
        wide = self.gates * self.hidden
        yield matmul(self.batch * self.steps, wide, self.inputs)
        for _ in range(self.steps):
            yield matmul(self.batch, wide, self.hidden)
            yield self._pointwise()

    def backward(self, *, input_gradient: bool) -> Iterator[Kernel]:
        """Yield the kernels of the gradients, last step first; the initial state needs no gradient."""
        wide = self.gates * self.hidden
        for step in range(self.steps):
            yield self._pointwise()
            if step < self.steps - 1:
                yield matmul(self.batch, self.hidden, wide)
        if input_gradient:
            yield matmul(self.batch * self.steps, self.inputs, wide)
        yield matmul(wide, self.inputs, self.batch * self.steps)
        yield matmul(wide, self.hidden, self.batch * self.steps)
        yield memory(self.batch * self.steps * wide + wide)  # gradient of the bias

    def _pointwise(self) -> Kernel:
        # The kernel reads both products, keeps the gates for the backward pass, and writes state and output
        return memory(self.batch * self.hidden * (3 * self.gates + 3))


def _is_plain_rnn(args: tuple[Any, ...]) -> bool:
    # Whether this is a padded batch without projection. Its arguments are: input, state, weights, has_biases,
    # layers, dropout, training, bidirectional, batch_first.
    per_layer = 4 if len(args) == 9 and args[3] is True else 2
    return (
        len(args) == 9
        and isinstance(args[2], list | tuple)
        and isinstance(args[0], Tensor)
        and args[0].ndim == 3
        and len(args[2]) == per_layer * args[4] * (2 if args[7] else 1)
    )


@dataclass(frozen=True)
class _Stack:
    """All layers of a fused RNN, with both directions of each layer.

    Attributes:
        width: Channels of the output.
        dropouts: One kernel between every two consecutive layers; both passes have the same kernels.
    """

    recorder: Recorder
    layers: tuple[_Layer, ...]
    directions: int
    width: int
    dropouts: tuple[Kernel, ...]


def _rnn(recorder: Recorder, name: str, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    x, state, weights, _, layer_count, dropout, training, bidirectional, batch_first = args
    batch, steps = (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
    directions = 2 if bidirectional else 1
    hidden = (state[0] if isinstance(state, tuple | list) else state).shape[-1]
    width = hidden * directions
    layers = tuple(
        _Layer(batch, steps, x.shape[-1] if n == 0 else width, hidden, RNN_GATES[name])
        for n in range(layer_count)
        for _ in range(directions)
    )
    between = layer_count - 1 if training and dropout else 0
    dropped = memory(3 * batch * steps * width)  # input, output, mask
    stack = _Stack(recorder, layers, directions, width, (dropped,) * between)
    out: Tensor = _FusedRnn.apply(stack, x, *weights)  # type: ignore[no-untyped-call]
    with recorder.pause():
        # Computed from the output, so that gradients of the final state reach the layers
        final = out.new_zeros(layer_count * directions, batch, hidden) + out.sum() * 0
    return (out, final, final.clone()) if name == "lstm" else (out, final)


class _FusedRnn(torch.autograd.Function):
    """Shapes of a fused RNN, with its kernels recorded in both passes."""

    @staticmethod
    def forward(ctx: Any, stack: _Stack, x: Tensor, *weights: Tensor) -> Tensor:
        """Record the forward kernels and return zeros of the output's shape."""
        stack.recorder.add(*(k for layer in stack.layers for k in layer.forward()), *stack.dropouts)
        with stack.recorder.pause():
            out = x.new_zeros(*x.shape[:2], stack.width)
            reserved = (y.batch * y.steps * y.hidden * (y.gates + STATES_KEPT) for y in stack.layers)
            reserve = x.new_empty(sum(reserved))
            ctx.save_for_backward(x, reserve, *weights)
        ctx.stack = stack
        return out

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        """Record the backward kernels and return zeros of the gradients' shapes."""
        stack, needed = ctx.stack, ctx.needs_input_grad[1:]
        for place, layer in reversed(list(enumerate(stack.layers))):
            stack.recorder.add(*layer.backward(input_gradient=place >= stack.directions or needed[0]))
        stack.recorder.add(*stack.dropouts)
        x, _reserve, *weights = ctx.saved_tensors
        return (None, *_zeros(stack.recorder, (x, *weights), needed))


def _zeros(recorder: Recorder, like: Iterable[Tensor], needed: Iterable[bool]) -> list[Tensor | None]:
    # The needed gradients, in the right shapes; their memory traffic is recorded elsewhere
    with recorder.pause():
        return [torch.zeros_like(t) if n else None for t, n in zip(like, needed, strict=True)]


# --- attention ---------------------------------------------------------------------------------------------


def _attention(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    out: Tensor = _FusedAttention.apply(  # type: ignore[no-untyped-call]
        recorder, given["query"], given["key"], given["value"]
    )
    return out


class _FusedAttention(torch.autograd.Function):
    """Shapes of fused attention. By convention, all scores are counted, causal or not."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Record two products and return zeros of the output's shape."""
        with recorder.pause():
            out = query.new_zeros(*query.shape[:-1], value.shape[-1])
            logsumexp = query.new_empty(query.shape[:-1])
            ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.recorder = recorder
        flops = _product_flops(query, key, query.shape[-1]) + _product_flops(query, key, value.shape[-1])
        recorder.add(Kernel(OperatorKind.MATMUL, flops, moved(query, key, value, out)))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Record the four products of the gradients; the recomputed scores are not counted."""
        query, key, value, out, _ = ctx.saved_tensors
        flops = _product_flops(query, key, query.shape[-1]) + _product_flops(query, key, value.shape[-1])
        moved_bytes = 2 * moved(query, key, value, out)  # each and its gradient
        ctx.recorder.add(Kernel(OperatorKind.MATMUL, 2 * flops, moved_bytes))
        del gradients
        return (None, *_zeros(ctx.recorder, (query, key, value), ctx.needs_input_grad[1:]))


def _product_flops(query: Tensor, key: Tensor, width: int) -> float:
    return 2.0 * query.numel() / query.shape[-1] * key.shape[-2] * width
