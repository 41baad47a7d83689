"""`gpubench check`: can this run be trusted, and if not, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.blocks.parts import Bullets, Paragraph, Part
from gpubench.cli.common import JsonOption, ResultsOption, answer
from gpubench.errors import ExitCode, MisuseError
from gpubench.findings import FindingKind, show
from gpubench.units import count, plain

if TYPE_CHECKING:
    from gpubench.record.run_check import Issue, RunCheck


def verb(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run file, the start of a run id, or latest.")
    ] = None,
    cuda: Annotated[
        bool,
        typer.Option("--cuda", help="Check an NVIDIA GPU against itself, in 5 minutes, and write one file."),
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="With --cuda: leave nothing out, however long it takes.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="With --cuda: the file. [default: cuda-check-GPU-TORCH.json]"),
    ] = None,
    device: Annotated[str, typer.Option(help="With --cuda: cuda, cuda:N, a UUID.")] = "cuda",
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a run, or this GPU, can be trusted; exit code 1 if not."""
    if cuda:
        if run is not None:
            raise MisuseError("--cuda checks this GPU: give it without a run")
        from gpubench.cli.cuda_check import check_cuda

        check_cuda(device, output, full=full, as_json=json)
        return
    if full or output is not None:
        raise MisuseError(f"{'--full' if full else '-o'} is for --cuda: gpubench check --cuda")
    from gpubench.record.run_check import check_run
    from gpubench.record.run_file import read_run
    from gpubench.record.store import find_run, results_root

    if run is None:
        raise MisuseError("name a run: `gpubench check latest`, or see `gpubench results list`")
    checked = check_run(read_run(find_run(results_root(results), run)))
    keys = ("trustworthy", "run_id", "cases", "issues")
    answer(json, lambda: {key: getattr(checked, key) for key in keys}, lambda: _parts(checked))
    if not checked.trustworthy:
        raise typer.Exit(ExitCode.NO)


def _parts(checked: RunCheck) -> list[Part]:
    """Each kind of issue once, with the cases it concerns and what was seen, problems first."""
    places: dict[tuple[str, str], list[str]] = {}
    for issue in sorted(checked.issues, key=lambda issue: issue.weight != "problem"):
        places.setdefault((issue.weight, issue.text), []).append(_place(issue))
    parts: list[Part] = []
    for (weight, said), found in places.items():
        parts += [Paragraph(text=f"{weight}: {said}"), Bullets(items=tuple(found))]
    verdict = (
        "nothing speaks against it" if checked.trustworthy else "do not rely on what is named under a problem"
    )
    cases = count(checked.cases, "case") if checked.cases else "no cases"
    return [*parts, Paragraph(text=f"run {plain(checked.run_id)}, {cases}: {verdict}")]


def _place(issue: Issue) -> str:
    where = plain(issue.case.label if issue.case else issue.micro or "the run")
    seen = [
        plain(show(FindingKind(issue.kind), value))
        for value in (issue.value, issue.limit)
        if value is not None
    ]
    return where if not seen else f"{where}: {seen[0]}" + (f", limit {seen[1]}" if len(seen) > 1 else "")
