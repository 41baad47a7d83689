from gpubench.cli.output import print_json, print_path, say
from gpubench.cli.table import TryRequest
from gpubench.recommend.trial import write_trial


def verb(request: TryRequest, *, as_json: bool) -> None:
    made = write_trial(request.answer, request.output, request.gpu, request.minutes)
    say(*(f"passed over {reason}" for reason in made.passed_over))
    say(*(f"no task of {tool}: {reason}" for tool, reason in made.without_task.items()))
    folder = request.output.resolve() if request.output.is_symlink() else request.output
    script = folder / "try.sh"
    if as_json:
        print_json(
            {
                "script": script,
                "machine": made.machine,
                "passed_over": made.passed_over,
                "without_task": made.without_task,
            }
        )
    else:
        print_path(script)
    say(f"Next: sh {script} rents that machine, measures there and shuts it down. {made.machine}.")
