"""`gpubench share`: one file of a run that others may see, and the text of a pull request."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpubench.blocks.terminal import show
from gpubench.cli.options import Verb
from gpubench.cli.output import print_json, print_path, say
from gpubench.errors import ExitCode
from gpubench.files import write_file
from gpubench.record.request import ShareRequest


def verb(request: ShareRequest, *, as_json: bool) -> ExitCode:
    """Show what of a run would be shared, write it to one file, and print the text of a pull request.

    The file names no host, path, serial number or user. Exit code 1, and no file, where CI would refuse it.
    """
    from gpubench.folders import results_root
    from gpubench.record.run_file import read_run
    from gpubench.record.sharing import doubts, place_of, shareable, shared_runs
    from gpubench.record.store import find_run, reference_runs
    from gpubench.sections.sharing import held, pull_request

    run, left_out = shareable(read_run(find_run(results_root(request.results), request.run)))
    place = place_of(run, request.by)
    refused = tuple(doubts(run, (*reference_runs(), *(each.run for each in shared_runs()))))
    if not as_json:
        show(*held(run))
    for line in left_out:
        say(f"left out: {line}")
    for line in refused:
        say(f"not shared: {line}")
    path: Path | None = None if refused else request.output or place
    title, body = pull_request(run, place)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, msgspec.json.encode(run) + b"\n")
    if as_json:
        print_json(
            {
                "file": path,
                "place": str(place),
                "title": title,
                "body": body,
                "left_out": left_out,
                "refused": refused,
            }
        )
    elif path is not None:
        print(f"\n{title}\n\n{body}\n")
        print_path(path)
        say(f"attach it to a pull request as {place}, with the text above")
    return ExitCode.NO if refused else ExitCode.DONE


VERB = Verb(verb, place=75, also_called=("contribute", "publish", "upload"))
