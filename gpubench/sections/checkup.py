"""What a measurement needs on this machine, checked point by point, and what to do where it is not so."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.parts import Paragraph, Part, table, text
from gpubench.probe.health import Check
from gpubench.units import count, plain


def checked_up(checks: Sequence[Check]) -> list[Part]:
    """Return one line a check, then whether this machine is ready."""
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
            text("what was seen, and what to do", _seen),
            marks=tuple("bad" if check.status == "fail" else None for check in checks),
        ),
        Paragraph(text=f"{verdict}." if failures else f"{verdict}. Next: gpubench run"),
    ]


def _seen(check: Check) -> str:
    fix = f"\n-> {plain(check.fix, limit=400)}" if check.fix and check.status != "ok" else ""
    return plain(check.seen, limit=400) + fix
