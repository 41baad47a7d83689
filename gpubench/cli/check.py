"""`gpubench check`: can this run be trusted, and if not, what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli.common import JsonOption, ResultsOption, print_json, say
from gpubench.errors import MisuseError
from gpubench.findings import FindingKind, describe, show
from gpubench.units import count, format_duration, format_number, format_percent, format_si, plain, plural

if TYPE_CHECKING:
    from gpubench.record.reference_check import Compared, Figure, Reference
    from gpubench.record.trust import Doubt, Trust


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("check")(verb)


def verb(
    run: Annotated[str | None, typer.Argument(help="A run file, the start of a run id, or latest.")] = None,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="Measure this GPU against the figures read on one of its kind."),
    ] = False,
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
    device: Annotated[str, typer.Option(help="With --cuda, --reference: cuda, cuda:N, a UUID.")] = "cuda",
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a run, or this GPU, can be trusted; exit code 1 if not."""
    if cuda:
        if run is not None or reference:
            raise MisuseError("--cuda checks this GPU: give it without a run and without --reference")
        from gpubench.cli.cuda_check import check_cuda

        check_cuda(device, output, full=full, as_json=json)
        return
    if full or output is not None:
        raise MisuseError(f"{'--full' if full else '-o'} is for --cuda: gpubench check --cuda")
    if reference:
        if run is not None:
            raise MisuseError("give a run to check, or --reference to measure this GPU, not both")
        _check_reference(device, results, as_json=json)
        return
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


def _check_reference(device: str, results: Path | None, *, as_json: bool) -> None:
    from gpubench.cli.progress import watch
    from gpubench.measure.request import RunRequest
    from gpubench.probe.select import select_device
    from gpubench.record.reference_check import check_reference
    from gpubench.record.session import run
    from gpubench.record.store import check_writable, results_root

    profile, _ = select_device(device)
    if profile.backend == "cpu":
        raise MisuseError("--reference compares GPUs: name one with --device cuda")
    request = RunRequest(device=device, budget="quick", results=results)
    root = results_root(results)
    check_writable(root)
    with watch() as progress:
        found = check_reference(profile, root, progress, lambda: run(request))
    if as_json:
        names = {"gpu_key": profile.gpu_key, "run_id": found.run.run_id}
        print_json(names | {"findings": found.run.findings, "rows": found.rows})
    else:
        _print_reference(found.rows)
    _explain(found)
    if found.failed:
        raise typer.Exit(1)


def _explain(found: Reference) -> None:
    """Say why rows have no figure or are suspicious, what is unusual about the card, and where it is kept."""
    for row in found.rows:
        if row.reason is not None:
            say(f"{row.figure.name}: {row.verdict}: {plain(row.reason, 300)}")
    for finding in found.run.findings:
        say(plain(describe(finding), 300))
    say(f"stored in {found.path}")


def _print_reference(rows: tuple[Compared, ...]) -> None:
    from rich.text import Text

    from gpubench.cli.tables import console_for_tables, new_table

    console = console_for_tables()
    figures = ("measured", "reference", "limit")
    table = new_table(console, "figure", *figures, "verdict", right=figures)
    for row in rows:
        figure = row.figure
        cells = (
            figure.name,
            _quantity(row.measured, figure),
            _quantity(figure.value, figure),
            _limit(figure),
            row.verdict,
        )
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)


def _limit(figure: Figure) -> str:
    """The limit in the unit of its figure, or as a share of the reference; empty where there is none."""
    if figure.limit is None:
        return ""
    if figure.rule == "within":
        return f"±{format_percent(figure.limit)}"
    words = figure.rule.replace("_", " ")
    if figure.limit_is_share:
        return f"{words} {format_percent(figure.limit)} of it"
    return f"{words} {_quantity(figure.limit, figure)}"


def _quantity(value: float | None, figure: Figure) -> str:
    from gpubench.record.reference_check import planned_of

    if figure.unit == "s":
        return format_duration(value)
    if figure.kind == "spread":
        return format_percent(value)
    if figure.unit == "ratio":
        return format_number(value, 4)
    if figure.unit == "samples/s":
        return f"{format_number(value, 4)} {plural(planned_of(figure).case.sample_unit)}/s"
    return format_si(value, figure.unit, 4)


def _fields(trust: Trust) -> dict[str, object]:
    return {"run_id": trust.run_id, "cases": trust.cases, "doubts": trust.doubts}


def _print(trust: Trust) -> None:
    """Print each kind of doubt once, with the cases it concerns and what was seen, problems first."""
    for weight in ("problem", "note"):
        places: dict[str, list[str]] = {}
        for doubt in trust.doubts:
            if doubt.weight == weight:
                places.setdefault(doubt.text, []).append(_place(doubt))
        for text, lines in places.items():
            print(f"{weight}: {text}")
            for line in lines:
                print(f"    {line}")
    doubted = "do not rely on what is named under a problem"
    verdict = "nothing speaks against it" if trust.trustworthy else doubted
    cases = count(trust.cases, "case") if trust.cases else "no cases"
    print(f"run {plain(trust.run_id)}, {cases}: {verdict}")


def _place(doubt: Doubt) -> str:
    where = plain(doubt.case.label if doubt.case else doubt.micro or "the run")
    seen = [_show(doubt.kind, value) for value in (doubt.value, doubt.limit) if value is not None]
    return where if not seen else f"{where}: {seen[0]}" + (f", limit {seen[1]}" if len(seen) > 1 else "")


def _show(kind: str, value: float | str) -> str:
    return plain(show(FindingKind(kind), value))
