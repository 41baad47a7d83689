"""Taking in runs of other machines: what is stored stays as it is, whatever is offered under its id."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpubench.errors import GpuBenchError, MisuseError, StorageError
from gpubench.models import Run
from gpubench.record.lock import RunLockedError
from gpubench.record.rules import beyond_belief
from gpubench.record.run_file import read_run
from gpubench.record.store import id_of, run_files, stored_paths, write_run, writing


class ConflictError(StorageError):
    """What is stored under a run's id is not known to be this run."""


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the files that were to be taken in.

    Attributes:
        written: The runs that are new here.
        present: The runs that were here already with the same content.
        refused: A line for each file that holds no run to take in.
        conflicts: A line for each run that was not stored, because under its id another content is stored,
            or one that cannot be read, or a process is writing it.
    """

    written: tuple[Path, ...] = ()
    present: tuple[Path, ...] = ()
    refused: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


def add_runs(root: Path, sources: Iterable[Path]) -> Added:
    """Take in runs of other machines: files, or folders searched for them. What is stored stays as it is.

    Raises:
        MisuseError: If a source does not exist.
        StorageError: If a run cannot be written.
    """
    written: list[Path] = []
    present: list[Path] = []
    refused: list[str] = []
    conflicts: list[str] = []
    for source in sources:
        if not source.exists():
            raise MisuseError(f"{source} does not exist")
        for path in run_files(source, refused.append) if source.is_dir() else (source,):
            try:
                run = read_run(path)
                if broken := beyond_belief(run):
                    refused.append(f"{path.name} cannot be true: {broken}")
                    continue
                with writing(root, run):
                    if (stored := stored_alike(root, run)) is not None:
                        present.append(stored)
                    else:
                        written.append(write_run(root, run, held=True))
            except (ConflictError, RunLockedError) as error:
                conflicts.append(f"{path.name}: {error}")
            except StorageError:
                raise
            except GpuBenchError as error:
                refused.append(str(error))
    return Added(
        written=tuple(written), present=tuple(present), refused=tuple(refused), conflicts=tuple(conflicts)
    )


def stored_alike(root: Path, run: Run) -> Path | None:
    """Return where a run is stored already with the same content; None where nothing is under its id.

    Raises:
        ConflictError: If what is stored under its id differs, or cannot be read to tell.
        StorageError: If the folders cannot be looked into.
    """
    found = stored_paths(root, run)
    for path in found:
        try:
            other = read_run(path)
        except MisuseError as error:
            raise ConflictError(
                f"run {id_of(run)} is stored already, and whether it is the same is unknown: {error}; "
                f"make {path} readable, or move it away"
            ) from error
        if _content(other) != _content(run):
            raise ConflictError(
                f"run {id_of(run)} is stored already with other content, which stays as it is: to put "
                f"this one in its place, move {path} away first"
            )
    return found[0] if found else None


def _content(run: Run) -> bytes:
    """What makes two files one run: all they say, not how it is laid out, nor the case of the id."""
    return msgspec.json.encode(msgspec.structs.replace(run, run_id=run.run_id.casefold()))
