"""A device: what it is, and what it was doing while it worked."""

from __future__ import annotations

from gpubench.models.record import Record


class DeviceProfile(Record, frozen=True, kw_only=True):
    """What a device is, as its driver answers. A refused field is None; ``unavailable`` says why.

    ``uuid`` is shown by ``probe`` alone. A stored run holds ``device_id``, a salted hash, instead.

    Attributes:
        index: Place in the driver's order (PCI order), as ``probe`` lists it.
        core_count: Physical cores of a CPU that this process may use.
        unified_memory: The device shares the machine's memory; ``memory_bytes`` is then the machine's.
        l2_bytes: From the specification table: drivers do not report it.
        tensor_core_precisions: Formats that the tensor cores take; on a CPU, the reduced formats it has
            instructions for ("bf16", "fp16", "int8").
        pcie_generation, pcie_width: The most that card and slot allow together.
    """

    backend: str
    vendor: str | None = None
    name: str | None = None
    gpu_key: str | None = None
    uuid: str | None = None
    device_id: str | None = None
    index: int | None = None
    pci_bus_id: str | None = None
    architecture: str | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    cuda_core_count: int | None = None
    core_count: int | None = None
    memory_bytes: int | None = None
    unified_memory: bool | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    l2_bytes: int | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_max_hz: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlink_count: int | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    ecc_enabled: bool | None = None
    mig_enabled: bool | None = None
    virtualization: str | None = None
    tensor_core_precisions: tuple[str, ...] | None = None
    unavailable: dict[str, str] = {}

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the host's processor itself."""
        return self.backend == "cpu"

    @property
    def runs_steps(self) -> bool:
        """Whether a framework can train on it; through OpenCL only micro-benchmarks run."""
        return self.backend != "opencl"


class Reading(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One look at a working device; in a file what is unknown is left out, because there are thousands.

    Idle is no reason for a lower clock: it stands apart from the reasons.
    """

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    memory_used_bytes: int | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    idle: bool | None = None


class TelemetrySample(Reading, frozen=True, kw_only=True, omit_defaults=True):
    """A reading with its time, which counts from the first timed round, below 0 in warm-up [s]."""

    t_s: float
