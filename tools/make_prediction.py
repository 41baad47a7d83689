"""Make the figures of docs/prediction.md: `python -m tools.make_prediction` evaluates everything.

Writes prediction_figures.csv (every slice of every hold-out), prediction_pairs.csv.gz (each pair with what
was measured and predicted for it), and the tables between the markers of prediction.md, made of the former.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpubench.models import TaskKind
from gpubench.units import format_number, format_percent
from tools.evaluate import evaluate, scored_table
from tools.scaling_fit import scaling_figures
from tools.scores import Outcome, report

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
HEADLINE = "harness"
NAMES = {
    "harness": "unseen harness and GPU",
    "stranger": "unseen harness and architecture",
    "gpu": "unseen GPU",
    "family": "unseen chip",
    "architecture": "unseen architecture",
    "model": "unseen model",
    "vendor": "unseen vendor (AMD)",
}
INFERENCE = {
    "inference, harness": "unseen harness and GPU",
    "inference, stranger": "unseen harness and architecture",
    "inference, gpu": "unseen GPU",
    "inference, architecture": "unseen architecture",
}
SEVERAL = "several GPUs"
WHOLE = "all pairs"
COLUMNS = (
    "hold_out", "slice", "pairs", "targets", "mape", "median_ape", "coverage_90", "half_width_factor",
    "geometric_mean_mape", "geometric_mean_median_ape",
)  # fmt: skip
PAIR_COLUMNS = (
    "source", "model", "precision", "own_gpu", "own_batch", "target_gpu", "target_batch", "measured_ratio",
    "predicted_ratio", "low", "high", "weight",
)  # fmt: skip
_SLICES = ("architecture", "harness", "precision", "class", "target")
_STATED = ("execution", "torch", "input", "optimizer in the step", "batch", "doubt")
_INFERENCE_SLICES = ("architecture", "harness", "class")

Row = Mapping[str, Any]


def figures_of(hold_out: str, document: Row) -> list[dict[str, Any]]:
    """The rows of the table of figures for one hold-out: the whole, levels and order, then every slice."""
    rows = [_row(hold_out, WHOLE, document)]
    rows += [_row(hold_out, name, row) for name, row in document["by_slice"].items() if name != WHOLE]
    level, regret = document["no_gpu_owned"], document["regret"]
    rows.append(_row(hold_out, "no GPU owned", level | {"pairs": level["rows"]}))
    order = {
        "mape": document["spearman"],
        "median_ape": regret["throughput"],
        "coverage_90": regret["stress"],
    }
    rows.append(_row(hold_out, "Spearman, regret, regret under stress", order))
    return rows


def _row(hold_out: str, name: str, row: Row) -> dict[str, Any]:
    plain = row.get("geometric_mean") or {}
    return {
        "hold_out": hold_out,
        "slice": name,
        **{key: row.get(key) for key in COLUMNS[2:8]},
        "geometric_mean_mape": plain.get("mape"),
        "geometric_mean_median_ape": plain.get("median_ape"),
    }


def pairs_table(outcome: Outcome) -> str:
    """Every pair of the headline as CSV: the throughput of the target over that of the owned GPU."""
    table, pairs = outcome.table, outcome.pairs
    per_sample = table.log_seconds - np.log(table.batch)
    measured = per_sample[pairs.x] - per_sample[pairs.y]
    predicted = measured - outcome.log_error
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(PAIR_COLUMNS)
    for i, (x, y) in enumerate(zip(pairs.x, pairs.y, strict=True)):
        ends = np.exp([predicted[i] - outcome.half_width[i], predicted[i] + outcome.half_width[i]])
        ratios = (*np.exp([measured[i], predicted[i]]), *(ends if outcome.bound[i] else ("", "")))
        writer.writerow((
            table.source[y], table.model[y], table.precision[y], table.gpu_key[x], int(table.batch[x]),
            table.gpu_key[y], int(table.batch[y]), *(r if r == "" else f"{r:.4g}" for r in ratios),
            f"{pairs.weight[i]:.4g}",
        ))  # fmt: skip
    return file.getvalue()


def read_figures(folder: Path = DOCS) -> list[dict[str, Any]]:
    """The committed figures, numbers as numbers."""
    with (folder / "prediction_figures.csv").open(encoding="utf-8", newline="") as file:
        return [
            {k: v if k in {"hold_out", "slice"} else float(v) if v else None for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


def markdown(rows: Sequence[Row]) -> str:
    """The tables of the page."""
    by_name = {(row["hold_out"], row["slice"]): row for row in rows}
    header = ("never seen", "pairs / targets", "MAPE / median", "90 % covers", "half-width", "geometric mean")
    parts = [
        "### Whole, refused pairs included\n",
        _table(header, [(NAMES[h], *_cells(by_name[h, WHOLE])) for h in NAMES]),
        "\nWhere the GPU sets the pace on both sides, and where the host does (then no interval is given):\n",
        _table(
            header,
            [
                (f"{NAMES[h]}, {name}", *_cells(by_name[h, name]))
                for h in (HEADLINE, "stranger")
                for name in ("GPU-bound", "host-bound")
            ],
        ),
        "\nNo GPU owned (seconds, not ratios), and the order of four or more candidates:\n",
        _table(
            ("never seen", "rows", "MAPE / median", "90 % covers", "Spearman", "lost by the first, stress"),
            [_level_cells(h, by_name) for h in NAMES],
        ),
    ]
    for kind in _SLICES:
        names = [n for h, n in by_name if h == HEADLINE and n.startswith(f"{kind}: ")]
        cells = [(name.partition(": ")[2], *_cells(by_name[HEADLINE, name])) for name in names]
        parts += [f"\n### By {kind} ({NAMES[HEADLINE]})\n", _table((kind, *header[1:]), cells)]
    names = [n for h, n in by_name if h == HEADLINE and n.startswith(tuple(f"{k}: " for k in _STATED))]
    cells = [(name, *_cells(by_name[HEADLINE, name])) for name in names]
    parts += [f"\n### By what a row states ({NAMES[HEADLINE]})\n", _table(("slice", *header[1:]), cells)]
    return "\n".join([*parts, *_inference(by_name, header)])


def _inference(by_name: Mapping[tuple[str, str], Row], header: tuple[str, ...]) -> Iterable[str]:
    yield "\n### Inference\n"
    yield _table(header, [(words, *_cells(by_name[name, WHOLE])) for name, words in INFERENCE.items()])
    yield "\nNo GPU owned, forward passes:\n"
    yield _table(
        ("never seen", "rows", "MAPE / median", "90 % covers", "half-width"),
        [(words, *_seconds_cells(by_name[name, "no GPU owned"])) for name, words in INFERENCE.items()],
    )
    first = next(iter(INFERENCE))
    yield f"\nBy slice ({INFERENCE[first]}):\n"
    slices = [
        n for h, n in by_name if h == first and n.startswith(tuple(f"{k}: " for k in _INFERENCE_SLICES))
    ]
    yield _table(("slice", *header[1:]), [(name, *_cells(by_name[first, name])) for name in slices])
    yield "\n### Several GPUs in one job (unseen harness)\n"
    yield _table(
        ("slice", "jobs / votes", "MAPE", "90 % covers", "half-width"),
        [(name, *_job_cells(row)) for (h, name), row in by_name.items() if h == SEVERAL],
    )


def _job_cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row['pairs']:.0f} / {row['targets']:.0f}",
        _percent(row["mape"]),
        _percent(row["coverage_90"]),
        f"x{format_number(row['half_width_factor'])}",
    )


def _seconds_cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row['pairs']:.0f}",
        f"{_percent(row['mape'])} / {_percent(row['median_ape'])}",
        _percent(row["coverage_90"]),
        f"x{format_number(row['half_width_factor'])}",
    )


def _cells(row: Row) -> tuple[str, ...]:
    mine, plain = row["mape"], row["geometric_mean_mape"]
    beaten = "" if plain is None or mine is None or mine < plain else " (**better**)"
    return (
        f"{row['pairs']:.0f} / {row['targets']:.0f}",
        f"{_percent(mine)} / {_percent(row['median_ape'])}",
        _percent(row["coverage_90"]),
        f"x{format_number(row['half_width_factor'])}",
        f"{_percent(plain)} / {_percent(row['geometric_mean_median_ape'])}{beaten}",
    )


def _level_cells(hold_out: str, by_name: Mapping[tuple[str, str], Row]) -> tuple[str, ...]:
    level, order = (by_name[hold_out, n] for n in ("no GPU owned", "Spearman, regret, regret under stress"))
    return (
        NAMES[hold_out],
        f"{level['pairs']:.0f}",
        f"{_percent(level['mape'])} / {_percent(level['median_ape'])}",
        _percent(level["coverage_90"]),
        format_number(order["mape"]),
        f"{_percent(order['median_ape'])}, {_percent(order['coverage_90'])}",
    )


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(ratio: float | None) -> str:
    return format_percent(ratio, 3)


def page_with(tables: str, page: str) -> str:
    """The page with these tables between its markers."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def write(folder: Path = DOCS) -> None:
    """Evaluate, and rewrite what is made of it."""
    rows = []
    for hold_out in NAMES:
        outcome = evaluate(scored_table(hold_out), hold_out)
        rows += figures_of(hold_out, report(outcome))
        if hold_out == HEADLINE:
            packed = gzip.compress(pairs_table(outcome).encode(), mtime=0)
            (folder / "prediction_pairs.csv.gz").write_bytes(packed)
    for name in INFERENCE:
        hold_out, task = name.partition(", ")[2], TaskKind.INFER
        rows += figures_of(name, report(evaluate(scored_table(hold_out, task), hold_out, task)))
    several = scaling_figures()
    rows += [
        _row(SEVERAL, name, row | {"pairs": row["jobs"]})
        for name, row in {"all jobs": several, **several["by_slice"]}.items()
    ]
    with (folder / "prediction_figures.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    page = folder / "prediction.md"
    tables = markdown(read_figures(folder))
    page.write_text(page_with(tables, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
