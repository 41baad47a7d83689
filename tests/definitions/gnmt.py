"""GNMT as NVIDIA trains it: an encoder and a decoder of four wide LSTM layers each, with additive attention."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined
from gpubench.workload import token_batches

SIDE = 27
"""Tokens of a sentence: about the mean of WMT's English and German; real sentences differ in length."""
WIDTH = 1024
LAYERS = 4
VOCABULARY = 32_320
DROPOUT = 0.2
SMOOTHING = 0.1


class AdditiveAttention(nn.Module):
    """Normalized additive attention (Bahdanau, Cho and Bengio 2014, arXiv:1409.0473; Salimans and Kingma
    2016).

    Every pair of query and key has its own tensor, which no kernel fuses.

    Shapes:
        query: (N, Q, width); keys, and the values that are averaged: (N, K, width); out: (N, Q, width).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_query = nn.Linear(width, width, bias=False)
        self.of_key = nn.Linear(width, width, bias=False)
        self.direction = nn.Parameter(torch.empty(width).uniform_(-0.1, 0.1))
        self.length = nn.Parameter(torch.tensor([1 / math.sqrt(width)]))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        met = self.of_query(query)[:, :, None] + self.of_key(keys)[:, None] + self.bias
        scores = torch.tanh(met) @ (self.direction / self.direction.norm() * self.length)
        return scores.softmax(-1) @ keys


class Encoder(nn.Module):
    """One bidirectional layer, then unidirectional layers, with residuals from the third layer on.

    Shapes:
        x, out: (N, T, width).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.narrow = nn.LSTM(2 * width, width, batch_first=True)
        self.further = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(LAYERS - 2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.both(self.dropout(x))[0]
        x = self.narrow(self.dropout(x))[0]
        for layer in self.further:
            x = x + layer(self.dropout(x))[0]
        return x


class Decoder(nn.Module):
    """The first layer attends to the encoder; each later layer gets the result along with its input.

    Shapes:
        x, encoded: (N, T, width); out: (N, T, vocabulary).
    """

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = AdditiveAttention(width)
        self.further = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(LAYERS - 1))
        self.words = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, encoded: Tensor) -> Tensor:
        x = self.first(x)[0]
        seen = self.attention(x, encoded)
        for i, layer in enumerate(self.further):
            after = layer(torch.cat((self.dropout(x), seen), dim=-1))[0]
            x = after + x if i else after
        return self.words(x)


class Gnmt(nn.Module):
    """Encoder and decoder share their embeddings.

    Shapes:
        tokens: (N, 2 x SIDE) int64, the source before the target; out: (N, SIDE, vocabulary).
    """

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = Encoder(width)
        self.decoder = Decoder(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        source, target = tokens.split(SIDE, dim=1)
        return self.decoder(self.embedding(target), self.encoder(self.embedding(source)))


def smoothed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of the target side.

    Shapes:
        logits: (N, SIDE, vocabulary); labels: (N, 2 x SIDE) int64.
    """
    wanted = labels[:, SIDE:].flatten()
    return nn.functional.cross_entropy(logits.flatten(0, 1), wanted, label_smoothing=SMOOTHING)


DEFINITION = defined(
    "gnmt",
    "GNMT of four layers on each side, 27 tokens to 27",
    "Wu and others 2016, arXiv:1609.08144; layers, widths and attention of NVIDIA/DeepLearningExamples, GNMT",
    model=partial(Gnmt, WIDTH, VOCABULARY),
    optimizer=partial(torch.optim.Adam, lr=2e-3),
    batch_size=1,
    shape=(2 * SIDE,),
    unit="pair of sentences",
    batches=lambda n: token_batches(n, 2 * SIDE, VOCABULARY, (1, 2), label_each_token=True, count=1),
    loss=smoothed_cross_entropy,
)
