"""One Chromium for the tests of the page."""

from __future__ import annotations

import os
import shutil

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
REQUIRED = os.environ.get("GPUBENCH_REQUIRE_BROWSER") == "1"


@pytest.fixture(scope="package")
def browser():
    """Start one browser for all tests of this folder; Plotly's script stays in its memory between pages."""
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
