"""Options, cases and the measuring process of ``pytest workloads``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpubench.discovery import workload_names
from gpubench.errors import GpuBenchError
from gpubench.measure.launcher import Launcher
from gpubench.measure.plan import PlannedCase
from gpubench.measure.request import CLASSIC, RunRequest
from gpubench.models import DeviceProfile, Finding, Measurement
from gpubench.probe.identity import storable
from gpubench.record.pytest_json import case_id
from gpubench.record.pytest_json import machine_info as described
from gpubench.session.session import Prepared, new_run, prepare

_PREPARED = pytest.StashKey[Prepared]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that a measurement needs."""
    group = parser.getgroup("gpubench")
    group.addoption("--gpubench-budget", choices=("quick", "default", "publish"), default="quick")
    group.addoption("--gpubench-device", default="auto", help="auto, cpu, cuda, cuda:N, or a UUID")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test a case of every workload; the device decides precisions and executions."""
    if "gpubench_case" not in metafunc.fixturenames:
        return
    cases = _prepared(metafunc.config).plan.cases
    metafunc.parametrize("gpubench_case", cases, ids=[case_id(planned) for planned in cases])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where nothing is selected, keep the classic three: all on a CPU take the better part of an hour.

    ``-k`` selects, and so does the id of a test.
    """
    if config.option.keyword or any("::" in argument for argument in config.args):
        return
    others = [item for item in items if _workload(item) not in {None, *CLASSIC}]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def gpubench_measure(pytestconfig: pytest.Config) -> Iterator[Callable[[PlannedCase], Measurement]]:
    """Measure a case in the session's child process, in as many launches as the budget asks for."""
    prepared = _prepared(pytestconfig)
    calm = msgspec.structs.replace(prepared.plan.budget, case_s=None)  # a test is never in a run's haste
    launcher = Launcher(msgspec.structs.replace(prepared.plan, budget=calm), prepared.device)
    yield launcher.measure_one
    launcher.close()


@pytest.fixture(scope="session")
def gpubench_device(pytestconfig: pytest.Config) -> DeviceProfile:
    """The device that is measured, without what identifies it."""
    return storable(_prepared(pytestconfig).device)


@pytest.fixture(scope="session")
def gpubench_findings(pytestconfig: pytest.Config) -> tuple[Finding, ...]:
    """What was unusual about the device before the first case: shared, capped."""
    return _prepared(pytestconfig).findings


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, object]) -> None:
    """Put the device and its software beside what pytest-benchmark says of the machine, less its name."""
    machine_info.pop("node", None)
    processor = machine_info.get("cpu")
    if isinstance(processor, dict):  # the clock of the moment is no property of the machine
        machine_info["cpu"] = {k: v for k, v in processor.items() if not k.startswith("hz_actual")}
    machine_info["gpubench"] = described(new_run(_prepared(config)))


def _prepared(config: pytest.Config) -> Prepared:
    if _PREPARED not in config.stash:
        budget = config.getoption("--gpubench-budget")
        device = config.getoption("--gpubench-device")
        root = Path(config.rootpath) / ".benchmarks"
        try:
            request = RunRequest(workloads=workload_names(), budget=budget, device=device, results=root)
            config.stash[_PREPARED] = prepare(request, store_results=False)
        except GpuBenchError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_PREPARED]


def _workload(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    planned = callspec.params.get("gpubench_case") if callspec is not None else None
    return planned.case.workload if isinstance(planned, PlannedCase) else None
