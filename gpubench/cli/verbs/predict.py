import sys
from importlib import import_module
from typing import Any

from gpubench import files, folders
from gpubench.blocks.parts import Paragraph
from gpubench.cli import output, table
from gpubench.errors import MisuseError
from gpubench.predict.request import CalibrateRequest, PredictRequest, ScoreRequest, SealRequest

# numpy is imported inside the functions, because `tools` must set its number of threads first.


def show_(request: PredictRequest, shown: table.TableRequest, *, as_json: bool) -> None:
    from gpubench.predict.answers import as_brief_records, as_records
    from gpubench.predict.calibration import load_calibration
    from gpubench.predict.estimate import predict
    from gpubench.predict.question import first_reasons
    from gpubench.sections.prediction import answered

    stale = load_calibration().stale
    if stale:
        output.say(
            f"the calibration is older than {', '.join(stale)}: "
            "refit it in a checkout (python -m tools.calibrate --help)"
        )
    output.say_meanings(request.gpus)
    answers = predict(request)
    brief = (lambda: as_brief_records(answers)) if shown.brief else None
    if as_json or shown.table or answers.estimates:
        output.answer(
            as_json, lambda: as_records(answers), lambda: answered(answers, whole=shown.table), brief
        )
    if not answers.estimates:
        raise MisuseError(
            f"no GPU has a prediction: {'; '.join(first_reasons(answers.refusals))}",
            fix="change the GPU, the precision or the batch",
        )


def score_(request: ScoreRequest, *, as_json: bool) -> None:
    from gpubench.predict.seal import score_sealed
    from gpubench.sections.prediction import scored, scored_seal

    if request.sealed is not None:
        scores = score_sealed(request.sealed, request.file)
        output.answer(as_json, lambda: scores, lambda: scored_seal(scores))
    else:
        document = _tool("evaluate").score(request.file)
        output.answer(as_json, lambda: document, lambda: scored(document))


def seal_(request: SealRequest, *, as_json: bool) -> None:
    from gpubench.predict.seal import seal

    made = seal(request.cases)
    if request.output is not None:
        files.write_file(request.output, files.table_json(made, order="sorted"))
    if as_json or request.output is None:
        output.print_json(made)
    else:
        output.print_path(request.output)


def calibrate_(request: CalibrateRequest, *, as_json: bool) -> None:
    tool = _tool("calibrate")
    from gpubench.predict.calibration import own_calibration_path

    done = tool.write_calibration(request.own, own_calibration_path())
    summary = (
        f"{done['path']}: {done['rows']} rows of {done['gpus']} GPUs from {done['sources']} sources, "
        f"{done['inference_rows']} more of inference"
    )
    output.answer(as_json, lambda: done, lambda: [Paragraph(text=summary)])


def _tool(name: str) -> Any:
    """Return a module of `tools/`, which exists only in a checkout.

    Raises:
        MisuseError: If there is no checkout around the package.
    """
    checkout = folders.package_path("").parent
    wanted = checkout / "tools" / "data" / "published.csv"
    if not wanted.is_file():
        raise MisuseError(
            f"the published measurements are not installed (no {wanted}): "
            "run this in a checkout, after pip install -e . there"
        )
    sys.path.insert(0, str(checkout))
    return import_module(f"tools.{name}")
