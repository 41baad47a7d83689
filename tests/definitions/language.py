"""BERT, GPT-2 and OPT as transformers runs them without fused attention: each step on the scores is a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined
from gpubench.workload import Workload, initialize_narrow, token_batches, token_cross_entropy

DROPOUT = 0.1
SEGMENTS = 2


@dataclass(frozen=True)
class Sizes:
    """The sizes of one network; the feed-forward network is four times as wide as the rest.

    Attributes:
        positions: Number of position embeddings, at least the length of the sequence.
    """

    width: int
    heads: int
    layers: int
    vocabulary: int
    positions: int
    length: int


class Heads(nn.Module):
    """Softmax of the scaled scores, with dropout, times the values.

    Shapes:
        query, key, value, out: (N, T, width).
    """

    def __init__(self, heads: int, dropout: float, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.heads = heads
        self.mask = mask
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shape = query.shape
        query, key, value = (
            x.reshape(*shape[:2], self.heads, -1).transpose(1, 2) for x in (query, key, value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        shares = self.dropout(self.mask(scores).softmax(-1))
        return (shares @ value).transpose(1, 2).reshape(shape)


def leave_out_padding(scores: Tensor) -> Tensor:
    """Add the mask that lowers the scores of padding: one number for each token of each sequence."""
    return scores + torch.zeros(len(scores), 1, 1, scores.shape[-1], device=scores.device)


def leave_out_later(scores: Tensor) -> Tensor:
    """Lower the scores of later tokens."""
    length = scores.shape[-1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=scores.device).tril()
    return torch.where(earlier, scores, torch.finfo(scores.dtype).min)


class TanhGELU(nn.Module):
    """GELU by its formula, with one kernel per step."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class EncoderLayer(nn.Module):
    """Attention and feed-forward network of BERT, each followed by a sum and a norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.attend = Heads(sizes.heads, DROPOUT, leave_out_padding)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(DROPOUT)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.output(self.attend(self.query(x), self.key(x), self.value(x)))
        x = self.norms[0](self.dropout(seen) + x)
        return self.norms[1](self.feed_forward(x) + x)


class Encoder(nn.Module):
    """BERT, with the pooler that reads the first token.

    Shapes:
        tokens: (N, T) int64; out: (N, T, width), (N, width).
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(sizes.positions, sizes.width)
        self.segments = nn.Embedding(SEGMENTS, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.Sequential(*(EncoderLayer(sizes) for _ in range(sizes.layers)))
        self.pooler = nn.Linear(sizes.width, sizes.width)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.segments(torch.zeros_like(tokens)) + self.places(places)
        x = self.layers(self.dropout(self.norm(x)))
        return x, torch.tanh(self.pooler(x[:, 0]))


class Spans(nn.Module):
    """BERT that finds the two ends of an answer.

    Shapes:
        tokens: (N, T) int64; logits: (N, T, 2).
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.encoder = Encoder(sizes)
        self.head = nn.Linear(sizes.width, 2)
        self.apply(initialize_narrow)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens)[0])


class Pretraining(nn.Module):
    """BERT that predicts words; next-sentence prediction is computed too, but not trained.

    Shapes:
        tokens: (N, T) int64; logits: (N, T, vocabulary).
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.encoder = Encoder(sizes)
        self.dense = nn.Linear(sizes.width, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(sizes.vocabulary))
        self.follows = nn.Linear(sizes.width, 2)
        self.apply(initialize_narrow)

    def forward(self, tokens: Tensor) -> Tensor:
        x, pooled = self.encoder(tokens)
        self.follows(pooled)
        x = self.norm(nn.functional.gelu(self.dense(x)))
        return nn.functional.linear(x, self.encoder.words.weight, self.bias)


class DecoderLayer(nn.Module):
    """Norm and attention, norm and feed-forward network, each added to its input.

    GPT-2 has one projection for query, key and value, a GELU, and dropout on the scores. OPT has three projections,
    a ReLU, and no dropout on the scores.
    """

    def __init__(self, sizes: Sizes, *, is_gpt2: bool) -> None:
        super().__init__()
        width = sizes.width
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        wide = [3 * width] if is_gpt2 else [width] * 3
        self.entries = nn.ModuleList(nn.Linear(width, out) for out in wide)
        self.attend = Heads(sizes.heads, DROPOUT if is_gpt2 else 0.0, leave_out_later)
        self.output = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width),
            TanhGELU() if is_gpt2 else nn.ReLU(),
            nn.Linear(4 * width, width),
            nn.Dropout(DROPOUT),
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norms[0](x)
        entered = [entry(normed) for entry in self.entries]
        query, key, value = entered if len(entered) > 1 else entered[0].split(x.shape[-1], dim=-1)
        x = x + self.dropout(self.output(self.attend(query, key, value)))
        return x + self.feed_forward(self.norms[1](x))


class Decoder(nn.Module):
    """GPT-2 or OPT, with the embedding tied to the head.

    Shapes:
        tokens: (N, T) int64; logits: (N, T, vocabulary).
    """

    def __init__(self, sizes: Sizes, *, is_gpt2: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(sizes.positions, sizes.width)
        self.dropout = nn.Dropout(DROPOUT if is_gpt2 else 0.0)
        self.layers = nn.Sequential(*(DecoderLayer(sizes, is_gpt2=is_gpt2) for _ in range(sizes.layers)))
        self.norm = nn.LayerNorm(sizes.width)
        self.apply(initialize_narrow)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.dropout(self.words(tokens) + self.places(places)))
        return nn.functional.linear(self.norm(x), self.words.weight)


def span_cross_entropy(logits: Tensor, ends: Tensor) -> Tensor:
    """Return the mean loss of the two ends, which have the same labels here.

    Shapes:
        logits: (N, T, 2); ends: (N,).
    """
    first, last = logits.unbind(-1)
    return (nn.functional.cross_entropy(first, ends) + nn.functional.cross_entropy(last, ends)) / 2


def _definition(name: str, sizes: Sizes, network: Callable[[Sizes], nn.Module], source: str) -> Workload:
    is_span = network is Spans
    return defined(
        name,
        f"{name}, attention not fused",
        source,
        model=partial(network, sizes),
        optimizer=partial(torch.optim.AdamW, lr=3e-5),
        batch_size=1,
        shape=(sizes.length,),
        unit="sequence",
        batches=lambda n: token_batches(
            n, sizes.length, sizes.vocabulary, (1, 2), label_each_token=not is_span, count=1
        ),
        loss=span_cross_entropy if is_span else token_cross_entropy,
    )


_BERT = "Devlin, Chang, Lee and Toutanova 2018, arXiv:1810.04805"
_GPT2 = "Radford and others 2019, Language Models are Unsupervised Multitask Learners"
_NEUSIGHT = "sizes of sitar-lab/NeuSight, scripts/asplos/data/DLmodel_configs"
_SQUAD = "vocabulary of 30,528 and heads of NVIDIA/DeepLearningExamples, BERT"
GPT2 = partial(Decoder, is_gpt2=True)
OPT = partial(Decoder, is_gpt2=False)

DEFINITIONS = tuple(
    _definition(name, Sizes(*sizes), network, source)
    for name, sizes, network, source in (
        ("bert_base_squad", (768, 12, 12, 30_528, 512, 384), Spans, f"{_BERT}; {_SQUAD}"),
        ("bert_large_squad", (1024, 16, 24, 30_528, 512, 384), Spans, f"{_BERT}; {_SQUAD}"),
        ("bert_large_s512", (1024, 16, 24, 30_522, 512, 512), Pretraining, f"{_BERT}; {_NEUSIGHT}"),
        ("gpt2_large_s1024", (1280, 20, 36, 50_257, 1024, 1024), GPT2, f"{_GPT2}; {_NEUSIGHT}"),
        ("gpt3_xl_s2048", (3072, 24, 24, 50_257, 2048, 2048), GPT2, f"{_GPT2}; {_NEUSIGHT} (3,072 wide)"),
        ("gpt3_27_s2048", (2560, 32, 32, 50_257, 2048, 2048), GPT2, f"{_GPT2}; {_NEUSIGHT}"),
        (
            "opt_13_s2048",
            (2048, 32, 24, 50_272, 2050, 2048),
            OPT,
            f"Zhang and others 2022, arXiv:2205.01068; {_NEUSIGHT}",
        ),
    )
)
