"""Task files that rent the best offers for some minutes, measure there, and bring the results back.

They are SkyPilot tasks, which is what rents machines in the cloud; nothing here rents anything itself. Each
has four brakes: a ceiling on the price of the machine, a time limit of the measurement, one of the whole
task from first call to last, and the machine goes down when idle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubench.errors import MisuseError
from gpubench.files import write_file
from gpubench.labels import gpus_of, offer_name, price_of
from gpubench.models import Offer, Pricing, RankedOffer
from gpubench.units import format_usd, plain

CLOUDS = {
    "aws": "aws",
    "azure": "azure",
    "gcp": "gcp",
    "lambda": "lambda",
    "runpod": "runpod",
    "vast": "vast",
    "nebius": "nebius",
    "paperspace": "paperspace",
    "digitalocean": "do",
}
"""Our providers that SkyPilot rents from, by its name for them."""

INSTANCE_CLOUDS = frozenset({"aws", "azure", "lambda"})
"""Where our instance name is the cloud's own and chooses the machine; elsewhere the accelerator does."""

ACCELERATORS = {
    "nvidia-a10-24gb": "A10",
    "nvidia-a100-pcie-40gb": "A100",
    "nvidia-a100-pcie-80gb": "A100-80GB",
    "nvidia-a100-sxm-40gb": "A100",
    "nvidia-a100-sxm-80gb": "A100-80GB",
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
    "nvidia-h200-sxm-141gb": "H200",
    "nvidia-l4-24gb": "L4",
    "nvidia-l40-48gb": "L40",
    "nvidia-l40s-48gb": "L40S",
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
}
"""SkyPilot's names of our GPUs, from its public catalogues; most clouds there do not tell SXM from PCIe."""

ACCELERATORS_AT: dict[str, dict[str, str | None]] = {
    "runpod": {
        "nvidia-a100-sxm-80gb": "A100-80GB-SXM",
        "nvidia-h100-sxm-80gb": "H100-SXM",
        "nvidia-h200-sxm-141gb": "H200-SXM",
        "nvidia-rtx-pro-6000-blackwell-server-96gb": "RTXPRO6000",
        "nvidia-rtx-pro-6000-blackwell-workstation-96gb": "RTXPRO6000-WK",
        "nvidia-tesla-v100-pcie-16gb": None,
        "nvidia-tesla-v100-sxm2-16gb": "V100-SXM2",
        "nvidia-tesla-v100-sxm2-32gb": "V100-SXM2-32GB",
    }
}
"""Where a cloud's catalogue names a GPU in another way, or (None) does not have it."""

IDLE_MINUTES = 5
SETUP_MINUTES = 15
"""Machine start and installation of torch, counted in the cap on cost."""

GRACE_S = 300
"""After the time limit of the measurement, before the task is cut off."""

PRICE_SLACK = 1.25
"""A machine dearer than the ranked price by more than this is not rented."""

_REGION = re.compile(r"[a-z]+-[a-z]+-?\d\w*|[a-z]+us\d?|[a-z]+(?:europe|north|south)", re.ASCII)
_KEEP = re.compile(r"[^a-z0-9]+")


def check_trial(count: int | None, folder: Path | None, minutes: float) -> None:
    """Say what is wrong with the options of a trial.

    Raises:
        MisuseError: If one of --try and --out is missing, or a figure is not positive.
    """
    if (count is None) != (folder is None):
        raise MisuseError("--try N and --out DIR go together")
    if (count is not None and count < 1) or not minutes > 0:
        raise MisuseError(f"--try {count} for {minutes:g} minutes: both must be above 0")


def write_trials(
    rows: Sequence[RankedOffer], count: int, folder: Path, *, minutes: float, workloads: Sequence[str]
) -> tuple[list[Path], list[str]]:
    """Write a task file for each of the best offers that SkyPilot can rent, one for each GPU, and a script.

    Args:
        rows: The ranking, best first.
        count: How many offers to try.
        folder: Where the files go; created where it is missing.
        minutes: Time limit of one measurement.
        workloads: What to measure.

    Returns:
        The files, and why better offers were passed over.

    Raises:
        MisuseError: If none of the offers can be rented that way.
        StorageError: If the folder cannot be written.
    """
    chosen, passed = _choose(rows, count)
    if not chosen:
        raise MisuseError(
            f"--try: none of the ranked offers can be rented through SkyPilot: {'; '.join(passed[:3])}"
        )
    texts = {
        f"try-{number}-{_slug(row.offer)}.yaml": task_text(row.offer, minutes=minutes, workloads=workloads)
        for number, row in enumerate(chosen, 1)
    }
    script = _script(
        list(texts), chosen, limit_s=round((minutes + SETUP_MINUTES + IDLE_MINUTES) * 60) + GRACE_S
    )
    for name, text in texts.items():
        write_file(folder / name, text.encode(), hint="name another --out")
    write_file(folder / "try.sh", script.encode(), mode=0o777, hint="name another --out")
    return [folder / name for name in (*texts, "try.sh")], passed


def task_text(offer: Offer, *, minutes: float, workloads: Sequence[str]) -> str:
    """Return one SkyPilot task as YAML, with what it can cost at most in its head."""
    most_usd = float(offer.price_usd_per_hour) * (minutes + SETUP_MINUTES + IDLE_MINUTES) / 60
    head = (
        f"# {gpus_of(offer)} at {offer_name(offer)}, {price_of(offer)} on {plain(offer.price_date, 10)}\n"
        f"# Ends by itself: about {minutes + SETUP_MINUTES + IDLE_MINUTES:g} minutes, "
        f"at most about {format_usd(most_usd)}.\n"
    )
    return head + "".join(_yaml(task_of(offer, minutes=minutes, workloads=workloads)))


def task_of(offer: Offer, *, minutes: float, workloads: Sequence[str]) -> dict[str, Any]:
    """Return one SkyPilot task as data: resources, the checkout as its working folder, set-up, run."""
    cloud = CLOUDS[offer.provider]
    place = f"{cloud}/{offer.region}" if offer.region and _is_region(cloud, offer.region) else cloud
    resources: dict[str, Any] = {
        "infra": place,
        **_machine(cloud, offer),
        "use_spot": offer.pricing is Pricing.SPOT,
        "max_hourly_cost": round(float(offer.price_usd_per_hour) * PRICE_SLACK, 2),
        "disk_size": 64,
        "autostop": {"idle_minutes": IDLE_MINUTES, "down": True},
    }
    limit_s = round(minutes * 60)
    names = " ".join(_shell(name) for name in workloads)
    return {
        "name": f"gpubench-{_slug(offer)}"[:40].rstrip("-"),
        "workdir": ".",
        "resources": resources,
        "setup": _SETUP,
        "run": (
            "set -e\n"
            f"timeout {limit_s + GRACE_S} ~/gpubench-venv/bin/gpubench run --quick --time-limit {limit_s} "
            f"--results results {names}\n"
        ),
    }


_SETUP = """set -e
command -v uv >/dev/null || python3 -m pip install --quiet --user uv
export PATH="$HOME/.local/bin:$PATH"
uv venv --python 3.12 ~/gpubench-venv
uv pip install --quiet --python ~/gpubench-venv/bin/python '.[run]'
"""
"""Installs this checkout beside whatever Python the image has: gpubench needs 3.11 or newer."""


def _machine(cloud: str, offer: Offer) -> dict[str, str]:
    """Return what chooses the machine: the cloud's own name of it, else GPU and count."""
    if cloud in INSTANCE_CLOUDS and re.fullmatch(r"[\w.-]+", offer.instance, re.ASCII):
        return {"instance_type": offer.instance}
    return {"accelerators": f"{_accelerator(offer)}:{offer.gpu_count}"}


def _accelerator(offer: Offer) -> str | None:
    """Return SkyPilot's name of an offer's GPU; None where it has none."""
    default = ACCELERATORS.get(offer.gpu_key)
    return ACCELERATORS_AT.get(offer.provider, {}).get(offer.gpu_key, default)


def _choose(rows: Sequence[RankedOffer], count: int) -> tuple[list[RankedOffer], list[str]]:
    """Return the best rentable offers, one for each GPU, and why others were passed over."""
    chosen: list[RankedOffer] = []
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


def _why_not(row: RankedOffer, tried: set[str | None]) -> str | None:
    """Return why an offer is not tried, "" where another offer of its GPU already is; None to try it."""
    offer = row.offer
    name = _accelerator(offer)
    if (name is not None and name in tried) or row.estimate.basis == "measured":
        return ""
    if offer.pricing not in {Pricing.ON_DEMAND, Pricing.SPOT}:
        return "not for rent by the hour"
    if offer.provider not in CLOUDS:
        return "SkyPilot does not rent from it"
    return None if name is not None else "SkyPilot has no name for this GPU there"


def _script(names: Sequence[str], rows: Sequence[RankedOffer], *, limit_s: int) -> str:
    """Return the script that launches each task, fetches its results, takes it down, and adds them."""
    lines = [
        "#!/bin/sh",
        "# Run this in the gpubench checkout. Each machine is taken down after its task, done or not,",
        "# and goes down by itself when idle.",
        'here=$(dirname "$0")',
        'mkdir -p "$here/results"',
    ]
    for number, (name, row) in enumerate(zip(names, rows, strict=True), 1):
        cluster = f"gpubench-try-{number}"
        lines += [
            "",
            f"# {gpus_of(row.offer)} at {offer_name(row.offer)}",
            f'if timeout {limit_s} sky launch --yes --cluster {cluster} "$here/{name}"',
            f'then rsync -a {cluster}:sky_workdir/results/ "$here/results/"',
            "fi",
            f"sky down --yes {cluster}",
        ]
    return "\n".join([*lines, "", 'gpubench results add "$here/results" && gpubench rank', ""])


def _is_region(cloud: str, region: str) -> bool:
    """Return whether a region of ours is one that the cloud knows, and not "eu" or a country."""
    return cloud in {"aws", "azure", "gcp"} and _REGION.fullmatch(region) is not None


def _slug(offer: Offer) -> str:
    words = f"{offer.provider} {offer.gpu_count}x {_accelerator(offer) or offer.gpu_key}"
    return _KEEP.sub("-", words.casefold()).strip("-")


def _shell(word: str) -> str:
    return word if re.fullmatch(r"[\w./:-]+", word, re.ASCII) else "'" + word.replace("'", "'\\''") + "'"


def _yaml(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Write mappings of scalars and of mappings as YAML; scripts as literal blocks, text as JSON strings."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{key}:\n"
            yield from _yaml(item, f"{indent}  ")
        elif isinstance(item, str) and "\n" in item:
            yield f"{indent}{key}: |\n"
            yield from (f"{indent}  {line}\n" for line in item.splitlines())
        else:
            yield f"{indent}{key}: {json.dumps(item)}\n"
