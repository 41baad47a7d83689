"""Options, cases and the machine of ``pytest workloads``."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubench.errors import GpuBenchError
from gpubench.measure.environment import environment, environment_of
from gpubench.measure.plan import PlannedCase
from gpubench.measure.request import RunRequest
from gpubench.options import CLASSIC
from gpubench.probe.backend import storable
from gpubench.profile import run_names
from gpubench.session.session import Prepared, prepare

_PREPARED = pytest.StashKey[Prepared]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that a measurement needs."""
    group = parser.getgroup("gpubench")
    group.addoption("--gpubench-device", default="auto", help="auto, cpu, cuda, cuda:N, or a UUID")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test a case of every workload; the device decides precisions and executions."""
    if "gpubench_case" not in metafunc.fixturenames:
        return
    cases = _prepared(metafunc.config).plan.cases
    metafunc.parametrize("gpubench_case", cases, ids=[_id(planned) for planned in cases])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If nothing is selected, keep the classic three: all on a CPU take the better part of an hour.

    ``-k`` selects, and so does the id of a test.
    """
    if config.option.keyword or any("::" in argument for argument in config.args):
        return
    others = [item for item in items if _workload(item) not in {None, *CLASSIC}]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def gpubench_prepared(pytestconfig: pytest.Config) -> Prepared:
    """The device, made the only one that this process sees, and what was found about it."""
    prepared = _prepared(pytestconfig)
    os.environ |= environment_of(prepared.device, os.environ)
    return prepared


def pytest_benchmark_update_json(output_json: dict[str, list[dict[str, Any]]]) -> None:
    """Name the case in ``params``, where pytest-benchmark puts an object that JSON does not know."""
    for bench in output_json["benchmarks"]:
        if bench["params"]:
            bench["params"] = {"gpubench_case": bench["param"]}


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, object]) -> None:
    """Put the device and its software beside what pytest-benchmark says of the machine, less its name.

    ``--benchmark-compare`` compares it with the stored one, so it holds no id that is another in each fresh
    container, and no clock of the moment.
    """
    machine_info.pop("node", None)
    processor = machine_info.get("cpu")
    if isinstance(processor, dict):
        machine_info["cpu"] = {k: v for k, v in processor.items() if not k.startswith("hz_actual")}
    device = _prepared(config).device
    software = msgspec.structs.replace(environment(device), torch=metadata.version("torch"))
    machine_info["gpubench"] = {
        "device": msgspec.to_builtins(msgspec.structs.replace(storable(device), device_id=None)),
        "environment": msgspec.to_builtins(software),
    }


def _prepared(config: pytest.Config) -> Prepared:
    if _PREPARED not in config.stash:
        device = config.getoption("--gpubench-device")
        root = Path(config.rootpath) / ".benchmarks"
        try:
            request = RunRequest(workloads=run_names(), budget="quick", device=device, results=root)
            config.stash[_PREPARED] = prepare(request, store_results=False)
        except GpuBenchError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_PREPARED]


def _id(planned: PlannedCase) -> str:
    """Id such as ``vgg16-amp-bf16-eager-batch64``, so that ``-k "vgg16 and amp"`` selects it."""
    case = planned.case
    return f"{case.workload}-{case.precision}-{case.execution}-batch{case.batch_size}"


def _workload(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    planned = callspec.params.get("gpubench_case") if callspec is not None else None
    return planned.case.workload if isinstance(planned, PlannedCase) else None
