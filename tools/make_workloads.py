"""The table of docs/workloads.md, made of the workloads and their profiles; the page around it stays.

``python -m tools.make_workloads`` writes it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from gpubench.discovery import load_workload, workload_names
from gpubench.measure.plan import batch_of
from gpubench.measure.request import RunRequest
from gpubench.models import TaskKind, WorkloadProfile
from gpubench.profile import load_profiles
from gpubench.workload import forward

PAGE = Path(__file__).parents[1] / "docs" / "workloads.md"
HEAD = (
    "| name | one sample | vocabulary | classes | parameters | trained by, rate | batches | on a CPU |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def _row(name: str) -> str:
    """The line of a workload in the table of the page."""
    workload, profile = load_workload(name), load_profiles()[name]
    cells = [f"`{name}`", _sample(profile), *_words_and_classes(name), _parameters(profile)]
    cells += [_rule(name), ", ".join(map(str, workload.batches)), str(_cpu_batch(profile))]
    return f"| {' | '.join(cells)} |\n"


def _sample(profile: WorkloadProfile) -> str:
    if len(profile.sample_shape) == 1:
        return f"{profile.sample_shape[0]} tokens"
    return " x ".join(map(str, profile.sample_shape))


def _words_and_classes(name: str) -> tuple[str, str]:
    workload = load_workload(name)
    if TaskKind.TRAIN not in workload.tasks:
        return "-", "-"
    with torch.device("meta"):
        task = workload.build(1, 0)
        scores = forward(task.model, task.batches[0][0])
    words = max((m.num_embeddings for m in task.model.modules() if isinstance(m, nn.Embedding)), default=None)
    classes = scores.shape[-1] if scores.ndim else words  # a model that gives its loss scores every word
    return "-" if words is None else f"{words:,}", f"{classes:,}"


def _parameters(profile: WorkloadProfile) -> str:
    if not profile.parameters:
        return "none"
    frozen = TaskKind.TRAIN in profile.tasks and profile.trainable_parameters != profile.parameters
    return f"{profile.parameters:,}" + (f", {profile.trainable_parameters:,} trained" if frozen else "")


def _rule(name: str) -> str:
    workload = load_workload(name)
    if TaskKind.TRAIN not in workload.tasks or workload.tiny is None:
        return "-"
    made = workload.tiny(1, 0).optimizer([torch.zeros(1, requires_grad=True)])
    momentum = f", momentum {made.defaults['momentum']}" if made.defaults.get("momentum") else ""
    return f"{type(made).__name__} {made.defaults['lr']:g}{momentum}".replace("0.0001", "1e-4")


def _cpu_batch(profile: WorkloadProfile) -> int:
    return batch_of(RunRequest(workloads=(profile.name,)), profile, on_cpu=True)


def page() -> str:
    """Return the page with its table made anew."""
    before, rest = PAGE.read_text(encoding="utf-8").split(HEAD)
    after = rest[rest.index("\n\n") :]
    return before + HEAD + "".join(map(_row, workload_names())).rstrip() + after


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
