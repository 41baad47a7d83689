"""Micro-benchmarks on a scripted timer, and for real on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import chain, repeat

import msgspec
import numpy as np
import pytest
import torch

from gpubench.measure import checks, micro, probes
from gpubench.measure.budget import DEFAULT, LEAST_REPETITIONS, LEAST_ROUNDS, QUICK, Budget
from gpubench.measure.capability import (
    GEMM_SIZES,
    best_gemm,
    best_products,
    datasheet_share,
    peak_flops_per_s,
)
from gpubench.measure.step import Hardware
from gpubench.models import DeviceProfile, FindingKind, MicroResult, Precision, TelemetrySample
from gpubench.probe.backend import Readings
from gpubench.units import GIB

CPU = Hardware(device=torch.device("cpu"))
BLIND = Readings()


class Wall:
    """A wall clock that each repetition advances by its scripted time."""

    def __init__(self, times: Iterable[float]) -> None:
        self.now = 100.0
        self._times = iter(times)

    def timer(self, _action: object) -> float:
        took = next(self._times)
        self.now += took
        return took

    def now_s(self) -> float:
        return self.now


def measured(probe: probes.Probe, times: Iterable[float], **options) -> MicroResult:
    wall = Wall(times)
    return micro.measure_probe(probe, CPU, QUICK, timer=wall.timer, now_s=wall.now_s, **options)


def result(**changes) -> MicroResult:
    fields = {
        "name": "gemm",
        "precision": "fp32",
        "size": "64",
        "value": 1.0,
        "low": None,
        "high": None,
        "unit": "FLOP/s",
        "n": 9,
    }
    return MicroResult(**(fields | changes))


def test_the_estimate_is_the_median_over_a_series_under_the_stop_rule():
    found = measured(micro.gemm("fp32", 64), [0.01] * 100)
    assert found.value == pytest.approx(2 * 64**3 / 0.01)
    assert found.n == LEAST_ROUNDS
    assert found.findings == ()


def test_a_series_that_does_not_settle_says_so():
    found = measured(micro.gemm("fp32", 64), [0.001, 0.005] * 400)
    assert [f.kind for f in found.findings] == [FindingKind.NOT_CONVERGED]
    assert found.low < found.value


def test_slow_probe_needs_few_repetitions_and_has_an_interval():
    """One repetition of 0.4 s warms up and five are timed: the wall time ends them, not the count."""
    found = measured(micro.gemm("fp32", 64), chain([0.4], [0.40, 0.41, 0.40, 0.39, 0.40]))
    assert found.n == LEAST_REPETITIONS
    assert found.value == pytest.approx(2 * 64**3 / 0.4)
    assert found.low < found.value < found.high


@dataclasses.dataclass
class Card:
    """A card with only two known times of a repetition: on the device, and by the wall clock."""

    bytes_per_s: float
    flops_per_s: dict[str | None, float]
    link_bytes_per_s: float = 12e9
    kernel_s: float = 4e-6
    issue_s: float = 6e-6
    wait_s: float = 2e-5
    spread: float = 0.003
    now: float = 0.0

    def now_s(self) -> float:
        return self.now

    def device_s(self, probe: probes.Probe) -> float:
        if probe.name == "gemm":
            return probe.work / self.flops_per_s[probe.precision]
        if probe.name == "device copy":
            return probe.work / self.bytes_per_s
        if probe.work is not None:
            return probe.work / self.link_bytes_per_s
        return self.kernel_s if probe.on_device else self.issue_s * probe.repeats

    def measure(self, probe: probes.Probe, budget: Budget) -> MicroResult:
        """Where events time the kernel, the cache is cleared before it and the host waits for the device after it."""
        rng = np.random.default_rng(0)
        kernel_s = self.device_s(probe)
        around_s = micro.CACHE_BYTES / self.bytes_per_s + self.wait_s if probe.on_device else 0.0

        def timer(_action: object) -> float:
            took = kernel_s * (1 + self.spread * abs(float(rng.standard_normal()))) + 5e-7 * float(
                rng.random()
            )
            self.now += took + around_s
            return took

        nothing = dataclasses.replace(probe, make=lambda _: lambda: None)
        return micro.measure_probe(nothing, CPU, budget, timer=timer, now_s=self.now_s)


class Accelerator(Hardware):
    is_cuda = True


H200 = Card(4.3e12, {"fp32": 51e12, "tf32": 348e12, "fp16": 640e12, "bf16": 680e12}, link_bytes_per_s=55e9)
T4 = Card(2.5e11, {"fp32": 4e12, "fp16": 25e12})
SLOW = Card(2.0e11, {"fp32": 2.5e12, "fp16": 5e12})


def other_probe(name):
    return next(each for each in micro.other_probes(own_memory=True) if each.name == name)


@pytest.mark.parametrize("budget", [QUICK, DEFAULT], ids=["quick", "default"])
@pytest.mark.parametrize("card", [H200, T4, SLOW], ids=["H200", "T4", "200 GB/s"])
def test_no_probe_takes_long_on_any_card(card, budget):
    """The kernel of a launch takes 4 us, and clearing before it 62 us to 1.3 ms; all end by wall time."""
    wanted = [micro.gemm(name, n) for name in card.flops_per_s for n in GEMM_SIZES[name]]
    wanted += micro.other_probes(own_memory=True)
    walls = {}

    def measure(probe: probes.Probe) -> MicroResult:
        began_s = card.now
        found = card.measure(probe, budget)
        walls[probe.name, probe.precision, probe.size] = card.now - began_s
        return found

    found = list(probes.one_by_one(wanted, measure))
    assert max(walls.values()) < max(0.75 + budget.micro_s, 0.2 + 6 * 0.5)
    assert sum(walls.values()) < 25 * (0.25 + budget.micro_s)
    kernel = next(r for r in found if r.name == "launch device")
    assert kernel.value == pytest.approx(card.kernel_s, rel=0.1)
    assert kernel.n >= LEAST_ROUNDS
    assert {r.precision for r in found} == {*card.flops_per_s, None}


def test_repetitions_of_a_noisy_short_kernel_are_limited_by_wall_time():
    """Half a second of its events would be 100,000 repetitions, and two minutes of clearing the cache."""
    card = dataclasses.replace(SLOW, spread=1.0)
    found = card.measure(other_probe("launch device"), DEFAULT)
    assert card.now - SLOW.now < 0.2 + 1.25 * DEFAULT.micro_s + 0.05
    assert [f.kind for f in found.findings] == [FindingKind.NOT_CONVERGED]


def test_gemm_size_expected_to_be_too_slow_is_skipped():
    """A card with 200 GB/s needs 1.8 s for 16384 at half precision, and 0.2 s for 8192."""
    wanted = [micro.gemm("fp16", n) for n in GEMM_SIZES["fp16"]]
    found = probes.one_by_one(wanted, lambda probe: SLOW.measure(probe, QUICK))
    assert [r.size for r in found] == ["4096", "8192"]
    found = probes.one_by_one(wanted, lambda probe: H200.measure(probe, QUICK))
    assert [r.size for r in found] == ["4096", "8192", "16384"]


def test_launch_time_is_the_total_divided_by_the_launch_count():
    found = measured(other_probe("launch wall"), repeat(1e-2))
    assert found.value == pytest.approx(1e-5)
    assert found.unit == "s"


def test_each_precision_is_probed_if_the_device_has_it(cpu, h100):
    def of(device, **options):
        return {p.precision for p in micro.gemm_probes(device, **options)}

    assert of(h100) == {"fp32", "tf32", "fp16", "bf16", "fp8", "int8"}
    assert of(h100, in_haste=True) == {"fp32", "tf32", "fp16", "bf16"}
    ampere = msgspec.structs.replace(h100, compute_capability=(8, 0))
    assert of(ampere) == {"fp32", "tf32", "fp16", "bf16", "int8"}
    assert of(cpu) == {"fp32", "bf16"}


def test_probes_run_for_real_on_the_cpu(cpu, monkeypatch):
    monkeypatch.setattr(micro, "CPU_GEMM_SIZES", (64,))
    monkeypatch.setattr(micro, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(probes, "MICRO_WARM_S", 0.0)
    budget = msgspec.structs.replace(QUICK, micro_s=0.01)
    found = list(micro.run_micro(CPU, cpu, budget, BLIND))
    assert [(r.name, r.precision) for r in found] == [
        ("gemm", "fp32"),
        ("gemm", "bf16"),
        ("device copy", None),
        ("launch wall", None),
    ]
    assert found[-1].size == "1000 launches"
    assert all(r.value > 0 for r in found)


def test_a_time_limit_and_a_small_memory_skip_probes(cpu):
    assert list(micro.run_micro(CPU, cpu, QUICK, BLIND, time_s=0.0)) == []
    tiny = msgspec.structs.replace(cpu, memory_bytes=1000)
    assert [r.name for r in micro.run_micro(CPU, tiny, QUICK, BLIND)] == ["launch wall"]


def test_a_probe_too_large_for_the_memory_is_halved_until_it_fits_and_states_its_size(h100):
    small = probes.MEMORY_SHARE * 8 * GIB
    card = [micro.device_copy(micro.COPY_BYTES), *micro.gemm_probes(h100)]
    found = list(probes.fitting(card, small))
    assert found[0].size == "1024 MiB"
    assert found[0].work == 2.0 * GIB
    assert [p.size for p in found if p.precision == "tf32"] == ["4096", "8192", "16384"]
    found = list(probes.fitting(micro.gemm_probes(h100), GIB // 2))
    assert [p.size for p in found if p.precision == "tf32"] == ["4096"]  # 16384 is reduced to 4096 too
    assert all(p.memory_bytes <= GIB // 2 for p in found)
    assert list(probes.fitting([micro.gemm("fp32", 4096), micro.device_copy(GIB)], 1000)) == []


def test_repetitions_and_telemetry_are_stored_with_the_figure():
    """The first drain discards the warm-up, when the clock is that of an idle card."""
    idle = TelemetrySample(t_s=0.0, sm_clock_hz=3e8, power_w=80.0)
    busy = [
        TelemetrySample(t_s=1.0, sm_clock_hz=1.8e9, power_w=600.0, clock_event_reasons=("sw_power_cap",)),
        TelemetrySample(t_s=1.1, sm_clock_hz=1.7e9, power_w=640.0, clock_event_reasons=()),
    ]
    drained = iter([[idle], busy])
    times = [0.011, 0.010, 0.009] * 200
    found = measured(micro.gemm("fp32", 64), times, samples=lambda: next(drained))
    assert (found.mean_power_w, found.sm_clock_min_hz) == (620.0, 1.7e9)
    assert found.clock_event_reasons == ("sw_power_cap",)
    assert len(found.times_s) == found.n + found.left_out
    assert set(found.times_s) == {0.011, 0.010, 0.009}
    assert found.work / sorted(found.times_s)[found.n // 2] == pytest.approx(found.value)


def test_the_repetitions_of_a_very_short_kernel_are_kept_in_part(monkeypatch):
    monkeypatch.setattr(probes, "MOST_TIMES", 7)
    found = measured(other_probe("launch wall"), repeat(1e-2))
    assert len(found.times_s) == 7 < found.n


def test_the_best_product_of_a_precision_is_stored_with_its_steps_and_marked_if_there_are_several():
    rows = [
        result(value=1.0),
        result(value=3.0, size="128"),
        result(value=9.0, precision="bf16"),
        result(name="device copy", value=99.0),
    ]
    assert best_gemm(rows) == {Precision.FP32: 3.0, Precision.AMP_BF16: 9.0, Precision.BF16: 9.0}
    assert best_products(rows) == {("fp32", "128")}


def test_peaks_come_from_the_datasheet_and_are_unknown_without_one(h100, cpu):
    assert peak_flops_per_s(h100, Precision.FP32) == pytest.approx(66.9e12, rel=0.02)
    assert peak_flops_per_s(h100, Precision.AMP_BF16) == pytest.approx(989e12, rel=0.02)
    assert peak_flops_per_s(cpu, Precision.FP32) is None
    assert datasheet_share(h100, result(precision="bf16", value=494.7e12)) == pytest.approx(0.5, rel=0.01)
    assert datasheet_share(h100, result(name="launch wall")) is None
    assert datasheet_share(DeviceProfile(backend="cpu"), result()) is None


@pytest.mark.parametrize(
    ("rate", "findings"), [(175e12, ()), (203e12, ()), (204e12, (FindingKind.IMPLAUSIBLE,))]
)
def test_a_card_that_clocks_beyond_its_datasheet_may_be_as_fast_as_its_own_highest_clock(
    rtx_4090, rate, findings
):
    """2520 MHz in the datasheet, which lists 165.2 TFLOP/s at bf16 for that clock; 3105 MHz from the driver."""
    found = checks.judge_micro(rtx_4090, result(precision="bf16", value=rate))
    assert tuple(f.kind for f in found.findings) == findings
    assert datasheet_share(rtx_4090, found) == pytest.approx(rate / 165.2e12)
    assert peak_flops_per_s(rtx_4090, Precision.AMP_BF16) == pytest.approx(165.2e12 * 3105 / 2520, rel=0.001)


@pytest.mark.parametrize("clock_hz", [None, 1500e6, 2520e6])
def test_a_card_that_stays_below_its_datasheet_clock_is_compared_with_the_datasheet(rtx_4090, clock_hz):
    slow = msgspec.structs.replace(rtx_4090, sm_clock_max_hz=clock_hz)
    assert peak_flops_per_s(slow, Precision.FP32) == pytest.approx(82.6e12, rel=0.001)
    assert checks.judge_micro(slow, result(value=83e12)).findings
    assert not checks.judge_micro(slow, result(value=82e12)).findings


def test_memory_does_not_boost_with_the_clock_of_the_cores(rtx_4090):
    fast = result(name="device copy", precision=None, value=1100e9)
    assert [f.kind for f in checks.judge_micro(rtx_4090, fast).findings] == [FindingKind.IMPLAUSIBLE]
