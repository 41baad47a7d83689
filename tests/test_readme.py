"""The README is correct: it has two commands, and CI runs the second one exactly."""

from __future__ import annotations

import re
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest
from golden import pages

from gpubench.errors import exit_codes

ROOT = Path(__file__).parents[1]


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.+?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    return [
        line for block in blocks for line in block.strip().splitlines() if line.startswith("python3 -m venv")
    ]


def test_the_readme_has_two_setup_commands_and_ci_runs_the_second_exactly():
    main_job, tests = commands()
    assert main_job.endswith(" run --report report.html")
    assert tests.endswith("pytest -n auto")
    assert tests in (ROOT / ".ci" / "run").read_text().splitlines()


CI_RUN = ROOT / ".ci" / "run"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def fetched_by_ci(folder: Path, *present: str, user: int) -> list[str]:
    """Run the head of the CI script on a machine with these programs, and return its calls of apt-get and sudo."""
    head = CI_RUN.read_text(encoding="utf-8").split("rm -rf .venv")[0].replace('cd "$(dirname "$0")/.."', "")
    script = '#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLS"\n'
    bodies = dict.fromkeys(present, "#!/bin/sh\n") | {
        "apt-get": script,
        "sudo": script + 'exec "$@"\n',
        "id": f"#!/bin/sh\necho {user}\n",
    }
    for name, body in bodies.items():
        (folder / name).write_text(body, encoding="utf-8")
        (folder / name).chmod(0o755)
    for tool in ("sh", "env", "basename"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    calls = folder / "calls"
    calls.touch()
    subprocess.run(
        [str(shutil.which("bash")), "-c", head], check=True, env={"PATH": str(folder), "CALLS": str(calls)}
    )
    return calls.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("browser", BROWSERS)
def test_ci_fetches_no_browser_if_one_is_installed(browser, tmp_path):
    looked_for = (ROOT / "tests" / "report" / "conftest.py").read_text(encoding="utf-8")
    assert f'"{browser}"' in looked_for
    assert fetched_by_ci(tmp_path, browser, "gcc", user=1000) == []


@pytest.mark.parametrize("user", [0, 1000])
def test_ci_installs_missing_packages_as_root(user, tmp_path):
    calls = fetched_by_ci(tmp_path, "gcc", user=user)
    assert [call.split()[-1] for call in calls if call.startswith("apt-get install ")] == ["chromium"]
    assert any(call.startswith("sudo ") for call in calls) == (user != 0)


def test_the_workflow_leaves_browser_and_compiler_to_the_script():
    assert "apt-get" not in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_the_exit_codes_match_the_table():
    assert exit_codes() in " ".join((ROOT / "docs" / "questions.md").read_text(encoding="utf-8").split())


def test_the_error_of_the_predictions_matches_the_page_of_limits():
    readme, limits = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("README.md", "docs/limits.md")
    )
    told = re.search(r"Predictions are off by .+? on average", readme)
    assert told[0] in limits


def test_the_confirmed_cards_match_the_page_of_limits():
    """The page names each build of torch in full; a card with another torch gets its own clause."""
    listed = re.search(
        r"Confirmed on: (.+?)\.\n\n", (ROOT / "docs" / "limits.md").read_text(encoding="utf-8"), re.DOTALL
    )
    cards = dict(each.split(", torch ") for each in " ".join(listed[1].split()).split("; "))
    (torch,) = {build.partition("+")[0] for build in cards.values()}
    first, *others = (name.removeprefix("NVIDIA ") for name in cards)
    assert not others[1:]
    assert f"**Confirmed on**: NVIDIA {first} and {others[0]}, torch {torch}." in (
        ROOT / "README.md"
    ).read_text(encoding="utf-8")


TWO_SCREENS_PX = 1700
MOST_WORDS, MOST_ROWS = 480, 10


def test_the_first_screen_matches_the_output_of_the_command():
    """Update it with ``python tests/golden/pages.py``."""
    assert pages.readme() == (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short():
    """Limits on words, commands and rows, so the README fits on two screens."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    assert sum(line.startswith("|") for line in text.splitlines()) <= MOST_ROWS
    assert all(int(width) <= 600 for width in re.findall(r'<img [^>]*width="(\d+)"', text))


STYLE = """
body { font: 16px/1.5 sans-serif; width: 1012px; margin: 32px auto }
h1 { font-size: 2em } h2 { font-size: 1.5em } h1, h2 { margin: 24px 0 16px; padding-bottom: .3em }
p, table, pre { margin: 0 0 16px } table { border-collapse: collapse } td, th { padding: 6px 13px; border: 1px solid }
pre { padding: 16px; overflow: auto } code { font-size: 85% } pre code { font-size: 14px; line-height: 1.45 }
"""
"""The sizes at which GitHub renders a page."""


def test_the_readme_fits_on_two_screens():
    markdown_it = pytest.importorskip("markdown_it")
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on the path")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    picture = b64encode((ROOT / "docs" / "report.png").read_bytes()).decode()
    body = markdown_it.MarkdownIt("commonmark").enable("table").render(text)
    page_text = f"<style>{STYLE}</style>{body}".replace("docs/report.png", f"data:image/png;base64,{picture}")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_content(page_text)
        height_px = page.evaluate("document.documentElement.scrollHeight")
        natural_px = page.evaluate("document.images[0].naturalWidth")
        browser.close()
    assert natural_px > 1000, "the picture was not drawn"
    assert height_px <= TWO_SCREENS_PX


def test_the_pictures_of_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    for target in (*re.findall(r"\]\(([^)#:]+)\)", text), *re.findall(r'src="([^"]+)"', text)):
        assert (ROOT / target).exists(), target
