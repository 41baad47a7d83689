"""The figures behind the page, for programs: JSON with everything, CSV with one line a figure."""

import csv
import io
import json
import math
import unicodedata
from typing import Any

import msgspec

from gpubench.interval import flat
from gpubench.models import Measurement, Row, Run
from gpubench.recommend.rank import document as ranking_document
from gpubench.record.figures import run_document
from gpubench.sections.data import ReportData
from gpubench.units import plain

REPORT_VERSION = 2
"""Version of the report's own keys; the runs and the ranking within it have versions of their own."""
# Maximum telemetry samples in a page, about 0.1 MB when packed; the result files have all.
_MOST_SAMPLES = 1_000

CSV_COLUMNS = (
    "kind",
    "gpu_key",
    "device",
    "workload",
    "workload_version",
    "task",
    "precision",
    "execution",
    "memory_format",
    "batch_size",
    "gpu_count",
    "sample_unit",
    "framework",
    "weight_type",
    "checkpointing",
    "trainable",
    "parallel_mode",
    "node_count",
    "loss_chunks",
    "prompt_tokens",
    "new_tokens",
    "cache_tokens",
    "context_tokens",
    "stack",
    "threads",
    "status",
    "reason",
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "basis",
    "step_time_s",
    "gpu_busy",
    "mfu",
    "joules_per_sample",
    "peak_memory_bytes",
    "rank",
    "provider",
    "instance",
    "region",
    "pricing",
    "price_usd_per_hour",
    "price_date",
    "expected_usd_per_hour",
    "samples_per_usd",
    "samples_per_usd_low",
    "samples_per_usd_high",
    "usd_per_million_samples",
    "p_best",
    "score",
    "reference_hours_per_usd",
    "hours",
    "cost_usd",
    "dominated_by",
    "findings",
    "run_id",
    "batch_choice",
    "hfu",
)
"""Columns of the CSV, listed so that a new field elsewhere cannot change a file that others read."""

MOST_DIGITS = 12
"""Digits of a figure inside a page: a nanosecond in a quarter of an hour, finer than any clock. The last five
of a float's 17 digits only take up space."""

_FIGURES = (
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "step_time_s",
    "gpu_busy",
    "joules_per_sample",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "batch_choice",
)
_ROW_FIGURES = (
    "rank",
    "samples_per_s",
    "samples_per_usd",
    "usd_per_million_samples",
    "p_best",
    "score",
    "reference_hours_per_usd",
    "hours",
    "cost_usd",
    "dominated_by",
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def document(data: ReportData) -> dict[str, Any]:
    """All data of the report as plain JSON values.

    Runs are as ``run --json`` gives them, raw rounds included; the ranking is as ``rank --json`` gives it.
    """
    return _document(data, [run_document(run) for run in data.runs])


def embedded(data: ReportData, most_samples: int = _MOST_SAMPLES) -> tuple[dict[str, Any], int]:
    """``document`` for a page: only of the runs it uses, and only what it needs.

    Long telemetry is thinned, and figures keep ``MOST_DIGITS``.

    Returns:
        The document, and the step of the thinning: each n-th sample is kept, 1 is all of them.
    """
    on_threads = (pair.of for pair in data.thread_pairs)
    results = (*data.everything, *on_threads, *data.failures)
    used = {id(result.run): result.run for result in results}.values()
    total = sum(len(x.telemetry) for run in used for m in run.measurements for x in m.launches)
    step = max(1, -(-total // most_samples))
    runs = [run_document(run) for run in used]
    for run in runs:
        for measurement in run["measurements"]:
            for launch in measurement["launches"]:
                launch["telemetry"] = launch["telemetry"][::step]
    text = msgspec.json.encode(_document(data, runs))
    return json.loads(text, parse_float=lambda figure: float(f"{float(figure):.{MOST_DIGITS}g}")), step


def _document(data: ReportData, runs: list[dict[str, Any]]) -> dict[str, Any]:
    everything = {
        "schema_version": REPORT_VERSION,
        "gpubench": data.version,
        "made_on": data.today.isoformat(),
        "runs": runs,
        "ranking": None if data.ranking is None else msgspec.to_builtins(ranking_document(data.ranking)),
        "ranking_problem": data.ranking_problem,
        "problems": list(data.problems),
    }
    cleaned: dict[str, Any] = _storable(everything)
    return cleaned


def _storable(value: Any) -> Any:
    # Replace values that JSON in UTF-8 cannot hold: NaN and infinity by null, lone surrogates by a mark.
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list | tuple) else value


def as_json(data: ReportData) -> str:
    """Return ``document`` as JSON text."""
    return msgspec.json.format(msgspec.json.encode(document(data)), indent=2).decode() + "\n"


def as_csv(data: ReportData) -> str:
    """Return one line for each measured case and each ranked offer; ``kind`` distinguishes them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, restval="", lineterminator="\r\n")
    writer.writeheader()
    for run in data.runs:
        for measurement in run.measurements:
            writer.writerow(_guarded(_measurement_cells(run, measurement)))
    for row in () if data.ranking is None else data.ranking.rows:
        writer.writerow(_guarded(_offer_cells(row)))
    return text.getvalue()


def guard(text: str) -> str:
    """Keep a spreadsheet from reading a name as a formula: text that it would gets a leading quote.

    >>> guard("=1+1"), guard("  @x"), guard("a100"), guard("")
    ("'=1+1", "'  @x", 'a100', '')
    """
    kept = text if text.startswith(("\t", "\r")) else plain(text, 1000)
    read = unicodedata.normalize("NFKC", kept)  # as a spreadsheet of an East Asian locale may
    dangerous = read.startswith(_FORMULA_STARTS) or read.lstrip().startswith(_FORMULA_STARTS)
    return f"'{plain(kept, 1000)}" if dangerous else kept


def _guarded(cells: dict[str, Any]) -> dict[str, Any]:
    return {k: guard(v) if isinstance(v, str) else v for k, v in cells.items() if v is not None}


def _measurement_cells(run: Run, m: Measurement) -> dict[str, Any]:
    return {
        "kind": "measurement",
        "gpu_key": run.device.gpu_key,
        "device": run.device.name,
        **msgspec.to_builtins(m.case),
        "status": m.status.value,
        "reason": m.reason,
        **{name: getattr(m, name) for name in _FIGURES},
        "basis": "measured",
        "findings": " ".join(finding.kind.value for finding in m.findings),
        "run_id": run.run_id,
    }


def _offer_cells(row: Row) -> dict[str, Any]:
    figures = flat({name: getattr(row, name) for name in _ROW_FIGURES})
    return {
        "kind": "offer",
        **msgspec.to_builtins(row.estimate.case),
        **{
            name: getattr(row.offer, name)
            for name in ("gpu_key", "gpu_count", "provider", "instance", "region")
        },
        "pricing": row.offer.pricing.value,
        "price_usd_per_hour": row.offer.price_usd_per_hour,
        "price_date": row.offer.price_date,
        "basis": row.estimate.basis,
        "expected_usd_per_hour": row.usd_per_hour.value,
        **{name: value for name, value in figures.items() if name in CSV_COLUMNS},
        "findings": " ".join(finding.kind.value for finding in row.findings),
    }
