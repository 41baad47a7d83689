"""Make the shipped tables of memory and traces: ``python -m tools.make TABLE [NAME ...]``.

``allowance`` fits gpubench/data/memory_allowance.json, the memory that a trace cannot see, to the published
readings in data/memory_readings.csv. ``capacity`` traces decoders of 1 to 70 billion parameters in every kind
of training and inference, and writes gpubench/data/capacity.json; it takes a minute or two. ``profiles``
traces the named workloads, or all of them, for gpubench/data/workload_profiles.json.
"""

from __future__ import annotations

import importlib
import math
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
from scipy import optimize, stats

from gpubench import discovery, files, folders, today
from gpubench.arrays import Floats
from gpubench.models import CardClass, MemoryLine, StepMemory, WorkloadProfile
from gpubench.predict.memory_answer import CAPACITY_FILE, MOST_UNITS, DecoderTrace
from gpubench.profile import cache, load_profiles, trace
from gpubench.profile.allowance import ALLOWANCE_FILE, Allowance, ClassAllowance, CompiledLoss, Ran, class_of
from gpubench.specs import load_specs
from gpubench.units import MIB
from tools.published import published_rows

# All layers are equal, so every figure is linear in their number: two traces determine the figures of any
# number.
FEW_LAYERS = (2, 4)


def traced() -> Iterator[DecoderTrace]:
    """Trace every decoder of the family with only a few layers; this takes a minute or two."""
    discovery.workload_names()  # makes the package of the workloads importable in a checkout too
    family = importlib.import_module("gpubench_workloads._family")
    for model, sizes in family.FAMILY.items():
        few = [dict(family.ways(replace(sizes, layers=layers))) for layers in FEW_LAYERS]
        for way in few[0]:
            print(model, way, flush=True)
            low, high = (trace.traced_steps(each[way]) for each in few)
            share = (sizes.layers - FEW_LAYERS[0]) / (FEW_LAYERS[1] - FEW_LAYERS[0])
            yield DecoderTrace(
                model=model,
                parameters=round(low[0] + share * (high[0] - low[0])),
                way=way,
                step=_between(_likely(low[1][0]), _likely(high[1][0]), share),
            )


def _likely(step: StepMemory) -> StepMemory:
    # Return the step with only the lines that are the highest at some length.
    highest = {step.peak(units) for units in range(1, MOST_UNITS + 1)}
    return msgspec.structs.replace(step, lines=tuple(line for line in step.lines if line in highest))


def _between(low: StepMemory, high: StepMemory, share: float) -> StepMemory:
    """Extrapolate a step to more layers from the steps with two numbers of layers."""
    assert len(low.lines) == len(high.lines), "the step changes with the number of layers: trace all of them"
    assert not low.points, "not linear in the length: the points depend on the number of layers"
    assert low.keeping is None, "the memory of kept outputs is not linear in the layers here"

    def at(one: float, two: float) -> float:
        return one + share * (two - one)

    def line(one: MemoryLine, two: MemoryLine) -> MemoryLine:
        return MemoryLine(
            fixed_bytes=at(one.fixed_bytes, two.fixed_bytes),
            bytes_per_sample=at(one.bytes_per_sample, two.bytes_per_sample),
            gradient_bytes=at(one.gradient_bytes, two.gradient_bytes),
        )

    return msgspec.structs.replace(
        low,
        lines=tuple(line(one, two) for one, two in zip(low.lines, high.lines, strict=True)),
        weights_bytes=at(low.weights_bytes, high.weights_bytes),
        trained_bytes=at(low.trained_bytes, high.trained_bytes),
        optimizer_bytes=at(low.optimizer_bytes, high.optimizer_bytes),
        saved=None,
    )


# --- profiles of the workloads ------------------------------------------------------------------------------


def traced_again(names: Sequence[str]) -> list[WorkloadProfile]:
    """Return the profile of every workload, by name. The named ones are traced; without names, all are.

    The versions of torch at the end of a profile's source are kept; tests/packaging/torch_versions.py finds
    the differences between versions.
    """
    known = discovery.workload_names()
    kept = {name: profile for name, profile in load_profiles().items() if name in known}
    traced = {name: trace.profile_workload(discovery.load_workload(name)) for name in names or known}
    for name, profile in traced.items():
        if name in kept and kept[name].source.startswith(f"{profile.source}; "):
            traced[name] = msgspec.structs.replace(profile, source=kept[name].source)
    return sorted((kept | traced).values(), key=lambda profile: profile.name)


# --- memory that a trace cannot see -------------------------------------------------------------------------

READINGS_FILE = "memory_readings.csv"
# Share of a card's memory above which a reading is left out, because an allocator keeps what it can get.
CENSORED_SHARE = 0.9
LEVEL = 0.95
# Logarithmic error beyond which a reading weighs less, such as one of a nearly full card.
_ROBUST_SCALE = 0.03
_START_MIB, _START_FACTOR = 1000.0, 1.1
_DIGITS = 4


# Models without convolutions that have readings of memory in use. On other vendors' cards the models with
# convolutions are a separate class.
WITHOUT_CONVOLUTIONS = frozenset({"bert_mlm", "reformer", "t5_small"})


def load_readings() -> pd.DataFrame:
    """Read the published memory readings, each with the peak from the trace of the same step.

    Columns of the file; None means that the source does not state it:
        kind: The figure: memory in use on the ``device``, ``reserved`` by torch's allocator, or ``unstated``.
            For ``ran`` only the speed was published, so the step needed no more memory than the card has.
        model: The name of its definition in the tests.
        checkpointing: The recomputed activations; None if there were none, or if it is not stated.
        gpu_count: GPUs that sharded weights, gradients and states (FSDP).
        compiled: What torch.compile compiled, which the trace does not see; None as above.
        traced_bytes: The allocated memory in the trace, including separate pools [B].
    Added columns:
        card_class: Class of the card.
        convolves: Whether the model has convolutions.
        is_censored: Whether the card was nearly full.
        is_fitted: Whether it is memory in use, not limited by the size of the card.
        compiles_loss: Whether the step never held float32 scores, which an eager step does hold.
    """
    text = pd.DataFrame(published_rows(READINGS_FILE), dtype=object).replace("", None)
    rows = text.astype({"memory_bytes": float, "traced_bytes": float, "batch_size": int})
    specs = [load_specs()[key] for key in rows.gpu_key]
    listed = np.array([spec.memory_bytes or math.inf for spec in specs])
    is_censored = (rows.kind != "ran") & (rows.memory_bytes > CENSORED_SHARE * listed)
    return rows.assign(
        seq_len=pd.Series([length and int(length) for length in rows.seq_len], dtype=object),
        gpu_count=rows.gpu_count.fillna("1").astype(int),
        card_class=[class_of(spec) for spec in specs],
        convolves=~rows.model.isin(WITHOUT_CONVOLUTIONS),
        is_censored=is_censored,
        is_fitted=(rows.kind == "device") & ~is_censored,
        compiles_loss=rows.compiled.str.contains("loss", na=False),
    )


def fit_allowance(readings: pd.DataFrame, *, fitted: str) -> Allowance:
    """Fit overhead, factor and interval of each class of card. The same readings give the same fit.

    All classes share one factor, because their matrix products need equal memory. The exception is models
    with convolutions on other vendors' cards, because the convolution library of those cards needs extra
    memory.

    Args:
        readings: Memory in use is fitted without the censored readings. Readings of a compiled loss are
            fitted separately. Rows of the kind ``ran`` are kept unchanged.
        fitted: Date to write into the result.
    """
    usable, ran = readings[readings.is_fitted], readings[readings.kind == "ran"]
    has_own_class = (usable.card_class == CardClass.OTHER) & usable.convolves
    return Allowance(
        fitted=fitted,
        classes=_fit_classes(usable[~has_own_class]),
        convolving=_fit_classes(usable[has_own_class])[CardClass.OTHER] if has_own_class.any() else None,
        ran=tuple(
            Ran(gpu_key=card, traced_bytes=traced)
            for card, traced in zip(ran.gpu_key, ran.traced_bytes, strict=True)
        ),
        compiled_loss=fit_compiled_loss(readings[readings.compiles_loss]),
    )


def fit_compiled_loss(readings: pd.DataFrame) -> CompiledLoss | None:
    """Fit the share of the traced memory that steps with a compiled loss hold; None without readings.

    Readings of one card differ by 1 %, but cards differ by a factor of 1.4. Each card therefore counts once,
    and the interval is for a card without readings.
    """
    if readings.empty:
        return None
    shares = (readings.memory_bytes / readings.traced_bytes).map(math.log)
    by_card = shares.groupby(readings.gpu_key).mean()
    return CompiledLoss(
        share=round(math.exp(by_card.mean()), _DIGITS),
        half_width=_half_width(by_card.std(), len(by_card)) if len(by_card) > 1 else None,
        readings=len(readings),
        cards=len(by_card),
    )


def _half_width(spread: float, count: int) -> float:
    """Return the half-width for a new value: Student's t over ``count`` values with this spread."""
    t = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return round(t * float(spread) * math.sqrt(1 + 1 / count), _DIGITS)


def _fit_classes(rows: pd.DataFrame) -> dict[CardClass, ClassAllowance]:
    place, kinds = pd.factorize(rows.card_class, sort=True)
    # each model counts once, however many batches it has
    weight = (1 / rows.groupby("model").model.transform("size")).to_numpy()

    def errors(found: Floats) -> Floats:
        return np.asarray(
            np.log((found[place] * MIB + found[-1] * rows.traced_bytes) / rows.memory_bytes), dtype=float
        )

    def weighted(found: Floats) -> Floats:
        return np.asarray(errors(found) * np.sqrt(weight))

    start = [_START_MIB] * len(kinds) + [_START_FACTOR]
    found = optimize.least_squares(weighted, start, loss="soft_l1", f_scale=_ROBUST_SCALE).x
    left = pd.Series(errors(found), rows.index)
    spread = math.sqrt(np.average(left**2, weights=weight))
    within = (left - left.groupby(rows.model).transform("median")).abs().quantile(LEVEL)
    by_kind = rows.groupby(place).model.agg(["size", "nunique"])
    return {
        kind: ClassAllowance(
            overhead_bytes=round(float(found[n])) * MIB,
            factor=round(float(found[-1]), _DIGITS),
            half_width=_half_width(spread, rows.model.nunique()),
            half_width_within=round(float(within), _DIGITS),
            readings=int(by_kind["size"][n]),
            models=int(by_kind["nunique"][n]),
        )
        for n, kind in enumerate(kinds)
    }


if __name__ == "__main__":
    parser = ArgumentParser(description="Rebuild the shipped tables of memory and traces.")
    parser.add_argument("table", choices=("allowance", "capacity", "profiles"))
    parser.add_argument("names", nargs="*", help="workloads whose profiles are traced; all by default")
    asked = parser.parse_args()
    if asked.table == "profiles":
        profiles = traced_again(asked.names)
        files.write_file(folders.data_path(cache.PROFILES_FILE), files.table_json(profiles))
        for each in (made for made in profiles if made.name in asked.names and made.memory_untraced):
            print(f"{each.name}: no memory was traced: {each.memory_untraced}")
    elif asked.table == "capacity":
        files.write_file(folders.data_path(CAPACITY_FILE), files.table_json(tuple(traced())))
    else:
        fitted = files.table_json(fit_allowance(load_readings(), fitted=today.today().isoformat()))
        files.write_file(folders.data_path(ALLOWANCE_FILE), fitted)
