"""The child that lists OpenCL devices, as ``opencl`` starts it: a broken driver ends this process alone."""

from __future__ import annotations

from typing import Any

from gpubench.children import ParentChannel
from gpubench.probe.opencl_listing import Listed, Listing


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
        found += [_listed(platform.name.strip(), device) for device in devices]
    return Listing(devices=tuple(found), problems=tuple(problems))


def _listed(platform: str, device: Any) -> Listed:
    return Listed(
        platform=platform,
        name=device.name.strip(),
        vendor=device.vendor.strip(),
        is_cpu=bool(device.type & _type("CPU")),
        compute_units=device.max_compute_units,
        clock_mhz=device.max_clock_frequency,
        memory_bytes=device.global_mem_size,
        unified_memory=bool(device.host_unified_memory),
        version=device.version.strip(),
        driver=device.driver_version.strip(),
    )


def _type(name: str) -> int:
    import pyopencl

    return int(getattr(pyopencl.device_type, name))


if __name__ == "__main__":
    main()
