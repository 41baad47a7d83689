"""Transfer learning: BERT-base frozen and without dropout, its pooler and a new head trained."""

from __future__ import annotations

from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, seeded, token_batches
from gpubench_workloads.bert_base import LABELS, Classifier


class FrozenEncoder(nn.Module):
    """A frozen encoder, outside the autograd graph, with a trained pooler and head.

    Shapes:
        tokens: (N, T) int64; logits: (N, classes).
    """

    def __init__(self, encoder: Classifier) -> None:
        super().__init__()
        self.pooler, self.head = encoder.pooler, encoder.head
        del encoder.pooler, encoder.head
        self.encoder = encoder.requires_grad_(requires_grad=False)

    def train(self, mode: bool = True) -> Self:
        """Keep the frozen encoder in eval mode, since dropout would only add noise to the head's input."""
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        """Score the classes; only pooler and head save activations for their gradients."""
        with torch.no_grad():
            first = self.encoder.encode(tokens)[:, 0]
        logits: Tensor = self.head(torch.tanh(self.pooler(first)))
        return logits


def build(
    batch_size: int,
    seed: int,
    *,
    vocabulary: int = 30_522,
    positions: int = 512,
    length: int = 384,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
) -> Task:
    """Build the classifier and four batches of random tokens.

    The frozen weights are random, because their values do not affect the time of a step.

    Shapes:
        inputs: (N, length) int64; targets: (N,) int64 in [0, 2); logits: (N, 2).

    Args:
        batch_size: N, sequences per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        vocabulary: Number of word pieces.
        positions: Longest sequence that has position embeddings.
        length: Tokens of one sequence.
        width: Width of the model.
        heads: Attention heads.
        layers: Encoder layers.

    Source:
        Devlin, Chang, Lee and Toutanova 2018, arXiv:1810.04805, the base model.
    """
    with seeded(seed):
        encoder = Classifier(
            vocabulary=vocabulary, positions=positions, width=width, heads=heads, layers=layers, classes=2
        )
        return Task(
            model=FrozenEncoder(encoder),
            batches=token_batches(batch_size, length, vocabulary, LABELS),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.AdamW, lr=1e-4),
        )


WORKLOAD = Workload(
    name="bert_transfer",
    summary="BERT-base frozen, its pooler and a new head trained",
    version=1,
    sample_unit="sequence",
    sample_shape=(384,),
    batches=(8, 16, 32),
    is_image=False,
    source="encoder of arXiv:1810.04805, the base model, under a new head",
    build=build,
    tiny=partial(build, vocabulary=64, positions=16, length=16, width=32, heads=2, layers=2),
)
