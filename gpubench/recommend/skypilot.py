"""Task files that rent the best offers for some minutes, measure there, and bring the results back.

They are SkyPilot tasks, which is what rents machines in the cloud; nothing here rents anything itself. Each
has four brakes: a ceiling on the price of the machine, a time limit of the measurement, one of the whole
task from first call to last, and, where SkyPilot can do so, the machine goes down when idle.

A machine measures exactly what was asked: workload, precision, execution, task, batch, and of one job all
GPUs together. The script asks the same question again in the folder it was asked in.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gpubench.errors import MisuseError, StorageError
from gpubench.files import write_file
from gpubench.labels import gpus_of, offer_name, price_of
from gpubench.measure.request import RunRequest
from gpubench.models import Offer, ParallelMode, Pricing, Row
from gpubench.options import words_of
from gpubench.recommend.economics import billed_hours
from gpubench.recommend.filters import match_gpus
from gpubench.recommend.request import TRY_MINUTES, RankRequest
from gpubench.shared_options import asked_recipe
from gpubench.specs import load_specs
from gpubench.torch_builds import other_build_for
from gpubench.units import format_percent, format_usd, plain

if TYPE_CHECKING:
    from gpubench.recommend.workdir import Workdir

CLOUDS = {
    "aws": "aws",
    "azure": "azure",
    "digitalocean": "do",
    "gcp": "gcp",
    "hyperbolic": "hyperbolic",
    "lambda": "lambda",
    "nebius": "nebius",
    "oci": "oci",
    "paperspace": "paperspace",
    "runpod": "runpod",
    "vast": "vast",
    "verda": "verda",
    "yotta": "yotta",
}
"""Our providers that SkyPilot 0.14 rents from, by its name for them."""

WITHOUT_AUTOSTOP = frozenset({"hyperbolic", "verda", "yotta"})
"""Where SkyPilot refuses a task that asks for it: only the script takes such a machine down."""

WITHOUT_SPOT = frozenset({"do", "hyperbolic", "lambda", "paperspace", "yotta"})
"""Where SkyPilot rents no spot machine."""

INSTANCE_CLOUDS = frozenset({"aws", "azure", "lambda", "oci"})
"""Where our instance name is the cloud's own and chooses the machine; elsewhere the accelerator does."""

ACCELERATORS = {
    "nvidia-a10-24gb": "A10",
    "nvidia-a100-pcie-40gb": "A100",
    "nvidia-a100-pcie-80gb": "A100-80GB",
    "nvidia-a100-sxm-40gb": "A100",
    "nvidia-a100-sxm-80gb": "A100-80GB",
    "nvidia-a100-unstated-40gb": "A100",
    "nvidia-a100-unstated-80gb": "A100-80GB",
    "nvidia-a10g-24gb": "A10G",
    "nvidia-a40-48gb": "A40",
    "nvidia-b200-sxm-180gb": "B200",
    "nvidia-b300-sxm-270gb": "B300",
    "nvidia-geforce-rtx-3090-24gb": "RTX3090",
    "nvidia-geforce-rtx-4090-24gb": "RTX4090",
    "nvidia-geforce-rtx-5090-32gb": "RTX5090",
    "nvidia-gh200-96gb": "GH200",
    "nvidia-h100-nvl-94gb": "H100-NVL",
    "nvidia-h100-pcie-80gb": "H100",
    "nvidia-h100-sxm-80gb": "H100",
    "nvidia-h100-unstated-80gb": "H100",
    "nvidia-h200-sxm-141gb": "H200",
    "nvidia-l4-24gb": "L4",
    "nvidia-l40-48gb": "L40",
    "nvidia-l40s-48gb": "L40S",
    "nvidia-p100-unstated-16gb": "P100",
    "nvidia-rtx-6000-ada-48gb": "RTX6000-Ada",
    "nvidia-rtx-a4000-16gb": "RTXA4000",
    "nvidia-rtx-a5000-24gb": "RTXA5000",
    "nvidia-rtx-a6000-48gb": "RTXA6000",
    "nvidia-tesla-k80-12gb": "K80",
    "nvidia-tesla-p100-pcie-16gb": "P100",
    "nvidia-tesla-p4-8gb": "P4",
    "nvidia-tesla-t4-16gb": "T4",
    "nvidia-tesla-v100-pcie-16gb": "V100",
    "nvidia-tesla-v100-sxm2-16gb": "V100",
    "nvidia-tesla-v100-sxm2-32gb": "V100-32GB",
    "nvidia-v100-unstated-16gb": "V100",
    "nvidia-v100-unstated-32gb": "V100-32GB",
}
"""SkyPilot's names of our GPUs, from its public catalogs; most clouds there do not tell SXM from PCIe."""

ACCELERATORS_AT: dict[str, dict[str, str | None]] = {
    "runpod": {
        "nvidia-a100-sxm-80gb": "A100-80GB-SXM",
        "nvidia-a100-unstated-80gb": None,
        "nvidia-h100-sxm-80gb": "H100-SXM",
        "nvidia-h100-unstated-80gb": None,
        "nvidia-h200-sxm-141gb": "H200-SXM",
        "nvidia-rtx-pro-6000-blackwell-server-96gb": "RTXPRO6000",
        "nvidia-rtx-pro-6000-blackwell-workstation-96gb": "RTXPRO6000-WK",
        "nvidia-tesla-v100-pcie-16gb": None,
        "nvidia-tesla-v100-sxm2-16gb": "V100-SXM2",
        "nvidia-tesla-v100-sxm2-32gb": "V100-SXM2-32GB",
        "nvidia-v100-unstated-16gb": None,
        "nvidia-v100-unstated-32gb": None,
    },
    "vast": {"nvidia-h100-nvl-94gb": "H100", "nvidia-rtx-pro-6000-blackwell-server-96gb": "RTXPRO6000S"},
    "verda": {
        "nvidia-rtx-6000-ada-48gb": "RTX-6000-Ada",
        "nvidia-rtx-pro-6000-blackwell-server-96gb": "RTX-PRO-6000",
    },
}
"""Where a cloud's catalog names a GPU in another way, or (None) does not have it under one name."""

IDLE_MINUTES = 5
SETUP_MINUTES = 15
"""Machine start and installation of torch, counted in the cap on cost."""
TRIAL_MINUTES = TRY_MINUTES + SETUP_MINUTES + IDLE_MINUTES
"""What a trial is paid for."""

GRACE_S = 300
"""After the time limit of the measurement, before the task is cut off."""

PRICE_SLACK = 1.25
"""A machine that costs more than the ranked price by more than this is not rented."""

WORK = "work"
"""The folder beside the tasks that each machine gets a copy of."""

_REGION = re.compile(r"[a-z]+-[a-z]+-?\d\w*|[a-z]+us\d?|[a-z]+(?:europe|north|south)", re.ASCII)
_KEEP = re.compile(r"[^a-z0-9]+")


def rows_to_try(rows: Sequence[Row], gpu: str | None, provider: str | None) -> list[Row]:
    """Return the rows of one GPU, one provider, or both: what is measured of a question that stays whole.

    Raises:
        MisuseError: If none of the ranked offers is theirs, or a GPU is named that nobody knows.
    """
    keys = None if gpu is None else match_gpus((gpu,), {row.offer.gpu_key for row in rows})
    found = [
        row
        for row in rows
        if (keys is None or row.offer.gpu_key in keys)
        and (provider is None or row.offer.provider.casefold() == provider.casefold())
    ]
    if not found:
        named = " ".join(
            f"{option} {plain(value)!r}"
            for option, value in (("--try-gpu", gpu), ("--try-provider", provider))
            if value is not None
        )
        raise MisuseError(f"{named}: none of the {len(rows):,} ranked offers is theirs")
    return found


def write_task_files(
    rows: Sequence[Row],
    request: RankRequest,
    count: int,
    folder: Path,
    *,
    minutes: float,
    wheel: Path | None = None,
    asked_in: Path | None = None,
) -> tuple[list[Path], list[str]]:
    """Write a task file for each of the best offers that SkyPilot can rent, one for each GPU, and a script.

    Beside them stands the folder that every machine gets a copy of: gpubench as a wheel, and the files of the
    models of the user's own.

    Args:
        rows: The ranking, best first.
        request: What was asked: each machine measures it, and the script asks it again at the end.
        count: How many offers to try.
        folder: Where the files go; created where it is missing.
        minutes: Time limit of one measurement.
        wheel: A wheel of gpubench to install; None packs the running one.
        asked_in: The folder that the request's relative paths start from; None is the current one.

    Returns:
        The files to look at, the script last, and why better offers were passed over.

    Raises:
        MisuseError: If none of the offers can be rented that way, or the wheel or a model cannot be carried.
        StorageError: If the folder cannot be written, or holds a link where a folder must be.
    """
    chosen, passed = _choose(rows, count)
    if not chosen:
        raise MisuseError(
            f"--try: none of the ranked offers can be rented through SkyPilot: {'; '.join(passed[:3])}"
        )
    from gpubench.recommend.workdir import pack  # reads how packages are installed: not before it is asked

    workdir = pack(request.workload_names, wheel)
    texts = {
        f"try-{number}-{_slug(row.offer)}.yaml": task_text(row, request, workdir, minutes=minutes)
        for number, row in enumerate(chosen, 1)
    }
    script = _script(list(texts), chosen, request, asked_in or Path.cwd(), limit_s=task_limit_s(minutes))
    for name, data in workdir.files.items():
        _write_below(folder, PurePosixPath(WORK, name), data)
    for name, text in texts.items():
        write_file(folder / name, text.encode(), hint=_HINT)
    write_file(folder / "try.sh", script.encode(), mode=0o777, hint=_HINT)
    return [folder / name for name in (*texts, "try.sh")], passed


_HINT = "name another --out"


def _write_below(folder: Path, name: PurePosixPath, data: bytes) -> None:
    """Write a file below a folder, through no link: one that was planted there would lead out of it."""
    for parent in reversed(name.parents[:-1]):
        if (folder / parent).is_symlink():
            raise StorageError(f"cannot write into {plain(str(parent))}: it is a link; {_HINT}")
    write_file(folder / name, data, hint=_HINT)


def task_text(row: Row, request: RankRequest, workdir: Workdir, *, minutes: float) -> str:
    """Return one SkyPilot task as YAML, with what it likely costs in its head, and what at most."""
    offer = row.offer
    usual = minutes + SETUP_MINUTES + IDLE_MINUTES
    usual_usd = trial_usd(request, (row.usd_per_hour.value or 0.0), usual)
    limit_s = task_limit_s(minutes)
    most_usd = trial_usd(request, most_usd_per_hour(row), limit_s / 60)
    taxed = f", with {format_percent(request.tax)} of tax" if request.tax else ""
    ends = "try.sh takes it down" if CLOUDS[offer.provider] in WITHOUT_AUTOSTOP else "ends by itself"
    head = (
        f"# {gpus_of(offer)} at {offer_name(offer)}, {price_of(row)} expected "
        f"by the price of {plain(offer.price_date, 10)}\n"
        f"# About {usual:g} minutes and {format_usd(usual_usd)}: {ends}. "
        f"try.sh cuts it off after {limit_s / 60:g} minutes: at most {format_usd(most_usd)}{taxed}.\n"
    )
    return head + "".join(_yaml(task_of(row, request, workdir, minutes=minutes)))


def trial_usd(request: RankRequest, usd_per_hour: float, minutes: float) -> float:
    """Return what so many minutes of a machine cost [USD], in whole billing increments and with tax."""
    billed = billed_hours(np.array(minutes / 60), np.array(request.billing_unit_minutes / 60))
    return float(billed) * usd_per_hour * (1 + request.tax)


def task_limit_s(minutes: float) -> int:
    """Return when the script cuts off a task that measures for so many minutes, from its first call [s]."""
    return round((minutes + SETUP_MINUTES + IDLE_MINUTES) * 60) + GRACE_S


def most_usd_per_hour(row: Row) -> float:
    """Return the price above which SkyPilot rents no machine for this offer [USD/h]."""
    return round((row.usd_per_hour.value or 0.0) * PRICE_SLACK, 2)


def task_of(row: Row, request: RankRequest, workdir: Workdir, *, minutes: float) -> dict[str, Any]:
    """Return one SkyPilot task as data: resources, the working folder, set-up, run."""
    offer = row.offer
    cloud = CLOUDS[offer.provider]
    machine = {"accelerators": f"{_accelerator(offer)}:{offer.gpu_count}"}
    if cloud in INSTANCE_CLOUDS and re.fullmatch(r"[\w.-]+", offer.instance, re.ASCII):
        machine = {"instance_type": offer.instance}
    # a region that the cloud knows, and not "eu" or a country
    known = cloud in {"aws", "azure", "gcp"} and _REGION.fullmatch(offer.region or "")
    resources: dict[str, Any] = {
        "infra": f"{cloud}/{offer.region}" if known else cloud,
        **machine,
        "use_spot": offer.pricing is Pricing.SPOT,
        "max_hourly_cost": most_usd_per_hour(row),
        "disk_size": 64,
    }
    if cloud not in WITHOUT_AUTOSTOP:
        resources["autostop"] = {"idle_minutes": IDLE_MINUTES, "down": True}
    runs = runs_of(row, request, workdir.references, minutes=minutes)
    limit_s = round(minutes * 60) // len(runs) + GRACE_S
    measure = (
        f"timeout {limit_s} ~/gpubench-venv/bin/gpubench run {shlex.join(words_of(run))}\n" for run in runs
    )
    return {
        "name": f"gpubench-{_slug(offer)}"[:35].rstrip("-"),
        "workdir": WORK,
        "resources": resources,
        "setup": _SETUP.format(wheel=shlex.quote(f"./{workdir.wheel}[run]"), torch=_torch_for(offer)),
        "run": f"set -e\n{''.join(measure)}",
    }


def runs_of(
    row: Row,
    request: RankRequest,
    references: Mapping[str, str],
    *,
    minutes: float,
    results: Path | None = Path("results"),
) -> tuple[RunRequest, ...]:
    """Return what to measure on an offer, so that the ranking's question is answered exactly there.

    One run holds one batch: where a limit of latency chose the batch, workloads may differ in theirs.

    Args:
        row: The offer's row.
        request: What was asked.
        references: How the machine calls each workload.
        minutes: Time limit of all runs.
        results: Where they go there; None is the usual folder.
    """
    batches: dict[int | Literal["max"] | None, list[str]] = {}
    for name, part in zip(request.workload_names, row.estimates, strict=True):
        batch = request.batch_size if request.max_latency_ms is None else part.case.batch_size
        batches.setdefault(batch, []).append(references[name])
    together = row.offer.gpu_count if request.one_job_over_all_gpus else 1
    return tuple(
        RunRequest(
            workloads=tuple(names),
            precisions=() if request.precision is None else (request.precision,),
            **asked_recipe(request),
            executions=(request.execution,),
            task=request.task,
            batch_size=batch,
            gpus=together,
            jobs=None if together == 1 else "fsdp" if row.parallel_mode is ParallelMode.FSDP else "ddp",
            budget="quick",
            micro="none",
            time_limit_s=round(minutes * 60) // len(batches),
            results=results,
        )
        for batch, names in batches.items()
    )


_SETUP = """set -e
command -v uv >/dev/null || python3 -m pip install --quiet --user uv
export PATH="$HOME/.local/bin:$PATH"
uv venv --python 3.12 ~/gpubench-venv
uv pip install --quiet --python ~/gpubench-venv/bin/python{torch} {wheel}
"""
"""Installs the wheel beside whatever Python the image has: gpubench needs 3.11 or newer."""


def _torch_for(offer: Offer) -> str:
    """Return what pins the build of torch for a GPU that the newest has no kernels for; else nothing."""
    spec = load_specs().get(offer.gpu_key)
    build = None if spec is None else other_build_for(spec.compute_capability)
    return "" if build is None else f" --torch-backend {build.name} 'torch=={build.release}.*'"


def _accelerator(offer: Offer) -> str | None:
    """Return SkyPilot's name of an offer's GPU; None where it has none."""
    default = ACCELERATORS.get(offer.gpu_key)
    return ACCELERATORS_AT.get(offer.provider, {}).get(offer.gpu_key, default)


def _choose(rows: Sequence[Row], count: int) -> tuple[list[Row], list[str]]:
    """Return the best rentable offers, one for each GPU, and why others were passed over."""
    chosen: list[Row] = []
    passed: list[str] = []
    for row in rows:
        if len(chosen) == count:
            break
        reason = _why_not(row, {_accelerator(each.offer) for each in chosen})
        if reason is None:
            chosen.append(row)
        elif reason:
            passed.append(f"{offer_name(row.offer)}: {reason}")
    return chosen, list(dict.fromkeys(passed))


def can_be_tried(row: Row) -> bool:
    """Return whether a task file can rent an offer and measure there what is not measured yet."""
    return _why_not(row, set()) is None


def _why_not(row: Row, tried: set[str | None]) -> str | None:
    """Return why an offer is not tried, "" where another offer of its GPU already is; None to try it."""
    offer = row.offer
    name = _accelerator(offer)
    if (name is not None and name in tried) or row.estimate.basis == "measured":
        return ""
    if offer.pricing not in {Pricing.ON_DEMAND, Pricing.SPOT}:
        return "not for rent by the hour"
    if offer.provider not in CLOUDS:
        return "SkyPilot does not rent from it"
    if offer.pricing is Pricing.SPOT and CLOUDS[offer.provider] in WITHOUT_SPOT:
        return "SkyPilot rents no spot machine there"
    return None if name is not None else "SkyPilot has no name for this GPU there"


def _script(
    names: Sequence[str], rows: Sequence[Row], request: RankRequest, asked_in: Path, *, limit_s: int
) -> str:
    """Return the script that runs each task, fetches its results, and at the end asks the question again."""
    lines = [
        "#!/bin/sh",
        "# Rents each machine in turn, measures there, fetches the results, and takes the machine down, done",
        "# or not. Then it asks the same question again, with what was measured.",
        'cd "$(dirname "$0")" || exit 1',
        'fetched=$(mktemp -d "$PWD/results.XXXXXX") || exit 1',
    ]
    for number, (name, row) in enumerate(zip(names, rows, strict=True), 1):
        cluster = f"gpubench-try-{number}"
        lines += [
            "",
            f"# {gpus_of(row.offer)} at {offer_name(row.offer)}",
            f"trap 'sky down --yes {cluster}; exit 130' INT TERM",
            f"timeout --foreground {limit_s} sky launch --yes --cluster {cluster} {name}",
            f'rsync -rt --no-links {cluster}:sky_workdir/results/ "$fetched/"',
            f"sky down --yes {cluster}",
        ]
    results = words_of(RankRequest(results=request.results))
    return "\n".join(
        [
            *lines,
            "",
            "trap - INT TERM",
            f"cd {shlex.quote(str(asked_in))} || exit 1",
            f'gpubench results add "$fetched" {shlex.join(results)}'.rstrip() + " || exit",
            f"gpubench rank {shlex.join(words_of(request))}".rstrip(),
            "",
        ]
    )


def _slug(offer: Offer) -> str:
    words = f"{offer.provider} {offer.gpu_count}x {_accelerator(offer) or offer.gpu_key}"
    return _KEEP.sub("-", words.casefold()).strip("-")


def _yaml(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Write mappings of scalars and of mappings as YAML; scripts as literal blocks, text as JSON strings."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{key}:\n"
            yield from _yaml(item, f"{indent}  ")
        elif isinstance(item, str) and "\n" in item:
            yield f"{indent}{key}: |\n"
            yield from (f"{indent}  {line}\n" for line in item.rstrip("\n").split("\n"))
        else:
            yield f"{indent}{key}: {json.dumps(item)}\n"
