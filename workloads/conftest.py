"""Options, cases and machine information of ``pytest workloads``."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubench.errors import GpuBenchError
from gpubench.measure.environment import child_variables, environment
from gpubench.measure.plan import PlannedCase
from gpubench.measure.request import RunRequest
from gpubench.options import CLASSIC
from gpubench.probe.backend import storable
from gpubench.profile import run_names
from gpubench.session.session import Prepared, prepare

_PREPARED = pytest.StashKey[Prepared]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--gpubench-device``."""
    group = parser.getgroup("gpubench")
    group.addoption("--gpubench-device", default="auto", help="auto, cpu, cuda, cuda:N, or a UUID")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the test with the cases of every workload on the device."""
    if "gpubench_case" not in metafunc.fixturenames:
        return
    cases = _prepared(metafunc.config).plan.cases
    metafunc.parametrize("gpubench_case", cases, ids=[_id(planned) for planned in cases])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a selection, keep the classic three, because all workloads take most of an hour on a CPU.

    ``-k`` or a test id is a selection.
    """
    if config.option.keyword or any("::" in argument for argument in config.args):
        return
    others = [item for item in items if _workload(item) not in {None, *CLASSIC}]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def gpubench_prepared(pytestconfig: pytest.Config) -> Prepared:
    """The device, as the only one visible to this process, and the findings about it."""
    prepared = _prepared(pytestconfig)
    os.environ |= child_variables(prepared.device, os.environ)
    return prepared


def pytest_benchmark_update_json(output_json: dict[str, list[dict[str, Any]]]) -> None:
    """Replace the case in ``params`` by its name, because pytest-benchmark cannot write it as JSON."""
    for bench in output_json["benchmarks"]:
        if bench["params"]:
            bench["params"] = {"gpubench_case": bench["param"]}


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, object]) -> None:
    """Add the device and its software to pytest-benchmark's machine information, without the host name.

    ``--benchmark-compare`` compares this information with the stored one, so it has no id that changes with
    each new container, and no current clock rate.
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
    """Return an id such as ``vgg16-amp-bf16-eager-batch64``, so ``-k "vgg16 and amp"`` selects it."""
    case = planned.case
    return f"{case.workload}-{case.precision}-{case.execution}-batch{case.batch_size}"


def _workload(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    planned = callspec.params.get("gpubench_case") if callspec is not None else None
    return planned.case.workload if isinstance(planned, PlannedCase) else None
