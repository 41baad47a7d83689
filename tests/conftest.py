"""What every test shares: no test reads or writes this user's own results or data folder."""

from __future__ import annotations

import pytest
from nvml.plugin import _answers, _libraries, fake_nvml, inside_nvml  # noqa: F401 - fixtures for every room


@pytest.fixture(autouse=True)
def _private_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("GPUBENCH_RESULTS", str(home / "results"))
