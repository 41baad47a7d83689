"""Processors without timings are listed, each with its reason."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from gpubench.cli.app import app
from gpubench.probe.probe import UNMEASURED


@pytest.mark.parametrize("asked", ["XPU", "MPS", "Jetson", "TPU", "Neural Compute Stick"])
def test_unmeasured_hardware_is_listed_with_its_facts_and_reason(asked: str) -> None:
    (row,) = (each for each in UNMEASURED if asked in each.name)
    assert all((row.known, row.reason, row.source))
    done = CliRunner().invoke(app, ["list", "--gpus", "--json"])
    assert msgspec.json.decode(done.stdout)["unmeasured"] == msgspec.to_builtins(list(UNMEASURED))
    told = CliRunner().invoke(app, ["list", "--gpus"], env={"COLUMNS": "200"}).stdout
    assert row.name.split()[0] in told


def test_two_lists_together_are_refused() -> None:
    done = CliRunner().invoke(app, ["list", "--mlperf", "--gpus"])
    assert done.exit_code != 0
    assert "are different lists" in f"{done.output}{done.exception}"
