"""BERT-base fine-tuned as a two-class classifier: twelve encoder layers over 384 tokens."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Task, Workload, initialize_narrow, seeded, token_batches

LABELS = (0, 1, 1, 1)
"""Label set: one of two classes is three times as common, so the model can learn something right away."""
SEGMENTS = 2


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each followed by a residual sum and a layer norm.

    Shapes:
        x, out: (N, T, width).
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout_share = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.enter = nn.Linear(width, 4 * width)
        self.leave = nn.Linear(4 * width, width)
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform each token."""
        x = self.attention_norm(x + self.dropout(self._attend(x)))
        wide = nn.functional.gelu(self.enter(x))
        out: Tensor = self.feed_forward_norm(x + self.dropout(self.leave(wide)))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout_share if self.training else 0.0
        )
        out: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, width))
        return out


class Classifier(nn.Module):
    """Embeddings, encoder, and a head on the first token.

    Shapes:
        tokens: (N, T) int64; logits: (N, classes).
    """

    def __init__(
        self, *, vocabulary: int, positions: int, width: int, heads: int, layers: int, classes: int
    ) -> None:
        super().__init__()
        dropout = 0.1
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.segments = nn.Embedding(SEGMENTS, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)
        self.apply(initialize_narrow)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score the classes by the first token."""
        pooled = torch.tanh(self.pooler(self.encode(tokens)[:, 0]))
        logits: Tensor = self.head(self.dropout(pooled))
        return logits

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the encoder's last states, (N, T, width); all tokens are in the first segment."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        segment = self.segments(torch.zeros_like(tokens))
        x: Tensor = self.dropout(self.norm(self.words(tokens) + self.positions(places) + segment))
        for layer in self.layers:
            x = layer(x)
        return x


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
        Devlin, Chang, Lee and Toutanova 2018, arXiv:1810.04805, the base model (109 M parameters).
    """
    with seeded(seed):
        return Task(
            model=Classifier(
                vocabulary=vocabulary, positions=positions, width=width, heads=heads, layers=layers, classes=2
            ),
            batches=token_batches(batch_size, length, vocabulary, LABELS),
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.AdamW, lr=1e-4),
        )


WORKLOAD = Workload(
    name="bert_base",
    summary="BERT-base encoder fine-tuned on 384 tokens",
    version=1,
    sample_unit="sequence",
    sample_shape=(384,),
    batches=(8, 16, 32),
    is_image=False,
    source="Devlin, Chang, Lee and Toutanova 2018, arXiv:1810.04805, the base model",
    build=build,
    tiny=partial(build, vocabulary=64, positions=16, length=16, width=32, heads=2, layers=2),
)
