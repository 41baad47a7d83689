"""Micro-benchmarks on a scripted timer and for real on the CPU."""

from __future__ import annotations

import msgspec
import pytest
import torch

from gpubench.measure import checks, micro
from gpubench.measure.budget import QUICK
from gpubench.measure.hardware import Hardware
from gpubench.measure.peaks import best_gemm, best_products, datasheet_share, peak_flops_per_s
from gpubench.models import DeviceProfile, FindingKind, MicroResult, Precision, TelemetrySample
from gpubench.probe.no_readings import NoReadings
from gpubench.units import GIB

CPU = Hardware(device=torch.device("cpu"))
BLIND = NoReadings()


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


def test_a_product_counts_two_operations_a_multiplication_and_a_copy_both_ways():
    assert micro.gemm("fp32", 64).work == 2 * 64**3
    assert micro.device_copy(1024).work == 2 * 1024


def test_the_estimate_is_the_median_over_a_series_under_the_stop_rule():
    times = iter([1.0] * 100 + [100.0])
    probe = micro.gemm("fp32", 64)
    found = micro.measure_probe(probe, CPU, QUICK, timer=lambda _: next(times))
    assert found.value == pytest.approx(2 * 64**3)
    assert found.n >= micro.LEAST_REPETITIONS
    assert found.findings == ()


def test_a_series_that_does_not_settle_says_so():
    times = iter([0.01, 0.05] * 200)
    found = micro.measure_probe(micro.gemm("fp32", 64), CPU, QUICK, timer=lambda _: next(times))
    assert [f.kind for f in found.findings] == [FindingKind.NOT_CONVERGED]
    assert found.low < found.value


def test_launches_are_divided_by_their_number():
    found = micro.measure_probe(micro.launch(), CPU, QUICK, timer=lambda _: 1e-2)
    assert found.value == pytest.approx(1e-5)
    assert found.unit == "s"


def test_each_precision_is_probed_where_the_device_has_it(cpu, h100):
    strict = [p.precision for p in micro.gemm_probes(h100, strict=True)]
    others = {p.precision for p in micro.gemm_probes(h100, strict=False)}
    assert set(strict) == {"fp32"}
    assert others == {"tf32", "fp16", "bf16"}
    assert {p.precision for p in micro.gemm_probes(cpu, strict=False)} == {"bf16"}


def test_probes_run_for_real_on_the_cpu(cpu, monkeypatch):
    monkeypatch.setattr(micro, "CPU_GEMM_SIZES", (64,))
    monkeypatch.setattr(micro, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(micro, "WARM_S", 0.0)
    budget = msgspec.structs.replace(QUICK, micro_s=0.01)
    found = list(micro.run_micro(CPU, cpu, budget, BLIND, strict=True, others=True))
    assert [r.name for r in found] == ["gemm", "device copy", "launch wall"]
    assert found[-1].size == "1000 launches"
    assert all(r.value > 0 for r in found)


def test_the_cache_is_cleared_before_each_repetition_and_outside_its_events(monkeypatch):
    """On a scripted accelerator whose clearing would take a second and the work a millisecond."""
    log = []

    class Cache:
        def zero_(self):
            log.append("clear")

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")

        def elapsed_time(self, _):
            return 1.0

    class Accelerator(Hardware):
        is_cuda = True

    def empty(size, dtype, device):
        assert size == micro.CACHE_BYTES
        return Cache()

    probe = micro.gemm("fp32", 4)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    monkeypatch.setattr(torch, "empty", empty)
    timed = micro._timer(probe, Accelerator(device=torch.device("cpu")))
    assert timed(lambda: log.append("work")) == pytest.approx(1e-3)
    assert log == ["clear", "event", "work", "event", "wait"]


def test_a_strict_product_is_flagged_where_fp32_is_not_ieee(cpu, monkeypatch):
    monkeypatch.setattr(micro, "CPU_GEMM_SIZES", (64,))
    monkeypatch.setattr(micro, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(micro, "probe_errors", lambda device: {"matmul": 3e-4, "conv": 5e-7})
    budget = msgspec.structs.replace(QUICK, micro_s=0.01, target=10.0)
    found = {r.name: r for r in micro.run_micro(CPU, cpu, budget, BLIND, strict=True, others=True)}
    assert [(f.kind, f.value) for f in found["gemm"].findings] == [(FindingKind.TF32_IN_FORCE, 3e-4)]
    assert found["device copy"].findings == ()
    assert best_gemm(list(found.values())) == {}
    others = micro.run_micro(CPU, cpu, budget, BLIND, strict=False, others=False)
    assert [r.findings for r in others] == [()]


def test_a_time_limit_and_a_small_memory_leave_probes_out(cpu):
    assert list(micro.run_micro(CPU, cpu, QUICK, BLIND, strict=True, others=True, time_s=0.0)) == []
    tiny = msgspec.structs.replace(cpu, memory_bytes=1000)
    assert [r.name for r in micro.run_micro(CPU, tiny, QUICK, BLIND, strict=True, others=True)] == [
        "launch wall"
    ]


def test_a_probe_too_large_for_the_memory_is_halved_until_it_fits_and_says_its_size(h100):
    small = micro.MEMORY_SHARE * 8 * GIB
    card = [micro.device_copy(micro.COPY_BYTES), *micro.gemm_probes(h100, strict=False)]
    found = list(micro.fitting(card, small))
    assert found[0].size == "1024 MiB"
    assert found[0].work == 2.0 * GIB
    assert [p.size for p in found if p.precision == "tf32"] == ["4096", "8192", "16384"]
    found = list(micro.fitting(micro.gemm_probes(h100, strict=False), GIB // 2))
    assert [p.size for p in found if p.precision == "tf32"] == ["4096"]  # 16384 comes down to 4096 too
    assert all(p.memory_bytes <= GIB // 2 for p in found)
    assert list(micro.fitting([micro.gemm("fp32", 4096), micro.device_copy(GIB)], 1000)) == []


def test_repetitions_and_telemetry_stay_beside_the_figure():
    """The first drain throws the warm-up away: its clock is that of an idle card."""
    idle = TelemetrySample(t_s=0.0, sm_clock_hz=3e8, power_w=80.0)
    busy = [
        TelemetrySample(t_s=1.0, sm_clock_hz=1.8e9, power_w=600.0, clock_event_reasons=("sw_power_cap",)),
        TelemetrySample(t_s=1.1, sm_clock_hz=1.7e9, power_w=640.0, clock_event_reasons=()),
    ]
    drained = iter([[idle], busy])
    times = iter([0.011, 0.010, 0.009] * 200)
    probe = micro.gemm("fp32", 64)
    found = micro.measure_probe(probe, CPU, QUICK, timer=lambda _: next(times), samples=lambda: next(drained))
    assert (found.mean_power_w, found.sm_clock_min_hz) == (620.0, 1.7e9)
    assert found.clock_event_reasons == ("sw_power_cap",)
    assert len(found.times_s) == found.n + found.left_out
    assert set(found.times_s) == {0.011, 0.010, 0.009}
    assert found.work / sorted(found.times_s)[found.n // 2] == pytest.approx(found.value)


def test_the_repetitions_of_a_very_short_kernel_are_kept_in_part(monkeypatch):
    monkeypatch.setattr(micro, "MOST_TIMES", 7)
    found = micro.measure_probe(micro.launch(), CPU, QUICK, timer=lambda _: 1e-2)
    assert len(found.times_s) == 7 < found.n


def test_the_best_product_of_a_precision_stands_beside_its_steps():
    rows = [
        result(value=1.0),
        result(value=3.0, size="128"),
        result(value=9.0, precision="bf16"),
        result(name="device copy", value=99.0),
    ]
    assert best_gemm(rows) == {Precision.FP32: 3.0, Precision.AMP_BF16: 9.0}


def test_the_best_size_of_a_product_is_known_where_there_are_several():
    rows = [result(value=1.0), result(value=3.0, size="128"), result(value=9.0, precision="bf16")]
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
    """2520 MHz in the datasheet, for which it gives 165.2 TFLOP/s at bf16; 3105 MHz by the driver."""
    found = checks.judge_micro(rtx_4090, result(precision="bf16", value=rate))
    assert tuple(f.kind for f in found.findings) == findings
    assert datasheet_share(rtx_4090, found) == pytest.approx(rate / 165.2e12)
    assert peak_flops_per_s(rtx_4090, Precision.AMP_BF16) == pytest.approx(165.2e12 * 3105 / 2520, rel=0.001)


@pytest.mark.parametrize("clock_hz", [None, 1500e6, 2520e6])
def test_a_card_that_stays_below_the_clock_of_its_datasheet_is_held_to_the_datasheet(rtx_4090, clock_hz):
    slow = msgspec.structs.replace(rtx_4090, sm_clock_max_hz=clock_hz)
    assert peak_flops_per_s(slow, Precision.FP32) == pytest.approx(82.6e12, rel=0.001)
    assert checks.judge_micro(slow, result(value=83e12)).findings
    assert not checks.judge_micro(slow, result(value=82e12)).findings


def test_memory_does_not_boost_with_the_clock_of_the_cores(rtx_4090):
    fast = result(name="device copy", precision=None, value=1100e9)
    assert [f.kind for f in checks.judge_micro(rtx_4090, fast).findings] == [FindingKind.IMPLAUSIBLE]
