"""A scripted device and clock for testing the rules of the contract without a GPU and without waiting."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from builders import case_of

from gpubench.models import (
    DeviceProfile,
    Launch,
    Measurement,
    MemoryFormat,
    Round,
    Status,
    WorkloadProfile,
)

OWN_MODEL = """
import os, signal, sys, time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        x.is_meta or act(self.calls)  # nothing is timed while the loss is tried
        return self.layer(x)

def act(calls):
    {act}

BATCH = [0]

def build(batch_size):
    BATCH[0] = batch_size
    torch.manual_seed(0)
    return Net(), torch.randn(batch_size, 8), torch.zeros(batch_size, dtype=torch.long), nn.functional.cross_entropy
"""


class FakeClock:
    """A clock that moves only when told; ``waits`` counts the waits for the device."""

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.waits = 0

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def now_ns(self) -> int:
        return self.now

    def synchronize(self) -> None:
        self.waits += 1


@pytest.fixture
def fake_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cpu() -> DeviceProfile:
    return DeviceProfile(backend="cpu", name="Some CPU", tensor_core_precisions=("bf16",))


@pytest.fixture
def h100() -> DeviceProfile:
    return DeviceProfile(
        backend="cuda",
        name="NVIDIA H100 80GB HBM3",
        gpu_key="nvidia-h100-sxm-80gb",
        uuid="GPU-11111111-2222-3333-4444-555555555555",
        compute_capability=(9, 0),
        power_limit_w=700.0,
    )


@pytest.fixture
def rtx_4090() -> DeviceProfile:
    return DeviceProfile(
        backend="cuda",
        name="NVIDIA GeForce RTX 4090",
        gpu_key="nvidia-geforce-rtx-4090-24gb",
        compute_capability=(8, 9),
        cuda_core_count=16384,
        sm_clock_max_hz=3105e6,
    )


@pytest.fixture
def make_profile():
    def make(name: str = "cnn", **changes) -> WorkloadProfile:
        fields = {
            "name": name,
            "version": 1,
            "sample_unit": "image",
            "sample_shape": (1, 28, 28),
            "is_image": True,
            "source": "test",
            "optimizer": "Adam",
            "parameters": 10,
            "trainable_parameters": 10,
            "batches": (64, 512, 4096),
            "forward_flops_per_sample": 1e6,
            "train_flops_per_sample": 3e6,
            "saved_bytes_per_sample": 1.0,
            "optimizer_bytes_per_parameter": 8.0,
            "train": (),
            "infer": (),
        }
        return WorkloadProfile(**(fields | changes))

    return make


@pytest.fixture
def make_case():
    return partial(case_of, memory_format=MemoryFormat.CONTIGUOUS)


@pytest.fixture
def make_measurement(make_case):
    def make(
        walls=(1.0, 1.01, 0.99) * 8, losses=None, steps=10, case=None, launch=None, **changes
    ) -> Measurement:
        losses = losses if losses is not None else [2.0 - 0.01 * i for i in range(len(walls))]
        rounds = tuple(Round(steps=steps, wall_s=w, loss=v) for w, v in zip(walls, losses, strict=True))
        stored = {"telemetry_source": "nvml", "energy_source": "counter", "timed_steps": steps * len(walls)}
        stored |= {"rounds": rounds, "precision_errors": {"matmul": 5e-7, "conv": 4e-7}}
        one = Launch(index=0, **(stored | (launch or {})))
        fields = {"case": case or make_case(), "status": Status.OK, "launches": (one,)}
        return Measurement(**(fields | changes))

    return make


@pytest.fixture
def own_model(tmp_path: Path):
    """Write a model that runs the test's ``act(calls)`` in each forward pass, and return its path."""

    def write(act: str = "pass") -> str:
        path = tmp_path / "own_model.py"
        path.write_text(OWN_MODEL.replace("{act}", act))
        return str(path)

    return write
