import msgspec

from gpubench.blocks.terminal import show
from gpubench.cli.output import print_json, print_path, say
from gpubench.errors import ExitCode
from gpubench.files import write_file
from gpubench.record import sharing, store
from gpubench.record.request import ShareRequest
from gpubench.sections.judged import held, pull_request


def verb(request: ShareRequest, *, as_json: bool) -> ExitCode:
    run, left_out = sharing.shareable(store.read_named(request.results, request.run))
    place = sharing.place_of(run, request.by)
    refused = tuple(
        sharing.doubts(run, (*store.reference_runs(), *(each.run for each in sharing.shared_runs())))
    )
    if not as_json:
        show(*held(run))
    for line in (*(f"left out: {each}" for each in left_out), *(f"not shared: {each}" for each in refused)):
        say(line)
    path = None if refused else request.output or place
    title, body = pull_request(run, place)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, msgspec.json.encode(run) + b"\n")
    told = {
        "file": path,
        "place": place,
        "title": title,
        "body": body,
        "left_out": left_out,
        "refused": refused,
    }
    if as_json:
        print_json(told)
    elif path is not None:
        print(f"\n{title}\n\n{body}\n")
        print_path(path)
        say(f"attach it to a pull request as {place}, with the text above")
    return ExitCode.NO if refused else ExitCode.DONE
