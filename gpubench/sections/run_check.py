"""Whether a run can be trusted: each issue with the cases that it concerns."""

from __future__ import annotations

from gpubench import findings
from gpubench.blocks.parts import Bullets, Paragraph, Part
from gpubench.record.run_check import Issue, RunCheck
from gpubench.units import count, plain


def judged(checked: RunCheck) -> list[Part]:
    """Return each kind of issue once, with the cases it concerns and what was seen, problems first."""
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
