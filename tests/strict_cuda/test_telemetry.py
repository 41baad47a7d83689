"""The driver's counters next to the rounds, on the strict fake, with NVML's answers from a recording."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from nvml.script import Fault, change, load_dump

from gpubench.errors import NoDeviceError
from gpubench.measure import launch as measuring
from gpubench.measure import worker
from gpubench.measure.messages import Setup
from gpubench.models import Reading, Status
from gpubench.probe.backend import Readings
from gpubench.probe.probe import probe
from strict_cuda.conftest import BRIEF, Line
from strict_cuda.install import H200, installed
from strict_cuda.machine import Machine
from strict_cuda.models import acting

LONG_KERNEL_S = 0.5
"""So long that the timed rounds take more than 2 s, the minimum for reporting energy."""


@pytest.fixture
def make_slow(make_gpu):
    """Return a function that opens a slow device, with a minute for the timed rounds."""
    budget = msgspec.structs.replace(BRIEF, timed_s=60.0)
    return lambda: make_gpu(Machine(cost=lambda name: LONG_KERNEL_S), budget)


def measured(gpu):
    done = gpu.measure("own", acting(lambda out: None))
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    return done.launch


class Counters(Readings):
    """Counters that follow the clock of the device: 500 W, and clocks reduced by power for a tenth of the time."""

    source = "nvml"
    fault = None

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def sample(self) -> Reading:
        return Reading(power_w=500.0)

    def energy_j(self) -> float:
        return 500.0 * self.machine.now_ns * 1e-9

    def held_clocks_s(self) -> dict[str, float]:
        return {"power": 0.1 * self.machine.now_ns * 1e-9}


def test_energy_and_reduced_clocks_are_those_of_the_timed_rounds(make_slow):
    gpu = make_slow()
    gpu.desk.telemetry = Counters(gpu.machine)
    launch = measured(gpu)
    region_s = launch.energy_region_s
    assert region_s == pytest.approx(sum(r.wall_s for r in launch.rounds), rel=0.1)
    assert launch.energy_source == "counter"
    assert launch.energy_j == pytest.approx(500 * region_s, rel=0.02)
    assert launch.held_clocks_s["power"] == pytest.approx(0.1 * region_s, rel=0.02)


def test_driver_counters_are_converted_to_si_units(make_slow, inside_nvml, monkeypatch):
    """mJ, mW, MHz and ns from the driver; 6000 J, 127.6 W, 1980 MHz, 1.5 s and two memory errors in the record."""
    monkeypatch.setattr(measuring, "INTERVAL_S", 0.001)
    calls, faults = load_dump("h200"), []
    for function, answers, arguments in (
        ("nvmlDeviceGetTotalEnergyConsumption", (2_000_000, 8_000_000), ()),
        (
            "nvmlDeviceGetViolationStatus",
            tuple({"referenceTime": 0, "violationTime": ns} for ns in (10**9, 25 * 10**8)),
            (0,),
        ),
        ("nvmlDeviceGetTotalEccErrors", (3, 5), (1, 0)),
    ):
        first, second = answers
        calls = change(calls, function, first, arguments=arguments)
        faults.append(Fault(function, after=1, values=[second], selector=arguments or None))
    inside_nvml(calls, faults=faults)
    launch = measured(make_slow())
    assert (launch.energy_j, launch.energy_source) == (6000.0, "counter")
    assert launch.held_clocks_s == {"power": 1.5}
    assert launch.memory_errors == 2
    sample = launch.telemetry[0]
    assert sample.power_w == pytest.approx(127.598)
    assert (sample.sm_clock_hz, sample.memory_clock_hz, sample.temperature_c) == (1980e6, 3201e6, 40.0)


def test_samples_use_the_clock_of_the_rounds(make_slow, monkeypatch):
    monkeypatch.setattr(measuring, "INTERVAL_S", 0.001)
    gpu = make_slow()
    began_s = gpu.machine.now_ns * 1e-9
    gpu.desk.telemetry = Counters(gpu.machine)
    launch = measured(gpu)
    before_s = gpu.machine.now_ns * 1e-9 - began_s
    assert launch.telemetry
    assert all(-before_s <= s.t_s <= before_s for s in launch.telemetry)


def test_a_device_other_than_the_probed_one_is_refused(inside_nvml):
    inside_nvml("h200")
    profile = next(d for d in probe().devices if d.backend == "cuda")
    other = SimpleNamespace(**vars(H200) | {"name": "NVIDIA A100-SXM4-80GB", "multi_processor_count": 108})
    with installed(Machine(), other), pytest.raises(NoDeviceError, match="disagree"):
        worker.open_context(Setup(device=profile, budget=BRIEF, seed=0), Line())


def test_a_job_may_draw_the_power_of_all_its_gpus(gpu):
    alone = gpu.desk.power_limit_w()
    assert alone == 700.0
    gpu.desk.team = SimpleNamespace(size=4)
    assert gpu.desk.power_limit_w() == 4 * alone
    gpu.desk.profile = msgspec.structs.replace(gpu.profile, power_limit_w=None)
    assert gpu.desk.power_limit_w() is None
