"""Readings of an AMD GPU: the real ``amdsmi`` package on a fake of its C library."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpubench.models import Reading
from gpubench.probe.amd import AmdBackend

_SPEC = importlib.util.find_spec("amdsmi")
pytestmark = [
    pytest.mark.skipif(_SPEC is None, reason="amdsmi is not installed"),
    pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler: the stand-in cannot be built"),
]

ANSWERS = r"""
#include <stdint.h>
#include <string.h>
static int status = 2;
static char which[64] = "";
void stand_in_refuse(const char *name, int with) { strncpy(which, name, 63); status = with; }
#define ASKED(name) if (!strcmp(which, name) || !strcmp(which, "*")) return status
typedef void *handle;
int amdsmi_init(uint64_t flags) { ASKED("init"); (void)flags; return 0; }
int amdsmi_shut_down(void) { return 0; }
int amdsmi_get_socket_handles(uint32_t *count, handle *h) {
    ASKED("handle"); if (h) *h = (handle)0x1; *count = 1; return 0;
}
int amdsmi_get_processor_handles(handle socket, uint32_t *count, handle *h) {
    if (h) *h = (handle)0x1; *count = 1; return 0;
}
int amdsmi_get_gpu_device_bdf(handle h, uint64_t *bdf) {
    *bdf = 2ull << 16 | 0x0c << 8; return 0;  /* function 3 bits, device 5, bus 8, domain 48 */
}
struct power { uint64_t socket; uint32_t current, average; uint64_t volts[3]; uint32_t limit; char pad[4]; uint64_t r[18]; };
int amdsmi_get_power_info(handle h, struct power *p) {
    ASKED("power"); memset(p, 0, sizeof *p); p->socket = 512; p->current = 512; p->average = 0xffff; return 0;
}
int amdsmi_get_energy_count(handle h, uint64_t *count, float *step, uint64_t *time) {
    ASKED("energy"); *count = 1000000; *step = 15.3f; *time = 1; return 0;
}
struct clock { uint32_t now, least, most; unsigned char locked, deep, pad[2]; uint32_t r[4]; };
int amdsmi_get_clock_info(handle h, uint32_t type, struct clock *c) {
    ASKED("clock"); memset(c, 0, sizeof *c); c->now = type == 4 ? 1300 : 2100; return 0;
}
int amdsmi_get_temp_metric(handle h, uint32_t sensor, uint32_t metric, int64_t *t) {
    ASKED("temperature"); if (sensor == 0) return 2; *t = 63; return 0;
}
struct usage { uint32_t gfx, umc, mm, r[13]; };
int amdsmi_get_gpu_activity(handle h, struct usage *u) { ASKED("activity"); memset(u, 0, sizeof *u); u->gfx = 98; return 0; }
int amdsmi_get_gpu_memory_usage(handle h, uint32_t type, uint64_t *used) { ASKED("memory"); *used = 9ull << 30; return 0; }
struct caps { uint64_t now, usual, dpm, least, most, r[3]; };
int amdsmi_get_power_cap_info(handle h, uint32_t sensor, struct caps *c) {
    ASKED("caps"); memset(c, 0, sizeof *c); c->now = 700000000; c->usual = c->most = 750000000; return 0;
}
struct asic { char name[256]; char rest[4096]; };
int amdsmi_get_gpu_asic_info(handle h, struct asic *a) {
    ASKED("asic"); memset(a, 0, ASIC); strcpy(a->name, "AMD Instinct MI300X"); return 0;
}
int amdsmi_get_gpu_memory_total(handle h, uint32_t type, uint64_t *total) { ASKED("total"); *total = 192ull << 30; return 0; }
int amdsmi_get_gpu_driver_info(handle h, char *version) {
    ASKED("driver"); memset(version, 0, 768); strcpy(version, "6.12.12"); return 0;
}
"""
"""The answers of a working MI300X, in the structs of the package's own interface."""
ASIC = 256 * 3 + 4 + 4 + 8 + 4 + 4 + 4 + 4 + 8 + 4 + 21 * 4
"""Size of that struct in the package's interface [B]."""
PID, VRAM = 256, 256 + 8 + 8 + (2 * 8 + 12 * 4) + 2 * 8
"""Offsets of the process id and of its VRAM: name, id, total, use of two engines and of two other memories come first."""
PROCESSES = r"""
int amdsmi_get_gpu_process_list(handle h, uint32_t *count, char *list) {
    ASKED("processes"); memset(list, 0, %(size)d); memcpy(list, "train", 6);
    *(uint32_t *)(list + %(pid)d) = 4242; *(uint64_t *)(list + %(vram)d) = 8ull << 30; *count = 1; return 0;
}
"""


def _interface() -> str:
    assert _SPEC is not None
    assert _SPEC.origin is not None
    return Path(_SPEC.origin).with_name("amdsmi_wrapper.py").read_text()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C library: every function that the package looks up, most of them not supported."""
    folder = tmp_path_factory.mktemp("rocm")
    (folder / "lib").mkdir()
    names = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", _interface()))
    processes = PROCESSES % {"size": PID + 16, "pid": PID, "vram": VRAM}
    made = set(re.findall(r"^int (\w+)\(", ANSWERS + processes, re.MULTILINE))
    rest = "".join(f"int {name}() {{ return 2; }}\n" for name in sorted(names - made))
    source = folder / "amd_smi.c"
    source.write_text(f"#define ASIC {ASIC}\n" + ANSWERS + processes + rest)
    target = folder / "lib" / "libamd_smi.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", target, source], check=True)
    return folder


@pytest.fixture
def refuse(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``refuse(call, status)``: that call returns this status from now on; initially all calls succeed."""
    monkeypatch.setenv("ROCM_PATH", str(library))
    monkeypatch.delenv("ROCM_HOME", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "amdsmi"]:
        monkeypatch.delitem(sys.modules, name)
    loaded = ctypes.CDLL(str(library / "lib" / "libamd_smi.so"))

    def refuse(call: str, status: int = 2) -> None:
        loaded.stand_in_refuse(call.encode(), status)

    refuse("")
    yield refuse
    refuse("")
    for name in [name for name in sys.modules if name.split(".")[0] == "amdsmi"]:
        del sys.modules[name]


@pytest.fixture
def opened(refuse: Callable[..., None]):
    backend = AmdBackend()
    (gpu,) = backend.devices().devices
    with backend.open_readings(gpu) as line:
        yield line


def test_a_reading_has_the_values_of_the_library(opened) -> None:
    assert opened.source == "amdsmi"
    assert opened.sample() == Reading(
        sm_clock_hz=2.1e9,
        memory_clock_hz=1.3e9,
        power_w=512.0,
        temperature_c=63.0,
        utilization=0.98,
        memory_used_bytes=9 << 30,
    )
    assert opened.energy_j() == pytest.approx(15.3)  # a million steps of 15.3 µJ
    assert opened.compute_pids() == (4242,)


def test_a_card_is_described_through_the_library(refuse) -> None:
    (gpu,) = AmdBackend().devices().devices
    assert (gpu.name, gpu.gpu_key, gpu.memory_bytes) == ("AMD Instinct MI300X", "amd-mi300x-192gb", 192 << 30)
    assert gpu.driver_version == "6.12.12"
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (700.0, 750.0)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("power", "power_w"),
        ("clock", "sm_clock_hz"),
        ("temperature", "temperature_c"),
        ("activity", "utilization"),
        ("memory", "memory_used_bytes"),
    ],
)
def test_only_values_that_the_library_refuses_are_unknown_with_their_reason(
    opened, refuse, call, field
) -> None:
    whole = opened.sample()
    refuse(call)
    told = opened.sample()
    assert getattr(told, field) is None
    assert "AMDSMI_STATUS" in opened.refused[field]
    kept = {"power_w", "temperature_c", "utilization", "memory_used_bytes"} - {field}
    assert all(getattr(told, name) == getattr(whole, name) for name in kept)
    refuse("")
    assert opened.sample() == whole
    assert field not in opened.refused


def test_energy_and_processes_that_are_refused_are_unknown(opened, refuse) -> None:
    refuse("*", 10)
    assert opened.energy_j() is None
    assert "AMDSMI_STATUS_NO_PERM" in opened.refused["energy_j"]
    assert opened.compute_pids() is None


@pytest.mark.parametrize("call", ["init", "handle"])
def test_a_library_without_its_driver_counts_as_missing(tmp_path: Path, refuse, call: str) -> None:
    refuse(call, 34)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    report = AmdBackend(root=tmp_path).devices()
    assert report.devices == ()
    assert "amdsmi" in report.problems[0].fix


def test_a_package_without_its_library_prints_nothing(tmp_path: Path) -> None:
    code = "from gpubench.probe.amd import open_library; print(open_library())"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ROCM")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables | {"ROCM_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "None\n"
