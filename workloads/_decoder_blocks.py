"""Layers of the language models: norm, rotary embedding, attention, gated network, adapters, loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual alias
from torch.utils.checkpoint import checkpoint

from gpubench.models import Checkpointing
from gpubench.workload import NARROW_STD

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine for each position and channel pair, (T, channels) each, in float32."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a decoder of the Llama family.

    Attributes:
        forward: Inner width of the gated feed-forward network.
        tied: Whether the head shares the weights of the embedding.
        rotary_base: Longest wavelength of the rotary embedding, divided by 2 pi.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_value_heads: int
    forward: int
    tied: bool = False
    rotary_base: float = 500_000.0
    epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.width // self.heads


class MakeLinear(Protocol):
    """How a decoder makes a linear layer: plain, frozen with adapters, or quantized."""

    def __call__(self, inputs: int, outputs: int, *, adapted: bool) -> nn.Module:
        """Return a layer without bias; if ``adapted``, with an adapter if the recipe has any."""


# --- layers --------------------------------------------------------------------------------------------


class NarrowLinear(nn.Linear):
    """A linear layer without bias, initialized directly from N(0, 0.02) to avoid drawing weights twice."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__(inputs, outputs, bias=False, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw the weight from N(0, 0.02)."""
        nn.init.normal_(self.weight, std=NARROW_STD)


class NarrowEmbedding(nn.Embedding):
    """An embedding initialized from N(0, 0.02)."""

    def reset_parameters(self) -> None:
        """Draw the weight from N(0, 0.02)."""
        nn.init.normal_(self.weight, std=NARROW_STD)


class LoraLinear(nn.Module):
    """A frozen linear layer in parallel with two narrow trained layers: low-rank adaptation.

    The second narrow layer starts at zero, so the initial model equals its base.

    Shapes:
        x: (N, T, inputs); out: (N, T, outputs).

    Source:
        Hu and others 2021, arXiv:2106.09685.
    """

    def __init__(self, base: nn.Module, inputs: int, outputs: int, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = NarrowLinear(inputs, rank, dtype)
        self.up = NarrowLinear(rank, outputs, dtype)
        nn.init.zeros_(self.up.weight)
        self.scale = 2.0  # alpha over rank: 32 over 16

    def forward(self, x: Tensor) -> Tensor:
        """Return the frozen layer's output plus the adapter's."""
        out: Tensor = self.base(x) + self.scale * self.up(self.down(x))
        return out


class RmsNorm(nn.Module):
    """Divide by the root mean square, and scale by a learned weight.

    Source:
        Zhang and Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, width: int, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each token; keeps the shape."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def rotation(places: Tensor, sizes: Sizes) -> Rotation:
    """Return cosine and sine of the rotary angles at these positions, for all layers of a step.

    Shapes:
        places: (T,) int64.

    Source:
        Su and others 2021, arXiv:2104.09864.
    """
    channels = torch.arange(0, sizes.head_width, 2, device=places.device, dtype=torch.float32)
    pair_angles = places.float()[:, None] * sizes.rotary_base ** (-channels / sizes.head_width)
    angles = torch.cat((pair_angles, pair_angles), dim=-1)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, angles: Rotation) -> Tensor:
    """Rotate channel pairs by their angles in float32; keeps the shape (N, heads, T, channels) and type."""
    cosine, sine = angles
    low, high = x.float().chunk(2, dim=-1)
    turned = torch.cat((-high, low), dim=-1)
    return (x * cosine + turned * sine).type_as(x)


class Attention(nn.Module):
    """Causal self-attention with keys and values shared by several heads (grouped-query attention).

    Shapes:
        x, out: (N, T, width).

    Source:
        Ainslie and others 2023, arXiv:2305.13245.
    """

    def __init__(self, sizes: Sizes, make: MakeLinear) -> None:
        super().__init__()
        self.heads, self.key_value_heads = sizes.heads, sizes.key_value_heads
        narrow = sizes.head_width * sizes.key_value_heads
        self.query = make(sizes.width, sizes.width, adapted=True)
        self.key = make(sizes.width, narrow, adapted=True)
        self.value = make(sizes.width, narrow, adapted=True)
        self.output = make(sizes.width, sizes.width, adapted=True)

    def forward(self, x: Tensor, angles: Rotation) -> Tensor:
        """Attend to the preceding tokens."""
        query, key, value = self.projected(x, angles)
        return self.combined(attend(query, key, value))

    def projected(self, x: Tensor, angles: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, (N, heads, T, channels) each."""
        query, key, value = (
            layer(x).unflatten(-1, (heads, -1)).transpose(1, 2)
            for layer, heads in (
                (self.query, self.heads),
                (self.key, self.key_value_heads),
                (self.value, self.key_value_heads),
            )
        )
        return rotated(query, angles), rotated(key, angles), value

    def combined(self, heads: Tensor) -> Tensor:
        """Combine the outputs of the heads, (N, heads, T, channels)."""
        out: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return out


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute causal attention with as many queries as keys; heads of a group share a key and a value."""
    if _has_grouped_queries():
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    group_size = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group_size, dim=1) for part in (key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@cache
def _has_grouped_queries() -> bool:
    """Return whether this torch has grouped-query attention without copies of the keys: from 2.5 on."""
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 5)


class GatedNetwork(nn.Module):
    """The gated feed-forward network, SwiGLU.

    Source:
        Shazeer 2020, arXiv:2002.05202.
    """

    def __init__(self, sizes: Sizes, make: MakeLinear) -> None:
        super().__init__()
        self.gate = make(sizes.width, sizes.forward, adapted=False)
        self.enter = make(sizes.width, sizes.forward, adapted=False)
        self.leave = make(sizes.forward, sizes.width, adapted=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token; keeps the shape."""
        out: Tensor = self.leave(F.silu(self.gate(x)) * self.enter(x))
        return out


class DecoderLayer(nn.Module):
    """Attention and gated network, each with a norm before it and a residual connection.

    Shapes:
        x, out: (N, T, width).
    """

    def __init__(self, sizes: Sizes, make: MakeLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(sizes.width, sizes.epsilon, dtype)
        self.attention = Attention(sizes, make)
        self.network_norm = RmsNorm(sizes.width, sizes.epsilon, dtype)
        self.network = GatedNetwork(sizes, make)

    def forward(self, x: Tensor, angles: Rotation) -> Tensor:
        """Attend to the preceding tokens, then transform each token."""
        x = x + self.attention(self.attention_norm(x), angles)
        out: Tensor = x + self.network(self.network_norm(x))
        return out


# --- memory savings --------------------------------------------------------------------------------------


def checkpointed(layer: nn.Module, how: Checkpointing) -> Callable[..., Any]:
    """Return the call of a layer under this kind of checkpointing.

    For the backward pass, ``full`` saves only the input of the layer; ``selective`` also saves the output of
    attention and of every second matrix product.
    """
    if how is Checkpointing.NONE:
        return layer
    call = partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False)
    return call if how is Checkpointing.FULL else partial(call, context_fn=_keep_some)


def _keep_some() -> Any:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    attention = {
        getattr(aten, name).default
        for name in (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
        )
        if hasattr(aten, name)
    }
    # Matrix products so far, counted separately in the recomputation, which must make the same choices.
    products = {True: 0, False: 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> Any:
        keep = operator in attention
        if operator is aten.mm.default:
            recomputes = bool(context.is_recompute)
            products[recomputes] += 1
            keep = products[recomputes] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def chunked_cross_entropy(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, chunks: int
) -> Tensor:
    """Return the mean loss over all tokens, with logits computed for one chunk of tokens at a time.

    With several chunks the logits of all tokens are never in memory; those of a chunk are recomputed in the
    backward pass.

    Shapes:
        hidden: (N, T, width); targets: (N, T) int64.

    Args:
        hidden: The last hidden states.
        head: Maps hidden states, (rows, width), to logits, (rows, vocabulary).
        targets: The token to predict at each position.
        chunks: Number of chunks.
    """
    rows, wanted = hidden.flatten(0, 1), targets.flatten()
    if chunks == 1:
        return _summed_loss(rows, head, wanted) / wanted.numel()
    parts = zip(rows.chunk(chunks), wanted.chunk(chunks), strict=True)
    recomputed_loss = partial(checkpoint, _summed_loss, use_reentrant=False, preserve_rng_state=False)
    losses = [recomputed_loss(part, head, labels) for part, labels in parts]
    return torch.stack(losses).sum() / wanted.numel()


def _summed_loss(rows: Tensor, head: Callable[[Tensor], Tensor], wanted: Tensor) -> Tensor:
    return F.cross_entropy(head(rows).float(), wanted, reduction="sum")
