"""The repeated blocks of a model, and the changes to them that make a step fit.

FSDP gathers one block at a time, checkpointing recomputes blocks, and a frozen base consists of their linear
layers, possibly in 4 bits, with low-rank adapters in parallel (LoRA, QLoRA). A 4-bit layer stores the same
tensors as in torchao, and each use allocates and frees the same ones. A trace needs no values, so torchao
itself is not needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual alias
from torch.utils.checkpoint import checkpoint

from gpubench.errors import MisuseError
from gpubench.models import BlockSizes, Checkpointing
from gpubench.workload import Task

KEPT_EVERY = 2
"""Selective checkpointing keeps the result of attention and of every second matrix product or convolution, as
torchtitan does ("selective", by operator); the rest of a block is recomputed."""
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::convolution")
# Part of the name of every operator of fused attention
_ATTENTION = "attention"


def repeated_blocks(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the blocks in a model's lists that contain layers and share their class with another block.

    Examples are the layers of a transformer or the bottlenecks of a ResNet; no block is inside another.
    """
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    members = [block for each in lists for block in each if list(block.children())]
    per_class = Counter(type(block) for block in members)
    inside: set[int] = set()  # modules of blocks that were found
    found = []
    for block in members:
        is_container = isinstance(block, nn.ModuleList | nn.Sequential)
        is_block = per_class[type(block)] > 1 and not is_container and bool(list(block.parameters()))
        if is_block and id(block) not in inside:
            inside.update(id(inner) for inner in block.modules())
            found.append(block)
    return tuple(found)


def block_sizes(model: nn.Module) -> BlockSizes | None:
    """Return the sizes of the blocks, which FSDP gathers one at a time; None for a model without blocks."""
    blocks = repeated_blocks(model)
    if not blocks:
        return None
    sizes = [sum(p.numel() for p in block.parameters()) for block in blocks]
    inside = {id(p) for block in blocks for p in block.parameters()}
    outside = sum(p.numel() for p in model.parameters() if id(p) not in inside)
    return BlockSizes(count=len(blocks), largest_parameters=max(sizes), outside_parameters=outside)


def frozen_layers(model: nn.Module) -> tuple[nn.Linear, ...]:
    """Return the frozen linear layers of the repeated blocks, which a 4-bit base packs.

    Embedding and head are outside the blocks and stay unchanged.
    """
    return tuple(
        layer
        for block in repeated_blocks(model)
        for layer in block.modules()
        if isinstance(layer, nn.Linear) and not layer.weight.requires_grad
    )


def checkpoint_blocks(models: Sequence[nn.Module], how: Checkpointing) -> bool:
    """Let each model recompute its repeated blocks in the backward pass; return whether any does.

    Args:
        models: Changed in place.
        how: ``full`` keeps only the input of each block, ``selective`` also what ``KEPT_EVERY`` describes.
    """
    if how is Checkpointing.NONE:
        return False
    blocks = [block for model in models for block in repeated_blocks(model)]
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        if how is Checkpointing.SELECTIVE:
            block.forward = partial(block.forward, context_fn=_selection)
    return bool(blocks)


def _selection() -> Any:
    """Return the contexts of one block in one step; their policy counts the products of each pass."""
    # Since torch 2.5
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    products: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = operator._schema.name  # noqa: SLF001 - the only name without its overload
        kept = _ATTENTION in name and "backward" not in name
        if name in _PRODUCTS:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % KEPT_EVERY == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


# --- linear layers in 4 bits, and their adapters -----------------------------------------------------------

WEIGHTS_PER_SCALE = 64
SCALES_PER_FACTOR = 256
LEVELS = 16  # values that a weight can have


def packed(task: Task) -> Task:
    """Return the task with the frozen layers of its blocks in 4 bits."""
    in_4_bits: dict[nn.Module, nn.Module] = {each: PackedLinear(each) for each in frozen_layers(task.model)}
    _replace_layers(task.model, in_4_bits, in_4_bits.__getitem__)
    return task


def _replace_layers(
    model: nn.Module, layers: Container[nn.Module], substitute: Callable[[nn.Module], nn.Module]
) -> None:
    # A layer may occur several times in a model.
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child in layers:
                setattr(module, name, substitute(child))


class PackedLinear(nn.Module):
    """A linear layer with two weights per byte, a scale per 64 weights, and a factor per 256 scales.

    Shapes:
        x: (..., inputs); out: (..., outputs).

    Source:
        Dettmers and others 2023, QLoRA, arXiv:2305.14314.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.shape = tuple(layer.weight.shape)
        count, device, dtype = layer.weight.numel(), layer.weight.device, layer.weight.dtype
        blocks = -(-count // WEIGHTS_PER_SCALE)
        for name, size, kind in (
            ("pairs", -(-count // 2), torch.uint8),
            ("scales", blocks, torch.int8),
            ("factors", -(-blocks // SCALES_PER_FACTOR), dtype),
            ("levels", LEVELS, dtype),
        ):
            self.register_buffer(name, torch.empty(size, dtype=kind, device=device))
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Unpack the weight and multiply, without keeping the unpacked weight."""
        out: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            x, self.shape, self.pairs, self.scales, self.levels
        )
        bias: Tensor | None = self.bias
        return out if bias is None else out + bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, int], *held: Tensor) -> Tensor:
        ctx.shape = shape
        ctx.save_for_backward(*held)
        return F.linear(x, _unpacked(shape, *held))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return gradient @ _unpacked(ctx.shape, *ctx.saved_tensors), None, None, None, None


def _unpacked(shape: tuple[int, int], pairs: Tensor, scales: Tensor, levels: Tensor) -> Tensor:
    """Return the weight in the activations' type, unpacked with one 64-bit index per weight as in torchao."""
    high = (pairs >> 4).to(torch.long)
    low = (pairs & 15).to(torch.long)
    first, second = levels[high], levels[low]
    each = scales.to(levels.dtype)[:, None].expand(len(scales), WEIGHTS_PER_SCALE // 2)
    first_scaled = first * each.flatten()[: len(pairs)]
    second_scaled = second * each.flatten()[: len(pairs)]
    return torch.stack((first_scaled, second_scaled), dim=-1).flatten()[: shape[0] * shape[1]].view(shape)


RANK = 16  # inner width of an adapter


def adapt(task: Task, *, in_4_bits: bool) -> None:
    """Freeze a model and add adapters to every linear layer of its repeated blocks, in place.

    Args:
        task: A task with its model in the type that stores the base.
        in_4_bits: Whether these layers are stored in 4 bits; embedding and head stay unchanged.

    Raises:
        MisuseError: If no repeated block has a linear layer that can take adapters.
    """
    task.model.requires_grad_(False)
    # ``nn.MultiheadAttention`` reads the weight of this layer directly
    read_by_attention = nn.modules.linear.NonDynamicallyQuantizableLinear
    layers = {each for each in frozen_layers(task.model) if not isinstance(each, read_by_attention)}
    if not layers:
        raise MisuseError("it has no linear layers in repeated blocks that could take adapters")

    def adapted(layer: Any) -> Adapted:
        return Adapted(layer, PackedLinear(layer) if in_4_bits else layer)

    _replace_layers(task.model, layers, adapted)


class Adapted(nn.Module):
    """A frozen layer in parallel with two narrow, trained layers.

    Shapes:
        x: (..., inputs); out: (..., outputs).

    Source:
        Hu and others 2021, LoRA, arXiv:2106.09685.
    """

    def __init__(self, layer: nn.Linear, base: nn.Module) -> None:
        super().__init__()
        like = {"dtype": layer.weight.dtype, "device": layer.weight.device}
        self.base = base
        self.down = nn.Linear(layer.in_features, RANK, bias=False, **like)
        self.up = nn.Linear(RANK, layer.out_features, bias=False, **like)

    def forward(self, x: Tensor) -> Tensor:
        """Add the outputs of both branches."""
        return torch.add(self.base(x), self.up(self.down(x)))
