"""The encoder of Whisper tiny with a head for two classes, on spectrograms of 30 s."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined

CHANNELS, FRAMES, WIDTH, HEADS, LAYERS, HEAD = 80, 3_000, 384, 6, 4, 256


class Layer(nn.Module):
    """Norm and attention, norm and feed-forward network, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.query, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.enter, self.leave = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape, (N, 1500, width)."""
        normed = self.norms[0](x)
        query, key, value = (
            f(normed).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.output(seen.transpose(1, 2).reshape(x.shape))
        out: Tensor = x + self.leave(nn.functional.gelu(self.enter(self.norms[1](x))))
        return out


class Classifier(nn.Module):
    """Two convolutions, positions, encoder, mean over time, two classes.

    Shapes:
        spectrum: (N, 80, 3000) float32; logits: (N, 2).
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(CHANNELS, WIDTH, 3, padding=1)
        self.second = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.places = nn.Parameter(torch.zeros(FRAMES // 2, WIDTH), requires_grad=False)
        self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)
        self.project, self.head = nn.Linear(WIDTH, HEAD), nn.Linear(HEAD, 2)

    def forward(self, spectrum: Tensor) -> Tensor:
        """Score both classes."""
        x = nn.functional.gelu(self.second(nn.functional.gelu(self.first(spectrum))))
        x = self.norm(self.layers(x.permute(0, 2, 1) + self.places))
        logits: Tensor = self.head(self.project(x).mean(dim=1))
        return logits


def _batches(batch_size: int) -> tuple[tuple[Tensor, Tensor], ...]:
    return ((torch.randn(batch_size, CHANNELS, FRAMES), torch.zeros(batch_size, dtype=torch.int64)),)


DEFINITION = defined(
    "whisper_tiny",
    "encoder of Whisper tiny with a classifier",
    "Radford and others 2022, arXiv:2212.04356, table 1 and section 2.2; 8.3 M parameters of the encoder and head",
    model=Classifier,
    optimizer=partial(torch.optim.Adam, lr=1e-3, foreach=True),
    batch_size=64,
    shape=(CHANNELS, FRAMES),
    unit="recording",
    batches=_batches,
)
