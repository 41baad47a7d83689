from gpubench.cli.output import print_json, print_path, say
from gpubench.cli.table import TryRequest
from gpubench.recommend.trial import write_trial


def verb(request: TryRequest, *, as_json: bool) -> None:
    made = write_trial(request.answer, request.output, request.gpu, request.minutes)
    say(*(f"skipped {reason}" for reason in made.passed_over))
    say(*(f"no {tool} task: {reason}" for tool, reason in made.without_task.items()))
    if as_json:
        print_json(made)
    else:
        print_path(made.script)
    say(f"Next: sh {made.script} rents that machine, measures there and shuts it down. {made.machine}.")
