"""gpubench: from the GPU in this machine to the GPU you should pay for.

The public Python API; each function is imported from its room when it is first used, so that
``import gpubench`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # what __getattr__ finds, for editors and type checkers
    from gpubench.predict.estimate import predict
    from gpubench.probe.probe import probe
    from gpubench.recommend.rank import rank
    from gpubench.record.frame import load_runs
    from gpubench.record.session import run
    from gpubench.report.page import report

_HOMES = {
    "load_runs": "gpubench.record.frame",
    "predict": "gpubench.predict.estimate",
    "probe": "gpubench.probe.probe",
    "rank": "gpubench.recommend.rank",
    "report": "gpubench.report.page",
    "run": "gpubench.record.session",
}

__all__ = ["__version__", "load_runs", "predict", "probe", "rank", "report", "run"]


def __getattr__(name: str) -> Any:
    """Import a public function from its room at first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gpubench' has no attribute {name!r}")
    function = getattr(import_module(_HOMES[name]), name)
    # Where the room bears the function's name, it has just been bound here, and is what later uses find.
    return globals().get(name, function)


def __dir__() -> list[str]:
    """List the public names, those not yet imported too."""
    return sorted(__all__)
