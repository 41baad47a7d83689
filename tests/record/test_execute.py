"""What a run does around its measurements, with a scripted launcher instead of child processes."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.measure import capability
from gpubench.measure.budget import QUICK
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.models import (
    DeviceProfile,
    Execution,
    Finding,
    FindingKind,
    Launch,
    Measurement,
    Round,
    Settings,
    Status,
)
from gpubench.record import store
from gpubench.session import session


@pytest.fixture
def executed(make_run, monkeypatch, tmp_path):
    """Execute a run of one case, eager and as a graph, with steps of the given times."""

    def execute(eager_s: float, graph_s: float, newcomers=lambda device: (), peers=()):
        case = make_run().measurements[0].case
        cases = {case: eager_s, msgspec.structs.replace(case, execution=Execution.GRAPH): graph_s}

        class Launcher:
            ready = None

            def __init__(self, plan, device, on_event, control, **more):
                self.plan = plan
                self.micro, self.micro_stopped = [], False
                self.device_findings = []

            def close(self):
                pass

            def run(self, record):
                for each, step_s in cases.items():
                    rounds = tuple(Round(steps=4, wall_s=4 * step_s, loss=2 - 0.01 * i) for i in range(24))
                    launch = Launch(index=0, rounds=rounds, precision_errors={"matmul": 5e-7})
                    yield Measurement(case=each, status=Status.OK, launches=(launch,))

        monkeypatch.setattr(session, "Launcher", Launcher)
        monkeypatch.setattr(capability, "newcomers", newcomers)
        planned = tuple(PlannedCase(reference="cnn", case=each) for each in cases)
        prepared = session.Prepared(
            device=DeviceProfile(
                backend="cuda", name="NVIDIA H200", uuid="GPU-1", gpu_key="nvidia-h200-sxm-141gb"
            ),
            plan=Plan(budget=QUICK, seed=0, cases=planned, peers=peers),
            root=tmp_path,
            findings=(),
            remark=None,
            settings=Settings(),
        )
        return session.execute(prepared).run

    return execute


def test_an_eager_row_is_compared_with_its_graph_once_both_are_measured(executed):
    eager, graph = executed(0.12, 0.1).measurements
    assert [f.kind for f in eager.findings] == [FindingKind.HOST_BOUND]
    assert eager.findings[0].value == pytest.approx(1.2)
    assert graph.findings == ()
    assert executed(0.1, 0.1).measurements[0].findings == ()


def test_an_impossible_row_has_no_figure_and_the_file_stays_readable(executed, tmp_path):
    eager, graph = executed(-0.1, 0.1).measurements
    assert (eager.status, eager.launches) == (Status.FAILED, ())
    assert "cannot be true" in eager.reason
    assert graph.status is Status.OK
    assert store.read_runs(tmp_path).problems == ()


def test_new_users_of_a_device_are_found_after_the_run(executed):
    """Every device of the run is checked again, here the last one."""
    second = DeviceProfile(backend="cuda", name="NVIDIA H200", uuid="GPU-2")
    shared = Finding(kind=FindingKind.SHARED_GPU, value="1 process")

    def newcomers(device):
        return (shared,) if device.uuid == "GPU-2" else ()

    assert shared in executed(0.1, 0.1, newcomers, (second,)).findings
    assert shared not in executed(0.1, 0.1, newcomers).findings
