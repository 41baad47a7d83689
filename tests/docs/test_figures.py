"""Figures that a page states of what was held against readings: those of the shipped tables, wherever they stand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from gpubench.models import CardClass
from gpubench.predict.decode import decode_fit
from gpubench.predict.memory_fit import Score, load_readings, score_left_out
from gpubench.profile.allowance import device_bytes, load_allowance
from gpubench.units import GIB, MIB

DOCS = Path(__file__).parents[2] / "docs"


def off_by(model: str) -> float:
    """Largest relative error over the rows of a model of which no reading was fitted."""
    classes = load_allowance().classes
    rows = [reading for reading in load_readings() if reading.model == model]
    assert len(rows) == 6
    return max(abs(device_bytes(classes[r.card_class], r.traced_bytes) / r.memory_bytes - 1) for r in rows)


def class_row(words: str, card_class: CardClass) -> str:
    """First columns of the table of what was fitted."""
    fitted = load_allowance().classes[card_class]
    return f"| {words} | {fitted.overhead_bytes / MIB:,.0f} MiB | {fitted.factor} |"


def sharded_gib() -> float:
    (eager,) = (
        reading
        for reading in load_readings()
        if (reading.gpu_count, reading.compiled, reading.seq_len) == (8, None, 8192)
    )
    return load_allowance().classes[CardClass.HBM].factor * eager.traced_bytes / GIB


def left_out_row(words: str, group: str, digits: int = 1) -> str:
    """Row of the table of models left out."""
    score = scores()[group]
    error, above = (
        f"{100 * score.mean_error:.{digits}f} %",
        f"{100 * score.above:.1f} %".replace("0.0 %", "0 %"),
    )
    return f"| {words} ({score.readings}) | {error} | {above} | {score.bound_over_reading:.2f} |"


@cache
def scores() -> dict[str, Score]:
    return score_left_out(load_readings())


FIGURES = {
    "a generated token": lambda: ("workloads.md prediction.md", f"{100 * fmean(decode_fit().errors):.1f} % in the mean"),
    "LoRA of Qwen 7B": lambda: ("workloads.md memory.md", f"at most {100 * off_by('qwen_7b_lora'):.1f} % off"),
    "LoRA of Qwen 1.8B": lambda: ("workloads.md", f"1.8B at most {100 * off_by('qwen_1.8b_lora'):.0f} %"),
    "fitted, HBM": lambda: ("memory.md", class_row("NVIDIA, HBM", CardClass.HBM)),
    "fitted, GDDR": lambda: ("memory.md", class_row("NVIDIA, GDDR", CardClass.GDDR)),
    "fitted, others": lambda: ("memory.md", class_row("others (MI325X), models without convolutions", CardClass.OTHER)),
    "memory in use, all": lambda: ("memory.md", left_out_row("all, memory in use", "all")),
    "memory in use, NVIDIA": lambda: ("memory.md", left_out_row("NVIDIA", "nvidia")),
    "memory in use, products": lambda: ("memory.md", left_out_row("others, without convolutions", "others not convolving")),
    "memory in use, MIOpen": lambda: ("memory.md", left_out_row("others, with convolutions", "others convolving", 0)),
    "Llama 3.1 8B by FSDP": lambda: ("workloads.md memory.md", f"| {sharded_gib():.1f} GiB |"),
}  # fmt: skip


@pytest.mark.parametrize("what", FIGURES)
def test_a_figure_is_the_same_on_every_page_that_states_it(what: str) -> None:
    pages, words = FIGURES[what]()
    for page in pages.split():
        assert words in (DOCS / page).read_text(encoding="utf-8"), page
