"""The verbs of the command line: the purpose, requests and aliases of each, and the commands built from them.

Each verb is a row of this table and a function in a file of ``gpubench.cli.verbs``: ``offers list`` is
``list_`` in ``offers.py``. The file is imported when the verb is called. The function takes the requests of
its row in order and ``as_json``, and returns the exit code, or None for 0.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from gpubench.cli.output import say
from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, read_text
from gpubench.measure.request import RunRequest
from gpubench.offers.request import ImportRequest, OffersRequest, RefreshRequest
from gpubench.options import (
    FILE,
    RECIPE_PANEL,
    Option,
    Positive,
    Results,
    ResultsRequest,
    help_of,
    named,
    options_of,
    request_from,
    settings_in_words,
    typed,
    unknown_name,
    with_help,
)
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
from gpubench.units import listing, plain


class BriefRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to print the full or the short document."""

    brief: Annotated[bool, Option("With --json: only what a script needs, in 8 kB.", OUTPUT)] = False


class TableRequest(BriefRequest, frozen=True, kw_only=True):
    """Whether to print everything known about each GPU."""

    table: Annotated[bool, Option("List every GPU, with the basis of each figure.", OUTPUT)] = False


class ShownRequest(BriefRequest, frozen=True, kw_only=True):
    """What to print in addition to the best rows of a ranking."""

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
        Option("Also list every note, and what is left out and why; with --table, list every offer.", OUTPUT),
    ] = False


class DumpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to write the driver's answers to a file."""

    dump: Annotated[Path | None, Option("Write the driver's raw answers to FILE, identifiers masked.")] = None


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which list to print; at most one may replace the list of workloads."""

    gpus: Annotated[
        bool,
        Option("List the GPUs of the specification table instead, and the processors without timings."),
    ] = False
    mlperf: Annotated[bool, Option("List published MLPerf Training runs, with today's cost of each.")] = False


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
    full: Annotated[bool, Option("With --cuda: run every part, however long it takes.")] = False
    output: Annotated[
        Path | None,
        with_help(FILE, help="With --cuda: the file to write.", default="cuda-check-GPU-TORCH.json"),
    ] = None
    results: Results = None


class TryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which recommendation to try, and how."""

    answer: Annotated[
        Path, Option("File that gpubench rank --json printed.", place=True, bare=True, metavar="ANSWER")
    ]
    gpu: Annotated[str | None, Option("GPU to measure: key or name.", default="the best to rent")] = None
    minutes: Annotated[Positive, Option("Time limit of the measurement [min].")] = 15.0
    output: Annotated[Path, Option("Folder to write the task to.", default="try")] = Path("try")


class PricesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where to find newer prices, if anywhere."""

    snapshot_url: Annotated[
        str | None, Option("URL of a published snapshot of prices that is read first.", way="setting")
    ] = None
    offline: Annotated[
        bool, Option("Do not read published prices, even if snapshot-url is set.", EVIDENCE)
    ] = False


class NewWorkloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The name of the model."""

    name: Annotated[
        str, Option("Name of the model; the file is ./NAME.py.", place=True, bare=True, metavar="NAME")
    ]


class Verb(msgspec.Struct, frozen=True):
    """A verb, or one of its actions; a verb with actions has no requests.

    Attributes:
        help: Its purpose; the list of verbs shows the first paragraph.
        requests: The request classes of its function, in order; their fields are its options.
        also_called: Names that other tools use for it.
        only: The options of the command, each with its panel in the help; if empty, all options of its
            requests.
    """

    help: str
    requests: tuple[type[msgspec.Struct], ...] = ()
    also_called: tuple[str, ...] = ()
    only: Mapping[str, str | None] = {}


_RANKING_PANEL = "Options of the ranking (gpubench.report() takes all those of gpubench rank)"
_REPORT_OPTIONS = dict.fromkeys(("output", "results", "run", "format", "public")) | dict.fromkeys(
    ("workload", "offers", "as_of"), _RANKING_PANEL
)

VERBS: Mapping[str, Verb] = {
    "probe": Verb(
        "Show the devices of this machine, and what limits them.",
        (DumpRequest,),
        ("info", "detect", "device", "devices", "gpus", "status"),
    ),
    "doctor": Verb(
        "Check whether this machine is ready to measure, software first; exit code 1 if it is not.",
        (ResultsRequest,),
    ),
    "list": Verb("List the workloads: parameters, work per sample, default batches.", (ListRequest,)),
    "run": Verb(
        "Measure workloads on a device and store the run.",
        (RunRequest, PageRequest),
        ("bench", "benchmark", "measure", "start", "test", "train"),
    ),
    "check": Verb("Check whether a run, or this GPU, can be trusted; exit code 1 if not.", (CheckRequest,)),
    "compare": Verb(
        "Compare two runs case by case, as ratios of B to A: above 1, B is faster.",
        (CompareRequest,),
        ("diff", "regress"),
    ),
    "results": Verb("List stored runs, or add runs from other machines."),
    "results list": Verb("List the stored runs, oldest first.", (ResultsRequest,)),
    "results add": Verb(
        "Add runs from other machines; each is checked before it is copied.\n\n"
        "A run that is already stored with the same content is left unchanged; one with other content under "
        "the same id is refused, and the exit code is 5.",
        (AddRequest,),
    ),
    "share": Verb(
        "Show what sharing a run publishes, write it to one file, and print the text of a pull request.\n\n"
        "The file names no host, path, serial number or user. If CI would refuse it, no file is written and "
        "the exit code is 1.",
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
        "The exit code is 1 if a source failed or none answered.",
        (RefreshRequest,),
    ),
    "offers import": Verb(
        "Store a price table of your own; from then on it is used together with the shipped and the "
        "refreshed prices.",
        (ImportRequest,),
    ),
    "predict": Verb("Predict throughput on other GPUs."),
    "predict show": Verb(
        "Print throughput, interval and reasons for each GPU, fastest first.",
        (PredictRequest, TableRequest),
    ),
    "predict seal": Verb(
        "Write the predictions for a CSV of cases, with version, commit and one hash of all predictions.",
        (SealRequest,),
    ),
    "predict score": Verb(
        "Score the calibration (in a checkout), or sealed forecasts on your own measurements.",
        (ScoreRequest,),
    ),
    "predict calibrate": Verb(
        "Rebuild the basis of predictions from the published rows and your own runs (in a checkout).",
        (CalibrateRequest,),
    ),
    "memory": Verb(
        "Show how much memory a step needs, on which GPUs it fits, and what would make it fit.",
        (MemoryRequest, TableRequest),
        ("fit", "fits", "vram", "mem"),
    ),
    "rank": Verb(
        "Rank GPUs and instances by the cost and time of a job, and show how certain the order is.\n\n"
        "Needs no GPU and no network: it uses your measurements where there are any, predictions elsewhere.",
        (RankRequest, ShownRequest, PricesRequest),
        ("recommend", "best", "buy", "rent", "choose"),
    ),
    "try": Verb(
        "Write a SkyPilot task and a dstack task that rent the recommended machine and measure it.",
        (TryRequest,),
        ("trial", "skypilot", "dstack"),
    ),
    "report": Verb(
        "Write one self-contained page with the recommendation and the measurements, and print its path.",
        (ReportRequest,),
        ("html", "page", "export"),
        _REPORT_OPTIONS,
    ),
    "feed": Verb(
        "Check whether this host can prepare images as fast as a GPU trains on them (needs kornia).",
        (FeedRequest,),
    ),
    "new-workload": Verb(
        "Write a commented template for a model of your own; it runs unchanged.", (NewWorkloadRequest,)
    ),
}
"""Every verb in the order of the help; actions follow their verb."""


# --- commands -------------------------------------------------------------------------------------------

_RECIPE = "recipe"
FILES: Mapping[str, tuple[str, ...]] = {"gpubench.toml": (), "pyproject.toml": ("tool", "gpubench")}
"""Settings files in order of precedence, each with the keys of the TOML table that has the settings."""
# During layout, ``_SEAM`` replaces the bar between choices, so that lines wrap there; ``_HYPHEN`` replaces
# hyphens, so that lines do not.
_SEAM, _HYPHEN = "|\0 ", "\u2011"


class Command(click.Command):
    """A verb for the parser; its help groups the options by topic."""

    panels: Mapping[str | None, str | None] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by panel, those without one first, without breaking a word or a choice."""
        by_panel: dict[str, list[tuple[str, str]]] = {"Options": []}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                words = record[1].replace("|", _SEAM).replace("-", _HYPHEN)
                by_panel.setdefault(self.panels.get(each.name) or "Options", []).append((record[0], words))
        for panel, records in by_panel.items():
            with formatter.section(panel):
                formatter.write_dl(records)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help, then restore the characters that were replaced during layout."""
        super().format_help(ctx, formatter)
        lines = (each.replace(_SEAM, "|").replace("\0", "") for each in formatter.buffer)
        formatter.buffer[:] = [each.replace(_HYPHEN, "-") for each in lines]


def command_of(path: str) -> Command:
    """Return the command of a verb or an action, with its options and ``--json``."""
    verb = VERBS[path]
    every = list(chain(*map(options_of, verb.requests)))
    offered = [
        each
        for each in every
        if each.way in {"option", _RECIPE} and (not verb.only or each.name in verb.only)
    ]

    def call(as_json: bool, **given: Any) -> None:
        file, settings = _settings_of(verb.requests)
        # The given values by option name, for each way of giving them
        given_by: dict[str, Mapping[str, Any]] = {
            "option": _given_of(offered, given),
            _RECIPE: _recipe_of(given.get(f"name_{_RECIPE}") or (), offered),
            "setting": settings,
        }
        requests = []
        for kind in verb.requests:
            sources = {each.name: given_by.get(each.way, {}) for each in options_of(kind)}
            values = {name: source[name] for name, source in sources.items() if name in source}
            requests.append(request_from(kind, values, file=file))
        file_name, _, action = path.replace("-", "_").partition(" ")
        module = import_module(f"gpubench.cli.verbs.{file_name}")
        code = getattr(module, f"{action}_" if action else "verb")(*requests, as_json=as_json)
        applied = list(chain(*(settings_in_words(kind, settings) for kind in verb.requests)))
        if applied:
            say(f"set in {file}: {listing(applied)}")
        if code:
            click.get_current_context().exit(code)

    names = [typed(each.name) for each in every if each.way == "setting"]
    in_files = f"Settings, in {' or '.join(FILES)} of the current folder: {', '.join(names)}."
    command = Command(
        path.rpartition(" ")[2],
        params=[*chain(*map(_laid_out, offered)), *_recipe_option(offered), _AS_JSON],
        callback=call,
        help=verb.help,
        short_help=verb.help.partition("\n\n")[0],
        epilog=in_files.replace("-", _HYPHEN) if names else None,
    )
    command.panels = {f"name_{each.name}": verb.only.get(each.name, each.panel) for each in offered}
    command.panels |= {f"name_{_RECIPE}": RECIPE_PANEL}
    return command


_AS_JSON = click.Option(["as_json", "--json"], is_flag=True, help="Print one JSON document on stdout.")


def _recipe_option(offered: Iterable[Option]) -> list[click.Option]:
    keys = [f"{typed(each.name)}: {help_of(each)}" for each in offered if each.way == _RECIPE]
    about = " ".join(["Changes to how the workload is trained or run.", *keys])
    option = click.Option([f"name_{_RECIPE}", "--recipe"], multiple=True, metavar="KEY=VALUE,...", help=about)
    return [option] if keys else []


def _laid_out(each: Option) -> Iterator[click.Parameter]:
    # Yield the parser's parameters for an option: positional, named, or both.
    if each.way == _RECIPE:
        return
    is_required = each.initial is msgspec.NODEFAULT
    by_place = each.bare or (each.place and (each.many or is_required))
    if by_place:
        yield click.Argument(
            [f"place_{each.name}"],
            help=help_of(each),
            nargs=-1 if each.many else 1,
            required=each.bare and is_required,
            metavar=each.metavar if each.bare else f"[{each.name.upper()}]{'...' if each.many else ''}",
            shell_complete=_completing(each),
        )
    if not each.bare:
        yield click.Option(
            [f"name_{each.name}", f"--{typed(each.name)}", *filter(None, [each.short])],
            help=f"Same as the {each.name.upper()} argument." if by_place else help_of(each),
            is_flag=each.base is bool or None,
            multiple=each.many,
            metavar=each.metavar or None,
            shell_complete=_completing(each),
        )


def _given_of(offered: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    # Return the given values by option; a positional argument counts as a value of its option.
    found: dict[str, Any] = {}
    for each in offered:
        places = [given.get(f"place_{each.name}"), given.get(f"name_{each.name}")]
        values = [value for value in places if value not in {None, False, ()}]
        if len(values) > 1 and not each.many:
            twice = " and ".join(map(plain, values))
            raise MisuseError(f"--{typed(each.name)} is given twice: {twice}")
        if values:
            found[each.name] = list(chain(*values)) if each.many else values[0]
    return found


def _recipe_of(words: Iterable[str], offered: Iterable[Option]) -> dict[str, str]:
    # Parse ``weight-type=bfloat16,loss-chunks=8``, given once or several times.
    keys = [typed(each.name) for each in offered if each.way == _RECIPE]
    found: dict[str, str] = {}
    for part in chain(*(each.split(",") for each in words)):
        key, value = (each.strip() for each in part.partition("=")[::2])
        if key.replace("_", "-") not in keys or not value:
            raise MisuseError(
                f"--recipe {plain(part)!r} must be KEY=VALUE with one of the keys {listing(keys)}"
            )
        name = key.replace("-", "_")
        if name in found:
            raise MisuseError(f"--recipe gives {plain(key)} twice")
        found[name] = value
    return found


# --- settings ---------------------------------------------------------------------------------------------


def _settings_of(requests: Iterable[type[msgspec.Struct]]) -> tuple[str, dict[str, Any]]:
    """Return the name of the settings file and its settings; both are empty for a verb without settings.

    Raises:
        MisuseError: If a file is not valid TOML, or has a setting that no verb reads.
    """
    if not any(each.way == "setting" for each in chain(*map(options_of, requests))):
        return "", {}
    file, values = _read_settings(Path())
    kinds = chain(*(verb.requests for verb in VERBS.values())) if values else ()
    every = [*chain(*map(options_of, kinds))]
    known = {each.name for each in every if each.way == "setting"}
    not_settings = {each.name: named(each) for each in every if each.way in {"option", _RECIPE}}
    for name in sorted(values.keys() - known):
        if name in not_settings:
            raise MisuseError(
                f"{file}: {typed(name)} is not a setting: give {not_settings[name]} on the command line"
            )
        raise unknown_name(
            f"setting in {file}", typed(name), map(typed, get_close_matches(name.lower(), known))
        )
    return file, values


def _read_settings(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a folder's settings file. Parent folders are not searched.

    Raises:
        BadContentError: If a file is not UTF-8 text.
        MisuseError: If it is not valid TOML, or its settings are not a table.
    """
    import tomllib

    for name, keys in FILES.items():
        if not (folder / name).is_file():
            continue
        try:
            table: Any = tomllib.loads(read_text(folder / name, TABLE_BYTES, follow_links=True))
        except tomllib.TOMLDecodeError as error:
            raise MisuseError(f"{name} is not valid TOML: {plain(str(error), 200)}") from None
        for key in keys:
            table = table.get(key, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise MisuseError(f"{name}: {'.'.join(keys)} is not a table of settings")
        if table or not keys:
            return name, {key.replace("-", "_"): value for key, value in table.items()}
    return "", {}


# --- shell completion -------------------------------------------------------------------------------------


def _completing(each: Option) -> Callable[..., Sequence[str]] | None:
    """Return the completer of an option; it looks up names only when a shell requests them.

    A space ends a word in the shell, so an unquoted name gets hyphens instead of spaces, as in GPU keys.
    """
    names = _NAMES.get(each.name, (lambda: each.choices) if each.choices else None)
    if names is None:
        return None

    def completions(_context: Any, _parameter: Any, incomplete: str) -> Sequence[str]:
        found = [name if " " in incomplete else name.replace(" ", "-") for name in names()]
        found = [name.lower() for name in found] if incomplete == incomplete.lower() else found
        return [name for name in dict.fromkeys(found) if name.lower().startswith(incomplete.lower())]

    return completions


def _workloads() -> Iterable[str]:
    from gpubench.decoders import decoder_names
    from gpubench.discovery import workload_names

    return (*workload_names(), *decoder_names(), "all")


def _gpus() -> Iterable[str]:
    # All GPU names, sorted: names that several cards share, such as "H100", short names, and keys.
    from gpubench.specs import find_spec, load_specs

    short = [spec.short_name for spec in load_specs().values() if "(" not in spec.short_name]
    families = Counter(name.split()[0] for name in short if any(map(str.isdigit, name.split()[0])))
    shared = (name for name, cards in families.items() if cards > 1)
    unique = (name for name in short if find_spec(name.replace(" ", "-")))
    return sorted({*shared, *unique, *load_specs()})


def _providers() -> Iterable[str]:
    from gpubench.offers.snapshot import load_offers

    return sorted({offer.provider for offer in load_offers().offers})


# The function that looks up the names for each option.
_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "workload": _workloads,
    "gpu": _gpus,
    "provider": _providers,
}
