"""T5-small on 1,024 tokens in and out: the score matrices are stored, because a learned bias is added to them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined, same_tokens
from gpubench.workload import token_cross_entropy

VOCABULARY, LENGTH, WIDTH, HEADS, INNER, FORWARD, LAYERS = 32_128, 1_024, 512, 8, 64, 2_048, 6
BUCKETS, DROPOUT = 32, 0.1


class Norm(nn.Module):
    """Scale by the root of the mean square, computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        x = x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x


class Attention(nn.Module):
    """Attention with a bias on its scores; the first layer of a stack computes the bias."""

    def __init__(self, *, makes_bias: bool = False) -> None:
        super().__init__()
        self.norm = Norm()
        self.query, self.key, self.value = (nn.Linear(WIDTH, HEADS * INNER, bias=False) for _ in range(3))
        self.output = nn.Linear(HEADS * INNER, WIDTH, bias=False)
        self.bias = nn.Embedding(BUCKETS, HEADS) if makes_bias else None

    def forward(self, x: Tensor, bias: Tensor, other: Tensor | None = None) -> Tensor:
        """Add the attention output; ``other`` has the encoder's states.

        Shapes:
            x, out: (N, T, width); bias: (N, heads, T, T).
        """
        normed = self.norm(x)
        read = normed if other is None else other
        query, key, value = (
            f(y).view(len(x), -1, HEADS, INNER).transpose(1, 2)
            for f, y in ((self.query, normed), (self.key, read), (self.value, read))
        )
        scores = torch.matmul(query, key.transpose(3, 2))
        scores += bias
        shares = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        shares = nn.functional.dropout(shares, DROPOUT, self.training)
        seen = torch.matmul(shares, value).transpose(1, 2).reshape(*x.shape[:2], HEADS * INNER)
        return x + nn.functional.dropout(self.output(seen), DROPOUT, self.training)

    def learned_bias(self, x: Tensor) -> Tensor:
        """Return the bias by distance, with a mask for each sequence.

        Shapes:
            out: (N, heads, T, T).
        """
        assert self.bias is not None
        places = torch.arange(x.shape[1], device=x.device)
        distance = (places[None] - places[:, None]).abs().clamp(max=BUCKETS - 1)
        return self.bias(distance).permute(2, 0, 1)[None] + torch.zeros(len(x), 1, 1, 1, device=x.device)


class FeedForward(nn.Module):
    """Two linear layers around a ReLU; the second stays in float32, regardless of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.enter, self.leave = nn.Linear(WIDTH, FORWARD, bias=False), nn.Linear(FORWARD, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        wide = nn.functional.dropout(nn.functional.relu(self.enter(self.norm(x))), DROPOUT, self.training)
        return x + nn.functional.dropout(self.leave(wide), DROPOUT, self.training)


class T5(nn.Module):
    """Encoder and decoder around one embedding, which is also the head.

    Shapes:
        tokens: (N, 1024) int64; logits: (N, 1024, 32128).
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(
            nn.ModuleList([Attention(makes_bias=n == 0), FeedForward()]) for n in range(LAYERS)
        )
        self.decoder = nn.ModuleList(
            nn.ModuleList([Attention(makes_bias=n == 0), Attention(), FeedForward()]) for n in range(LAYERS)
        )
        self.norms = nn.ModuleList([Norm(), Norm()])

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every word at each position of the output; the decoder reads the input again."""
        states = nn.functional.dropout(self.words(tokens), DROPOUT, self.training)
        bias = self.encoder[0][0].learned_bias(states)
        for attend, forward in self.encoder:
            states = forward(attend(states, bias))
        states = nn.functional.dropout(self.norms[0](states), DROPOUT, self.training)
        x = nn.functional.dropout(self.words(tokens), DROPOUT, self.training)
        own_bias, no_bias = (
            self.decoder[0][0].learned_bias(x),
            torch.zeros(len(x), HEADS, LENGTH, LENGTH, device=x.device),
        )
        for attend, read, forward in self.decoder:
            x = forward(read(attend(x, own_bias), no_bias, states))
        x = nn.functional.dropout(self.norms[1](x), DROPOUT, self.training) * WIDTH**-0.5
        return nn.functional.linear(x, self.words.weight)


DEFINITION = defined(
    "t5_small",
    "T5-small, 1,024 tokens in and out",
    "Raffel and others 2019, arXiv:1910.10683, section 2.1 and the small model of 3.7; 60.5 M parameters",
    model=T5,
    optimizer=partial(torch.optim.Adam, lr=1e-3, foreach=True),
    batch_size=16,
    shape=(LENGTH,),
    unit="sequence",
    batches=same_tokens(VOCABULARY, LENGTH),
    loss=token_cross_entropy,
)
