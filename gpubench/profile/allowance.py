"""Memory that a trace cannot see, fitted to measurements. Only this module reads memory_allowance.json.

Context and driver take a fixed amount, which depends on the class of card. Library workspaces, and the
allocator's rounding and fragmentation, grow with the allocated memory. ``tools/make.py`` writes the file.
"""

from __future__ import annotations

import math
from functools import cache

from gpubench.folders import data_json
from gpubench.interval import Interval
from gpubench.models import CardClass, CardMemory, DeviceProfile, GpuSpec
from gpubench.models.record import Record
from gpubench.specs import find_spec, load_specs
from gpubench.units import GIB, MIB

ALLOWANCE_FILE = "memory_allowance.json"
GDDR_SHARE = 15 / 16
"""Error correction leaves this share of GDDR memory: a 48 GiB L40S reports 45.0 GiB, a 16 GiB T4 15.0."""
HBM_SHARE = 0.985
"""HBM has separate bits for error correction: an H100 reports 79.6 of 80 GiB, an H200 140.4 of 141, a V100
15.8 of 16."""
TRACE_SHARE = 0.03
"""Real steps agree with the trace to within this share, according to torch's memory profiler."""


BLAS_BYTES = {CardClass.HBM: 32 * MIB, CardClass.GDDR: 8.125 * MIB, CardClass.OTHER: 32 * MIB}
"""Workspace that torch keeps for cuBLAS and counts as allocated: one per thread that multiplies matrices, so
two if there is a backward pass. Each takes 32 MiB on Hopper and AMD cards (128 on an MI300) and 8.1 on other
NVIDIA cards (aten/src/ATen/cuda/CublasHandlePool.cpp). The HBM class counts as Hopper."""


class ClassAllowance(Record, frozen=True, kw_only=True):
    """The memory added to a trace on one class of card.

    Attributes:
        overhead_bytes: Context, driver and the libraries' own memory, the same for every step.
        factor: Ratio of reserved memory to the trace's allocated memory.
        half_width: Half-width of the 95 % interval for a model outside the fit, in the logarithm of memory in
            use.
        half_width_within: The same for another batch size of a model in the fit.
        readings, models: Numbers of readings and models in the fit.
    """

    overhead_bytes: float
    factor: float
    half_width: float
    half_width_within: float
    readings: int
    models: int


class Ran(Record, frozen=True, kw_only=True):
    """A published step that ran on a card, so it fits there.

    Attributes:
        traced_bytes: Lower bound on the memory of the step's tensors.
    """

    gpu_key: str
    traced_bytes: float


class CompiledLoss(Record, frozen=True, kw_only=True):
    """The memory of a step with model and loss compiled together, relative to its eager trace.

    Attributes:
        share: Ratio of reserved memory to the allocated memory in the trace of the eager step.
        half_width: Half-width of the 95 % interval for a card without readings, in the logarithm; None if
            only one card was measured, because that does not show how cards differ.
        readings, cards: Numbers of readings and cards in the fit.
    """

    share: float
    half_width: float | None
    readings: int
    cards: int

    def of(self, traced_bytes: float) -> Interval:
        """Return the reserved memory of the compiled step, given the memory in its eager trace [B]."""
        likely = self.share * traced_bytes
        if self.half_width is None:
            return Interval(likely)
        return Interval(likely, likely / math.exp(self.half_width), likely * math.exp(self.half_width))


class Allowance(Record, frozen=True, kw_only=True):
    """The fit, by class of card, with its date.

    Attributes:
        convolving: For models with convolutions on other vendors' cards, because their convolution library
            takes extra memory. None without readings of such models; the card's class is then used.
        ran: Steps that ran on cards although, by this fit, they need more memory than the cards have.
        compiled_loss: For steps with a compiled loss, which gpubench does not run; None without readings.
    """

    fitted: str
    classes: dict[CardClass, ClassAllowance]
    convolving: ClassAllowance | None = None
    ran: tuple[Ran, ...] = ()
    compiled_loss: CompiledLoss | None = None

    def of(self, card_class: CardClass, *, convolves: bool) -> ClassAllowance:
        """Return the memory to add to a trace on a class of card, for a step with or without convolutions."""
        if card_class is CardClass.OTHER and convolves and self.convolving is not None:
            return self.convolving
        return self.classes[card_class]


@cache
def load_allowance() -> Allowance:
    """Read the shipped fit."""
    return data_json(ALLOWANCE_FILE, Allowance)


def device_bytes(allowance: ClassAllowance, allocated_bytes: float) -> float:
    """Return the memory in use on a device, given the memory of the tensors [B]."""
    return allowance.overhead_bytes + allowance.factor * allocated_bytes


def class_of(card: GpuSpec | DeviceProfile) -> CardClass:
    """Return the class of a card; if its memory type is unknown, a large memory is assumed to be HBM."""
    if not card.is_nvidia:
        return CardClass.OTHER
    memory_type = card.memory_type if isinstance(card, GpuSpec) else None
    if memory_type is None:
        return CardClass.HBM if (card.memory_bytes or 0) > 48 * GIB else CardClass.GDDR
    return CardClass.HBM if memory_type.startswith("HBM") else CardClass.GDDR


def card_of(spec: GpuSpec) -> CardMemory | None:
    """Return the memory of a card in the specification table; None if it is unknown."""
    if spec.memory_bytes is None:
        return None
    is_ecc_in_memory = (spec.memory_type or "").startswith(("GDDR", "LPDDR"))
    return CardMemory(
        listed_bytes=spec.memory_bytes,
        usable_bytes=(GDDR_SHARE if is_ecc_in_memory else HBM_SHARE) * spec.memory_bytes,
        card_class=class_of(spec),
        ran_bytes=_ran_bytes(spec),
    )


def _ran_bytes(spec: GpuSpec) -> float:
    """Return the tensor bytes of the largest step that ran on a card of this line with no more memory [B]."""
    steps = [(load_specs().get(ran.gpu_key), ran.traced_bytes) for ran in load_allowance().ran]
    of_line = [
        traced_bytes
        for card, traced_bytes in steps
        if card is not None
        and (card.vendor, card.line) == (spec.vendor, spec.line)
        and 0 < (card.memory_bytes or 0) <= (spec.memory_bytes or 0)
    ]
    return max(of_line, default=0.0)


def card_of_device(device: DeviceProfile) -> CardMemory | None:
    """Return the memory of a probed device as its driver reports it; None if it is unknown.

    The class comes from the device's row in the specification table if it has one.
    """
    if device.memory_bytes is None:
        return None
    spec = None if device.gpu_key is None else find_spec(device.gpu_key)
    return CardMemory(
        listed_bytes=device.memory_bytes,
        usable_bytes=device.memory_bytes,
        card_class=class_of(device if spec is None else spec),
        ran_bytes=0.0 if spec is None else _ran_bytes(spec),
    )
