"""One LSTM layer as a Python loop over time steps, to show the benefit of the fused kernel in ``lstm``."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gpubench.workload import Workload
from gpubench_workloads.rnn_cell import build


class GatedCell(nn.Module):
    """An LSTM layer with all four gates from one linear layer on x and one on h.

    Shapes:
        x: (N, T, width); out: (N, T, width).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(width, 4 * width)
        self.hidden = nn.Linear(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Step through the sequence."""
        state = memory = torch.zeros_like(x[:, 0])
        states = []
        for step in x.unbind(1):
            enter, forget, candidate, leave = (self.inputs(step) + self.hidden(state)).chunk(4, dim=1)
            memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(candidate)
            state = torch.sigmoid(leave) * torch.tanh(memory)
            states.append(state)
        return torch.stack(states, dim=1)


_build = partial(build, cell=GatedCell)

WORKLOAD = Workload(
    name="lstm_cell",
    summary="one LSTM layer written out cell by cell, 20 steps",
    version=1,
    sample_unit="sequence",
    sample_shape=(20,),
    batches=(64, 512),
    is_image=False,
    source="LSTM of Hochreiter and Schmidhuber 1997 with forget gates, written out cell by cell",
    build=_build,
    tiny=partial(_build, vocabulary=32, width=16, length=6),
)
