"""The HTML file: self-contained, escaped, labeled; checked by a parser, because the plotly script contains URLs."""

from __future__ import annotations

import gzip
import hashlib
import json
from base64 import b64decode
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

import gpubench.report
from gpubench.blocks import parts
from gpubench.blocks.parts import PALETTE, Block, Paragraph
from gpubench.errors import MisuseError, StorageError
from gpubench.report.page import REPORT_VERSION, render, report
from gpubench.sections import prices
from gpubench.sections.data import ReportData

from . import samples

VOID = {"meta", "link", "br", "img", "input", "hr"}
TEXTS = {
    "gpu": lambda: samples.report_data(samples.h200_run(), samples.cpu_run()),
    "cpu": lambda: samples.report_data(samples.cpu_run()),
    "nothing": samples.report_data,
    "empty": lambda: ReportData(today=samples.TODAY),
    "hostile": samples.hostile_data,
}


class Page(HTMLParser):
    """What a browser would see: elements with attributes, the text of each script, and tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.comments: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data

    def handle_comment(self, data):
        self.comments.append(data)

    def script(self, name: str) -> str:
        """Return the text of the script with this id."""
        ids = [attributes.get("id") for attributes in self.all("script")]
        return self.scripts[ids.index(name)]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module", params=list(TEXTS))
def page_text(request) -> str:
    return render(TEXTS[request.param]())


@pytest.fixture(scope="module")
def page(page_text) -> Page:
    return Page(page_text)


def test_nothing_points_outside_the_file(page):
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert name not in {
                "src",
                "srcset",
                "action",
                "formaction",
                "background",
                "poster",
                "data",
                "ping",
            }, (tag, name)
            assert not name.startswith("on"), (tag, name)
            if name == "href" and attributes.get("rel") == "noopener noreferrer":  # the page of an offer
                assert value.startswith(("https://", "http://")), value
            elif name == "href":
                assert value.startswith(("#", "data:")), value


def test_only_our_own_elements_are_on_the_page(page):
    assert {"iframe", "object", "embed", "form", "img", "base", "video"}.isdisjoint(
        tag for tag, _ in page.elements
    )
    assert [a.get("id") for a in page.all("script") if "id" in a] in (
        ["palette", "raw-data", "figures", "plotly"],
        ["palette", "raw-data"],  # without measurements no drawing library is included
    )
    assert page.unbalanced == []
    assert page.open == []


def test_the_policy_allows_no_network(page):
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    assert "http" not in policy


def test_plotly_is_included_once_with_its_license_and_every_chart_has_its_figure(page):
    if "plotly" not in {a.get("id") for a in page.all("script")}:
        assert not [a for _, a in page.elements if a.get("class") == "chart"]
        return
    scripts = [unpacked(script) for script in page.scripts if script.startswith("H4sI")]
    assert sum("* plotly.js (basic - minified) v4.1.1" in script for script in scripts) == 1
    assert any("free of charge" in comment for comment in page.comments)
    figures = json.loads(unpacked(page.script("figures")))
    charts = [a for _, a in page.elements if a.get("class") == "chart"]
    assert sorted(a["id"] for a in charts) == sorted(figures)
    assert all(a["role"] == "img" and a["aria-label"] for a in charts)


def test_ids_are_unique_and_links_lead_somewhere(page):
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(set(ids)) == len(ids)
    assert {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")} <= set(ids)


def test_headings_go_down_in_order(page):
    levels = [int(tag[1]) for tag, _ in page.elements if tag in {"h1", "h2", "h3", "h4"}]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_tables_name_rows_and_columns(page):
    assert all(a.get("scope") in {"row", "col"} for a in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))


def unpacked(script: str) -> str:
    return gzip.decompress(b64decode(script)).decode()


def test_the_vendored_script_is_the_published_one():
    """Version 4.1.1 of plotly.js-basic-dist-min, byte for byte."""
    script = (Path(gpubench.report.__path__[0]) / "vendor" / "plotly-basic.min.js").read_bytes()
    assert (
        hashlib.sha256(script).hexdigest()
        == "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    )


def test_a_page_can_be_emailed(page_text):
    assert len(page_text.encode()) <= 2 * 2**20


def test_raw_data_comes_back_complete(page):
    raw = json.loads(unpacked(page.script("raw-data")))
    assert raw["schema_version"] == REPORT_VERSION


def test_hostile_names_are_text_in_the_raw_data_too():
    data = samples.hostile_data()
    raw = json.loads(unpacked(Page(render(data)).script("raw-data")))
    assert raw["runs"][0]["device"]["name"] == samples.HOSTILE


def test_a_careless_section_cannot_inject_escapes_or_markup(monkeypatch):
    careless = Block(title="Careless", parts=(Paragraph(text="\x1b[31m<b onclick=x>\x00"),))
    monkeypatch.setitem(prices.SECTIONS, "prices", lambda data: careless)
    text = render(samples.report_data(samples.cpu_run()))
    assert "&lt;b onclick=x&gt;" in text
    assert "\x1b" not in text
    assert "\x00" not in text


def test_the_language_and_title_are_set():
    parsed = Page(render(samples.report_data(samples.h200_run())))
    assert parsed.all("html")[0]["lang"] == "en"
    assert "viewport" in {m.get("name") for m in parsed.all("meta")}


QUIET_ON_PURPOSE = {parts.RULE, parts.BAND, parts.PAPER}


@pytest.mark.parametrize(
    ("light", "dark"), [pair for pair in PALETTE.items() if pair[0] not in QUIET_ON_PURPOSE]
)
def test_colors_stand_out_from_the_page_in_light_and_dark(light, dark):
    """Text and marks have a contrast of at least 3 to 1 (WCAG 2.2, 1.4.11); rules and bands are fainter on purpose."""
    assert contrast(light, "#ffffff") >= 3
    assert contrast(dark, PALETTE["#ffffff"]) >= 3


def contrast(one: str, other: str) -> float:
    """Return the WCAG 2.2 contrast ratio of two colors."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_of_black_on_white_is_21():
    """This is the largest ratio that the definition allows."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_report_writes_the_file_and_returns_its_path(tmp_path):
    target = tmp_path / "new" / "page.html"
    assert report(target, data=samples.report_data(samples.cpu_run())) == str(target)
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("name", "start"), [("a.md", "# "), ("a.json", "{"), ("a.csv", "kind,"), ("a.htm", "<!doctype")]
)
def test_the_file_extension_chooses_the_format(tmp_path, name, start):
    path = report(tmp_path / name, data=samples.report_data(samples.cpu_run()))
    assert Path(path).read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize("name", ["x.pdf", "x.txt", "x.html.gz", ".pdf"])
def test_an_unknown_file_extension_is_refused(tmp_path, name):
    with pytest.raises(MisuseError, match="html, md,"):
        report(tmp_path / name, data=samples.report_data())
    assert list(tmp_path.iterdir()) == []


def test_an_explicit_format_is_written_to_any_file_name(tmp_path):
    report(tmp_path / "x.txt", format="md", data=samples.report_data())
    assert (tmp_path / "x.txt").read_text(encoding="utf-8").startswith("# ")


def test_an_unknown_format_is_misuse(tmp_path):
    with pytest.raises(MisuseError, match="choose from html"):
        report(tmp_path / "x", format="pdf", data=samples.report_data())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="with -o"):
        report(tmp_path / "file" / "page.html", data=samples.report_data())


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path):
    run = samples.h200_run(notes=("\udcff",), run_id="a\udcff")
    report(tmp_path / "page.html", data=samples.report_data(run))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")  # strict: a surrogate would not decode
    assert page.rstrip().endswith("</html>")


def test_the_title_counts_models_of_gpus_and_not_cards():
    """Two cards of one model are not two compared GPUs; a CPU next to them is not a card."""
    other = samples.h200_run(
        run_id="20261101T000000Z-e", device=msgspec.structs.replace(samples.h200(), device_id="e" * 16)
    )
    two = samples.report_data(samples.h200_run(), other, samples.cpu_run())
    assert "<h1>NVIDIA H200</h1>" in render(two)
    assert "<h1>NVIDIA H200</h1>" in render(samples.report_data(samples.h200_run(), samples.cpu_run()))
    assert "<h1>10 GPUs compared</h1>" in render(samples.report_data(*samples.ten_runs()))
