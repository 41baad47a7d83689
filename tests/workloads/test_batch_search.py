"""The largest batch that fits: the bisection, the first guess, and real trials in child processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import case_of
from predict.runs import run_of

from gpubench.errors import MisuseError
from gpubench.measure.batch_search import (
    TrialFailedError,
    fits,
    guess_batch,
    largest_that_fits,
    with_largest_batches,
)
from gpubench.measure.budget import QUICK, budget_of
from gpubench.measure.launcher import Launcher
from gpubench.measure.messages import CaseDone
from gpubench.measure.plan import Plan, PlannedCase, plan
from gpubench.measure.request import RunRequest
from gpubench.models import Case, DeviceProfile, Execution, Launch, Precision, Status, TaskKind
from gpubench.predict.memory import doubts
from gpubench.profile import load_profiles
from gpubench.profile.memory import MOST_BATCH, UNTRACED_FACTOR, planned_peak_bytes
from gpubench.units import GIB

CPU = DeviceProfile(backend="cpu", name="a CPU")
GPU = DeviceProfile(
    backend="cuda", name="a GPU", memory_bytes=80 * GIB, compute_capability=(9, 0), uuid="GPU-1"
)


def case(workload: str = "vgg16", precision: Precision = Precision.FP32, batch_size: int = 64) -> Case:
    return Case(
        workload=workload, workload_version=1, task=TaskKind.TRAIN, precision=precision,
        execution=Execution.EAGER, memory_format=None, batch_size=batch_size, sample_unit="image",
    )  # fmt: skip


@given(limit=st.integers(0, MOST_BATCH), guess=st.integers(1, MOST_BATCH))
def test_the_search_ends_just_below_the_limit(limit: int, guess: int) -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= limit

    found = largest_that_fits(fits, guess)
    assert found <= limit
    assert found in tried or found == 0
    assert limit - found <= max(1, found / 16)
    assert len(tried) == len({*tried})
    assert len(tried) < 45


def card(memory_bytes: int) -> DeviceProfile:
    return DeviceProfile(backend="cuda", name="a card", vendor="NVIDIA", memory_bytes=memory_bytes)


def test_a_good_guess_needs_few_trials() -> None:
    tried: list[int] = []
    found = largest_that_fits(lambda n: tried.append(n) or n <= 1000, 950)
    assert 937 <= found <= 1000
    assert len(tried) <= 6


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_small_limits_are_found_exactly(limit: int, expected: int) -> None:
    assert largest_that_fits(lambda n: n <= limit, 1000) == expected


def test_batch_guess_grows_with_memory_and_shrinks_with_saved_bytes() -> None:
    profile = load_profiles()["vgg16"]
    small, large = (guess_batch(profile, case(), card(gib * GIB)) for gib in (16, 80))
    assert 50 < small < 200
    assert 4 < large / small < 8
    assert guess_batch(profile, case(precision=Precision.AMP_FP16), card(80 * GIB)) > 1.5 * large
    infer = msgspec.structs.replace(case(), task=TaskKind.INFER)
    assert guess_batch(profile, infer, card(80 * GIB)) > large
    assert guess_batch(profile, case(), card(1)) == 1


def test_run_reports_which_cases_may_not_fit() -> None:
    small, large = card(4 * GIB), card(80 * GIB)
    cases = [case(), case(precision=Precision.AMP_FP16), case(batch_size=1)]
    made = Plan(
        budget=budget_of("quick", on_cpu=False),
        seed=0,
        cases=tuple(PlannedCase(reference="vgg16", case=c) for c in cases),
    )
    profiles = {"vgg16": load_profiles()["vgg16"]}
    told = doubts(made, profiles, small, ())
    assert [line.split(":")[0] for line in told] == ["vgg16 fp32 batch 64", "vgg16 amp-fp16 batch 64"]
    assert all("not fit (" in line for line in told)
    assert doubts(made, profiles, large, ()) == ()
    assert doubts(made, profiles, CPU, ()) == ()
    searched = tuple(msgspec.structs.replace(c, batch_choice="largest") for c in made.cases)
    assert doubts(msgspec.structs.replace(made, cases=searched), {}, small, ()) == ()
    t4 = "nvidia-tesla-t4-16gb"
    both = [(each, 100.0) for each in cases[:2]]
    less = run_of(t4, *both, peak_memory_bytes=2 * GIB, peak_reserved_bytes=2 * GIB)
    more = run_of(t4, (cases[0], 100.0), peak_memory_bytes=90 * GIB, peak_reserved_bytes=90 * GIB)
    assert doubts(made, profiles, small, [less]) == (), "a measurement replaces the model"
    assert doubts(made, profiles, large, [more])[0].startswith("vgg16 fp32 batch 64: ")


def test_without_a_trace_the_inputs_count_and_the_guess_is_capped() -> None:
    cnn = msgspec.structs.replace(load_profiles()["cnn"], memory=())
    without = msgspec.structs.replace(cnn, sample_shape=(0,))
    each = [planned_peak_bytes(p, case_of(p, TaskKind.TRAIN, Precision.FP32, 1)) for p in (cnn, without)]
    assert each[0] - each[1] == UNTRACED_FACTOR * 4 * 4 * 28 * 28
    featherweight = msgspec.structs.replace(
        without, parameters=20, trainable_parameters=20, saved_bytes_per_sample=16, train=()
    )
    assert guess_batch(featherweight, case(), card(80 * GIB)) == MOST_BATCH


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


@pytest.mark.usefixtures("forked_children")
def test_real_trials_run_out_of_memory_in_their_own_process(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(OWN)
    seen: list[tuple[int, bool]] = []
    planned = PlannedCase(reference=str(path), case=case("net.py"))
    launcher = Launcher(Plan(budget=QUICK, seed=0, cases=(planned,), on_cpu=True), CPU)

    def tried(batch: int) -> bool:
        return fits(launcher, planned, lambda c, it_fits: seen.append((c.batch_size, it_fits)), batch)

    assert tried(10)
    first = launcher._child
    assert not tried(30)
    assert launcher._child is None, "a process that ran out of memory is not used again"
    assert tried(20)
    assert launcher._child is not first
    with pytest.raises(TrialFailedError, match="batch 13: ValueError: unlucky"):
        tried(13)
    assert seen == [(10, True), (30, False), (20, True)]
    assert launcher._child is None


def test_a_cpu_has_no_largest_batch() -> None:
    profiles = {"cnn": load_profiles()["cnn"]}
    made = plan(RunRequest(workloads=("cnn",), batch_size="max"), CPU, profiles)
    with pytest.raises(MisuseError, match="--batch-size max"):
        with_largest_batches(made, profiles, CPU)


def trial(it_fits: Callable[[Case], bool | None]) -> Callable[[Launcher, PlannedCase], CaseDone]:
    """Return a trial with this result; None means a failure other than out of memory."""

    def tried(_: Launcher, planned: PlannedCase) -> CaseDone:
        found = it_fits(planned.case)
        if found is None:
            return CaseDone(status=Status.FAILED, reason="ValueError: unlucky", launch=Launch(index=0))
        return CaseDone(status=Status.OK if found else Status.OUT_OF_MEMORY, launch=Launch(index=0))

    return tried


def test_every_case_gets_its_own_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials on a GPU are real; here the limit of each precision is given instead."""
    limits = {Precision.FP32: 100, Precision.TF32: 0, Precision.AMP_BF16: 240}
    monkeypatch.setattr(Launcher, "try_batch", trial(lambda case: case.batch_size <= limits[case.precision]))
    profiles = {"vgg16": load_profiles()["vgg16"]}
    precisions = ("fp32", "tf32", "amp")
    request = RunRequest(workloads=("vgg16",), precisions=precisions, batch_size="max", executions=("eager",))
    made = with_largest_batches(plan(request, GPU, profiles), profiles, GPU)
    assert {p.batch_choice for p in made.cases} == {m.batch_choice for m in made.unsupported} == {"largest"}
    found = {p.case.precision: p.case.batch_size for p in made.cases}
    assert 94 <= found[Precision.FP32] <= 100
    assert 225 <= found[Precision.AMP_BF16] <= 240
    assert Precision.TF32 not in found
    lost = [m for m in made.unsupported if m.case.precision is Precision.TF32]
    assert [m.status for m in lost] == ["out_of_memory"]


def test_failure_other_than_out_of_memory_becomes_a_row_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Launcher,
        "try_batch",
        trial(lambda case: None if case.precision is Precision.TF32 else case.batch_size <= 100),
    )
    profiles = {"vgg16": load_profiles()["vgg16"]}
    precisions = ("fp32", "tf32", "amp")
    request = RunRequest(workloads=("vgg16",), precisions=precisions, batch_size="max", executions=("eager",))
    made = with_largest_batches(plan(request, GPU, profiles), profiles, GPU)
    (lost,) = made.unsupported
    assert (lost.case.precision, lost.status) == (Precision.TF32, "failed")
    assert "unlucky" in (lost.reason or "")
    assert len(made.cases) == 2

    monkeypatch.setattr(Launcher, "try_batch", trial(lambda _: None))
    alone = plan(RunRequest(workloads=("vgg16",), precisions=("fp32",), batch_size="max"), GPU, profiles)
    with pytest.raises(MisuseError, match=r"no case has a batch that runs in .*: .*unlucky"):
        with_largest_batches(alone, profiles, GPU)
