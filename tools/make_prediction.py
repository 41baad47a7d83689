"""Make the figures of docs/prediction-evidence.md: `python -m tools.make_prediction` evaluates everything.

Writes prediction_figures.csv (every slice of every hold-out), prediction_pairs.csv.gz (each pair with what
was measured and predicted for it), and the tables between the markers of the page, made of the former.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpubench.models import TaskKind
from gpubench.units import format_number, format_percent
from tools.evaluate import Outcome, evaluate, report, scored_table
from tools.fit import scaling_figures

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
SHOWN = ("harness", "stranger", "gpu", "vendor")
"""Hold-outs on the page; the table of figures has all."""
SEVERAL = "several GPUs"
WHOLE, LEVEL, ORDER = "all pairs", "no GPU owned", "Spearman, regret"
COLUMNS = (
    "hold_out", "slice", "pairs", "targets", "mape", "median_ape", "coverage_90", "half_width_factor",
    "geometric_mean_mape", "geometric_mean_median_ape",
)  # fmt: skip

Row = dict[str, Any]


def figures_of(hold_out: str, document: Row) -> list[dict[str, Any]]:
    """The rows of the table of figures for one hold-out: the whole, levels and order, then every slice."""
    rows = [_row(hold_out, WHOLE, document)]
    rows += [_row(hold_out, name, row) for name, row in document["by_slice"].items() if name != WHOLE]
    level = document["no_gpu_owned"]
    order = {"mape": document["spearman"], "median_ape": document["regret"]["throughput"]}
    return [*rows, _row(hold_out, LEVEL, level | {"pairs": level["rows"]}), _row(hold_out, ORDER, order)]


def _row(hold_out: str, name: str, row: Row) -> dict[str, Any]:
    plain = {f"geometric_mean_{key}": each for key, each in (row.get("geometric_mean") or {}).items()}
    return {"hold_out": hold_out, "slice": name} | {key: (row | plain).get(key) for key in COLUMNS[2:]}


def pairs_table(outcome: Outcome) -> str:
    """Every pair of the headline as CSV: the throughput of the target over that of the owned GPU."""
    table, x, y = outcome.table, outcome.pairs.x, outcome.pairs.y
    per_sample = table.log_seconds - np.log(table.batch)
    measured = per_sample[x] - per_sample[y]
    predicted = measured - outcome.log_error
    end = np.where(outcome.bound, outcome.half_width, np.nan)  # a refused pair has no interval
    columns = {
        "source": table.source[y],
        "model": table.model[y],
        "precision": table.precision[y],
        "own_gpu": table.gpu_key[x],
        "own_batch": table.batch[x].astype(int),
        "target_gpu": table.gpu_key[y],
        "target_batch": table.batch[y].astype(int),
        "measured_ratio": np.exp(measured),
        "predicted_ratio": np.exp(predicted),
        "low": np.exp(predicted - end),
        "high": np.exp(predicted + end),
        "weight": outcome.pairs.weight,
    }
    return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n", float_format="%.4g")


def read_figures(folder: Path = DOCS) -> list[dict[str, Any]]:
    """The committed figures, numbers as numbers."""
    table = pd.read_csv(folder / "prediction_figures.csv").astype(object)
    return [dict(zip(COLUMNS, row, strict=True)) for row in table.where(table.notna(), None).to_numpy()]


def markdown(rows: Sequence[Row]) -> str:
    """The tables of the page."""
    by_name = {(row["hold_out"], row["slice"]): row for row in rows}

    def order_of(hold_out: str) -> Row:
        order = by_name[hold_out, ORDER]
        return by_name[hold_out, LEVEL] | {"spearman": order["mape"], "lost": order["median_ape"]}

    def slices_of(hold_out: str, kind: str) -> list[tuple[str, Row]]:
        return [
            (n.partition(": ")[2], row)
            for (h, n), row in by_name.items()
            if h == hold_out and n.startswith(f"{kind}: ")
        ]

    parts = [
        "### Whole, refused pairs included\n",
        _table("never seen", _PAIRS, [(NAMES[h], by_name[h, WHOLE]) for h in SHOWN]),
        "\nNo GPU owned (seconds, not ratios), and the order of four or more candidates:\n",
        _table(
            "never seen",
            ("rows", "MAPE / median", "90 % covers", "Spearman", "lost by the first"),
            [(NAMES[h], order_of(h)) for h in SHOWN],
        ),
    ]
    return "\n".join([
        *parts,
        f"\n### By class ({NAMES[HEADLINE]})\n",
        _table("class", _PAIRS, slices_of(HEADLINE, "class")),
        "\n### Inference\n",
        _table("never seen", _PAIRS, [(INFERENCE[h], by_name[h, WHOLE]) for h in list(INFERENCE)[:2]]),
        "\nNo GPU owned, forward passes:\n",
        _table("never seen", _LEVELS, [(INFERENCE[h], by_name[h, LEVEL]) for h in list(INFERENCE)[:2]]),
        "\n### Several GPUs in one job (unseen harness)\n",
        _table(
            "slice",
            ("jobs / votes", "MAPE", "90 % covers", "half-width"),
            [(name, row) for (h, name), row in by_name.items() if h == SEVERAL],
        ),
    ])  # fmt: skip


def _beside_the_plain_rule(row: Row) -> str:
    mine, plain = row["mape"], row["geometric_mean_mape"]
    beaten = "" if plain is None or mine is None or mine < plain else " (**better**)"
    return f"{_percent(plain)} / {_percent(row['geometric_mean_median_ape'])}{beaten}"


_CELLS: Mapping[str, Callable[[Row], str]] = {
    "pairs / targets": lambda row: f"{row['pairs']:.0f} / {row['targets']:.0f}",
    "jobs / votes": lambda row: f"{row['pairs']:.0f} / {row['targets']:.0f}",
    "rows": lambda row: f"{row['pairs']:.0f}",
    "MAPE": lambda row: _percent(row["mape"]),
    "MAPE / median": lambda row: f"{_percent(row['mape'])} / {_percent(row['median_ape'])}",
    "90 % covers": lambda row: _percent(row["coverage_90"]),
    "half-width": lambda row: f"x{format_number(row['half_width_factor'])}",
    "geometric mean": _beside_the_plain_rule,
    "Spearman": lambda row: format_number(row["spearman"]),
    "lost by the first": lambda row: _percent(row["lost"]),
}
_LEVELS = ("rows", "MAPE / median", "90 % covers", "half-width")
_PAIRS = ("pairs / targets", "MAPE / median", "90 % covers", "half-width", "geometric mean")


def _table(first: str, columns: Sequence[str], rows: Iterable[tuple[str, Row]]) -> str:
    lines = [(first, *columns), ("---",) * (1 + len(columns))]
    lines += [(name, *(_CELLS[column](row) for column in columns)) for name, row in rows]
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
    for name in (*NAMES, *INFERENCE):
        hold_out = name.removeprefix("inference, ")
        task = TaskKind.TRAIN if name in NAMES else TaskKind.INFER
        outcome = evaluate(scored_table(hold_out, task), hold_out, task)
        rows += figures_of(name, report(outcome))
        if name == HEADLINE:
            packed = gzip.compress(pairs_table(outcome).encode(), mtime=0)
            (folder / "prediction_pairs.csv.gz").write_bytes(packed)
    several = scaling_figures()
    rows += [
        _row(SEVERAL, name, row | {"pairs": row["jobs"]})
        for name, row in {"all jobs": several, **several["by_slice"]}.items()
    ]
    table = pd.DataFrame(rows, columns=COLUMNS, dtype=object)
    table.to_csv(folder / "prediction_figures.csv", index=False, lineterminator="\n")
    page = folder / "prediction-evidence.md"
    tables = markdown(read_figures(folder))
    page.write_text(page_with(tables, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
