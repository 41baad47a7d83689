"""An unfounded figure is on the page with its finding, and neither leads a list nor appears in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gpubench.findings import UNFOUNDED, Finding, FindingKind
from gpubench.models import Case, Execution, Measurement, Precision, Run
from gpubench.sections.data import measured_facts

from . import samples
from .test_deeper_sections import table_of, words_of

pytestmark = pytest.mark.parametrize("kind", sorted(UNFOUNDED))


def flagged(run: Run, kind: FindingKind, which: Callable[[Case], bool] = lambda case: True) -> Run:
    """Return a run in which some rows carry a finding and have half the step time."""

    def changed(row: Measurement) -> Measurement:
        if not which(row.case):
            return row
        launches = tuple(
            replace(each, rounds=tuple(replace(r, wall_s=r.wall_s / 2) for r in each.rounds))
            for each in row.launches
        )
        return replace(row, launches=launches, findings=(*row.findings, Finding(kind=kind)))

    return replace(run, measurements=tuple(map(changed, run.measurements)))


def test_flagged_row_is_not_the_headline_figure_of_the_card(kind):
    run = flagged(samples.h200_run(), kind, lambda case: case.workload == "vgg16")
    (fact,) = measured_facts(samples.report_data(run).results)
    assert "vgg16" not in fact.detail
    assert measured_facts(samples.report_data(flagged(run, kind)).results) == ()


def test_flagged_run_is_not_named_the_fastest_device(kind):
    first, second = samples.h200_run(), samples.h200_run(slower=2)
    first, second = (
        replace(run, device=replace(run.device, device_id=letter * 16, name=name))
        for run, letter, name in ((first, "a", "card A"), (second, "b", "card B"))
    )
    third = replace(first, device=replace(first.device, device_id="c" * 16, name="card C"))
    rows = table_of("devices", samples.report_data(first, second, flagged(third, kind))).rows
    assert rows[2][1] == "card C", "the last of its case, at twice its real speed"
    assert kind in rows[2][4]


def test_flagged_cpu_run_does_not_claim_that_no_gpu_is_needed(kind):
    said = words_of("processor", samples.report_data(flagged(samples.cpu_run(), kind)))
    assert "no reliable training measurement" in said
    assert "no GPU is needed" not in said


def test_flagged_row_is_not_the_faster_of_two_cpu_cases(kind):
    run = samples.cpu_run()
    row = next(m for m in run.measurements if m.case.workload == "cnn")
    fast = replace(row, case=replace(row.case, precision=Precision.AMP_BF16))
    both = replace(run, measurements=(row, fast))
    (shown,) = table_of(
        "processor", samples.report_data(flagged(both, kind, lambda case: case.precision.is_amp))
    ).rows
    assert "fp32" in shown[1]


def test_flagged_graph_rows_yield_no_launch_overhead_claim(kind):
    run = samples.h200_run()
    assert "Launch overhead on the CPU limits" in words_of("host", samples.report_data(run))
    hurt = flagged(run, kind, lambda case: case.execution is Execution.GRAPH)
    assert "Launch overhead on the CPU limits" not in words_of("host", samples.report_data(hurt))


def test_flagged_pairs_yield_no_mixed_precision_gain(kind):
    hurt = flagged(samples.h200_run(), kind, lambda case: case.precision.is_amp)
    assert "No pair was measured well enough" in words_of("amp", samples.report_data(hurt))
