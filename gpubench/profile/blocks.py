"""The repeated blocks of a model: what checkpointing computes again, and what FSDP gathers at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gpubench.models import BlockSizes, Checkpointing

if TYPE_CHECKING:
    from torch import nn

KEPT_EVERY = 2
"""Selective checkpointing keeps the result of attention and of every second matrix product or convolution, as
torchtitan does ("selective", by operator); all else of a block is computed again."""
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::convolution")
_ATTENTION = "attention"
"""In the name of every operator of fused attention."""


def repeated_blocks(model: nn.Module) -> tuple[nn.Module, ...]:
    """The members of a list or a sequence, alike in class, at least two and with layers of their own.

    The layers of a transformer, the bottlenecks of a ResNet; none lies inside of another.
    """
    from torch import nn

    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    members = [block for each in lists for block in each if list(block.children())]
    alike = Counter(type(block) for block in members)
    taken: set[int] = set()
    found = []
    for block in members:
        plain = isinstance(block, nn.ModuleList | nn.Sequential) or not list(block.parameters())
        if alike[type(block)] > 1 and not plain and id(block) not in taken:
            taken.update(id(inner) for inner in block.modules())
            found.append(block)
    return tuple(found)


def block_sizes(model: nn.Module) -> BlockSizes | None:
    """What sharding by blocks gathers at once; None for a model without blocks."""
    blocks = repeated_blocks(model)
    if not blocks:
        return None
    sizes = [sum(p.numel() for p in block.parameters()) for block in blocks]
    inside = {id(p) for block in blocks for p in block.parameters()}
    outside = sum(p.numel() for p in model.parameters() if id(p) not in inside)
    return BlockSizes(count=len(blocks), largest_parameters=max(sizes), outside_parameters=outside)


def frozen_layers(model: nn.Module) -> tuple[nn.Linear, ...]:
    """The linear layers of the repeated blocks whose weights are not trained: what a 4-bit base holds narrow.

    Embedding and head lie outside of the blocks and stay as they are.
    """
    from torch import nn

    return tuple(
        layer
        for block in repeated_blocks(model)
        for layer in block.modules()
        if isinstance(layer, nn.Linear) and not layer.weight.requires_grad
    )


def checkpoint_blocks(models: Sequence[nn.Module], how: Checkpointing) -> bool:
    """Let each model compute of its repeated blocks again in the backward pass; False where it has none.

    Args:
        models: Changed in place.
        how: ``full`` keeps the input of each block alone, ``selective`` what ``KEPT_EVERY`` says beside it.
    """
    if how is Checkpointing.NONE:
        return False
    blocks = [block for model in models for block in repeated_blocks(model)]
    for block in blocks:
        block.forward = _again(block.forward, how)
    return bool(blocks)


def _again(forward: Callable[..., Any], how: Checkpointing) -> Callable[..., Any]:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    again = partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
    if how is Checkpointing.FULL:
        return again
    return partial(again, context_fn=lambda: create_selective_checkpoint_contexts(_selection()))


def _selection() -> Callable[..., Any]:
    """A policy of one block in one step: it counts the products of either pass."""
    from torch.utils.checkpoint import CheckpointPolicy

    products: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = operator._schema.name  # noqa: SLF001 - the only name without its overload
        kept = _ATTENTION in name and "backward" not in name
        if name in _PRODUCTS:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % KEPT_EVERY == 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return policy
