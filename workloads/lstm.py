"""The classic text generation tutorial: one small fused LSTM, which is host-bound on a fast GPU."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, seeded, token_batches


class NextToken(nn.Module):
    """Embedding, LSTM, and a linear layer on the hidden state of the last token.

    Shapes:
        tokens: (N, T) int64; logits: (N, vocabulary).
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every word of the vocabulary as the next one."""
        hidden, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.head(hidden[:, -1])
        return logits


def build(batch_size: int, seed: int, *, vocabulary: int = 1000, width: int = 128, length: int = 20) -> Task:
    """Build the model and four batches of random tokens.

    Shapes:
        inputs: (N, length) int64; targets: (N,) int64 in [1, 5); logits: (N, vocabulary).

    Args:
        batch_size: N, sequences per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        vocabulary: Number of words.
        width: Width of embedding and hidden state.
        length: Tokens of one sequence.
    """
    with seeded(seed):
        return Task(
            model=NextToken(vocabulary, width),
            batches=token_batches(batch_size, length, vocabulary),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.Adam, lr=1e-4),
        )


WORKLOAD = Workload(
    name="lstm",
    summary="one fused LSTM of width 128 over 20 tokens",
    version=1,
    sample_unit="sequence",
    sample_shape=(20,),
    batches=(64, 512, 4096),
    is_image=False,
    source="the word-level text generation tutorial; LSTM of Hochreiter and Schmidhuber 1997",
    build=build,
    tiny=partial(build, vocabulary=32, width=16, length=6),
)
