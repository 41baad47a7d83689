"""A step's memory (of its tensors, of torch's allocator, on the device), and whether it fits on a card."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from gpubench.interval import UNKNOWN_INTERVAL, Interval, flat
from gpubench.models.record import Record
from gpubench.units import GIB, MIB, format_bytes, format_number

MEMORY_VERSION = 2
"""Version of ``gpubench memory --json``."""


class CardClass(StrEnum):
    """Classes of cards with the same overhead of context, driver and libraries."""

    HBM = "hbm"
    GDDR = "gddr"
    OTHER = "other"


class Verdict(StrEnum):
    """Whether a step fits on a card."""

    FITS = "fits"
    MAY_FIT = "may fit"
    DOES_NOT_FIT = "does not fit"


class CardMemory(Record, frozen=True, kw_only=True):
    """The memory of one card.

    Attributes:
        listed_bytes: Nominal size, from its datasheet or its driver.
        usable_bytes: Smallest total that the driver reports for such a card: ECC takes 1/16 of GDDR memory.
        ran_bytes: Tensor bytes of the largest published step that ran on a card of the same product line with
            at most this card's memory.
    """

    listed_bytes: float
    usable_bytes: float
    card_class: CardClass
    ran_bytes: float = 0.0

    def verdict_of(self, device: Interval) -> Verdict:
        """Return whether a need fits: yes if its upper end fits, maybe if only its lower end does."""
        if device.high is not None and device.high <= self.usable_bytes:
            return Verdict.FITS
        may_fit = device.low is None or device.low <= self.usable_bytes
        return Verdict.MAY_FIT if may_fit else Verdict.DOES_NOT_FIT


class MemoryBasis(StrEnum):
    """The basis of a memory estimate.

    ``shape`` is the closed form for a published language model, ``formula`` an estimate for a step that could
    not be traced.
    """

    MEASURED = "measured"
    TRACED = "traced"
    SHAPE = "shape"
    FORMULA = "formula"


class MemoryParts(Record, frozen=True, kw_only=True):
    """Parts that add up to the upper end of ``MemoryNeed.device`` [B].

    Attributes:
        saved_bytes: Saved by the forward pass for the backward pass, including the prebuilt batches.
        transient_bytes: Alive only at the peak.
        workspace_bytes: CUDA context, driver, library workspaces, allocator rounding, and cached memory that
            a CUDA graph cannot use.
        margin_bytes: The distance from the expected value to the upper end.
    """

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    saved_bytes: float
    transient_bytes: float
    workspace_bytes: float
    margin_bytes: float

    @property
    def activations_bytes(self) -> float:
        """Saved and transient activations."""
        return self.saved_bytes + self.transient_bytes

    def flat(self) -> dict[str, float]:
        """Return the parts as in the JSON document."""
        return {"activations_bytes": self.activations_bytes} | {
            name: getattr(self, name) for name in self.__struct_fields__
        }


class MemoryNeed(Record, frozen=True, kw_only=True):
    """Peak memory of one step on one class of card; each figure has a 95 % interval.

    Attributes:
        allocated: Tensors, as counted by ``torch.cuda.max_memory_allocated`` [B].
        reserved: Held by torch's allocator, as counted by ``torch.cuda.max_memory_reserved`` [B].
        device: In use on the device, as nvidia-smi shows it if nothing else runs there [B].
        untraced: Why the step could not be traced; None if it was.
        not_linear: How the need was found if memory is not linear in the batch size; None if it is linear.
        as_published: Whether the upper ends were lowered to the card's memory, because a published step with
            at least as many tensor bytes ran on a card of the same product line that has no more memory.
        algorithm_bytes: Part of the upper ends that cuDNN may use for its fastest strict float32 convolution;
            0 for a measured peak, which already includes it [B].
        compiled_loss: Memory held by torch's allocator for the same step in a loop that also compiles the
            loss, if readings cover it; no verdict uses it [B].
    """

    allocated: Interval
    reserved: Interval
    device: Interval
    parts: MemoryParts
    basis: MemoryBasis
    untraced: str | None = None
    not_linear: str | None = None
    as_published: bool = False
    algorithm_bytes: float = 0.0
    compiled_loss: Interval | None = None

    @property
    def device_bytes(self) -> Interval:
        """Memory in use on the device, in whole bytes."""
        return self.device.each(round)

    @property
    def allocated_bytes(self) -> int | None:
        """Likely memory of tensors, in whole bytes; None if unknown."""
        return None if self.allocated.value is None else round(self.allocated.value)

    def flat(self) -> dict[str, Any]:
        """Return the figures as in JSON and files: ``x_bytes``, ``x_bytes_low``, ``x_bytes_high``."""
        return flat(
            {
                "allocated_bytes": self.allocated.each(round),
                "reserved_bytes": self.reserved.each(round),
                "device_bytes": self.device_bytes,
                "parts": {name: round(value) for name, value in self.parts.flat().items()},
                "basis": str(self.basis),
                "not_traced": self.untraced,
                "not_linear": self.not_linear,
                "as_published": self.as_published,
                "algorithm_bytes": round(self.algorithm_bytes),
                "compiled_loss_bytes": (self.compiled_loss or UNKNOWN_INTERVAL).each(round),
            }
        )


class MeasuredMemory(Record, frozen=True, kw_only=True):
    """Measured peak memory of one case on a GPU [B].

    Attributes:
        allocated_bytes: Tensors.
        reserved_bytes: Held by torch's allocator; None if it was not read.
        device_bytes: In use on a device without other users; None if the driver did not report it.
        card_class: Class of that device.
        same_card: Whether the device is the same model as the one in question.
        in_graph: Whether the step ran in a CUDA graph.
    """

    allocated_bytes: float
    reserved_bytes: float | None = None
    device_bytes: float | None = None
    card_class: CardClass | None = None
    same_card: bool = True
    in_graph: bool = False


class MemoryFit(Record, frozen=True, kw_only=True):
    """The answer to "does it fit": the interval of the need compared with the card's memory.

    Attributes:
        verdict: ``may fit`` if the lower end of the need fits and its upper end does not.
        largest_batch: The largest batch with an upper end that fits; 0 if none does.
        one_may_fit: Whether the lower end of batch 1 fits, but not its upper end.
        ran: Whether the case ran on this model of card; then it fits, whatever the upper end.
        where: Where it ran, in words.
        graph_high_bytes: Set if eager steps fit but a CUDA graph may not: the upper end of the memory in use
            in the graph [B]. ``need`` then describes eager steps.
        graph_largest_batch, eager_largest_batch: Set if a CUDA graph was requested but may not fit, and its
            largest batch differs from that of eager steps.
    """

    verdict: Verdict
    need: MemoryNeed
    card: CardMemory
    largest_batch: int
    one_may_fit: bool = False
    ran: bool = False
    where: str = "here"
    graph_high_bytes: float | None = None
    graph_largest_batch: int | None = None
    eager_largest_batch: int | None = None

    @property
    def in_eager_steps(self) -> bool:
        """Whether only eager steps are certain to fit: a CUDA graph may not."""
        return self.graph_high_bytes is not None

    @property
    def fits(self) -> bool:
        """Whether the case fits for certain."""
        return self.verdict is Verdict.FITS

    def text(self, *, sharded: bool = False) -> str:
        """Return the verdict with its figures: ``fits (needs 17.2 to 18.9 of 24 GiB)``.

        Args:
            sharded: Whether FSDP shards the job; the text then says so if the step fits.
        """
        if self.ran or self.fits:
            return f"{self.verdict_text(sharded=sharded)} ({self.needs_text()})"
        return f"{self.verdict} ({self.needs_text()}); {self.largest_text()}"

    def verdict_text(self, *, sharded: bool = False) -> str:
        """Return the verdict without the need: ``does not fit; largest batch 96``. Args as in ``text``."""
        if not (self.ran or self.fits):
            return f"{self.verdict}; {self.largest_text()}"
        fits = fits_text(sharded=sharded)
        if self.ran or self.graph_high_bytes is None:
            return fits
        return f"{fits} in eager steps, maybe not in a CUDA graph of {format_bytes(self.graph_high_bytes)}"

    def needs_text(self) -> str:
        """Return the figures, and whether the case ran: ``it ran here; needs 17.2 to 18.9 of 24 GiB``."""
        device = self.need.device
        assert device.low is not None
        assert device.high is not None
        words = f"needs {format_range(device.low, device.high, self.card.listed_bytes)}"
        if self.need.untraced is not None:
            words += f"; not traced: {self.need.untraced}"
        return f"it ran {self.where}; {words}" if self.ran else words

    def likely_text(self) -> str:
        """Return the expected value and its interval: ``needs 6.0 (4.8 to 6.8) GiB, has 24 GiB``."""
        unit, name, size = _unit_of(self.card.listed_bytes)
        return f"needs {self.need.device.over(unit).text()} {name}, has {size} {name}"

    def most_text(self) -> str:
        """Return the largest batch: that of eager steps if a graph may not fit."""
        return f"{self.largest_batch:,}{' in eager steps' if self.in_eager_steps else ''}"

    def largest_text(self) -> str:
        """Return the largest batch in words, separately for graph and eager steps if they differ."""
        graph, eager = self.graph_largest_batch, self.eager_largest_batch
        if graph is None or eager is None:
            if self.largest_batch:
                return f"largest batch {self.largest_batch:,}"
            return "a batch of 1 may fit" if self.one_may_fit else "not even a batch of 1 fits"
        in_graph = f"{graph:,} in a CUDA graph, " if graph else ""
        return f"largest batch {in_graph}{eager:,} in eager steps{'' if graph else ' alone'}"

    def after_a_run(self, batch_size: int, where: str = "here") -> MemoryFit:
        """Return the answer after a run at this batch on this model of card; ``where`` says where it ran."""
        return msgspec.structs.replace(
            self,
            verdict=Verdict.FITS,
            largest_batch=max(self.largest_batch, batch_size),
            ran=True,
            where=where,
            graph_largest_batch=None,
            eager_largest_batch=None,
        )

    def flat(self) -> dict[str, Any]:
        """Return the answer as in the JSON document, including the figures of the need."""
        return {
            "verdict": str(self.verdict),
            "fits": self.fits,
            "in_eager_steps": self.in_eager_steps,
            "graph_bytes_high": None if self.graph_high_bytes is None else round(self.graph_high_bytes),
            "largest_batch": self.largest_batch,
            "one_may_fit": self.one_may_fit,
            "graph_largest_batch": self.graph_largest_batch,
            "eager_largest_batch": self.eager_largest_batch,
            "memory_bytes": round(self.card.listed_bytes),
            "usable_bytes": round(self.card.usable_bytes),
        } | self.need.flat()


MAY_NOT_FIT = "may not fit in memory"
"""The caution for a job if only the lower end of its need fits."""


def fits_text(*, sharded: bool) -> str:
    """Return the verdict for a case that fits, with FSDP if the job is sharded."""
    return f"{Verdict.FITS} with FSDP" if sharded else str(Verdict.FITS)


def format_range(low_bytes: float, high_bytes: float, of_bytes: float) -> str:
    """Format a need and the memory available in one unit: ``17.2 to 18.9 of 24 GiB``.

    >>> format_range(17.2 * 2**30, 18.9 * 2**30, 24 * 2**30), format_range(1e12, 1.2e12, 2**34)
    ('17.2 to 18.9 of 24 GiB', '931 to 1,120 of 16 GiB')
    >>> format_range(17.2 * 2**30, 17.2 * 2**30, 24 * 2**30)
    '17.2 of 24 GiB'
    """
    unit, name, size = _unit_of(of_bytes)
    ends = dict.fromkeys((format_number(low_bytes / unit), format_number(high_bytes / unit)))
    return f"{' to '.join(ends)} of {size} {name}"


def _unit_of(bytes_: float) -> tuple[float, str, str]:
    # Return the unit for the memory of a card, the unit's name, and the amount in that unit: ``24``.
    unit, name = (GIB, "GiB") if bytes_ >= GIB else (MIB, "MiB")
    return unit, name, format_number(bytes_ / unit).removesuffix(".0").removesuffix(".00")
