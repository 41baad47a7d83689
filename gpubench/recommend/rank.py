"""Rank offers by what a dollar buys: gather the evidence, then judge it in one pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from gpubench.errors import MisuseError
from gpubench.models import Execution, Precision, Ranking, Run, TaskKind
from gpubench.predict.estimate import estimate
from gpubench.predict.question import Question
from gpubench.predict.scaling import scaling
from gpubench.recommend.judge import Evidence, judge
from gpubench.recommend.request import RankRequest, check
from gpubench.specs import load_specs


def rank(request: RankRequest | None = None, **options: Any) -> Ranking:
    """Rank GPUs and instances by training per dollar, from the tables on this machine; no network, no GPU.

    Args:
        request: What to rank; or give its fields as keyword options.
        options: Fields of ``RankRequest``.

    Returns:
        The ranked offers, those left out with their reasons, and the verdict in a sentence.

    Raises:
        MisuseError: If an option is wrong, a name is unknown, or no offer is left.

    Example:
        >>> ranking = rank(workloads=("vgg16",), precision="amp", gpus=("h100", "rtx 5090"))
        >>> ranking.rows[0].rank
        1
    """
    request = check(request or _request(options))
    from gpubench.offers.snapshot import load_offers

    table = load_offers(request.results, request.offers)
    return judge(
        request,
        table.offers,
        lambda keys: gather(request, keys),
        specs=load_specs(),
        notes=table.notes,
        today=date.today(),  # noqa: DTZ011 - a price's age is counted in days of the user's calendar
    )


def gather(request: RankRequest, gpu_keys: Sequence[str]) -> Evidence:
    """Return by workload and GPU how fast it runs: measured by the user, shipped, or predicted."""
    from gpubench.profile import profile_of

    specs = [spec for key in gpu_keys if (spec := load_specs().get(key)) is not None]
    own, reference = _runs(request)
    questions = {
        name: Question(
            profile=profile_of(name),
            precision="amp" if request.precision == "amp" else Precision(request.precision),
            execution=Execution(request.execution),
            task=TaskKind(request.task),
            batch_size=None if request.batch_size == "max" else request.batch_size,
        )
        for name in request.workload_names
    }
    return Evidence(
        answers={name: estimate(q, specs, own=own, reference=reference) for name, q in questions.items()},
        scaler=lambda name, spec, n, rate: scaling(questions[name], spec, n, rate),
    )


def _request(options: Mapping[str, Any]) -> RankRequest:
    unknown = sorted(set(options) - set(RankRequest.__struct_fields__))
    if unknown:
        raise MisuseError(f"rank() has no option {', '.join(unknown)}; see RankRequest")
    return RankRequest(**options)


def _runs(request: RankRequest) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    from gpubench.record.store import read_runs, reference_runs, results_root

    return read_runs(results_root(request.results)).runs, reference_runs()
