"""The fixture ``fake_nvml``: an environment in which the real pynvml finds the fake driver library.

    def test_probe(fake_nvml):
        env = fake_nvml("h200", faults=[Fault("nvmlDeviceGetPowerUsage", code=3)])
        subprocess.run([sys.executable, "-m", "gpubench", "probe"], env=env)

``devices`` is a dump's name, its calls, or a list of either (several GPUs); ``missing`` leaves symbols
out of the library. The value is the whole environment for a *child* process, because the loader reads
LD_LIBRARY_PATH only at its start. ``inside_nvml`` puts the fake library into this process. Outside Linux or
without a C compiler, both fixtures skip the test; if the variable CI is set, a missing compiler is an error.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvml.library import SONAME, compile_library
from nvml.script import Fault, load_dump, script, several

Calls = list[dict[str, Any]]
Devices = str | Path | Calls | list[str | Path | Calls]
FakeNvml = Callable[..., dict[str, str]]


def calls_of(devices: Devices) -> Calls:
    """Return the calls of one machine, however its devices are given."""
    if isinstance(devices, str | Path):
        return load_dump(devices)
    if not devices or isinstance(devices[0], dict):
        return devices  # type: ignore[return-value]
    return several([calls_of(d) for d in devices])


@pytest.fixture(scope="session")
def _libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    if sys.platform != "linux":
        pytest.skip("the fake driver library is built for Linux")
    if not (shutil.which("cc") or shutil.which("gcc")) and not os.environ.get("CI"):
        pytest.skip("no C compiler: the fake driver library cannot be built")
    built: dict[tuple[frozenset[str], str], Path] = {}

    def library(missing: Collection[str] = (), soname: str = SONAME) -> Path:
        key = frozenset(missing), soname
        if key not in built:
            built[key] = compile_library(tmp_path_factory.mktemp("nvml"), *key)
        return built[key]

    return library


@pytest.fixture
def _answers(tmp_path: Path) -> Callable[..., Path]:
    made = itertools.count()

    def write(devices: Devices, faults: Iterable[Fault]) -> Path:
        file = tmp_path / f"nvml-{next(made)}.txt"
        file.write_text(script(calls_of(devices), faults), encoding="utf-8")
        return file

    return write


@pytest.fixture
def fake_nvml(_libraries: Callable[..., Path], _answers: Callable[..., Path]) -> FakeNvml:
    """``fake_nvml(devices, faults=(), missing=())`` -> environment of a child process."""

    def make(
        devices: Devices = "h200", faults: Iterable[Fault] = (), missing: Collection[str] = ()
    ) -> dict[str, str]:
        environment = dict(os.environ, GPUBENCH_FAKE_NVML=str(_answers(devices, faults)))
        environment["LD_LIBRARY_PATH"] = str(_libraries(missing).parent)
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        environment.pop("CUDA_DEVICE_ORDER", None)
        return environment

    return make


@pytest.fixture
def inside_nvml(
    _libraries: Callable[..., Path], _answers: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """``inside_nvml(devices, faults=(), missing=())`` puts the fake library into this process."""
    import pynvml

    def put(devices: Devices = "h200", faults: Iterable[Fault] = (), missing: Collection[str] = ()) -> None:
        monkeypatch.setenv("GPUBENCH_FAKE_NVML", str(_answers(devices, faults)))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        library = _libraries(missing, soname="libgpubench-fake-nvml.so")
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
        pynvml._nvmlGetFunctionPointer_cache.clear()

    yield put
    pynvml._nvmlGetFunctionPointer_cache.clear()
