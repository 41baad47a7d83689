"""The file of a check: its name, what must not be in it, and how it is written and read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import read_json, write_file
from gpubench.measure.privacy import scrub
from gpubench.models import (
    CHECK_VERSION,
    BatchChoice,
    Cause,
    Checkpointing,
    CudaCheck,
    DeviceProfile,
    Execution,
    FindingKind,
    Framework,
    Identity,
    MemoryFormat,
    ParallelMode,
    PartState,
    Precision,
    Status,
    TaskKind,
    Trainable,
    WeightType,
)
from gpubench.profile import load_profiles
from gpubench.readings import h200_readings
from gpubench.record.run_file import is_safe_name
from gpubench.specs import find_spec, load_specs
from gpubench.units import MIB, plain

MOST_BYTES = 16 * MIB
"""A whole check is some hundreds of kilobytes."""
LONGEST_TEXT = 2000
_KINDS = (
    Precision,
    Execution,
    TaskKind,
    MemoryFormat,
    Framework,
    WeightType,
    Checkpointing,
    Trainable,
    ParallelMode,
    Status,
    Cause,
    PartState,
    FindingKind,
)
_PARTS = (
    "device",
    "precision",
    "clock",
    "graph",
    "load",
    "faults",
    "compile",
    "quick",
    "scaling",
    "cases",
    "fp32",
)
"""Those of a check; the last only of files before version 3."""
_OF_ONE_CARD = re.compile("UUID|Serial|PciInfo|Board|MinorNumber|Pids|Accounting|InstanceId")
"""Calls of the driver library that tell one card, or one machine, from another of its kind."""
_WORDS = frozenset(
    (
        *(str(word) for kind in _KINDS for word in kind),
        *(word for literal in (BatchChoice, Identity) for word in get_args(literal)),
        *_PARTS,
        *(
            "cuda-check",
            "waiting",
            "row",
            "cuda",
            "nvml",
            "hung",
            "none",
            "counter",
            "power_integral",
            "ieee",
            "tf32",
        ),
    )
)
"""What gpubench itself writes where no text of others can stand."""
_FORMS = re.compile(r"nvml[A-Z]\w+|\d{4}-\d\d-\d\dT[\d:.]+Z|\d+(\.\d+){1,2}(\+(cu|rocm)\d[\d.]*|\+cpu)?")
"""Names of driver calls, times and versions."""


def file_name(device: DeviceProfile, torch: str | None) -> str:
    """Return the name of a check's file.

    >>> file_name(DeviceProfile(backend="cuda", gpu_key="nvidia-tesla-t4-16gb"), "2.13.0+cu130")
    'cuda-check-nvidia-tesla-t4-16gb-2.13.0-cu130.json'
    """
    key = _safe(device.gpu_key or device.name or "")
    return f"cuda-check-{key}-{_safe(torch or '')}.json"


def nameless(device: DeviceProfile) -> DeviceProfile:
    """Return a profile without what tells this card from another of its kind."""
    return msgspec.structs.replace(device, uuid=None, device_id=None, pci_bus_id=None, index=None)


def nameless_calls(calls: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the calls of the driver library without the identifiers of cards, and without processes."""
    return tuple(
        {**call, "value": len(call["value"])}  # their names and numbers are somebody's own
        if "RunningProcesses" in call["function"] and isinstance(call["value"], list)
        else dict(call)
        for call in calls
        if not _OF_ONE_CARD.search(call["function"])
    )


def write_check(path: Path, check: CudaCheck) -> None:
    """Replace the file whole; every text in it is scrubbed once more, whatever it came from.

    Raises:
        StorageError: If it cannot be written; the old file is then untouched.
    """
    write_file(path, encode(check), hint="choose another file with -o")


def encode(check: CudaCheck) -> bytes:
    """Return the bytes of a check's file."""
    document = scrubbed(msgspec.to_builtins(check))
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def scrubbed(document: Any) -> Any:
    """Return a document with every text scrubbed but the fixed vocabulary of a check.

    A user called ``nvidia`` on a host called ``h100`` keeps the keys of the catalog: what is public by
    itself tells nothing, and without it the file could not be judged.
    """
    if isinstance(document, str):
        is_fixed = document in _vocabulary() or _FORMS.fullmatch(document) or find_spec(document)
        return document if is_fixed else scrub(document, LONGEST_TEXT)
    if isinstance(document, dict):
        return {key: scrubbed(part) for key, part in document.items()}
    if isinstance(document, list | tuple):
        return [scrubbed(part) for part in document]
    return document


@cache
def _vocabulary() -> frozenset[str]:
    profiles, micro = load_profiles(), h200_readings().micro
    return frozenset(
        (
            *_WORDS,
            *profiles,
            *(profile.sample_unit for profile in profiles.values()),
            *(word for probe in micro for word in probe if word is not None),
            *(spec.architecture for spec in load_specs().values()),
            *(name for spec in load_specs().values() for name in (*spec.shared_names, *spec.driver_names)),
        )
    )


def read_check(path: Path) -> CudaCheck:
    """Read the file of a check, whoever wrote it.

    Raises:
        MisuseError: If it is missing, too large, of a later gpubench, or no check.
    """
    check = read_json(path, CudaCheck, MOST_BYTES, what="a check of gpubench", follow_links=True)
    if check.kind != "cuda-check" or not 1 <= check.schema_version <= CHECK_VERSION:
        raise MisuseError(
            f"{path.name} is {plain(check.kind)} of schema {check.schema_version}; this gpubench reads "
            f"cuda-check up to {CHECK_VERSION}"
        )
    return check


def _safe(text: str) -> str:
    name = re.sub(r"(?:[^a-z0-9.]|\.{2,})+", "-", text.lower()).strip("-.")[:60].strip("-.")
    return name if is_safe_name(name) else "unknown"
