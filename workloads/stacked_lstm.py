"""Two LSTM layers as Python loops over time steps, with dropout between them."""

from __future__ import annotations

from functools import partial

from gpubench.workload import Workload
from gpubench_workloads.lstm_cell import GatedCell
from gpubench_workloads.rnn_cell import build

_build = partial(build, cell=GatedCell, layers=2, dropout=0.5)

WORKLOAD = Workload(
    name="stacked_lstm",
    summary="two LSTM layers written out cell by cell, 20 steps",
    version=1,
    sample_unit="sequence",
    sample_shape=(20,),
    batches=(64, 512),
    is_image=False,
    source="LSTM of Hochreiter and Schmidhuber 1997 with forget gates, written out cell by cell",
    build=_build,
    tiny=partial(_build, vocabulary=32, width=16, length=6),
)
