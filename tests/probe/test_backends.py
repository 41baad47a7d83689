"""The contract of every backend, gpubench's own and those of other packages."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any

import msgspec
import pytest

from gpubench.errors import MisuseError
from gpubench.models import DeviceProfile, Reading
from gpubench.probe import host
from gpubench.probe.backend import BackendReport, Readings
from gpubench.probe.probe import load_backends, open_telemetry, probe
from gpubench.probe.select import select_device


class _Outside:
    """A backend that another package could provide."""

    name = "xpu"

    def devices(self) -> BackendReport:
        return BackendReport(
            devices=(DeviceProfile(backend="xpu", name="Intel Max 1550", index=0),), states=(None,)
        )

    def open_readings(self, device: DeviceProfile) -> Readings:
        return Readings()


OUTSIDE = _Outside()
XPU = EntryPoint("xpu", f"{__name__}:OUTSIDE", "gpubench.backends")


class BackendContract:
    """Subclass this for a backend, and provide a report of its devices."""

    name: str

    @pytest.fixture
    def report(self, request: pytest.FixtureRequest) -> BackendReport:
        raise NotImplementedError

    def test_backend_devices_carry_its_name(self, report: BackendReport) -> None:
        assert {d.backend for d in report.devices} == {self.name}
        assert len(report.states) == len(report.devices)

    def test_a_reason_is_given_only_for_unknown_values(self, report: BackendReport) -> None:
        for device in report.devices:
            unknown = {f for f in device.__struct_fields__ if getattr(device, f) is None}
            assert set(device.unavailable) <= unknown

    def test_backend_report_survives_a_json_round_trip(self, report: BackendReport) -> None:
        for device in report.devices:
            assert msgspec.json.decode(msgspec.json.encode(device), type=DeviceProfile) == device
        json.loads(msgspec.json.encode(report))

    def test_backend_readings_open_sample_and_close(self, report: BackendReport) -> None:
        for device in report.devices:
            with load_backends([XPU]).found[self.name].open_readings(device) as line:
                assert isinstance(line.sample(), Reading)
                assert line.energy_j() is None or line.energy_j() > 0
                assert line.source


class TestNvidia(BackendContract):
    name = "cuda"

    @pytest.fixture
    def report(self, inside_nvml) -> BackendReport:
        inside_nvml(["h200", "t4", "gb10"])
        return load_backends().found[self.name].devices()


class TestAmd(BackendContract):
    name = "rocm"

    @pytest.fixture
    def report(self, monkeypatch) -> BackendReport:
        from test_amd import MI300X, XTX, Library

        from gpubench.probe import amd

        monkeypatch.setattr(amd, "open_library", lambda: Library(MI300X, XTX))
        return amd.BACKEND.devices()


class TestApple(BackendContract):
    name = "mps"

    @pytest.fixture
    def report(self, monkeypatch) -> BackendReport:
        import platform

        monkeypatch.setattr(platform, "system", lambda: "Darwin")
        monkeypatch.setattr(platform, "machine", lambda: "arm64")
        return host.APPLE.devices()


class TestOpenCl(BackendContract):
    name = "opencl"

    @pytest.fixture
    def report(self, monkeypatch) -> BackendReport:
        from test_opencl import ARC, RADEON

        from gpubench.probe import opencl

        monkeypatch.setattr(opencl, "installed", lambda: True)
        monkeypatch.setattr(opencl, "may_have_gpus", lambda: True)
        monkeypatch.setattr(opencl, "ask_listing", lambda: opencl.report([ARC, RADEON], []))
        return opencl.BACKEND.devices()


class TestCpu(BackendContract):
    name = "cpu"

    @pytest.fixture
    def report(self) -> BackendReport:
        return host.CPU.devices()


class TestOutside(BackendContract):
    name = "xpu"

    @pytest.fixture
    def report(self) -> BackendReport:
        return OUTSIDE.devices()


def test_every_backend_has_a_contract() -> None:
    tested = {c.name for c in BackendContract.__subclasses__()}
    assert set(load_backends([XPU]).found) == tested


class TestPluginBackends:
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch) -> None:
        self.points: list[Any] = [XPU]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: self.points)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def test_plug_in_backend_devices_can_be_listed_selected_and_sampled(self) -> None:
        assert "xpu" in {d.backend for d in probe().devices}
        device, _ = select_device("xpu")
        assert device.name == "Intel Max 1550"
        with open_telemetry(device) as line:
            assert line.source == "none"

    def test_broken_backend_is_reported_and_the_others_still_load(self) -> None:
        self.points = [EntryPoint("xpu", "no_such_module:BACKEND", "gpubench.backends")]
        report = probe()
        assert report.devices[-1].backend == "cpu"
        assert any("backend xpu" in p.line() for p in report.problems)

    def test_backend_without_the_required_interface_is_reported(self) -> None:
        self.points = [EntryPoint("xpu", "json:dumps", "gpubench.backends")]
        assert "has no devices()" in load_backends().problems[0].line()

    @pytest.mark.parametrize("name", ["cuda", "cpu"])
    def test_a_backend_name_that_is_taken_is_an_error(self, name: str) -> None:
        self.points = [EntryPoint(name, f"{__name__}:OUTSIDE", "gpubench.backends")]
        with pytest.raises(MisuseError, match="two backends"):
            load_backends()
