"""Two runs side by side, case by case, with the interval of each ratio."""

from __future__ import annotations

from gpubench.blocks.parts import Part, number, table, text
from gpubench.record.compare import Comparison, Row
from gpubench.units import format_number


def compared(found: Comparison) -> list[Part]:
    """Return one line a case; nothing where the runs have no case in common."""
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
            text("Findings", _findings),
        )
    ]


def _findings(row: Row) -> str:
    sides = (("A", row.a_findings), ("B", row.b_findings))
    return "; ".join(f"{name}: {' '.join(kinds)}" for name, kinds in sides if kinds)
