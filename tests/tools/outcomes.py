"""Evaluations that several test files share; each takes two seconds."""

from __future__ import annotations

from functools import cache

import numpy as np

from gpubench.models import TaskKind
from tools.evaluate import Outcome, evaluate, scored_table
from tools.published import Table

ADDED = ("lambda-pytorch-v2", "gpu-insights-ver2", "milabench", "nikolasent")
"""Sources that were added to the first table of published rows begin with these."""


@cache
def outcome_of(hold_out: str, task: TaskKind = TaskKind.TRAIN) -> Outcome:
    """Evaluate a hold-out once in each process; callers must not change the result."""
    return evaluate(scored_table(hold_out, task), hold_out, task)


def one_vote_each(table: Table, y: np.ndarray) -> np.ndarray:
    """Return the weights that the pairs with these targets would have if there were no others."""
    partners = np.bincount(y)[y]
    voters = np.array([f"{table.harness[i]}|{table.gpu_key[i]}" for i in y])
    rows = {voter: len(set(y[voters == voter])) for voter in set(voters)}
    return 1 / (partners * np.array([rows[voter] for voter in voters]))
