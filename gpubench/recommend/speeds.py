"""The throughput of one GPU of each kind, with interval and draws, for one workload or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.models import Basis, Estimate, MemoryFit
from gpubench.predict.question import Refusal

Answers = Mapping[str, Estimate | Refusal]


class Drawer(Protocol):
    """A function such as ``predict.answers.draw``."""

    def __call__(self, estimates: Sequence[Estimate], n: int, seed: int) -> Floats:
        """Return (len(estimates), n) draws of the throughput [samples/s]."""


_WEAKEST_LAST: tuple[Basis, ...] = ("measured", "reference", "predicted")


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of GPUs, row by row.

    Attributes:
        keys: GPU keys, in the order of the rows of all other fields.
        estimates: The estimate for each GPU; for several workloads their combination.
        parts: The combined estimates, one per workload.
        samples_per_s, low, high: (G,) throughput of one GPU; NaN bounds are unknown.
        draws: (G, D) joint draws of the throughput.
        refusals: The reason for each GPU without a figure, by GPU key.

    If a job fits only on several GPUs of a kind, the throughput is that of one of them as if it held
    everything.
    """

    keys: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    parts: tuple[tuple[Estimate, ...], ...]
    samples_per_s: Floats
    low: Floats
    high: Floats
    draws: Floats
    refusals: dict[str, str]

    def row_of_one(self, key: str) -> int | None:
        """Return the row of a GPU; None if it has no figure, or if the job does not fit on a single one."""
        row = self.keys.index(key) if key in self.keys else None
        return None if row is None or self.estimates[row].fewest_gpus > 1 else row


def combine(
    answers: Mapping[str, Answers], shares: Mapping[str, float], drawer: Drawer, draws: int, seed: int
) -> Speeds:
    """Combine the answers for each workload into one speed for each GPU.

    A single workload keeps its speed. Several workloads without shares are combined by the geometric mean of
    their samples/s, which gives the same order of GPUs as the geometric mean of ratios to any one GPU. With
    shares, the result is the rate of that mixture of samples: 1 / sum(share_i / s_i).

    The error of a GPU is assumed to be the same for all workloads (its draws use the same random numbers), so
    that an average over workloads does not look more certain than a single workload.

    Args:
        answers: The answers by workload, then by GPU key.
        shares: Share of the samples by workload; empty for the geometric mean.
        drawer: A function such as ``predict.answers.draw``.
        draws: Number of joint draws.
        seed: Equal seeds give equal draws.
    """
    refusals = _refusals(answers)
    names, tables = list(answers), list(answers.values())
    keys = tuple(key for key in tables[0] if key not in refusals and all(key in table for table in tables))
    by_workload = [[answer for key in keys if isinstance(answer := table[key], Estimate)] for table in tables]
    parts = tuple(zip(*by_workload, strict=True)) if keys else ()
    point, low, high = (
        mean_of(
            np.array([[getattr(e, field) for e in row] for row in by_workload], dtype=float), names, shares
        )
        for field in ("samples_per_s", "low", "high")
    )
    return Speeds(
        keys=keys,
        estimates=tuple(
            _merged(part, *figures) for part, *figures in zip(parts, point, low, high, strict=True)
        ),
        parts=parts,
        samples_per_s=point,
        low=low,
        high=high,
        draws=mean_of(np.array([drawer(row, draws, seed) for row in by_workload]), names, shares),
        refusals=refusals,
    )


def _refusals(answers: Mapping[str, Answers]) -> dict[str, str]:
    refusals: dict[str, str] = {}
    for table in answers.values():
        for key, answer in table.items():
            if isinstance(answer, Refusal):
                refusals.setdefault(key, answer.reason)
            elif answer.fits_memory is False:
                largest, case = answer.largest_batch, answer.case
                fix = f"the largest that fits is {largest:,}" if largest else "not even a batch of 1 fits"
                words = f"{case.workload} at batch {case.batch_size:,} does not fit its memory; {fix}"
                refusals.setdefault(key, words)
    return refusals


def gpus_needed(fewest: int) -> str:
    """Return how many GPUs the memory of a job needs: ``fits on 1``, ``needs 2 with FSDP``."""
    return "fits on 1" if fewest == 1 else f"needs {fewest} with FSDP"


def batches_of(estimates: Sequence[Estimate]) -> tuple[int, ...]:
    """Return the batch size of each workload behind a figure, in order."""
    return tuple(estimate.case.batch_size for estimate in estimates)


def mean_of(rates: Floats, workloads: Sequence[str], shares: Mapping[str, float]) -> Floats:
    """Return the combined rate of several workloads, which are the first axis.

    Without shares it is the geometric mean: 200/s and 800/s give 400/s. With shares it is the rate of the
    mixture: half at 100/s and half at 300/s give 1 / (0.5/100 + 0.5/300) = 150/s.
    """
    if len(workloads) == 1:
        return np.asarray(rates[0])
    if not shares:
        return np.asarray(np.exp(np.log(rates).mean(axis=0)))
    weights = np.array([shares[name] for name in workloads])
    return np.asarray(1 / np.tensordot(weights / weights.sum(), 1 / rates, axes=1))


def _merged(parts: tuple[Estimate, ...], point: float, low: float, high: float) -> Estimate:
    if len(parts) == 1:
        return parts[0]
    weakest = max((part.basis for part in parts), key=_WEAKEST_LAST.index)
    return msgspec.structs.replace(
        with_memory_of(parts[0], parts),
        samples_per_s=float(point),
        low=None if math.isnan(low) else float(low),
        high=None if math.isnan(high) else float(high),
        basis=weakest,
        method=f"{len(parts)} workloads together; {parts[0].method}",
        evidence=tuple(dict.fromkeys(item for part in parts for item in part.evidence)),
        anchored=_all_or_unknown([part.anchored for part in parts]),
        fits_memory=_all_or_unknown([part.fits_memory for part in parts]),
        largest_batch=None,
        fewest_gpus=max(part.fewest_gpus for part in parts),
        host_share=max((p.host_share for p in parts if p.host_share is not None), default=None),
        host_cpu=next((p.host_cpu for p in parts if p.host_cpu), None),
        findings=tuple(dict.fromkeys(item for part in parts for item in part.findings)),
    )


def largest_of(figures: Sequence[float | None]) -> float | None:
    """Return the largest of the workloads' figures; None if one is unknown."""
    known = [figure for figure in figures if figure is not None]
    return max(known) if len(known) == len(figures) else None


def with_memory_of(estimate: Estimate, parts: Sequence[Estimate]) -> Estimate:
    """Return an estimate with the memory of the workload that needs the most."""
    largest = max(parts, key=lambda part: part.device_bytes.high or 0)
    return msgspec.structs.replace(
        estimate,
        peak_memory_bytes=max((p.peak_memory_bytes for p in parts if p.peak_memory_bytes), default=None),
        device_bytes=largest.device_bytes,
        memory_text=largest.memory_text,
    )


def with_fits(
    parts: tuple[Estimate, ...], fits: Sequence[MemoryFit | None], *, sharded: bool
) -> tuple[Estimate, ...]:
    """Return the estimates of single workloads, each with the memory of its fit if there is one.

    Args:
        parts: The estimates for one GPU.
        fits: The fit on each of several GPUs, by workload.
        sharded: Whether the GPUs shard the job by FSDP.
    """
    if not any(fits):
        return parts
    return tuple(
        part
        if fit is None
        else msgspec.structs.replace(
            part,
            peak_memory_bytes=round(fit.need.allocated.value or 0),
            memory_text=fit.text(sharded=sharded),
            largest_batch=max(fit.largest_batch, part.largest_batch or 0),
            device_bytes=fit.need.device_bytes,
        )
        for part, fit in zip(parts, fits, strict=True)
    )


def _all_or_unknown(values: Sequence[bool | None]) -> bool | None:
    if any(value is False for value in values):
        return False
    return None if any(value is None for value in values) else True
