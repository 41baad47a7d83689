"""The same blocks as Markdown, for an issue, a chat or a repository: tables stand in for their charts."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from gpubench.report.section import Block, Bullets, Charts, Facts, Paragraph, Part, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")
"""Everything that Markdown may read as structure inside a line."""


def as_markdown(title: str, subtitle: str, blocks: Sequence[Block]) -> str:
    """Return the whole report as one GitHub-flavoured Markdown document."""
    lines = [f"# {escape(title)}", "", escape(subtitle), ""]
    for block in blocks:
        lines += [f"## {escape(block.title)}", ""]
        for part in block.parts:
            lines += [*_part(part), ""]
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    """Make text print as itself: no markup, no link, no image, one line.

    >>> escape("<b>a</b>")
    '&lt;b&gt;a&lt;/b&gt;'
    """
    return html.escape(_SPECIAL.sub(r"\\\1", " ".join(text.split())), quote=False).replace("://", ":&#47;/")


def _part(part: Part) -> list[str]:
    match part:
        case Paragraph(tone="headline"):
            return [f"**{escape(part.text)}**"]
        case Paragraph(tone="warning" | "note"):
            return [f"> {escape(part.text)}"]
        case Paragraph():
            return [escape(part.text)]
        case Facts():
            return [
                f"- **{escape(f.term)}**: {escape(f.value)}" + (f" — {escape(f.detail)}" if f.detail else "")
                for f in part.rows
            ]
        case Bullets():
            return [f"- {escape(item)}" for item in part.items]
        case Table():
            return _table(part)
        case Charts():
            return [*_table(part.twin), *(["", escape(part.caption)] if part.caption else [])]


def _table(table: Table) -> list[str]:
    return [
        f"*{escape(table.caption)}*",
        "",
        _row([column.title for column in table.columns]),
        _row_raw(["---:" if column.numeric else "---" for column in table.columns]),
        *(_row(row) for row in table.rows),
    ]


def _row(cells: Sequence[str]) -> str:
    return _row_raw([escape(cell) for cell in cells])


def _row_raw(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
