"""Generation of tokens: the time to the first, the time of each after it, and how fast both go."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.models import Measurement
from gpubench.models.measurement import LEAST_GAPS
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import workload_name
from gpubench.units import UNKNOWN, format_duration, format_number

P50, P99 = 0.50, 0.99


def _render(data: ReportData) -> Block | None:
    timed = [r for r in data.results if r.case.new_tokens and r.measurement.first_token_s is not None]
    if not timed:
        return None
    figures = table(
        "Tokens of a generation",
        timed,
        text(
            "Workload",
            lambda r: (
                f"{workload_name(r.case)}\n{r.batch_words}, "
                f"{r.case.prompt_tokens:,} + {r.case.new_tokens:,} tokens"
            ),
        ),
        text("Weights", lambda r: r.case.weight_type.value, optional=2),
        text("Execution", lambda r: r.case.execution.value, optional=1),
        number("First token", lambda r: format_duration(r.measurement.first_token_s)),
        number("Each token after", lambda r: format_duration(r.measurement.per_token_s)),
        number("p50", lambda r: _gap(r.measurement, P50), optional=3),
        number("p99", lambda r: _gap(r.measurement, P99)),
        number("Prompt tokens/s", lambda r: format_number(r.measurement.prefill_tokens_per_s), optional=4),
        number("Generated tokens/s", lambda r: format_number(r.measurement.decoded_tokens_per_s)),
    )
    return Block(
        title="How fast tokens come",
        brief=(figures,),
        parts=(
            Paragraph(
                text=(
                    "One static batch, greedy, with a key-value cache: the prompts are computed at once, "
                    "then one token a sequence after the other, each copied to the host. A server joins "
                    "sequences as they come and leave, and so makes more tokens of the same GPU."
                )
            ),
            figures,
        ),
    )


def _gap(measurement: Measurement, share: float) -> str:
    """A quantile of the time between two tokens; where too few came in, how many did."""
    gap_s = measurement.token_latency_s(share)
    if gap_s is not None:
        return format_duration(gap_s)
    gaps = sum(len(launch.token_gap_s) for launch in measurement.launches)
    return f"{UNKNOWN}\n{gaps:,} of {LEAST_GAPS:,} gaps"


SECTION = Section(key="generation", render=_render, place=41, heading="throughput")
