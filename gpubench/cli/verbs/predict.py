"""`gpubench predict`: throughput on GPUs that are not here, with an interval and its reasons."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from gpubench.blocks.parts import Paragraph
from gpubench.cli.options import Verb
from gpubench.cli.output import BriefRequest, answer, print_json, print_path, say, say_meanings
from gpubench.errors import MisuseError
from gpubench.files import table_json, write_file
from gpubench.folders import package_path
from gpubench.predict.request import CalibrateRequest, PredictRequest, ScoreRequest, SealRequest


def show(request: PredictRequest, shown: BriefRequest, *, as_json: bool) -> None:
    """Print throughput, interval and reasons for each GPU, the fastest first."""
    from gpubench.predict.answers import as_brief_records, as_records
    from gpubench.predict.calibration import load_calibration
    from gpubench.predict.estimate import predict
    from gpubench.sections.prediction import answered

    stale = load_calibration().stale
    if stale:
        say(f"the calibration is older than {', '.join(stale)}: run gpubench predict calibrate")
    say_meanings(request.gpus)
    answers = predict(request)
    answer(
        as_json,
        lambda: as_records(answers),
        lambda: answered(answers),
        (lambda: as_brief_records(answers)) if shown.brief else None,
    )


def score(request: ScoreRequest, *, as_json: bool) -> None:
    """Score the calibration, in a checkout, or sealed forecasts on measurements of your own."""
    from gpubench.sections.prediction import scored, scored_seal

    if request.sealed is not None:
        from gpubench.predict.seal import score_sealed

        held = score_sealed(request.sealed, request.file)
        answer(as_json, lambda: held, lambda: scored_seal(held))
        return
    document = _tool("evaluate").score(request.file)
    answer(as_json, lambda: document, lambda: scored(document))


def seal(request: SealRequest, *, as_json: bool) -> None:
    """Write what is predicted of a CSV of cases, with version, commit and one hash over all of it."""
    from gpubench.predict.seal import seal as seal_of

    made = seal_of(request.cases)
    if request.output is not None:
        write_file(request.output, table_json(made, order="sorted"))
    if as_json or request.output is None:
        print_json(made)
    else:
        print_path(request.output)


def calibrate(request: CalibrateRequest, *, as_json: bool) -> None:
    """Rebuild what predictions rest on from the published rows and your own runs, in a checkout."""
    tool = _tool("calibrate")
    done = tool.write_calibration(request.own, tool.own_calibration_path())
    told = (
        f"{done['path']}: {done['rows']} rows of {done['gpus']} GPUs from {done['sources']} sources, "
        f"{done['inference_rows']} more of inference"
    )
    answer(as_json, lambda: done, lambda: [Paragraph(text=told)])


def _tool(name: str) -> Any:
    """Return a module of `tools/`, which stands beside the package in a checkout and is never installed.

    Raises:
        MisuseError: If the package was installed without it.
    """
    checkout = package_path("").parent
    wanted = checkout / "tools" / "data" / "published.csv"
    if not wanted.is_file():
        raise MisuseError(
            f"the published measurements are not installed (no {wanted}): "
            "run this in a checkout, after pip install -e . there"
        )
    sys.path.insert(0, str(checkout))
    return import_module(f"tools.{name}")


VERB = Verb(
    {"show": show, "seal": seal, "score": score, "calibrate": calibrate},
    "Predict throughput on GPUs that are not here.",
    place=90,
)
