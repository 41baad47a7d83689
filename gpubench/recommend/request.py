"""What a buyer asks for: one field per option of ``gpubench rank``, and the contradictions it may hold."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gpubench import executions, precisions
from gpubench.errors import MisuseError
from gpubench.units import plain

DEFAULT_WORKLOADS = ("cnn", "lstm", "vgg16")
DEFAULT_REFERENCE_GPU = "nvidia-a100-sxm-80gb"

SORTS = ("value", "time", "cost", "throughput")


class Range(NamedTuple):
    """What an assumption may be: its likely value between two ends."""

    low: float
    likely: float
    high: float

    @classmethod
    def of(cls, value: float) -> Range:
        """Return a value that is known."""
        return cls(value, value, value)


class RankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to rank and how; a field that is None or empty does not restrict.

    Attributes:
        workloads: Names or the user's own models; several count by their geometric mean.
        mix: Instead of ``workloads``: share of the samples by workload, counted as money.
        max_latency_ms: Inference only: the batch with most throughput whose step meets it even if slow.
        reference_gpu: GPU that ``speed_ratio`` is a multiple of.
        samples: Samples to train on in all; or ``epochs`` times ``dataset_size``.
        jobs: ``independent`` is one job per GPU; ``ddp`` is one job over all GPUs of an instance. None
            is ``ddp`` where a job is given and ``independent`` where none is.
        deadline_hours, budget_usd: Kept only where the unfavourable end of the interval meets them.
        startup_minutes: Billed before the first step.
        billing_minutes: Unit of the bill; None is by the second.
        spot_lost: Share of the work that spot interruptions make be done again, below 1: it lowers the
            throughput of spot offers.
        rent_or_buy: ``rent`` or ``buy`` alone; None ranks both.
        own: Hardware owned or quoted: ``2x RTX 4090, 3800 USD, 3 years, 60 %``.
        host_usd: Share of the machine around the cards, where a quote names none.
        years, utilisation, resale, tariff, pue: What a quote leaves open; resale is a share of the purchase.
        circuit_watts: What the socket gives; owned GPUs above it are left out.
        own_fan: Of owned cards only those with a fan of their own.
        max_price_age_days: Leave out older prices; None marks them only.
        accept_outliers: Rank prices too that are far below what every other provider asks.
        as_of: The day to rank as on, such as ``2026-11-20``: ages of prices count to it, and later prices are
            left out; measurements all count. None is today.
        draws: Joint draws behind P(best) and ties.
    """

    workloads: tuple[str, ...] = ()
    mix: dict[str, float] = {}
    precision: str = "amp"
    execution: str = "graph"
    task: str = "train"
    batch_size: int | Literal["max"] | None = None
    max_latency_ms: float | None = None
    reference_gpu: str = DEFAULT_REFERENCE_GPU

    samples: float | None = None
    epochs: float | None = None
    dataset_size: float | None = None
    jobs: str | None = None
    deadline_hours: float | None = None
    budget_usd: float | None = None
    startup_minutes: float = 0.0
    billing_minutes: float | None = None
    spot_lost: float = 0.0
    storage_usd_per_month: float = 0.0
    egress_usd: float = 0.0
    tax: float = 0.0

    rent_or_buy: str | None = None
    own: tuple[str, ...] = ()
    host_usd: float = 0.0
    years: float = 3.0
    utilisation: Range = Range(0.25, 0.5, 0.9)
    resale: Range = Range(0.15, 0.3, 0.5)
    tariff: Range = Range(0.10, 0.15, 0.35)
    pue: float = 1.0
    circuit_watts: float | None = None
    own_fan: bool = False

    gpus: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    spot: bool = False
    reserved: bool = False
    count: int | None = None
    max_usd_per_hour: float | None = None
    min_memory_gib: float | None = None
    min_bandwidth_gbps: float | None = None
    min_cores: int | None = None
    min_tensor_cores: int | None = None
    max_watts: float | None = None
    memory_type: str | None = None
    lines: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    ecc: bool = False
    fp64: bool = False
    nvlink: bool = False
    cooling: str | None = None
    max_price_age_days: int | None = None
    accept_outliers: bool = False

    offers: Path | None = None
    results: Path | None = None
    as_of: date | str | None = None
    sort: str = "value"
    limit: int | None = None
    draws: int = 2000
    seed: int = 0

    @property
    def job_samples(self) -> float | None:
        """Samples of the whole job; None where no job is given."""
        if self.epochs is not None and self.dataset_size is not None:
            return self.epochs * self.dataset_size
        return self.samples

    @property
    def workload_names(self) -> tuple[str, ...]:
        """The workloads to estimate, each once, in the order given."""
        return tuple(dict.fromkeys(self.mix or self.workloads or DEFAULT_WORKLOADS))

    @property
    def one_job_over_all_gpus(self) -> bool:
        """Whether an instance of several GPUs counts as one data-parallel job."""
        one_job = self.job_samples is not None and self.task == "train"
        return (self.jobs or ("ddp" if one_job else "independent")) == "ddp"


_POSITIVE = (
    "samples",
    "epochs",
    "dataset_size",
    "deadline_hours",
    "budget_usd",
    "billing_minutes",
    "count",
    "max_usd_per_hour",
    "min_memory_gib",
    "min_bandwidth_gbps",
    "min_cores",
    "min_tensor_cores",
    "max_watts",
    "limit",
    "draws",
    "years",
    "pue",
    "circuit_watts",
    "max_latency_ms",
)
_NOT_NEGATIVE = (
    "startup_minutes",
    "storage_usd_per_month",
    "egress_usd",
    "tax",
    "max_price_age_days",
)
_CHOICES = {
    "precision": precisions.CHOICES,
    "execution": executions.CHOICES,
    "task": ("train", "infer"),
    "sort": SORTS,
    "jobs": (None, "independent", "ddp"),
    "cooling": (None, "active", "passive", "liquid", "module"),
    "rent_or_buy": (None, "rent", "buy"),
}


def check(request: RankRequest) -> RankRequest:
    """Return the request, or say in one line what is wrong with it.

    Raises:
        MisuseError: If a figure is not positive, a choice is unknown, or two options contradict.
    """
    for field, choices in _CHOICES.items():
        if (value := getattr(request, field)) not in choices:
            known = ", ".join(choice for choice in choices if choice)
            raise MisuseError(f"{option(field)} {value!r} is unknown; choose from {known}")
    for field in _POSITIVE:
        value = getattr(request, field)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise MisuseError(f"{option(field)} {value:g} must be above 0")
    for field in _NOT_NEGATIVE:
        value = getattr(request, field)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise MisuseError(f"{option(field)} {value:g} must not be negative")
    if not 0 <= request.spot_lost < 1:
        raise MisuseError(f"--spot-lost {request.spot_lost:g} must be from 0 to below 1: a share of the work")
    _check_task(request)
    _check_batch(request)
    _check_ranges(request)
    _check_job(request)
    _check_mix(request)
    return request


def option(field: str) -> str:
    """Return the command-line spelling of a field: ``gpus`` is ``--gpu``."""
    singular = {
        "gpus": "gpu",
        "providers": "provider",
        "regions": "region",
        "workloads": "workload",
        "lines": "line",
        "architectures": "architecture",
    }
    return "--" + singular.get(field, field).replace("_", "-")


def _check_task(request: RankRequest) -> None:
    if request.max_latency_ms is not None and request.task != "infer":
        raise MisuseError("--max-latency-ms is for inference: add --task infer")
    if request.max_latency_ms is not None and request.batch_size == "max":
        raise MisuseError("--max-latency-ms chooses the batch: leave out --batch-size max")
    if request.task == "infer" and request.jobs == "ddp":
        raise MisuseError("--jobs ddp trains one model over all GPUs: it says nothing of --task infer")


def _check_batch(request: RankRequest) -> None:
    if isinstance(request.batch_size, int) and request.batch_size < 1:
        raise MisuseError(f"--batch-size {request.batch_size} must be at least 1, or max")


def _check_ranges(request: RankRequest) -> None:
    for field, most in (("utilisation", 1.0), ("resale", 1.0), ("tariff", 10.0)):
        low, likely, high = getattr(request, field)
        if not 0 <= low <= likely <= high <= most or (field == "utilisation" and low == 0):
            raise MisuseError(
                f"{option(field)} {low:g}-{high:g} must lie within 0 to {most:g}, the low end first"
            )
    if request.pue < 1:
        raise MisuseError(f"--pue {request.pue:g} must be at least 1: energy drawn over energy used")
    if request.rent_or_buy == "rent" and request.own:
        raise MisuseError("--rent contradicts --own; leave one of them out")


def _check_job(request: RankRequest) -> None:
    if request.samples is not None and (request.epochs is not None or request.dataset_size is not None):
        raise MisuseError("--samples contradicts --epochs and --dataset-size; give one or the other")
    if (request.epochs is None) != (request.dataset_size is None):
        raise MisuseError("--epochs and --dataset-size go together: samples = epochs x dataset size")
    for field in ("deadline_hours", "budget_usd"):
        if getattr(request, field) is not None and request.job_samples is None:
            raise MisuseError(f"{option(field)} needs a job: add --samples, or --epochs and --dataset-size")


def _check_mix(request: RankRequest) -> None:
    if not request.mix:
        return
    if request.workloads:
        raise MisuseError("--mix names its own workloads; leave out the others")
    bad = [f"{name}={share:g}" for name, share in request.mix.items() if not 0 < share < math.inf]
    if bad:
        raise MisuseError(f"--mix {', '.join(bad)}: a share must be above 0")


def parse_mix(text: str) -> dict[str, float]:
    """Read ``vgg16=0.5,lstm=0.5``.

    Raises:
        MisuseError: If a part has no number, or a workload stands there twice.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, figure = part.strip().rpartition("=")
        try:
            share = float(figure)
        except ValueError:
            share = math.nan
        if not (name and equals and math.isfinite(share)):
            raise MisuseError(f"--mix part {plain(part)!r} is not WORKLOAD=SHARE")
        if name in shares:
            raise MisuseError(f"--mix names {plain(name)!r} twice")
        shares[name] = share
    return shares


def parse_batch(text: str | None) -> int | Literal["max"] | None:
    """Read a batch size: a whole number or ``max``.

    Raises:
        MisuseError: If it is neither.
    """
    if text is None:
        return None
    if text == "max":
        return "max"
    try:
        return int(text)
    except ValueError:
        raise MisuseError(f"--batch-size {plain(text)!r} is neither a whole number nor max") from None


def parse_range(text: str, name: str) -> Range:
    """Read ``0.5``, or ``0.3-0.7`` whose likely value is the middle.

    >>> parse_range("0.3-0.7", "--utilisation")
    Range(low=0.3, likely=0.5, high=0.7)

    Raises:
        MisuseError: If it is neither.
    """
    try:
        low, *high = (float(part) for part in text.split("-"))
    except ValueError:
        low, high = math.nan, []
    if not math.isfinite(low) or len(high) > 1:
        raise MisuseError(f"{name} {plain(text)!r} is neither a number nor LOW-HIGH")
    return Range(low, (low + high[0]) / 2, high[0]) if high else Range.of(low)


def rent_or_buy(*, rent: bool, buy: bool) -> str | None:
    """Return which of the two options stands.

    Raises:
        MisuseError: If both do.
    """
    if rent and buy:
        raise MisuseError("--rent contradicts --buy; without either both are ranked")
    return "rent" if rent else "buy" if buy else None
