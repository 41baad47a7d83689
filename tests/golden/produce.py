"""Produce each golden: the output of gpubench for the frozen fixture. Only this file normalizes output.

It replaces or leaves out what depends on the machine or the release instead of the fixture: the path of the results
folder (``<results>``), gpubench's version (``<version>``), and the sizes of the plotly script and of the data in the
page (``<size>``). Floating-point figures keep six significant digits, because processors may round the others
differently. JSON documents leave out ``launches``, the raw rounds, which are in the golden of the run's file.
"""

from __future__ import annotations

import csv
import functools
import html.parser
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from command import settings

import gpubench
from gpubench.cli.app import main
from gpubench.folders import FOLDER_VARIABLE
from gpubench.record.store import read_run, write_run, writing

DAY = "2026-11-20"
DATA = Path(__file__).resolve().parent / "data"
TABLES, RESULTS = DATA / "tables", DATA / "results"
EXPECTED = DATA.parent / "expected"
WIDTHS = (80, 120)
_OF_TERMINALS = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CLICOLOR_FORCE"}

SOUND, DOUBTFUL, CPU = "20261120t093000z-a1b2c3", "20261118t080000z-d0d0d0", "20261119t101500z-0f0f0f"
OWN = "2x RTX 4090, 3800 USD, host 1500 USD, 3 years, 60 %, 380 W"
AS_OF = ("--as-of", DAY)

VERBS: Mapping[str, tuple[str, ...]] = {
    "rank": ("rank", *AS_OF),
    "rank-job": ("rank", "vgg16", "--samples", "1e8", "--spot", "--table", *AS_OF),
    "rank-buy": ("rank", "vgg16", "--buy", "--have", OWN, "--table", *AS_OF),
    "rank-own": ("rank", "vgg16", "--have", OWN, "--explain", *AS_OF),
    "rank-infer": ("rank", "resnet50", "--task", "infer", "--max-latency-ms", "20", "--table", *AS_OF),
    "predict-show": ("predict", "show", "vgg16"),
    "predict-show-max": ("predict", "show", "lstm", "--precision", "fp32", "--batch-size", "max"),
    "memory": ("memory", "vgg16", "--gpu", "rtx-4090", "--batch-size", "512"),
    "offers-list": ("offers", "list", *AS_OF),
    "results-list": ("results", "list"),
    "check-sound": ("check", SOUND),
    "check-doubtful": ("check", DOUBTFUL),
    "check-cpu": ("check", CPU),
    "compare": ("compare", SOUND, DOUBTFUL, "--fail-over", "3%"),
    "compare-devices": ("compare", CPU, DOUBTFUL, "--by", "device"),
    "list-gpus": ("list", "--gpus"),
}  # fmt: skip
"""Each verb that needs neither a device nor a network, with its options."""
SETTINGS: Mapping[str, Mapping[str, float]] = {"rank-job": {"spot_lost": 0.1, "startup_minutes": 10}}
"""Settings that a verb reads from a file in its folder."""


def environment(columns: int) -> dict[str, str]:
    """Return the environment of a verb: frozen tables and runs, no folder of this user, one width."""
    nowhere = str(DATA / "nowhere")
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_TERMINALS}
    return inherited | {
        FOLDER_VARIABLE: str(TABLES),
        "GPUBENCH_RESULTS": str(RESULTS),
        "XDG_DATA_HOME": nowhere,
        "XDG_CONFIG_HOME": nowhere,
        "COLUMNS": str(columns),
        "LINES": "50",
        "NO_COLOR": "1",
        "TERM": "xterm",
    }


@contextmanager
def frozen_tables() -> Iterator[None]:
    """Read the frozen tables inside the block and the shipped ones after it; no cache survives."""
    _forget_tables()
    try:
        with patch.dict(os.environ, environment(120), clear=True):
            yield
    finally:
        _forget_tables()


def _forget_tables() -> None:
    """Empty every cache of gpubench's modules, whether or not it holds rows of a table."""
    for name, module in list(sys.modules.items()):
        if name == "gpubench" or name.startswith("gpubench."):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


class _Stream(io.TextIOWrapper):
    """A UTF-8 stream that claims to be a terminal, or not to be one."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode("utf-8")


def run(
    *arguments: str, columns: int = 120, terminal: bool = False, variables: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run the command line in this process with additional ``variables``; return exit code, stdout and stderr."""
    out, err = _Stream(terminal=terminal), _Stream(terminal=terminal)
    with (
        patch.object(sys, "argv", ["gpubench", *arguments]),
        patch.dict(os.environ, environment(columns) | dict(variables or {}), clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    return code, out.text(), err.text()


# --- normalization ------------------------------------------------------------------------------------------

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x1b\x07]*(?:\x07|\x1b\\)")
_RAW = re.compile(r'<details class="section" id="raw".*?</details>', re.DOTALL)
_SIZE = re.compile(r"\b\d[\d.,]* (?:[KMG]i?)?B\b")


def normalized(text: str) -> str:
    """Replace everything that depends on this machine or this release."""
    text = _ESCAPES.sub("", text).replace(str(RESULTS), "<results>")
    text = re.sub(rf"(?<![\d.]){re.escape(gpubench.__version__)}(?!\.?\d)", "<version>", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {
            name: "<in the file>" if name == "launches" else _rounded(each) for name, each in value.items()
        }
    return value


def _json(text: str) -> str:
    """Return a document with one rounded value per line."""
    return normalized(json.dumps(_rounded(json.loads(text)), indent=1, ensure_ascii=False))


def _csv(text: str) -> str:
    """Return a table with its floating-point cells rounded."""
    rows = csv.reader(io.StringIO(text))
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([_cell(cell) for cell in row] for row in rows)
    return normalized(lines.getvalue())


def _cell(cell: str) -> str:
    try:
        return f"{float(cell):.6g}" if re.fullmatch(r"-?\d*\.\d+(e[-+]?\d+)?", cell) else cell
    except ValueError:
        return cell


# --- page and Markdown --------------------------------------------------------------------------------------

_UNSEEN = {"script", "style", "template", "svg", "noscript"}
_LINES = {
    "p", "div", "section", "li", "tr", "h1", "h2", "h3", "h4", "dt", "dd", "table", "caption", "summary",
    "header", "footer", "main", "details", "figure", "figcaption", "ul", "ol", "nav", "title", "head", "button",
}  # fmt: skip


class _Visible(html.parser.HTMLParser):
    """Collects the text of a page, one line for each block or table row."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.unseen += tag in _UNSEEN
        if tag in _LINES:
            self.pieces.append("\n")
        if tag in {"h1", "h2"}:
            self.pieces.append("#" * int(tag[1]) + " ")
        if tag in {"br", "small", "span", "strong"}:
            self.pieces.append(" ")
        if tag in {"td", "th"}:
            self.pieces.append("\x1f")

    def handle_endtag(self, tag: str) -> None:
        self.unseen -= tag in _UNSEEN
        if tag in _LINES:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.unseen:
            self.pieces.append(re.sub(r"\s+", " ", data))


def visible_text(page: str) -> str:
    """Return the visible text of a page, with table cells separated by ``|``."""
    parser = _Visible()
    parser.feed(_RAW.sub(lambda found: _SIZE.sub("&lt;size&gt;", found[0]), page))
    lines = []
    for line in "".join(parser.pieces).split("\n"):
        cells = [" ".join(cell.split()) for cell in line.split("\x1f")]
        text = "| " + " | ".join(cells[1:]) + " |" if len(cells) > 1 else cells[0]
        if text.strip("| "):
            lines.append(text)
    return normalized("\n".join(lines))


_NUMBER = re.compile(
    r"\d{4}-\d\d(?:-\d\d)?"  # a date
    r"|(?<![\w.])[-+]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?"
    r"(?: ?(?:%|[kMGTP](?!\w)|million|[kMGTPmµn]?(?:i?B|FLOP|OP|W|Wh|J|Hz|s)(?:/\w+)?(?!\w)))?"
)


def figures(text: str) -> str:
    """Return every figure in a text of headings, tables and sentences, one line per cell or sentence.

    A cell gives ``section / row / column: figures``, a sentence ``section: figures``.
    """
    lines, section, head = [], "", []
    for line in text.splitlines():
        if line.startswith("#"):
            section, head = line.lstrip("# "), []
        if not line.startswith("|"):
            head = []
            if found := _NUMBER.findall(line):
                lines.append(f"{section}: {' '.join(found)}")
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not head:
            head = cells
            continue
        for column, cell in zip(head, cells, strict=False):
            if found := _NUMBER.findall(cell):
                label = "" if cell == cells[0] else f" / {cells[0]}"
                lines.append(f"{section}{label} / {column}: {' '.join(found)}")
    return "\n".join(lines) + "\n"


# --- the goldens --------------------------------------------------------------------------------------------


@functools.cache
def _report(kind: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"report.{kind}"
        code, out, err = run("report", "-o", str(path), "--workload", "vgg16", *AS_OF)
        assert code == 0, f"{out}{err}"
        return path.read_text(encoding="utf-8")


def _document(name: str) -> str:
    with settings(**SETTINGS.get(name, {})):
        return _json(run(*VERBS[name], "--json")[1])


def _rewritten(run_id: str) -> str:
    (path,) = (RESULTS / "runs").glob(f"*/{run_id}.json")
    with tempfile.TemporaryDirectory() as folder:
        stored = read_run(path)
        with writing(Path(folder), stored):
            return write_run(Path(folder), stored).read_text(encoding="utf-8")


def _terminal(name: str, columns: int) -> str:
    with settings(**SETTINGS.get(name, {})):
        code, out, err = run(*VERBS[name], columns=columns, terminal=True)
    return normalized(f"{out}\n--- stderr\n{err}\n--- exit code {code}")


VALUES: Mapping[str, Callable[[], str]] = {
    **{f"{name}.json": functools.partial(_document, name) for name in VERBS},
    "report.json": lambda: _json(_report("json")),
    "report.csv": lambda: _csv(_report("csv")),
    "run-file.json": lambda: _rewritten(DOUBTFUL),
    "figures-markdown.txt": lambda: figures(normalized(_report("md"))),
    "figures-page.txt": lambda: figures(visible_text(_report("html"))),
}
WORDS: Mapping[str, Callable[[], str]] = {
    **{
        f"{name}-{columns}.txt": functools.partial(_terminal, name, columns)
        for name in VERBS
        for columns in WIDTHS
    },
    "report.md": lambda: normalized(_report("md")),
    "page.txt": lambda: visible_text(_report("html")),
}
LAYERS = {"values": VALUES, "words": WORDS}
