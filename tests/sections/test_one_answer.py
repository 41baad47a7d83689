"""A run and a ranking show the same figures, names and doubts on the terminal, on the page, in Markdown and in JSON."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import replace
from unittest.mock import patch

import msgspec
from golden.produce import visible_text
from hypothesis import given, settings
from hypothesis import strategies as st
from report import samples
from report.test_sections import block_of

from gpubench.blocks.parts import Block, as_html, as_markdown
from gpubench.blocks.terminal import show
from gpubench.findings import INFORMATIVE, Finding, FindingKind
from gpubench.interval import Interval
from gpubench.labels import gpus_of
from gpubench.models import Execution, Pricing, Ranking, Run
from gpubench.precisions import Precision
from gpubench.recommend.rank import document
from gpubench.record.figures import run_document
from gpubench.sections.data import ReportData, of_ranking, of_run, unexplained
from gpubench.specs import load_specs
from gpubench.units import format_usd

KINDS = st.lists(
    st.sampled_from([kind for kind in FindingKind if kind is not FindingKind.STALE_PRICE]),
    max_size=2,
    unique=True,
)
POSITIVE = st.floats(1e-4, 1e3)
WIDTHS = st.floats(0.0005, 0.3)


@st.composite
def runs(draw) -> Run:
    cases = draw(
        st.lists(
            st.builds(
                lambda workload, precision, execution, batch: samples.case(
                    workload, batch, precision, execution
                ),
                st.sampled_from(["cnn", "lstm", "vgg16"]),
                st.sampled_from(Precision),
                st.sampled_from([Execution.EAGER, Execution.GRAPH]),
                st.sampled_from([1, 64, 4096]),
            ),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    rows = tuple(
        samples.measurement(
            case,
            draw(POSITIVE),
            draw(WIDTHS),
            launches=draw(st.integers(1, 2)),
            telemetry=False,
            findings=tuple(Finding(kind=kind, value=0.2, limit=0.1) for kind in draw(KINDS)),
        )
        for case in cases
    )
    whole = tuple(Finding(kind=kind) for kind in draw(KINDS))
    return samples.h200_run(measurements=rows, findings=whole, micro=())


@st.composite
def rankings(draw) -> Ranking:
    keys = draw(st.lists(st.sampled_from(sorted(load_specs())), min_size=1, max_size=8))
    rows = tuple(
        samples.ranked(
            rank,
            samples.offer(
                key,
                str(draw(st.decimals("0.05", 90, places=2))),
                draw(st.sampled_from(["aws", "vast", "acme [eu]"])),
                draw(st.sampled_from(["x.large", "a_b-1"])),
                count=draw(st.sampled_from([1, 8])),
                pricing=draw(st.sampled_from([Pricing.ON_DEMAND, Pricing.SPOT])),
            ),
            draw(st.floats(1, 1e7)),
            draw(st.floats(1.001, 3)),
            draw(st.sampled_from(["measured", "reference", "predicted"])),
            tie=draw(st.booleans()),
            findings=tuple(Finding(kind=kind) for kind in draw(KINDS)),
        )
        for rank, key in enumerate(keys, start=1)
    )
    return samples.ranking(rows=rows)


def shown(data: ReportData, key: str) -> tuple[list[dict[str, str]], ...]:
    """The rows of the first table of a section on terminal, page and Markdown: cells by their title."""
    block = block_of(key, data)
    assert block is not None
    if not block.brief:
        block = replace(block, brief=tuple(unexplained(block.parts)))
    out = io.StringIO()
    with redirect_stdout(out), patch.dict("os.environ"):
        show(*block.brief)
    table = _of_the_same_name(block)
    beside = tuple(replace(column, below=False) for column in table.columns)  # words without a heading follow
    page = visible_text(as_html(Block(title="t", parts=(replace(table, columns=beside),))))
    return (
        _terminal_rows(out.getvalue()),
        _piped_rows([line for line in page.splitlines() if line.startswith("| ")]),
        _piped_rows([line for line in as_markdown("t", "s", [Block(title="t", parts=(table,))]).splitlines() if line.startswith("| ")]),
    )  # fmt: skip


def _of_the_same_name(block: Block):
    """The table of the page that shares the most titles with the first table of the brief form."""
    brief = next(
        getattr(part, "twin", part) for part in block.brief if hasattr(getattr(part, "twin", part), "columns")
    )
    titles = {column.title for column in brief.columns}
    tables = [getattr(part, "twin", part) for part in block.parts]
    return max(
        (each for each in tables if hasattr(each, "columns")),
        key=lambda each: len(titles & {column.title for column in each.columns}),
    )


def _terminal_rows(text: str) -> list[dict[str, str]]:
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("───"))
    end = next((i for i in range(rule, len(lines)) if not lines[i].strip()), len(lines))
    titles, *rows = (re.split(r" {2,}", line.strip()) for line in [lines[rule - 1], *lines[rule + 1 : end]])
    return [dict(zip(titles, map(_plain, row), strict=True)) for row in rows]


def _piped_rows(lines: list[str]) -> list[dict[str, str]]:
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    titles, *rows = [row for row in cells if not set("".join(row)) <= set("-: ")]
    titles = [_plain(title, commas=True) for title in titles]
    return [dict(zip(titles, map(_plain, row), strict=True)) for row in rows]


def _plain(cell: str, *, commas: bool = False) -> str:
    """A cell without the separators of each renderer between a value and its detail."""
    cell = (
        cell.replace("<br>", " ")
        .replace("\\", "")
        .replace("&lt;", "<")
        .replace("&#47;", "/")
        .replace("\u00a0", " ")
    )
    return " ".join((cell if commas else re.sub(r"[(),]", " ", cell)).split())


def _same(*renderings: list[dict[str, str]]) -> None:
    first, *others = renderings
    for rows in others:
        assert len(rows) == len(first)
        for one, other in zip(first, rows, strict=True):
            common = one.keys() & other.keys()
            assert len(common) >= 3
            assert {title: one[title] for title in common} == {title: other[title] for title in common}


@settings(max_examples=10)
@given(runs())
def test_run_is_the_same_on_terminal_page_and_in_markdown(run):
    terminal, page, markdown = shown(of_run(run), "throughput")
    _same(terminal, page, markdown)
    rows = run_document(run)["measurements"]
    assert len(terminal) == len(rows)
    said = sorted(
        (row["Throughput, 95 % interval"].removesuffix(" from one process"), row.get("Findings", "none"))
        for row in terminal
    )
    stored = []
    for row, measurement in zip(rows, run.measurements, strict=True):
        one_launch = len(measurement.launch_step_times_s) < 2
        figure = Interval(
            *(row[key] for key in ("samples_per_s", "samples_per_s_low", "samples_per_s_high"))
        ).text(digits=3 if one_launch else 6)
        point, _, ends = figure.partition(" ")
        unit = f"{row['case']['sample_unit']}s/s"
        kinds = sorted({finding["kind"] for finding in row["findings"]})
        words = f"{point} {unit} {ends.rstrip(')')} {unit}" if ends else f"{point} {unit}"
        stored.append((_plain(words), " ".join(kinds) or "none"))
    assert said == sorted(stored)


@settings(max_examples=10)
@given(runs())
def test_every_doubt_of_a_run_is_named_on_terminal_and_page(run):
    kinds = {f.kind for f in run.findings} | {f.kind for m in run.measurements for f in m.findings}
    block = block_of("method", of_run(run))
    out = io.StringIO()
    with redirect_stdout(out):
        show(*block.brief)
    page = visible_text(as_html(block))
    for kind in kinds:
        assert f"[{kind}]" in out.getvalue()
        assert f"[{kind}]" in page


@settings(max_examples=10)
@given(runs())
def test_flagged_amp_pair_is_flagged_on_terminal_page_and_markdown(run):
    data = of_run(run)
    if block_of("amp", data) is None:
        return
    terminal, page, markdown = shown(data, "amp")
    _same(terminal, page, markdown)
    of_the_run = {f.kind for f in run.findings if f.kind not in INFORMATIVE}
    for row in terminal:
        assert of_the_run <= set(row.get("Findings", "").split())


@settings(max_examples=10)
@given(rankings())
def test_a_ranking_is_the_same_everywhere(ranking):
    data = of_ranking(ranking, every_offer=True)
    terminal, page, markdown = shown(data, "value")
    _same(terminal, page, markdown)
    rows = msgspec.to_builtins(document(ranking))["rows"]
    for words, row, offer in zip(terminal, rows, ranking.rows, strict=True):
        assert _plain(gpus_of(offer.offer)) in words["GPUs and offer"]
        assert words["GPUs and offer"].count(row["provider"]) >= 1
        assert words["Rank"] == f"{row['rank']}{'=' if row['tie'] else ''}"
        assert words["Price and its date"].startswith(_plain(format_usd(row["price_usd_per_hour"])))
        merit = Interval(row["samples_per_usd"], row["samples_per_usd_low"], row["samples_per_usd_high"])
        point = merit.words().partition(" ")[0]
        assert words["Images per dollar"].startswith(_plain(point))
        assert row["basis"] in words["Basis"]
        assert set(row["findings"]) <= set(words.get("Remarks", "").split())


def test_no_name_of_the_table_is_cut_short():
    rows = tuple(samples.ranked(1, samples.offer(key, "1.00"), 100.0) for key in load_specs())
    terminal, page, markdown = shown(of_ranking(samples.ranking(rows=rows[:15])), "value")
    assert "…" not in str((terminal, page, markdown))
    assert not [key for key in load_specs() if "…" in gpus_of(samples.offer(key, "1.00"))]
