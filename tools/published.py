"""Reads published measurements from CSV, shipped or from others, and turns them into arrays for the fit.

The shipped tables are in $GPUBENCH_DATA if that is set, else in ``data/``. Rows that cannot be used are
counted with their reasons, and the other rows are still used; a broken line affects no other line. A cell is
one (source, model, precision, task): same harness, same software. Levels are never compared across cells.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpubench import errors, files, folders, precisions, units, user_model
from gpubench.arrays import Flags, Floats, Indices
from gpubench.models import Precision, TaskKind, WeightType, WorkloadProfile
from gpubench.predict import question, roofline
from gpubench.predict.chips import Chips, Mode, architecture_of, chip_of, chips_of
from gpubench.profile.cache import known_profile, load_profiles, profile_of
from gpubench.specs import find_spec, load_specs

DATA = Path(__file__).parent / "data"
# Published measurements: the first table has training steps, and both have forward passes.
MEASUREMENTS = ("published.csv", "published_inference.csv")
# The arithmetic and traffic of a training step, or a forward pass, of a published model.
PROFILES = {TaskKind.TRAIN: "model_profiles.csv", TaskKind.INFER: "inference_profiles.csv"}
# The tables of this folder from which the calibration is made.
PUBLISHED = (*MEASUREMENTS, *PROFILES.values(), "sources.csv")


def published_bytes(name: str) -> bytes:
    """Return the content of a published table."""
    named = folders.data_path(name)
    return files.read_bytes(named if named.is_file() else DATA / name, files.TABLE_BYTES)


def published_rows(name: str) -> Iterable[dict[str, str]]:
    """Return the rows of a published table by their columns."""
    return csv.DictReader(published_bytes(name).decode().splitlines())


# Bytes that an FP32 weight update moves per parameter, by optimizer: the part of a model's name after "+".
_OPTIMIZER_BYTES = {"SGD": 20, "Adam": 28, "Adagrad": 20, "Adadelta": 28, "RMSprop": 24}
MATH_MODES = {
    "fp32": (Mode.FP32, Mode.FP32),
    "tf32": (Mode.TF32, Mode.TF32),
    "tf32-conv": (Mode.TF32, Mode.FP32),
    "amp": (Mode.HALF, Mode.HALF),
    "half": (Mode.HALF, Mode.HALF),
}
# The columns of a profile are the kinds of the fit (``roofline.KINDS``), in their order.
_PROFILE_KINDS = ("conv3x3", "conv_other", "matmul", "depthwise")
_CHAIN = ("gb_fp32_chain_per_sample", "gb_fp32_chain_fixed", "ops_chain")
# The columns that are equal in all rows of a cell.
CELL = ["source", "model", "precision", "task"]


@lru_cache(maxsize=4096)
def facts_of(source: str) -> tuple[str, str]:
    """Return a source's harness, and the math mode to assume for its "fp32" rows on Ampere and newer.

    The longest listed prefix of its name decides; sources that share their benchmark's code share a harness.
    An unlisted source is its own harness, and is assumed to use PyTorch's defaults since 1.12: TF32 in
    convolutions only.
    """
    rows = [row for row in published_rows("sources.csv") if source.startswith(row["prefix"])]
    row = max(rows, key=lambda row: len(row["prefix"]))
    modes = {pair: name for name, pair in MATH_MODES.items() if pair[0] is not Mode.HALF}
    conv, matmul = (Mode[row[name].upper()] for name in ("fp32_conv", "fp32_matmul"))
    return row["harness"] if row["prefix"] else source, modes[conv, matmul]


@cache
def model_profiles() -> pd.DataFrame:
    """Return a step's totals by (task, model): FLOP by kind, bytes, operators, parameters.

    ``approximate`` profiles are valid for ratios of GPUs, but not for levels; the table says why.
    ``tokens_per_sample`` is the publishers' count and is unknown for some models.
    """
    tables = {task: pd.DataFrame(published_rows(name)).set_index("model") for task, name in PROFILES.items()}
    text = pd.concat({str(task): table for task, table in tables.items()})
    published = (
        text.filter(regex="^(ops_per_step|params_m|gflop_.*|gb_fp32_.*|tokens_per_sample)$")
        .replace("", "nan")
        .astype(float)
        .assign(approximate=text.approximate != "")
    )
    ours = {
        (str(task), name): totals_of(profile, task)
        for name, profile in load_profiles().items()
        for task in PROFILES
        if (str(task), name) not in published.index and is_comparable(profile, task)
    }
    return pd.concat([published, pd.DataFrame.from_dict(ours, orient="index")])


def is_comparable(profile: WorkloadProfile, task: TaskKind) -> bool:
    """Return whether a workload's step can be compared with the tables: all weights in FP32, all trained."""
    stored = profile.recipe.weight_type is WeightType.FLOAT32
    trained = profile.trainable_parameters == profile.parameters or task is TaskKind.INFER
    return stored and trained and profile.parameters > 0 and task in profile.tasks


def totals_of(profile: WorkloadProfile, task: TaskKind) -> dict[str, float]:
    """Return the arithmetic and traffic of a workload's step, in the columns of ``model_profiles``."""
    one, two = (roofline.work_of(profile.operators_of(task), batch) for batch in (1, 2))
    flops, moved = two.flops[0] - one.flops[0], two.bytes_[0] - one.bytes_[0]
    return {
        "ops_per_step": float(one.operators[0]),
        "params_m": profile.parameters / 1e6,
        **{f"gflop_{kind}": float(each) / 1e9 for kind, each in zip(_PROFILE_KINDS, flops, strict=True)},
        "gb_fp32_per_sample": float(moved) / 1e9,
        "gb_fp32_fixed": float(one.bytes_[0] - moved) / 1e9,
        "gb_fp32_chain_per_sample": float(two.chain_bytes[0] - one.chain_bytes[0]) / 1e9,
        "gb_fp32_chain_fixed": float(2 * one.chain_bytes[0] - two.chain_bytes[0]) / 1e9,
        "ops_chain": float(one.chain_operators[0]),
        "tokens_per_sample": float(profile.tokens_per_sample or np.nan),
        "approximate": False,
    }


@cache
def _labels() -> Mapping[tuple[str, str], str]:
    # Return the model behind a label, by the prefix of the source's name and the label.
    return {(row["prefix"], row["label"]): row["model"] for row in published_rows("labels.csv")}


def profile_named(source: str, model: str) -> str:
    """Return the name of a model's profile, from its publisher's label or from one of our workloads.

    >>> profile_named("mlperf-v3.1", "bert"), profile_named("mine", "transformer")
    ('bert_large_s512', 'transformer+Adam')
    """
    for (prefix, label), profile in _labels().items():
        if source.casefold().startswith(prefix) and model.casefold() == label:
            return profile
    ours = own_profile(model) if _is_a_file(model) else load_profiles().get(model)
    adam = isinstance(ours, WorkloadProfile) and ours.optimizer.startswith("Adam")
    return f"{model}+Adam" if adam else model


def _is_a_file(model: str) -> bool:
    return model.startswith(user_model.HUGGING_FACE) or model.endswith(".py")


@cache
def own_profile(model: str) -> WorkloadProfile | str:
    """Return the profile of a user's model, ``./net.py`` or ``hf:PATH``, or the reason why it has none."""
    try:
        return profile_of(model, {"weight_type": WeightType.FLOAT32}, optional=("weight_type",))
    except errors.MisuseError as error:
        return str(error)


def profiles_of(task: pd.Series[Any], model: pd.Series[Any]) -> pd.DataFrame:
    """Return the profile of each row; the optimizer follows "+" in the name of the model."""
    keys = pd.MultiIndex.from_arrays([task, model.map(lambda name: name.partition("+")[0])])
    own = {
        (step, name): totals_of(profile, TaskKind(step))
        for step, name in {*keys}
        if _is_a_file(name)
        and isinstance(profile := own_profile(name), WorkloadProfile)
        and is_comparable(profile, TaskKind(step))
    }
    known = [model_profiles(), *([pd.DataFrame.from_dict(own, orient="index")] if own else [])]
    return pd.concat(known).reindex(keys).set_index(task.index)


def _unprofiled(model: str) -> str:
    """Name a model without a profile; for a user's model or a workload, add the reason."""
    name = model.partition("+")[0]
    found = own_profile(name) if _is_a_file(name) else known_profile(name)
    if isinstance(found, WorkloadProfile):
        found = "not all of its weights are trained in float32"
    return repr(units.plain(model, 60)) + ("" if found is None else f" ({units.plain(found, 200)})")


def base_model(name: str) -> str:
    """Return the family of a model's name, without image size and optimizer."""
    return name.partition("+")[0].partition("@")[0].casefold()


@dataclass(frozen=True, kw_only=True)
class Table:
    """n measurements as arrays; ``cell`` numbers the (source, model, precision, task) of each.

    Attributes:
        harness: (n,) the harness of each row's source.
        architecture, family, vendor: (n,) of each row's GPU; ``family`` is its chip. A GPU without a stated
            architecture counts as one of its own.
        base_model: (n,) model without image size and optimizer: ``ResNet50@224+Adam`` is ``resnet50``.
        execution: (n,) one of ``published.EXECUTIONS``; "" if not stated.
        torch: (n,) version of torch; "" if not stated, or for another framework.
        data_input: (n,) one of ``published.INPUTS_OF_DATA``; "" if not stated.
        doubt: (n,) a reason to doubt the row, in words; "" if there is none.
        batch_low, batch_high: (n,) smallest and largest plausible batch; both are the batch if it is stated.
        work_low, work_high: (n,) arithmetic and traffic of a step at those batches.
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
    work: roofline.Work
    work_low: roofline.Work
    work_high: roofline.Work
    chips: Chips
    arithmetic: roofline.Arithmetic

    def __len__(self) -> int:
        """Return the number of measurements."""
        return len(self.batch)


def table_with(rows: pd.DataFrame, **arrays: roofline.Work | roofline.Arithmetic) -> Table:
    """Turn rows into arrays, with the arithmetic and traffic of their steps.

    Args:
        rows: Columns ``CELL``, ``gpu_key``, ``seconds_per_sample``, ``level_known``, ``execution``,
            ``torch``, ``data_input``, ``doubt``, ``batch``, ``batch_low`` and ``batch_high``.
        arrays: ``work``, ``work_low``, ``work_high`` and ``arithmetic`` of the rows.
    """
    specs = [load_specs()[key] for key in rows.gpu_key]
    complete = rows.assign(
        harness=[facts_of(source)[0] for source in rows.source],
        base_model=rows.model.map(base_model),
        architecture=[architecture_of(spec.key) for spec in specs],
        family=[chip_of(spec.key) for spec in specs],
        vendor=[spec.vendor for spec in specs],
        log_seconds=np.log(rows.seconds_per_sample * rows.batch),
        inference=rows.task == TaskKind.INFER,
        cell=rows.groupby(CELL).ngroup(),
    ).astype({"batch": float, "batch_low": float, "batch_high": float})
    columns = {each.name: complete[each.name].to_numpy() for each in fields(Table) if each.name in complete}
    return Table(**columns, chips=chips_of(specs), **arrays)  # type: ignore[arg-type]


def table_of(rows: pd.DataFrame) -> Table:
    """Turn published rows into arrays; ``math_mode``, ``layout`` and ``with_optimizer`` affect the result."""
    training = (rows.task == TaskKind.TRAIN).to_numpy()
    with_optimizer = rows.with_optimizer.to_numpy(dtype=bool)
    profile = {name: column.to_numpy() for name, column in profiles_of(rows.task, rows.model).items()}
    chain = {name: np.nan_to_num(profile[name]) for name in _CHAIN}  # only our own profiles have it
    conv, matmul = (rows.math_mode.map(lambda mode, i=i: int(MATH_MODES[mode][i])).to_numpy() for i in (0, 1))
    arithmetic = roofline.Arithmetic(
        conv=conv,
        matmul=matmul,
        half=conv == Mode.HALF,
        channels_last=(rows.layout == "channels_last").to_numpy(),
        no_optimizer=training & ~with_optimizer,
        # Only inference: whether training rows were really compiled is doubtful (column ``doubt``).
        compiled=~training & (rows.execution == "compile").to_numpy(),
        chains_fused=training & (rows.execution == "compile").to_numpy() & (chain["ops_chain"] > 0),
    )
    flops = np.stack([profile[f"gflop_{kind}"] * 1e9 for kind in _PROFILE_KINDS], axis=1)
    optimizers = [name.partition("+")[2] for name in rows.model]
    named = np.array([_OPTIMIZER_BYTES.get(each, _OPTIMIZER_BYTES["SGD"]) for each in optimizers])
    updates = np.where(training & with_optimizer, named, 0)
    # autocast casts each weight, and in training its gradient back; in "half" the whole model is stored in 16
    # bits
    casts = np.where(rows.math_mode == "half", 0, np.where(training, 2, 1))

    def work(batch: Floats) -> roofline.Work:
        return roofline.Work(
            flops=flops * batch[:, None],
            bytes_=1e9 * (profile["gb_fp32_per_sample"] * batch + profile["gb_fp32_fixed"]),
            optimizer_bytes=updates * profile["params_m"] * 1e6,
            cast_bytes=casts * roofline.CAST_BYTES * profile["params_m"] * 1e6,
            operators=profile["ops_per_step"],
            wide_flops=np.zeros(len(rows)),
            chain_bytes=1e9 * (chain["gb_fp32_chain_per_sample"] * batch + chain["gb_fp32_chain_fixed"]),
            chain_operators=chain["ops_chain"],
        )

    at = {"work": "batch", "work_low": "batch_low", "work_high": "batch_high"}
    works = {name: work(rows[column].to_numpy(dtype=float)) for name, column in at.items()}
    return table_with(rows, **works, arithmetic=arithmetic)


# --- rows of a file -----------------------------------------------------------------------------------------

COLUMNS = ("source", "gpu", "model", "mode", "precision", "batch_size", "metric", "unit", "value")
_OPTIONAL = (
    "gpu_key", "math_mode", "memory_layout", "execution", "torch", "data_input", "optimizer_in_step",
    "batch_low", "batch_high", "doubt",
)  # fmt: skip
# Default of a missing column; a missing metric follows from the unit.
_USUAL = {"mode": "train", "batch_size": "0", "metric": ""}
_TASKS = {"train": TaskKind.TRAIN, "inference": TaskKind.INFER}
# How the steps of a row were issued; ``fused`` is eager with kernels that combine operators.
EXECUTIONS = ("eager", "compile", "graph", "fused")
# The origin of a row's batches: made on the GPU, copied from the host, or loaded and decoded.
INPUTS_OF_DATA = ("synthetic", "host", "loader")
# Plausible batches of a row without a batch or a range, as in most published harnesses.
_UNSTATED_BATCH = (16, 1024)
MOST_BATCH = 1_000_000_000
MOST_ROWS = 20_000  # different rows of one file; repetitions are merged, the rest is counted
_MOST_NAMED = 5  # maximum number of broken lines of one kind that are listed by number
_WHOLE_LABELS = frozenset({precisions.FP16.name, precisions.BF16.name})
_HALF_LABELS = {precisions.AMP, "mixed", *_WHOLE_LABELS} | {
    p for p in Precision if p.facts.predicted_as == "half"
}
# Publishers' labels: names of precisions, of formats to which the whole model is cast, and of AMP.
_PRECISIONS = {p for p in Precision if p.facts.predicted_as} | _HALF_LABELS
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_PER_SECOND = frozenset({"images/s", "sequences/s", "samples/s", "items/s", "tokens/s"})
_NO_TOKENS = "tokens/s of a model whose tokens per sample are not known"
# How to fix a row that is left out, by a part of the reason.
FIXES = {
    "unknown GPU": "name it as its driver does, or add gpu_key (gpubench list --gpus has the keys)",
    "scored separately": "none: only GPUs of the vendor in the fit are scored",
    "unknown precision": "use fp32, tf32, amp, amp-fp16, amp-bf16, fp16 or bf16",
    "unknown mode": "use train or inference",
    "no profile of model": "name a workload, a model of your own by its file (./net.py, hf:PATH), or one of "
    "tools/data/model_profiles.csv",
    "is not a positive number": "write the value as a number above 0, and the batch as a whole one",
    _NO_TOKENS: "give sequences/s, or add tokens_per_sample to its profile",
    "a step time without its batch": "add batch_size, or give samples/s",
    "unknown unit": "use images/s, sequences/s, samples/s or tokens/s, or s, ms or us of a step_time",
    "not closed on its line": "close the quote on the line that opens it",
    "beyond the first": "score the rest as a separate file",
}


# Columns that order otherwise equal rows, so no answer depends on the order of a file.
_ORDER = [
    "seconds_per_sample", "math_mode", "layout", "level_known", "execution", "torch", "data_input",
    "with_optimizer", "doubt", "batch_low", "batch_high",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The content of a file: the usable rows, and the number of rows left out by reason.

    Attributes:
        skipped_by_kind: The same rows by kind of reason, with one count for all names without a profile.
        assumed: The values assumed for missing columns.
        unread: Columns that have no meaning here.
    """

    table: Table
    rows: int
    skipped: Mapping[str, int]
    skipped_by_kind: Mapping[str, int]
    assumed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@cache
def shipped(vendors: tuple[str, ...] = (question.FITTED_VENDOR,)) -> Reading:
    """Return the shipped published measurements of GPUs of these vendors."""
    lines = (line for name in MEASUREMENTS for line in published_rows(name))
    return _read(lines, "the shipped measurements", vendors)


@cache
def fitted_on(task: TaskKind, vendors: tuple[str, ...] = (question.FITTED_VENDOR,)) -> Table:
    """Return the shipped rows to which predictions of a task are fitted.

    Predictions of a forward pass use the rows of both tasks, because both run on the same chips and few
    harnesses publish inference. Predictions of training use training rows only.
    """
    table = shipped(vendors).table
    return table if task is TaskKind.INFER else roofline.take(table, ~table.inference)


def read_csv(path: Path) -> Reading:
    """Read measurements from a user's file with the shipped columns, in any order, case and separator.

    A missing column takes its usual value, which is listed. Rows without a GPU, a model, a precision or a
    value are left out. A broken line is skipped and listed by number.

    Raises:
        MisuseError: If the file cannot be read or no row is usable.
    """
    header, lines = csv_lines(files.read_bytes(path, files.TABLE_BYTES, follow_links=True))
    names = [units.plain(name.strip().casefold(), 60) for name in header]
    missing = {name: usual for name, usual in ({"source": path.stem} | _USUAL).items() if name not in names}
    rows: list[Mapping[str, str]] = []
    broken: dict[str, list[int]] = {}
    for number, cells in lines:
        if isinstance(cells, str):
            broken.setdefault(cells, []).append(number)
        else:
            row = missing | dict(zip(names, cells, strict=False))
            rows.append(row | {"model": profile_named(row.get("source", ""), row.get("model", "").strip())})
    needed = [name for name in COLUMNS if name not in {"source", *_USUAL}]
    lacking = ", ".join(name for name in needed if name not in names)
    what = f"{path} (no column {lacking}; needed: {', '.join(needed)})" if lacking else str(path)
    return replace(
        _read(rows, what, (question.FITTED_VENDOR,), broken),
        assumed=tuple(f"{name}: {usual or 'by the unit'}" for name, usual in missing.items()),
        unread=tuple(name for name in names if name not in (*COLUMNS, *_OPTIONAL)),
    )


def _read(
    lines: Iterable[Mapping[str, str]],
    what: str,
    vendors: tuple[str, ...],
    broken: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Reading:
    names = [*COLUMNS, *_OPTIONAL]
    text = pd.DataFrame([[(line.get(name) or "").strip() for name in names] for line in lines], columns=names)
    rows = _judged(text.astype(object), vendors)
    usable = _measured(rows[rows.kind == ""])
    repeats = usable.groupby([*CELL, "gpu_key", "batch", "layout", "batch_high"], sort=False)
    number = repeats.ngroup()
    rows.loc[usable.index[number >= MOST_ROWS], "kind"] = f"beyond the first {MOST_ROWS:,} different rows"
    reasons = list(rows.loc[rows.kind != "", ["kind", "detail"]].itertuples(index=False, name=None))
    for why, places in broken.items():
        named = units.listing(map(str, places), _MOST_NAMED)
        reasons += [(why, f"(line{'s' if len(places) > 1 else ''} {named})")] * len(places)
    skipped = Counter(" ".join(filter(None, reason)) for reason in reasons).most_common()
    count = len(rows) + sum(map(len, broken.values()))
    if usable.empty:
        reasons_shown = "; ".join(f"{n} x {units.plain(reason)}" for reason, n in skipped[:3])
        raise errors.MisuseError(
            f"{what}: none of {count} rows is usable ({reasons_shown or 'there is no row below the header'})"
        )
    usable = usable.assign(seconds_per_sample=repeats.seconds_per_sample.transform("median"))
    merged = usable[(number < MOST_ROWS) & (repeats.cumcount() == 0)]
    return Reading(
        table=table_of(merged.sort_values([*CELL, "gpu_key", "batch", *_ORDER])),
        rows=count,
        skipped=dict(skipped),
        skipped_by_kind=dict(Counter(kind for kind, _ in reasons).most_common()),
    )


def _judged(text: pd.DataFrame, vendors: tuple[str, ...]) -> pd.DataFrame:
    """Return the lines of a file with their figures; ``kind`` and ``detail`` say why a line is not used."""
    specs = [_spec(key or name) for key, name in zip(text.gpu_key, text.gpu, strict=True)]
    key, vendor = (pd.Series([getattr(s, n, "") for s in specs], dtype=object) for n in ("key", "vendor"))
    precision, task = text.precision.str.casefold(), text["mode"].map(_TASKS)
    asked = (Precision.AMP_FP16 if label in _HALF_LABELS else Precision.FP32 for label in precision)
    gaps = [spec and question.domain_gap(spec, each) for spec, each in zip(specs, asked, strict=True)]
    gap = pd.Series(gaps, dtype=object).fillna("")
    profile = profiles_of(task, text.model)
    numbers = text[["value", "batch_size", "batch_low", "batch_high"]].map(units.figure_in).astype(float)
    value, batch, low, high = (numbers[name] for name in numbers)
    figures = (value > 0) & (batch >= 0) & (batch == batch.round()) & (batch <= MOST_BATCH)
    unit, stated = text.unit, text.metric
    is_rate = unit.isin(_PER_SECOND)
    metric = stated.where(stated != "", np.where(is_rate, "throughput", "step_time"))
    samples = profile.tokens_per_sample.where(unit == "tokens/s", 1.0)
    rated, timed = (metric == "throughput") & is_rate, (metric == "step_time") & unit.isin(_SECONDS)
    scored = metric == "score"
    of_step = value * unit.map(_SECONDS).astype(float) / batch
    unknown_unit = _quoted(unit, 30) + " of " + _quoted(metric, 30)
    apart = key + ": a GPU of " + vendor + ", which is scored separately"
    masks, kinds, details = zip(
        (key == "", "unknown GPU", _quoted(text.gpu, 60)),
        (~vendor.isin(vendors), apart, ""),
        (~precision.isin(_PRECISIONS), "unknown precision", _quoted(precision, 30)),
        (gap != "", key + ": " + gap, ""),
        (task.isna(), "unknown mode", _quoted(text["mode"], 30)),
        (profile.params_m.isna(), "no profile of model", text.model.map(_unprofiled)),
        (~figures, "value or batch is not a positive number", ""),
        (rated & samples.isna(), _NO_TOKENS, _quoted(text.model, 60)),
        (timed & (batch == 0), "a step time without its batch", ""),
        (~(rated | timed | scored), "unknown unit", unknown_unit),
        strict=True,
    )
    ranged = (low >= 1) & (low <= high) & (high <= MOST_BATCH)
    return text.assign(
        kind=np.select(masks, kinds, ""),
        detail=np.select(masks, details, ""),
        precision=precision,
        task=task,
        gpu_key=key,
        seconds_per_sample=np.select([rated, timed, scored], [samples / value, of_step, 1 / value], np.nan),
        level_known=~scored & (profile.approximate == False),  # noqa: E712 - an unknown model has NaN
        batch=batch,
        batch_low=np.select([batch > 0, ranged], [batch, low], _UNSTATED_BATCH[0]),
        batch_high=np.select([batch > 0, ranged], [batch, high], _UNSTATED_BATCH[1]),
    )


def _quoted(text: pd.Series[Any], most: int) -> pd.Series[Any]:
    return text.map(lambda each: repr(units.plain(each, most)))


def usual_math_mode(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return the mode in which each row was most likely computed: by precision, GPU and harness."""
    labels, specs = rows.precision, [load_specs()[key] for key in rows.gpu_key]
    has_tf32 = pd.Series(
        [Precision.TF32.within(question.capability_of(spec)) for spec in specs], rows.index, bool
    )
    of_source = pd.Series([facts_of(source)[1] for source in rows.source], rows.index, object)
    single = of_source.mask(labels == "tf32", "tf32").where(has_tf32, "fp32")
    return single.mask(labels.isin(_HALF_LABELS), "amp").mask(labels.isin(_WHOLE_LABELS), "half")


def _measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Return usable rows with the way each was measured; what a row omits is as usual for its harness.

    If a row does not state its batch, ``batch`` is the middle of the plausible ones on a log scale.
    """
    ends = rows[["batch_low", "batch_high"]].astype(int)
    usual = [_usual().get(source) or _usual().get(facts_of(source)[0]) or ("", "") for source in rows.source]
    execution, optimizer = (pd.Series([each[i] for each in usual], rows.index, object) for i in (0, 1))
    return rows.assign(
        batch_low=ends.batch_low,
        batch_high=ends.batch_high,
        batch=rows.batch.where(rows.batch > 0, np.sqrt(ends.batch_low * ends.batch_high).round()).astype(int),
        execution=rows.execution.where(rows.execution.isin(EXECUTIONS), execution),
        with_optimizer=rows.optimizer_in_step.where(rows.optimizer_in_step.isin(("yes", "no")), optimizer)
        != "no",
        torch=rows.torch.map(lambda each: units.plain(each, 20)),
        doubt=rows.doubt.map(lambda each: units.plain(each, 120)),
        data_input=rows.data_input.where(rows.data_input.isin(INPUTS_OF_DATA), ""),
        math_mode=rows.math_mode.where(rows.math_mode.isin(MATH_MODES), usual_math_mode(rows)),
        layout=rows.memory_layout,
    )


@cache
def _usual() -> Mapping[str, tuple[str, str]]:
    """Return the most common execution and optimizer of the shipped rows, by source and harness."""
    counts = Counter(
        (owner, line.get("execution") or "", line.get("optimizer_in_step") or "")
        for name in MEASUREMENTS
        for line in published_rows(name)
        for owner in {line["source"], facts_of(line["source"])[0]}
    )
    # in this order, the most common way of each owner comes last and stays
    return {
        owner: (execution, optimizer) for (owner, execution, optimizer), _ in reversed(counts.most_common())
    }


_spec = lru_cache(maxsize=4096)(find_spec)


# --- the lines of a file ------------------------------------------------------------------------------------


def csv_lines(data: bytes) -> tuple[Sequence[str], Iterator[tuple[int, Sequence[str] | str]]]:
    """Split a CSV into cells: UTF-16 by its byte order mark, else UTF-8, with its header's separator.

    A cell that spans lines is not read, because only a guess could distinguish it from a missing quote. A
    wrong guess would lose every row up to the next quote.

    Returns:
        The cells of the first line, with invalid characters replaced so that the other columns stay. For each
        further nonempty line, its number from 1 and its cells, or the reason why there are none.
    """
    encoding = "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "UTF-8"
    # U+FFFD replaces invalid characters; in a file it marks text that was lost before
    text = data.decode(encoding.replace("UTF-8", "utf-8-sig"), "replace")
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    head = next(lines, "")
    separator = max((",", ";", "\t"), key=head.count)
    header = _cells(head, separator)
    if isinstance(header, str):  # otherwise all would be lost, and no column name needs a quote
        header = head.replace('"', "").split(separator)
    cells = (f"not {encoding} text" if "\ufffd" in line else _cells(line, separator) for line in lines)
    return header, ((number, found) for number, found in enumerate(cells, start=2) if found)


def _cells(line: str, separator: str) -> Sequence[str] | str:
    """Return the cells of one line, or the reason why it has none; an empty line has no cells."""
    reader = csv.reader((line, ""), delimiter=separator)
    try:
        cells = next(reader)
    except csv.Error as error:
        return str(error)
    return cells if reader.line_num == 1 else "a quote that is not closed on its line"
