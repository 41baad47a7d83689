"""What several tests of the predictions start from, computed once."""

from __future__ import annotations

import pytest

from gpubench.predict.calibrate import calibrate
from gpubench.predict.calibration import Calibration

FITTED = "2026-11-20"


@pytest.fixture(scope="session")
def rebuilt() -> Calibration:
    """A calibration from the published rows, as of ``FITTED``."""
    return calibrate(fitted=FITTED)
