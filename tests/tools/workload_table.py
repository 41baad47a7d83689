"""The table of docs/workloads.md: ``python tests/tools/workload_table.py`` updates it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from gpubench.discovery import load_workload, workload_names
from gpubench.models import TaskKind
from gpubench.profile import load_profiles
from gpubench.workload import Task, Workload, forward

PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"
HEAD = (
    "| name | one sample | vocabulary | classes | parameters | trained by, rate | batches |\n"
    "|---|---|---|---|---|---|---|\n"
)


def _row(name: str) -> str:
    """Return a workload's row of the table."""
    workload, profile = load_workload(name), load_profiles()[name]
    sample, parameters, trained = profile.sample_shape, profile.parameters, profile.trainable_parameters
    trains = TaskKind.TRAIN in workload.tasks
    cells = [
        f"`{name}`",
        " x ".join(map(str, sample)) if len(sample) > 1 else f"{sample[0]} tokens",
        *(_words_and_classes(workload) if trains else "--"),
        (f"{parameters:,}" if parameters else "none")
        + (f", {trained:,} trained" if trains and trained != parameters else ""),
        "-" if workload.tiny is None or not trains else _rule(workload.tiny(1, 0)),
        ", ".join(map(str, workload.batches)),
    ]
    return f"| {' | '.join(cells)} |\n"


def _words_and_classes(workload: Workload) -> tuple[str, str]:
    with torch.device("meta"):
        task = workload.build(1, 0)
        scores = forward(task.model, task.batches[0][0])
    words = max((m.num_embeddings for m in task.model.modules() if isinstance(m, nn.Embedding)), default=None)
    classes = scores.shape[-1] if scores.ndim else words  # a model that returns its loss scores every word
    return "-" if words is None else f"{words:,}", f"{classes:,}"


def _rule(task: Task) -> str:
    made = task.optimizer([torch.zeros(1, requires_grad=True)])
    momentum = f", momentum {made.defaults['momentum']}" if made.defaults.get("momentum") else ""
    return f"{type(made).__name__} {made.defaults['lr']:g}{momentum}".replace("0.0001", "1e-4")


def page() -> str:
    """Return the page with its table updated."""
    before, rest = PAGE.read_text(encoding="utf-8").split(HEAD)
    after = rest[rest.index("\n\n") :]
    return before + HEAD + "".join(map(_row, workload_names())).rstrip() + after


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
