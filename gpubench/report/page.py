"""The page: sections rendered into one self-contained HTML file, and the public ``report`` function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gpubench.blocks.charts import PALETTE
from gpubench.blocks.html import environment
from gpubench.blocks.markdown import as_markdown
from gpubench.blocks.parts import Block, Charts, Figure, printable
from gpubench.errors import MisuseError, StorageError
from gpubench.report.export import as_csv, as_json, embedded
from gpubench.sections.data import ReportData, gather
from gpubench.sections.section import Section, load_sections
from gpubench.sections.words import moment_words
from gpubench.shipped import package_path
from gpubench.units import format_bytes, plain

FORMATS = {"html": "html", "md": "md", "json": "json", "csv": "csv"}
"""Each format with the ending of its default file name."""


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """A block with its address, and the addresses of its figures in the page."""

    key: str
    block: Block


def report(
    output: Path | str | None = None,
    results: Path | str | None = None,
    *,
    format: str | None = None,  # noqa: A002 - the option's own name
    data: ReportData | None = None,
    run: str | None = None,
    **question: Any,
) -> str:
    """Write the report, and return the path of the file.

    Args:
        output: The file; None writes into ``reports/`` of the results folder.
        results: Results folder; None takes the user's.
        format: ``html``, ``md``, ``json`` or ``csv``; None goes by the file's ending, else ``html``.
        data: What to report, where it is already at hand; None gathers it from ``results``.
        run: Whose device the page is about: a run's path or id; None is the newest usable one.
        question: ``as_of``, the day to report as on; and what the ranking is asked, as in ``gpubench.rank``:
            workloads, precision, samples ...

    Raises:
        MisuseError: If the question or the format is unknown, or a section plug-in is broken.
        StorageError: If the file cannot be written.
    """
    path, folder = (None if given is None else Path(given) for given in (output, results))
    kind = _format(format, path)
    data = data or gather(folder, run=run, **question)
    path = path or _default_path(data, folder, kind)
    text = render(data, kind)
    # Names may hold what UTF-8 cannot carry (lone surrogates from a driver): they become "?".
    encoded = text.encode("utf-8", errors="replace")
    _replace(path, encoded)
    return str(path)


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write the report to {path}: {error.strerror or error}; choose another place with -o FILE"
        ) from error


def render(data: ReportData, format: str = "html") -> str:  # noqa: A002 - the option's own name
    """Return the report as text in one of ``FORMATS``."""
    if format == "json":
        return as_json(data)
    if format == "csv":
        return as_csv(data)
    blocks = _placed(data, load_sections())
    if format == "md":
        return as_markdown(_title(data), _subtitle(data), [placed.block for placed in blocks])
    return _html(data, blocks)


def _format(format_: str | None, output: Path | None) -> str:
    ending = "" if output is None else output.suffix.lower().lstrip(".")
    by_ending = {"htm": "html", "markdown": "md"}.get(ending, ending)
    kind = format_ or (by_ending if by_ending in FORMATS else "html")
    if kind not in FORMATS:
        raise MisuseError(f"unknown format {plain(kind)!r}; choose one of {', '.join(FORMATS)}")
    return kind


def _default_path(data: ReportData, results: Path | None, kind: str) -> Path:
    from gpubench.record.store import results_root

    name = "ranking" if data.run is None else data.run.run_id
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)[:80]
    return results_root(results) / "reports" / f"{data.today.isoformat()}-{safe}.{FORMATS[kind]}"


def _placed(data: ReportData, sections: Sequence[Section]) -> list[_Placed]:
    rendered = ((section.key, section.render(data)) for section in sections)
    return [_Placed(key=key, block=printable(block)) for key, block in rendered if block is not None]


def _html(data: ReportData, blocks: Sequence[_Placed]) -> str:
    from plotly.offline import get_plotlyjs

    figures = {
        f"chart-{placed.key}-{i}": figure.figure
        for placed in blocks
        for i, figure in enumerate(_figures(placed.block), start=1)
    }
    content, thinned = embedded(data)
    plotly_js, raw = _script_safe(get_plotlyjs()), {"data": content, "csv": as_csv(data)}
    return environment().get_template("page.html.j2").render(
        title=_title(data),
        subtitle=_subtitle(data),
        blocks=blocks,
        figures=figures,
        palette=PALETTE,
        raw=raw,
        thinned=thinned,
        plotly_size=format_bytes(len(plotly_js)),
        raw_size=format_bytes(len(msgspec.json.encode(raw["data"]))),
        stem=f"gpubench-{data.today.isoformat()}",
        version=data.version,
        plotly_js=plotly_js,
        css=_asset("page.css"),
        js=_asset("page.js"),
    )  # fmt: skip


def _figures(block: Block) -> list[Figure]:
    return [figure for part in block.parts if isinstance(part, Charts) for figure in part.figures]


def _title(data: ReportData) -> str:
    if data.device is None or data.run is None:
        return "Training per dollar"
    return plain(data.device.name or "Unnamed device", 80)


def _subtitle(data: ReportData) -> str:
    if data.device is None or data.run is None:
        return f"gpubench report of {data.today.isoformat()}; nothing was measured on this machine"
    return f"gpubench report of {data.today.isoformat()}; measured {moment_words(data.run.started_at)}"


def _asset(name: str) -> Any:
    from markupsafe import Markup

    text = package_path(f"report/templates/{name}").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - a file of this package, no outside text


def _script_safe(script: str) -> Any:
    """Mark the plotly script as markup; it must not hold what would end its element."""
    from markupsafe import Markup

    return Markup(script.replace("</script", "<\\/script"))  # noqa: S704 - the library's own script
