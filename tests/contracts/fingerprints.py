"""Digests of what a workload computes: they differ whenever figures of two versions are not comparable.

They use facts that are the same for all machines and torch releases from 2.13 on: the calls in the workload's
own code (a module of torch counts as one call, whatever it does inside), and the outputs of the tiny model, to
two digits, for weights and inputs that do not come from torch's random numbers. The loss alone would not
suffice, because a newly initialized network has a loss near ln(classes) whatever it computes, and dropout does
not show in eval mode. Settings at their defaults are left out, because torch adds new ones. The digests of
``augment`` are valid for the kornia in constraints.txt, because it calls kornia's functions.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gpubench.discovery import load_workload, workload_names
from gpubench.models import TaskKind
from gpubench.workload import Task, Workload, forward, seeded

FINGERPRINTS = Path(__file__).parent.parent / "data" / "workload_fingerprints.json"
OLDEST_TORCH = "2.13"
"""Older versions of torch record different calls of some workloads, and draw different weights of narrow types."""
OWN_PACKAGE = "gpubench_workloads"
OUTPUTS = 16
"""Number of stored outputs of the tiny model: enough to distinguish two functions, few enough to round alike."""
SETTINGS = (
    "lr", "momentum", "dampening", "nesterov", "betas", "weight_decay", "eps", "amsgrad", "maximize",
)  # fmt: skip
"""The settings that determine the mathematics of an optimizer; other defaults choose a kernel and vary with torch."""


def fingerprint(workload: Workload) -> dict[str, str]:
    """Return a digest for each kind of fact, so a failure names the kind that changed."""
    return dict(facts(workload))


def facts(workload: Workload) -> Iterator[tuple[str, str]]:
    """Yield each kind of fact with its digest, those of the tiny model first, because they take less time."""
    assert workload.tiny is not None
    trained = TaskKind.TRAIN in workload.tasks
    tiny = workload.tiny(8, 0)
    pipeline = not trained and not list(tiny.model.parameters())
    yield "optimizer", _digest(_optimizer(tiny))
    yield "spread", _digest([f"{p.std():.1e}" for p in tiny.model.parameters() if p.numel() > 64])
    yield "outputs", _digest(None if pipeline else _outputs(tiny))
    with torch.device("cpu" if pipeline else "meta"):  # an input pipeline reads its values
        full = workload.build(2, 0)
    parameters = [(n, tuple(p.shape), p.requires_grad) for n, p in full.model.named_parameters()]
    yield "parameters", _digest(parameters or repr(full.model))
    shapes = [[tuple(t.shape), str(t.dtype)] for batch in full.batches for t in _first(batch)]
    yield "data", _digest([_data(tiny), shapes])
    yield "calls", _digest(calls(full))


def calls(task: Task) -> list[Any]:
    """Return every call of one training forward pass and loss: modules, functions and their settings.

    A function called by a module of torch is not recorded; the module is, with its settings and its output.
    """
    found: list[Any] = []
    inside: list[bool] = []  # whether each running module is the workload's own

    class Noted(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            del types
            name = getattr(func, "__name__", "").strip("_")
            if name not in {"get", "set"} and (not inside or inside[-1]):
                given, usual = kwargs or {}, _defaults(func)
                given = {n: v for n, v in given.items() if n not in usual or _differs(v, usual[n])}
                found.append([name, _plain([*args]), _plain(given)])
            return func(*args, **(kwargs or {}))

    inputs, targets = task.batches[0]
    task.model.train()
    with _watched(task.model, inside, found), Noted(), seeded(0):
        task.loss(forward(task.model, inputs), targets)
    return found


@contextmanager
def _watched(model: nn.Module, inside: list[bool], found: list[Any]) -> Iterator[None]:
    def enter(module: nn.Module, _args: Any) -> None:
        own = type(module).__module__.startswith(OWN_PACKAGE)
        inside.append(own)
        if not own:
            mode = [] if module.training else ["eval"]  # batch norm and dropout compute differently
            found.append([type(module).__name__, _settings(module), *mode])

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        if not inside.pop():
            found.append(_plain(output))

    hooks = [hook for m in model.modules() for hook in (
        m.register_forward_pre_hook(enter), m.register_forward_hook(leave),
    )]  # fmt: skip
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _settings(module: nn.Module) -> Any:
    """Return the constructor arguments that a module stores, without defaults, because torch adds new ones."""
    defaults = {name: value for kind in type(module).__mro__ for name, value in _defaults(kind).items()}
    kept = {name: getattr(module, name) for name in sorted(defaults) if hasattr(module, name)}
    return _plain({name: value for name, value in kept.items() if _differs(value, defaults[name])})


@cache
def _defaults(made_by: Any) -> dict[str, Any]:
    """Return the parameters of a function or class with their defaults; none for C code without a signature."""
    try:
        return {name: known.default for name, known in inspect.signature(made_by).parameters.items()}
    except (TypeError, ValueError):
        return {}


def _differs(value: Any, default: Any) -> bool:
    return isinstance(value, Tensor) or value != default


def _plain(value: Any) -> Any:
    """Return the shape of a tensor, a setting unchanged, and the type of anything else."""
    if isinstance(value, Tensor):
        return ["tensor", *value.shape]
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if value is None or isinstance(value, (bool, int, float, str, slice)):
        return str(value)
    return type(value).__name__


def _first(batch: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    """Return inputs and targets; if there are several inputs, the first."""
    inputs, targets = batch
    return inputs[0] if isinstance(inputs, tuple) else inputs, targets


def _data(task: Task) -> list[Any]:
    """Describe the distribution of the batches."""
    found: list[Any] = [len(task.batches)]
    for inputs, targets in map(_first, task.batches):
        drawn = inputs.float()
        found.append([f"{drawn.std():.0e}", f"{drawn.min():.0e}", f"{drawn.max():.0e}"])
        found.append(targets.unique().tolist())
    return found


def _optimizer(task: Task) -> list[Any]:
    trained = [p for p in task.model.parameters() if p.requires_grad]
    made = task.optimizer(trained or [torch.zeros(1, requires_grad=True)])
    return [
        type(made).__name__,
        {name: str(made.defaults[name]) for name in SETTINGS if name in made.defaults},
    ]


def _outputs(task: Task) -> list[float]:
    """Return how the tiny model's outputs differ between the samples of a batch, scaled and rounded.

    The model is in eval mode and float32. One that returns its loss has that as its only output.
    """
    drawn = random.Random(0)  # a stream that no version of Python or torch changes
    given, (inputs, _) = task.batches[0][0], _first(task.batches[0])
    model = task.model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(_drawn(drawn.random, parameter))
        if inputs.is_floating_point():
            inputs = _drawn(drawn.random, inputs) * 4
        else:
            words = int(next(m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)))
            inputs = torch.tensor([drawn.randrange(words) for _ in range(inputs.numel())]).view_as(inputs)
        values = forward(model, (inputs, *given[1:]) if isinstance(given, tuple) else inputs).double()
    if values.ndim == 0:
        return [round(values.item(), 2)]
    values = (values - values.mean(0)).flatten()
    kept = values[:: len(values) // OUTPUTS | 1] / values.std()
    return [round(value, 1) + 0.0 for value in kept.tolist()]


def _drawn(random_number: Callable[[], float], like: Tensor) -> Tensor:
    """Draw values that preserve the size of a signal from layer to layer: scales from 0.5 to 1.5, others around 0."""
    flat = torch.tensor([random_number() for _ in range(like.numel())]).view_as(like)
    if like.dim() == 1:
        return 0.5 + flat
    return (2 * flat - 1) * (6 / prod(like.shape[1:])) ** 0.5


def _digest(fact: Any) -> str:
    return hashlib.sha256(json.dumps(fact, sort_keys=True).encode()).hexdigest()[:12]


def all_fingerprints() -> dict[str, Any]:
    """Version and fingerprint of every workload, in the stored format."""
    found = {name: load_workload(name) for name in workload_names()}
    return {n: {"version": w.version, "fingerprint": fingerprint(w)} for n, w in found.items()}


if __name__ == "__main__":
    FINGERPRINTS.write_text(json.dumps(all_fingerprints(), indent=1) + "\n", encoding="utf-8")
