"""The largest batch: the first guess of the memory model, and real trials in child processes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpubench.measure.batch_guess import guess_batch
from gpubench.measure.largest_batch import largest_batch, with_largest_batches
from gpubench.measure.launcher import Launcher, TrialFailedError
from gpubench.measure.plan import plan
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Precision, TaskKind
from gpubench.profile import load_profiles
from gpubench.units import GIB

CPU = DeviceProfile(backend="cpu", name="a CPU")
GPU = DeviceProfile(
    backend="cuda", name="a GPU", memory_bytes=80 * GIB, compute_capability=(9, 0), uuid="GPU-1"
)
OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        if len(x) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        if len(x) == 13:
            raise ValueError("unlucky")
        return self.layer(x)

def build(n):
    return Net(), torch.randn(n, 4), torch.randn(n, 4), nn.MSELoss()
"""


def test_the_guess_grows_with_memory_and_with_less_to_keep() -> None:
    profile, train = load_profiles()["vgg16"], TaskKind.TRAIN
    small, large = (guess_batch(profile, train, Precision.FP32, gib * GIB) for gib in (16, 80))
    assert 50 < small < 200
    assert 4 < large / small < 8
    assert guess_batch(profile, train, Precision.AMP_FP16, 80 * GIB) > 1.5 * large
    assert guess_batch(profile, TaskKind.INFER, Precision.FP32, 80 * GIB) > large
    assert guess_batch(profile, train, Precision.FP32, 1) == 1


def test_a_plan_begins_the_search_at_the_guess() -> None:
    request = RunRequest(workloads=("vgg16",), batch_size="max", executions=("eager",))
    made = plan(request, GPU, {"vgg16": load_profiles()["vgg16"]})
    assert made.largest_batch
    batches = {p.case.precision: p.case.batch_size for p in made.cases}
    assert 600 < batches[Precision.FP32] < 1000
    assert batches[Precision.AMP_BF16] > 1.5 * batches[Precision.FP32]


def test_a_good_guess_takes_few_trials() -> None:
    tried: list[int] = []
    found = largest_batch(lambda n: tried.append(n) or n <= 1000, 950)
    assert found is not None
    assert 940 <= found <= 1000
    assert len(tried) <= 8


def test_real_trials_end_with_their_process(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(OWN)
    profile = msgspec.structs.replace(load_profiles()["cnn"], name="net.py")
    request = RunRequest(workloads=(str(path),), batch_size=10, precisions=("fp32",))
    made = plan(request, CPU, {str(path): profile})
    (planned,) = made.cases

    def at(batch: int) -> object:
        return msgspec.structs.replace(
            planned, case=msgspec.structs.replace(planned.case, batch_size=batch, memory_format=None)
        )

    launcher = Launcher(made, CPU)
    assert launcher.fits(at(20))
    assert not launcher.fits(at(21))
    with pytest.raises(TrialFailedError, match="ValueError: unlucky"):
        launcher.fits(at(13))
    (lost,) = with_largest_batches(msgspec.structs.replace(made, cases=(at(13),)), launcher).unsupported
    assert lost.status == "failed"
    assert lost.reason == "ValueError: unlucky"
