"""Where this user's results lie: runs, prices, reports."""

from __future__ import annotations

import os
from pathlib import Path

from gpubench.errors import MisuseError
from gpubench.units import plain


def default_results() -> Path:
    """Return $GPUBENCH_RESULTS, else ./results where it exists, else a folder in the user's data."""
    if named := os.environ.get("GPUBENCH_RESULTS"):
        return Path(named)
    if (here := Path("results")).is_dir():
        return here
    import platformdirs

    return Path(platformdirs.user_data_dir("gpubench", appauthor=False)) / "results"


def require_folder(root: Path) -> None:
    """Refuse what is there and is no folder of results: from a pipe or a file nothing would be read, unsaid.

    Raises:
        MisuseError: If something else bears its name.
    """
    if os.path.exists(root) and not os.path.isdir(root):  # noqa: PTH110, PTH112 - no error of a name too long
        raise MisuseError(f"{plain(str(root), 1000)} is no folder: results lie in one, such as --results DIR")
