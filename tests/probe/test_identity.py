"""The identity of a device: gpubench and CUDA agree on it, and no stored file reveals it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile, FindingKind
from gpubench.probe import backend
from gpubench.probe.backend import check_same_device, child_environment, device_id, matched_by, storable

GPU = DeviceProfile(
    backend="cuda",
    name="NVIDIA H200",
    uuid="GPU-8a1b2c3d-0000-1111-2222-333344445555",
    pci_bus_id="00000000:00:06.0",
    sm_count=132,
)
BLANK = msgspec.structs.replace(GPU, uuid="GPU-00000000-0000-0000-0000-000000000000")
SAME = msgspec.structs.replace(GPU, uuid=GPU.uuid[4:], pci_bus_id="0000:00:06.0")
NOTHING = DeviceProfile(backend="cuda")


def test_the_same_device_passes_without_a_message() -> None:
    assert check_same_device(GPU, SAME) == ()
    assert check_same_device(GPU, NOTHING) == ()


@pytest.mark.parametrize(
    "different",
    [
        {"uuid": "8a1b2c3d-0000-1111-2222-333344445556"},
        {"name": "Tesla T4"},
        {"sm_count": 108},
        {"pci_bus_id": "0000:00:07.0"},
    ],
)
def test_another_device_stops_the_run(different: dict) -> None:
    with pytest.raises(NoDeviceError, match="from another GPU"):
        check_same_device(GPU, msgspec.structs.replace(SAME, **different))


def test_an_all_zero_uuid_is_joined_by_bus_id_and_reported() -> None:
    seen = msgspec.structs.replace(SAME, uuid="00000000-0000-0000-0000-000000000000")
    (finding,) = check_same_device(BLANK, seen)
    assert (finding.kind, finding.value) == (FindingKind.UUID_ALL_ZEROS, "0000:00:06.0")
    with pytest.raises(NoDeviceError, match="PCI bus id"):
        check_same_device(BLANK, msgspec.structs.replace(seen, pci_bus_id="0000:41:00.0"))
    (finding,) = check_same_device(BLANK, msgspec.structs.replace(seen, pci_bus_id=None))
    assert "SM count" in finding.value


@pytest.mark.parametrize(
    ("profile", "uuid", "place", "identity"),
    [
        (GPU, SAME.uuid, None, "UUID"),
        (GPU, None, SAME.pci_bus_id, "PCI bus id"),
        (GPU, None, None, "name and SM count only"),
        (BLANK, SAME.uuid, SAME.pci_bus_id, "PCI bus id"),
        (msgspec.structs.replace(GPU, uuid="MIG-1"), "MIG-1", SAME.pci_bus_id, "PCI bus id"),
        (msgspec.structs.replace(GPU, uuid=None), SAME.uuid, None, "name and SM count only"),
    ],
)
def test_a_device_is_identified_by_facts_that_both_sides_report(profile, uuid, place, identity) -> None:
    assert matched_by(profile, msgspec.structs.replace(NOTHING, uuid=uuid, pci_bus_id=place)) == identity


def test_a_stored_profile_holds_a_salted_hash_and_no_uuid(monkeypatch, tmp_path: Path) -> None:
    stored = storable(GPU)
    assert stored.uuid is None
    assert stored.device_id == device_id(GPU)
    assert stored.device_id != device_id(BLANK)
    assert len(stored.device_id) == 16
    backend._salt.cache_clear()
    assert device_id(GPU) == stored.device_id  # the salt was kept
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert device_id(GPU) != stored.device_id  # another user's
    (salt,) = tmp_path.rglob("device-salt")
    assert salt.stat().st_mode & 0o077 == 0


def test_a_child_sees_the_devices_of_its_job_and_no_other() -> None:
    blank = msgspec.structs.replace(BLANK, index=2)
    assert child_environment(GPU, blank)["CUDA_VISIBLE_DEVICES"] == f"{GPU.uuid},2"
    nowhere = msgspec.structs.replace(blank, index=None)
    assert child_environment(nowhere) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert child_environment(DeviceProfile(backend="cpu")) == {}


def test_the_device_id_is_unknown_without_a_writable_data_folder(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert device_id(GPU) is None
