"""Settings for all tests: one thread each, no time limit on a hypothesis example, and none of the user's own files."""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before numpy or torch is loaded. Otherwise each worker of xdist would compute on as many threads as there
# are processors, and its threads would spin while waiting for those of the other workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Otherwise each process that a test starts would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# xdist tells its workers the width of a terminal that their output never reaches.
os.environ.pop("COLUMNS", None)
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(os._exit, 0)  # all is reported by then, and to delete every module takes half a second

import msgspec
import psutil
import pytest
from hypothesis import Phase, settings
from nvml.plugin import _answers, _libraries, fake_nvml, inside_nvml  # noqa: F401 - fixtures for every folder

from gpubench import draws
from gpubench.discovery import workload_names
from gpubench.measure.budget import QUICK, Budget

# Hundreds of rankings draw from the same named streams, which takes a fifth of their time. This must come
# before any module imports the function.
draws.normals = functools.lru_cache(maxsize=4096)(draws.normals)
gc.set_threshold(5_000)  # each trace makes and drops a million objects, few of them in cycles
sys.dont_write_bytecode = False  # otherwise each run would rewrite the asserts of every test again
workload_names()  # before a test imports one: the workloads of this checkout, not the copy that its installation made
settings.register_profile("gpubench", deadline=None)  # examples are slow on a loaded machine
settings.load_profile("gpubench")
# A mutant only needs a test that fails, not the smallest failing example, which takes minutes to find.
settings.register_profile("mutants", deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than cores for ``-n auto``: tests wait for children, timers and the browser."""
    return (psutil.cpu_count(logical=False) or 1) + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker neighboring tests, which share their module's fixtures; an idle one takes from the others.

    The usual scheduler deals them out in small portions, so that several workers make the same fixtures.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect no garbage while the tests are collected: a million objects are made, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # the collections at the end of the run would search them too


@pytest.fixture(scope="session")
def _excluded() -> set[tuple[str, int]]:
    """Files and numbers of loaded modules for which earlier objects are already excluded from collections."""
    return set()


@pytest.fixture(autouse=True)
def _light_collections(request: pytest.FixtureRequest, _excluded: set[tuple[str, int]]) -> None:
    """Exclude earlier objects from the garbage collections of a test: torch and all tests are a million objects.

    Each trace of a model and each measured case collects garbage. This is repeated for each file, and after a
    test that imported more: some libraries are as large as torch.
    """
    now = request.node.nodeid.partition("::")[0], len(sys.modules)
    if now not in _excluded:
        _excluded.add(now)
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield folder names; mktemp would search the folders of all earlier tests for the next number."""
    root = tmp_path_factory.mktemp("homes")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _private_folders(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    home = next(_homes)
    home.mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("GPUBENCH_RESULTS", str(home / "results"))


@pytest.fixture
def traced_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace users' models in this process, unless the child process itself is tested.

    Each child would import torch first, which takes several times as long as the trace of a small model.
    """
    from gpubench import children
    from gpubench.profile import cache, child

    def answer(program: Any, arguments: Any, answer_type: Any, **limits: Any) -> children.ChildResult[Any]:
        assert program == ("-m", child.__name__)
        reference, asked = arguments
        found = child._answer(reference, asked=msgspec.json.decode(asked, type=cache.Asked))
        return children.ChildResult(msgspec.json.decode(msgspec.json.encode(found), type=answer_type), "", "")

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(cache, "run_child", answer)


@pytest.fixture
def traced_as_asked(traced_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace as ``traced_here`` does, but only the requested training: each variant of a large model takes 10 s."""
    from gpubench.profile import liveness

    monkeypatch.setattr(liveness, "_variants", lambda workload, *, has_blocks: ())


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the children that import torch from this process, unless their start itself is tested."""
    import forked_child

    from gpubench import children

    monkeypatch.setattr(children, "subprocess", forked_child.of_children())


SMALL_PROBES = {"SIZE": 64, "CHANNELS": 4, "IMAGE": 8, "TOKENS": 4, "WIDTH": 32}
"""Sizes of the products by which a precision is proven: rounding shows even in these, and each case has four."""


@pytest.fixture
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prove a precision in a fraction of the time, where the proof is not what is tested."""
    from gpubench.measure import step

    for name, value in SMALL_PROBES.items():
        monkeypatch.setattr(step, f"PROOF_{name}", value)


@pytest.fixture
def heeded_signals() -> Iterator[None]:
    """Let the processes that a test starts receive its signals.

    A shell starts background processes with SIGINT ignored, ``nohup`` with SIGHUP, and their children inherit
    that. A signal that has a handler in this process gets its default action in a child.
    """
    heeding = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in heeding.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def tiny_budget() -> Budget:
    """Return a budget with the rules of --quick that takes a fraction of a second."""
    return msgspec.structs.replace(
        QUICK,
        timed_s=0.15,
        micro_s=0.1,
        warmup_steps=2,
        warmup_least_s=0.0,
        warmup_most_s=0.1,
        round_s=0.01,
        window_s=0.02,
        curve_steps=2,
    )
