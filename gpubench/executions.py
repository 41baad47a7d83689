"""What runs the steps and how it executes them: every fact about each way, once.

A new execution is a member of ``Execution`` and a row of ``_FACTS``; how a step of torch is prepared for it
is a row of ``measure.execution``. Without that it is refused, never run eagerly under its name.
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
        preparation: The phase between the first steps and the warm-up; None if nothing is prepared.
        host_s_per_operator: Host time of a step per operator, where it was not measured [s]; None if
            nothing published says how fast such steps are: then it is measured, never predicted.
        needs_cuda: Whether only a device that torch reaches as ``cuda`` has it.
        on_several_gpus: Whether a job on several GPUs is measured so.
        of_tensorflow: Whether TensorFlow alone has it.
        caches_weights: Whether autocast may keep its copies of the weights from step to step.
    """

    words: str
    preparation: str | None = None
    host_s_per_operator: float | None = None
    needs_cuda: bool = False
    on_several_gpus: bool = False
    of_tensorflow: bool = False
    caches_weights: bool = True


class Execution(StrEnum):
    """``graph`` is the whole step in one CUDA graph; ``compile`` is torch.compile, or XLA instead.

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
    # Host time per operator: an H200's host took 20 us (lstm) to 49 us (cnn) in eager steps at batch 64.
    Execution.EAGER: ExecutionFacts(
        words="eager",
        host_s_per_operator=20e-6,
        on_several_gpus=True,
    ),
    # Inside a CUDA graph the host issues nothing.
    Execution.GRAPH: ExecutionFacts(
        words="as a CUDA graph",
        preparation="capture",
        host_s_per_operator=1e-9,
        needs_cuda=True,
        caches_weights=False,
    ),
    # torch.compile joins operators.
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
"""In the words in which CUDA refuses a call inside a capture; what follows from it has others."""
CHOICES = tuple(Execution)
"""What a user may write of a run."""
OF_TORCH = tuple(execution for execution in Execution if not execution.facts.of_tensorflow)
"""What a user may ask a prediction of."""
COMPILE_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
"""Variables by which a user turns torch.compile off."""
