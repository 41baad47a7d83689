"""Tasks for SkyPilot and dstack that rent a recommended machine, measure on it, and return the run.

SkyPilot (0.14) or dstack (0.22) rents the machine; this module never does. The cost is limited by a maximum
hourly price, a time limit for the measurement, another for the whole task, and automatic shutdown of an idle
machine if its cloud supports that. ``gpubench run`` cannot train published language models, so these get a
training script for the stack that the prediction assumed.
"""

import importlib.metadata
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np

from gpubench import (
    discovery,
    folders,
    foreign_code,
    installing,
    labels,
    options,
    specs,
    torch_builds,
    user_model,
)
from gpubench.decoders import Decoder, find_decoder
from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, decode_json, read_bytes, write_file
from gpubench.interval import Interval
from gpubench.measure.request import RunRequest
from gpubench.models import RANKING_SCHEMA, Checkpointing, ParallelMode, Pricing
from gpubench.profile import profile_of
from gpubench.recommend import economics, filters
from gpubench.recommend.request import RankRequest
from gpubench.units import GIB, format_usd, plain

# Minutes to start the machine and install torch, to idle before shutdown, and of grace after a time limit.
_SETUP_MINUTES, _IDLE_MINUTES, _GRACE_MINUTES = 15, 5, 5
# No machine is rented at more than this many times the ranked price.
_PRICE_SLACK = 1.25
# Assumed disk size without the weights of a published model.
DISK_GB = 64
# Each tool's name, task file and commands.
_TOOLS: Mapping[str, Mapping[str, str]] = {
    "sky": {
        "name": "SkyPilot",
        "file": "task.yaml",
        "launch": "sky launch --yes --cluster {name} task.yaml",
        "fetch": 'rsync -rt --no-links {name}:sky_workdir/results/ "$fetched/"',
        "down": "sky down --yes {name}",
    },
    "dstack": {
        "name": "dstack",
        "file": "try.dstack.yml",
        "launch": "dstack apply --yes --file try.dstack.yml",
        "fetch": 'dstack logs {name} | grep schema_version | tail -n 1 > "$fetched/run.json"',
        "down": "dstack stop --yes {name}",
    },
}

# A region name of a cloud, such as us-east-1 or westus2; not "eu" or a country.
_REGION = re.compile(r"[a-z]+-[a-z]+-?\d\w*|[a-z]+us\d?|[a-z]+(?:europe|north|south)", re.ASCII)
# The parts of a checkout that are needed to install gpubench.
_SOURCE = ("gpubench", "workloads", "results/shared", "pyproject.toml", "README.md", "LICENSE")


class Row(msgspec.Struct, frozen=True):
    """The fields of a row of ``gpubench rank --json`` that a task needs."""

    provider: str
    instance: str
    region: str | None
    gpu_key: str
    gpu_count: options.AtLeastOne
    pricing: Pricing
    price_date: str
    price_usd_per_hour: options.Positive
    basis: str
    batch_size: int | None
    samples_per_s: float | None = None
    samples_per_s_low: float | None = None
    samples_per_s_high: float | None = None

    @property
    def name(self) -> str:
        """GPUs and seller in words: "2x L4 at aws g6.12xlarge"."""
        words = [self.provider, "" if self.instance == labels.gpu_name(self.gpu_key) else self.instance]
        words += ["(spot)"] if self.pricing is Pricing.SPOT else []
        return f"{labels.gpus(self.gpu_key, self.gpu_count)} at {plain(' '.join(filter(None, words)), 60)}"

    @property
    def most_usd_per_hour(self) -> float:
        """The price above which no machine is rented."""
        return round(self.price_usd_per_hour * _PRICE_SLACK, 2)


class Question(msgspec.Struct, frozen=True):
    """The options of the ranking, as given."""

    asked: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """The fields of a document of ``gpubench rank --json`` that a task needs."""

    question: Question
    rows: tuple[Row, ...]


def _read_answer(path: Path) -> Answer:
    """Read a document of ``gpubench rank --json``.

    Raises:
        MisuseError: If the file is not a ranking, or has a version that this gpubench does not read.
    """
    what, hint = "an answer", "gpubench rank --json writes one"
    data = read_bytes(path, TABLE_BYTES, follow_links=True)
    stated = decode_json(data, dict[str, Any], path, what=what, hint=hint).get("schema", "no schema")
    if stated != RANKING_SCHEMA:
        said = f"{plain(path.name, 300)} has {plain(str(stated), 80)}"
        raise MisuseError(f"{said}, and this gpubench reads only {RANKING_SCHEMA}: {hint}")
    return decode_json(data, Answer, path, what=what, hint=hint)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work on the machine: setup commands, the measuring command, the files to copy, the disk size.

    Attributes:
        is_run: Whether the command is ``gpubench run``, which writes a run to fetch.
    """

    setup: tuple[str, ...]
    command: str
    files: Mapping[str, bytes]
    is_run: bool
    disk_gb: int = DISK_GB


class Trial(msgspec.Struct, frozen=True):
    """The files written, and what was left out.

    Attributes:
        script: Script that rents the machine, measures there and shuts it down.
        machine: The GPUs and the seller, with the likely and the maximum cost.
        passed_over: Better rows that no tool can launch, with the reasons.
        without_task: Why a tool has no task, by the tool's name.
    """

    script: Path
    machine: str
    passed_over: Sequence[str]
    without_task: Mapping[str, str]


def write_trial(answer: Path, folder: Path, gpu: str | None, minutes: float) -> Trial:
    """Write tasks for the best row that a tool can launch, their working folder, and a script that runs one.

    Args:
        answer: A document of ``gpubench rank --json``.
        folder: Where the tasks, ``try.sh`` and ``work`` go; created if missing.
        gpu: The GPU to measure; None takes the best row.
        minutes: Time limit of the measurement.

    Raises:
        MisuseError: If the file is not a ranking, no row can be launched, a model cannot be copied, or the
            folder is not empty, because its files would be copied too.
        StorageError: If the folder cannot be written.
    """
    ranking = _read_answer(answer)
    request = options.request_from(RankRequest, ranking.question.asked, "gpubench.rank")
    row, passed_over = choose(ranking.rows, gpu)
    work = work_of(row, request, minutes)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MisuseError(f"{plain(str(folder))} is not an empty folder: name another --output")
    usual_minutes = minutes + _SETUP_MINUTES + _IDLE_MINUTES
    usual_usd = usd_of(request, row.price_usd_per_hour, usual_minutes)
    most_usd = usd_of(request, row.most_usd_per_hour, usual_minutes + _GRACE_MINUTES)
    about = f"{row.name}: about {format_usd(usual_usd)}, at most {format_usd(most_usd)}"
    tasks, reasons = tasks_of(row, work, minutes), {tool: why_not(row, tool) for tool in _TOOLS}
    written = {f"work/{name}": data for name, data in work.files.items()}
    for tool, task in tasks.items():
        head = f"# {about}, at the price of {plain(row.price_date, 10)}.\n"
        written[_TOOLS[tool]["file"]] = f"{head}{json.dumps(task, indent=2)}\n".encode()
    commands = {word: text.format(name=name_of(row)) for word, text in _TOOLS[next(iter(tasks))].items()}
    back = _BACK if work.is_run else "{down}\n"
    written["try.sh"] = (
        (_SCRIPT + back)
        .format(
            **commands,
            about=about,
            limit_s=round(60 * (usual_minutes + _GRACE_MINUTES)),
            asked_in=shlex.quote(str(Path.cwd())),
            results=shlex.join(options.words_of(RankRequest(results=request.results))),
            question=shlex.join(options.words_of(request)),
        )
        .encode()
    )
    for name, data in written.items():
        write_file(folder / name, data, hint="name another --output")
    return Trial(
        script=(folder.resolve() if folder.is_symlink() else folder) / "try.sh",
        machine=about,
        passed_over=passed_over,
        without_task={_TOOLS[tool]["name"]: reason for tool, reason in reasons.items() if reason is not None},
    )


_SCRIPT = """#!/bin/sh
# {about}.
# Rents the machine, measures there, and shuts it down whatever happens.
cd "$(dirname "$0")" || exit 1
fetched=$(mktemp -d "$PWD/results.XXXXXX") || exit 1
trap '{down}; exit 130' INT TERM
timeout --foreground {limit_s} {launch}
"""
# Fetches the run, and ranks again with it.
_BACK = """{fetch}
{down}
trap - INT TERM
cd {asked_in} || exit 1
gpubench results add "$fetched" {results} || exit
gpubench rank {question}
"""
# dstack cannot copy files back, so the run is printed and read from the log.
_PRINT = "cat results/runs/*/*.json"


def usd_of(request: RankRequest, usd_per_hour: float, minutes: float) -> float:
    """Return the cost of this many minutes of a machine [USD], in whole billing increments and with tax."""
    billed = economics.billed_hours(np.array(minutes / 60), np.array(request.billing_unit_minutes / 60))
    return float(billed) * usd_per_hour * (1 + request.tax)


# --- which machine --------------------------------------------------------------------------------------


@cache
def clouds() -> Mapping[str, Mapping[str, str]]:
    """Return what the tools can do at each provider that at least one of them supports."""
    return {row["provider"]: row for row in folders.data_rows("rented_clouds.csv")}


@cache
def accelerator(provider: str, gpu_key: str, tool: str = "sky") -> str:
    """Return a tool's name for a GPU at a provider, else its usual name for it; empty if it has none."""
    names = {(row["provider"], row["gpu_key"]): row[tool] for row in folders.data_rows("rented_gpus.csv")}
    seller = "" if tool == "dstack" else provider  # dstack has its own names, independent of the seller
    return names.get((seller, gpu_key), names.get(("", gpu_key), ""))


def choose(rows: Sequence[Row], gpu: str | None) -> tuple[Row, Sequence[str]]:
    """Return the best row that a tool can launch, and why better ones were skipped.

    Raises:
        MisuseError: If no row can be launched, or the named GPU is unknown.
    """
    keys = {row.gpu_key for row in rows}
    meant = keys if gpu is None else filters.meant_by(gpu, keys)
    passed_over: dict[str, None] = {}
    for row in (row for row in rows if row.gpu_key in meant):
        reasons = dict.fromkeys(why_not(row, tool) for tool in _TOOLS)
        if None in reasons:
            return row, [*passed_over]
        passed_over[f"{row.name}: {' and '.join(filter(None, reasons))}"] = None
    reasons_given = "; ".join([*passed_over][:3]) or f"it has no {plain(gpu or 'row')}"
    raise MisuseError(f"neither SkyPilot nor dstack can launch a row of this answer: {reasons_given}")


def why_not(row: Row, tool: str) -> str | None:
    """Return why a tool cannot try a row; None if it can."""
    cloud = clouds().get(row.provider, {})
    is_sky_spot, tool_name = tool == "sky" and row.pricing is Pricing.SPOT, _TOOLS[tool]["name"]
    reasons = (
        (row.basis == "measured", "it has been measured already"),
        (row.pricing not in {Pricing.ON_DEMAND, Pricing.SPOT}, "it is not rented by the hour"),
        (not cloud.get(tool), f"{tool_name} does not rent from {plain(row.provider, 40)}"),
        (is_sky_spot and cloud.get("spot") == "no", "SkyPilot does not rent spot machines there"),
        (
            not accelerator(row.provider, row.gpu_key, tool),
            f"{tool_name} has no name for this GPU there",
        ),
    )
    return next((words for applies, words in reasons if applies), None)


def name_of(row: Row) -> str:
    """Return a name for the machine, of lowercase letters, digits and hyphens."""
    words = f"gpubench {row.provider} {labels.gpus(row.gpu_key, row.gpu_count)}".lower()
    return re.sub(r"[^a-z0-9]+", "-", words)[:35].rstrip("-")


def tasks_of(row: Row, work: Work, minutes: float) -> dict[str, dict[str, Any]]:
    """Return the task of each tool that can launch the row, as data.

    A task states the resources, the working folder, the setup, the measurement, and all cost limits.
    """
    cloud, memory_bytes = clouds()[row.provider], specs.load_specs()[row.gpu_key].memory_bytes
    machine = {"accelerators": f"{accelerator(row.provider, row.gpu_key)}:{row.gpu_count}"}
    if cloud["instance_names"] == "yes" and re.fullmatch(r"[\w.-]+", row.instance, re.ASCII):
        machine = {"instance_type": row.instance}
    is_known = cloud["regions"] == "yes" and _REGION.fullmatch(row.region or "")
    stops = {"autostop": {"idle_minutes": _IDLE_MINUTES, "down": True}} if cloud["autostop"] == "yes" else {}
    # If cards with different memory have that name, this requests enough memory.
    memory = {} if memory_bytes is None else {"memory": f"{round(0.9 * memory_bytes / GIB)}GB.."}
    dstack_gpu = accelerator(row.provider, row.gpu_key, "dstack")
    made: dict[str, dict[str, Any]] = {
        "sky": {
            "name": name_of(row),
            "workdir": "work",
            "resources": {
                "infra": f"{cloud['sky']}/{row.region}" if is_known else cloud["sky"],
                **machine,
                "use_spot": row.pricing is Pricing.SPOT,
                "max_hourly_cost": row.most_usd_per_hour,
                "disk_size": work.disk_gb,
                **stops,
            },
            "setup": "\n".join(("set -e", *work.setup, "")),
            "run": f"set -e\n{work.command}\n",
        },
        "dstack": {
            "type": "task",
            "name": name_of(row),
            "python": "3.12",
            "files": ["work:/work"],
            "working_dir": "/work",
            "commands": ["set -e", *work.setup, work.command, *([_PRINT] if work.is_run else [])],
            "resources": {
                "gpu": {"name": dstack_gpu, "count": row.gpu_count, **memory},
                "disk": f"{work.disk_gb}GB..",
            },
            "backends": [cloud["dstack"]],
            "spot_policy": "spot" if row.pricing is Pricing.SPOT else "on-demand",
            "max_price": row.most_usd_per_hour,
            "max_duration": f"{round(minutes + _SETUP_MINUTES + _GRACE_MINUTES)}m",
            "idle_duration": f"{_IDLE_MINUTES}m",
        },
    }
    return {tool: task for tool, task in made.items() if why_not(row, tool) is None}


# --- the work on the machine ----------------------------------------------------------------------------

_BIN = "~/gpubench-venv/bin"
_VENV = (
    "command -v uv >/dev/null || python3 -m pip install --quiet --user uv",
    'export PATH="$HOME/.local/bin:$PATH"',
    "uv venv --python 3.12 ~/gpubench-venv",
)
_TRAINS_WITH = "torch transformers peft trl datasets accelerate bitsandbytes liger-kernel"


def work_of(row: Row, request: RankRequest, minutes: float) -> Work:
    """Return the machine's work: gpubench measures the workloads, or a script trains a published model.

    Raises:
        MisuseError: If a published model is requested together with others, or a file to copy is missing.
    """
    limit = f"timeout {round(60 * (minutes + _GRACE_MINUTES))} {_BIN}"
    spec = specs.load_specs().get(row.gpu_key)
    build = None if spec is None else torch_builds.other_build_for(spec.compute_capability)
    torch = "" if build is None else f" --torch-backend {build.name} 'torch=={build.release}.*'"
    install = f"uv pip install --quiet --python {_BIN}/python{torch} "
    decoders = [decoder for name in request.workload_names if (decoder := find_decoder(name))]
    if decoders and len(request.workload_names) > 1:
        raise MisuseError("a published language model can only be tried alone: rank one workload")
    if decoders:
        script = _training_script(row, request, decoders[0]).encode()
        launch = f"{limit}/torchrun --nproc-per-node {row.gpu_count} train.py"
        setup = (*_VENV, install + _TRAINS_WITH)
        disk_gb = DISK_GB + round(2 * decoders[0].counted_parameters / 1e9)  # its weights in 16 bits
        return Work(setup=setup, command=launch, files={"train.py": script}, is_run=False, disk_gb=disk_gb)
    package, files = package_to_install()
    references = {name: carried(name, files) for name in request.workload_names}
    measure = shlex.join(options.words_of(run_of(row, request, references, minutes)))
    return Work(
        setup=(*_VENV, install + shlex.quote(package)),
        command=f"{limit}/gpubench run {measure}",
        files=files,
        is_run=True,
    )


def _training_script(row: Row, request: RankRequest, decoder: Decoder) -> str:
    # Return a script that trains a published model with the stack of its prediction: PEFT with TRL.
    (name,) = request.workload_names
    profile = profile_of(name, options.asked_recipe(request), gpu_count=row.gpu_count)
    predicted = Interval(row.samples_per_s, row.samples_per_s_low, row.samples_per_s_high)
    return Template(folders.package_text("data/train_template.txt")).substitute(
        model=decoder.hub_name,
        model_literal=repr(decoder.hub_name),
        gpu_count=row.gpu_count,
        predicted=predicted.text(),
        machine=row.name,
        trainable_literal=repr(str(profile.recipe.trainable)),
        context=profile.tokens_per_sample,
        batch_size=row.batch_size or profile.main_batch,
        checkpointing=profile.recipe.checkpointing is not Checkpointing.NONE,
        chunked_loss=profile.recipe.loss_chunks > 1,
        shared_out=profile.parallel_mode is ParallelMode.FSDP,
    )


def run_of(row: Row, request: RankRequest, references: Mapping[str, str], minutes: float) -> RunRequest:
    """Return the run that measures exactly the case that was ranked.

    Raises:
        MisuseError: If a latency limit chose a batch for each of several workloads: a run has only one batch.
    """
    is_limited = request.max_latency_ms is not None
    if is_limited and len(references) > 1:
        raise MisuseError("a latency limit gives each workload its own batch: rank one workload")
    mode = _mode_of(row, request) if row.gpu_count > 1 and request.one_job_over_all_gpus else None
    is_one_job = mode in options.JOB_MODES
    return RunRequest(
        workloads=tuple(references.values()),
        precisions=() if request.precision is None else (request.precision,),
        **options.asked_recipe(request),
        executions=(request.execution,),
        task=request.task,
        batch_size=row.batch_size if is_limited else request.batch_size,
        gpus=row.gpu_count if is_one_job else 1,
        jobs=str(mode) if is_one_job else None,
        budget="quick",
        micro="none",
        time_limit_s=round(minutes * 60),
        results=Path("results"),
    )


def _mode_of(row: Row, request: RankRequest) -> ParallelMode:
    """Return how the GPUs of a machine share the job. The row does not say, so the machine is ranked again.

    Raises:
        MisuseError: If no price of this machine is left.
    """
    from gpubench.recommend.rank import ranked

    of_machine = msgspec.structs.replace(request, gpus=(row.gpu_key,), count=row.gpu_count, limit=1, draws=1)
    return ranked(of_machine).rows[0].parallel_mode


# --- files to copy ---------------------------------------------------------------------------------------


def package_to_install() -> tuple[str, dict[str, bytes]]:
    """Return the source from which the machine installs gpubench, and the files to copy for it.

    The source is the running or installed one: the package index may have another package of that name.

    Raises:
        MisuseError: If that source no longer exists.
    """
    root, origin = discovery.checkout(), {}
    if root is None:
        installed = importlib.metadata.distributions(name=installing.DISTRIBUTION)
        recorded = next((each.read_text("direct_url.json") for each in installed), None)  # see PEP 610
        origin = json.loads(recorded or "{}")
        if vcs := origin.get("vcs_info"):
            return f"{installing.DISTRIBUTION}[run] @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}", {}
        root = Path(unquote(origin.get("url", "/").removeprefix("file://")))
    if not (root / "pyproject.toml").is_file():
        where = plain(origin.get("url", "not known"))
        raise MisuseError(
            f"the checkout that gpubench was installed from is gone ({where}), so it cannot be copied to "
            "the machine: install gpubench again from a checkout"
        )
    to_copy = (
        path
        for name in _SOURCE
        for path in sorted([root / name, *(root / name).rglob("*")])
        if path.is_file() and "__pycache__" not in path.parts
    )
    files = {
        f"gpubench-source/{path.relative_to(root).as_posix()}": read_bytes(
            path, TABLE_BYTES, follow_links=True
        )
        for path in to_copy
    }
    return "./gpubench-source[run]", {".skyignore": b"# Copy everything here.\n"} | files


def carried(reference: str, files: dict[str, bytes]) -> str:
    """Return the name of a workload on the machine, and add the files of a user's model to ``files``.

    Raises:
        MisuseError: If its files are unknown or cannot be copied.
    """
    if not user_model.is_own(reference):
        return reference
    from gpubench.profile.cache import files_of

    name = user_model.own_name(reference)
    folder, paths = files_of(reference)
    sources = {path.relative_to(folder).as_posix(): path for path in paths}
    file, is_file, _ = name.partition(".py")
    if not sources or (is_file and f"{file}.py" not in sources):
        kind = "a link" if sources else "part of an installed package"
        raise MisuseError(
            f"{plain(reference)} is {kind}, which cannot be copied to the machine: name the file"
        )
    for there, path in sources.items():
        files[there] = read_bytes(path, foreign_code.MOST_SOURCE_BYTES, follow_links=True)
    if name.startswith(user_model.HUGGING_FACE):
        return f"{user_model.HUGGING_FACE}{next(iter(sources))}"
    return f"./{name}" if is_file else name
