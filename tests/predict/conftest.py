"""What several tests of the predictions start from, computed once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from gpubench.cli.app import app
from gpubench.predict.calibration import Calibration

FITTED = "2026-11-20"


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``gpubench calibrate`` says of a calibration from the published rows, as of ``FITTED``."""
    path = tmp_path_factory.mktemp("calibrated") / "c.json"
    result = CliRunner().invoke(app, ["calibrate", "-o", str(path), "--date", FITTED, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["path"] == str(path)
    return document


@pytest.fixture(scope="session")
def rebuilt(calibrated: dict[str, Any]) -> Calibration:
    """What it wrote."""
    return msgspec.json.decode(Path(calibrated["path"]).read_bytes(), type=Calibration)
