"""Results of the checking verbs: for a run, a card, this machine, two runs, or a host's workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpubench import findings
from gpubench.blocks.parts import Bullets, Paragraph, Part, number, table, text
from gpubench.interval import stacked
from gpubench.measure.feeding import EIGHT_BIT_BYTES, TENSOR_BYTES
from gpubench.probe.health import Check
from gpubench.record.compare import Comparison
from gpubench.record.run_check import Issue, RunCheck
from gpubench.units import count, format_number, format_si, plain

if TYPE_CHECKING:
    from gpubench.cuda_check.judge import Verdict
    from gpubench.recommend.feed import FeedReport


def run_judged(checked: RunCheck) -> list[Part]:
    """Return each kind of issue once, with its cases and values, problems first."""
    places: dict[tuple[str, str], list[str]] = {}
    for issue in sorted(checked.issues, key=lambda issue: issue.weight != "problem"):
        places.setdefault((issue.weight, issue.text), []).append(_place(issue))
    parts: list[Part] = []
    for (weight, said), found in places.items():
        parts += [Paragraph(text=f"{weight}: {said}"), Bullets(items=tuple(found))]
    verdict = "no problem found" if checked.trustworthy else "do not rely on what is named under a problem"
    cases = count(checked.cases, "case") if checked.cases else "no cases"
    return [*parts, Paragraph(text=f"run {plain(checked.run_id)}, {cases}: {verdict}")]


def _place(issue: Issue) -> str:
    where = plain(issue.case.label if issue.case else issue.micro or "the run")
    seen = [
        plain(findings.show(findings.FindingKind(issue.kind), value))
        for value in (issue.value, issue.limit)
        if value is not None
    ]
    return where if not seen else f"{where}: {seen[0]}" + (f", limit {seen[1]}" if len(seen) > 1 else "")


LONGEST_REASON = 600


def card_judged(verdicts: Sequence[Verdict]) -> list[Part]:
    """Return the judgments, one row each, with the reason for each failure."""
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
    """Return one line per check, then whether this machine is ready."""
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
            text("what was seen, and what to do", _checked),
            marks=tuple("bad" if check.status == "fail" else None for check in checks),
        ),
        Paragraph(text=f"{verdict}." if failures else f"{verdict}. Next: gpubench run"),
    ]


def _checked(check: Check) -> str:
    fix = f"\n-> {plain(check.fix, limit=400)}" if check.fix and check.status != "ok" else ""
    return plain(check.seen, limit=400) + fix


def compared(found: Comparison) -> list[Part]:
    """Return one line per case; nothing if the runs have no case in common."""
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
    """Return the rate that this host's workers prepare, and each GPU's consumption."""
    rate = report.prepared
    clips = rate.frames > 1
    what = f"clips of {rate.frames} frames of 340 x 256" if clips else "500 x 375 photographs"
    per_frame = (
        "below, a frame is an image: what a network takes that looks at every frame of a clip by layers of "
        "an image classifier"
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
