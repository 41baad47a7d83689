from gpubench.cli.output import print_json, print_path, say
from gpubench.cli.table import TryRequest
from gpubench.recommend.trial import write_trial


def verb(request: TryRequest, *, as_json: bool) -> None:
    machine, passed_over = write_trial(request.answer, request.output, request.gpu, request.minutes)
    say(*(f"passed over {reason}" for reason in passed_over))
    folder = request.output.resolve() if request.output.is_symlink() else request.output
    script = folder / "try.sh"
    if as_json:
        print_json({"script": script, "machine": machine, "passed_over": passed_over})
    else:
        print_path(script)
    say(f"Next: sh {script} rents that machine, measures there and shuts it down. {machine}.")
