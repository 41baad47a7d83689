"""The page as a calculator: in a real Chromium it answers like `gpubench rank`, and its address has the question."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import shlex
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from click.testing import CliRunner
from command import here
from own_net import own_net

from gpubench.cli.app import app
from gpubench.draws import INVERSE_NORMAL, normals, uniforms
from gpubench.errors import MisuseError
from gpubench.folders import package_text
from gpubench.labels import gpus, offer_name
from gpubench.profile import load_profiles
from gpubench.recommend.answer import BASES
from gpubench.recommend.lines import CHANCE
from gpubench.recommend.rank import ranked
from gpubench.recommend.request import RankRequest
from gpubench.record.store import write_run
from gpubench.report.calculator import _filters, calculator
from gpubench.report.page import report

from . import samples

SETTINGS = 12
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("asked")
    write_run(folder, samples.h200_run())
    return report(folder / "page.html", folder, as_of=samples.TODAY)


@pytest.fixture(scope="module")
def packed(path) -> str:
    """The figures in the page, as JSON; playwright transfers a text at once, but each number separately."""
    text = Path(path).read_text(encoding="utf-8")
    (content,) = re.findall(r'id="calculator">([^<]+)<', text)
    return gzip.decompress(base64.b64decode(content)).decode()


@pytest.fixture(scope="module")
def data(packed) -> dict:
    return json.loads(packed)


@pytest.fixture(scope="module")
def engine(browser):
    """Open a page that has only the script that ranks."""
    context = browser.new_context()
    page = context.new_page()
    page.add_script_tag(content=package_text("report/templates/rank.js"))
    yield page
    context.close()


# --- equal draws --------------------------------------------------------------------------------------------


def test_the_draws_of_a_named_stream_never_change():
    """These values are fixed: an old page must still show the same figures."""
    name = "gpu", "nvidia-h100-sxm-80gb"
    flat = [0.2717391919577494, 0.8442965558497235, 0.02324769424740225, 0.9888790963450447]
    assert uniforms(4, 0, *name).tolist() == flat
    expected = [NormalDist().inv_cdf(p) for p in flat]
    assert normals(4, 0, *name) == pytest.approx(expected, abs=1e-6)


def test_draws_have_their_named_distribution():
    drawn = normals(200_000, 3, "anything")
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    assert abs((drawn**3).mean()) < 0.03
    assert abs((drawn**4).mean() - 3) < 0.08
    flat = uniforms(200_000, 3, "anything")
    assert 0 < flat.min() < 1e-4
    assert 1 - 1e-4 < flat.max() < 1


def test_draws_of_two_named_streams_are_independent():
    drawn = np.array([normals(2_000, 0, "gpu", str(number)) for number in range(100)])
    off = np.corrcoef(drawn) - np.eye(100)
    assert np.abs(off).max() < 5 / 2_000**0.5


def test_python_and_the_script_draw_the_same_numbers(engine):
    for seed, names in ((0, ("gpu", "nvidia-h100-sxm-80gb")), (12345, ("price", "ü", "")), (1, ())):
        script = "([draws, seed, names, inverse_normal]) => { const r = ranker({draws, seed, inverse_normal, costs: {}}); return "
        script += "JSON.stringify([[...r.uniforms(draws, seed, ...names)], [...r.normals(draws, seed, ...names)]]); }"
        flat, normal = json.loads(engine.evaluate(script, [5_000, seed, list(names), INVERSE_NORMAL]))
        assert flat == uniforms(5_000, seed, *names).tolist()
        assert normal == pytest.approx(normals(5_000, seed, *names).tolist(), rel=1e-12)


# --- equal answers ------------------------------------------------------------------------------------------


def settings(data: dict) -> list[dict]:
    """Return random questions that the page can answer, the same each time."""
    chosen, cases = random.Random(20261128), data["cases"]
    haves = sorted({offer["have"] for offer in data["offers"] if offer["have"]})
    return [
        {
            "at": (at := chosen.randrange(len(cases))),
            "samples": cases[at]["samples"] * 10 ** chosen.uniform(-2, 1.5),
            "worth": chosen.choice([0, 0.5, 2, 2, 10, 50]),
            "budget": chosen.choice([None, None, None, 5, 50, 500]),
            "deadline": chosen.choice([None, None, None, 1, 10, 100]),
            "have": chosen.choice([None, None, None, *haves[::9]]),
            "seller": chosen.choice([None, None, "cloud", "secure", "community"]),
            "spot": chosen.random() < 0.4,
            "region": chosen.choice([None, None, None, *data["regions"]]),
        }
        for _ in range(SETTINGS)
    ]


def asked_of_the_library(case: dict, setting: dict, results: Path) -> RankRequest:
    def one(name: str) -> tuple[str, ...]:
        return () if setting[name] is None else (setting[name],)

    return RankRequest(
        workloads=tuple(case["workloads"]),
        precision=case["precision"],
        samples=setting["samples"],
        hour_worth_usd=float(setting["worth"]),
        budget_usd=setting["budget"],
        deadline_hours=setting["deadline"],
        own=one("have"),
        sellers=one("seller"),
        regions=one("region"),
        spot=setting["spot"],
        results=results,
        as_of=samples.TODAY,
    )


ANSWER = """([packed, settings]) => {
  const rank = ranker(JSON.parse(packed));
  return JSON.stringify(settings.map((asked) => {
    const began = performance.now(), found = rank.answer(asked.at, asked);
    const told = ({ offer, gpu, hours, usd, total, chances }) =>
    ({ offer: [offer.name, offer.gpu, offer.count, offer.usd], is_guess: gpu.is_guess, hours, usd, total, chances });
    const answers = Object.entries(found.answers).map(([name, of]) => [name, [of.row.offer.name, of.row.offer.gpu], of.p, Boolean(of.rival)]);
    return { ms: performance.now() - began, rows: found.rows.map(told), answers };
  }));
}"""


def key_of(row) -> tuple:
    """Return the key that distinguishes an offer from all others, as in the script."""
    usd = float(f"{row.usd_per_hour.value:.6g}")
    return offer_name(row.offer), row.offer.gpu_key, row.offer.gpu_count, usd


def test_the_script_answers_as_the_library_does(engine, path, packed, data):
    """P(best) agrees within 0.2 percentage points, dollars and hours within 0.1 %, and all answers match."""
    answered = 0
    found = json.loads(engine.evaluate(ANSWER, [packed, settings(data)]))
    for setting, script in zip(settings(data), found, strict=True):
        try:
            ranking = ranked(asked_of_the_library(data["cases"][setting["at"]], setting, Path(path).parent))
        except MisuseError:  # nothing meets the limits, or nobody sells there
            assert script["rows"] == [], setting
            continue
        answered += 1
        by_offer = {(*each["offer"],): each for each in script["rows"]}
        assert len(by_offer) == len(script["rows"])
        assert len(script["rows"]) == len(ranking.rows), setting
        totals = [(each["is_guess"], each["total"][1]) for each in script["rows"]]
        assert totals == sorted(totals)
        for row in ranking.rows:
            each = by_offer[key_of(row)]
            for interval, ends in ((row.hours, "hours"), (row.cost_usd, "usd"), (row.total_usd, "total")):
                assert each[ends] == pytest.approx([interval.low, interval.value, interval.high], rel=1e-3)
            for name in ("cheapest", "sensible", "fastest"):
                if (chance := getattr(row, f"p_{name}")) is not None:
                    assert each["chances"][name] == pytest.approx(chance, abs=0.002)
        assert script["answers"] == [
            [
                name,
                [offer_name(of.row.offer), of.row.offer.gpu_key],
                pytest.approx(of.p_best, abs=0.002),
                of.toss_up is not None,
            ]
            for name, of in ranking.answers.items()
        ], setting
    assert answered > SETTINGS / 2
    took_ms = sorted(each["ms"] for each in found)
    print(f"answers: median {took_ms[len(took_ms) // 2]:.0f} ms, 95 of 100 in {took_ms[-1]:.0f} ms")


# --- the page -----------------------------------------------------------------------------------------------


def open_page(context, path: str, address: str = "", *, has_scripts: bool = True):
    """Open the page at an address, and collect its errors."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.goto(f"file://{path}{address}")
    if has_scripts:
        page.locator("html[data-answered]").wait_for(state="attached")
    assert complaints == []
    return page


@pytest.fixture
def visit(browser):
    """Open a page in a context of its own, for this test alone, which may change it."""
    contexts = []

    def open_at(path, address: str = "", *, has_scripts: bool = True, day: str | None = None):
        contexts.append(browser.new_context(java_script_enabled=has_scripts))
        if day is not None:
            contexts[-1].clock.install(time=f"{day}T12:00:00Z")
        return open_page(contexts[-1], path, address, has_scripts=has_scripts)

    yield open_at
    for context in contexts:
        context.close()


GO = """hash => location.hash === hash || new Promise((gone) => {
  addEventListener("hashchange", gone, { once: true }); // after the page's own listener, which answers
  location.hash = hash;
})"""


@pytest.fixture(scope="module")
def shown(browser, path):
    """Open one page for each width and send it to an address; a test that fills a field restores it."""
    contexts = []

    @cache
    def at_width(width: int):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}))
        return open_page(contexts[-1], path)

    def show(address: str = "", width: int = 1280):
        page = at_width(width)
        page.evaluate(GO, address)
        return page

    yield show
    for context in contexts:
        context.close()


def three(page) -> list[list[str]]:
    rows = page.locator("#three tbody tr")
    return [rows.nth(at).locator("th, td").all_inner_texts() for at in range(rows.count())]


def test_a_change_is_answered_immediately_and_appears_in_the_address(visit, path):
    page = visit(path)
    before = three(page)
    page.locator("[name=worth]").fill("0")
    assert "worth=0" in page.url
    assert "Cheapest \u00b7 Sensible" in [row[0] for row in three(page)]
    page.locator("[name=worth]").fill("2")
    assert three(page) == before
    page.locator("[name=model]").select_option("llama_8b_qlora")
    assert "llama_8b_qlora, 10 million tokens, bf16 (weights too)." in page.locator("#question").inner_text()
    assert three(page) != before
    again = visit(path, "#" + page.url.partition("#")[2])
    assert three(again) == three(page)


def test_the_command_on_the_page_leaves_settings_to_their_file():
    asked = RankRequest(samples=1e6, tax=0.19, count=2, checkpointing="full", nvlink=True, draws=50)
    assert _filters(asked) == ["--count", "2", "--recipe", "checkpointing=full"]


@pytest.mark.parametrize(
    "asked",
    [
        "model=vit_b16&precision=fp32&samples=5e6&worth=10&seller=cloud&region=eu&spot=1",
        "model=vgg16&samples=2e8&worth=0",
        "model=llama_8b_qlora&deadline=200&budget=900",
        "model=llama_8b&samples=3e7&seller=secure",
        "model=resnet50&worth=50&have=2x+nvidia-geforce-rtx-4090-24gb",
    ],
)
def test_the_command_on_the_page_gives_the_same_answer(shown, path, asked):
    page = shown(f"#{asked}")
    words = shlex.split(page.locator("#command").inner_text())
    model = re.match(r"model=(\w+)", asked)[1]
    assert words[:3] == ["gpubench", "rank", model]
    place = ["--results", str(path).rpartition("/")[0], "--as-of", samples.TODAY.isoformat()]
    done = CliRunner().invoke(app, [*words[1:], *place, "--json"])
    assert done.exit_code == 0, done.output
    ranking = json.loads(done.stdout)
    told = {name: ranking["rows"][of["row"]] for name, of in ranking["answers"].items()}
    shown = {name: row for row in three(page) for name in row[0].split(" \u00b7 ")}
    for name, row in told.items():
        cells = shown[name.capitalize()]
        assert cells[1] == gpus(row["gpu_key"], row["gpu_count"])
        assert cells[2].startswith("yours" if row["pricing"] == "owned" else row["provider"])
        for figure, cell in (("hours", cells[3]), ("cost_usd", cells[4])):
            likely, low, high = (row[f"{figure}{end}"] for end in ("", "_low", "_high"))
            assert figures_of(cell, figure) == pytest.approx([likely, low, high], rel=0.06)


def figures_of(cell: str, figure: str) -> list[float]:
    """Return the figures in a cell, in hours or dollars."""
    hours = {"days": 24, "h": 1, "min": 1 / 60, "s": 1 / 3600}
    unit = 1 if figure == "cost_usd" else next(of for name, of in hours.items() if f" {name}" in cell)
    return [float(each) * unit for each in re.findall(r"[\d.]+", cell.replace(",", ""))]


@pytest.mark.parametrize(
    ("asked", "precision"),
    [
        ("", "amp-bf16"),
        ("model=resnet50&precision=fp32", "fp32 (IEEE, TF32 off)"),
        ("model=resnet50&worth=0&have=1x+nvidia-tesla-t4-16gb", "amp-fp16 or amp-bf16"),
    ],
)
def test_the_title_names_the_precision_of_the_answers_as_the_command_does(shown, path, asked, precision):
    """``amp`` is bf16 on a card that has it, else fp16."""
    page = shown(f"#{asked}" if asked else "")
    title = page.locator("#question").inner_text()
    assert title.endswith(f", {precision}.")
    words = shlex.split(page.locator("#command").inner_text())
    place = ["--results", str(path).rpartition("/")[0], "--as-of", samples.TODAY.isoformat()]
    assert here(*words[1:], *place).stdout.splitlines()[0].endswith(f", {precision}.")


def test_unmeetable_limits_are_reported_with_what_would_suffice(shown):
    page = shown("#budget=0.5&deadline=0.2")
    assert page.locator("#three").is_hidden()
    said = page.locator("#said").inner_text()
    assert said.startswith("Nothing stays within these limits")
    page = shown("#deadline=0.2")
    enough = re.search(r"A deadline of ([\d.]+) h would be enough", page.locator("#said").inner_text())
    page.locator("[name=deadline]").fill(enough[1])
    assert page.locator("#three tbody tr").count() >= 1


@pytest.mark.parametrize(
    ("name", "text", "option"),
    [
        ("samples", "20,000", "--samples 20000"),
        ("samples", "1.5M", "--samples 1500000"),
        ("worth", "1,500", "--hour-worth 1500"),
        ("worth", "1,5", None),
        ("worth", "1.2.3", None),
        ("budget", "1.800", None),
        ("budget", "$1.800", None),
        ("budget", "1.8000", "--budget-usd 1.8"),
        ("budget", "1.2340", "--budget-usd 1.2340"),
        ("budget", "$50", "--budget-usd 50"),
        ("budget", " 2k ", "--budget-usd 2000"),
        ("budget", "50 EUR", None),
        ("deadline", "2 days", None),
        ("deadline", "36", "--deadline-hours 36"),
        ("deadline", "0", None),
        ("budget", "$0.00", None),
        ("samples", "0k", None),
        ("samples", "0.5k", "--samples 500"),
        ("worth", "0", "--hour-worth 0"),
    ],
)
def test_an_amount_is_read_as_typed_or_marked_as_wrong(shown, name, text, option):
    """1,5 is one and a half in most of Europe, and no number on the command line: it must not become 15."""
    page = shown()
    usual = page.locator("#command").inner_text()
    field = page.locator(f"[name={name}]")
    before = field.input_value()
    field.fill(text)
    is_valid = field.evaluate("e => e.validity.valid")
    command = page.locator("#command").inner_text()
    field.fill(before)
    assert is_valid == (option is not None)
    assert option in command if option else command == usual
    assert page.locator("#command").inner_text() == usual


def test_two_dots_can_be_compared_and_reached_with_the_keyboard(visit, path):
    page = visit(path)
    dots = page.locator("#hero circle[tabindex='0']")
    assert 10 < dots.count() <= 43
    dots.nth(3).focus()
    page.keyboard.press("Enter")
    assert page.locator("#pair").inner_text().endswith("Choose two dots to compare them.")
    dots.nth(9).focus()
    page.keyboard.press("Enter")
    pair = r".+ against .+: [\d.,]+ \(.+ to .+\) times as fast, [\d.,]+ \(.+ to .+\) times the cost\."
    assert re.fullmatch(pair, page.locator("#pair").inner_text())
    assert page.locator("#tip").is_visible()
    said = page.locator("#tip div").all_inner_texts()
    assert len(said) == 9
    for of_a_hover in (
        r"\dx .+",  # GPUs
        r".+ \((cloud|vetted host|private host)\)",
        r"[\d.]+ (days|h|min|s) \(.+ to .+\)",
        r"\$[\d.,]+ \(\$.+ to \$.+\)",
        r"\$[\d.]+/h",
        r"[\d.]+ GiB",
        "|".join(BASES.values()),
        r"Days since the price was read: \d+\.",
    ):
        assert [each for each in said if re.fullmatch(of_a_hover, each)], of_a_hover


def test_legend_matches_the_plotted_marks(shown):
    page = shown("#model=vgg16&precision=fp32")
    shown = page.locator("#legend > span").all_inner_texts()
    kinds = [name for name, words in BASES.items() if words in shown]
    assert {"predicted"} < set(kinds)
    assert shown == [*(BASES[name] for name in kinds), "nine in ten", "trade-offs"]
    look = "e => { const of = getComputedStyle(e); return [of.fill, of.stroke, of.strokeDasharray]; }"
    for name in BASES:
        drawn = page.locator(f"#hero circle.{name}:not(.answer)")
        assert (name in kinds) == (page.locator(f"#hero circle.{name}").count() > 0)
        if drawn.count():
            assert page.eval_on_selector(f"#legend circle.{name}", look) == drawn.first.evaluate(look)
    assert page.eval_on_selector("#legend .frontier", look) == page.eval_on_selector("#hero .frontier", look)
    assert "exclude waiting; Sensible adds $2.00 for each hour" in page.locator("#worth").inner_text()


def test_the_first_screen_uses_no_glossary_term(shown):
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8").partition("\n## Words\n")[2]
    terms = [term for entry in re.findall(r"- \*\*(.+?)\*\*:", text) for term in entry.split(", ")]
    assert {"anchor", "marketplace", "P(best)"} <= set(terms)
    text = shown().locator("body").inner_text()
    first = text.partition("Copy as command")[0].casefold()
    assert [term for term in terms if re.search(rf"\b{re.escape(term.casefold())}(?!\w)", first)] == []


def test_each_corner_of_the_trade_off_line_has_a_dot(shown):
    """Two offers of one machine that are nearly equal share a dot."""
    page = shown()
    path = page.get_attribute("#hero .frontier", "d")
    corners = [tuple(map(float, at)) for at in re.findall(r"(?:M|H)([\d.]+)(?:,|V)([\d.]+)", path)]
    dots = page.eval_on_selector_all(
        "#hero circle", "all => all.map(c => [+c.getAttribute('cx'), +c.getAttribute('cy')])"
    )
    assert len(corners) > 4
    for px, py in corners:
        assert min(abs(px - cx) + abs(py - cy) for cx, cy in dots) < 10, (px, py)


def test_mobile_layout_labels_the_chance_like_the_table():
    assert f'content: "{CHANCE.lower()} "' in package_text("report/templates/page.css")


def test_measured_row_is_labeled_as_measured_here(shown):
    page = shown("#model=vgg16&precision=fp32")
    rows = page.locator("#twin tbody tr").all_text_contents()
    rows = [row for row in rows if row.startswith("1x H200 SXM")]
    assert rows
    assert all("measured here" in row for row in rows)


def test_nothing_runs_off_the_plot(shown):
    for width in (390, 1280):
        page = shown(width=width)
        outside = page.evaluate(
            """() => { const edge = document.getElementById("hero").getBoundingClientRect();
            return [...document.querySelectorAll("#hero :is(circle, polygon, path, text)")].filter((e) => {
              const box = e.getBoundingClientRect();
              return box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 1 || box.bottom > edge.bottom + 1;
            }).map((e) => e.textContent || e.outerHTML); }"""
        )
        assert outside == []


def test_no_dot_hides_the_name_of_an_answer(shown):
    """On a phone there may be no free space for a name, so it is drawn last."""
    page = shown(width=390)
    last = "all => all.slice(-3).map(e => [e.tagName, e.classList.contains('answer'), getComputedStyle(e).pointerEvents])"
    assert page.eval_on_selector_all("#hero > *", last) == [["text", True, "none"]] * 3


def assert_told_alike(still, answered):
    """Assert equal words; the script has six digits of each figure, so a last digit may round the other way."""
    number = re.compile(r"\d+(?:\.\d+)?")
    texts = [json.dumps(each) for each in (still, answered)]
    assert len({number.sub("0", text) for text in texts}) == 1
    for one, other in zip(*map(number.findall, texts), strict=True):
        last_digit = 10.0 ** -len(one.partition(".")[2])
        assert float(one) == pytest.approx(float(other), abs=1.01 * last_digit), texts


def test_without_scripts_the_three_answers_and_the_table_are_shown(shown, visit, path):
    assert_told_alike(three(visit(path, has_scripts=False)), three(shown()))
    text = Path(path).read_text(encoding="utf-8")
    assert text.partition('<details id="twin"')[2].partition("</details>")[0].count("<tr>") > 20
    assert '<h2 id="question">resnet50, 90 epochs of ImageNet, amp-bf16.</h2>' in text


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"buy": True}, ("to buy", "--buy")),
        ({"have": ["RTX 3090"]}, ("yours", "--have '1x nvidia-geforce-rtx-3090-24gb'")),
        ({"have": ["3x RTX 3090, 300 W"]}, ("yours", "--have '3x nvidia-geforce-rtx-3090-24gb'")),
        ({"gpu": "H100 SXM", "have": ["RTX 4090, 1800 USD"]}, ("yours", "--have 'RTX 4090, 1800 USD'")),
    ],
)
def test_a_page_about_buying_or_a_machine_at_hand_is_answered_equally_with_and_without_scripts(
    visit, tmp_path, monkeypatch, asked, expected
):
    """The machines that the page offers to choose must not replace the cards for sale."""
    samples.of_few_models(monkeypatch)
    made = report(tmp_path / "page.html", tmp_path, workload="resnet50", as_of=samples.TODAY, **asked)
    told, page = three(visit(made, has_scripts=False)), visit(made)
    assert expected[1] in page.locator("#command").inner_text()
    assert_told_alike(told, three(page))
    assert told[0][2].partition(", $")[0] == expected[0]


def test_a_doubtful_price_is_marked_with_and_without_scripts(visit, tmp_path, monkeypatch):
    samples.of_few_models(monkeypatch)
    table = tmp_path / "prices.csv"
    table.write_text(
        "provider,gpu_key,gpu_count,on_demand_usd_per_h,price_date\nbad,H100 SXM,8,2.2,2026-11-19\n"
    )
    made = report(tmp_path / "page.html", tmp_path, offers=table, as_of=samples.TODAY)
    for has_scripts in (False, True):
        page = visit(made, has_scripts=has_scripts)
        assert three(page)[0][2] == "bad (cloud)"
        assert "times what" in page.locator("#said").inner_text()


@pytest.mark.parametrize(
    ("day", "is_old"), [("2026-11-21", False), ("2026-12-20", False), ("2027-12-01", True)]
)
def test_a_page_opened_long_after_its_day_says_so(visit, path, day, is_old):
    said = visit(path, day=day).locator("#said").inner_text()
    assert ("Prices are as of 2026-11-20 and may be stale" in said) == is_old


def test_a_model_without_its_own_job_is_answered_equally_with_and_without_scripts(
    visit, tmp_path, monkeypatch
):
    """The job, a number of hours of one GPU, is shown as the same round number of samples to every reader."""
    samples.of_few_models(monkeypatch)
    made = report(tmp_path / "page.html", tmp_path, workload="vgg16", as_of=samples.TODAY)
    pages = (visit(made, has_scripts=has_scripts) for has_scripts in (False, True))
    told = [(page.locator("#question").inner_text(), three(page)) for page in pages]
    assert_told_alike(*told)
    assert "million images" in told[0][0]


def test_names_from_a_price_table_are_data(visit, tmp_path, monkeypatch):
    samples.of_few_models(monkeypatch)
    name = "</script><img src=x onerror=alert(1)>"
    table = tmp_path / "prices.csv"
    table.write_text(
        "provider,instance,gpu_key,gpu_count,on_demand_usd_per_h,price_date\n"
        f'"{name}",one,H100 SXM,8,9.5,2026-11-19\n'
    )
    page = visit(report(tmp_path / "page.html", tmp_path, offers=table, as_of=samples.TODAY))
    assert page.locator("img").count() == 0
    assert name[:20] in page.locator("#twin").text_content()


@pytest.mark.usefixtures("traced_as_asked")
def test_a_users_model_can_be_selected(tmp_path, monkeypatch):
    samples.of_few_models(monkeypatch)
    path = tmp_path / "net.py"
    path.write_text(own_net("            pass"))
    found = calculator(RankRequest(workloads=(str(path),), as_of=samples.TODAY))
    assert found["begin"]["model"] == found["cases"][0]["label"] == "net.py"
    assert {"resnet50", "llama_8b_lora"} <= {case["label"] for case in found["cases"]}


def test_all_shipped_models_can_be_selected_at_every_precision(data):
    found: dict[str, set[str]] = {}
    for case in data["cases"]:
        found.setdefault(case["label"], set()).add(case["precision"])
    assert set(found) == {name for name, each in load_profiles().items() if each.parameters}, (
        "all but the input pipelines"
    )
    assert found["resnet50"] == {"amp", "fp32"}
    assert found["llama_8b"] == {"bf16"}
    assert next(case["task"] for case in data["cases"] if case["label"] == "llama_8b") == "infer"


def test_the_site_that_ci_builds_answers_from_one_file(browser, tmp_path):
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    (step,) = re.findall(r"run: \S+/gpubench (report --public .+)", workflow)
    assert re.search(r"upload-artifact@v4\n +with:\n +name: site\n +path: site\n", workflow)
    done = here(*shlex.split(step), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert (site / "index.html").stat().st_size <= 500_000
    assert json.loads((site / "data.json").read_text(encoding="utf-8"))["runs"] == []
    for path in site.iterdir():
        assert str(tmp_path) not in path.read_text(encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{site / 'index.html'}#model=vgg16&worth=0")
    page.locator("html[data-answered]").wait_for(state="attached")
    assert three(page)[0][0] == "Cheapest \u00b7 Sensible"
    assert requests == [page.url.partition("#")[0]]
    context.close()


def test_a_public_folder_contains_only_the_page_and_its_data(visit, tmp_path, monkeypatch):
    samples.of_few_models(monkeypatch)
    run = samples.h200_run()
    write_run(tmp_path / "results", run)
    done = here("report", "--public", tmp_path / "site", "--results", tmp_path / "results")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["data.json", "index.html"]
    data = json.loads((tmp_path / "site" / "data.json").read_text(encoding="utf-8"))
    assert data["runs"][0]["device"]["device_id"] is None
    assert len(data["ranking"]["rows"]) > 100
    for name in ("data.json", "index.html"):
        text = (tmp_path / "site" / name).read_text(encoding="utf-8")
        assert str(tmp_path) not in text
        assert run.device.device_id not in text
    page = visit(tmp_path / "site" / "index.html", "#model=vgg16")
    assert page.locator("#question").inner_text().startswith("vgg16, ")
    assert run.device.device_id not in page.evaluate("document.documentElement.outerHTML")
    twice = here("report", "--public", tmp_path / "site", "-o", tmp_path / "x.html")
    assert twice.returncode == 2
    assert "leave out -o" in twice.stderr
    (tmp_path / "file").touch()
    nowhere = here("report", "--public", tmp_path / "file" / "site", "--results", tmp_path)
    assert nowhere.returncode == 5
    assert nowhere.stderr.endswith("choose another place with --public DIR\n")


@pytest.mark.parametrize(
    ("usd", "words"),
    [
        (300, "$300 does not cover a PC and a card that does this job"),
        (3000, "of that is for a PC for the cards"),
    ],
)
def test_the_page_about_a_purchase_answers_as_the_command_does(visit, tmp_path, usd, words):
    """A sum that buys nothing is answered with rentals; the page said that nothing stays within the limits."""
    asked = {"workload": "vgg16", "max_purchase_usd": usd, "as_of": samples.TODAY}
    made = report(tmp_path / "page.html", tmp_path, **asked)
    page = visit(made)
    said = page.locator("#said").inner_text()
    sellers = {row[2] for row in three(page)}
    assert words in said
    assert "Nothing stays" not in said
    assert any(re.fullmatch(r"to buy, \$2,\d{3}", each) for each in sellers) is (usd == 3000)


def test_the_command_of_an_unlisted_precision_is_one_that_the_command_line_takes():
    found = calculator(RankRequest(workloads=("llama-3.1-8b",), as_of=samples.TODAY))
    assert found["begin"]["precision"] == "bf16"
    assert found["cases"][0]["usual_precision"] == "bf16 (weights too)"
