"""`gpubench results`: what is stored, and taking in runs of other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpubench.cli.options import Verb
from gpubench.cli.output import answer, print_json, print_path, say
from gpubench.errors import MisuseError, StorageError
from gpubench.options import ResultsRequest
from gpubench.record.request import AddRequest
from gpubench.units import count

if TYPE_CHECKING:
    from gpubench.models import Run


def list_runs(request: ResultsRequest, *, as_json: bool) -> None:
    """List the stored runs, oldest first."""
    from gpubench.folders import results_root
    from gpubench.record import store
    from gpubench.sections.stored_runs import stored

    root = results_root(request.results)
    found = store.read_runs(root)
    runs, problems = found.runs, found.problems
    for problem in problems:
        say(problem)
    if problems and not runs:
        raise MisuseError(f"no readable run in {root}: {len(problems)} could not be read")
    answer(
        as_json,
        lambda: {"results": str(root), "runs": [_row(run) for run in runs], "problems": problems},
        lambda: stored(runs),
    )
    if not (runs or as_json):
        say(f"no runs in {root}: `gpubench run` makes one")
    if problems:
        say(f"{len(problems)} of {len(runs) + len(problems)} files could not be read")


def add(request: AddRequest, *, as_json: bool) -> None:
    """Take in runs that other machines made; each is checked before it is copied.

    A run that is stored already with the same content is left as it is; one with other content under the same
    id is refused, and the exit code is 5.
    """
    from gpubench.folders import results_root
    from gpubench.record.store import add_runs, check_writable

    root = results_root(request.results)
    check_writable(root)
    added = add_runs(root, request.sources)
    refused = (*added.refused, *added.conflicts)
    for line in refused:
        say(f"refused: {line}")
    if as_json:
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


def _row(run: Run) -> dict[str, Any]:
    """A run as JSON."""
    return {
        "run_id": run.run_id,
        "started_at": run.started_at,
        "gpu_key": run.device.gpu_key,
        "device": run.device.name,
        "budget": run.budget,
        "cases": run.case_count,
        "measured": run.measured_count,
        "finished": run.finished_at is not None,
        "interrupted": run.interrupted,
        "workloads": run.workload_names,
        "torch": run.environment.torch,
    }


VERB = Verb({"list": list_runs, "add": add}, "List stored runs, or take in runs of other machines.", place=70)
