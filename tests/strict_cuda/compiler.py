"""The control flow of torch.compile: when it compiles again, what it counts, which random numbers it draws.

Other tests run torch's real compiler on the CPU; under the modes that watch the fake device it would be
disabled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from strict_cuda.machine import Machine


def compiler(machine: Machine) -> Callable[..., Any]:
    """Make the replacement for torch.compile."""

    class OptimizedModule(nn.Module):
        """A module that is compiled at its first call of each kind. Source: torch/_dynamo/eval_frame.py."""

        def __init__(self, original: nn.Module) -> None:
            super().__init__()
            self._orig_mod = original
            self._known: set[Any] = set()

        def forward(self, *args: Any) -> Any:
            """Compile if necessary, and call the module.

            Source: torch/_dynamo/guards.py: a graph is valid for shapes, types, gradients and the modes of
            its modules. torch/_dynamo/variables/builder.py: recurrent layers are not traced, and each is
            a graph break. torch/_dynamo/output_graph.py counts the graphs. torch/_inductor/config.py,
            fallback_random: compiled code draws its own random numbers.
            """
            from torch._dynamo.utils import counters

            modules = tuple(self._orig_mod.modules())
            way = (
                tuple((tuple(a.shape), a.dtype) for a in args),
                tuple(m.training for m in modules),
                torch.is_grad_enabled(),
                torch.is_autocast_enabled("cpu"),
            )
            if way not in self._known:
                self._known.add(way)
                machine.call("compile")
                machine.spend(machine.compile_s)
                if any(isinstance(m, nn.RNNBase) for m in modules) and not machine.compiles_recurrent:
                    counters["unimplemented"]["Attempted to wrap RNN, GRU, or LSTM"] += 1
                else:
                    counters["stats"]["unique_graphs"] += 1
            if any(isinstance(m, nn.Dropout) and m.training for m in modules):
                torch.rand(1, device="cuda")  # compiled code draws its own random numbers
            return self._orig_mod(*args)

    def compiled(model: nn.Module, **_: Any) -> OptimizedModule:
        return OptimizedModule(model)

    return compiled
