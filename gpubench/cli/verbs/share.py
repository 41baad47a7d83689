import msgspec

from gpubench.cli.output import print_json, print_path, say
from gpubench.errors import ExitCode
from gpubench.files import write_file
from gpubench.record import sharing, store
from gpubench.record.request import ShareRequest


def verb(request: ShareRequest, *, as_json: bool) -> ExitCode:
    run, left_out = sharing.shareable(store.read_named(request.results, request.run))
    place = sharing.place_of(run, request.by)
    others = (*store.reference_runs(), *(each.run for each in sharing.shared_runs()))
    refused = tuple(dict.fromkeys(sharing.doubts(run, others)))
    title, body = sharing.pull_request(run, place)
    if not (as_json or refused):
        print(f"{title}\n\n{body}\n")
    say(*(f"left out: {each}" for each in left_out), *(f"not shared: {each}" for each in refused))
    path = None if refused else request.output or place
    if path is not None:
        write_file(path, msgspec.json.encode(run) + b"\n")
    if as_json:
        print_json(
            {
                "file": path,
                "place": place,
                "title": title,
                "body": body,
                "left_out": left_out,
                "refused": refused,
            }
        )
    elif path is not None:
        print_path(path)
        say(f"attach it to a pull request as {place}, with the title and text above")
    return ExitCode.NO if refused else ExitCode.DONE
