"""Which runs, results and failures the page covers."""

from __future__ import annotations

import msgspec

from gpubench.models import Status
from gpubench.models.run import newest_first
from gpubench.sections.data import ReportData

from . import samples


def test_the_newest_measurement_of_a_case_counts():
    old = samples.h200_run(run_id="old", started_at="2026-11-01T00:00:00Z")
    new = samples.h200_run(run_id="new", started_at="2026-11-20T00:00:00Z", measurements=old.measurements[:2])
    data = ReportData(today=samples.TODAY, runs=newest_first([old, new]))
    by_case = {result.case: result.run.run_id for result in data.results}
    assert by_case[old.measurements[0].case] == "new"
    assert by_case[old.measurements[5].case] == "old"
    assert {run.run_id for run in data.used_runs} == {"old", "new"}


def test_another_device_of_the_same_user_is_left_out():
    data = samples.report_data(samples.h200_run(), samples.cpu_run())
    assert {result.run.run_id for result in data.results} == {samples.h200_run().run_id}
    assert not data.device.is_cpu


def test_a_case_that_failed_later_keeps_its_old_figure_and_is_not_a_failure():
    run = samples.h200_run()
    broken = msgspec.structs.replace(run.measurements[0], status=Status.FAILED, reason="gone", launches=())
    later = samples.h200_run(run_id="later", started_at="2026-11-21T00:00:00Z", measurements=(broken,))
    data = ReportData(today=samples.TODAY, runs=newest_first([run, later]))
    assert broken.case in {result.case for result in data.results}
    assert broken.case not in {failure.case for failure in data.failures}
    assert [failure.measurement.status for failure in data.failures] == [Status.OUT_OF_MEMORY]


def test_without_runs_the_report_has_no_device():
    data = ReportData(today=samples.TODAY)
    assert (data.run, data.device, data.spec, data.results, data.failures) == (None, None, None, (), ())


def test_the_specification_row_of_the_device_is_found():
    assert samples.report_data(samples.h200_run()).spec.name == "NVIDIA H200 SXM 141GB"
    assert samples.report_data(samples.cpu_run()).spec is None
