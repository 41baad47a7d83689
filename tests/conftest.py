"""What every test shares: a thread each, no time limit on an example, and no results or data of this user's."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before numpy or torch is loaded. Each worker of xdist would otherwise compute on as many threads as there are
# processors, and its threads would wait, spinning, for those of the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each process that a test starts would otherwise compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# xdist tells its workers the width of a terminal that their output never reaches.
os.environ.pop("COLUMNS", None)

import msgspec
import pytest
from hypothesis import Phase, settings
from nvml.plugin import _answers, _libraries, fake_nvml, inside_nvml  # noqa: F401 - fixtures for every room

from gpubench import draws
from gpubench.discovery import workload_names
from gpubench.measure.budget import QUICK, Budget

# Hundreds of rankings draw the same numbers by the same names, which takes a fifth of their time. This comes before
# any module takes the function.
draws.normals = functools.lru_cache(maxsize=4096)(draws.normals)
sys.dont_write_bytecode = False  # each run would otherwise rewrite the asserts of every test again
workload_names()  # before a test imports one: the workloads of this checkout, not the copy that its installation made
settings.register_profile("gpubench", deadline=None)  # an example takes what a loaded machine lets it take
settings.load_profile("gpubench")
# Of a broken line only that a test fails is asked, and not for which smallest example: that search takes minutes.
settings.register_profile("mutants", deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))


@pytest.fixture(autouse=True, scope="module")
def _light_collections() -> None:
    """Keep what lived before a file of tests out of its collections: torch and all tests are a million objects.

    Each trace of a model and each measured case collects. Anew for each file, as some import more.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of folders; mktemp would look through those of all earlier tests for the next number."""
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
    """Trace models of the user's own in this process, where the child process is not what is tested.

    Each child would import torch first, which takes several times as long as the trace of a small model.
    """
    from gpubench import children
    from gpubench.profile import cache, child

    def answer(program: Any, arguments: Any, answer_type: Any, **limits: Any) -> children.Asked[Any]:
        assert program == ("-m", child.__name__)
        reference, asked = arguments
        found = child._answer(reference, asked=msgspec.json.decode(asked, type=cache.Asked))
        return children.Asked(msgspec.json.decode(msgspec.json.encode(found), type=answer_type), "", "")

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(cache, "run_child", answer)


@pytest.fixture
def traced_as_asked(traced_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where no other way to train the model is asked for: a large one is traced by each for 10 s."""
    from gpubench.profile import liveness

    monkeypatch.setattr(liveness, "_variants", lambda workload, *, has_blocks: ())


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the children that import torch off this process, where their start is not what is tested."""
    import forked_child

    from gpubench import children

    monkeypatch.setattr(children, "subprocess", forked_child.of_children())


SMALL_PROBES = {"SIZE": 64, "CHANNELS": 4, "IMAGE": 8, "TOKENS": 4, "WIDTH": 32}
"""Sizes of the products by which a precision is proven: rounding shows in the smallest, and each case has four."""


@pytest.fixture
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prove a precision in a fraction of the time, where the proof is not what is tested."""
    from gpubench.measure import step

    for name, value in SMALL_PROBES.items():
        monkeypatch.setattr(step, f"PROOF_{name}", value)


@pytest.fixture
def heeded_signals() -> Iterator[None]:
    """Have the processes that a test starts heed the signals that it sends them.

    A shell starts what it puts into the background with SIGINT ignored, ``nohup`` with SIGHUP, and each process
    hands that on to its own. A handler of this process's own becomes the default in a child.
    """
    heeding = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in heeding.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def tiny_budget() -> Budget:
    """Everything as in --quick, in a fraction of a second."""
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
