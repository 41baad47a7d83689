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

from gpubench.predict import baseline, evaluate
from gpubench.predict.published import shipped
from gpubench.units import format_number, format_percent

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
_SLICES = ("precision", "class", "source", "target")


def collect(
    hold_outs: Iterable[str] = evaluate.HOLD_OUTS, baselines: Iterable[str] = STRICT
) -> dict[str, Any]:
    """Evaluate on the shipped rows: this method, and the prototype's refitted on the same rows."""
    table = shipped().table
    return {
        "method": {h: evaluate.report(evaluate.evaluate(table, h)) for h in hold_outs},
        "baseline": {h: evaluate.report(baseline.evaluate(table, h)) for h in baselines},
    }


def markdown(figures: Mapping[str, Any]) -> str:
    """The tables of the page."""
    method, prototype = figures["method"], figures["baseline"]
    parts = [
        "### Whole\n",
        _table(
            (
                "split",
                "pairs / targets",
                "MAPE / median",
                "90 % covers",
                "half-width",
                "prototype's method, refitted",
            ),
            [
                (
                    NAMES[h],
                    _n(r),
                    _errors(r),
                    _percent(r["coverage_90"]),
                    _factor(r),
                    _errors(prototype.get(h)),
                )
                for h, r in method.items()
            ],
        ),
        "\nAll pairs, host-bound ones included, and what is refused:\n",
        _table(
            ("split", "all pairs", "MAPE / median", "host-bound pairs", "MAPE / median", "share refused"),
            [
                (
                    NAMES[h],
                    _n(r["by_slice"]["all pairs"]),
                    _errors(r["by_slice"]["all pairs"]),
                    _n(r["by_slice"]["host-bound"]),
                    _errors(r["by_slice"]["host-bound"]),
                    _percent(r["refused_share"]),
                )
                for h, r in method.items()
            ],
        ),
        "\nNo GPU owned (level, not ratio), and the order of candidates:\n",
        _table(
            (
                "split",
                "rows",
                "MAPE / median",
                "90 % covers",
                "Spearman",
                "lost: throughput / per dollar / stress",
            ),
            [
                (
                    NAMES[h],
                    str(r["no_gpu_owned"]["rows"]),
                    _errors(r["no_gpu_owned"]),
                    _percent(r["no_gpu_owned"]["coverage_90"]),
                    format_number(r["spearman"]),
                    " / ".join(_percent(r["regret"][k]) for k in ("throughput", "per_usd", "stress")),
                )
                for h, r in method.items()
            ],
        ),
    ]
    for kind in _SLICES:
        parts += [f"\n### By {kind}\n", _slice_table(method, kind)]
    parts += ["\n### Other slices\n", _slice_table(method, None)]
    return "\n".join(parts)


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
    (folder / FIGURES).write_text(text, encoding="utf-8")
    rewrite(folder)


def rewrite(folder: Path) -> None:
    """Put the tables of the stored figures between the markers of the page."""
    figures = msgspec.json.decode((folder / FIGURES).read_bytes())
    page = folder / PAGE
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{markdown(figures)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
