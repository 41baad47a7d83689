"""`gpubench check`: can this run be trusted, and if not, what to do; and does this card agree with its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli.common import JsonOption, ResultsOption, print_json
from gpubench.errors import MisuseError
from gpubench.units import plain

if TYPE_CHECKING:
    from gpubench.record.trust import Trust


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("check")(verb)


def verb(
    run: Annotated[str | None, typer.Argument(help="A run file, the start of a run id, or latest.")] = None,
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a run can be trusted; exit code 1 if not."""
    from gpubench.record.store import find_run, read_run, results_root
    from gpubench.record.trust import examine

    if run is None:
        raise MisuseError("name a run: `gpubench check latest`, or see `gpubench results list`")
    trust = examine(read_run(find_run(results_root(results), run)))
    if json:
        print_json({"trustworthy": trust.trustworthy, **_fields(trust)})
    else:
        _print(trust)
    if not trust.trustworthy:
        raise typer.Exit(1)


def _fields(trust: Trust) -> dict[str, object]:
    return {"run_id": trust.run_id, "cases": trust.cases, "doubts": trust.doubts}


def _print(trust: Trust) -> None:
    """Print each kind of doubt once, the cases it concerns below it, problems first."""
    for weight in ("problem", "note"):
        texts: dict[str, list[str]] = {}
        for doubt in trust.doubts:
            if doubt.weight == weight:
                where = "the run" if doubt.case is None else plain(doubt.case.label)
                texts.setdefault(doubt.text, []).append(where)
        for text, cases in texts.items():
            print(f"{weight}: {text}")
            print(f"  {', '.join(cases)}")
    verdict = "nothing speaks against it" if trust.trustworthy else "do not rely on the rows named above"
    print(f"run {plain(trust.run_id)}, {trust.cases} cases: {verdict}")
