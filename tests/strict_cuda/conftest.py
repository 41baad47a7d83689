"""A fake H200: NVML answers from a recording, torch.cuda is the strict fake."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import torch._dynamo  # before anything is replaced: every training step imports it

from gpubench.discovery import load_workload
from gpubench.measure import checks, guards, loop, worker
from gpubench.measure.budget import QUICK, Budget
from gpubench.measure.case import WorkerContext, measure_case
from gpubench.measure.messages import CaseDone, MeasureCase, Setup
from gpubench.measure.step import Work, move
from gpubench.models import Case, DeviceProfile, Execution, MemoryFormat, Precision, Status, TaskKind
from gpubench.probe import torch_view
from gpubench.probe.probe import probe
from gpubench.workload import Task
from strict_cuda.in_a_child import VARIABLE, Scene
from strict_cuda.install import installed
from strict_cuda.machine import Machine
from strict_cuda.tensors import Device

KERNEL_S = 1e-3
"""Run time of every kernel of the fake: long compared with its launch, so a step is device-bound."""

SITE = Path(__file__).parent / "site"
"""The folder on the path of child processes: Python imports its ``sitecustomize`` at the start."""

BRIEF = msgspec.structs.replace(
    QUICK,
    in_haste=False,  # if this is set, a run skips the second check of its graphs
    warmup_steps=2,
    warmup_least_s=0.0,
    warmup_most_s=0.01,
    timed_s=0.0,
    round_s=1e-3,
    window_s=1e-3,
    curve_steps=2,
    micro_s=0.01,
)
"""The rules of a budget in as few steps as they allow."""


@dataclass
class Line:
    """The child's end of the pipe: its messages, and whether it was told to stop."""

    sent: list[Any] = field(default_factory=list)
    stop: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(is_set=lambda: False))

    def send(self, message: Any) -> None:
        self.sent.append(message)


@dataclass
class Gpu:
    """The fake device, the driver's description of it, and the child's end of the pipe and context."""

    device: Device
    profile: DeviceProfile
    line: Line
    desk: WorkerContext

    @property
    def machine(self) -> Machine:
        return self.device.machine

    def case(self, name: str, built: Task | None = None, **changes: Any) -> Case:
        """Make a case; its task is the workload's tiny preset, or the given one."""
        fields = {
            "workload": name,
            "workload_version": 1,
            "task": TaskKind.TRAIN,
            "precision": Precision.FP32,
            "execution": Execution.EAGER,
            "memory_format": None,
            "batch_size": 4,
            "sample_unit": "sample",
        } | changes
        asked = Case(**fields)
        built = built or load_workload(name).at(asked.recipe).tiny(asked.batch_size, 0)
        inputs = built.batches[0][0]
        if getattr(inputs, "ndim", 0) == 4:
            wanted = (
                MemoryFormat.CONTIGUOUS if asked.precision is Precision.FP32 else MemoryFormat.CHANNELS_LAST
            )
            asked = msgspec.structs.replace(asked, memory_format=wanted)
        self.desk.tasks[(name, asked.batch_size, asked.recipe)] = built
        return asked

    def work(self, name: str, built: Task | None = None, **changes: Any) -> Work:
        """Move the task of a case to the device."""
        case = self.case(name, built, **changes)
        return move(self.desk.tasks[(name, case.batch_size, case.recipe)], case, self.desk.hardware.device)

    def measure(self, name: str, built: Task | None = None, **changes: Any) -> CaseDone:
        """Measure a case as the child does, from request to record."""
        case = self.case(name, built, **changes)
        try:
            return measure_case(MeasureCase(reference=name, case=case, launch=0), self.desk)
        finally:
            self.desk.tasks.clear()


def step_s(done: CaseDone) -> float:
    """Return the mean time of a step of a sound case."""
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    return sum(r.wall_s for r in done.launch.rounds) / sum(r.steps for r in done.launch.rounds)


@pytest.fixture(autouse=True)
def _lighter_collections() -> None:
    """Freeze objects again for each test: some tests import torchao, kornia or the compiler, as large as torch."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread: the kernels are tiny, so more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def in_little(small_probes, monkeypatch) -> None:
    """Time few rounds, and prove a precision by small products, in tests of something else."""
    monkeypatch.setattr(loop, "WINDOWS", 2)
    monkeypatch.setattr(loop, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(loop, "SPARE_ROUNDS", 0)


@cache
def _probed() -> DeviceProfile:
    """Probe the recorded H200 once; it gives every test the same answers."""
    return next(d for d in probe().devices if d.backend == "cuda")


@pytest.fixture
def make_gpu(inside_nvml, monkeypatch) -> Iterator[Callable[..., Gpu]]:
    """``make_gpu(machine, budget)`` opens the device as the product's child does."""
    opened = []
    inside_nvml("h200")
    profile = _probed()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(guards, "PROFILED_STEPS", (1, 1))
    monkeypatch.setattr(guards, "ISSUED_STEPS", 1)

    def make(machine: Machine | None = None, budget: Budget = BRIEF) -> Gpu:
        context = installed(machine or Machine(cost=lambda name: KERNEL_S))
        device = context.__enter__()
        opened.append(context)
        line = Line()
        desk = worker.open_context(Setup(device=profile, budget=budget, seed=0), line)
        return Gpu(device, profile, line, desk)

    yield make
    for context in reversed(opened):
        context.__exit__(None, None, None)


@pytest.fixture
def gpu(make_gpu) -> Gpu:
    """The device with kernels of one millisecond."""
    return make_gpu()


@pytest.fixture
def gpu_environment(fake_nvml) -> Callable[..., dict[str, str]]:
    """``gpu_environment(devices="h200", faults=(), **scene)``: environment with the fake GPU for a child.

    The driver answers from a recording, torch.cuda is the strict fake, the standard workloads are their tiny
    presets; ``scene`` has fields of ``in_a_child.Scene``. Descendants inherit the environment, so ``python -m
    gpubench run`` measures on the fake GPU.
    """

    def make(devices: Any = "h200", faults: Any = (), **scene: Any) -> dict[str, str]:
        return fake_nvml(devices, faults) | _in_children(scene)

    return make


@pytest.fixture
def inside_gpu(inside_nvml, fake_nvml, forked_children, monkeypatch) -> Callable[..., DeviceProfile]:
    """``inside_gpu(devices="h200", faults=(), **scene)``: makes this process the parent of children with the
    fake GPU, and returns the first GPU.

    The children are forks. The driver answers from the recording, and torch claims to be built for CUDA.
    """

    def put(devices: Any = "h200", faults: Any = (), **scene: Any) -> DeviceProfile:
        children = fake_nvml(devices, faults)
        inside_nvml(devices, faults)
        for name, value in _in_children(scene).items() | {("LD_LIBRARY_PATH", children["LD_LIBRARY_PATH"])}:
            monkeypatch.setenv(name, value)
        built = torch_view.TorchBuild(version=str(torch.__version__), cuda=Scene(**scene).cuda, hip=None)
        monkeypatch.setattr(torch_view, "torch_build", lambda: built)
        monkeypatch.setattr(checks, "LEAST_OF_ARRIVALS", float("-inf"))  # the fake's clock has its own pace
        return next(d for d in probe().devices if d.backend == "cuda")

    return put


def _in_children(scene: dict[str, Any]) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(SITE), str(SITE.parent.parent), *filter(None, inherited)]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        VARIABLE: Scene(**scene).variable(),
        "OMP_NUM_THREADS": "1",  # the kernels are tiny: threads would only wait for each other
    }
