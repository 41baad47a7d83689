"""The published tables that the fits are made from: those of $GPUBENCH_DATA, or else of ``data/``."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from gpubench.files import TABLE_BYTES, read_bytes
from gpubench.folders import data_path
from gpubench.models import TaskKind

DATA = Path(__file__).parent / "data"
MEASUREMENTS = ("published.csv", "published_inference.csv")
"""Published measurements: training steps first, forward passes in both."""
PROFILES = {TaskKind.TRAIN: "model_profiles.csv", TaskKind.INFER: "inference_profiles.csv"}
"""What a training step, or a forward pass, of a published model computes and moves."""
PUBLISHED = (*MEASUREMENTS, *PROFILES.values(), "sources.csv")
"""Tables of this folder that the calibration is made from."""


def published_bytes(name: str) -> bytes:
    """Return what a published table holds."""
    named = data_path(name)
    return read_bytes(named if named.is_file() else DATA / name, TABLE_BYTES)


def published_text(name: str) -> str:
    """Return a published table as text."""
    return published_bytes(name).decode("utf-8")


def published_rows(name: str) -> Iterable[dict[str, str]]:
    """Return the rows of a published table by their columns."""
    return csv.DictReader(published_text(name).splitlines())
