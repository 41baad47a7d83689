"""The requests of ``gpubench rank`` and ``gpubench feed``: one field per option."""

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec

from gpubench.errors import MisuseError
from gpubench.measure.request import read_workload
from gpubench.options import (
    CLASSIC,
    GPU,
    JOBS,
    PROVIDER,
    REGION,
    SELLER,
    WORKLOAD,
    AnyExecution,
    AnyPrecision,
    AnyTask,
    AtLeastOne,
    GpuBatch,
    NotNegative,
    Option,
    Positive,
    RecipeRequest,
    Results,
    is_number,
    options_of,
    with_help,
)
from gpubench.recipes import ParallelMode
from gpubench.units import figure_in, plain

JOB, WHICH, CARD = "The job", "Which offers", "Which GPUs"
BUYING, EVIDENCE, OUTPUT = "Buying", "Evidence", "Output"


DEFAULT_REFERENCE_GPU = "nvidia-a100-sxm-80gb"

IMAGENET_IMAGES = 1_281_167
"""Training images of ILSVRC 2012 (Russakovsky and others 2015, arXiv:1409.0575)."""

# Assumed time from ordering a machine to the first step: boot, driver, container, data [min].
_STARTUP_MINUTES = 10.0

# Assumed upload rate to a rented machine: an office connection, or one stream from object storage.
_UPLOAD_MBIT_PER_S = 100.0
_MBIT_PER_GB = 8000.0

# Assumed: in nine of ten cases, a startup takes at most this many times longer or shorter than expected.
_STARTUP_FACTOR = 2.0

HOUR_WORTH_USD = 2.0
"""The default value of an hour of waiting [USD]."""

COMMITMENTS = {"1y": 1, "3y": 3}
"""Terms of commitments [years], by option value."""

SORTS = ("value", "time", "cost", "throughput", "joules")
"""Values of ``sort``: ``SortedBy`` without "total", copied because the help imports no models."""


class Range(NamedTuple):
    """The likely value of an assumption, and the ends of its range."""

    low: float
    likely: float
    high: float

    @classmethod
    def of(cls, value: float) -> Self:
        """Return a known value as a range of zero width."""
        return cls(value, value, value)


def _read_range(value: Any, name: str) -> Range:
    """Read a number, ``0.3-0.7``, ``0.3-0.6-0.7``, or a sequence of one to three numbers.

    Given two numbers, the likely value is their midpoint.

    >>> _read_range("0.3-0.7", "the setting utilization")
    Range(low=0.3, likely=0.5, high=0.7)

    Raises:
        MisuseError: If a string has another form.
        TypeError: If the value is of another type.
    """
    parts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if isinstance(value, str):
        try:
            parts = [float(part) for part in value.split("-", 2)]
        except ValueError:
            raise MisuseError(f"{name} {plain(value)!r} is neither a number nor LOW-HIGH") from None
    if not all(map(is_number, parts)):
        raise TypeError
    match [float(part) for part in parts]:
        case [known]:
            return Range.of(known)
        case [low, high]:
            return Range(low, (low + high) / 2, high)
        case [low, likely, high]:
            return Range(low, likely, high)
    raise TypeError


def _read_mix(value: Any, name: str) -> dict[str, float]:
    """Read ``vgg16=0.5,lstm=0.5``, or accept a dict of shares.

    Raises:
        MisuseError: If a part has no number, or a workload occurs twice.
        TypeError: If the value is of another type.
    """
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and is_number(share) for key, share in value.items()):
            raise TypeError
        return {read_workload(key, name): float(share) for key, share in value.items()}
    if not isinstance(value, str):
        raise TypeError
    shares: dict[str, float] = {}
    for part in value.split(","):
        workload, equals, figure = part.strip().rpartition("=")
        share = figure_in(figure)
        if not (workload and equals) or share is None:
            raise MisuseError(f"{name} part {plain(part)!r} is not WORKLOAD=SHARE")
        meant = read_workload(workload, name)
        if meant in shares:
            raise MisuseError(f"{name} names {plain(workload)!r} twice")
        shares[meant] = share
    return shares


SHARE = Option(
    panel=BUYING,
    read=_read_range,
    takes="a number, or LOW-HIGH (in Python also two or three numbers in order)",
    python="float | tuple[float, float] | tuple[float, float, float] | str",
    metavar="X|LOW-HIGH",
)


# Repeated work as a share of the job. The upper limit is a check for mistakes: ten times the job.
_Lost = Annotated[float, msgspec.Meta(ge=0, lt=10)]


class RankRequest(RecipeRequest, frozen=True, kw_only=True):
    """What to rank and how; a field that is None or empty restricts nothing.

    Several workloads are combined by their geometric mean. If ``jobs`` is None, a training job (``samples``,
    ``epochs`` times ``dataset_size``, or the default) runs over all GPUs of an instance, and any other work
    is one job per GPU. ``asked`` lists the options that were given, and ``settings`` describes what a
    settings file sets; both are empty if the request was made in code.
    """

    workloads: Annotated[
        tuple[str, ...],
        with_help(
            WORKLOAD,
            read=read_workload,
            help="Workloads by name, or a model of your own: FILE[:NAME] or MODULE:NAME.",
            default=" ".join(CLASSIC),
        ),
    ] = ()
    mix: Annotated[
        dict[str, float],
        Option(
            "Workload mix, by share of samples: vgg16=0.5,lstm=0.5.",
            read=_read_mix,
            takes="WORKLOAD=SHARE,... (in Python also a dict)",
            python="Mapping[str, float] | str",
            metavar="NAME=SHARE,...",
            way="setting",
        ),
    ] = msgspec.field(default_factory=dict)
    precision: AnyPrecision = None
    execution: AnyExecution = "graph"
    task: AnyTask = "train"
    batch_size: GpuBatch = None
    max_latency_ms: Annotated[
        Positive | None,
        Option(
            "With --task infer: choose a batch that keeps the pessimistic step time within this limit; for "
            "generation, the time per token after the first [ms].",
        ),
    ] = None

    samples: Annotated[Positive | None, Option("Total number of samples to train on.", JOB)] = None
    epochs: Annotated[
        Positive | None,
        Option("Epochs; needs --dataset-size, except for resnet50 (ImageNet).", JOB),
    ] = None
    dataset_size: Annotated[Positive | None, Option("Samples per epoch.", JOB)] = None
    dataset_gb: Annotated[
        Positive | None,
        Option(
            f"Data to send to a rented machine before the first step, at {_UPLOAD_MBIT_PER_S:g} Mbit/s "
            "(assumed) [GB].",
            JOB,
        ),
    ] = None
    jobs: Annotated[
        str | None,
        with_help(
            JOBS,
            help="One data-parallel job over all GPUs (ddp), or one job per GPU.",
            panel=JOB,
            choices=(ParallelMode.INDEPENDENT, ParallelMode.DDP),
            default="ddp for a job",
            way="setting",
        ),
    ] = None
    deadline_hours: Annotated[
        Positive | None, Option("Keep offers with a pessimistic time within this limit.", JOB)
    ] = None
    budget_usd: Annotated[
        Positive | None, Option("Keep offers with a pessimistic cost within this limit.", JOB)
    ] = None
    startup_minutes: Annotated[
        NotNegative | None,
        Option(
            "Billed startup time [min].",
            JOB,
            default=f"{_STARTUP_MINUTES:g} for rentals",
            way="setting",
        ),
    ] = None
    billing_minutes: Annotated[
        Positive | None, Option("Billing increment [min].", JOB, default="by the second", way="setting")
    ] = None
    spot_lost: Annotated[
        _Lost | None,
        Option(
            "Share of work repeated after spot interruptions, for example 0.2.",
            JOB,
            default="one interruption per 24 h",
            way="setting",
        ),
    ] = None
    host_lost: Annotated[
        _Lost | None,
        Option(
            "Share of training work repeated after a private host fails, for example 0.05.",
            JOB,
            default="one failure per week",
            way="setting",
        ),
    ] = None
    storage_usd_per_month: Annotated[
        NotNegative, Option("Monthly storage cost while the job runs.", JOB, way="setting")
    ] = 0.0
    egress_usd: Annotated[NotNegative, Option("Egress cost of the job.", JOB, way="setting")] = 0.0
    tax: Annotated[NotNegative, Option("Tax rate, for example 0.19.", JOB, way="setting")] = 0.0

    hour_worth_usd: Annotated[
        NotNegative,
        Option(
            "Value of an hour of waiting; offers are ranked by dollars plus the value of their hours [USD].",
            JOB,
            name="hour_worth",
        ),
    ] = HOUR_WORTH_USD
    relative: Annotated[
        bool,
        Option(
            "Rank without a job, by work per dollar.",
            JOB,
            way="setting",
        ),
    ] = False

    gpus: Annotated[
        tuple[str, ...], with_help(GPU, help="GPU key, name, or part of it (h100).", panel=WHICH)
    ] = ()
    providers: Annotated[tuple[str, ...], with_help(PROVIDER, panel=WHICH)] = ()
    regions: Annotated[tuple[str, ...], with_help(REGION, panel=WHICH)] = ()
    sellers: Annotated[tuple[str, ...], with_help(SELLER, panel=WHICH)] = ()
    excluded: Annotated[
        tuple[str, ...],
        Option("Exclude this provider or GPU.", WHICH, name="exclude", commas=True),
    ] = ()
    spot: Annotated[bool, Option("Also rank spot prices.", WHICH)] = False
    commit: Annotated[
        str | None,
        Option(
            "Also rank commitments of this term, with the utilization at which they pay off.",
            WHICH,
            choices=("1y", "3y"),
        ),
    ] = None
    count: Annotated[AtLeastOne | None, Option("Exact number of GPUs.", WHICH)] = None
    max_usd_per_hour: Annotated[
        NotNegative | None, Option("Highest price of the instance [USD/h].", WHICH, way="setting")
    ] = None
    max_price_age_days: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        Option("Exclude older prices [days].", WHICH, name="max_price_age", way="setting"),
    ] = None

    min_memory_gib: Annotated[Positive | None, Option("Minimum memory of one GPU [GiB].", CARD)] = None
    memory_type: Annotated[str | None, Option("Memory: HBM, GDDR, GDDR6 ...", CARD, way="setting")] = None
    min_bandwidth_gbps: Annotated[
        Positive | None, Option("Minimum memory bandwidth [GB/s].", CARD, way="setting")
    ] = None
    min_cores: Annotated[
        AtLeastOne | None, Option("Minimum number of CUDA cores or stream processors.", CARD, way="setting")
    ] = None
    min_tensor_cores: Annotated[
        AtLeastOne | None, Option("Minimum number of tensor cores.", CARD, way="setting")
    ] = None
    lines: Annotated[
        tuple[str, ...],
        Option(
            "Product line: GeForce, RTX, data center, Jetson, Radeon, Instinct ...",
            CARD,
            name="line",
            commas=True,
            way="setting",
        ),
    ] = ()
    architectures: Annotated[
        tuple[str, ...],
        Option(
            "Architecture: Hopper, Ada Lovelace, Blackwell ...",
            CARD,
            name="architecture",
            commas=True,
            way="setting",
        ),
    ] = ()
    max_watts: Annotated[
        Positive | None, Option("Highest board power of one GPU [W].", CARD, way="setting")
    ] = None
    ecc: Annotated[bool, Option("Only memory with error correction (ECC).", CARD, way="setting")] = False
    fp64: Annotated[
        bool, Option("Only GPUs with FP64 at least a quarter as fast as FP32.", CARD, way="setting")
    ] = False
    nvlink: Annotated[bool, Option("Only GPUs with NVLink or a similar link.", CARD, way="setting")] = False
    cooling: Annotated[
        str | None,
        Option(
            "Cooling of the card.", CARD, choices=("active", "passive", "liquid", "module"), way="setting"
        ),
    ] = None

    rent_or_buy: Annotated[
        str | None,
        Option("Only offers to rent.", BUYING, name="rent", sets="rent", way="python"),
        Option("Only hardware that is owned or for sale.", BUYING, name="buy", sets="buy"),
    ] = None
    own: Annotated[
        tuple[str, ...],
        Option(
            "What you have ('H100 SXM', '2x RTX 3090', pc for a PC without a GPU), or were quoted a price "
            "for: '2x RTX 4090, 3800 USD, host 1500 USD, 3 years, 60 %, 380 W'.",
            BUYING,
            name="have",
        ),
    ] = ()
    max_purchase_usd: Annotated[
        Positive | None,
        Option("Rank what this sum buys: a computer, or a host with 1 to 8 cards [USD].", BUYING),
    ] = None
    condition: Annotated[
        str | None, Option("Only cards in this condition.", BUYING, choices=("new", "used"))
    ] = None
    jobs_per_month: Annotated[
        Annotated[float, msgspec.Meta(ge=0.001, le=1e6)] | None,
        Option("Jobs per month on owned hardware, which set its utilization.", BUYING, way="setting"),
    ] = None
    host_usd: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1e8)] | None,
        Option(
            "Price of the host, 0 if you have one [USD].",
            BUYING,
            default="that of the smallest host for the cards to buy, none for --have",
            way="setting",
        ),
    ] = None
    psu_watts: Annotated[
        Positive | None,
        Option("Power supply of the host [W].", BUYING, default="that of the host to buy", way="setting"),
    ] = None
    slots: Annotated[
        AtLeastOne | None,
        Option("Slots that the cards may take.", BUYING, default="those of the host to buy", way="setting"),
    ] = None
    years: Annotated[
        Annotated[float, msgspec.Meta(ge=0.1, le=30)],
        Option("Service life [years].", BUYING, way="setting"),
    ] = 3.0
    utilization: Annotated[
        Range,
        with_help(SHARE, help="Utilization, for example 0.5 or 0.3-0.8.", way="setting"),
    ] = Range(0.25, 0.5, 0.9)
    resale: Annotated[
        Range,
        with_help(SHARE, help="Resale value as a share of the price, for example 0.2-0.5.", way="setting"),
    ] = Range(0.15, 0.3, 0.5)
    tariff: Annotated[
        Range,
        with_help(SHARE, help="Electricity price [USD/kWh], for example 0.15 or 0.1-0.3.", way="setting"),
    ] = Range(0.10, 0.15, 0.35)
    pue: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=5)],
        Option("Power usage effectiveness: facility power over IT power.", BUYING, way="setting"),
    ] = 1.0
    circuit_watts: Annotated[
        Positive | None, Option("Power available to the GPUs [W].", BUYING, way="setting")
    ] = None
    own_fan: Annotated[bool, Option("Only cards with their own fan.", BUYING, way="setting")] = False

    offers: Annotated[Path | None, Option("Your own price table (CSV or JSON).", EVIDENCE)] = None
    results: Results = None
    as_of: Annotated[
        date | None, Option("Rank as of this day; later prices are left out.", panel=EVIDENCE)
    ] = None
    accept_outliers: Annotated[
        bool, Option("Also rank prices far below or above others.", EVIDENCE, way="setting")
    ] = False
    reference_gpu: Annotated[
        str, Option("GPU to which speeds are relative.", EVIDENCE, name="reference", way="setting")
    ] = DEFAULT_REFERENCE_GPU
    sort: Annotated[
        str,
        Option(
            "Order of the rows; value is dollars plus the value of the hours of a job.", OUTPUT, choices=SORTS
        ),
    ] = "value"
    limit: Annotated[
        AtLeastOne | None, Option("Number of rows.", OUTPUT, default="20 in a terminal, all in JSON")
    ] = None
    one_a_gpu: Annotated[
        bool,
        Option(
            "Only the best rental offer of each GPU, and all owned hardware.",
            OUTPUT,
            way="python",
        ),
    ] = False
    draws: Annotated[AtLeastOne, Option("Joint draws behind P(best) and ties.", OUTPUT, way="python")] = 2000
    seed: Annotated[Annotated[int, msgspec.Meta(ge=0)], Option("Fixes the draws.", OUTPUT, way="python")] = 0
    asked: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def buys(self) -> bool:
        """Whether only hardware that is owned or for sale is ranked."""
        return self.rent_or_buy == "buy" or self.max_purchase_usd is not None

    def was_given(self, field: str) -> bool:
        """Return whether the user gave a field, even with its default value."""
        return getattr(self, field) != getattr(RankRequest(), field) or any(
            each.field == field for each in options_of(RankRequest) if each.name in self.asked
        )

    @property
    def question(self) -> dict[str, Any]:
        """The options that were given; ``options.request_from`` rebuilds the same request from them."""
        return {
            each.name: True if each.sets else getattr(self, each.field)
            for each in options_of(RankRequest)
            if self.was_given(each.field) and (not each.sets or getattr(self, each.field) == each.sets)
        }

    @property
    def job_samples(self) -> float | None:
        """Number of samples in the whole job; None if no job is given."""
        if self.epochs is None or self.epoch_samples is None:
            return self.samples
        return self.epochs * self.epoch_samples

    @property
    def epoch_samples(self) -> float | None:
        """Number of samples per epoch: as given, else that of ImageNet for resnet50, else None."""
        is_of_imagenet = self.workload_names == ("resnet50",)
        return IMAGENET_IMAGES if self.dataset_size is None and is_of_imagenet else self.dataset_size

    @property
    def rented_startup_minutes(self) -> float:
        """Billed time on a rented machine before the first step [min]."""
        start = _STARTUP_MINUTES if self.startup_minutes is None else self.startup_minutes
        return start + (self.dataset_gb or 0.0) * _MBIT_PER_GB / _UPLOAD_MBIT_PER_S / 60

    @property
    def startup_factor(self) -> float:
        """In nine of ten cases, a startup takes at most this many times longer or shorter than expected.

        It is 1 if the startup time was given and no data is uploaded.
        """
        is_certain = self.startup_minutes is not None and self.dataset_gb is None
        return 1.0 if is_certain else _STARTUP_FACTOR

    @property
    def billing_unit_minutes(self) -> float:
        """The billing increment of a rented machine [min]: one second unless given."""
        return 1 / 60 if self.billing_minutes is None else self.billing_minutes

    @property
    def spot_lost_share(self) -> float:
        """Share of the work repeated on spot machines: as given, else that of one interruption in 24 h."""
        from gpubench.recommend.economics import USUAL_HOURS_BETWEEN, lost_to_interruptions

        return lost_to_interruptions(1 / USUAL_HOURS_BETWEEN) if self.spot_lost is None else self.spot_lost

    @property
    def host_lost_share(self) -> float:
        """Share of the work lost when a private host fails: work to repeat, and data to upload again.

        It is the given share, or else the share for one failure a week. Inference loses nothing.
        """
        from gpubench.recommend.economics import HOST_HOURS_BETWEEN, MINUTES_PER_HOUR, lost_to_interruptions

        if self.host_lost is not None or self.task == "infer":
            return self.host_lost or 0.0
        return lost_to_interruptions(1 / HOST_HOURS_BETWEEN, self.rented_startup_minutes / MINUTES_PER_HOUR)

    @property
    def workload_names(self) -> tuple[str, ...]:
        """The workloads to estimate, each once, in the given order."""
        return tuple(dict.fromkeys(self.mix or self.workloads or CLASSIC))

    @property
    def shares_work(self) -> bool:
        """Whether all GPUs of an instance share the job, as one model or as one inference stream each."""
        return self.one_job_over_all_gpus or (self.task == "infer" and self.jobs is None)

    @property
    def one_job_over_all_gpus(self) -> bool:
        """Whether the GPUs of an instance run one data-parallel job."""
        usual = "independent" if self.relative or self.task == "infer" else "ddp"
        return (self.jobs or usual) == "ddp"


class FeedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which GPUs a host must feed with prepared samples."""

    gpus: Annotated[
        tuple[str, ...],
        with_help(GPU, help="GPU to feed: key or name.", default="the one here, else examples"),
    ] = ()
    clips: Annotated[
        bool,
        Option(
            "Prepare video clips of 16 frames, with one random augmentation per clip, instead of photographs."
        ),
    ] = False
    results: Results = None
