"""Fit what a trace of memory cannot know on published readings.

``python -m tools.make_memory_allowance`` writes gpubench/data/memory_allowance.json again. The readings are
in data/memory_readings.csv, each with source, date and what the trace of its definition counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np
import pandas as pd
from scipy import optimize, stats

from gpubench.arrays import Floats
from gpubench.files import table_json, write_file
from gpubench.folders import data_path
from gpubench.models import CardClass, Checkpointing
from gpubench.profile.allowance import (
    ALLOWANCE_FILE,
    Allowance,
    ClassAllowance,
    CompiledLoss,
    Ran,
    class_of,
)
from gpubench.specs import load_specs
from gpubench.today import today
from gpubench.units import MIB
from tools.published import published_rows

READINGS_FILE = "memory_readings.csv"
CENSORED_SHARE = 0.9
"""Of a card: readings above are left out, for an allocator keeps what it can get."""
LEVEL = 0.95
_ROBUST_SCALE = 0.03
"""In the logarithm: readings farther off than this weigh less, such as one with a gap near a full card."""
_START = (1000 * MIB, 1.1)
_DIGITS = 4


WITHOUT_CONVOLUTIONS = frozenset({"bert_mlm", "reformer", "t5_small"})
"""Of the models whose memory in use was read; on other vendors' cards the others are a class of their own."""


class ReadingKind(StrEnum):
    """What was read: memory in use on the device, held by torch's allocator, or not stated.

    ``RAN`` is a step of which only the speed was published: it ran, so it took no more than the card has.
    """

    DEVICE = "device"
    RESERVED = "reserved"
    UNSTATED = "unstated"
    RAN = "ran"


class MemoryReading(msgspec.Struct, frozen=True, kw_only=True):
    """One published reading of memory, and what the trace of the same step counts.

    Attributes:
        model: As its own definition in the tests is called.
        checkpointing: Which activations were computed again; None is none, or not stated.
        gpu_count: GPUs that shared out weights, gradients and states (FSDP).
        compiled: What torch.compile had compiled, which the trace does not see; None as above.
        traced_bytes: Peak that the trace counts as allocated, with what has a pool of its own [B].
    """

    source: str
    date: str
    gpu_key: str
    kind: ReadingKind
    model: str
    precision: str
    batch_size: int
    seq_len: int | None = None
    checkpointing: Checkpointing | None = None
    gpu_count: int = 1
    compiled: str | None = None
    memory_bytes: float
    traced_bytes: float

    @property
    def card_class(self) -> CardClass:
        """Class of the card that it was read on."""
        return class_of(load_specs()[self.gpu_key])

    @property
    def convolves(self) -> bool:
        """Whether the model has convolutions."""
        return self.model not in WITHOUT_CONVOLUTIONS

    @property
    def is_fitted(self) -> bool:
        """Whether it is of memory in use, and no card set an end to it."""
        return self.kind is ReadingKind.DEVICE and not self.is_censored

    @property
    def compiles_loss(self) -> bool:
        """Whether no scores in float32 were ever held, which an eager step holds."""
        return self.compiled is not None and "loss" in self.compiled

    @property
    def is_censored(self) -> bool:
        """Whether the card was nearly full."""
        listed = load_specs()[self.gpu_key].memory_bytes or math.inf
        return self.kind is not ReadingKind.RAN and self.memory_bytes > CENSORED_SHARE * listed


def load_readings() -> tuple[MemoryReading, ...]:
    """Read the shipped readings."""
    told = [{name: text for name, text in row.items() if text} for row in published_rows(READINGS_FILE)]
    return msgspec.convert(told, tuple[MemoryReading, ...], strict=False)


def fit_allowance(readings: Sequence[MemoryReading], *, fitted: str) -> Allowance:
    """Fit overhead, factor and interval of each class of card. The same readings give the same fit.

    All share one factor, for their products of matrices take alike: but for models that convolve on other
    vendors' cards, whose library of convolutions takes memory of its own.

    Args:
        readings: Those of memory in use are fitted, censored ones left out, and those of a compiled loss
            apart; what ran is kept as it is.
        fitted: Date to write into it.
    """
    usable = [r for r in readings if r.is_fitted]
    apart = [r for r in usable if r.card_class is CardClass.OTHER and r.convolves]
    return Allowance(
        fitted=fitted,
        classes=_fit([r for r in usable if r not in apart]),
        convolving=_fit(apart)[CardClass.OTHER] if apart else None,
        ran=tuple(
            Ran(gpu_key=r.gpu_key, traced_bytes=r.traced_bytes) for r in readings if r.kind is ReadingKind.RAN
        ),
        compiled_loss=fit_compiled_loss([r for r in readings if r.compiles_loss]),
    )


def fit_compiled_loss(readings: Sequence[MemoryReading]) -> CompiledLoss | None:
    """Fit the share of the trace that steps with a compiled loss hold. None of no readings.

    Within a card they differ by a hundredth, from card to card by 1.4 times: each card counts once, and the
    interval is for one never read.
    """
    if not readings:
        return None
    shares = pd.Series([math.log(r.memory_bytes / r.traced_bytes) for r in readings], dtype=float)
    by_card = shares.groupby([r.gpu_key for r in readings]).mean()
    return CompiledLoss(
        share=round(math.exp(by_card.mean()), _DIGITS),
        half_width=_half_width(by_card.std(), len(by_card)) if len(by_card) > 1 else None,
        readings=len(readings),
        cards=len(by_card),
    )


def _half_width(spread: float, count: int) -> float:
    """Of the interval for a new one: Student's t over ``count`` that spread so."""
    t = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return round(t * float(spread) * math.sqrt(1 + 1 / count), _DIGITS)


def _fit(readings: Sequence[MemoryReading]) -> dict[CardClass, ClassAllowance]:
    rows = pd.DataFrame(
        [(r.card_class, r.model, r.memory_bytes, r.traced_bytes) for r in readings],
        columns=["kind", "model", "read", "traced"],
    )
    place, kinds = pd.factorize(rows.kind, sort=True)
    # each model counts once, however many of its batches were read
    weight = (1 / rows.groupby("model").model.transform("size")).to_numpy()

    def errors(found: Floats) -> Floats:
        return np.asarray(np.log((found[place] * MIB + found[-1] * rows.traced) / rows.read), dtype=float)

    def weighted(found: Floats) -> Floats:
        return np.asarray(errors(found) * np.sqrt(weight))

    start = np.array([_START[0] / MIB] * len(kinds) + [_START[1]])
    found = optimize.least_squares(weighted, start, loss="soft_l1", f_scale=_ROBUST_SCALE).x
    left = pd.Series(errors(found))
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
    allowance = fit_allowance(load_readings(), fitted=today().isoformat())
    write_file(data_path(ALLOWANCE_FILE), table_json(allowance))
