"""Language models of 1.8, 7 and 8 billion parameters, frozen in bfloat16, with low-rank adapters (LoRA)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from definitions.blocks import defined, loss_itself, same_tokens
from gpubench.workload import Workload


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder and of the adapters on its linear layers.

    Attributes:
        rank: Width of the adapters.
        adapted: The layers that have an adapter.
        dropout: The dropout before each adapter.
        joint: Whether query, key and value are one projection, with a bias.
    """

    vocabulary: int
    width: int
    heads: int
    key_heads: int
    forward: int
    layers: int
    rank: int
    adapted: frozenset[str]
    dropout: float
    joint: bool = False


EVERY = frozenset({"joint", "output", "gate", "enter", "leave"})
QWEN_7B = Sizes(151_936, 4_096, 32, 32, 11_008, 32, 64, EVERY, 0.05, joint=True)
QWEN_1_8B = Sizes(151_936, 2_048, 16, 16, 5_504, 24, 64, EVERY, 0.05, joint=True)
LLAMA_8B = Sizes(128_256, 4_096, 32, 8, 14_336, 32, 8, frozenset({"query", "value"}), 0.0)


class Adapted(nn.Module):
    """A frozen linear layer, with two narrow trained ones in parallel.

    Shapes:
        x: (N, T, inputs); out: (N, T, outputs).
    """

    def __init__(self, inputs: int, outputs: int, sizes: Sizes, name: str, *, bias: bool = False) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
        self.is_adapted = name in sizes.adapted
        if self.is_adapted:
            self.down = nn.Linear(inputs, sizes.rank, bias=False)
            self.up = nn.Linear(sizes.rank, outputs, bias=False)
            self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Add the adapter's output to that of the frozen layer."""
        out: Tensor = self.frozen(x)
        return out + 0.25 * self.up(self.down(self.dropout(x))) if self.is_adapted else out


class Norm(nn.Module):
    """Scale by the root of the mean square, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape and type."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class Layer(nn.Module):
    """Attention and gated feed-forward network, each after a norm and added to its input."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.key_heads = sizes.heads, sizes.key_heads
        self.widths = [sizes.width, *[sizes.width // sizes.heads * sizes.key_heads] * 2]
        self.norms = nn.ModuleList(Norm(sizes.width) for _ in range(2))
        make = partial(Adapted, sizes=sizes)
        self.joint = make(sizes.width, sum(self.widths), name="joint", bias=True) if sizes.joint else None
        if self.joint is None:
            self.query, self.key, self.value = (
                make(sizes.width, width, name=name)
                for name, width in zip(("query", "key", "value"), self.widths, strict=True)
            )
        self.output = make(sizes.width, sizes.width, name="output")
        self.gate = make(sizes.width, sizes.forward, name="gate")
        self.enter = make(sizes.width, sizes.forward, name="enter")
        self.leave = make(sizes.forward, sizes.width, name="leave")

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape, (N, T, width)."""
        x = x + self._attend(self.norms[0](x))
        normed = self.norms[1](x)
        out: Tensor = x + self.leave(nn.functional.silu(self.gate(normed)) * self.enter(normed))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        parts = (
            (self.query(x), self.key(x), self.value(x))
            if self.joint is None
            else self.joint(x).split(self.widths, dim=-1)
        )
        heads = (self.heads, self.key_heads, self.key_heads)
        query, key, value = (
            part.view(*x.shape[:2], n, -1).transpose(1, 2) for part, n in zip(parts, heads, strict=True)
        )
        query, key = _rotate(query), _rotate(key)
        again = self.heads // self.key_heads
        if again > 1:
            key, value = (y.repeat_interleave(again, dim=1) for y in (key, value))
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.output(seen.transpose(1, 2).reshape(x.shape))
        return out


def _rotate(x: Tensor) -> Tensor:
    """Rotate pairs of channels as rotary embeddings do, in float32; return the same shape and type."""
    wide = x.float()
    half = wide.shape[-1] // 2
    angle = torch.ones(wide.shape[-2], wide.shape[-1])
    turned = torch.cat((-wide[..., half:], wide[..., :half]), dim=-1)
    return (wide * angle + turned * angle).type_as(x)


class Decoder(nn.Module):
    """Embedding, layers that the backward pass recomputes one by one, and head.

    Shapes:
        tokens: (N, T) int64; out: the loss, a scalar.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.width).requires_grad_(False)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score each token against the next; the logits are freed at the end of this call.

        Under autocast the trainer's library (accelerate) casts every output of a forward pass to float32,
        including the logits after the loss is computed.
        """
        x = self.words(tokens).requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        logits: Tensor = self.head(self.norm(x))
        loss = _next_word_loss(logits, tokens)
        if torch.is_autocast_enabled("cpu"):
            logits.float()
        return loss


def _next_word_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    shifted = logits[:, :-1].contiguous()
    return nn.functional.cross_entropy(shifted.flatten(0, 1), tokens[:, 1:].flatten())


def _in_bfloat16(sizes: Sizes) -> nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return Decoder(sizes)
    finally:
        torch.set_default_dtype(before)


def definition(name: str, sizes: Sizes, length: int, source: str) -> Workload:
    """Define a model at one sequence length: all weights in bfloat16, AdamW on the adapters alone."""
    return defined(
        f"{name}_{length}",
        f"{name} with adapters of rank {sizes.rank}, {length} tokens",
        source,
        model=partial(_in_bfloat16, sizes),
        optimizer=partial(torch.optim.AdamW, lr=3e-4, foreach=True),
        batch_size=1,
        shape=(length,),
        unit="sequence",
        batches=same_tokens(sizes.vocabulary, length),
        loss=loss_itself,
    )


QWEN_SOURCE = "Bai and others 2023, arXiv:2309.16609, section 2.3; LoRA: Hu and others 2021, arXiv:2106.09685"
LLAMA = definition("llama3.1_8b_lora", LLAMA_8B, 2_048, "Dubey and others 2024, arXiv:2407.21783, table 3")
