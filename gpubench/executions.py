"""What runs the steps and how it executes them: every fact about each way, once.

How a step is prepared for each is in ``measure.execution``, what that takes in ``measure.estimate``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Framework(StrEnum):
    """What runs the steps. gpubench measures torch; a figure of another is never taken for one of torch."""

    TORCH = "torch"
    KERAS_TORCH = "keras-torch"
    KERAS_TENSORFLOW = "keras-tensorflow"
    KERAS_JAX = "keras-jax"


class ExecutionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution is and needs.

    Attributes:
        words: How a case "was measured": "as a CUDA graph".
        preparation: The phase between the first steps and the warm-up; None where nothing is prepared.
        needs_cuda: Whether only a device that torch reaches as ``cuda`` has it.
        on_several_gpus: Whether a job on several GPUs is measured so.
        when_published: Whether it is measured by default only where figures are to be published.
        of_tensorflow: Whether TensorFlow alone has it.
        caches_weights: Whether autocast may keep its copies of the weights from step to step.
    """

    words: str
    preparation: str | None = None
    needs_cuda: bool = False
    on_several_gpus: bool = False
    when_published: bool = False
    of_tensorflow: bool = False
    caches_weights: bool = True


class Execution(StrEnum):
    """``graph`` is the whole step in one CUDA graph; ``compile`` is torch.compile, or XLA in its place.

    ``tf-graph`` is a step traced by TensorFlow and not compiled: no CUDA graph.

    Their order is that of measuring and of every table.
    """

    EAGER = "eager"
    GRAPH = "graph"
    COMPILE = "compile"
    TF_GRAPH = "tf-graph"

    @property
    def facts(self) -> ExecutionFacts:
        """Everything else that is known of it."""
        return _FACTS[self]


_FACTS = {
    Execution.EAGER: ExecutionFacts(words="eager", on_several_gpus=True),
    Execution.GRAPH: ExecutionFacts(
        words="as a CUDA graph", preparation="capture", needs_cuda=True, caches_weights=False
    ),
    Execution.COMPILE: ExecutionFacts(words="with torch.compile", preparation="compile", when_published=True),
    Execution.TF_GRAPH: ExecutionFacts(
        words="as a TensorFlow graph", preparation="compile", of_tensorflow=True
    ),
}

CHOICES = tuple(Execution)
"""What a user may write of a run."""
OF_TORCH = tuple(execution for execution in Execution if not execution.facts.of_tensorflow)
"""What a user may ask a prediction of."""
