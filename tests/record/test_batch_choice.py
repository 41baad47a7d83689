"""A searched batch says so wherever a run is shown or stored; an older record says nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpubench.cli.progress import outcome
from gpubench.measure.launcher import Record
from gpubench.measure.plan import Unit, plan
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Run, TaskKind
from gpubench.profile import load_profiles
from gpubench.record.figures import frame, measurement_document
from gpubench.record.store import read_run, write_run
from gpubench.sections.data import of_run
from gpubench.sections.method import cases
from gpubench.session import resume, session

CPU = DeviceProfile(backend="cpu", name="a CPU")
PROFILES = {"cnn": load_profiles()["cnn"]}


@pytest.fixture
def chosen(make_run):
    def make(choice: str | None) -> Run:
        run = make_run()
        changed = msgspec.structs.replace(run.measurements[0], batch_choice=choice)
        return msgspec.structs.replace(
            run, measurements=(changed,), planned=(changed.case,), device=CPU, budget="quick"
        )

    return make


def test_a_searched_batch_is_labeled_wherever_it_is_shown(chosen, tmp_path: Path) -> None:
    searched, fixed = chosen("largest"), chosen("fixed")
    assert "batch 64, the" in outcome(searched.measurements[0], 0)
    assert "largest" not in outcome(fixed.measurements[0], 0)
    tables = [cases(of_run(run))[0] for run in (searched, fixed)]
    cells = [table.rows[0][0] for table in tables]
    assert "batch 64, " in cells[0]
    assert cells[1].endswith("batch 64")
    assert measurement_document(searched.measurements[0])["batch_choice"] == "largest"
    assert [*frame((searched, fixed))["batch_choice"]] == ["largest", "fixed"]
    assert read_run(write_run(tmp_path, searched)).measurements[0].at_largest_batch


def test_batch_choice_is_not_part_of_the_case_and_unknown_in_older_records(chosen, tmp_path: Path) -> None:
    assert chosen("largest").measurements[0].case == chosen("fixed").measurements[0].case
    older = read_run(write_run(tmp_path, chosen(None))).measurements[0]
    assert older.batch_choice is None
    assert not older.at_largest_batch


def test_plan_passes_the_batch_choice_to_the_measurement() -> None:
    made = plan(RunRequest(workloads=("cnn",)), CPU, PROFILES)
    planned = msgspec.structs.replace(made.cases[0], batch_choice="largest")
    record = Record(plan=made, device=CPU)
    assert record.measurement(Unit(launch=0, planned=made.cases[0]), {}).batch_choice == "fixed"
    assert record.measurement(Unit(launch=0, planned=planned), {}).batch_choice == "largest"


def test_a_resumed_run_keeps_its_batch_choice(chosen) -> None:
    assert chosen("largest").measurements[0].case.task is TaskKind.TRAIN
    request = RunRequest(workloads=("cnn",))
    again = resume.plan_again(chosen("largest"), CPU, PROFILES, request)
    assert [p.batch_choice for p in again.cases] == ["largest"]


def test_resumed_run_without_rows_keeps_its_batch_choice(chosen) -> None:
    """The run's settings store what was requested."""
    run = chosen("largest")
    told = session._settings(
        RunRequest(), resume.plan_again(run, CPU, PROFILES, RunRequest(workloads=("cnn",)))
    )
    cut = msgspec.structs.replace(run, measurements=(), settings=told)
    again = resume.plan_again(cut, CPU, PROFILES, RunRequest(workloads=("cnn",)))
    assert [p.batch_choice for p in again.cases] == ["largest"]
