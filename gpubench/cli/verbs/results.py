from gpubench.cli.output import answer, print_json, print_path, say
from gpubench.errors import MisuseError, StorageError
from gpubench.folders import results_root
from gpubench.options import ResultsRequest
from gpubench.record import store
from gpubench.record.request import AddRequest
from gpubench.sections.lists import stored
from gpubench.units import count


def list_(request: ResultsRequest, *, as_json: bool) -> None:
    root = results_root(request.results)
    found = store.read_runs(root)
    say(*found.problems)
    if found.problems and not found.runs:
        raise MisuseError(f"no run in {root} can be read; the reasons are above")
    rows = [
        {
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
        for run in found.runs
    ]
    answer(
        as_json,
        lambda: {"results": str(root), "runs": rows, "problems": found.problems},
        lambda: stored(found.runs),
    )
    if not (found.runs or as_json):
        say(f"no runs in {root}: `gpubench run` makes one")
    if found.problems:
        say(f"could not read {len(found.problems)} of {count(len(rows) + len(found.problems), 'file')}")


def add_(request: AddRequest, *, as_json: bool) -> None:
    root = results_root(request.results)
    store.check_writable(root)
    added = store.add_runs(root, request.sources)
    refused = (*added.refused, *added.conflicts)
    say(*(f"refused: {line}" for line in refused))
    if as_json:
        print_json({"added": added.written, "already_stored": added.present, "refused": refused})
    else:
        for path in added.written:
            print_path(path)
    say(f"{len(added.written)} added, {len(added.present)} already stored, {len(refused)} refused")
    if added.conflicts:
        raise StorageError(f"{count(len(added.conflicts), 'run')} could not be stored; the reasons are above")
    if not (added.written or added.present):
        raise MisuseError("nothing was added: give run files written by `gpubench run`, or a folder of them")
