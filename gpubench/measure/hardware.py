"""What the measuring child needs of a torch device beyond tensors: waiting, memory, the allocator."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpubench.errors import NoDeviceError
from gpubench.measure.loop import Clock
from gpubench.measure.stopping import Heap
from gpubench.models import DeviceProfile, Finding, Identity
from gpubench.probe.backend import check_same_device, matched_by, told_by_torch


@dataclass(frozen=True)
class Hardware:
    """A torch device, and the calls that differ from one kind to another.

    The child sees only the GPUs that it is to use (the parent names them in CUDA_VISIBLE_DEVICES): one, or
    as many as the job has processes, and then each process has that of its rank.
    """

    device: torch.device

    @property
    def is_cuda(self) -> bool:
        """Whether graphs and device events are to be had."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether this is the device that references are computed on."""
        return self.device.type == "cpu"

    def clock(self) -> Clock:
        """Return the clock that waits for this device; a CPU needs no waiting for.

        Raises:
            NoDeviceError: If this torch cannot wait for it: the issuing of steps would be timed.
        """
        if self.is_cpu:
            return Clock()
        synchronize = self._call("synchronize")
        if synchronize is None:
            kind = self.device.type
            raise NoDeviceError(
                f"torch {torch.__version__} has no torch.{kind}.synchronize: {kind} cannot be timed"
            )
        return Clock(synchronize=synchronize)

    def _call(self, name: str) -> Callable[..., Any] | None:
        """Return what torch has under a name for this type of device, in ``torch.cuda``, ``torch.mps`` ...

        None where it has no such call. A back end of another package registers its own module there;
        ``torch.get_device_module``, which looks in the same place, is not in every torch from 2.4 on.
        """
        call: Callable[..., Any] | None = getattr(getattr(torch, self.device.type, None), name, None)
        return call

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call that; None where torch has none."""
        call = self._call(name)
        return None if call is None else call(*arguments)

    def reset_peak_memory(self) -> None:
        """Forget the largest allocation so far."""
        self._ask("reset_peak_memory_stats")

    def peak_memory_bytes(self) -> int | None:
        """Return the most memory that tensors took since the reset [B]; None where torch does not count."""
        return self._ask("max_memory_allocated")  # type: ignore[no-any-return]

    def peak_reserved_bytes(self) -> int | None:
        """Return the most memory that torch's allocator held since the reset [B]; None as above."""
        return self._ask("max_memory_reserved")  # type: ignore[no-any-return]

    def heap(self, scale: float | None = None) -> Heap:
        """Return what must settle before a step is steady: allocator figures and the gradient scale."""
        figures = self._ask("memory_stats") or {}
        return Heap(
            segments=figures.get("segment.all.current"), retries=figures.get("num_alloc_retries"), scale=scale
        )

    def memory_bytes(self) -> int | None:
        """Return the memory that torch sees [B]; None where there is no device of its own."""
        return getattr(self._ask("get_device_properties", self.device), "total_memory", None)

    def limit_memory(self, share: float) -> None:
        """Let this process take no more than a share of the device's memory; tensors alone count."""
        self._ask("set_per_process_memory_fraction", share)

    def release(self) -> None:
        """Hand everything back, so that the next case starts from the same memory.

        The collector runs first: a model, its gradients and its graphs hold on to each other.

        Raises:
            RuntimeError: As torch raises it when the device or its allocator is beyond use.
        """
        gc.collect()
        self.drop_workspaces()
        self.drop_cache()

    def drop_workspaces(self) -> None:
        """Take back what cuBLAS keeps for each stream that it ever computed on; graphs made before end here.

        It counts as allocated, 66 MiB a stream on an H200, and has no public name up to torch 2.13.
        """
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # noqa: SLF001
        if self.is_cuda and clear is not None:
            clear()

    def drop_cache(self) -> None:
        """Hand cached blocks back to the driver."""
        self._ask("empty_cache")


def open_hardware(profile: DeviceProfile, rank: int = 0) -> Hardware:
    """Return the torch device of a profile, its context made.

    Args:
        profile: The device as probed.
        rank: Its place among the GPUs that this process sees.

    Raises:
        NoDeviceError: If this torch cannot wait for such a device.
        RuntimeError: As torch raises it when the device cannot be used.
    """
    cuda = profile.is_torch_cuda
    hardware = Hardware(device=torch.device(f"cuda:{rank}" if cuda else profile.torch_type))
    if cuda:
        torch.cuda.init()
        torch.cuda.set_device(rank)
        torch.backends.cudnn.benchmark = True  # recorded in the environment; worth 3 to 16 % on an H200
    clock = hardware.clock()
    torch.zeros(1, device=hardware.device)
    clock.synchronize()
    return hardware


def check_device(profile: DeviceProfile, rank: int = 0) -> tuple[Finding, ...]:
    """Make sure that torch has opened the device that was probed; of another one, telemetry would lie.

    Of an AMD GPU by its place alone: torch and AMD's library may call it otherwise, and ROCm numbers it.

    Raises:
        NoDeviceError: If name, UUID, bus id or SM count differ.
    """
    if not profile.is_torch_cuda:
        return ()
    seen = torch.cuda.get_device_properties(rank)
    uuid, place = told_by_torch(seen)
    if not profile.is_nvidia:
        return check_same_device(profile, name=None, uuid=None, sm_count=None, pci_bus_id=place)
    return check_same_device(
        profile, name=seen.name, uuid=uuid, sm_count=seen.multi_processor_count, pci_bus_id=place
    )


def identity_of(profile: DeviceProfile) -> Identity | None:
    """Say by what a device that ``check_device`` let pass is known to be the one that was probed."""
    if not profile.is_nvidia:
        return None
    uuid, place = told_by_torch(torch.cuda.get_device_properties(0))
    return matched_by(profile, uuid=uuid, pci_bus_id=place)
