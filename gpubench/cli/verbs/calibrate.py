"""`gpubench calibrate`: rebuild what predictions rest on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubench.blocks.parts import Paragraph
from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.errors import MisuseError
from gpubench.predict.request import CalibrateRequest

if TYPE_CHECKING:
    from gpubench.models import Run
    from gpubench.predict.calibration import Calibration


def verb(request: CalibrateRequest, *, as_json: bool) -> None:
    """Rebuild the calibration from the published measurements, and from your own runs."""
    # Before numpy is imported: the matrices of a fit are small, and threads that share one mostly wait.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from gpubench.files import write_file
    from gpubench.predict.calibrate import calibrate
    from gpubench.predict.calibration import encode, own_calibration_path
    from gpubench.today import day_of

    fitted = day_of(request.date, "--date").isoformat()
    calibration = calibrate(_own_runs(request.own), fitted=fitted)
    path = request.output or own_calibration_path()
    write_file(path, encode(calibration), hint="choose another file with -o")
    train, inference_rows = calibration.train, calibration.infer.rows
    told = (
        f"{path}: {train.rows} rows of {len(train.rows_by_gpu)} GPUs from {train.sources} sources, "
        f"{inference_rows} more of inference"
    )
    answer(as_json, lambda: _document(calibration, path), lambda: [Paragraph(text=told)])


def _own_runs(results: Path | None) -> tuple[Run, ...]:
    from gpubench.record.store import read_runs

    if results is None:
        return ()
    if not results.is_dir():
        raise MisuseError(f"{results} is not a results folder: give the one that holds runs/")
    stored = read_runs(results)
    for problem in stored.problems:
        say(problem)
    return stored.runs


def _document(calibration: Calibration, path: Path) -> dict[str, Any]:
    """What was learned from how much, and why published rows were not used."""
    from gpubench.predict.published import shipped
    from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS

    return {
        "path": str(path),
        "fitted": calibration.fitted,
        "rows": calibration.train.rows,
        "inference_rows": calibration.infer.rows,
        "gpus": len(calibration.train.rows_by_gpu),
        "sources": calibration.train.sources,
        "skipped": dict(shipped((FITTED_VENDOR, *OTHER_VENDORS)).skipped_by_kind),
        "inputs": calibration.inputs,
    }


VERB = Verb(verb, place=110)
