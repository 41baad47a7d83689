"""The best offer for each kind of work, where nobody has named one: classic, image and language."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import Ranking, UsageLine
from gpubench.profile import load_profiles
from gpubench.recommend.choices import without_chances
from gpubench.recommend.request import RankRequest

OTHERS: tuple[tuple[Literal["image", "language"], str], ...] = (
    ("image", "resnet50"),
    ("language", "llama_8b_lora"),
)
"""Beside the classic workloads, which the ranking itself is of."""

_DRAWS = 1
"""A line says no chance."""


def with_lines(request: RankRequest, ranking: Ranking, rank: Callable[[RankRequest], Ranking]) -> Ranking:
    """Return a ranking with its lines; without, where something was named that they are not of.

    Args:
        request: What was asked.
        ranking: The answer to it.
        rank: Answers the same question of another workload.
    """
    decision = ranking.decision
    named = request.workloads or request.mix or request.job_samples is not None
    if named or request.relative or request.task != "train" or decision is None or decision.job is None:
        return ranking
    classic = UsageLine(
        name="classic", workloads=request.workload_names, job=decision.job, choice=decision.choice
    )
    lines = (classic, *_others(request, rank))
    return msgspec.structs.replace(ranking, decision=msgspec.structs.replace(decision, lines=lines))


def _others(request: RankRequest, rank: Callable[[RankRequest], Ranking]) -> Iterator[UsageLine]:
    for name, workload in OTHERS:
        if workload not in load_profiles():
            continue
        try:
            found = rank(msgspec.structs.replace(request, workloads=(workload,), draws=_DRAWS)).decision
        except MisuseError:  # nothing that was asked for can run it, so there is nothing to say
            continue
        if found is not None and found.job is not None:
            choice = without_chances(found.choice)
            yield UsageLine(name=name, workloads=(workload,), job=found.job, choice=choice)
