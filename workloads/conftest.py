"""Options, cases and the measuring process of ``pytest workloads``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubench.errors import GpuBenchError
from gpubench.findings import doubts
from gpubench.measure.launcher import Launcher
from gpubench.measure.plan import PlannedCase
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Finding, Measurement
from gpubench.options import CLASSIC
from gpubench.probe.identity import storable
from gpubench.profile import run_names
from gpubench.record.pytest_json import case_id
from gpubench.record.pytest_json import machine_info as described
from gpubench.session.session import Prepared, new_run, prepare

_DOUBTFUL = pytest.StashKey[dict[str, str]]()
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
    calm = msgspec.structs.replace(prepared.plan.budget, in_haste=False)  # a test is never in haste
    launcher = Launcher(msgspec.structs.replace(prepared.plan, budget=calm), prepared.device)
    doubtful = pytestconfig.stash.setdefault(_DOUBTFUL, {})

    def measure(planned: PlannedCase) -> Measurement:
        measurement = launcher.measure_one(planned)
        if kinds := doubts(measurement.findings):
            doubtful[case_id(planned)] = ", ".join(kinds)
        return measurement

    yield measure
    launcher.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say below the tables which rows not to trust: pytest-benchmark has no column for it."""
    doubtful = config.stash.get(_DOUBTFUL, {})
    if doubtful:
        terminalreporter.section("doubtful rows")
    for name, kinds in doubtful.items():
        terminalreporter.write_line(f"{name}: {kinds}")


def pytest_benchmark_update_json(output_json: dict[str, list[dict[str, Any]]]) -> None:
    """Name the case in ``params``, where pytest-benchmark puts an object that JSON does not know."""
    for bench in output_json["benchmarks"]:
        if bench["params"]:
            bench["params"] = {"gpubench_case": bench["param"]}


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
    if isinstance(processor, dict):  # the clock of the moment is not a property of the machine
        machine_info["cpu"] = {k: v for k, v in processor.items() if not k.startswith("hz_actual")}
    machine_info["gpubench"] = described(new_run(_prepared(config)))


def _prepared(config: pytest.Config) -> Prepared:
    if _PREPARED not in config.stash:
        budget = config.getoption("--gpubench-budget")
        device = config.getoption("--gpubench-device")
        root = Path(config.rootpath) / ".benchmarks"
        try:
            request = RunRequest(workloads=run_names(), budget=budget, device=device, results=root)
            config.stash[_PREPARED] = prepare(request, store_results=False)
        except GpuBenchError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_PREPARED]


def _workload(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    planned = callspec.params.get("gpubench_case") if callspec is not None else None
    return planned.case.workload if isinstance(planned, PlannedCase) else None
