"""Tables that the verbs print: lists with one line per item, and the results of checks.

The lists show workloads, GPUs, offers and stored runs. The checks judge a run, a card, this machine, the
difference between two runs, and a host's data loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpubench import findings
from gpubench.blocks.parts import Bullets, Paragraph, Part, Table, link, number, table, text
from gpubench.groups import grouped
from gpubench.interval import stacked
from gpubench.labels import gpu_name, pricing_words
from gpubench.measure.feeding import EIGHT_BIT_BYTES, TENSOR_BYTES
from gpubench.models import Run
from gpubench.offers.dates import show_price_date
from gpubench.providers import price_page
from gpubench.units import UNKNOWN, count, format_bytes, format_number, format_si, format_usd, plain

if TYPE_CHECKING:
    from gpubench.cuda_check.judge import Verdict
    from gpubench.models import GpuSpec, WorkloadProfile
    from gpubench.offers.listing import ListedOffer
    from gpubench.probe.health import Check
    from gpubench.probe.probe import Unmeasured
    from gpubench.recommend.feed import FeedReport
    from gpubench.record.compare import Comparison
    from gpubench.record.run_check import Issue, RunCheck

BILLION = 1e9
_PLUG_IN = "an installed plug-in, profiled when used"


def workloads(found: Mapping[str, WorkloadProfile | None]) -> Table:
    """Return one line per workload, with dashes if a plug-in's workload has no profile."""

    def known(cell: Callable[[WorkloadProfile], str]) -> Callable[[str], str]:
        return lambda name: UNKNOWN if (profile := found[name]) is None else cell(profile)

    return table(
        "",
        tuple(found),
        text("Workload", lambda name: name),
        text("What it is", lambda name: getattr(found[name], "summary", _PLUG_IN), optional=2),
        number("Parameters\ntrained", known(_parameters)),
        number("FLOP/sample\nforward", known(lambda p: _flops(p, p.forward_flops_per_sample))),
        number("FLOP/sample\ntrain", known(lambda p: _flops(p, p.train_flops_per_sample))),
        text("Batches", known(lambda p: ", ".join(map(str, p.batches)))),
        text(
            "Sample", known(lambda p: f"{p.sample_unit} {' x '.join(map(str, p.sample_shape))}"), optional=1
        ),
    )


def has_counted_work(profile: WorkloadProfile) -> bool:
    """Return whether FLOPs measure the work, which they do not for an input pipeline."""
    return profile.parameters > 0


def _parameters(profile: WorkloadProfile) -> str:
    if not profile.parameters:
        return "none"
    trained = profile.trainable_parameters
    if trained in {0, profile.parameters}:
        return _short(profile.parameters) if profile.parameters >= BILLION else f"{profile.parameters:,}"
    few = _short(trained) if profile.parameters >= BILLION else f"{trained:,}"
    return f"{few} of {_short(profile.parameters)}"


def _short(parameters: int) -> str:
    return f"{parameters / BILLION:.2f}B" if parameters >= BILLION else f"{parameters / 1e6:.1f}M"


def _flops(profile: WorkloadProfile, flops: float) -> str:
    return format_si(flops, "FLOP") if has_counted_work(profile) and flops else UNKNOWN


def specifications(specs: Sequence[GpuSpec]) -> Table:
    """Return one line per GPU of the specification table."""
    return table(
        "",
        specs,
        text("Key", lambda spec: spec.key),
        text("Name", lambda spec: spec.name, optional=4),
        text("Architecture", lambda spec: spec.architecture or UNKNOWN, optional=3),
        number("Memory", lambda spec: format_bytes(spec.memory_bytes)),
        number("Bandwidth", lambda spec: format_si(spec.memory_bandwidth_bytes_per_s, "B/s"), optional=2),
        number("FP32", lambda spec: format_si(spec.fp32_flops_per_s, "FLOP/s")),
        number("FP16 tensor", lambda spec: format_si(spec.fp16_tensor_flops_per_s, "FLOP/s"), optional=1),
    )


def unmeasured(processors: Sequence[Unmeasured]) -> Table:
    """Return one line per processor that gpubench does not time."""
    return table(
        "",
        processors,
        text("Processor", lambda row: row.name),
        text("Why it is not measured", lambda row: row.reason),
        text("What is known", lambda row: row.known, optional=1),
        text("What probe lists", lambda row: row.listed_by or "nothing", optional=2),
    )


def listed(rows: Sequence[ListedOffer]) -> list[Part]:
    """Return one line per offer, then the reasons why some are never ranked."""
    reasons = list(dict.fromkeys(row.not_ranked_because for row in rows if row.not_ranked_because))

    def provider(row: ListedOffer) -> str:
        mark = f" [{reasons.index(row.not_ranked_because) + 1}]" if row.not_ranked_because else ""
        return f"{row.offer.provider}{mark}"

    return [
        table(
            "",
            rows,
            text("GPU", lambda row: gpu_name(row.offer.gpu_key)),
            number("GPUs", lambda row: str(row.offer.gpu_count)),
            number("$/GPU-h", lambda row: _dollars(row.offer.usd_per_gpu_hour)),
            number("$/h", lambda row: _dollars(float(row.offer.price_usd_per_hour)), optional=4),
            text("Provider", provider),
            text("Instance", lambda row: plain(row.offer.instance, 36), optional=8),
            text("Region", lambda row: row.offer.region or UNKNOWN, optional=5),
            text("Pricing", lambda row: pricing_words(row.offer), optional=2),
            text("Kind", lambda row: row.offer.kind, optional=3),
            text("Price date", lambda row: show_price_date(row.offer.price_date), optional=4),
            text("Age", _age, optional=1),
            link("Link", lambda row: price_page(row.offer.provider, row.offer.source), optional=9),
            text("Stock", _stock, optional=6)
            if any(row.offer.in_stock is not None for row in rows)
            else None,
        ),
        *(
            Paragraph(text=f"[{number_}] not ranked: {reason}", tone="note")
            for number_, reason in enumerate(reasons, 1)
        ),
    ]


def _age(row: ListedOffer) -> str:
    note = "" if row.freshness == "current" else f", {row.freshness}"
    return f"{count(row.price_age_days, 'day')}{note}"


def _stock(row: ListedOffer) -> str:
    seen = "in stock" if row.offer.in_stock else "not seen"
    return UNKNOWN if row.offer.in_stock is None else f"{seen} {row.offer.stock_date}"


def _dollars(price: float) -> str:
    return format_usd(price) if price else "free"


def stored(runs: Sequence[Run]) -> list[Part]:
    """Return one line per run in the given order, or nothing if there are none."""
    if not runs:
        return []
    return [
        table(
            "",
            runs,
            text("Run", lambda run: run.run_id),
            text("Started", lambda run: run.started_at, optional=2),
            text(
                "Device",
                lambda run: (
                    gpu_name(run.device.gpu_key) if run.device.gpu_key else run.device.name or UNKNOWN
                ),
            ),
            text("Budget", lambda run: run.budget, optional=1),
            text("Measured", _run_measured),
            text("Workloads", lambda run: " ".join(run.workload_names)),
        )
    ]


def _run_measured(run: Run) -> str:
    end = ", interrupted" if run.interrupted else ("" if run.finished_at else ", unfinished")
    return f"{run.measured_count} of {run.case_count}{end}"


# --- results of the checking verbs ----------------------------------------------------------------------


def run_judged(checked: RunCheck) -> list[Part]:
    """Return each kind of issue once, with its cases and values, problems first."""
    in_order = sorted(checked.issues, key=lambda issue: issue.weight != "problem")
    places = grouped(((issue.weight, issue.text), _place(issue)) for issue in in_order)
    parts: list[Part] = []
    for (weight, said), found in places.items():
        parts += [Paragraph(text=f"{weight}: {said}"), Bullets(items=tuple(found))]
    verdict = "no problem found" if checked.trustworthy else "do not rely on anything listed under a problem"
    cases = count(checked.cases, "case") if checked.cases else "no cases"
    return [*parts, Paragraph(text=f"run {plain(checked.run_id)}, {cases}: {verdict}")]


def _place(issue: Issue) -> str:
    where = plain(issue.case.label if issue.case else issue.micro or "entire run")
    seen = [
        plain(findings.show(findings.FindingKind(issue.kind), value))
        for value in (issue.value, issue.limit)
        if value is not None
    ]
    return where if not seen else f"{where}: {seen[0]}" + (f", limit {seen[1]}" if len(seen) > 1 else "")


LONGEST_REASON = 600


def card_judged(verdicts: Sequence[Verdict]) -> list[Part]:
    """Return one row per judgment, then the reasons."""
    return [
        table(
            "",
            verdicts,
            text("Part", lambda v: v.part),
            text("What", lambda v: v.what),
            text("Found", lambda v: v.found),
            text("Limit", lambda v: v.limit, optional=1),
            text("", lambda v: v.state),
        ),
        *(
            Paragraph(text=f"{v.part}, {v.what}: {v.state}: {plain(v.reason, LONGEST_REASON)}")
            for v in verdicts
            if v.reason is not None
        ),
    ]


def checked_up(checks: Sequence[Check]) -> list[Part]:
    """Return one line per check, and whether this machine is ready."""
    failures, warnings = (sum(c.status == status for c in checks) for status in ("fail", "warn"))
    verdict = "Ready to measure" + (f", with {count(warnings, 'warning')}" if warnings else "")
    if failures:
        verdict = f"Not ready: {count(failures, 'failure')} to fix, {count(warnings, 'warning')}"
    return [
        table(
            "",
            checks,
            text("Status", lambda check: check.status),
            text("What is checked", lambda check: check.name),
            text("What was seen, and what to do", _checked),
            marks=tuple("bad" if check.status == "fail" else None for check in checks),
        ),
        Paragraph(text=f"{verdict}." if failures else f"{verdict}. Next: gpubench run"),
    ]


def _checked(check: Check) -> str:
    fix = f"\n-> {plain(check.fix, limit=400)}" if check.fix and check.status != "ok" else ""
    return plain(check.seen, limit=400) + fix


def compared(found: Comparison) -> list[Part]:
    """Return one line per case, or nothing if the runs have no case in common."""
    if not found.rows:
        return []
    return [
        table(
            "",
            found.rows,
            text("Case", lambda row: row.label),
            number("A samples/s", lambda row: format_number(row.a, 4)),
            number("B samples/s", lambda row: format_number(row.b, 4)),
            text("B against A (95 %)", lambda row: row.verdict),
            text(
                "Findings",
                lambda row: "; ".join(
                    f"{name}: {' '.join(kinds)}"
                    for name, kinds in (("A", row.a_findings), ("B", row.b_findings))
                    if kinds
                ),
            ),
        )
    ]


def prepared(report: FeedReport) -> list[Part]:
    """Return how fast this host's workers prepare samples, and how fast each GPU consumes them."""
    rate = report.prepared
    clips = rate.frames > 1
    what = f"clips of {rate.frames} frames of 340 x 256" if clips else "500 x 375 photographs"
    per_frame = (
        "below, each frame is an image, because the network applies the layers of an image classifier to "
        "every frame of a clip"
    )
    lines = [
        *((per_frame,) if clips else ()),
        *(
            f"{plain(f.verdict, 600)} [{f.consumption.basis}, {f.consumption.case}; "
            f"{format_si(f.consumption.images_per_s * TENSOR_BYTES, 'B/s')} of tensors, "
            f"{format_si(f.consumption.images_per_s * EIGHT_BIT_BYTES, 'B/s')} of 8-bit "
            "photographs]"
            for f in report.feedings
        ),
        *(f"no figure for {line}" for line in report.refused),
    ]
    return [
        table(
            f"Augmenting {what} to 224 x 224 on this CPU, without decoding",
            [rate],
            text("DataLoader workers", lambda r: str(r.workers)),
            number("frames/s" if clips else "images/s", lambda r: stacked(r.interval.text())),
            number("per worker", lambda r: stacked(r.interval.over(r.workers).text())),
        ),
        *(Paragraph(text=line) for line in lines),
    ]
