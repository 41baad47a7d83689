"""A decoder with the shape of GPT-2 small: twelve layers over 1024 tokens, with tied embedding and head."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, initialize_narrow, seeded, token_batches, token_cross_entropy


class DecoderLayer(nn.Module):
    """Pre-norm causal self-attention and feed-forward network, each with a residual connection.

    Shapes:
        x, out: (N, T, width).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, 4 * width)
        self.leave = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the preceding tokens, then transform each token."""
        x = x + self._attend(self.attention_norm(x))
        wide = nn.functional.gelu(self.enter(self.feed_forward_norm(x)), approximate="tanh")
        out: Tensor = x + self.leave(wide)
        return out

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, width))
        return out


class Decoder(nn.Module):
    """Embeddings, decoder layers, and a head tied to the word embedding.

    Shapes:
        tokens: (N, T) int64; logits: (N, T, vocabulary).
    """

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(initialize_narrow)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every word of the vocabulary after each token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(self.norm(x), self.words.weight)


def build(
    batch_size: int,
    seed: int,
    *,
    vocabulary: int = 50_257,
    length: int = 1024,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
) -> Task:
    """Build the decoder and four batches of random tokens.

    Shapes:
        inputs: (N, length) int64; targets: (N, length) int64 in [1, 5); logits: (N, length, vocabulary).

    Args:
        batch_size: N, sequences per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        vocabulary: Number of tokens.
        length: Tokens of one sequence.
        width: Width of the model.
        heads: Attention heads.
        layers: Decoder layers.

    Source:
        Radford and others 2019, "Language Models are Unsupervised Multitask Learners", the smallest model;
        without dropout.
    """
    with seeded(seed):
        return Task(
            model=Decoder(vocabulary, length, width, heads, layers),
            batches=token_batches(batch_size, length, vocabulary, label_each_token=True),
            loss=token_cross_entropy,
            optimizer=partial(torch.optim.AdamW, lr=1e-4),
        )


WORKLOAD = Workload(
    name="transformer",
    summary="a decoder shaped like GPT-2 small over 1024 tokens",
    version=1,
    sample_unit="sequence",
    sample_shape=(1024,),
    batches=(4, 8, 16),
    is_image=False,
    source="Radford and others 2019, Language Models are Unsupervised Multitask Learners, smallest model",
    build=build,
    tiny=partial(build, vocabulary=64, length=16, width=32, heads=2, layers=2),
)
