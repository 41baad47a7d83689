"""Frameworks and execution modes, with all facts about each.

A new execution mode is a member of ``Execution`` and a row of ``_FACTS``; an entry of ``_WAYS`` in
``measure.guards`` prepares a torch step for it. Without that entry, the mode is refused, never silently run
eagerly.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Framework(StrEnum):
    """The framework that runs the steps. Figures from other frameworks are never used for torch."""

    TORCH = "torch"
    KERAS_TORCH = "keras-torch"
    KERAS_TENSORFLOW = "keras-tensorflow"
    KERAS_JAX = "keras-jax"


class ExecutionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties and requirements of an execution mode.

    Attributes:
        words: Completes "was measured ...": "as a CUDA graph".
        preparation: Name of the phase between the first steps and the warm-up; None if there is none.
        host_s_per_operator: Default host time of a step per operator [s]; None if no speeds in this mode are
            published, so this mode is never predicted.
        needs_cuda: Whether it needs a ``cuda`` device of torch.
        on_several_gpus: Whether jobs on several GPUs can use it.
        of_tensorflow: Whether it exists only in TensorFlow.
        caches_weights: Whether autocast may cache its copies of the weights during a step.
    """

    words: str
    preparation: str | None = None
    host_s_per_operator: float | None = None
    needs_cuda: bool = False
    on_several_gpus: bool = False
    of_tensorflow: bool = False
    caches_weights: bool = True


class Execution(StrEnum):
    """How a step is executed; measurements and tables use this order.

    ``graph`` is the whole step in one CUDA graph; ``compile`` is torch.compile, or XLA under Keras.
    ``tf-graph`` is a step that TensorFlow traces but does not compile; it is not a CUDA graph.
    """

    EAGER = "eager"
    GRAPH = "graph"
    COMPILE = "compile"
    TF_GRAPH = "tf-graph"

    @property
    def facts(self) -> ExecutionFacts:
        """All other facts about this mode."""
        return _FACTS[self]


_FACTS = {
    # Host time per operator: an H200's host took 20 us (lstm) to 49 us (cnn) in eager steps at batch 64.
    Execution.EAGER: ExecutionFacts(
        words="eager",
        host_s_per_operator=20e-6,
        on_several_gpus=True,
    ),
    # Inside a CUDA graph, the host launches nothing.
    Execution.GRAPH: ExecutionFacts(
        words="as a CUDA graph",
        preparation="capture",
        host_s_per_operator=1e-9,
        needs_cuda=True,
        caches_weights=False,
    ),
    # torch.compile fuses operators.
    Execution.COMPILE: ExecutionFacts(
        words="with torch.compile",
        preparation="compile",
        host_s_per_operator=4e-6,
    ),
    Execution.TF_GRAPH: ExecutionFacts(
        words="as a TensorFlow graph", preparation="compile", of_tensorflow=True
    ),
}

REFUSED_IN_CAPTURE = "capturing"
"""Text in CUDA's error when it refuses a call during a capture; the errors that follow lack it."""
CHOICES = tuple(Execution)
"""Values that a user may give for a run."""
OF_TORCH = tuple(execution for execution in Execution if not execution.facts.of_tensorflow)
"""Values that a user may give for a prediction."""
COMPILE_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
"""Environment variables that turn torch.compile off."""
