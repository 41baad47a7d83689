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
