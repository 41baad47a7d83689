"""A recurrent cell as a Python loop over time steps, to show the cost of launching small kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, seeded, token_batches


class TanhCell(nn.Module):
    """h' = tanh(W_i x + W_h h), with an initial state of zeros.

    Shapes:
        x: (N, T, width); out: (N, T, width).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(width, width)
        self.hidden = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Step through the sequence."""
        state = torch.zeros_like(x[:, 0])
        states = []
        for step in x.unbind(1):
            state = torch.tanh(self.inputs(step) + self.hidden(state))
            states.append(state)
        return torch.stack(states, dim=1)


class NextToken(nn.Module):
    """Embedding, recurrent layers with dropout between them, and a linear layer on the last state.

    Shapes:
        tokens: (N, T) int64; logits: (N, vocabulary).
    """

    def __init__(
        self, cell: Callable[[int], nn.Module], layers: int, dropout: float, vocabulary: int, width: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(cell(width) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score every word of the vocabulary as the next one."""
        x = self.embedding(tokens)
        for place, layer in enumerate(self.layers):
            x = layer(x if place == 0 else self.dropout(x))
        logits: Tensor = self.head(x[:, -1])
        return logits


def build(
    batch_size: int,
    seed: int,
    *,
    cell: Callable[[int], nn.Module] = TanhCell,
    layers: int = 1,
    dropout: float = 0.0,
    vocabulary: int = 1000,
    width: int = 128,
    length: int = 20,
) -> Task:
    """Build the model and four batches of random tokens.

    Shapes:
        inputs: (N, length) int64; targets: (N,) int64 in [1, 5); logits: (N, vocabulary).

    Args:
        batch_size: N, sequences per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        cell: Builds the recurrent layer of a given width.
        layers: Number of recurrent layers.
        dropout: Share of values dropped between two layers, 0 to 1.
        vocabulary: Number of words.
        width: Width of embedding and state.
        length: Tokens of one sequence.
    """
    with seeded(seed):
        return Task(
            model=NextToken(cell, layers, dropout, vocabulary, width),
            batches=token_batches(batch_size, length, vocabulary),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.Adam, lr=1e-4),
        )


WORKLOAD = Workload(
    name="rnn_cell",
    summary="a vanilla recurrent cell written out, 20 steps of small kernels",
    version=1,
    sample_unit="sequence",
    sample_shape=(20,),
    batches=(64, 512),
    is_image=False,
    source="the recurrent cell of Elman 1990, as the PyTorch tutorials write it out",
    build=build,
    tiny=partial(build, vocabulary=32, width=16, length=6),
)
