"""The same blocks as Markdown, for an issue, a chat or a repository: tables replace the charts."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from gpubench.blocks.parts import Block, Bullets, Charts, Facts, Paragraph, Part, Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~])")
"""Everything that Markdown may read as structure inside a line."""


MOST_OF_A_LONG_TABLE = 20


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
    >>> escape("http://a.b www.c.d")
    'http:&#47;/a.b www&#46;c.d'
    """
    plain = html.escape(_SPECIAL.sub(r"\\\1", " ".join(text.split())), quote=False)
    return plain.replace("://", ":&#47;/").replace("www.", "www&#46;")


def prose(text: str) -> str:
    """Escape a text, but keep text between backticks as code.

    >>> prose("run `gpubench run` here")
    'run `gpubench run` here'
    """
    pieces = " ".join(text.split()).split("`")
    if len(pieces) % 2 == 0:  # a lone backtick
        return escape(text)
    return "".join(
        f"`{piece}`" if i % 2 and piece and "<" not in piece else escape_inside(piece)
        for i, piece in enumerate(pieces)
    )


def escape_inside(piece: str) -> str:
    """Escape a part of a line and keep the spaces at its ends."""
    left, right = piece[: len(piece) - len(piece.lstrip())], piece[len(piece.rstrip()) :]
    return f"{left}{escape(piece)}{right}" if piece.strip() else piece


def _part(part: Part) -> list[str]:
    match part:
        case Paragraph(tone="headline"):
            return [f"**{prose(part.text)}**"]
        case Paragraph(tone="warning" | "note"):
            return [f"> {prose(part.text)}"]
        case Paragraph():
            return [prose(part.text)]
        case Facts():
            return [
                f"- **{escape(f.term)}**: {escape(f.value)}" + (f" — {escape(f.detail)}" if f.detail else "")
                for f in part.rows
            ]
        case Bullets():
            return [f"{'1.' if part.numbered else '-'} {prose(item)}" for item in part.items]
        case Table():
            return _table(part)
        case Charts():
            return [*_table(part.twin), *(["", prose(part.caption)] if part.caption else [])]


def _table(table: Table) -> list[str]:
    rows = table.rows[:MOST_OF_A_LONG_TABLE]
    left = len(table.rows) - len(rows)
    return [
        f"*{escape(table.caption)}*",
        "",
        _row([column.title for column in table.columns]),
        _row_raw(["---:" if column.numeric else "---" for column in table.columns]),
        *(_row(row) for row in rows),
        *(["", f"{left:,} further rows stand on the page."] if left else []),
    ]


def _row(cells: Sequence[str]) -> str:
    return _row_raw(["<br>".join(escape(line) for line in cell.split("\n")) for cell in cells])


def _row_raw(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
