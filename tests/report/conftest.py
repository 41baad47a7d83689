"""What the tests of pages share."""

from __future__ import annotations

import pytest

from . import samples


@pytest.fixture
def few_models(monkeypatch: pytest.MonkeyPatch) -> None:
    samples.of_few_models(monkeypatch)
