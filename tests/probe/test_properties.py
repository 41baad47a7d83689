"""Properties that hold for any input: odd system files, odd variables, any bits, any dump."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpubench.errors import MisuseError
from gpubench.models import DeviceProfile
from gpubench.probe import host
from gpubench.probe.backend import bus_id
from gpubench.probe.health import host_checks
from gpubench.probe.nvidia import module_version
from gpubench.probe.nvml import CLOCK_EVENTS, event_names
from gpubench.probe.select import visible_devices

BOX = [
    DeviceProfile(
        backend="cuda", name="A", index=n, uuid=f"GPU-{n}{n}{n}{n}0000-0000-0000-0000-00000000000{n}"
    )
    for n in range(4)
]
SYSTEM_FILES = (
    "proc/cpuinfo",
    "proc/1/cgroup",
    "proc/driver/nvidia/version",
    "sys/module/nvidia/version",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/memory.current",
    "sys/fs/cgroup/memory.stat",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
)
ANY_FILE = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"0 0",
            b"max 100000",
            b"100000 0",
            b"-1",
            b"9" * 30,
            b"flags : ",
            b"\xff\xfe",
            b"1e5 2",
            "٣".encode(),
        ]
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(ANY_FILE, min_size=len(SYSTEM_FILES), max_size=len(SYSTEM_FILES)))
def test_no_system_file_breaks_the_probe(tmp_path: Path, texts: list[bytes]) -> None:
    for name, text in zip(SYSTEM_FILES, texts, strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text)
    assert host.CpuBackend(root=tmp_path).profile().memory_bytes > 0
    assert host_checks(tmp_path)
    quota = host.cpu_quota(tmp_path)
    assert quota is None or quota > 0
    module_version(tmp_path)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(alphabet="0123456789,-GPUMIabcdef ", max_size=24),
        st.lists(st.sampled_from(["0", "1", "2", "3", "4", "-1", "", "GPU-1111", BOX[2].uuid, "GPU-0"])).map(
            ",".join
        ),
    )
)
def test_visible_devices_are_a_selection_without_repeats_or_an_error(text: str) -> None:
    chosen, refused = (), None
    try:
        chosen = visible_devices(BOX, {"CUDA_VISIBLE_DEVICES": text})
    except MisuseError as error:
        refused = str(error)
    assert refused is None or ("CUDA_VISIBLE_DEVICES" in refused and "\n" not in refused)
    places = [device.index for device in chosen]
    assert len(set(places)) == len(places)
    assert set(places) <= {0, 1, 2, 3}


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_every_clock_event_bit_is_named_once_and_idle_never(bits: int) -> None:
    names = event_names(bits)
    back = {name: bit for bit, name in CLOCK_EVENTS.items()}
    assert sum(back.get(n) or int(n, 16) for n in names) == bits & ~1
    assert len(set(names)) == len(names)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.sampled_from([4, 8]))
def test_a_bus_id_has_one_spelling(domain: int, bus: int, device: int, digits: int) -> None:
    spelled = f"{domain:0{digits}X}:{bus:02X}:{device:02X}.0"
    assert bus_id(spelled) == bus_id(spelled.lower()) == bus_id(bus_id(spelled))


@pytest.mark.parametrize(
    "text",
    ["", "N/A", "00:06.0", "0000:00:06.8", "0000:00:06.", "0000:0g:06.0", "0000:00:06.0\n", "0000::06.0"],
)
def test_an_invalid_bus_id_is_unknown(text: str) -> None:
    assert bus_id(text) is None


def test_cpu_quotas_of_both_cgroup_versions_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup/cpu"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("150000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert host.cpu_quota(tmp_path) == pytest.approx(1.5)
    (folder.parent / "cpu.max").write_text("50000 100000\n")
    assert host.cpu_quota(tmp_path) == pytest.approx(0.5)
