"""gpubench: which GPU to buy or rent to train your model.

The public Python API: functions, their return types, and their errors. Each is imported from its module at
first use, so ``import gpubench`` is fast; ``__init__.pyi`` has the signatures for editors and type
checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "BuyOrRent": "gpubench.models",
    "Case": "gpubench.models",
    "Choice": "gpubench.models",
    "DeviceProfile": "gpubench.models",
    "Estimate": "gpubench.models",
    "EveryCaseFailedError": "gpubench.errors",
    "ExcludedOffer": "gpubench.models",
    "Finding": "gpubench.models",
    "GpuBenchError": "gpubench.errors",
    "InterruptedRunError": "gpubench.errors",
    "Measurement": "gpubench.models",
    "MemoryAnswer": "gpubench.predict.memory_answer",
    "MemoryAnswers": "gpubench.predict.memory_answer",
    "MisuseError": "gpubench.errors",
    "NoDeviceError": "gpubench.errors",
    "Offer": "gpubench.models",
    "Predictions": "gpubench.predict.answers",
    "ProbeReport": "gpubench.probe.backend",
    "Row": "gpubench.models",
    "Ranking": "gpubench.models",
    "Refusal": "gpubench.predict.question",
    "ReportData": "gpubench.sections.data",
    "Run": "gpubench.models",
    "StorageError": "gpubench.errors",
    "WorkloadProfile": "gpubench.models",
    "WrongArgumentError": "gpubench.errors",
    "load_runs": "gpubench.record.figures",
    "memory": "gpubench.predict.memory_answer",
    "predict": "gpubench.predict.estimate",
    "probe": "gpubench.probe.probe",
    "rank": "gpubench.recommend.rank",
    "report": "gpubench.report.page",
    "run": "gpubench.session.session",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - all of them are names


def __getattr__(name: str) -> Any:
    """Import a public name from its module at first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gpubench' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    # The import may have set this name to a package that is callable like its function (callable_package);
    # later uses find that package, so the first one gets it too.
    return globals().get(name, found)


def __dir__() -> list[str]:
    return sorted(__all__)
