"""Where pages compare predictions with readings, their figures match the shipped tables."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from decode_fit import decode_fit
from memory_cases import Held, own_readings
from memory_scores import (
    ReservedOutcome,
    Score,
    fit_fixed_bytes,
    score_compiled_loss,
    score_left_out,
    score_reserved,
    score_reserved_alone,
    sound_readings,
)

from gpubench.models import CardClass, Execution, Precision
from gpubench.profile.allowance import device_bytes, load_allowance
from gpubench.profile.memory_figures import FIXED_BYTES
from gpubench.sections.prediction import REGRET, REGRET_SETTINGS
from gpubench.units import GIB, MIB
from tools.make import load_readings

TABLE = load_readings()
READINGS = [*TABLE.itertuples(index=False)]

DOCS = Path(__file__).parents[2] / "docs"


def off_by(model: str) -> float:
    """Return the largest relative error over the rows of a model that no fit used."""
    classes = load_allowance().classes
    rows = [reading for reading in READINGS if reading.model == model]
    assert len(rows) == 6
    return max(abs(device_bytes(classes[r.card_class], r.traced_bytes) / r.memory_bytes - 1) for r in rows)


def class_row(words: str, card_class: CardClass) -> str:
    """Return the first columns of a row in the table of fitted classes."""
    fitted = load_allowance().classes[card_class]
    return f"| {words} | {fitted.overhead_bytes / MIB:,.0f} MiB | {fitted.factor} |"


def sharded_gib() -> float:
    (eager,) = (
        reading
        for reading in READINGS
        if (reading.gpu_count, reading.compiled, reading.seq_len) == (8, None, 8192)
    )
    return load_allowance().classes[CardClass.HBM].factor * eager.traced_bytes / GIB


def left_out_row(words: str, group: str, digits: int = 1) -> str:
    """Return a row of the table in which each model is left out of the fit."""
    score = scores()[group]
    error, above = (
        f"{100 * score.mean_error:.{digits}f} %",
        f"{100 * score.above:.1f} %".replace("0.0 %", "0 %"),
    )
    return f"| {words} ({score.readings}) | {error} | {above} | {score.bound_over_reading:.2f} |"


def told_bytes(reading: Any) -> float:
    """Return the likely figure for a reading: memory in use, or memory that torch's allocator holds."""
    allowance = load_allowance().classes[CardClass.HBM]
    if reading.kind == "reserved":
        return allowance.factor * reading.traced_bytes
    return device_bytes(allowance, reading.traced_bytes)


def error_of(rows: list[Any]) -> float:
    return fmean(abs(told_bytes(r) / r.memory_bytes - 1) for r in rows)


def source_row(words: str, read: str, count: int, error: float) -> str:
    """Return a row of the table of readings of known length and recipe."""
    return f"| {words} | {read} | {count} | {100 * error:.1f} % |"


def published_row(words: str, read: str, kind: str) -> str:
    rows = [r for r in READINGS if r.kind == kind and not r.compiles_loss]
    return source_row(words, read, len(rows), error_of(rows))


def own_row(words: str, least_bytes: float) -> str:
    rows = [r for r in own_readings() if r.allocated > least_bytes]
    return source_row(words, "tensors", len(rows), fmean(r.allocated_error for r in rows))


def rows_that_set_nothing(words: str) -> str:
    """Return the row without VGG16 and its transfer at strict fp32, where cuDNN needs memory for convolutions."""
    rows = [
        r
        for r in own_readings()
        if not (r.case.workload.startswith("vgg16") and r.case.precision is Precision.FP32)
    ]
    return source_row(words, "tensors", len(rows), fmean(r.allocated_error for r in rows))


def sound_row(words: str, executions: set[Execution]) -> str:
    """Return a row of the table of our own readings of memory in use and reserved memory."""
    rows = [r for r in own_readings() if r.is_sound and r.case.execution in executions]

    def cells(pairs: list[tuple[float, float]]) -> str:
        above = sum(read > high for read, high in pairs)
        return f"{above} | {median(high / read for read, high in pairs):.2f}"

    device = cells([(r.device, r.need.device.high) for r in rows])
    reserved = cells([(r.reserved, r.need.reserved.high) for r in rows])
    return f"| {words} ({len(rows)}) | {device} | {reserved} |"


def reserved_row(
    words: str, outcomes: list[ReservedOutcome], least: float = 0, most: float = math.inf
) -> str:
    """Return a row of our own readings of reserved memory, selected by size."""
    errors = [each.error for each in outcomes if least < each.reserved <= most]
    return source_row(words, "reserved", len(errors), fmean(errors))


def reserved_without_it(least: float, *, twice: bool) -> str:
    """Return the mean error of likely reserved memory without its fixed part.

    If ``twice``, transients of a graph count twice, as they do in gpubench.
    """
    errors = []
    for r in sound_readings():
        assert r.need.reserved.value is not None
        more = 0.0 if twice or r.case.execution is not Execution.GRAPH else r.need.parts.transient_bytes
        if r.reserved > least:
            errors.append(abs((r.need.reserved.value - FIXED_BYTES - more) / r.reserved - 1))
    return f"{100 * fmean(errors):.1f}"


def by_cause() -> str:
    """Return what the transients alone change, over all readings and over those above 1 GiB."""
    return (
        f"brings the 18 to {reserved_without_it(0, twice=True)} %, and those above 1 GiB from "
        f"{reserved_without_it(GIB, twice=False)} to {reserved_without_it(GIB, twice=True)} %"
    )


def fixed_part_ends() -> str:
    """Return the range of the fixed part as fitted without one of the models."""
    sound = sound_readings()
    found = [
        fit_fixed_bytes([r for r in sound if r.case.workload != model]) / MIB
        for model in {r.case.workload for r in sound}
    ]
    return f"it comes to {min(found):.0f} to {max(found):.0f} MiB"


def likely_in_use() -> str:
    """Return the mean errors of likely memory in use, over all sound readings and over graphs."""

    def error(rows: list[Held], *, twice: bool = True) -> str:
        errors = []
        for r in rows:
            assert r.need.device.value is not None
            less = 0.0 if twice else r.need.parts.transient_bytes
            errors.append(abs((r.need.device.value - less) / r.device - 1))
        return f"{100 * fmean(errors):.1f} %"

    sound = sound_readings()
    graphs = [r for r in sound if r.case.execution is Execution.GRAPH]
    return (
        f"off by {error(sound)} on average over the {len(sound)}, and by {error(graphs)} over the {len(graphs)} "
        f"graphs, {error(graphs, twice=False)} without"
    )


def compiled_loss() -> str:
    return f"Predicted as eager steps they are off by {100 * error_of([r for r in READINGS if r.compiles_loss]):.0f} %"


def compiled_ratio() -> str:
    shares = [r.memory_bytes for r in READINGS if r.compiles_loss and r.source == "torchao-2025"]
    return f"differ by {max(shares) / min(shares):.2f} times"


def compiled_row(words: str, source: str) -> str:
    """Return the row of a source with a compiled loss, predicted from the share fitted without it."""
    score = score_compiled_loss(TABLE)[source]
    return source_row(words, "reserved", score.readings, score.mean_error)


def compiled_share() -> str:
    fitted = load_allowance().compiled_loss
    assert fitted is not None
    ends = fitted.of(1.0)
    return f"{fitted.share:.2f} of the trace ({ends.low:.2f} to {ends.high:.2f})"


def a_card_by_the_others() -> str:
    worst = max(score.mean_error for score in score_compiled_loss(TABLE, "gpu_key").values())
    return f"off by up to {100 * worst:.0f} %"


def without_scores() -> str:
    """Return the error if two float32 score matrices are first subtracted from the trace."""
    known = TABLE[TABLE.compiles_loss & TABLE.seq_len.notna()]
    scores = 2 * 4 * known.batch_size * known.seq_len.astype(int) * 128_256
    rows = known.assign(traced_bytes=known.traced_bytes - scores)
    return f"torchao's twelve are off by {100 * score_compiled_loss(rows)['torchao-2025'].mean_error:.0f} %"


def own(workload: str, precision: Precision) -> Held:
    return [r for r in own_readings() if (r.case.workload, r.case.precision) == (workload, precision)][-1]


def own_pair(workload: str, precision: Precision, between: str) -> str:
    """Return the tensors, measured and predicted, in MiB."""
    read = own(workload, precision)
    return f"{read.allocated / MIB:,.0f}{between}{read.need.allocated.value / MIB:,.0f}"


def upper_end(workload: str, precision: Precision) -> str:
    return f"{own(workload, precision).need.device.high / MIB:,.0f}"


@cache
def scores() -> dict[str, Score]:
    return score_left_out(TABLE)


FIGURES = {
    "a generated token": lambda: ("workloads.md prediction-evidence.md", f"{100 * fmean(decode_fit().errors):.1f} % on average"),
    "LoRA of Qwen 7B": lambda: ("workloads.md memory-evidence.md", f"at most {100 * off_by('qwen_7b_lora'):.1f} % off"),
    "LoRA of Qwen 1.8B": lambda: ("workloads.md", f"1.8B at most {100 * off_by('qwen_1.8b_lora'):.0f} %"),
    "fitted, HBM": lambda: ("memory-evidence.md", class_row("NVIDIA, HBM", CardClass.HBM)),
    "fitted, GDDR": lambda: ("memory-evidence.md", class_row("NVIDIA, GDDR", CardClass.GDDR)),
    "fitted, others": lambda: ("memory-evidence.md", class_row("others (MI325X), models without convolutions", CardClass.OTHER)),
    "memory in use, all": lambda: ("memory-evidence.md", left_out_row("all, memory in use", "all")),
    "memory in use, NVIDIA": lambda: ("memory-evidence.md", left_out_row("NVIDIA", "nvidia")),
    "memory in use, HBM": lambda: ("memory-evidence.md", left_out_row("of which HBM", "milabench-sizer-2025 hbm")),
    "memory in use, GDDR": lambda: ("memory-evidence.md", left_out_row("of which GDDR", "milabench-sizer-2025 gddr")),
    "memory in use, products": lambda: ("memory-evidence.md", left_out_row("others, without convolutions", "others not convolving")),
    "memory in use, MIOpen": lambda: ("memory-evidence.md", left_out_row("others, with convolutions", "others convolving", 0)),
    "LoRA, by source": lambda: ("memory-evidence.md", published_row("Qwen's authors, LoRA", "not stated", "unstated")),
    "torchtitan, by source": lambda: ("memory-evidence.md", published_row("torchtitan, December 2024", "reserved", "reserved")),
    "tensors": lambda: ("memory-evidence.md", own_row("gpubench on an H100", 0)),
    "tensors, nothing set by them": lambda: ("memory-evidence.md", rows_that_set_nothing("of which not used for any figure")),
    "tensors of large steps": lambda: ("memory-evidence.md", own_row("of which above 1 GiB", GIB)),
    "reserved": lambda: ("memory-evidence.md", reserved_row("gpubench on an H100, each model left out", score_reserved())),
    "reserved, large steps": lambda: ("memory-evidence.md", reserved_row("of which above 1 GiB", score_reserved(), GIB)),
    "reserved, small steps": lambda: ("memory-evidence.md", reserved_row("of which below", score_reserved(), 0, GIB)),
    "reserved, alone": lambda: ("memory-evidence.md", reserved_row("graphs, each alone in its process, its model left out", score_reserved_alone(Execution.GRAPH))),
    "reserved, compiled": lambda: ("memory-evidence.md", reserved_row("compiled models, likewise", score_reserved_alone(Execution.COMPILE))),
    "reserved, as the published ones": lambda: ("memory-evidence.md", f"they would be {reserved_without_it(0, twice=False)} % off"),
    "reserved, by cause": lambda: ("memory-evidence.md", by_cause()),
    "reserved, fixed part": lambda: ("memory-evidence.md", fixed_part_ends()),
    "in use, likely": lambda: ("memory-evidence.md", likely_in_use()),
    "a compiled loss": lambda: ("memory-evidence.md", compiled_loss()),
    "a compiled loss, one step": lambda: ("memory-evidence.md", compiled_ratio()),
    "a compiled loss, torchao": lambda: ("memory-evidence.md", compiled_row("torchao, 2025, loss compiled, predicted from torchtitan's", "torchao-2025")),
    "a compiled loss, torchtitan": lambda: ("memory-evidence.md", compiled_row("torchtitan, June 2025, loss compiled, predicted from torchao's", "torchtitan-2025-06")),
    "a compiled loss, by a share": lambda: ("memory-evidence.md", compiled_share()),
    "a compiled loss, by card": lambda: ("memory-evidence.md", a_card_by_the_others()),
    "a compiled loss, without scores": lambda: ("memory-evidence.md", without_scores()),
    "sound, eager": lambda: ("memory-evidence.md", sound_row("eager", {Execution.EAGER})),
    "sound, graphs": lambda: ("memory-evidence.md", sound_row("graphs", {Execution.GRAPH})),
    "sound, both": lambda: ("memory-evidence.md", sound_row("both", {Execution.EAGER, Execution.GRAPH})),
    "tensors of transformer": lambda: ("memory-evidence.md", own_pair("transformer", Precision.AMP_BF16, " | ")),
    "tensors of llama_1b": lambda: ("memory-evidence.md", own_pair("llama_1b", Precision.AMP_BF16, " | ")),
    "tensors of llama_1b at FP8": lambda: ("memory-evidence.md", own_pair("llama_1b", Precision.FP8, " | ")),
    "tensors of VGG16": lambda: ("memory-evidence.md", own_pair("vgg16", Precision.AMP_BF16, " | ")),
    "tensors of VGG16 at fp32": lambda: ("memory-evidence.md", own_pair("vgg16", Precision.FP32, " | ")),
    "upper end of VGG16 at fp32": lambda: ("memory-evidence.md", f"| 30,701 MiB | | {upper_end('vgg16', Precision.FP32)} MiB |"),
    "upper end of VGG16 at tf32": lambda: ("memory-evidence.md", f"| 19,483 | | {upper_end('vgg16', Precision.TF32)} |"),
    "upper end of VGG16 at amp": lambda: ("memory-evidence.md", f"| 7,043 MiB | {upper_end('vgg16', Precision.AMP_BF16)} |"),
    "Llama 3.1 8B by FSDP": lambda: ("workloads.md memory-evidence.md", f"| {sharded_gib():.1f} GiB |"),
}  # fmt: skip


@pytest.mark.parametrize("what", FIGURES)
def test_a_figure_is_the_same_on_every_page_that_states_it(what: str) -> None:
    pages, words = FIGURES[what]()
    for page in pages.split():
        text = (DOCS / page).read_text(encoding="utf-8")
        assert " ".join(words.split()) in " ".join(text.split()), page


def test_the_report_states_the_same_regret_as_the_decision_page():
    text = (DOCS / "decision.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| gpubench \|(.+)\|$", text, re.MULTILINE)
    settings, mean_usd = re.match(r" (\d+): ([\d.]+) /", row.split("|")[3]).groups()
    assert (int(settings), float(mean_usd) / 100) == (REGRET_SETTINGS, pytest.approx(REGRET))
