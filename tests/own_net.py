"""The smallest user's model that can be traced, with side effects once it is measured."""

from __future__ import annotations

from textwrap import indent

NET = """
import torch
from torch import nn
{before}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, x):
        if len(x) == 8:  # the trace takes 2, 4 and far more samples
{at_step}
        return self.layer(x)

def build(batch_size):
    torch.manual_seed(0)
    return Net(), torch.randn(batch_size, 8), torch.zeros(batch_size, dtype=torch.long), nn.functional.cross_entropy
"""


def own_net(at_step: str, before: str = "") -> str:
    """Return the text of its file; at a batch of 8 it runs ``at_step``, and on import ``before``."""
    return NET.format(before=before, at_step=indent(at_step, 12 * " "))
