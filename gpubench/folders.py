"""Where this user's results lie: runs, prices, reports."""

from __future__ import annotations

import os
from pathlib import Path


def default_results() -> Path:
    """Return $GPUBENCH_RESULTS, else ./results where it exists, else a folder in the user's data."""
    if named := os.environ.get("GPUBENCH_RESULTS"):
        return Path(named)
    if (here := Path("results")).is_dir():
        return here
    import platformdirs

    return Path(platformdirs.user_data_dir("gpubench", appauthor=False)) / "results"
