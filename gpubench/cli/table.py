"""The verbs of the command line: the purpose, requests and common aliases of each.

Each verb is a row of this table and a function in its own file in ``gpubench.cli.verbs``, which is imported
when the verb is called: ``offers list`` is ``list_`` in ``offers.py``. The function takes the requests of its
row in order and ``as_json``, and returns the exit code, or None for 0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from gpubench.measure.request import RunRequest
from gpubench.offers.request import ImportRequest, OffersRequest, RefreshRequest
from gpubench.options import Option, Positive, Results, ResultsRequest
from gpubench.predict.request import (
    CalibrateRequest,
    MemoryRequest,
    PredictRequest,
    ScoreRequest,
    SealRequest,
)
from gpubench.recommend.request import EVIDENCE, OUTPUT, FeedRequest, RankRequest
from gpubench.record.request import AddRequest, CompareRequest, ShareRequest
from gpubench.report.request import ReportRequest


class BriefRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to print the full or the short document."""

    brief: Annotated[bool, Option("With --json: what a script acts on, in 8 kB.", OUTPUT)] = False


class TableRequest(BriefRequest, frozen=True, kw_only=True):
    """Whether to print everything known about each GPU."""

    table: Annotated[bool, Option("List every GPU, and what each figure rests on.", OUTPUT)] = False


class ShownRequest(BriefRequest, frozen=True, kw_only=True):
    """What to print of a ranking besides its best rows."""

    table: Annotated[
        bool,
        Option(
            "Also list the best offer of each GPU, with its memory, cores, ECC and power, and what to know "
            "before paying.",
            OUTPUT,
        ),
    ] = False
    explain: Annotated[
        bool,
        Option("Also list every note, and what is left out and why; with --table, every offer.", OUTPUT),
    ] = False


class DumpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to write the driver's answers to a file."""

    dump: Annotated[Path | None, Option("Write the driver's raw answers to FILE, identifiers masked.")] = None


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which list to print; at most one may replace the list of workloads."""

    gpus: Annotated[
        bool,
        Option(
            "List the GPUs of the specification table instead, and the processors that nothing is timed on."
        ),
    ] = False
    mlperf: Annotated[bool, Option("List published MLPerf Training runs, with today's cost of one.")] = False


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to write a report of the run."""

    report: Annotated[Path | None, Option("Write the HTML report here.", metavar="FILE")] = None


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The run to check, or how to check the card in this machine."""

    run: Annotated[
        str | None,
        Option("A run file, the start of a run id, or latest.", place=True, bare=True, metavar="RUN"),
    ] = None
    cuda: Annotated[bool, Option("Check an NVIDIA GPU against itself, in 5 minutes, and write one file.")] = (
        False
    )
    full: Annotated[bool, Option("With --cuda: leave nothing out, however long it takes.")] = False
    output: Annotated[
        Path | None, Option("With --cuda: the file.", short="-o", default="cuda-check-GPU-TORCH.json")
    ] = None
    results: Results = None


class TryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which recommendation to try, and how."""

    answer: Annotated[
        Path, Option("File that gpubench rank --json printed.", place=True, bare=True, metavar="ANSWER")
    ]
    gpu: Annotated[str | None, Option("GPU to measure: key or name.", default="the best to rent")] = None
    minutes: Annotated[Positive, Option("Time limit of the measurement [min].")] = 15.0
    output: Annotated[Path, Option("Folder of the task.", default="try")] = Path("try")


class PricesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where to find newer prices, if anywhere."""

    snapshot_url: Annotated[
        str | None, Option("URL of a published snapshot of prices that is read first.", way="setting")
    ] = None
    offline: Annotated[
        bool, Option("Read no published prices, whatever the setting snapshot-url says.", EVIDENCE)
    ] = False


class NewWorkloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The name of the model."""

    name: Annotated[
        str, Option("Name of the model; the file is ./NAME.py.", place=True, bare=True, metavar="NAME")
    ]


class Verb(msgspec.Struct, frozen=True):
    """A verb, or one of its actions; a verb with actions has no requests.

    Attributes:
        help: Its purpose; the list of verbs shows the first sentence.
        asked: Its requests in order.
        also_called: Names that other tools use for it.
        only: The options to offer, each with its panel in the help; if empty, all options of its requests.
    """

    help: str
    asked: tuple[type[msgspec.Struct], ...] = ()
    also_called: tuple[str, ...] = ()
    only: Mapping[str, str | None] = {}


_ASK = "What the ranking is asked (the rest of its options: gpubench rank)"
_OF_REPORT = dict.fromkeys(("output", "results", "run", "format", "public")) | dict.fromkeys(
    ("workload", "offers", "as_of"), _ASK
)

VERBS: Mapping[str, Verb] = {
    "probe": Verb(
        "Say what the devices of this machine are, and what limits them.",
        (DumpRequest,),
        ("info", "detect", "device", "devices", "gpus", "status"),
    ),
    "doctor": Verb(
        "Check what a measurement needs, from the software up; exit 1 if something keeps it from running.",
        (ResultsRequest,),
    ),
    "list": Verb("List the workloads: parameters, work per sample, default batches.", (ListRequest,)),
    "run": Verb(
        "Measure workloads on a device and store the run.",
        (RunRequest, PageRequest),
        ("bench", "benchmark", "measure", "start", "test", "train"),
    ),
    "check": Verb("Say whether a run, or this GPU, can be trusted; exit code 1 if not.", (CheckRequest,)),
    "compare": Verb(
        "Compare two runs case by case: B over A, so that above 1 B is faster.",
        (CompareRequest,),
        ("diff", "regress"),
    ),
    "results": Verb("List stored runs, or take in runs of other machines."),
    "results list": Verb("List the stored runs, oldest first.", (ResultsRequest,)),
    "results add": Verb(
        "Take in runs that other machines made; each is checked before it is copied.\n\n"
        "A run that is stored already with the same content is left as it is; one with other content under "
        "the same id is refused, and the exit code is 5.",
        (AddRequest,),
    ),
    "share": Verb(
        "Show what of a run would be shared, write it to one file, and print the text of a pull request.\n\n"
        "The file names no host, path, serial number or user. Exit code 1, and no file, where CI would "
        "refuse it.",
        (ShareRequest,),
        ("contribute", "publish", "upload"),
    ),
    "offers": Verb(
        "List, refresh or import dated prices of clouds and marketplaces.",
        also_called=("price", "prices", "cost", "costs", "cloud"),
    ),
    "offers list": Verb(
        "List offers, cheapest GPU-hour first, with the age of each price.", (OffersRequest,)
    ),
    "offers refresh": Verb(
        "Fetch today's prices into a dated snapshot; a source that fails keeps its old prices and dates.\n\n"
        "Exit code 1 if a source failed, or none answered.",
        (RefreshRequest,),
    ),
    "offers import": Verb(
        "Keep a price table of your own; it is read beside the shipped and the refreshed prices from then "
        "on.",
        (ImportRequest,),
    ),
    "predict": Verb("Predict throughput on GPUs that are not here."),
    "predict show": Verb(
        "Print throughput, interval and reasons for each GPU, the fastest first.",
        (PredictRequest, TableRequest),
    ),
    "predict seal": Verb(
        "Write what is predicted of a CSV of cases, with version, commit and one hash over all of it.",
        (SealRequest,),
    ),
    "predict score": Verb(
        "Score the calibration, in a checkout, or sealed forecasts on measurements of your own.",
        (ScoreRequest,),
    ),
    "predict calibrate": Verb(
        "Rebuild what predictions rest on from the published rows and your own runs, in a checkout.",
        (CalibrateRequest,),
    ),
    "memory": Verb(
        "Say what a step needs in memory, on which GPUs it fits, and what would make it fit.",
        (MemoryRequest, TableRequest),
        ("fit", "fits", "vram", "mem"),
    ),
    "rank": Verb(
        "Rank GPUs and instances by training per dollar, and say how sure that is.\n\n"
        "Needs no GPU and no network: measured figures where you have them, predictions elsewhere.",
        (RankRequest, ShownRequest, PricesRequest),
        ("recommend", "best", "buy", "rent", "choose"),
    ),
    "try": Verb(
        "Write a task of SkyPilot, and one of dstack, that rent the recommended machine and measure there.",
        (TryRequest,),
        ("trial", "skypilot", "dstack"),
    ),
    "report": Verb(
        "Write one self-contained page that answers what to rent, with what was measured. Prints its path.",
        (ReportRequest,),
        ("html", "page", "export"),
        _OF_REPORT,
    ),
    "feed": Verb(
        "Say whether this host can prepare images as fast as a GPU trains on them (needs kornia).",
        (FeedRequest,),
    ),
    "new-workload": Verb(
        "Write a commented template for a model of your own; it runs unchanged.", (NewWorkloadRequest,)
    ),
}
"""Every verb in the order of the help; actions follow their verb."""
