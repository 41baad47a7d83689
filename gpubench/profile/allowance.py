"""Memory that a trace cannot see, fitted on measurements: the only reader of data/memory_allowance.json.

Context and driver take a fixed amount that differs with the class of card; the scratch space of the
libraries, the rounding of the allocator and the gaps that it leaves grow with what is allocated.
``tools/make.py`` writes the file.
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
"""Error correction leaves this share of GDDR memory: a 48 GiB L40S shows 45.0, a 16 GiB T4 15.0."""
HBM_SHARE = 0.985
"""HBM corrects errors in bits of its own: 79.6 of 80 GiB on an H100, 140.4 of 141 on an H200, 15.8 of 16 on a
V100."""
TRACE_SHARE = 0.03
"""Real steps agree with the trace to within this share, by the memory events of torch's profiler."""


BLAS_BYTES = {CardClass.HBM: 32 * MIB, CardClass.GDDR: 8.125 * MIB, CardClass.OTHER: 32 * MIB}
"""Workspace that torch keeps for cuBLAS, counted as allocated: one for each thread that multiplies matrices,
so two if there is a backward pass. 32 MiB on Hopper and AMD's cards (128 on an MI300), 8.1 on NVIDIA's others
(aten/src/ATen/cuda/CublasHandlePool.cpp); the HBM class is counted as Hopper."""


class ClassAllowance(Record, frozen=True, kw_only=True):
    """The memory added to a trace on one class of card.

    Attributes:
        overhead_bytes: Context, driver and the libraries' own memory, the same for every step.
        factor: Reserved memory over the allocated memory of the trace.
        half_width: Half-width of the 95 % interval for an unseen model, in the logarithm of memory in use.
        half_width_within: The same for another batch of a seen model.
        readings, models: Number of each behind the fit.
    """

    overhead_bytes: float
    factor: float
    half_width: float
    half_width_within: float
    readings: int
    models: int


class Ran(Record, frozen=True, kw_only=True):
    """A published step that ran on a card, and so fits there.

    Attributes:
        traced_bytes: Lower bound on the memory of its tensors.
    """

    gpu_key: str
    traced_bytes: float


class CompiledLoss(Record, frozen=True, kw_only=True):
    """The memory of a step whose loss is compiled with the model, relative to its eager trace.

    Attributes:
        share: Reserved memory over the allocated memory in the trace of the eager step.
        half_width: Half-width of the 95 % interval for a card without readings, in the logarithm; None if
            only one card was measured, which does not show how cards differ.
        readings, cards: Number of each behind the fit.
    """

    share: float
    half_width: float | None
    readings: int
    cards: int

    def of(self, traced_bytes: float) -> Interval:
        """Reserved memory of such a step, from the allocated memory in the trace of the eager one [B]."""
        likely = self.share * traced_bytes
        if self.half_width is None:
            return Interval(likely)
        return Interval(likely, likely / math.exp(self.half_width), likely * math.exp(self.half_width))


class Allowance(Record, frozen=True, kw_only=True):
    """The fit, by class of card, with its date.

    Attributes:
        convolving: For models with convolutions on other vendors' cards, whose convolution library takes
            extra memory. None if no such reading was fitted; then the class of the card is used.
        ran: Steps that ran on cards where the fit says that they do not fit.
        compiled_loss: For steps with a compiled loss, which gpubench does not run; None if no such reading
            was fitted.
    """

    fitted: str
    classes: dict[CardClass, ClassAllowance]
    convolving: ClassAllowance | None = None
    ran: tuple[Ran, ...] = ()
    compiled_loss: CompiledLoss | None = None

    def of(self, card_class: CardClass, *, convolves: bool) -> ClassAllowance:
        """The memory added to a step of such a model on a class of card."""
        if card_class is CardClass.OTHER and convolves and self.convolving is not None:
            return self.convolving
        return self.classes[card_class]


@cache
def load_allowance() -> Allowance:
    """Read the shipped fit."""
    return data_json(ALLOWANCE_FILE, Allowance)


def device_bytes(allowance: ClassAllowance, allocated_bytes: float) -> float:
    """Memory in use on a device, from the memory of the tensors [B]."""
    return allowance.overhead_bytes + allowance.factor * allocated_bytes


def class_of(card: GpuSpec | DeviceProfile) -> CardClass:
    """The class of a card; if its type of memory is not known, a large memory is assumed to be HBM."""
    if not card.is_nvidia:
        return CardClass.OTHER
    memory_type = card.memory_type if isinstance(card, GpuSpec) else None
    if memory_type is None:
        return CardClass.HBM if (card.memory_bytes or 0) > 48 * GIB else CardClass.GDDR
    return CardClass.HBM if memory_type.startswith("HBM") else CardClass.GDDR


def card_of(spec: GpuSpec) -> CardMemory | None:
    """The memory of a card of the specification table; None if it is unknown."""
    if spec.memory_bytes is None:
        return None
    corrected = (spec.memory_type or "").startswith(("GDDR", "LPDDR"))
    return CardMemory(
        listed_bytes=spec.memory_bytes,
        usable_bytes=(GDDR_SHARE if corrected else HBM_SHARE) * spec.memory_bytes,
        card_class=class_of(spec),
        ran_bytes=_ran_bytes(spec),
    )


def _ran_bytes(spec: GpuSpec) -> float:
    """Tensors of the largest step that ran on a card of the line with no more memory than this one [B]."""
    found = 0.0
    for ran in load_allowance().ran:
        other = load_specs().get(ran.gpu_key)
        if other is None or (other.vendor, other.line) != (spec.vendor, spec.line):
            continue
        if other.memory_bytes and spec.memory_bytes and other.memory_bytes <= spec.memory_bytes:
            found = max(found, ran.traced_bytes)
    return found


def card_of_device(device: DeviceProfile) -> CardMemory | None:
    """The memory of a probed device as its driver shows it; None if it is unknown.

    Its class is that of its row in the specification table.
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
