"""Make a CPU build of torch save the same tensors for the backward pass as a GPU does.

Autocast casts by a list of operators, which differs between CUDA and the CPU; some calls are one kernel on a
GPU and many on a CPU. Both differences are removed in torch's dispatcher, below all Python calls, so
attention inside ``nn.MultiheadAttention`` is found too. The results have the right shapes and types but
meaningless values, so this is for fake tensors only.

Sources: torch's documentation of autocast, "CUDA Ops that can autocast to float16", "CUDA Ops that can
autocast to float32", "CUDA Ops that promote to the widest input type"; aten/src/ATen/autocast_mode.h and
.cpp, which have the same lists by overload. Where the two differ, the code is right: ``cross_entropy`` is
only in the documentation, and CUDA computes its logarithms in half precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial, reduce
from inspect import signature
from typing import Any

import torch
from torch import Tensor, _meta_registrations

from gpubench.profile.kernels import RNN_GATES, STATES_KEPT
from gpubench.tensors import tensors_of, with_tensors

_TO_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log1p log2 pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor
    reciprocal rsqrt sinh tan softplus layer_norm native_layer_norm group_norm rms_norm renorm logsumexp
    cosine_similarity dist pdist frobenius_norm.dim nuclear_norm nuclear_norm.dim
    norm.Scalar norm.ScalarOpt_dim
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
"""
TO_FLOAT32 = frozenset(_TO_FLOAT32.split())
"""Operators that cast half-precision inputs to float32 on CUDA, but not on a CPU."""
RESULT_IN_FLOAT32 = frozenset(
    {
        "softmax.int", "log_softmax.int", "cumsum", "cumprod", "sum", "sum.dim_IntList",
        "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
    }
)  # fmt: skip
"""CUDA's autocast requests a float32 result from these."""
TO_LOWER = frozenset({"addmv", "addr", "mv", "chain_matmul", "linalg_multi_dot", "einsum"})
"""Operators that cast to half precision only on CUDA."""
PROMOTED = frozenset(
    {
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "index_put", "scatter_add",
        "tensordot",
    }
)  # fmt: skip
"""Operators that cast to their widest input type only on CUDA; on a CPU some refuse inputs of two types."""

# The overloads for padded batches
_RNN = {f"{name}.input": gates for name, gates in RNN_GATES.items()}


@contextmanager
def cuda_rules() -> Iterator[None]:
    """Apply CUDA's rules to CPU tensors inside the block, for the entire process."""
    library = torch.library.Library("aten", "IMPL")
    own = torch.library.Library("gpubench", "FRAGMENT")
    try:
        own.define("fused_attention(Tensor query, Tensor value) -> (Tensor, Tensor)")
        own.impl("fused_attention", _fused_attention, "CompositeExplicitAutograd")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            allowed = _override(library)
            for name in _cast_only_on_cpu():  # before our own rules are added
                library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU", **allowed)
            library.impl("binary_cross_entropy", _banned, "AutocastCPU", **allowed)
        for names, rule in (
            (TO_FLOAT32, partial(_casting, dtype=lambda _: torch.float32)),
            (RESULT_IN_FLOAT32, _result_in_float32),
            ((*TO_LOWER, *_RNN), partial(_casting, dtype=lambda _: torch.get_autocast_dtype("cpu"))),
            (PROMOTED, partial(_casting, dtype=_widest)),
        ):
            for name in names:
                _add(library, name, rule)
        for key in ("AutogradCPU", "CPU"):
            library.impl("scaled_dot_product_attention", _attention, key)
            library.impl("dropout", _dropout, key)
            if _HAS_FUSED_RMS_NORM:
                library.impl("rms_norm", _rms_norm, key)
            for name, gates in _RNN.items():
                library.impl(name, _rnn_of(gates), key)
        yield
    finally:
        own._destroy()  # noqa: SLF001 - as below
        library._destroy()  # noqa: SLF001 - the library stays registered until then


def _override(library: torch.library.Library) -> dict[str, bool]:
    # The option that lets a kernel of torch be replaced; older versions need none
    return {"allow_override": True} if "allow_override" in signature(library.impl).parameters else {}


_grouped_mm = getattr(_meta_registrations, "meta_grouped_mm", None)


@contextmanager
def grouped_products_on_meta() -> Iterator[None]:
    """Let grouped matrix products (mixture of experts) of any type run on the meta device in the block."""
    rules = {} if _grouped_mm is None else {"_grouped_mm": partial(_grouped_product, _grouped_mm)}
    with _registered(rules, replace_own=True):
        yield


@contextmanager
def losses_on_meta() -> Iterator[None]:
    """Let losses for which torch has no rule run on the meta device inside the block."""
    with _registered(RULES):
        yield


@contextmanager
def _registered(rules: Mapping[Any, Callable[..., Any]], *, replace_own: bool = False) -> Iterator[None]:
    # Register rules for the meta device. Some versions of torch do not allow rules that replace torch's own.
    library = torch.library.Library("aten", "IMPL")
    try:
        allowed = _override(library)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            for operator, rule in rules.items() if allowed or not replace_own else ():
                library.impl(operator, rule, "Meta", **allowed)
        yield
    finally:
        library._destroy()  # noqa: SLF001 - the library stays registered until then


def _grouped_product(
    rule: Callable[..., Tensor], left: Tensor, right: Tensor, *others: Any, **options: Any
) -> Tensor:
    # Torch's meta rule takes only bfloat16; its kernels take other types too
    return rule(left.bfloat16(), right.bfloat16(), *others, **options).to(left.dtype)


def _ctc_loss(scores: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Return a loss per sample, and its states at each time step: aten/src/ATen/native/LossCTC.cpp.

    Concatenated targets are assumed to have their mean length, because the longest depends on values.
    """
    steps, *batch = scores.shape[:-1]
    samples = batch[0] if batch else 1
    longest = targets.shape[-1] if targets.dim() > 1 else -(-targets.numel() // samples)
    return scores.new_empty(batch), scores.new_empty((samples, steps, 2 * longest + 1))


RULES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._ctc_loss.Tensor: _ctc_loss,  # noqa: SLF001 - what ``ctc_loss`` calls
    torch.ops.aten._ctc_loss_backward.Tensor: lambda _, scores, *__: torch.empty_like(scores),  # noqa: SLF001 - as above
}
"""Rules for the meta device where torch has none; each takes the arguments of its operator."""


def _banned(*_: Any, **__: Any) -> Tensor:
    # CUDA's autocast refuses this call too: aten/src/ATen/autocast_mode.cpp, binary_cross_entropy_banned
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
        "binary_cross_entropy_with_logits or BCEWithLogitsLoss, without a sigmoid before it"
    )


def _add(library: torch.library.Library, name: str, rule: Callable[..., Any]) -> None:
    """Register an autocast rule for an operator, unless it has one or this torch lacks the operator."""
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    has_rule = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - torch offers no other way to ask
    if found is not None and not has_rule(f"aten::{name}", "AutocastCPU"):
        library.impl(name, rule(found), "AutocastCPU")


# --- autocast ------------------------------------------------------------------------------------------


@cache
def _cast_only_on_cpu() -> frozenset[str]:
    # Operators for which only the CPU's autocast has a rule, such as ``cross_entropy_loss``
    listed = torch._C._dispatch_get_registrations_for_dispatch_key  # noqa: SLF001 - torch offers no other list
    found: set[str] = set(listed("AutocastCPU")) - set(listed("AutocastCUDA"))
    return frozenset(name for name in found if name.startswith("aten::"))


def _casting(operator: Any, dtype: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(dtype(args)) if _is_cast(tensor) else tensor

        with _without_autocast():
            return operator(*with_tensors(args, cast), **with_tensors(kwargs, cast))

    return run


def _widest(values: Any) -> torch.dtype:
    return reduce(
        torch.promote_types,
        (tensor.dtype for tensor in tensors_of(values) if _is_cast(tensor)),
        torch.get_autocast_dtype("cpu"),
    )


def _is_cast(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype is not torch.float64


def _result_in_float32(operator: Any) -> Callable[..., Any]:
    place = [a.name for a in operator._schema.arguments].index("dtype")  # noqa: SLF001

    def run(*args: Any, **kwargs: Any) -> Any:
        first = next((a for a in args if isinstance(a, Tensor)), None)
        if first is not None and _is_cast(first) and len(args) <= place and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float32
        with _without_autocast():
            return operator(*args, **kwargs)

    return run


def _without_autocast() -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001
    return torch._C._ExcludeDispatchKeyGuard(keys)  # noqa: SLF001


def _empty_like(tensors: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    # The needed gradients, uninitialized
    return [torch.empty_like(t) if n else None for t, n in zip(tensors, needed, strict=True)]


# --- dropout -------------------------------------------------------------------------------------------


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Use CUDA's single kernel, with one byte per value in its mask; the CPU's mask has the values' type."""
    if not train or p == 0 or x.numel() == 0:
        return x
    return torch.native_dropout(x, p, True)[0]


# --- norm ----------------------------------------------------------------------------------------------

_fused_rms_norm = getattr(torch.ops.aten, "_fused_rms_norm", None)
# Since torch 2.9, CUDA's kernel also returns the roots; before, the name belonged to an Apple kernel
_HAS_FUSED_RMS_NORM = (
    _fused_rms_norm is not None and len(_fused_rms_norm.default._schema.returns) == 2  # noqa: SLF001
)


def _rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Use CUDA's single kernel, which keeps no normalized values; it needs input and weight of one type."""
    if weight is not None and weight.dtype is not x.dtype:
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + (eps or 0.0))
        return (normed * weight).to(x.dtype)
    out: Tensor = _FusedRmsNorm.apply(x, len(shape), weight)  # type: ignore[no-untyped-call]
    return out


class _FusedRmsNorm(torch.autograd.Function):
    """Shapes and types of CUDA's kernel, which keeps input, weight and the reciprocals of the roots."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, normed: int, weight: Tensor | None) -> Tensor:
        """Return an uninitialized output."""
        roots = x.new_empty((*x.shape[:-normed], *[1] * normed), dtype=torch.float32)
        ctx.save_for_backward(x, weight, roots)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return gradients of input and weight."""
        x, weight, _ = ctx.saved_tensors
        del gradient
        of_x, _, of_weight = ctx.needs_input_grad
        of_x, of_weight = _empty_like((x, weight), (of_x, of_weight))
        return of_x, None, of_weight


# --- attention -----------------------------------------------------------------------------------------


def _attention(  # noqa: PLR0917 - torch's own signature
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Save query, key, value, output and the log-sum-exp, never the matrix of scores.

    On a GPU, flash attention does this in half precision and the memory-efficient kernel in other types; a
    mask that needs a gradient requires the unfused form.
    """
    if attn_mask is not None and attn_mask.requires_grad:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        unfused = torch.ops.aten._scaled_dot_product_attention_math  # noqa: SLF001
        out: Tensor = unfused(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[0]
        return out
    fused: Tensor = _FusedAttention.apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]
    return fused


def _fused_attention(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    # Output and log-sum-exp of the kernel. It is an operator, so that checkpointing can keep its result.
    *batch, length, _ = query.shape
    out = query.new_empty((*batch[:-1], length, *batch[-1:], value.shape[-1]))
    return out.transpose(-3, -2) if batch else out, query.new_empty((*batch, length), dtype=torch.float32)


class _FusedAttention(torch.autograd.Function):
    """Shapes and types of fused attention; the memory layout of the output is (N, T, heads, width)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Any:
        """Return an uninitialized output, and save the same tensors as the kernels."""
        out, sums = torch.ops.gpubench.fused_attention(query, value)
        bias = mask.to(query.dtype) if mask is not None and mask.dtype is torch.bool else mask
        ctx.save_for_backward(query, key, value, out, sums, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return gradients; the sums and a float32 gradient of the query are allocated too."""
        query, key, value, _, sums, _ = ctx.saved_tensors
        added = query.new_empty(query.shape, dtype=torch.float32), torch.empty_like(sums)
        found = _empty_like((query, key, value), ctx.needs_input_grad[:3])
        del gradients, added
        return (*found, None)


# --- recurrent layers ----------------------------------------------------------------------------------


def _rnn_of(gates: int) -> Callable[..., Any]:
    def run(  # noqa: PLR0917 - torch's own signature
        x: Tensor,
        state: Tensor | Sequence[Tensor],
        weights: Sequence[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        """Run the layer as cuDNN does, with time steps as the first dimension."""
        del has_biases, dropout
        states = [state] if isinstance(state, Tensor) else list(state)
        by_step = x.transpose(0, 1) if batch_first else x
        directions = 2 if bidirectional else 1
        outputs = by_step.shape[:2].numel() * weights[1].shape[1] * directions  # of one layer over all steps
        sizes = outputs * gates, layers * outputs * (gates + STATES_KEPT) if train else 0
        out, *final = _FusedRnn.apply(sizes, directions, len(states), by_step, *states, *weights)  # type: ignore[no-untyped-call]
        return (out.transpose(0, 1) if batch_first else out, *final)

    return run


class _FusedRnn(torch.autograd.Function):
    """Shapes and types of a recurrent layer, which keeps input, states, weights, output and reserve space."""

    @staticmethod
    def forward(
        ctx: Any, sizes: tuple[int, int], directions: int, states: int, x: Tensor, *tensors: Tensor
    ) -> Any:
        """Return uninitialized output and final states.

        ``sizes`` are in elements: the workspace for the gates, which both passes use, and the reserve space
        in training.
        """
        working, kept = sizes
        contiguous = x.contiguous()
        out = x.new_empty(*x.shape[:2], tensors[0].shape[-1] * directions)
        workspace = x.new_empty(working)
        final = tuple(torch.empty_like(tensors[n]) for n in range(states))
        if kept:
            ctx.save_for_backward(x, *tensors, out, x.new_empty(kept))
        ctx.workspace = working
        del contiguous, workspace
        return (out, *final)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return gradients of input, states and weights."""
        x, *tensors, _, _ = ctx.saved_tensors
        contiguous = x.contiguous()
        workspace = x.new_empty(ctx.workspace)
        found = _empty_like((x, *tensors), ctx.needs_input_grad[3:])
        del gradients, contiguous, workspace
        return (None, None, None, *found)
