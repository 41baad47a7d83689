"""`gpubench compare`: two runs, case by case, with the interval of each ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.blocks.parts import Table, number, table, text
from gpubench.blocks.terminal import show
from gpubench.cli.common import JsonOption, ResultsOption, print_json, say
from gpubench.errors import ExitCode, MisuseError
from gpubench.interval import stacked
from gpubench.units import format_number, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpubench.compare import Broken, Comparison, Row


def verb(
    a: Annotated[
        str, typer.Argument(metavar="A", help="The baseline: a run file, the start of a run id, or latest.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The run or folder that is compared with A.")],
    fail_over: Annotated[
        str | None,
        typer.Option(
            metavar="3%",
            help=(
                "Exit 1 if a case of B is slower than A by more than this, its whole interval included, or "
                "gave no figure in B; 6 if an interval is too wide to tell."
            ),
        ),
    ] = None,
    by: Annotated[str | None, typer.Option(help="device: compare runs of different devices.")] = None,
    results: ResultsOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two runs case by case: B over A, so that above 1 B is faster."""
    from gpubench.compare import compare, parse_tolerance, share_words
    from gpubench.folders import results_root
    from gpubench.record.run_file import read_run
    from gpubench.record.store import find_run

    if by not in {None, "device"}:
        raise MisuseError(f"--by {by!r}: only device is known")
    tolerance = None if fail_over is None else parse_tolerance(fail_over)
    root = results_root(results)
    found = compare(read_run(find_run(root, a)), read_run(find_run(root, b)), across_devices=by == "device")
    failed = () if tolerance is None else found.failed(tolerance)
    undecided = () if tolerance is None else found.undecided(tolerance)
    for remark in found.remarks:
        say(remark)
    if json:
        print_json(
            {
                "rows": [row.document(tolerance) for row in found.rows],
                "broken": found.broken,
                "remarks": found.remarks,
                "failed": [each.case for each in failed],
                "undecided": [each.case for each in undecided],
            }
        )
    elif found.rows:
        show(_table(found.rows, tolerance))
    for broken in found.broken:
        why = f": {plain(broken.reason)}" if broken.reason else ""
        say(f"no figure in B ({broken.status.replace('_', ' ')}{why}): {plain(broken.label)}")
    if failed and tolerance is not None:
        _say_failed(found, failed, tolerance)
    if undecided and tolerance is not None:
        both = f"undecided at {share_words(tolerance)}, as the interval allows both"
        say(f"{both}: {_labels(undecided)}; measure longer")
    if failed or undecided:
        raise typer.Exit(ExitCode.NO if failed else ExitCode.UNDECIDED)


def _say_failed(found: Comparison, failed: tuple[Row | Broken, ...], tolerance: float) -> None:
    """Name the cases that fail the gate: first those that are slower, then those without a figure in B."""
    from gpubench.compare import share_words

    slower = f"slower in B by more than {share_words(tolerance)}, beyond the interval"
    for why, cases in (
        (slower, [each for each in failed if each not in found.broken]),
        ("broken in B", [each for each in failed if each in found.broken]),
    ):
        if cases:
            say(f"{why}: {_labels(cases)}")


def _labels(cases: Iterable[Row | Broken]) -> str:
    return ", ".join(plain(each.label) for each in cases)


def _table(rows: Sequence[Row], tolerance: float | None) -> Table:
    return table(
        "",
        rows,
        text("case", lambda row: row.label),
        number("A samples/s", lambda row: format_number(row.a, 4)),
        number("B samples/s", lambda row: format_number(row.b, 4)),
        number("B over A (95 %)", lambda row: stacked(row.ratio.by("{:.3f}".format))),
        text("verdict", lambda row: row.verdict(tolerance)),
        text("findings", _findings),
    )


def _findings(row: Row) -> str:
    sides = (("A", row.a_findings), ("B", row.b_findings))
    return "; ".join(f"{name}: {' '.join(kinds)}" for name, kinds in sides if kinds)
