"""`gpubench try`: from an answer of `gpubench rank` to a task that measures it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from gpubench.cli.options import Verb
from gpubench.cli.output import print_json, print_path, say
from gpubench.options import Option, Positive


class TryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which answer to try, and how."""

    answer: Annotated[
        Path, Option("File that gpubench rank --json printed.", place=1, bare=True, metavar="ANSWER")
    ]
    gpu: Annotated[str | None, Option("GPU to measure: key or name.", default="the best to rent")] = None
    minutes: Annotated[Positive, Option("Time limit of the measurement [min].")] = 15.0
    output: Annotated[Path, Option("Folder of the task.", default="try")] = Path("try")


def verb(request: TryRequest, *, as_json: bool) -> None:
    """Write a task of SkyPilot, and one of dstack, that rent the recommended machine and measure there."""
    from gpubench.recommend.trial import write_trial

    machine, passed_over = write_trial(request.answer, request.output, request.gpu, request.minutes)
    for reason in passed_over:
        say(f"passed over {reason}")
    folder = request.output.resolve() if request.output.is_symlink() else request.output
    script = folder / "try.sh"
    if as_json:
        print_json({"script": script, "machine": machine, "passed_over": passed_over})
    else:
        print_path(script)
    say(f"Next: sh {script} rents that machine, measures there and shuts it down. {machine}.")


VERB = Verb(verb, place=125, also_called=("trial", "skypilot", "dstack"))
