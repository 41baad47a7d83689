"""What several tests of memory share: a case by its parts, and a model that cannot be traced."""

from __future__ import annotations

from typing import Any

from gpubench.models import Case, Execution, Precision, TaskKind, WorkloadProfile

BY_VALUE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)

def build(n):
    return Net(), torch.randn(n, 4), torch.randn(n, 4), nn.MSELoss()
"""
"""A file of an own model that looks at its values."""

GPT = """
import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, TOKENS, WIDTH, LAYERS, HEADS = 128_000, 2048, 768, 12, 12

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.joint(self.one(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.narrow(F.gelu(self.wide(self.two(x))))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last(x))

def build(n):
    tokens = torch.randint(VOCABULARY, (n, TOKENS))
    return GPT(), tokens, tokens, lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten())

def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)
"""
"""A file of an own language model whose scores take more than all else: 8 x 2,048 tokens x 128,000 words."""


def case_of(
    profile: WorkloadProfile, task: TaskKind, precision: Precision, batch_size: int, **others: Any
) -> Case:
    """A case of a workload, eager and on one GPU unless something else is said."""
    given = {"execution": Execution.EAGER, "memory_format": None} | others
    return Case(
        workload=profile.name,
        workload_version=profile.version,
        task=task,
        precision=precision,
        batch_size=batch_size,
        sample_unit=profile.sample_unit,
        **given,
    )
