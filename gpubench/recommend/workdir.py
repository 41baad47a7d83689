"""What a rented machine is handed: this very gpubench as a wheel, and the files of the user's own models.

The wheel is packed of the files that run here, however they were installed: no build tool is needed, and what
is measured there is measured by the code that asked.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpubench.discovery import checkout
from gpubench.errors import MisuseError
from gpubench.files import read_bytes
from gpubench.foreign_code import MOST_SOURCE_BYTES
from gpubench.installing import DISTRIBUTION
from gpubench.units import MIB, plain
from gpubench.user_model import HUGGING_FACE, is_own

MOST_WHEEL_BYTES = 256 * MIB
_PACKAGES = ("gpubench", "gpubench_workloads")
_WHEEL_NAME = re.compile(r"gpubench_suite-[\w.!+]+-[\w.]+-[\w.]+-[\w.]+\.whl", re.ASCII)
_WHEEL = "Wheel-Version: 1.0\nGenerator: gpubench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_DAY = (1980, 1, 1, 0, 0, 0)
"""Of every file in the wheel, so that the same code is the same wheel; the first day that a zip can hold."""
_KEEP_ALL = b"# Everything here travels, whatever a .gitignore above says.\n"


class Workdir(NamedTuple):
    """The content of a working folder.

    Attributes:
        files: By their path in it.
        wheel: The name of the wheel among them.
        references: What a workload that was asked for is called there.
    """

    files: Mapping[str, bytes]
    wheel: str
    references: Mapping[str, str]


def pack(workloads: Sequence[str], wheel: Path | None = None) -> Workdir:
    """Gather what a machine needs to measure workloads.

    Args:
        workloads: As asked for: names, and models of the user's own.
        wheel: A wheel of gpubench to install; None packs the running one.

    Raises:
        MisuseError: If the wheel is none of gpubench, or a model's files cannot be told.
    """
    name, data = _packed() if wheel is None else _given(wheel)
    files = {name: data, ".skyignore": _KEEP_ALL}
    references = {}
    for reference in workloads:
        references[reference] = reference
        if is_own(reference):
            references[reference], sources = _own(reference)
            files.update(sources)
    return Workdir(files, name, references)


def _own(reference: str) -> tuple[str, dict[str, bytes]]:
    """Return what a model of the user's own is called in the folder, and its files by their path in it."""
    from gpubench.profile.cache import files_of
    from gpubench.user_model import own_name

    folder, paths = files_of(reference)
    if not paths:
        raise MisuseError(
            f"{plain(reference)} is part of an installed package, which no task can carry: give it as a file"
        )
    sources = {
        path.relative_to(folder).as_posix(): read_bytes(path, MOST_SOURCE_BYTES, follow_links=True)
        for path in paths
    }
    name = own_name(reference)
    if name.startswith(HUGGING_FACE):
        return f"{HUGGING_FACE}{next(iter(sources))}", sources
    if ".py" not in name:
        return name, sources
    file = name.partition(".py")[0] + ".py"
    if file not in sources:
        raise MisuseError(f"{plain(reference)} is a link: name the file itself, so that a task can carry it")
    return f"./{name}", sources


# --- the wheel --------------------------------------------------------------------------------------------


def _given(wheel: Path) -> tuple[str, bytes]:
    if not _WHEEL_NAME.fullmatch(wheel.name):
        raise MisuseError(f"--wheel {plain(wheel.name)!r} is not named like a wheel of gpubench")
    data = read_bytes(wheel, MOST_WHEEL_BYTES, follow_links=True)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            holds_it = "gpubench/__init__.py" in archive.namelist()
    except zipfile.BadZipFile:
        holds_it = False
    if not holds_it:
        raise MisuseError(f"--wheel {plain(wheel.name)!r} holds no gpubench")
    return wheel.name, data


def _packed() -> tuple[str, bytes]:
    """Return the name and the bytes of a wheel of the gpubench that runs.

    Raises:
        MisuseError: If it runs without being installed, so that nothing says what it needs.
    """
    try:
        installed = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise MisuseError("gpubench is not installed here: give a wheel of it with --wheel FILE") from None
    stem = f"{DISTRIBUTION.replace('-', '_')}-{installed.version}"
    told = f"{stem}.dist-info"
    files: dict[str, bytes] = {}
    for package in _PACKAGES:
        root = _folder(package)
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"{package}/{path.relative_to(root).as_posix()}"
                files[name] = read_bytes(path, MOST_SOURCE_BYTES, follow_links=True)
    for name in ("METADATA", "entry_points.txt"):
        files[f"{told}/{name}"] = (installed.read_text(name) or "").encode()
    files[f"{told}/WHEEL"] = _WHEEL.encode()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{told}/RECORD"] = f"{record}{told}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _DAY), data, zipfile.ZIP_DEFLATED)
    return f"{stem}-py3-none-any.whl", packed.getvalue()


def _folder(package: str) -> Path:
    """Return where a package lies: a checkout's workloads are its own, not the copy that pip once made."""
    root = checkout()
    if root is not None:
        return root / ("gpubench" if package == "gpubench" else "workloads")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MisuseError(f"{package} is not installed here: give a wheel of gpubench with --wheel FILE")
    return Path(spec.submodule_search_locations[0])
