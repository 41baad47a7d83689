"""What is measured where no workload is named: two suites, each with the precisions of its workloads."""

from __future__ import annotations

from collections.abc import Mapping

from gpubench.measure.request import RunRequest, SuiteName
from gpubench.models import Execution, Framework
from gpubench.precisions import AMP, Precision

_BOTH = (Precision.FP32, AMP)
SUITES: Mapping[SuiteName, Mapping[str, tuple[str, ...]]] = {
    "default": {"cnn": _BOTH, "lstm": _BOTH, "vgg16": _BOTH, "resnet50": (AMP,)},
    "modern": dict.fromkeys(("resnet50", "vit_b16", "bert_base", "llama_1b"), (AMP,)),
}
_EXECUTIONS: Mapping[SuiteName, tuple[str, ...]] = {
    "default": (),
    "modern": (Execution.EAGER, Execution.COMPILE),
}
_ON_A_GPU = "resnet50"
"""Of the default suite: a step of it takes a CPU too long, and it is not a Keras model here."""


def references(request: RunRequest) -> tuple[str, ...]:
    """Return the workloads that a request names, or those of its suite."""
    return request.workloads or tuple(SUITES[request.suite or "default"])


def asked_cases(request: RunRequest, *, on_cpu: bool) -> dict[str, tuple[str, ...]]:
    """Return the precisions of each workload, by its reference; none means those that the device has."""
    if request.workloads:
        return dict.fromkeys(request.workloads, request.precisions)
    rows = dict(SUITES[request.suite or "default"])
    if request.suite is None and (on_cpu or request.frameworks != (Framework.TORCH,)):
        del rows[_ON_A_GPU]
    return {name: request.precisions or usual for name, usual in rows.items()}


def asked_executions(request: RunRequest) -> tuple[str, ...]:
    """Return the executions that are asked for; none means those of the device."""
    if request.executions or request.workloads:
        return request.executions
    return _EXECUTIONS[request.suite or "default"]
