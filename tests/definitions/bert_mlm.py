"""BERT-base that predicts each of 512 tokens, with the embedding tied to the head."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined
from gpubench.workload import initialize_narrow, token_batches, token_cross_entropy

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, DROPOUT = 30_522, 512, 768, 12, 12, 0.1


class Layer(nn.Module):
    """Self-attention and feed-forward network, each followed by dropout, a sum and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.enter, self.leave = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        query, key, value = (
            f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=DROPOUT)
        x = self.norms[0](self.dropout(self.output(seen.transpose(1, 2).reshape(x.shape))) + x)
        out: Tensor = self.norms[1](self.dropout(self.leave(nn.functional.gelu(self.enter(x)))) + x)
        return out


class MaskedModel(nn.Module):
    """Embeddings, encoder, and a head over the vocabulary on every token.

    Shapes:
        tokens: (N, 512) int64; logits: (N, 512, 30522).
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.segments = nn.Embedding(2, WIDTH)
        self.norm, self.last_norm = (nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.dense, self.bias = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(VOCABULARY))
        self.apply(initialize_narrow)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every word at each position."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.segments(torch.zeros_like(tokens)) + self.places(places)
        x = self.layers(self.dropout(self.norm(x)))
        x = self.last_norm(nn.functional.gelu(self.dense(x)))
        return nn.functional.linear(x, self.words.weight, self.bias)


DEFINITION = defined(
    "bert_mlm",
    "BERT-base, masked words",
    "Devlin, Chang, Lee and Toutanova 2018, arXiv:1810.04805; 109.5 M parameters",
    model=MaskedModel,
    optimizer=partial(torch.optim.Adam, lr=1e-3, foreach=True),
    batch_size=32,
    shape=(LENGTH,),
    unit="sequence",
    batches=lambda n: token_batches(n, LENGTH, VOCABULARY, (1, 2), label_each_token=True, count=1),
    loss=token_cross_entropy,
)
