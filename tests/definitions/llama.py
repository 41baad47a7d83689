"""Llama 3.1 with 8 billion parameters, all of them trained, as in torchtitan."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined, loss_itself, same_tokens
from gpubench.workload import Workload

VOCABULARY, WIDTH, HEADS, KEY_HEADS, FORWARD, LAYERS = 128_256, 4_096, 32, 8, 14_336, 32
HEAD_WIDTH = WIDTH // HEADS


class Norm(nn.Module):
    """Scale by the root of the mean square, in float32.

    Shapes:
        x, out: (N, T, width).
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class Attention(nn.Module):
    """Grouped-query attention with rotary embeddings.

    Shapes:
        x, out: (N, T, width); turns: (T, width of a head / 2) complex64.
    """

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            nn.Linear(WIDTH, heads * HEAD_WIDTH, bias=False) for heads in (HEADS, KEY_HEADS, KEY_HEADS)
        )
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        query, key, value = (
            part.view(*x.shape[:2], -1, HEAD_WIDTH) for part in (self.query(x), self.key(x), self.value(x))
        )
        query, key = _rotate(query, turns), _rotate(key, turns)
        query, key, value = (part.transpose(1, 2) for part in (query, _repeat(key), _repeat(value)))
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(seen.transpose(1, 2).contiguous().view(x.shape))


def _rotate(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


def _repeat(x: Tensor) -> Tensor:
    again = HEADS // KEY_HEADS
    return x[:, :, :, None].expand(*x.shape[:3], again, HEAD_WIDTH).reshape(*x.shape[:2], HEADS, HEAD_WIDTH)


class Layer(nn.Module):
    """Attention and gated feed-forward network, each after a norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(2))
        self.attention = Attention()
        self.gate, self.enter = (nn.Linear(WIDTH, FORWARD, bias=False) for _ in range(2))
        self.leave = nn.Linear(FORWARD, WIDTH, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x), turns)
        normed = self.norms[1](x)
        return x + self.leave(nn.functional.silu(self.gate(normed)) * self.enter(normed))


class Decoder(nn.Module):
    """Embedding, layers, norm, head, and the loss in float32, after which the scores are freed.

    Shapes:
        tokens: (N, T) int64; out: a scalar.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("turns", torch.ones(length, HEAD_WIDTH // 2, dtype=torch.complex64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, self.turns)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def definition(length: int) -> Workload:
    """Define the model at one sequence length."""
    return defined(
        f"llama3.1_8b_{length}",
        f"Llama 3.1 of 8 billion parameters, {length} tokens",
        "Dubey and others 2024, arXiv:2407.21783, table 3; recipe of pytorch/torchtitan, end of 2024",
        model=partial(Decoder, length),
        optimizer=partial(torch.optim.AdamW, lr=3e-4),
        batch_size=1,
        shape=(length,),
        unit="sequence",
        batches=same_tokens(VOCABULARY, length),
        loss=loss_itself,
    )
