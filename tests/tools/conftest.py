"""Fixtures that several tests of the tools share, computed once."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpubench.predict.calibration import Calibration
from tools.calibrate import write_calibration

FITTED = "2026-11-20"


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Calibrate to the published rows as of ``FITTED``, and return what the tool reports."""
    path = tmp_path_factory.mktemp("calibrated") / "c.json"
    document = write_calibration(None, path, date.fromisoformat(FITTED))
    assert document["path"] == str(path)
    return document


@pytest.fixture(scope="session")
def rebuilt(calibrated: dict[str, Any]) -> Calibration:
    """Read the file that ``calibrated`` wrote."""
    return msgspec.json.decode(Path(calibrated["path"]).read_bytes(), type=Calibration)
