"""Micro-benchmarks through OpenCL, for real on this processor (PoCL)."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.measure import micro, probes
from gpubench.measure.budget import QUICK
from gpubench.measure.loop import Clock
from gpubench.measure.plan import plan
from gpubench.measure.request import RunRequest
from gpubench.models import Finding, FindingKind
from gpubench.probe.opencl import BACKEND, ask_listing
from gpubench.units import MIB, format_bytes

cl = pytest.importorskip("pyopencl")
from gpubench.measure import opencl  # noqa: E402 - needs pyopencl

BRIEF = msgspec.structs.replace(QUICK, micro_s=0.1)


@pytest.fixture(scope="module")
def place() -> int:
    listing = ask_listing()
    for number, device in enumerate(listing.devices):
        if device.core_count is not None:
            try:
                opencl.open_queue(device)
            except NoDeviceError as error:  # from a PoCL that is older than the processor
                pytest.skip(str(error))
            return number
    pytest.skip(f"no OpenCL on this CPU: {listing.problems}")


@pytest.fixture(scope="module")
def profile(place):
    return BACKEND.device(place)


@pytest.fixture(scope="module")
def queue(profile):
    """One context for all tests, since opening one compiles a program."""
    return opencl.open_queue(profile)


def timed(probe, queue, actions: int = 3) -> list[float]:
    action, clock = probe.make(queue), probes.by_clock(probe, Clock(synchronize=queue.finish))
    gc.collect()  # the data of a repetition must outlive its creator
    return [clock(action) for _ in range(actions)]


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_multiply_adds_take_time_in_proportion_to_their_number(queue, monkeypatch, precision: str) -> None:
    """Work that a compiler had removed would take no longer for sixteen times the steps."""
    steps = opencl.CHAIN_STEPS // 16
    monkeypatch.setattr(opencl, "CHAIN_STEPS", steps)
    few = min(timed(opencl.multiply_add(queue, precision), queue))
    monkeypatch.setattr(opencl, "CHAIN_STEPS", 16 * steps)
    assert min(timed(opencl.multiply_add(queue, precision), queue)) > 4 * few


def test_wrong_results_give_no_rate(queue, monkeypatch) -> None:
    monkeypatch.setattr(opencl, "_SOURCE", opencl._SOURCE.replace("step < STEPS", "step < 1"))
    with pytest.raises(ArithmeticError, match="wrong results"):
        opencl.multiply_add(queue, "fp32").make(queue)


def test_device_copy_writes_every_byte(queue, monkeypatch) -> None:
    made, zeros = [], opencl.zeros
    monkeypatch.setattr(opencl, "zeros", lambda *given: made.append(zeros(*given)) or made[-1])
    probe = micro.device_copy(micro.LEAST_COPY_BYTES, opencl.copy_inside)
    action = probe.make(queue)
    source, target = (each.data for each in made)
    cl.enqueue_copy(queue, source, written := np.arange(micro.LEAST_COPY_BYTES // 4, dtype=np.int32))
    action()
    cl.enqueue_copy(queue, seen := np.empty_like(written), target).wait()
    assert np.array_equal(seen, written)
    assert probe.work == 2 * written.nbytes


def test_a_device_that_reports_too_much_memory_is_probed_at_the_size_that_it_grants(
    queue, profile, monkeypatch
) -> None:
    most = queue.device.max_mem_alloc_size
    size = 4 * 2 ** (most.bit_length())
    copy = [micro.device_copy(size, opencl.copy_inside)]
    monkeypatch.setattr(opencl, "probes", lambda *_args, **_options: copy)
    monkeypatch.setattr(micro, "LEAST_COPY_BYTES", size // 4)
    lies = msgspec.structs.replace(profile, memory_bytes=64 * size)
    (none_given,) = opencl.run_micro(queue, lies, BRIEF)
    assert isinstance(none_given, Finding), "a size that is never granted gives no row but is reported"
    assert none_given.kind is FindingKind.MEMORY_REFUSED
    assert f"the device reports {format_bytes(lies.memory_bytes)}" in str(none_given.value)
    monkeypatch.setattr(micro, "LEAST_COPY_BYTES", 64 * MIB)
    zeros = opencl.zeros
    monkeypatch.setattr(
        opencl, "zeros", lambda queue, n, kind: zeros(queue, n if n <= 128 * MIB else 2**62, kind)
    )
    (copied,) = opencl.run_micro(queue, lies, BRIEF)
    assert copied.size == "128 MiB"
    (said,) = (f for f in copied.findings if f.kind is FindingKind.MEMORY_REFUSED)
    assert f"device copy of {size // 2**20} MiB" in str(said.value)


def test_a_device_that_is_gone_is_named(profile) -> None:
    with pytest.raises(NoDeviceError, match="Some other card"):
        opencl.open_queue(msgspec.structs.replace(profile, name="Some other card"))


def test_a_driver_that_cannot_compile_is_named_with_its_compilers_message(
    queue, profile, monkeypatch
) -> None:
    monkeypatch.setattr(opencl, "_ANY_SOURCE", "__kernel void any(unknown x) {}")
    with pytest.raises(NoDeviceError, match=r"cannot compile for it \(.*unknown.*PoCL") as refused:
        opencl.open_queue(profile)
    assert "\n" not in str(refused.value)


def test_a_workload_through_opencl_is_refused_with_the_needed_option(profile) -> None:
    with pytest.raises(MisuseError, match="--micro only"):
        plan(RunRequest(device="opencl"), profile, {})


RUN_BRIEFLY = """
import msgspec
from gpubench.measure import budget, plan
plan.budget_of = lambda name, *, on_cpu: msgspec.structs.replace(budget.QUICK, micro_s=0.05)
from gpubench.cli.app import main
main()
"""


@pytest.mark.timeout(240)
def test_a_run_of_micro_benchmarks_is_stored_and_shown(place: int, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_BRIEFLY, "run", "--device", f"opencl:{place}", "--micro", "only", "--quick", "--json",
         "--results", str(tmp_path), "--time-limit", "150"],
        capture_output=True, text=True, check=True, timeout=220,
    )  # fmt: skip
    run = json.loads(done.stdout)
    names = {(micro["name"], micro["precision"]) for micro in run["micro"]}
    assert {("multiply-add", "fp32"), ("device copy", None)} <= names
    assert run["device"]["backend"] == "opencl"
    assert run["environment"]["torch"] is None
    assert all(micro["value"] > 0 and micro["n"] >= 3 for micro in run["micro"])
