"""Published measurements, the shipped ones or anybody's CSV in the same columns, as arrays.

A cell is one (source, model, precision): same harness, same software. Levels are never compared across
cells. Rows that cannot be used are counted and named, not fatal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats, Indices
from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, read_bytes
from gpubench.models import GpuSpec, Precision, TaskKind
from gpubench.predict.csv_lines import Broken, csv_lines
from gpubench.predict.question import FITTED_VENDOR, capability_of, domain_gap
from gpubench.predict.roofline import CAST_BYTES, KINDS, Arithmetic, Chips, Mode, Work, chips_of, stack, take
from gpubench.shipped import data_rows
from gpubench.specs import find_spec, load_specs
from gpubench.units import figure_in, plain

COLUMNS = ("source", "gpu", "model", "mode", "precision", "batch_size", "metric", "unit", "value")
_OPTIONAL = (
    "gpu_key", "math_mode", "memory_layout", "execution", "torch", "data_input", "optimizer_in_step",
    "batch_low", "batch_high", "doubt",
)  # fmt: skip
MEASUREMENTS = ("published.csv", "published_inference.csv")
"""The shipped tables of measurements: training steps first, forward passes in both."""
PROFILES = {TaskKind.TRAIN: "model_profiles.csv", TaskKind.INFER: "inference_profiles.csv"}
"""What a training step, or a forward pass, of a published model computes and moves."""
_USUAL = {"mode": "train", "batch_size": "0", "metric": ""}
"""What a missing column says; the metric then follows from the unit."""
_TASKS = {"train": TaskKind.TRAIN, "inference": TaskKind.INFER}
EXECUTIONS = ("eager", "compile", "graph", "fused")
"""How the steps of a row were issued; ``fused`` is eager with kernels that join operators."""
INPUTS_OF_DATA = ("synthetic", "host", "loader")
"""Where the batches of a row came from: made on the GPU, copied from the host, or loaded and decoded."""
_ANSWERS = {"yes": True, "no": False}
_UNSTATED_BATCH = (16, 1024)
"""Plausible batches of a row that states neither its batch nor a range: most published harnesses' own."""
MOST_BATCH = 1_000_000_000
MOST_ROWS = 20_000  # different rows of one file; repeats of one are merged, the rest is counted
_MOST_NAMED = 5  # broken lines of one kind that are named by their number
GNMT_TOKENS = 54  # 27 on each side; tokens per second count both

# FP32 updates of the weights: bytes moved per parameter and step, by the optimizer that follows "+".
_OPTIMIZER_BYTES = {"SGD": 20, "Adam": 28, "Adagrad": 20, "Adadelta": 28, "RMSprop": 24}

_MATH_MODES = {
    "fp32": (Mode.FP32, Mode.FP32),
    "tf32": (Mode.TF32, Mode.TF32),
    "tf32-conv": (Mode.TF32, Mode.FP32),
    "amp": (Mode.HALF, Mode.HALF),
    "half": (Mode.HALF, Mode.HALF),
}
_PROFILE_KINDS = ("conv3x3", "conv_other", "matmul", "depthwise")
_TOTALS = (
    "ops_per_step", "params_m", *(f"gflop_{kind}" for kind in _PROFILE_KINDS), "gb_fp32_per_sample",
    "gb_fp32_fixed",
)  # fmt: skip
_HALF_LABELS = frozenset({"amp", "fp16", "bf16", "amp-fp16", "amp-bf16", "mixed"})
_PRECISIONS = frozenset({"fp32", "tf32"}) | _HALF_LABELS
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_PER_SECOND = frozenset({"images/s", "sequences/s", "samples/s", "items/s", "tokens/s"})


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
        for row in data_rows("sources.csv")
    ]
    return tuple(sorted(rows, key=lambda facts: (-len(facts.prefix), facts.prefix)))


@lru_cache(maxsize=4096)
def facts_of(source: str) -> SourceFacts:
    """What is known of a source; a stranger is a harness of its own."""
    facts = next(facts for facts in source_facts() if source.startswith(facts.prefix))
    return facts if facts.prefix else facts._replace(harness=source)


class Stated(NamedTuple):
    """How a row was measured, as far as it says so.

    Attributes:
        execution: One of ``EXECUTIONS``; "" is not stated.
        torch: Its version; "" where it is not stated or another framework ran.
        data_input: One of ``INPUTS_OF_DATA``; "" is not stated.
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
    def vendor(self) -> NDArray[Any]:
        """(n,) the vendor of each row's GPU."""
        return np.array([load_specs()[key].vendor for key in self.gpu_key], dtype=object)

    @cached_property
    def base_model(self) -> NDArray[Any]:
        """Model without image side and optimizer: ``ResNet50@224+Adam`` is ``resnet50``."""
        return np.array([base_model(name) for name in self.model], dtype=object)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A file as read: the usable rows, and why others were left out, by reason.

    Attributes:
        assumed: What a missing column was taken to say.
        unread: Columns that mean nothing here.
    """

    table: Table
    rows: int
    skipped: Mapping[str, int]
    assumed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def architecture_of(gpu_key: str) -> str:
    """The architecture of a GPU; one that states none is its own."""
    return load_specs()[gpu_key].architecture or gpu_key


def base_model(name: str) -> str:
    """Family of a model's name, whatever its image side and optimizer."""
    return name.partition("+")[0].partition("@")[0].casefold()


@cache
def model_profiles(task: TaskKind) -> Mapping[str, Mapping[str, float]]:
    """Totals of a step of each published model: FLOP by kind, bytes, operators, parameters."""
    return {row["model"]: {name: float(row[name]) for name in _TOTALS} for row in data_rows(PROFILES[task])}


@cache
def approximate_models(task: TaskKind) -> frozenset[str]:
    """Models whose profile holds for ratios of GPUs and not for levels; the table says why."""
    return frozenset(row["model"] for row in data_rows(PROFILES[task]) if row["approximate"])


@cache
def shipped(vendors: tuple[str, ...] = (FITTED_VENDOR,)) -> Reading:
    """The published measurements that the package ships, of GPUs of these vendors."""
    lines = (line for name in MEASUREMENTS for line in data_rows(name))
    return _read(lines, "the shipped measurements", vendors)


@cache
def fitted_on(task: TaskKind, vendors: tuple[str, ...] = (FITTED_VENDOR,)) -> Table:
    """The shipped rows that predictions of a task are fitted on.

    A forward pass is predicted from rows of both tasks: one chip does both, and few harnesses publish
    inference. Training is predicted from its own rows alone.
    """
    table = shipped(vendors).table
    return table if task is TaskKind.INFER else take(table, ~table.inference)


def read_csv(path: Path) -> Reading:
    """Read anybody's measurements: the columns of the shipped ones, in any order, case and separator.

    A column that is missing takes what it usually says, and that is listed; rows without a GPU, a model, a
    precision or a value are of no use. A line that is broken is skipped with its number.

    Raises:
        MisuseError: If the file cannot be read or no row is usable.
    """
    lines = csv_lines(read_bytes(path, TABLE_BYTES, follow_links=True))
    names = [plain(name.strip().casefold(), 60) for name in lines.header]
    usual = {"source": path.stem, **_USUAL}
    missing = {name: said for name, said in usual.items() if name not in names}
    rows = (
        row if isinstance(row, Broken) else missing | dict(zip(names, row, strict=False))
        for row in lines.rows
    )
    return replace(
        _read(rows, _what(path, names), (FITTED_VENDOR,)),
        assumed=tuple(f"{name}: {said or 'by the unit'}" for name, said in missing.items()),
        unread=tuple(name for name in names if name not in (*COLUMNS, *_OPTIONAL)),
    )


def _what(path: Path, names: Sequence[str]) -> str:
    """The file, and which columns it lacks that have no usual value."""
    needed = [name for name in COLUMNS if name != "source" and name not in _USUAL]
    missing = [name for name in needed if name not in names]
    lacks = f" (no column {', '.join(missing)}; needed: {', '.join(needed)})" if missing else ""
    return f"{path}{lacks}"


def _read(
    reader: Iterable[Mapping[str, str | None] | Broken], what: str, vendors: tuple[str, ...]
) -> Reading:
    found: dict[tuple[str, ...], list[Row]] = {}
    skipped: Counter[str] = Counter()
    broken: dict[str, list[int]] = {}
    count = 0
    for line in reader:
        count += 1
        if isinstance(line, Broken):
            broken.setdefault(line.reason, []).append(line.number)
            continue
        row = _row(line, vendors)
        if isinstance(row, str):
            skipped[row] += 1
            continue
        key = (*map(str, row[:6]), row.layout, str(row.stated.batch_high))
        if key in found or len(found) < MOST_ROWS:
            found.setdefault(key, []).append(row)
        else:
            skipped[f"beyond the first {MOST_ROWS:,} different rows"] += 1
    skipped.update({f"{reason} ({_places(at)})": len(at) for reason, at in broken.items()})
    if not found:
        reasons = "; ".join(f"{n} x {plain(reason)}" for reason, n in skipped.most_common(3))
        raise MisuseError(f"{what}: none of {count} rows is usable ({reasons or 'the file is empty'})")
    merged = [
        alike[0]._replace(seconds_per_sample=median(r.seconds_per_sample for r in alike))
        for alike in found.values()
    ]
    return Reading(table=table_of(sorted(merged)), rows=count, skipped=dict(skipped.most_common()))


def _places(numbers: Sequence[int]) -> str:
    """Which lines of a file these are, the first by number."""
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    named = ", ".join(map(str, numbers[:_MOST_NAMED]))
    more = len(numbers) - _MOST_NAMED
    return f"lines {named} and {more:,} more" if more > 0 else f"lines {named}"


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


def _row(line: Mapping[str, str | None], vendors: tuple[str, ...]) -> Row | str:
    """One line of a file as a usable row, or the reason why it is none."""
    text = {name: (line.get(name) or "").strip() for name in (*COLUMNS, *_OPTIONAL)}
    spec = _spec(text["gpu_key"] or text["gpu"])
    if spec is None:
        return f"unknown GPU {plain(text['gpu'], 60)!r}"
    if spec.vendor not in vendors:
        return f"{spec.key}: a GPU of {spec.vendor}, which is judged apart"
    precision = text["precision"].casefold()
    if precision not in _PRECISIONS:
        return f"unknown precision {plain(precision, 30)!r}"
    gap = domain_gap(spec, Precision.AMP_FP16 if precision in _HALF_LABELS else Precision.FP32)
    if gap is not None:
        return f"{spec.key}: {gap}"
    task = _TASKS.get(text["mode"])
    if task is None:
        return f"unknown mode {plain(text['mode'], 30)!r}"
    if text["model"].partition("+")[0] not in model_profiles(task):
        return f"no profile of model {plain(text['model'], 60)!r}"
    value, batch = figure_in(text["value"]), figure_in(text["batch_size"])
    if (
        value is None
        or value <= 0
        or batch is None
        or batch < 0
        or batch != round(batch)
        or batch > MOST_BATCH
    ):
        return "value or batch is not a positive number"
    seconds = _seconds_per_sample(text, value, int(batch))
    if isinstance(seconds, str):
        return seconds
    math_mode = text["math_mode"] if text["math_mode"] in _MATH_MODES else ""
    stated = _stated(text, int(batch))
    return Row(
        source=text["source"],
        model=text["model"],
        precision=precision,
        task=task,
        gpu_key=spec.key,
        batch=int(batch) or round(math.sqrt(stated.batch_low * stated.batch_high)),
        seconds_per_sample=seconds,
        math_mode=math_mode or _math_mode(text["source"], precision, spec),
        layout=text["memory_layout"],
        level_known=text["metric"] != "score"
        and text["model"].partition("+")[0] not in approximate_models(task),
        stated=stated,
    )


def _stated(text: Mapping[str, str], batch: int) -> Stated:
    """How a row was measured; what it does not state of execution and optimizer, its harness usually does."""
    execution, optimizer = text["execution"], text["optimizer_in_step"]
    if execution not in EXECUTIONS or optimizer not in _ANSWERS:
        usual = _usual().get(text["source"]) or _usual().get(facts_of(text["source"]).harness) or ("", "")
        execution = execution if execution in EXECUTIONS else usual[0]
        optimizer = optimizer if optimizer in _ANSWERS else usual[1]
    low, high = (figure_in(text[name]) or 0 for name in ("batch_low", "batch_high"))
    if batch:
        low = high = batch
    elif not 1 <= low <= high <= MOST_BATCH:
        low, high = _UNSTATED_BATCH
    return Stated(
        execution=execution,
        torch=plain(text["torch"], 20),
        data_input=text["data_input"] if text["data_input"] in INPUTS_OF_DATA else "",
        optimizer_in_step=_ANSWERS.get(optimizer, True),
        doubt=plain(text["doubt"], 120),
        batch_low=int(low),
        batch_high=int(high),
    )


@cache
def _usual() -> Mapping[str, tuple[str, str]]:
    """Execution and optimizer that most shipped training rows of each source, and of each harness, state."""
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for name in MEASUREMENTS:
        for line in data_rows(name):
            said = line.get("execution") or "", line.get("optimizer_in_step") or ""
            for owner in {line["source"], facts_of(line["source"]).harness}:
                counts.setdefault(owner, Counter())[said] += 1
    return {owner: said.most_common(1)[0][0] for owner, said in counts.items()}


_spec = lru_cache(maxsize=4096)(find_spec)


def _seconds_per_sample(text: Mapping[str, str], value: float, batch: int) -> float | str:
    unit = text["unit"]
    metric = text["metric"] or ("throughput" if unit in _PER_SECOND else "step_time")
    if metric == "throughput" and unit in _PER_SECOND:
        return (GNMT_TOKENS if unit == "tokens/s" else 1) / value
    if metric == "step_time" and unit in _SECONDS:
        return value * _SECONDS[unit] / batch if batch else "a step time without its batch"
    if metric == "score":
        return 1 / value
    return f"unknown unit {plain(unit, 30)!r} of {plain(metric, 30)!r}"


def _math_mode(source: str, precision: str, spec: GpuSpec) -> str:
    if precision in _HALF_LABELS:
        return "half" if precision in {"fp16", "bf16"} else "amp"
    if (capability_of(spec) or (0, 0)) < (8, 0):
        return "fp32"
    if precision == "tf32":
        return "tf32"
    facts = facts_of(source)
    modes = {v: k for k, v in _MATH_MODES.items() if v[0] is not Mode.HALF}
    return modes[facts.fp32_conv, facts.fp32_matmul]


def _work(rows: Sequence[Row], batches: Sequence[int]) -> Work:
    """What a step of each row computes and moves at a batch."""
    profiles = [model_profiles(row.task)[row.model.partition("+")[0]] for row in rows]
    batch = np.array(batches, dtype=float)

    def column(name: str) -> Floats:
        return np.array([profile[name] for profile in profiles])

    flops = np.stack([column(f"gflop_{kind}") * 1e9 for kind in _PROFILE_KINDS], axis=1)
    updates = np.array([_optimizer_bytes(row) for row in rows])
    return Work(
        flops=flops * batch[:, None],
        bytes_=1e9 * (column("gb_fp32_per_sample") * batch + column("gb_fp32_fixed")),
        optimizer_bytes=updates * column("params_m") * 1e6,
        cast_bytes=np.array([_casts(row) for row in rows]) * CAST_BYTES * column("params_m") * 1e6,
        operators=column("ops_per_step"),
    )


assert len(_PROFILE_KINDS) == len(KINDS)  # the columns of a profile are the kinds of the fit, in their order


def _optimizer_bytes(row: Row) -> int:
    if row.task is TaskKind.INFER or not row.stated.optimizer_in_step:
        return 0
    _, plus, optimizer = row.model.partition("+")
    return _OPTIMIZER_BYTES.get(optimizer, 20) if plus else _OPTIMIZER_BYTES["SGD"]


def _casts(row: Row) -> int:
    """How often autocast casts each weight in a step: the weight, and in training its gradient back."""
    if row.math_mode == "half":  # the whole model is stored so
        return 0
    return 1 if row.task is TaskKind.INFER else 2


def _arithmetic(rows: Sequence[Row]) -> Arithmetic:
    modes = [_MATH_MODES[row.math_mode] for row in rows]
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
