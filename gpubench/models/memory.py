"""How much memory a step needs, in three figures that are never mixed, and whether a card has it."""

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
        listed_bytes: As its data sheet, or its driver, names it.
        usable_bytes: What the driver shows of it at least: the error correction of GDDR memory takes 1/16.
        ran_bytes: Tensors of the largest published step that ran on a card of its line with no more memory.
    """

    listed_bytes: float
    usable_bytes: float
    card_class: CardClass
    ran_bytes: float = 0.0

    def verdict_of(self, device: Interval) -> Verdict:
        """Say whether a need fits: its upper end decides, and the lower end whether it may."""
        if device.high is not None and device.high <= self.usable_bytes:
            return Verdict.FITS
        may_fit = device.low is None or device.low <= self.usable_bytes
        return Verdict.MAY_FIT if may_fit else Verdict.DOES_NOT_FIT


class MemoryBasis(StrEnum):
    """What an estimate of memory rests on; ``shape`` is the closed form of a published language model."""

    MEASURED = "measured"
    TRACED = "traced"
    SHAPE = "shape"
    FORMULA = "formula"


class MemoryParts(Record, frozen=True, kw_only=True):
    """What the upper end of the device's figure is made of [B]; the parts add up to it.

    Attributes:
        saved_bytes: Kept by the forward pass for the backward pass, the prebuilt batches included.
        transient_bytes: Also alive, but only at the peak.
        workspace_bytes: CUDA context, driver, scratch space of the libraries, rounding of the allocator, and
            what a CUDA graph finds held and of no use to it.
        margin_bytes: From the likely figure to the upper end.
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
        """Saved ones and transients."""
        return self.saved_bytes + self.transient_bytes

    def flat(self) -> dict[str, float]:
        """Return the parts as the JSON shows them."""
        return {"activations_bytes": self.activations_bytes} | {
            name: getattr(self, name) for name in self.__struct_fields__
        }


class MemoryNeed(Record, frozen=True, kw_only=True):
    """Peak memory of one step on one class of card, each figure with its interval of 95 %.

    Attributes:
        allocated: Of tensors, as ``torch.cuda.max_memory_allocated`` counts [B].
        reserved: That the allocator of torch holds, as ``torch.cuda.max_memory_reserved`` counts [B].
        device: In use on the device, as nvidia-smi shows it for a card with nothing else on it [B].
        untraced: Why the step could not be traced; None if it was.
        not_linear: How the figure was found where memory does not grow in proportion to the batch; None
            if it does.
        as_published: Whether the upper ends are what the card has: a published step with as many tensors ran
            on one of its line with no more memory.
        algorithm_bytes: What of the upper ends cuDNN may take for its fastest convolution in strict float32;
            0 of a measured peak, which holds what it took [B].
        compiled_loss: What torch's allocator holds of the same step by a loop that compiles its loss as well,
            where readings cover it; no verdict uses it [B].
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

    def flat(self) -> dict[str, Any]:
        """Return the figures as JSON and files hold them: ``x_bytes``, ``x_bytes_low``, ``x_bytes_high``."""
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
    """What one case was measured to take on a GPU, at its peak [B].

    Attributes:
        allocated_bytes: Of tensors.
        reserved_bytes: Held by the allocator of torch; None if it was not read.
        device_bytes: In use on a device without other users; None if the driver did not report it.
        card_class: Of that device.
        same_card: Whether it is of the very kind that is asked about.
        in_graph: Whether the step ran in a CUDA graph.
    """

    allocated_bytes: float
    reserved_bytes: float | None = None
    device_bytes: float | None = None
    card_class: CardClass | None = None
    same_card: bool = True
    in_graph: bool = False


class MemoryFit(Record, frozen=True, kw_only=True):
    """The answer to "does it fit": the upper end of the need against what the card has.

    Attributes:
        verdict: It may fit where the lower end does and the upper end does not.
        largest_batch: The largest batch with an upper end that fits; 0 if none does.
        one_may_fit: Whether the lower end of a batch of 1 fits where no upper end does.
        ran: Whether the case ran on this kind of card: then it fits, whatever the upper end.
        by_reference: Whether the run that did is one that the package ships, none of this user's.
        graph_high_bytes: Upper end of the memory in use in a CUDA graph, where it surely fits in eager steps
            alone, whose need it is; None elsewhere [B].
        graph_largest_batch, eager_largest_batch: The largest in a CUDA graph and in eager steps, where a
            graph was asked for, does not surely hold the case, and the two differ; None elsewhere.
    """

    verdict: Verdict
    need: MemoryNeed
    card: CardMemory
    largest_batch: int
    one_may_fit: bool = False
    ran: bool = False
    by_reference: bool = False
    graph_high_bytes: float | None = None
    graph_largest_batch: int | None = None
    eager_largest_batch: int | None = None

    @property
    def in_eager_steps(self) -> bool:
        """Whether it fits in eager steps only, and may not fit in a CUDA graph."""
        return self.graph_high_bytes is not None

    @property
    def fits(self) -> bool:
        """Whether the upper end fits."""
        return self.verdict is Verdict.FITS

    def text(self, *, sharded: bool = False) -> str:
        """Return the verdict with its figures: ``fits (needs 17.2 to 18.9 of 24 GiB)``.

        Args:
            sharded: Whether the job is shared out by FSDP, which is then said where it fits.
        """
        return f"{self.verdict_text(sharded=sharded)} ({self.needs_text()})"

    def verdict_text(self, *, sharded: bool = False) -> str:
        """Return the verdict without its figures: ``does not fit; largest batch 96``. Args as ``text``."""
        if not (self.ran or self.fits):
            return f"{self.verdict}; {self.largest_text()}"
        fits, graph = fits_text(sharded=sharded), None if self.ran else self.graph_high_bytes
        if graph is None:
            return fits
        return f"{fits} in eager steps, maybe not in a CUDA graph of {format_bytes(graph)}"

    def needs_text(self) -> str:
        """Return the figures, and whether it was run: ``it ran here; needs 17.2 to 18.9 of 24 GiB``."""
        where = "in a reference run" if self.by_reference else "here"
        return f"it ran {where}; {self.needs()}" if self.ran else self.needs()

    def likely_text(self) -> str:
        """Return the likely figure and its interval: ``needs 6.0 (4.8 to 6.8) of 24 GiB``."""
        unit, of = _of(self.card.listed_bytes)
        return f"needs {self.need.device.over(unit).text()} {of}"

    def most_text(self) -> str:
        """Return the largest batch, which is that of eager steps where a graph may not fit."""
        return f"{self.largest_batch:,}{' in eager steps' if self.in_eager_steps else ''}"

    def largest_text(self) -> str:
        """Return the largest batch in words, with the execution if it differs between the two."""
        graph, eager = self.graph_largest_batch, self.eager_largest_batch
        if graph is None or eager is None:
            if self.largest_batch:
                return f"largest batch {self.largest_batch:,}"
            return "a batch of 1 may fit" if self.one_may_fit else "not even a batch of 1 fits"
        in_graph = f"{graph:,} in a CUDA graph, " if graph else ""
        return f"largest batch {in_graph}{eager:,} in eager steps{'' if graph else ' alone'}"

    def after_a_run(self, batch_size: int, *, by_reference: bool = False) -> MemoryFit:
        """Return the answer after a run on this kind of card at this batch; see ``by_reference``."""
        return msgspec.structs.replace(
            self,
            verdict=Verdict.FITS,
            largest_batch=max(self.largest_batch, batch_size),
            ran=True,
            by_reference=by_reference,
            graph_largest_batch=None,
            eager_largest_batch=None,
        )

    def needs(self) -> str:
        """Return only the figures, ``needs 17.2 to 18.9 of 24 GiB``, and why there is no trace."""
        device = self.need.device
        assert device.low is not None
        assert device.high is not None
        words = f"needs {format_range(device.low, device.high, self.card.listed_bytes)}"
        return words if self.need.untraced is None else f"{words}{_NOT_TRACED}: {self.need.untraced}"

    def flat(self) -> dict[str, Any]:
        """Return the answer as JSON shows it, the figures of the need included."""
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


def fits_text(*, sharded: bool) -> str:
    """Return the word for what fits, and by FSDP where it is shared out so."""
    return f"{Verdict.FITS} with FSDP" if sharded else str(Verdict.FITS)


_NOT_TRACED = "; not traced"


def format_range(low_bytes: float, high_bytes: float, of_bytes: float) -> str:
    """Format a need and the memory available in one unit: ``17.2 to 18.9 of 24 GiB``.

    >>> format_range(17.2 * 2**30, 18.9 * 2**30, 24 * 2**30), format_range(1e12, 1.2e12, 2**34)
    ('17.2 to 18.9 of 24 GiB', '931 to 1,120 of 16 GiB')
    >>> format_range(17.2 * 2**30, 17.2 * 2**30, 24 * 2**30)
    '17.2 of 24 GiB'
    """
    unit, of = _of(of_bytes)
    ends = dict.fromkeys((format_number(low_bytes / unit), format_number(high_bytes / unit)))
    return f"{' to '.join(ends)} {of}"


def _of(bytes_: float) -> tuple[float, str]:
    """Return the unit for a card, and its memory in words: ``of 24 GiB``."""
    unit, name = (GIB, "GiB") if bytes_ >= GIB else (MIB, "MiB")
    return unit, f"of {format_number(bytes_ / unit).removesuffix('.0').removesuffix('.00')} {name}"
