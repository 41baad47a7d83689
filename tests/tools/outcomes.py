"""Evaluations that several test files share; each takes two seconds."""

from __future__ import annotations

from functools import cache

from gpubench.models import TaskKind
from tools.evaluate import Outcome, evaluate, scored_table


@cache
def outcome_of(hold_out: str, task: TaskKind = TaskKind.TRAIN) -> Outcome:
    """Evaluate a hold-out once in each process; callers must not change the result."""
    return evaluate(scored_table(hold_out, task), hold_out, task)
