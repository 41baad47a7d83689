"""The file of a check: its name, what must not be in it, and how it is written and read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gpubench.errors import MisuseError, StorageError
from gpubench.measure.privacy import scrub
from gpubench.models import (
    SCHEMA_VERSION,
    Checkpointing,
    CudaCheck,
    DeviceProfile,
    Execution,
    FindingKind,
    Framework,
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
from gpubench.record.store import is_safe_name, replace_file
from gpubench.units import MIB, format_bytes, plain

MOST_BYTES = 16 * MIB
"""A whole check is some hundreds of kilobytes."""
LONGEST_TEXT = 2000
_OF_ONE_CARD = re.compile("UUID|Serial|PciInfo|Board|MinorNumber|Pids|Accounting|InstanceId")
"""Calls of the driver library that tell one card, or one machine, from another of its kind."""
_WORDS = frozenset(
    word
    for kind in (
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
        PartState,
        FindingKind,
    )
    for word in map(str, kind)
)


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
        {**call, "value": _count(call["value"])} if "RunningProcesses" in call["function"] else dict(call)
        for call in calls
        if not _OF_ONE_CARD.search(call["function"])
    )


def write_check(path: Path, check: CudaCheck) -> None:
    """Replace the file whole; every text in it is scrubbed once more, whatever it came from.

    Raises:
        StorageError: If it cannot be written; the old file is then untouched.
    """
    try:
        replace_file(path, encode(check))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; choose another file with -o") from error


def encode(check: CudaCheck) -> bytes:
    """Return the bytes of a check's file."""
    document = msgspec.to_builtins(check)
    known = _WORDS | load_profiles().keys()
    return msgspec.json.format(msgspec.json.encode(_scrubbed(document, known)), indent=1) + b"\n"


def read_check(path: Path) -> CudaCheck:
    """Read the file of a check, whoever wrote it.

    Raises:
        MisuseError: If it is missing, too large, of a later gpubench, or no check.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise MisuseError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise MisuseError(f"{path.name} takes over {format_bytes(MOST_BYTES)}: it is no check of gpubench")
    try:
        check = msgspec.json.decode(data, type=CudaCheck)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MisuseError(f"{path.name} is no check of gpubench: {plain(str(error))}") from error
    if check.kind != "cuda-check" or not 1 <= check.schema_version <= SCHEMA_VERSION:
        raise MisuseError(
            f"{path.name} is {plain(check.kind)} of schema {check.schema_version}; this gpubench reads "
            f"cuda-check up to {SCHEMA_VERSION}"
        )
    return check


def _scrubbed(value: Any, known: frozenset[str]) -> Any:
    if isinstance(value, str):
        return value if value in known else scrub(value, LONGEST_TEXT)
    if isinstance(value, dict):
        return {key: _scrubbed(part, known) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(part, known) for part in value]
    return value


def _count(processes: object) -> object:
    """How many processes a list holds: their names and numbers are somebody's own."""
    return len(processes) if isinstance(processes, list) else processes


def _safe(text: str) -> str:
    name = re.sub(r"(?:[^a-z0-9.]|\.{2,})+", "-", text.lower()).strip("-.")[:60].strip("-.")
    return name if is_safe_name(name) else "unknown"
