"""Where this user's files lie: results (runs, prices, reports), and what gpubench keeps beside them."""

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
    return user_data() / "results"


def user_data() -> Path:
    """Return the folder of what gpubench keeps for this user."""
    import platformdirs

    return platformdirs.user_data_path("gpubench", appauthor=False)


def require_folder(root: Path) -> None:
    """Refuse what is there and is no folder of results: from a pipe or a file nothing would be read, unsaid.

    Raises:
        MisuseError: If something else bears its name.
    """
    if os.path.exists(root) and not os.path.isdir(root):  # noqa: PTH110, PTH112 - no error of a name too long
        raise MisuseError(f"{plain(str(root), 1000)} is no folder: results lie in one, such as --results DIR")
