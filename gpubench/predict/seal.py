"""Sealed forecasts: predictions made before anybody measured the cases, with a hash of all of them."""

import csv
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpubench import __version__
from gpubench.children import commit_of_checkout
from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, read_json, read_text
from gpubench.models import Estimate
from gpubench.models.record import Record
from gpubench.options import options_of, request_from, words_of
from gpubench.predict.calibration import MOST_BYTES, hash_of, load_calibration, own_calibration_path
from gpubench.predict.estimate import predict_from
from gpubench.predict.model import IMAGE_RESIDUAL, LANGUAGE_RESIDUAL
from gpubench.predict.request import PredictRequest
from gpubench.specs import usual_spec
from gpubench.today import today
from gpubench.units import figure_in, plain

SEAL_VERSION = 1
RATE = "samples_per_s"
"""The column of the measured throughput, next to the columns of its case."""
# Columns for a human reader, which are ignored
_REMARKS = frozenset({"source", "note"})
_SWITCHES = ("lora", "qlora")  # columns of yes or no


class Forecast(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The forecast for one case, to four digits.

    Attributes:
        case: The arguments of `gpubench predict show` that reproduce it.
        refused: Why there is no forecast; None if there is one.
    """

    case: str
    samples_per_s: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str | None = None
    refused: str | None = None


class Seal(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Forecasts, and the version of the code and calibration behind them.

    Attributes:
        commit: The commit of the checkout that made the seal; None for an installed package.
        coefficients: SHA-256 of the calibration, without its date and the hashes of its inputs, and of the
            residuals of compiled steps.
        sha256: Hash of the seal without this field, as JSON with sorted keys and no spaces.
    """

    schema_version: int
    version: str
    commit: str | None
    sealed: str
    coefficients: str
    forecasts: tuple[Forecast, ...]
    sha256: str = ""

    @property
    def hashed(self) -> str:
        """The hash that the seal should have."""
        content = msgspec.to_builtins(self)
        del content["sha256"]
        return hash_of(msgspec.json.encode(content, order="sorted"))


def seal(cases: Path) -> Seal:
    """Predict the case on each line of a table, from the shipped data only.

    Raises:
        MisuseError: If the table cannot be read, a line is not a valid case, or the user has a calibration of
            their own.
    """
    requests = dict.fromkeys(request for request, _ in _lines(cases))
    made = Seal(
        schema_version=SEAL_VERSION,
        version=__version__,
        commit=commit_of_checkout(),
        sealed=today().isoformat(),
        coefficients=_coefficients(),
        forecasts=tuple(map(_forecast, requests)),
    )
    return msgspec.structs.replace(made, sha256=made.hashed)


def score_sealed(sealed: Path, readings: Path) -> dict[str, Any]:
    """Compare readings with the forecasts of a seal.

    Args:
        sealed: The seal.
        readings: A table of cases, as for ``seal``, with the measured throughput of each.

    Raises:
        MisuseError: If the seal was changed or made with other coefficients, the user has a calibration of
            their own, or no reading can be used.
    """
    made = read_seal(sealed)
    if made.coefficients != _coefficients():
        commit = f", commit {plain(made.commit, 40)}" if made.commit else ""
        raise MisuseError(
            f"{sealed} was sealed with coefficients other than the current ones: "
            f"score it with gpubench {plain(made.version, 20)}{commit}"
        )
    by_case = {each.case: each for each in made.forecasts}
    rows, skipped = [], []
    for request, line in _lines(readings):
        case, rate = shlex.join(words_of(request)), figure_in(line.get(RATE, ""))
        forecast = by_case.get(case)
        if forecast is None:
            why = "the seal does not have this case"
        elif forecast.samples_per_s is None:
            why = f"the seal has no figure: {forecast.refused}"
        elif rate is None or rate <= 0:
            why = f"no {RATE} above 0"
        else:
            is_inside = forecast.low <= rate <= forecast.high if forecast.low and forecast.high else None
            rows.append(msgspec.to_builtins(forecast) | {"read": rate, "is_inside": is_inside})
            continue
        skipped.append({"case": case, "reason": why})
    if not rows:
        case, why = skipped[0].values()
        raise MisuseError(f"{readings}: no line can be scored against the seal: {case}: {why}")
    # Errors of the time per sample, which is the inverse of the rate
    error = np.array([abs(row["read"] / row[RATE] - 1) for row in rows])
    known = [row["is_inside"] for row in rows if row["is_inside"] is not None]
    return {
        "readings": len(rows),
        "mape": round(float(error.mean()), 4),
        "median_ape": round(float(np.median(error)), 4),
        "coverage_90": round(float(np.mean(known)), 4) if known else None,
        "rows": rows,
        "skipped": skipped,
    }


def _forecast(request: PredictRequest) -> Forecast:
    case = shlex.join(words_of(request))
    try:
        (found,) = predict_from(request, own=()).values()
    except MisuseError as error:
        raise MisuseError(f"{case}: {error}") from None
    if not isinstance(found, Estimate):
        return Forecast(case=case, refused=found.reason)
    rate = found.interval.each(lambda number: float(f"{number:.4g}"))
    return Forecast(case=case, samples_per_s=rate.value, low=rate.low, high=rate.high, basis=found.basis)


def _coefficients() -> str:
    # Only this user could score forecasts made with their own calibration.
    if (own := own_calibration_path()).is_file():
        raise MisuseError(f"a seal needs the shipped calibration: move your own, {own}, to another folder")
    # Without date and inputs, so that seals stay valid if a refit finds the same coefficients
    coefficients = msgspec.structs.replace(load_calibration(), fitted="", inputs={})
    content = {"calibration": coefficients, "compiled_residuals": [LANGUAGE_RESIDUAL, IMAGE_RESIDUAL]}
    return hash_of(msgspec.json.encode(content, order="sorted"))


def read_seal(path: Path) -> Seal:
    """Read a seal.

    Raises:
        MisuseError: If it cannot be read, has another schema version, or was changed after it was sealed.
    """
    found = read_json(path, Seal, MOST_BYTES, what="a seal", follow_links=True)
    if found.schema_version != SEAL_VERSION:
        raise MisuseError(f"{path} has schema {found.schema_version}, not {SEAL_VERSION}")
    if found.sha256 != found.hashed:
        raise MisuseError(f"{path} was changed after it was sealed: it hashes to {found.hashed}")
    return found


def _lines(path: Path) -> Iterator[tuple[PredictRequest, dict[str, str]]]:
    # A seal forecasts speeds without a power limit
    columns = {each.name for each in options_of(PredictRequest)} - {"results", "sort", "power_limit"}
    try:
        table = csv.DictReader(read_text(path, TABLE_BYTES, follow_links=True).splitlines())
        table.fieldnames = names = [name.strip().casefold() for name in table.fieldnames or ()]
        lines = [(table.line_num, cells) for cells in table]  # skips blank lines
    except csv.Error as error:
        raise MisuseError(f"{path}: not a CSV table ({error})") from None
    if not lines:
        raise MisuseError(f"{path} has no line below its header: give a case per line")
    if unknown := set(names) - columns - _REMARKS - {RATE}:
        raise MisuseError(
            f"{path}: unknown column {plain(min(unknown), 40)!r}; known: {', '.join(sorted(columns))}"
        )
    if repeated := [name for name in names if names.count(name) > 1]:
        raise MisuseError(f"{path}: more than one column {repeated[0]!r}")
    for number, cells in lines:
        if None in cells:
            raise MisuseError(f"{path}, line {number}: more cells than columns")
        given = {name: (cell or "").strip() for name, cell in cells.items()}
        try:
            yield _case_of({name: cell for name, cell in given.items() if cell and name in columns}), given
        except MisuseError as error:
            raise MisuseError(f"{path}, line {number}: {error}") from None


def _case_of(given: dict[str, str]) -> PredictRequest:
    """Return the case on a line: the same for every spelling of a GPU, with defaults written out or not."""
    switches = {name: given[name].casefold() for name in _SWITCHES if name in given}
    for name, cell in switches.items():
        if cell not in {"yes", "no"}:
            raise MisuseError(f"{name} {plain(cell, 40)!r}: must be yes or no")
    request = request_from(PredictRequest, given | {name: cell == "yes" for name, cell in switches.items()})
    if len(request.gpus) != 1:
        raise MisuseError("a case needs exactly one GPU: give it in the column gpu")
    return msgspec.structs.replace(request, gpus=(usual_spec(request.gpus[0]).key,), asked=())
