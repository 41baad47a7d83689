"""The figures of docs/prediction.md: computed here, never typed.

``python -m gpubench.predict.error_page docs`` evaluates everything (about three minutes), writes
``prediction_figures.json`` and puts the tables between the markers of ``prediction.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpubench.files import read_json, read_text, write_file
from gpubench.models import Estimate, Precision
from gpubench.predict import baseline, evaluate
from gpubench.predict.estimate import estimate
from gpubench.predict.published import shipped
from gpubench.predict.question import Question
from gpubench.profile import load_profiles
from gpubench.specs import load_specs
from gpubench.units import MIB, format_number, format_percent

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
FIGURES, PAGE = "prediction_figures.json", "prediction.md"
STRICT = ("gpu", "family", "architecture")
NAMES = {
    "gpu": "unseen GPU",
    "family": "unseen family (chip)",
    "architecture": "unseen architecture",
    "model": "unseen model",
}
PROTOTYPE = {"gpu": (0.158, 0.112), "family": (0.180, 0.123), "architecture": (0.190, 0.127)}
"""MAPE and median that the prototype's strict baseline reached, as published."""
READ_ON = "nvidia-h200-sxm-141gb"
READINGS: tuple[tuple[str, int, str, float], ...] = (
    ("cnn", 64, "fp32", 179e3),
    ("cnn", 64, "amp-bf16", 183e3),
    ("cnn", 512, "fp32", 455e3),
    ("cnn", 4096, "fp32", 590e3),
    ("cnn", 4096, "amp-bf16", 1.03e6),
    ("lstm", 64, "fp32", 204e3),
    ("lstm", 64, "amp-bf16", 234e3),
    ("lstm", 4096, "amp-bf16", 2.23e6),
    ("vgg16", 32, "amp-bf16", 2787),
    ("vgg16", 64, "tf32", 1746),
    ("vgg16", 128, "amp-bf16", 3586),
    ("vgg16", 128, "fp32", 703),
    ("vgg16_transfer", 64, "amp-bf16", 8200),
    ("vgg16_transfer", 64, "fp32", 1609),
    ("resnet50", 128, "amp-bf16", 4473),
)
"""Hand-written loops on one H200, 2026-11-20, torch 2.11: training steps as a CUDA graph (tf32 eager)."""
_SLICES = ("precision", "class", "source", "target")


def collect(
    hold_outs: Iterable[str] = evaluate.HOLD_OUTS, baselines: Iterable[str] = STRICT
) -> dict[str, Any]:
    """Evaluate on the shipped rows: this method, and the prototype's refitted on the same rows."""
    table = shipped().table
    return {
        "method": {h: evaluate.report(evaluate.evaluate(table, h)) for h in hold_outs},
        "baseline": {h: evaluate.report(baseline.evaluate(table, h)) for h in baselines},
        "readings": against_readings(),
    }


def against_readings() -> list[dict[str, Any]]:
    """What is predicted for the cases that were read by hand on an H200; none of them is in any fit."""
    spec, rows = load_specs()[READ_ON], []
    for workload, batch, precision, seen in READINGS:
        question = Question(
            profile=load_profiles()[workload], precision=Precision(precision), batch_size=batch
        )
        answer = estimate(question, [spec])[READ_ON]
        assert isinstance(answer, Estimate)
        assert answer.low is not None
        assert answer.high is not None
        rows.append({
            "case": answer.case.label,
            "read": seen,
            "predicted": round(answer.samples_per_s, 1),
            "ratio": round(answer.samples_per_s / seen, 3),
            "inside": answer.low <= seen <= answer.high,
        })  # fmt: skip
    return rows


def _readings_table(rows: Iterable[Mapping[str, Any]]) -> str:
    header = ("case", "read [samples/s]", "predicted", "predicted / read", "inside the interval")
    return _table(
        header,
        [
            (
                row["case"],
                format_number(row["read"]),
                format_number(row["predicted"]),
                format_number(row["ratio"]),
                "yes" if row["inside"] else "**no**",
            )
            for row in rows
        ],
    )


def markdown(figures: Mapping[str, Any]) -> str:
    """The tables of the page."""
    method = figures["method"]
    parts = [
        "### Whole\n",
        _whole(method, figures["baseline"]),
        "\nAll pairs, host-bound ones included, and what is refused:\n",
        _all_pairs(method),
        "\nNo GPU owned (level, not ratio), and the order of candidates:\n",
        _no_gpu_owned(method),
    ]
    for kind in _SLICES:
        parts += [f"\n### By {kind}\n", _slice_table(method, kind)]
    parts += ["\n### Other slices\n", _slice_table(method, None)]
    parts += ["\n### Against readings of an H200, no GPU owned\n", _readings_table(figures["readings"])]
    return "\n".join(parts)


def _whole(method: Mapping[str, Any], prototype: Mapping[str, Any]) -> str:
    refitted = "prototype's method, refitted"
    header = ("split", "pairs / targets", "MAPE / median", "90 % covers", "half-width", refitted)
    rows = [
        (NAMES[h], _n(r), _errors(r), _percent(r["coverage_90"]), _factor(r), _errors(prototype.get(h)))
        for h, r in method.items()
    ]
    return _table(header, rows)


def _all_pairs(method: Mapping[str, Any]) -> str:
    header = ("split", "all pairs", "MAPE / median", "host-bound pairs", "MAPE / median", "share refused")
    rows = []
    for h, r in method.items():
        everything, bound = r["by_slice"]["all pairs"], r["by_slice"]["host-bound"]
        share = _percent(r["refused_share"])
        rows.append((NAMES[h], _n(everything), _errors(everything), _n(bound), _errors(bound), share))
    return _table(header, rows)


def _no_gpu_owned(method: Mapping[str, Any]) -> str:
    regret = "lost: throughput / per dollar / stress"
    header = ("split", "rows", "MAPE / median", "90 % covers", "Spearman", regret)
    rows = []
    for h, r in method.items():
        level = r["no_gpu_owned"]
        lost = " / ".join(_percent(r["regret"][k]) for k in ("throughput", "per_usd", "stress"))
        order = (format_number(r["spearman"]), lost)
        rows.append((NAMES[h], str(level["rows"]), _errors(level), _percent(level["coverage_90"]), *order))
    return _table(header, rows)


def _slice_table(method: Mapping[str, Any], kind: str | None) -> str:
    names = [
        name
        for name in method["family"]["by_slice"]
        if (name.startswith(f"{kind}: ") if kind else ":" not in name)
    ]
    rows = []
    for name in names:
        found = [method[h]["by_slice"].get(name) for h in STRICT]
        family = method["family"]["by_slice"][name]
        rows.append((
            name.partition(": ")[2] or name,
            _n(family),
            *(_errors(f) for f in found),
            _percent(family["coverage_90"]),
            _factor(family),
        ))  # fmt: skip
    header = (
        "slice",
        "pairs / targets",
        *(NAMES[h] for h in STRICT),
        "90 % covers (family)",
        "half-width (family)",
    )
    return _table(header, rows)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _n(row: Mapping[str, Any]) -> str:
    return f"{row['pairs']} / {row['targets']}"


def _errors(row: Mapping[str, Any] | None) -> str:
    return (
        "—"
        if row is None or row["mape"] is None
        else f"{_percent(row['mape'])} / {_percent(row['median_ape'])}"
    )


def _percent(ratio: float | None) -> str:
    return format_percent(ratio, 3)


def _factor(row: Mapping[str, Any]) -> str:
    return f"x{format_number(row['half_width_factor'])}"


def write(folder: Path) -> None:
    """Evaluate, then rewrite the figures and the page in a folder."""
    figures = collect()
    text = msgspec.json.format(msgspec.json.encode(figures), indent=1).decode() + "\n"
    write_file(folder / FIGURES, text.encode())
    rewrite(folder)


def rewrite(folder: Path) -> None:
    """Put the tables of the stored figures between the markers of the page."""
    figures = read_json(folder / FIGURES, dict[str, Any], MIB, what="table of figures")
    page = folder / PAGE
    before, _, rest = read_text(page, MIB).partition(BEGIN)
    after = rest.partition(END)[2]
    write_file(page, f"{before}{BEGIN}\n{markdown(figures)}\n{END}{after}".encode())


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
