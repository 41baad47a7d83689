"""The child that lists OpenCL devices, as ``opencl`` starts it: a broken driver ends this process alone.

What it answers stands here too, so that it loads little else.
"""

from __future__ import annotations

import msgspec

from gpubench.parent import ParentChannel


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A device as its platform answers, in OpenCL's own units."""

    platform: str
    name: str
    vendor: str
    is_cpu: bool
    compute_units: int
    clock_mhz: int
    memory_bytes: int
    unified_memory: bool
    version: str
    driver: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Every device in the order of the OpenCL loader, and what kept others from being listed."""

    devices: tuple[Listed, ...] = ()
    problems: tuple[str, ...] = ()


def main() -> None:
    """List every device of every platform, in the order of the OpenCL loader."""
    ParentChannel().send(listing())


def listing() -> Listing:
    """Ask each platform for its devices; one that has none, or fails, is left out with its reason."""
    import pyopencl

    found: list[Listed] = []
    problems = []
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.Error as error:  # the loader's own word for "no driver"
        return Listing(problems=(str(error),))
    for platform in platforms:
        try:
            devices = platform.get_devices()
        except pyopencl.Error as error:
            problems.append(f"{platform.name.strip()}: {error}")
            continue
        found += [
            Listed(
                platform=platform.name.strip(),
                name=device.name.strip(),
                vendor=device.vendor.strip(),
                is_cpu=bool(device.type & pyopencl.device_type.CPU),
                compute_units=device.max_compute_units,
                clock_mhz=device.max_clock_frequency,
                memory_bytes=device.global_mem_size,
                unified_memory=bool(device.host_unified_memory),
                version=device.version.strip(),
                driver=device.driver_version.strip(),
            )
            for device in devices
        ]
    return Listing(devices=tuple(found), problems=tuple(problems))


if __name__ == "__main__":
    main()
