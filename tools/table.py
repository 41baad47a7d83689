"""n published measurements as arrays, which the fit and every evaluation read.

A cell is one (source, model, precision): same harness, same software. Levels are never compared across
cells.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
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
CELL = ["source", "model", "precision", "task"]
"""What the rows of a cell have in common."""


class SourceFacts(NamedTuple):
    """What no single row of a source can say: one line of data/sources.csv.

    Attributes:
        harness: Sources that share their benchmark's code share one.
        fp32_conv, fp32_matmul: Arithmetic of "fp32" on Ampere and newer, of a row that states none.
    """

    harness: str
    fp32_conv: Mode
    fp32_matmul: Mode


@cache
def _source_rows() -> list[dict[str, str]]:
    return sorted(published_rows("sources.csv"), key=lambda row: -len(row["prefix"]))


@lru_cache(maxsize=4096)
def facts_of(source: str) -> SourceFacts:
    """What is known of a source, by the longest beginning of its name that is listed.

    A stranger is a harness of its own, and taken to be PyTorch as it comes since 1.12: TF32 in convolutions
    only.
    """
    row = next(row for row in _source_rows() if source.startswith(row["prefix"]))
    conv, matmul = (Mode[row[name].upper()] for name in ("fp32_conv", "fp32_matmul"))
    return SourceFacts(row["harness"] if row["prefix"] else source, conv, matmul)


@cache
def model_profiles() -> pd.DataFrame:
    """Totals of a step of each published model by (task, model): FLOP by kind, bytes, operators, parameters.

    ``approximate`` profiles hold for ratios of GPUs and not for levels; the table says why. The
    ``tokens_per_sample`` are as publishers count them; of some models they are not known.
    """
    tables = {task: pd.DataFrame(published_rows(name)).set_index("model") for task, name in PROFILES.items()}
    text = pd.concat({str(task): table for task, table in tables.items()})
    totals = text.filter(regex="^(ops_per_step|params_m|gflop_.*|gb_fp32_.*|tokens_per_sample)$")
    return totals.replace("", "nan").astype(float).assign(approximate=text.approximate != "")


def profiles_of(task: pd.Series[Any], model: pd.Series[Any]) -> pd.DataFrame:
    """The profile of each row, whose optimizer follows "+" in the name of its model."""
    each = pd.MultiIndex.from_arrays([task, model.map(lambda name: name.partition("+")[0])])
    return model_profiles().reindex(each).set_index(task.index)


def base_model(name: str) -> str:
    """Family of a model's name, whatever its image side and optimizer."""
    return name.partition("+")[0].partition("@")[0].casefold()


@dataclass(frozen=True, kw_only=True)
class Table:
    """n measurements as arrays; ``cell`` numbers the (source, model, precision, task) of each.

    Attributes:
        harness: (n,) the harness of each row's source.
        architecture, family, vendor: (n,) of each row's GPU; ``family`` is its chip. A GPU that states no
            architecture is its own.
        base_model: (n,) model without image side and optimizer: ``ResNet50@224+Adam`` is ``resnet50``.
        execution: (n,) one of ``published.EXECUTIONS``; "" is not stated.
        torch: (n,) its version; "" where it is not stated or another framework ran.
        data_input: (n,) one of ``published.INPUTS_OF_DATA``; "" is not stated.
        doubt: (n,) what speaks against the row, in words; "" for nothing.
        batch_low, batch_high: (n,) smallest and largest plausible batch; the batch itself where it is stated.
        work_low, work_high: (n,) what a step of those batches computes and moves.
    """

    source: NDArray[Any]
    harness: NDArray[Any]
    model: NDArray[Any]
    base_model: NDArray[Any]
    precision: NDArray[Any]
    gpu_key: NDArray[Any]
    architecture: NDArray[Any]
    family: NDArray[Any]
    vendor: NDArray[Any]
    batch: Floats
    log_seconds: Floats
    level_known: Flags
    inference: Flags
    cell: Indices
    execution: NDArray[Any]
    torch: NDArray[Any]
    data_input: NDArray[Any]
    doubt: NDArray[Any]
    batch_low: Floats
    batch_high: Floats
    work: Work
    work_low: Work
    work_high: Work
    chips: Chips
    arithmetic: Arithmetic

    def __len__(self) -> int:
        """Number of measurements."""
        return len(self.batch)


def table_with(rows: pd.DataFrame, **arrays: Work | Arithmetic) -> Table:
    """Turn rows into arrays, beside what their steps compute and how.

    Args:
        rows: Columns ``CELL``, ``gpu_key``, ``seconds_per_sample``, ``level_known``, ``execution``,
            ``torch``, ``data_input``, ``doubt``, ``batch``, ``batch_low`` and ``batch_high``.
        arrays: ``work``, ``work_low``, ``work_high`` and ``arithmetic`` of the rows.
    """
    specs = [load_specs()[key] for key in rows.gpu_key]
    told = rows.assign(
        harness=[facts_of(source).harness for source in rows.source],
        base_model=rows.model.map(base_model),
        architecture=[architecture_of(spec.key) for spec in specs],
        family=[chip_of(spec.key) for spec in specs],
        vendor=[spec.vendor for spec in specs],
        log_seconds=np.log(rows.seconds_per_sample * rows.batch),
        inference=rows.task == TaskKind.INFER,
        cell=rows.groupby(CELL).ngroup(),
    ).astype({"batch": float, "batch_low": float, "batch_high": float})
    columns = {each.name: told[each.name].to_numpy() for each in fields(Table) if each.name in told}
    return Table(**columns, chips=chips_of(specs), **arrays)  # type: ignore[arg-type]


def table_of(rows: pd.DataFrame) -> Table:
    """Turn published rows into arrays, whose ``math_mode``, ``layout``, ``with_optimizer`` count too."""
    training = (rows.task == TaskKind.TRAIN).to_numpy()
    with_optimizer = rows.with_optimizer.to_numpy(dtype=bool)
    conv, matmul = (rows.math_mode.map(lambda mode, i=i: int(MATH_MODES[mode][i])).to_numpy() for i in (0, 1))
    arithmetic = Arithmetic(
        conv=conv,
        matmul=matmul,
        half=conv == Mode.HALF,
        channels_last=(rows.layout == "channels_last").to_numpy(),
        no_optimizer=training & ~with_optimizer,
        # Rows of training that were compiled say so with a doubt: only where the back end could.
        compiled=~training & (rows.execution == "compile").to_numpy(),
    )
    profile = {name: column.to_numpy() for name, column in profiles_of(rows.task, rows.model).items()}
    flops = np.stack([profile[f"gflop_{kind}"] * 1e9 for kind in _PROFILE_KINDS], axis=1)
    optimizers = [name.partition("+")[2] for name in rows.model]
    named = np.array([_OPTIMIZER_BYTES.get(each, _OPTIMIZER_BYTES["SGD"]) for each in optimizers])
    updates = np.where(training & with_optimizer, named, 0)
    # autocast casts each weight, and in training its gradient back; in "half" the whole model is stored so
    casts = np.where(rows.math_mode == "half", 0, np.where(training, 2, 1))

    def work(batch: Floats) -> Work:
        return Work(
            flops=flops * batch[:, None],
            bytes_=1e9 * (profile["gb_fp32_per_sample"] * batch + profile["gb_fp32_fixed"]),
            optimizer_bytes=updates * profile["params_m"] * 1e6,
            cast_bytes=casts * CAST_BYTES * profile["params_m"] * 1e6,
            operators=profile["ops_per_step"],
        )

    at = {"work": "batch", "work_low": "batch_low", "work_high": "batch_high"}
    works = {name: work(rows[column].to_numpy(dtype=float)) for name, column in at.items()}
    return table_with(rows, **works, arithmetic=arithmetic)


def join(a: Table, b: Table) -> Table:
    """Two tables as one; their cells stay apart."""
    return stack([a, replace(b, cell=b.cell + int(a.cell.max()) + 1)])
