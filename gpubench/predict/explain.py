"""Predictions in words: one line of reasons each, and the records of `predict show --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gpubench.findings import describe
from gpubench.models import Estimate
from gpubench.predict.calibration import load_calibration
from gpubench.predict.pairs import chip_of
from gpubench.predict.question import Refusal
from gpubench.specs import load_specs
from gpubench.units import format_number, format_percent, per_second, plain


def as_text(answers: Mapping[str, Estimate | Refusal]) -> str:
    """Figures with their reasons, the fastest first, then the refusals."""
    estimates = sorted(
        (a for a in answers.values() if isinstance(a, Estimate)), key=lambda e: -e.samples_per_s
    )
    lines = []
    for e in estimates:
        figure = f"{e.interval.text()} {per_second(e.case.sample_unit)}"
        lines += [f"{e.gpu_key}: {figure}, {_case(e)}", f"  {reasons(e)}"]
    lines += [f"{a.gpu_key}: no prediction: {a.reason}" for a in answers.values() if isinstance(a, Refusal)]
    return "\n".join(lines)


def _case(e: Estimate) -> str:
    """The case; where its batch is the largest that fits, also by whose word."""
    if e.batch_choice != "largest":
        return e.case.label
    by = "by the memory model" if e.batch_found_by is None else f"as run {plain(e.batch_found_by)} found"
    return f"{e.case.label}, the largest that fits {by}"


def as_records(answers: Mapping[str, Estimate | Refusal]) -> dict[str, Any]:
    """The document of `predict show --json`."""
    calibration = load_calibration()
    return {
        "schema_version": 1,
        "calibrated": calibration.fitted,
        "estimates": [
            msgspec.to_builtins(a) | {"reasons": reasons(a)}
            for a in answers.values()
            if isinstance(a, Estimate)
        ],
        "refused": [msgspec.to_builtins(a) for a in answers.values() if isinstance(a, Refusal)],
    }


def reasons(estimate: Estimate) -> str:
    """Why this figure: basis, what binds the step, the calibration behind it, and what to beware of."""
    parts = [f"{estimate.basis}: {estimate.method}"]
    if estimate.basis == "predicted":
        calibration = load_calibration()
        parts.append(
            f"step bound by compute {format_percent(estimate.compute_share)}, "
            f"bandwidth {format_percent(estimate.bandwidth_share)}, "
            f"host {format_percent(estimate.host_share)}"
        )
        own = calibration.rows_by_gpu.get(estimate.gpu_key, 0)
        parts.append(
            f"{own or 'no'} published rows of this GPU{_nearest(estimate.gpu_key) if not own else ''}, "
            f"{calibration.rows} in all, calibrated {calibration.fitted}"
        )
    parts += [describe(f) for f in estimate.findings]
    return "; ".join(parts)


def _nearest(gpu_key: str) -> str:
    """The relative with the most published rows, in words; nothing where there is none."""
    rows = load_calibration().rows_by_gpu
    specs = load_specs()
    kin = [key for key in rows if chip_of(key) == chip_of(gpu_key)] or [
        key for key in rows if specs[key].compute_capability == specs[gpu_key].compute_capability
    ]
    if not kin:
        return ""
    nearest = max(kin, key=lambda key: (rows[key], key))
    return f" (nearest: {rows[nearest]} of {specs[nearest].name})"


def scores_as_text(document: Mapping[str, Any]) -> str:
    """Figures of `predict evaluate` and `predict score`: the whole first, then slice by slice."""
    lines = [_score_line("all pairs", document)]
    heaviest = document["heaviest_source"]
    if heaviest is not None:
        share = format_percent(heaviest["share"])
        lines.append(f"heaviest harness: {plain(heaviest['harness'])}, {share} of the votes")
    lines += [_score_line(name, row) for name, row in document["by_slice"].items()]
    owned = document["no_gpu_owned"]
    lines.append(
        f"no GPU owned: {owned['rows']} rows, MAPE {format_percent(owned['mape'])}, "
        f"median {format_percent(owned['median_ape'])}"
    )
    regret = document["regret"]
    lines.append(
        f"order: Spearman {format_number(document['spearman'])}; lost by the first choice: throughput "
        f"{format_percent(regret['throughput'])}, per dollar {format_percent(regret['per_usd'])}, "
        f"stress {format_percent(regret['stress'])}"
    )
    lines += [f"skipped: {count} x {reason}" for reason, count in document.get("skipped", {}).items()]
    return "\n".join(lines)


def _score_line(name: str, row: Mapping[str, Any]) -> str:
    if not row["pairs"]:
        return f"{plain(name)}: no pairs"
    return (
        f"{plain(name)}: {row['pairs']} pairs, {row['targets']} targets: MAPE {format_percent(row['mape'])}, "
        f"median {format_percent(row['median_ape'])}, "
        f"90 % interval covers {format_percent(row['coverage_90'])}, "
        f"half-width x{format_number(row['half_width_factor'])}"
        f"; geometric mean of peak and bandwidth: {format_percent(row['geometric_mean']['mape'])}, "
        f"{format_percent(row['geometric_mean']['median_ape'])}"
    )
