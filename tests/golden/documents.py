"""The documents of ``--json`` as types, and the JSON Schema of each: ``docs/schema/NAME.json``.

A recorded type is its own schema; a document that a verb combines from several types is declared here. A test
validates each golden against its closed schema, so a missing or new key is noticed.
"""

import inspect
import json
import re
from typing import Any

import msgspec

from gpubench.interval import Interval
from gpubench.models import (
    Basis,
    Case,
    Estimate,
    Execution,
    GpuSpec,
    Measurement,
    MemoryBasis,
    MemoryParts,
    Offer,
    ParallelMode,
    Precision,
    Pricing,
    Recipe,
    Run,
    Seller,
    TaskKind,
    Verdict,
)
from gpubench.offers.hardware import CardPrice
from gpubench.predict.question import Refusal
from gpubench.probe.probe import Unmeasured
from gpubench.record import compare, figures, run_check
from gpubench.spread import Component

Number = float | None
Text = str | None


def _flat(name: str, fields: dict[str, Any]) -> type[msgspec.Struct]:
    """Define a struct that has three keys for an interval, as ``gpubench.interval.flat`` writes them."""
    found: dict[str, Any] = {}
    for field, kind in fields.items():
        ends = (field, f"{field}_low", f"{field}_high") if kind is Interval else ()
        found |= dict.fromkeys(ends, Number) or {field: kind}
    return msgspec.defstruct(name, list(found.items()), kw_only=True)


def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


_LISTED = {name: kind for name, kind in _fields(Offer).items() if not name.startswith("ask_")}
_NEED = {
    "allocated_bytes": Interval, "reserved_bytes": Interval, "device_bytes": Interval,
    "parts": _flat("MemoryParts", {"activations_bytes": float} | _fields(MemoryParts)), "basis": MemoryBasis,
    "not_traced": Text, "not_linear": Text, "as_published": bool, "algorithm_bytes": float,
    "compiled_loss_bytes": Interval,
}  # fmt: skip
_FIT = {
    "verdict": Verdict, "fits": bool, "in_eager_steps": bool, "graph_bytes_high": Number, "largest_batch": int,
    "one_may_fit": bool, "graph_largest_batch": int | None, "eager_largest_batch": int | None,
    "memory_bytes": int, "usable_bytes": int, **_NEED,
}  # fmt: skip
_FIX = _flat("MemoryFix", {"what": str, **_FIT})
_CARD = _flat("MemoryCard", {"gpu_keys": list[str], "precision": Precision, **_FIT, "fixes": list[_FIX]})
_ROW = {
    "rank": int | None, "tie": bool, "provider": str, "seller": Seller | None, "instance": str, "region": Text,
    "gpu_key": str, "gpu_count": int, "vcpus": Number, "ram_bytes": int | None, "pricing": Pricing,
    "term": Text, "price_usd_per_hour": Interval, "price_date": Text, "price_age_days": int | None,
    "price_source": Text, "price_url": Text, "ask_count": int | None, "link": Text, "precision": Precision, "execution": Execution, "stack": Text,
    "batch_size": int | None, "basis": Basis, "samples_per_s": Interval, "scaling_efficiency": float,
    "hours": Interval, "cost_usd": Interval, "total_usd": Number, "samples_per_usd": Interval,
    "usd_per_million_samples": float, "usd_per_million_tokens": Number, "joules_per_sample": Number,
    "memory_bytes": Interval, "fits_memory": bool | None, "legacy_build": Text, "p_cheapest": Number,
    "p_sensible": Number, "p_fastest": Number, "pareto": bool | None, "findings": list[str],
}  # fmt: skip
_ANSWER = _flat("Answer", {"row": int, "p_best": Number, "toss_up": list[tuple[str, int, float]] | None})
_RANKING = _flat(
    "Ranking",
    {
        "schema": str, "as_of": str, "question": dict[str, Any],
        "job": _flat("Job", {"samples": float, "words": str}) | None, "hour_worth_usd": Number,
        "settings": list[str],
        "answers": _flat("Answers", dict.fromkeys(("cheapest", "sensible", "fastest"), _ANSWER | None)),
        "rows": list[_flat("Row", _ROW)],
        "excluded": list[_flat("Excluded", {"reason": str, "count": int, "example": str})],
        "sentences": list[_flat("Sentence", {"kind": str, "text": str})],
    },
)  # fmt: skip
_DERIVED = {
    **dict.fromkeys((*figures.DERIVED, *figures.SPREAD), Number), "launch_step_times_s": list[float],
    "energy_source": Text, "ledger": list[Component],
}  # fmt: skip
_MEASUREMENT = _flat("MeasurementWithFigures", _fields(Measurement) | _DERIVED)
_RUN = _flat("RunWithFigures", _fields(Run) | {"measurements": list[_MEASUREMENT]})
_COMPARED = _flat("ComparedRow", _fields(compare.Row) | {"verdict": str, "ratio": msgspec.Raw})

DOCUMENTS: dict[str, tuple[str, Any]] = {
    "run": ("a run's file", Run),
    "report": ("`gpubench report -o FILE.json`; `gpubench run --json` prints one of its `runs`", _flat(
        "Report",
        {"schema_version": int, "gpubench": str, "made_on": str, "runs": list[_RUN], "ranking": _RANKING | None,
         "ranking_problem": Text, "problems": list[str]},
    )),
    "rank": ("`gpubench rank --json`", _RANKING),
    "predict-show": ("`gpubench predict show --json`", _flat(
        "Predictions",
        {"schema_version": int, "calibrated": str,
         "estimates": list[_flat("Estimate", _fields(Estimate) | {"reasons": str, "shared": Text})],
         "refused": list[Refusal]},
    )),
    "memory": ("`gpubench memory WORKLOAD --json`", _flat(
        "Memory",
        {"schema_version": int, "workload": str, "task": TaskKind, "precision": Precision,
         "execution": Execution, "batch_size": int, "accumulate": int, **_fields(Recipe), "gpu_count": int,
         "parallel_mode": ParallelMode, "gpu_key": Text, **_NEED, "cards": list[_CARD],
         "refused": list[Refusal], "speed_untold": list[Refusal]},
    )),
    "offers-list": ("`gpubench offers list --json`", _flat(
        "Offers",
        {"schema_version": int, "as_of": str, "clock": Text,
         "offers": list[_flat("ListedOffer", _LISTED | {
             "usd_per_gpu_hour": Number, "price_url": Text, "price_age_days": int | None,
             "freshness": str, "not_ranked_because": Text})],
         "retired": list[dict[str, Text]], "set_aside": list[dict[str, str]], "notes": list[str]},
    )),
    "results-list": ("`gpubench results list --json`", _flat(
        "Results",
        {"results": str, "problems": list[str], "runs": list[_flat("ListedRun", {
            "run_id": str, "started_at": str, "gpu_key": Text, "device": str, "budget": str, "cases": int,
            "measured": int, "finished": bool, "interrupted": bool, "workloads": list[str], "torch": Text})]},
    )),
    "list-gpus": ("`gpubench list --gpus --json`", _flat(
        "Gpus",
        {"gpus": list[GpuSpec], "unmeasured": list[Unmeasured], "card_prices": list[CardPrice]},
    )),
    "check": ("`gpubench check RUN --json`", _flat(
        "RunCheck", {"trustworthy": bool} | _fields(run_check.RunCheck)
    )),
    "compare": ("`gpubench compare A B --json`", _flat(
        "Comparison",
        {"rows": list[_COMPARED], "broken": list[compare.Broken], "remarks": list[str], "failed": list[Case],
         "undecided": list[Case]},
    )),
}  # fmt: skip
"""Each document by the name of its schema: the command that prints it, and its type."""


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    (root,), parts = msgspec.json.schema_components([DOCUMENTS[name][1]], ref_template="#/$defs/{name}")
    for part in (root, *parts.values()):
        if "description" in part:  # msgspec 0.23 keeps the indentation of a docstring
            part["description"] = inspect.cleandoc(part["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": parts}


def schema_text(name: str) -> str:
    """Return the content of a schema's file, in which money is a number."""
    text = json.dumps(schema(name), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    return re.sub(r'"format": "decimal",\n\s*"type": "string"', '"type": "number"', text)
