"""The shipped calibration: one reader of data/calibration.json."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from gpubench.predict.roofline import Coefficients


class IntervalWidths(msgspec.Struct, frozen=True, kw_only=True):
    """Half-widths of 90 % intervals, as natural logarithms of a factor.

    Attributes:
        quantile: Of |log error| over the scale s, one vote per target GPU.
        absolute: Half-width of a prediction with no GPU measurement to start from.
        common_share: Share of the variance that all candidates of one anchor have in common.
    """

    quantile: float
    absolute: float
    common_share: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a prediction needs beside the two tables."""

    schema_version: int
    fitted: str
    rows: int
    coefficients: Coefficients
    widths: IntervalWidths
    known_architectures: tuple[str, ...]


@cache
def load_calibration() -> Calibration:
    """Read the calibration that the package ships."""
    text = files("gpubench").joinpath("data/calibration.json").read_bytes()
    return msgspec.json.decode(text, type=Calibration)
