"""A language model with two wide LSTM layers, large enough not to be host-bound."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, seeded, token_batches, token_cross_entropy


class LanguageModel(nn.Module):
    """Embedding, stacked LSTM, and a linear layer on every token.

    Shapes:
        tokens: (N, T) int64; logits: (N, T, vocabulary).
    """

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every word of the vocabulary after each token."""
        hidden, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.head(hidden)
        return logits


def build(
    batch_size: int,
    seed: int,
    *,
    vocabulary: int = 10_000,
    width: int = 1024,
    layers: int = 2,
    length: int = 128,
) -> Task:
    """Build the model and four batches of random tokens.

    Shapes:
        inputs: (N, length) int64; targets: (N, length) int64 in [1, 5); logits: (N, length, vocabulary).

    Args:
        batch_size: N, sequences per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        vocabulary: Number of words.
        width: Width of embedding and hidden state.
        layers: Number of LSTM layers.
        length: Tokens of one sequence.
    """
    with seeded(seed):
        return Task(
            model=LanguageModel(vocabulary, width, layers),
            batches=token_batches(batch_size, length, vocabulary, label_each_token=True),
            loss=token_cross_entropy,
            optimizer=partial(torch.optim.Adam, lr=1e-4),
        )


WORKLOAD = Workload(
    name="lstm_large",
    summary="two fused LSTM layers of width 1024 over 128 tokens",
    version=1,
    sample_unit="sequence",
    sample_shape=(128,),
    batches=(32, 64, 256),
    is_image=False,
    source="word-level language modeling; LSTM of Hochreiter and Schmidhuber 1997",
    build=build,
    tiny=partial(build, vocabulary=32, width=16, length=8),
)
