"""`gpubench predict`: throughput on GPUs that are not here, with an interval and its reasons."""

from __future__ import annotations

from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.predict.request import EvaluateRequest, PredictRequest, ScoreRequest


def show(request: PredictRequest, *, as_json: bool) -> None:
    """Print throughput, interval and reasons for each GPU, the fastest first."""
    from gpubench.predict.answers import as_records
    from gpubench.predict.calibration import load_calibration
    from gpubench.predict.estimate import predict
    from gpubench.sections.prediction import answered

    stale = load_calibration().stale
    if stale:
        say(f"the calibration is older than {', '.join(stale)}: run gpubench calibrate")
    answers = predict(request)
    answer(as_json, lambda: as_records(answers), lambda: answered(answers))


def evaluate(request: EvaluateRequest, *, as_json: bool) -> None:
    """Score predictions on the shipped measurements, each target held out of everything."""
    from gpubench.models import TaskKind
    from gpubench.predict.evaluate import evaluate as run
    from gpubench.predict.evaluate import scored_table
    from gpubench.predict.scaling_fit import scaling_figures
    from gpubench.predict.scores import report
    from gpubench.sections.prediction import scored

    hold_out, kind = request.hold_out, TaskKind(request.task)
    outcome = run(scored_table(hold_out, kind), hold_out, kind)
    document = {
        "hold_out": hold_out,
        "task": request.task,
        **report(outcome),
        "several_gpus": scaling_figures(),
    }
    answer(as_json, lambda: document, lambda: scored(document))


def score(request: ScoreRequest, *, as_json: bool) -> None:
    """Score the calibration on measurements of your own; nothing is learned from them."""
    from gpubench.predict.evaluate import score as run
    from gpubench.sections.prediction import scored

    document = run(request.file)
    answer(as_json, lambda: document, lambda: scored(document))


VERB = Verb(
    {"show": show, "evaluate": evaluate, "score": score},
    "Predict throughput on GPUs that are not here.",
    place=90,
)
