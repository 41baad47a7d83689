"""docs/workloads.md describes each workload as its code builds it."""

from __future__ import annotations

import re

import pytest
import torch
import workload_table
from workload_table import PAGE as PATH
from workload_table import page

from gpubench.discovery import workload_names
from gpubench.measure.plan import CPU_STEP_FLOPS
from gpubench.profile import load_profiles

PAGE = PATH.read_text(encoding="utf-8")


def rows(text: str) -> dict[str, str]:
    """Return the table's rows by workload, in order."""
    _, *found = [line for line in text.splitlines() if line.count(" | ") == 6]
    return {row.split("`")[1]: row for row in found}


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ < "2.5", reason="this torch has no selective checkpointing")
def test_the_table_matches_the_workloads() -> None:
    """Update it with ``python tests/tools/workload_table.py``."""
    assert page() == PAGE


def test_generated_workload_table_is_complete_and_keeps_hand_written_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page has a row for each workload. Only two are regenerated here, because all of them take seconds."""
    assert [*rows(PAGE)] == [*workload_names()]
    monkeypatch.setattr(workload_table, "workload_names", lambda: ("cnn", "lstm"))
    made = page()
    assert [*rows(made)] == ["cnn", "lstm"]
    assert rows(made).items() <= rows(PAGE).items()
    assert made.endswith(PAGE[-2000:])


def test_every_workload_is_in_the_question_table() -> None:
    """The first table of the page is written by hand."""
    questions = PAGE.partition("| workload | question")[2].partition("\n\n")[0]
    assert {*re.findall(r"`(\w+)`", questions)} == {*workload_names()}


def test_the_batch_rule_for_a_cpu_is_stated_with_its_limit() -> None:
    assert f"{CPU_STEP_FLOPS / 1e9:.0f} GFLOP" in PAGE


def test_the_two_bias_vectors_of_torch_are_explained() -> None:
    of_torch = load_profiles()["lstm"].parameters
    assert f"{of_torch:,}" in PAGE
    assert f"{of_torch - 4 * 128:,}" in PAGE, "Keras has one vector of 4 x 128"
