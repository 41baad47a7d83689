"""Published measurements read from CSV: the shipped ones, or anybody's in the same columns.

Rows that cannot be used are counted and named, not fatal; a line that is broken costs itself, and no other.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, read_bytes
from gpubench.models import GpuSpec, Precision, TaskKind
from gpubench.precisions import AMP, BF16, FP16
from gpubench.predict.chips import Mode
from gpubench.predict.question import FITTED_VENDOR, capability_of, domain_gap
from gpubench.predict.roofline import take
from gpubench.specs import find_spec
from gpubench.units import figure_in, plain
from tools.table import (
    MATH_MODES,
    Row,
    Stated,
    Table,
    approximate_models,
    facts_of,
    model_profiles,
    table_of,
    tokens_per_sample,
)
from tools.tables import MEASUREMENTS, published_rows

COLUMNS = ("source", "gpu", "model", "mode", "precision", "batch_size", "metric", "unit", "value")
_OPTIONAL = (
    "gpu_key", "math_mode", "memory_layout", "execution", "torch", "data_input", "optimizer_in_step",
    "batch_low", "batch_high", "doubt",
)  # fmt: skip
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
_WHOLE_LABELS = frozenset({FP16.name, BF16.name})
_HALF_LABELS = {AMP, "mixed", *_WHOLE_LABELS} | {p for p in Precision if p.facts.predicted_as == "half"}
_PRECISIONS = {p for p in Precision if p.facts.predicted_as} | _HALF_LABELS
"""What publishers write: names of precisions, of formats where the whole model is cast, and of any AMP."""
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_PER_SECOND = frozenset({"images/s", "sequences/s", "samples/s", "items/s", "tokens/s"})


class SetAside(NamedTuple):
    """Why a row is not used: the kind of reason, and what it was in this row."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}" if self.detail else self.kind


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A file as read: the usable rows, and why others were left out, by reason.

    Attributes:
        skipped_by_kind: The same rows by kind of reason: one count for all names that have no profile.
        assumed: What a missing column was taken to say.
        unread: Columns that mean nothing here.
    """

    table: Table
    rows: int
    skipped: Mapping[str, int]
    skipped_by_kind: Mapping[str, int]
    assumed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@cache
def shipped(vendors: tuple[str, ...] = (FITTED_VENDOR,)) -> Reading:
    """The published measurements that the package ships, of GPUs of these vendors."""
    lines = (line for name in MEASUREMENTS for line in published_rows(name))
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
    needed = [name for name in COLUMNS if name != "source" and name not in _USUAL]
    lacking = [name for name in needed if name not in names]
    lacks = f" (no column {', '.join(lacking)}; needed: {', '.join(needed)})" if lacking else ""
    return replace(
        _read(rows, f"{path}{lacks}", (FITTED_VENDOR,)),
        assumed=tuple(f"{name}: {said or 'by the unit'}" for name, said in missing.items()),
        unread=tuple(name for name in names if name not in (*COLUMNS, *_OPTIONAL)),
    )


def _read(
    reader: Iterable[Mapping[str, str | None] | Broken], what: str, vendors: tuple[str, ...]
) -> Reading:
    found: dict[tuple[str, ...], list[Row]] = {}
    skipped: Counter[SetAside] = Counter()
    broken: dict[str, list[int]] = {}
    count = 0
    for line in reader:
        count += 1
        if isinstance(line, Broken):
            broken.setdefault(line.reason, []).append(line.number)
            continue
        row = _row(line, vendors)
        if isinstance(row, SetAside):
            skipped[row] += 1
            continue
        key = (*map(str, row[:6]), row.layout, str(row.stated.batch_high))
        if key in found or len(found) < MOST_ROWS:
            found.setdefault(key, []).append(row)
        else:
            skipped[SetAside(f"beyond the first {MOST_ROWS:,} different rows")] += 1
    skipped.update({SetAside(reason, f"({_places(at)})"): len(at) for reason, at in broken.items()})
    if not found:
        reasons = "; ".join(f"{n} x {plain(str(reason))}" for reason, n in skipped.most_common(3))
        raise MisuseError(f"{what}: none of {count} rows is usable ({reasons or 'the file is empty'})")
    merged = [
        alike[0]._replace(seconds_per_sample=median(r.seconds_per_sample for r in alike))
        for alike in found.values()
    ]
    by_kind: Counter[str] = Counter()
    for reason, rows in skipped.most_common():
        by_kind[reason.kind] += rows
    return Reading(
        table=table_of(sorted(merged)),
        rows=count,
        skipped={str(reason): rows for reason, rows in skipped.most_common()},
        skipped_by_kind=dict(by_kind.most_common()),
    )


def _places(numbers: Sequence[int]) -> str:
    """Which lines of a file these are, the first by number."""
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    named = ", ".join(map(str, numbers[:_MOST_NAMED]))
    more = len(numbers) - _MOST_NAMED
    return f"lines {named} and {more:,} more" if more > 0 else f"lines {named}"


def _row(line: Mapping[str, str | None], vendors: tuple[str, ...]) -> Row | SetAside:
    """One line of a file as a usable row, or the reason why it is none."""
    text = {name: (line.get(name) or "").strip() for name in (*COLUMNS, *_OPTIONAL)}
    spec = _spec(text["gpu_key"] or text["gpu"])
    if spec is None:
        return SetAside("unknown GPU", repr(plain(text["gpu"], 60)))
    if spec.vendor not in vendors:
        return SetAside(f"{spec.key}: a GPU of {spec.vendor}, which is judged apart")
    precision = text["precision"].casefold()
    if precision not in _PRECISIONS:
        return SetAside("unknown precision", repr(plain(precision, 30)))
    gap = domain_gap(spec, Precision.AMP_FP16 if precision in _HALF_LABELS else Precision.FP32)
    if gap is not None:
        return SetAside(f"{spec.key}: {gap}")
    task = _TASKS.get(text["mode"])
    if task is None:
        return SetAside("unknown mode", repr(plain(text["mode"], 30)))
    if text["model"].partition("+")[0] not in model_profiles(task):
        return SetAside("no profile of model", repr(plain(text["model"], 60)))
    value, batch = figure_in(text["value"]), figure_in(text["batch_size"])
    if (
        value is None
        or value <= 0
        or batch is None
        or batch < 0
        or batch != round(batch)
        or batch > MOST_BATCH
    ):
        return SetAside("value or batch is not a positive number")
    seconds = _seconds_per_sample(text, task, value, int(batch))
    if isinstance(seconds, SetAside):
        return seconds
    math_mode = text["math_mode"] if text["math_mode"] in MATH_MODES else ""
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
        for line in published_rows(name):
            said = line.get("execution") or "", line.get("optimizer_in_step") or ""
            for owner in {line["source"], facts_of(line["source"]).harness}:
                counts.setdefault(owner, Counter())[said] += 1
    return {owner: said.most_common(1)[0][0] for owner, said in counts.items()}


_spec = lru_cache(maxsize=4096)(find_spec)


def _seconds_per_sample(
    text: Mapping[str, str], task: TaskKind, value: float, batch: int
) -> float | SetAside:
    unit = text["unit"]
    metric = text["metric"] or ("throughput" if unit in _PER_SECOND else "step_time")
    if metric == "throughput" and unit in _PER_SECOND:
        model = text["model"]
        samples = 1.0 if unit != "tokens/s" else tokens_per_sample(task).get(model.partition("+")[0])
        if samples is None:
            reason = "tokens/s of a model whose tokens per sample are not known"
            return SetAside(reason, repr(plain(model, 60)))
        return samples / value
    if metric == "step_time" and unit in _SECONDS:
        return value * _SECONDS[unit] / batch if batch else SetAside("a step time without its batch")
    if metric == "score":
        return 1 / value
    return SetAside("unknown unit", f"{plain(unit, 30)!r} of {plain(metric, 30)!r}")


def _math_mode(source: str, precision: str, spec: GpuSpec) -> str:
    if precision in _HALF_LABELS:
        return "half" if precision in _WHOLE_LABELS else "amp"
    if not Precision.TF32.within(capability_of(spec)):
        return "fp32"
    if precision == "tf32":
        return "tf32"
    facts = facts_of(source)
    modes = {v: k for k, v in MATH_MODES.items() if v[0] is not Mode.HALF}
    return modes[facts.fp32_conv, facts.fp32_matmul]


# --- the lines of a file -----------------------------------------------------------------------------------

_SEPARATORS = (",", ";", "\t")
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Broken(NamedTuple):
    """A line that cannot be read, and why; lines count from 1."""

    number: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A CSV taken apart.

    Attributes:
        header: Cells of the first line; what is no text in it is replaced, so that the other columns stay.
        rows: Each further line that is not empty: its cells, or why there are none. Read once.
    """

    header: Sequence[str]
    rows: Iterator[Sequence[str] | Broken]


def csv_lines(data: bytes) -> Lines:
    """Take a CSV apart: UTF-16 where its byte order mark says so, else UTF-8, separated as its header is.

    A cell that spans lines is not read: to tell it from a quote that somebody forgot, nothing but a guess is
    left, and a wrong one costs every row up to the next quote.
    """
    is_utf_16 = data.startswith(_UTF_16_MARKS)
    encoding, mark = ("UTF-16", "\ufffd") if is_utf_16 else ("UTF-8", "[\udc80-\udcff]")
    no_text = re.compile(mark)
    # UTF-16 has no bytes to set aside; U+FFFD stands in a file only where text was lost before.
    text = data.decode("utf-16", "replace") if is_utf_16 else data.decode("utf-8-sig", "surrogateescape")
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    head = no_text.sub("\ufffd", next(lines, ""))
    separator = max(_SEPARATORS, key=head.count)
    header = _cells(head, separator)
    if isinstance(header, str):  # without it all would be lost: no name of a column needs a quote
        header = head.replace('"', "").split(separator)

    def rows() -> Iterator[Sequence[str] | Broken]:
        for number, line in enumerate(lines, start=2):
            cells = f"not {encoding} text" if no_text.search(line) else _cells(line, separator)
            if isinstance(cells, str):
                yield Broken(number, cells)
            elif cells:
                yield cells

    return Lines(header=header, rows=rows())


def _cells(line: str, separator: str) -> Sequence[str] | str:
    """The cells of one line, or why it has none; an empty line has no cells."""
    reader = csv.reader((line, ""), delimiter=separator)
    try:
        cells = next(reader)
    except csv.Error as error:
        return str(error)
    return cells if reader.line_num == 1 else "a quote that is not closed on its line"
