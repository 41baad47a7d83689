"""The cost of a million tokens and the time of a token, for training, prompts and generated tokens."""

from __future__ import annotations

from typing import NamedTuple

from gpubench.interval import Interval
from gpubench.models import Estimate, Row
from gpubench.profile import known_profile
from gpubench.recommend.economics import SECONDS_PER_HOUR

MILLION = 1e6


class GenerationTimes(NamedTuple):
    """The times of one static batch, predicted or measured.

    Attributes:
        first_token_s: Time to the first token.
        per_token_s: Time of each token after the first.
    """

    first_token_s: Interval
    per_token_s: Interval


def generation_times(estimate: Estimate) -> GenerationTimes | None:
    """Return the times of a generation, or None for other work.

    The two times of a measured generation have the relative error of its total time.
    """
    case, per_token_s = estimate.case, estimate.per_token_s
    if case.new_tokens == 0 or per_token_s.value is None:
        return None
    if estimate.first_token_s is not None:
        return GenerationTimes(
            first_token_s=_measured(estimate, estimate.first_token_s),
            per_token_s=_measured(estimate, per_token_s.value),
        )
    rest = case.new_tokens - 1

    def first(samples_per_s: float | None, token_s: float | None) -> float | None:
        if samples_per_s is None or token_s is None:
            return None
        return case.batch_size / samples_per_s - rest * token_s

    return GenerationTimes(
        first_token_s=Interval(
            first(estimate.samples_per_s, per_token_s.value),
            first(estimate.high, per_token_s.low),
            first(estimate.low, per_token_s.high),
        ),
        per_token_s=per_token_s,
    )


def _measured(estimate: Estimate, seconds: float) -> Interval:
    # Return a measured time with the relative interval of the whole generation.
    ends = (estimate.high, estimate.low)
    return Interval(
        seconds, *(None if end is None else seconds * estimate.samples_per_s / end for end in ends)
    )


def token_cost(row: Row) -> Interval | None:
    """Return the cost of a million tokens (of a generation, the generated ones); None without tokens."""
    return next(reversed(token_costs(row).values()), None)


def token_costs(row: Row) -> dict[str, Interval]:
    """Return the cost of a million tokens of an offer [USD] by the kind of token; empty if none is known.

    The cost of training follows from the throughput of the whole instance. That of a generation is for one
    static batch on each GPU; a server with continuous batching has other costs.
    """
    case = row.estimate.case
    profile = known_profile(case.workload)
    if row.parts or profile is None or not profile.tokens_per_sample:
        return {}
    times = generation_times(row.estimate)
    if times is not None:
        usd_per_s = row.usd_per_hour.each(lambda usd: usd / row.offer.gpu_count / SECONDS_PER_HOUR)

        def cost(time: Interval, tokens: int) -> Interval:
            return time.times(usd_per_s).each(lambda usd: MILLION * usd / tokens)

        return {
            "prefill": cost(times.first_token_s, case.batch_size * case.prompt_tokens),
            "decode": cost(times.per_token_s, case.batch_size),
        }
    if case.new_tokens:
        return {}
    each = MILLION / (case.context_tokens or profile.tokens_per_sample)  # the profile is of its own context

    def of(samples_per_usd: float | None) -> float | None:
        return each / samples_per_usd if samples_per_usd else None

    found = Interval(*map(of, (row.samples_per_usd.value, row.samples_per_usd.high, row.samples_per_usd.low)))
    return {"training": found} if case.task == "train" else {"forward pass": found}
