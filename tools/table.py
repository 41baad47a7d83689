"""n published measurements as arrays, which the fit and every evaluation read.

A cell is one (source, model, precision): same harness, same software. Levels are never compared across
cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import TaskKind
from gpubench.predict.chips import Chips, Mode, architecture_of, chip_of, chips_of
from gpubench.predict.roofline import CAST_BYTES, KINDS, Arithmetic, Work, stack
from gpubench.specs import load_specs
from tools.tables import PROFILES, published_rows

# FP32 updates of the weights: bytes moved per parameter and step, by the optimizer that follows "+".
_OPTIMIZER_BYTES = {"SGD": 20, "Adam": 28, "Adagrad": 20, "Adadelta": 28, "RMSprop": 24}
MATH_MODES = {
    "fp32": (Mode.FP32, Mode.FP32),
    "tf32": (Mode.TF32, Mode.TF32),
    "tf32-conv": (Mode.TF32, Mode.FP32),
    "amp": (Mode.HALF, Mode.HALF),
    "half": (Mode.HALF, Mode.HALF),
}
_PROFILE_KINDS = ("conv3x3", "conv_other", "matmul", "depthwise")
assert len(_PROFILE_KINDS) == len(KINDS)  # the columns of a profile are the kinds of the fit, in their order
_TOTALS = (
    "ops_per_step", "params_m", *(f"gflop_{kind}" for kind in _PROFILE_KINDS), "gb_fp32_per_sample",
    "gb_fp32_fixed",
)  # fmt: skip


class SourceFacts(NamedTuple):
    """What no single row of a source can say: one line of data/sources.csv.

    Attributes:
        prefix: How the names of the source begin; the longest that fits counts. A source that is not known is
            taken to be PyTorch as it comes since 1.12: TF32 in convolutions only.
        harness: Sources that share their benchmark's code share one.
        fp32_conv, fp32_matmul: Arithmetic of "fp32" on Ampere and newer, of a row that states none.
    """

    prefix: str
    harness: str
    fp32_conv: Mode
    fp32_matmul: Mode


@cache
def source_facts() -> tuple[SourceFacts, ...]:
    """The lines of data/sources.csv, the longest prefix first."""
    modes = {"fp32": Mode.FP32, "tf32": Mode.TF32}
    rows = [
        SourceFacts(row["prefix"], row["harness"], modes[row["fp32_conv"]], modes[row["fp32_matmul"]])
        for row in published_rows("sources.csv")
    ]
    return tuple(sorted(rows, key=lambda facts: (-len(facts.prefix), facts.prefix)))


@lru_cache(maxsize=4096)
def facts_of(source: str) -> SourceFacts:
    """What is known of a source; a stranger is a harness of its own."""
    facts = next(facts for facts in source_facts() if source.startswith(facts.prefix))
    return facts if facts.prefix else facts._replace(harness=source)


@cache
def model_profiles(task: TaskKind) -> Mapping[str, Mapping[str, float]]:
    """Totals of a step of each published model: FLOP by kind, bytes, operators, parameters."""
    return {
        row["model"]: {name: float(row[name]) for name in _TOTALS} for row in published_rows(PROFILES[task])
    }


@cache
def approximate_models(task: TaskKind) -> frozenset[str]:
    """Models whose profile holds for ratios of GPUs and not for levels; the table says why."""
    return frozenset(row["model"] for row in published_rows(PROFILES[task]) if row["approximate"])


@cache
def tokens_per_sample(task: TaskKind) -> Mapping[str, float]:
    """Tokens of one sample of each published model, as publishers count them; of some it is not known."""
    told = ((row["model"], row["tokens_per_sample"]) for row in published_rows(PROFILES[task]))
    return {model: float(tokens) for model, tokens in told if tokens}


def base_model(name: str) -> str:
    """Family of a model's name, whatever its image side and optimizer."""
    return name.partition("+")[0].partition("@")[0].casefold()


class Stated(NamedTuple):
    """How a row was measured, as far as it says so.

    Attributes:
        execution: One of ``published.EXECUTIONS``; "" is not stated.
        torch: Its version; "" where it is not stated or another framework ran.
        data_input: One of ``published.INPUTS_OF_DATA``; "" is not stated.
        optimizer_in_step: Whether the step that is timed has its optimizer.
        doubt: What speaks against the row, in words; "" for nothing.
        batch_low, batch_high: Range of plausible batches; both are the batch where it is stated.
    """

    execution: str
    torch: str
    data_input: str
    optimizer_in_step: bool
    doubt: str
    batch_low: int
    batch_high: int


class Row(NamedTuple):
    """One usable measurement, sortable so that no answer depends on the order of a file.

    ``batch`` is the middle of the plausible ones, on a log scale, where the row does not state its own.
    """

    source: str
    model: str
    precision: str
    task: TaskKind
    gpu_key: str
    batch: int
    seconds_per_sample: float
    math_mode: str
    layout: str
    level_known: bool
    stated: Stated


@dataclass(frozen=True, kw_only=True)
class Table:
    """n measurements as arrays; ``cell`` numbers the (source, model, precision, task) of each.

    Attributes:
        execution, torch, data_input, doubt: (n,) as ``Stated`` has them.
        batch_low, batch_high: (n,) smallest and largest plausible batch; the batch itself where it is stated.
        work_low, work_high: (n,) what a step of those batches computes and moves.
    """

    source: NDArray[Any]
    model: NDArray[Any]
    precision: NDArray[Any]
    gpu_key: NDArray[Any]
    batch: Floats
    log_seconds: Floats
    level_known: Flags
    inference: Flags
    cell: Indices
    work: Work
    chips: Chips
    arithmetic: Arithmetic
    execution: NDArray[Any]
    torch: NDArray[Any]
    data_input: NDArray[Any]
    doubt: NDArray[Any]
    batch_low: Floats
    batch_high: Floats
    work_low: Work
    work_high: Work

    def __len__(self) -> int:
        """Number of measurements."""
        return len(self.batch)

    @cached_property
    def harness(self) -> NDArray[Any]:
        """(n,) the harness of each row's source."""
        return np.array([facts_of(source).harness for source in self.source], dtype=object)

    @cached_property
    def architecture(self) -> NDArray[Any]:
        """(n,) the architecture of each row's GPU; a GPU that states none is its own."""
        return np.array([architecture_of(key) for key in self.gpu_key], dtype=object)

    @cached_property
    def family(self) -> NDArray[Any]:
        """(n,) the chip of each row's GPU."""
        return np.array([chip_of(key) for key in self.gpu_key], dtype=object)

    @cached_property
    def vendor(self) -> NDArray[Any]:
        """(n,) the vendor of each row's GPU."""
        return np.array([load_specs()[key].vendor for key in self.gpu_key], dtype=object)

    @cached_property
    def base_model(self) -> NDArray[Any]:
        """Model without image side and optimizer: ``ResNet50@224+Adam`` is ``resnet50``."""
        return np.array([base_model(name) for name in self.model], dtype=object)


def table_of(rows: Sequence[Row]) -> Table:
    """Turn rows into arrays."""
    specs = [load_specs()[row.gpu_key] for row in rows]
    cells = {key: i for i, key in enumerate(sorted({row[:4] for row in rows}))}
    return Table(
        source=np.array([row.source for row in rows], dtype=object),
        model=np.array([row.model for row in rows], dtype=object),
        precision=np.array([row.precision for row in rows], dtype=object),
        gpu_key=np.array([row.gpu_key for row in rows], dtype=object),
        batch=np.array([float(row.batch) for row in rows]),
        log_seconds=np.log(np.array([row.seconds_per_sample * row.batch for row in rows])),
        level_known=np.array([row.level_known for row in rows], dtype=bool),
        inference=np.array([row.task is TaskKind.INFER for row in rows], dtype=bool),
        cell=np.array([cells[row[:4]] for row in rows]),
        work=_work(rows, [row.batch for row in rows]),
        chips=chips_of(specs),
        arithmetic=_arithmetic(rows),
        execution=np.array([row.stated.execution for row in rows], dtype=object),
        torch=np.array([row.stated.torch for row in rows], dtype=object),
        data_input=np.array([row.stated.data_input for row in rows], dtype=object),
        doubt=np.array([row.stated.doubt for row in rows], dtype=object),
        batch_low=np.array([float(row.stated.batch_low) for row in rows]),
        batch_high=np.array([float(row.stated.batch_high) for row in rows]),
        work_low=_work(rows, [row.stated.batch_low for row in rows]),
        work_high=_work(rows, [row.stated.batch_high for row in rows]),
    )


def join(a: Table, b: Table) -> Table:
    """Two tables as one; their cells stay apart."""
    return stack([a, replace(b, cell=b.cell + int(a.cell.max()) + 1)])


def _work(rows: Sequence[Row], batches: Sequence[int]) -> Work:
    """What a step of each row computes and moves at a batch."""
    profiles = [model_profiles(row.task)[row.model.partition("+")[0]] for row in rows]
    batch = np.array(batches, dtype=float)

    def column(name: str) -> Floats:
        return np.array([profile[name] for profile in profiles])

    flops = np.stack([column(f"gflop_{kind}") * 1e9 for kind in _PROFILE_KINDS], axis=1)
    updates = np.array([_optimizer_bytes(row) for row in rows])
    # autocast casts each weight, and in training its gradient back; in "half" the whole model is stored so
    casts = [0 if row.math_mode == "half" else 1 if row.task is TaskKind.INFER else 2 for row in rows]
    return Work(
        flops=flops * batch[:, None],
        bytes_=1e9 * (column("gb_fp32_per_sample") * batch + column("gb_fp32_fixed")),
        optimizer_bytes=updates * column("params_m") * 1e6,
        cast_bytes=np.array(casts) * CAST_BYTES * column("params_m") * 1e6,
        operators=column("ops_per_step"),
    )


def _optimizer_bytes(row: Row) -> int:
    if row.task is TaskKind.INFER or not row.stated.optimizer_in_step:
        return 0
    _, plus, optimizer = row.model.partition("+")
    return _OPTIMIZER_BYTES.get(optimizer, 20) if plus else _OPTIMIZER_BYTES["SGD"]


def _arithmetic(rows: Sequence[Row]) -> Arithmetic:
    modes = [MATH_MODES[row.math_mode] for row in rows]
    return Arithmetic(
        conv=np.array([int(conv) for conv, _ in modes]),
        matmul=np.array([int(matmul) for _, matmul in modes]),
        half=np.array([conv is Mode.HALF for conv, _ in modes], dtype=bool),
        channels_last=np.array([row.layout == "channels_last" for row in rows], dtype=bool),
        no_optimizer=np.array(
            [row.task is TaskKind.TRAIN and not row.stated.optimizer_in_step for row in rows],
            dtype=bool,
        ),
        # Rows of training that were compiled say so with a doubt: only where the back end could.
        compiled=np.array(
            [row.task is TaskKind.INFER and row.stated.execution == "compile" for row in rows],
            dtype=bool,
        ),
    )
