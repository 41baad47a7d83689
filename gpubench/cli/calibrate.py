"""`gpubench calibrate`: rebuild what predictions rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli.common import JsonOption, print_json, say


def verb(
    own: Annotated[
        Path | None,
        typer.Option("--with", help="Results folder whose GPU runs are added to the published rows."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write [default: the user's data folder].")
    ] = None,
    date: Annotated[
        str | None, typer.Option("--date", help="Date to write into it [default: today].")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the calibration from the published measurements, and from your own runs."""
    import os

    # Before numpy is imported: the matrices of a fit are small, and threads that share one mostly wait.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from collections import Counter

    from gpubench.errors import MisuseError
    from gpubench.files import write_file
    from gpubench.models import Run
    from gpubench.predict.calibrate import calibrate
    from gpubench.predict.calibration import encode, own_calibration_path
    from gpubench.predict.published import shipped
    from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS
    from gpubench.record.store import read_runs
    from gpubench.today import day_of

    fitted = day_of(date, "--date").isoformat()
    runs: tuple[Run, ...] = ()
    if own is not None:
        if not own.is_dir():
            raise MisuseError(f"{own} is no results folder: give the one that holds runs/")
        stored = read_runs(own)
        runs = stored.runs
        for problem in stored.problems:
            say(problem)
    calibration = calibrate(runs, fitted=fitted)
    path = output or own_calibration_path()
    write_file(path, encode(calibration), hint="choose another file with -o")
    skipped: Counter[str] = Counter()
    for reason, rows in shipped((FITTED_VENDOR, *OTHER_VENDORS)).skipped.items():
        skipped[reason.partition(" '")[0]] += rows  # one count for all names that have no profile
    summary = {
        "path": str(path),
        "fitted": calibration.fitted,
        "rows": calibration.train.rows,
        "inference_rows": calibration.infer.rows,
        "gpus": len(calibration.train.rows_by_gpu),
        "sources": calibration.train.sources,
        "skipped": dict(skipped.most_common()),
        "inputs": calibration.inputs,
    }
    if as_json:
        print_json(summary)
    else:
        typer.echo(
            f"{path}: {calibration.train.rows} rows of {len(calibration.train.rows_by_gpu)} GPUs "
            f"from {calibration.train.sources} sources, {calibration.infer.rows} more of inference"
        )
