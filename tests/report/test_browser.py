"""The page in a real Chromium: no error, no request, every chart drawn, readable in light and dark."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gpubench.report.page import report

from . import samples
from .test_page import contrast

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
REQUIRED = os.environ.get("GPUBENCH_REQUIRE_BROWSER") == "1"

# plotly's page stays in memory between pages of one browser: one launch serves all tests of this file.
pytestmark = pytest.mark.timeout(120)

PAGES = {
    "gpu": lambda: samples.report_data(samples.h200_run(), samples.cpu_run()),
    "cpu": lambda: samples.report_data(samples.cpu_run()),
    "nothing": samples.report_data,
    "hostile": samples.hostile_data,
}


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        reason = (
            "no chromium on the path (apt install chromium); GPUBENCH_REQUIRE_BROWSER=1 makes this a failure"
        )
        pytest.fail(reason) if REQUIRED else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {name: report(folder / f"{name}.html", data=make()) for name, make in PAGES.items()}


class Visit:
    """One page opened once, with everything that it asked for or complained of."""

    def __init__(self, browser, path: str, **options) -> None:
        self.context = browser.new_context(accept_downloads=True, **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"file://{path}")
        self.page.locator("html[data-ready=yes]").wait_for(state="attached")


@pytest.fixture
def visit(browser, files):
    visits = []

    def open_page(name: str, **options) -> Visit:
        visits.append(Visit(browser, files[name], **options))
        return visits[-1]

    yield open_page
    for one in visits:
        one.context.close()


def draw_all(page) -> None:
    """Read the page to its end: charts are drawn as they come near the window."""
    for chart in page.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator("svg.main-svg").first.wait_for()


@pytest.mark.parametrize("name", list(PAGES))
def test_reads_to_its_end_without_a_word_or_a_request_and_every_chart_is_drawn(visit, name):
    one = visit(name)
    draw_all(one.page)
    assert one.complaints == []
    assert [url for url in one.requests if not url.startswith(("data:", "blob:"))] == [one.page.url]
    charts = one.page.eval_on_selector_all(
        ".chart", "all => all.map(e => e.querySelectorAll('svg .trace').length)"
    )
    assert all(count > 0 for count in charts), charts
    assert one.page.eval_on_selector_all(".chart a, .chart image, main img", "all => all.length") == 0


@pytest.mark.parametrize("name", ["gpu", "hostile"])
def test_a_narrow_page_does_not_scroll_sideways(visit, name):
    page = visit(name, viewport={"width": 360, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_text_is_readable_in_light_and_after_a_switch_to_dark(visit):
    page = visit("gpu", color_scheme="light").page
    draw_all(page)
    fills = "all => [...new Set(all.map(e => getComputedStyle(e).fill))].sort()"
    light = page.eval_on_selector_all(".chart .points path", fills)
    _assert_readable(page)
    page.emulate_media(color_scheme="dark")
    _wait_until(page, lambda: page.eval_on_selector_all(".chart .points path", fills) != light)
    _assert_readable(page)


def _wait_until(page, happened, patience_ms: int = 30_000) -> None:
    """Poll from outside: the page's policy forbids the evaluation that playwright's own wait needs."""
    for _ in range(patience_ms // 50):
        if happened():
            return
        page.wait_for_timeout(50)
    pytest.fail("nothing changed")


def _assert_readable(page) -> None:
    """Text keeps 4.5 to 1 against the page (WCAG 2.2, 1.4.3), in charts as well."""
    background = _hex(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    for selector in (
        "body",
        ".subtitle",
        ".caption",
        "nav a",
        "td",
        "p.headline",
        "dl.prominent small",
        "summary",
        "td small",
    ):
        colour = _hex(page.eval_on_selector(selector, "e => getComputedStyle(e).color"))
        assert contrast(colour, background) >= 4.5, (selector, colour, background)
    for colour in page.eval_on_selector_all(
        ".chart text", "all => [...new Set(all.map(e => getComputedStyle(e).fill))]"
    ):
        assert contrast(_hex(colour), background) >= 4.5, colour


def test_the_raw_data_can_be_saved(visit):
    page = visit("cpu").page
    with page.expect_download() as download:
        page.click("[data-save=json]")
    with Path(download.value.path()).open(encoding="utf-8") as file:
        assert json.load(file)["runs"][0]["run_id"] == samples.cpu_run().run_id
    with page.expect_download() as download:
        page.click("[data-save=csv]")
    with Path(download.value.path()).open(encoding="utf-8") as file:
        assert file.read().startswith("kind,")


def test_a_print_shows_the_folded_tables_and_folds_them_again(visit):
    page = visit("gpu").page
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.eval_on_selector_all("details:not([open])", "all => all.length") == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.eval_on_selector_all("details[open]", "all => all.length") == 0
    assert len(page.pdf()) > 50_000


def test_tables_wait_in_text_where_scripts_are_off(browser, files):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{files['gpu']}")
    assert page.locator("noscript").count() == 1
    assert page.locator("details.twin table").count() >= 4
    context.close()


def _hex(colour: str) -> str:
    numbers = [int(float(x)) for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return "#" + "".join(f"{n:02x}" for n in numbers)
