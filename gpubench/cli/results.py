"""`gpubench results`: what is stored, and taking in runs of other machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.blocks.parts import table, text
from gpubench.blocks.terminal import show
from gpubench.cli.common import JsonOption, ResultsOption, print_json, print_path, say
from gpubench.errors import MisuseError, StorageError
from gpubench.units import UNKNOWN, count

if TYPE_CHECKING:
    from gpubench.record.heads import Head


verb = typer.Typer(help="List stored runs, or take in runs of other machines.", no_args_is_help=True)


@verb.command("list")
def list_runs(results: ResultsOption = None, json: JsonOption = False) -> None:
    """List the stored runs, oldest first."""
    from gpubench.folders import results_root
    from gpubench.labels import gpu_name
    from gpubench.record import store

    root = results_root(results)
    heads, problems = store.list_runs(root)
    for problem in problems:
        say(problem)
    if problems and not heads:
        raise MisuseError(f"no readable run in {root}: {len(problems)} could not be read")
    if json:
        runs = [
            {name: getattr(head, name) for name in _FIELDS}
            | {"workloads": _workloads(head), "torch": head.torch}
            for head in heads
        ]
        print_json({"results": str(root), "runs": runs, "problems": problems})
    elif heads:
        show(
            table(
                "",
                heads,
                text("run", lambda row: row.run_id),
                text("started", lambda row: row.started_at, optional=2),
                text("device", lambda row: gpu_name(row.gpu_key) if row.gpu_key else row.device or UNKNOWN),
                text("budget", lambda row: row.budget, optional=1),
                text("measured", _measured),
                text("workloads", lambda row: " ".join(_workloads(row))),
            )
        )
    else:
        say(f"no runs in {root}: `gpubench run` makes one")
    if problems:
        say(f"{len(problems)} of {len(heads) + len(problems)} files could not be read")


@verb.command()
def add(
    sources: Annotated[
        list[Path], typer.Argument(metavar="DIR|FILE ...", help="Run files, or folders of them.")
    ],
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Take in runs that other machines made; each is checked before it is copied.

    A run that is stored already with the same content is left as it is; one with other content under the same
    id is refused, and the exit code is 5.
    """
    from gpubench.folders import results_root
    from gpubench.record.adding import add_runs
    from gpubench.record.store import check_writable

    root = results_root(results)
    check_writable(root)
    added = add_runs(root, sources)
    refused = (*added.refused, *added.conflicts)
    for line in refused:
        say(f"refused: {line}")
    if json:
        paths = {"added": added.written, "already_stored": added.present}
        print_json(
            {name: [str(path) for path in found] for name, found in paths.items()} | {"refused": refused}
        )
    else:
        for path in added.written:
            print_path(path)
    say(f"{len(added.written)} added, {len(added.present)} already stored, {len(refused)} refused")
    if added.conflicts:
        raise StorageError(f"{count(len(added.conflicts), 'run')} could not be stored; the reasons are above")
    if not (added.written or added.present):
        raise MisuseError(
            "nothing was added: give run files as `gpubench run` writes them, or a folder of them"
        )


_FIELDS = (
    "run_id", "started_at", "gpu_key", "device", "budget", "cases", "measured", "finished", "interrupted",
)  # fmt: skip


def _workloads(head: Head) -> list[str]:
    return sorted({row.workload for row in head.rows})


def _measured(row: Head) -> str:
    end = ", interrupted" if row.interrupted else "" if row.finished else ", unfinished"
    return f"{row.measured} of {row.cases}{end}"
