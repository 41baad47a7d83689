"""Reformer on 4,096 tokens: local and hashed attention in chunks, in reversible layers.

It has six reversible layers, alternately local and hashed. The backward pass runs each layer again, outside
autocast, so the peak is one layer's memory in float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from definitions.blocks import defined, same_tokens
from gpubench.workload import token_cross_entropy

VOCABULARY, LENGTH, WIDTH, INNER, HEADS, HEAD_WIDTH, LAYERS = 320, 4_096, 256, 512, 12, 64, 6
PIECE, BUCKETS, DROPOUT = 64, 128, 0.05
GRID, GRID_WIDTHS = (64, 64), (64, 192)
EPSILON = 1e-12


def in_pieces(x: Tensor) -> Tensor:
    """Split a sequence into chunks: (N, heads, T, ...) becomes (N, heads, T / 64, 64, ...)."""
    return x.reshape(*x.shape[:2], -1, PIECE, *x.shape[3:])


def with_the_one_before(x: Tensor) -> Tensor:
    """Put the previous chunk before each chunk, and the last chunk before the first."""
    return torch.cat([torch.cat([x[:, :, -1:], x[:, :, :-1]], dim=2), x], dim=3)


def shares_of(scores: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """Return the softmax of the scores, and the logarithm of its denominator."""
    total = torch.logsumexp(scores, dim=-1, keepdim=True)
    return nn.functional.dropout(torch.exp(scores - total), dropout), total


class Attention(nn.Module):
    """What both kinds of attention share: the projections to heads and back.

    Shapes:
        x, out: (N, T, width).
    """

    def __init__(self, projections: int) -> None:
        super().__init__()
        inner = HEADS * HEAD_WIDTH
        self.projections = nn.ModuleList(nn.Linear(WIDTH, inner, bias=False) for _ in range(projections))
        self.norm, self.output = nn.LayerNorm(WIDTH, eps=EPSILON), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Attend; the buckets are computed in the forward pass and reused in the backward pass."""
        normed = self.norm(x)
        heads = [f(normed).view(*x.shape[:2], HEADS, HEAD_WIDTH).transpose(1, 2) for f in self.projections]
        del normed
        seen, known = self.attend(heads, known)
        joined = seen.permute(0, 2, 1, 3).reshape(*x.shape[:2], HEADS * HEAD_WIDTH)
        return nn.functional.dropout(self.output(joined), DROPOUT), known

    def attend(self, heads: list[Tensor], known: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the output of each position, (N, heads, T, 64), and its buckets."""
        raise NotImplementedError


class Local(Attention):
    """Each chunk attends to itself and to the previous chunk."""

    def __init__(self) -> None:
        super().__init__(3)

    def attend(self, heads: list[Tensor], known: Tensor | None) -> tuple[Tensor, None]:
        query, key, value = heads
        key = key / HEAD_WIDTH**0.5
        query = in_pieces(query)
        key, value = with_the_one_before(in_pieces(key)), with_the_one_before(in_pieces(value))
        scores = torch.matmul(query, key.transpose(-1, -2))
        del query, key
        shares, _ = shares_of(scores, DROPOUT)
        return torch.matmul(shares, value).flatten(2, 3), None


class BackInOrder(torch.autograd.Function):
    """Put positions from bucket order back into sequence order; the gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, seen: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.order = order
        return torch.gather(seen, 2, back.unsqueeze(-1).expand(seen.shape))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return torch.gather(gradient, 2, ctx.order.unsqueeze(-1).expand(gradient.shape)), None, None


class Hashed(Attention):
    """Positions are sorted by their hashes; each chunk in that order attends to itself and to the previous chunk."""

    def __init__(self) -> None:
        super().__init__(2)

    def attend(self, heads: list[Tensor], known: Tensor | None) -> tuple[Tensor, Tensor]:
        both, value = heads
        buckets = self.hashed(both.detach()) if known is None else known
        with torch.no_grad():
            order = torch.sort(buckets, stable=True, dim=-1).indices
            places = torch.arange(LENGTH).view(1, 1, -1).expand(order.shape)
            back = torch.empty_like(order).scatter_(-1, order, places)
        order = order % LENGTH
        index = order.unsqueeze(-1).expand(-1, -1, -1, HEAD_WIDTH)
        both = in_pieces(torch.gather(both.repeat(1, 1, 1, 1), 2, index))
        value = in_pieces(torch.gather(value.repeat(1, 1, 1, 1), 2, index))
        size = torch.rsqrt(torch.mean(both**2, -1, keepdim=True) + 1e-6)
        key = both * size * HEAD_WIDTH**-0.5
        key, value = with_the_one_before(key), with_the_one_before(value)
        scores = torch.matmul(both, key.transpose(-1, -2))
        del both, key
        mine = in_pieces(order)
        others = mine.unsqueeze(-1) != with_the_one_before(mine).unsqueeze(-2)
        scores = torch.where(others, scores, torch.tensor(-1e5, dtype=scores.dtype))
        del others
        shares, _ = shares_of(scores, 0.0)
        del scores
        seen = torch.matmul(shares, value).flatten(2, 3)
        return BackInOrder.apply(seen, order, back), buckets

    def hashed(self, x: Tensor) -> Tensor:
        """Return the nearest of some random directions for each position, (N, heads, T)."""
        directions = torch.randn(HEADS, HEAD_WIDTH, BUCKETS // 2, dtype=x.dtype)
        turned = torch.einsum("bmtd,mdr->bmtr", x, directions)
        return torch.cat([turned, -turned], dim=-1).argmax(-1)


class FeedForward(nn.Module):
    """Two linear layers on each position."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.enter, self.leave = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        wide = nn.functional.relu(nn.functional.dropout(self.enter(self.norm(x)), DROPOUT))
        return nn.functional.dropout(self.leave(wide), DROPOUT)


class Layer(nn.Module):
    """Two halves, each changed by a function of the other, so both can be recomputed from the outputs."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, FeedForward()

    def forward(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return both halves and the buckets."""
        seen, buckets = self.attention(two, None)
        one = one + seen
        return one, two + self.feed_forward(one), buckets

    def backwards(self, halves: list[Tensor], buckets: Tensor | None) -> list[Tensor]:
        """From both outputs and their gradients, compute both inputs and their gradients."""
        one, two, grad_one, grad_two = halves
        with torch.enable_grad():
            one.requires_grad = True
            changed = self.feed_forward(one)
            changed.backward(grad_two, retain_graph=True)
        with torch.no_grad():
            two = two - changed
            del changed
            grad_one = grad_one + one.grad
            one.grad = None
        with torch.enable_grad():
            two.requires_grad = True
            changed, _ = self.attention(two, buckets)
            changed.backward(grad_one, retain_graph=True)
        with torch.no_grad():
            before = one - changed
            del changed, one
            grad_two = grad_two + two.grad
            two.grad = None
        return [before, two.detach(), grad_one, grad_two]


class Reversible(torch.autograd.Function):
    """All layers; only the outputs of the last one are kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: list[Layer]) -> Tensor:
        two, one = torch.chunk(x, 2, dim=-1)
        ctx.layers, ctx.buckets = layers, []
        for layer in layers:
            one, two, buckets = layer(one, two)
            ctx.buckets.append(buckets)
        ctx.save_for_backward(one.detach(), two.detach())
        return torch.cat([one, two], dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        halves = [*ctx.saved_tensors, *torch.chunk(gradient, 2, dim=-1)]
        for layer, buckets in zip(reversed(ctx.layers), reversed(ctx.buckets), strict=True):
            halves = layer.backwards(halves, buckets)
        return torch.cat(halves[2:], dim=-1), None


class Reformer(nn.Module):
    """Embeddings with positions by the row and column of a grid, reversible layers, and a head on every token.

    Shapes:
        tokens: (N, 4096) int64; logits: (N, 4096, 320).
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.rows = nn.Parameter(torch.zeros(GRID[0], 1, GRID_WIDTHS[0]))
        self.columns = nn.Parameter(torch.zeros(1, GRID[1], GRID_WIDTHS[1]))
        self.layers = nn.ModuleList(Layer(Hashed() if n % 2 else Local()) for n in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(2 * WIDTH, eps=EPSILON), nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every word at each position."""
        grid = [w.expand(*GRID, w.shape[-1]) for w in (self.rows, self.columns)]
        places = torch.cat(grid, dim=-1).reshape(1, LENGTH, WIDTH).expand(len(tokens), -1, -1)
        x = nn.functional.dropout(self.words(tokens), DROPOUT) + nn.functional.dropout(places, DROPOUT)
        x = Reversible.apply(torch.cat([x, x], dim=-1), list(self.layers))
        return self.head(nn.functional.dropout(self.norm(x), DROPOUT))


DEFINITION = defined(
    "reformer",
    "Reformer, 4,096 tokens",
    "Kitaev, Kaiser and Levskaya 2020, arXiv:2001.04451, sections 2 and 3; 5.98 M parameters",
    model=Reformer,
    optimizer=partial(torch.optim.Adam, lr=1e-3, foreach=True),
    batch_size=16,
    shape=(LENGTH,),
    unit="sequence",
    batches=same_tokens(VOCABULARY, LENGTH),
    loss=token_cross_entropy,
)
