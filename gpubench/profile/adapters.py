"""Low-rank adapters beside the linear layers of any model, as a trace sees them: LoRA and QLoRA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gpubench.errors import MisuseError
from gpubench.profile.blocks import frozen_layers
from gpubench.profile.nf4 import PackedLinear

if TYPE_CHECKING:
    from gpubench.workload import Task

RANK = 16


def adapt(task: Task, *, in_4_bits: bool) -> None:
    """Freeze a model and put adapters beside every linear layer of its repeated blocks, in place.

    Args:
        task: Whose model is of the type in which its base lies.
        in_4_bits: Whether these layers lie in 4 bits; embedding and head stay as they were.

    Raises:
        MisuseError: If it has none.
    """
    task.model.requires_grad_(False)
    read_by_attention = nn.modules.linear.NonDynamicallyQuantizableLinear  # which asks for its weight itself
    frozen = (each for each in frozen_layers(task.model) if not isinstance(each, read_by_attention))
    layers = {id(layer): layer for layer in frozen}
    if not layers:
        raise MisuseError("it has no linear layers in repeated blocks beside which adapters could be trained")
    for module in list(task.model.modules()):
        for name, child in list(module.named_children()):
            if id(child) in layers:
                layer = layers[id(child)]
                setattr(module, name, Adapted(layer, PackedLinear(layer) if in_4_bits else layer))


class Adapted(nn.Module):
    """A frozen layer, and beside it two narrow ones that are trained.

    Shapes:
        x: (..., inputs); out: (..., outputs).

    Source:
        Hu and others 2021, LoRA, arXiv:2106.09685.
    """

    def __init__(self, layer: nn.Linear, held: nn.Module) -> None:
        super().__init__()
        like = {"dtype": layer.weight.dtype, "device": layer.weight.device}
        self.held = held
        self.down = nn.Linear(layer.in_features, RANK, bias=False, **like)
        self.up = nn.Linear(RANK, layer.out_features, bias=False, **like)

    def forward(self, x: Tensor) -> Tensor:
        """Add both."""
        return torch.add(self.held(x), self.up(self.down(x)))
