"""The result of ``gpubench.predict``: estimates, the reasons for them, and random draws of throughputs."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.draws import normals
from gpubench.findings import describe
from gpubench.interval import flat
from gpubench.labels import gpu_name
from gpubench.models import Estimate
from gpubench.models.record import headed, html_table, views
from gpubench.predict.calibration import load_calibration
from gpubench.predict.chips import chip_of
from gpubench.predict.question import (
    UNKNOWN_NOISE,
    Refusal,
    first_reasons,
)
from gpubench.specs import load_specs
from gpubench.stats import Z90, Z95
from gpubench.units import count, format_percent

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

PREDICTION_VERSION = 2
"""Version of ``gpubench predict show --json``."""


class Predictions(dict[str, Estimate | Refusal]):
    """Maps each GPU key to an estimate, or to a refusal with its reason.

    With ``by_energy``, the estimates are ordered by energy per sample instead of by speed.
    """

    by_energy = False

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The estimates, best first; those outside the range of the fit come after all others."""

        def order(each: Estimate) -> tuple[bool, float]:
            joules = each.joules_per_sample.value
            return each.is_extrapolated, (joules or math.inf) if self.by_energy else -each.samples_per_s

        return tuple(sorted((each for each in self.values() if isinstance(each, Estimate)), key=order))

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The GPUs without a figure, each with its reason."""
        return tuple(answer for answer in self.values() if isinstance(answer, Refusal))

    def __repr__(self) -> str:
        """Return the number of estimates and the first few of them; the dict has all."""
        lines = [
            f"  {gpu_name(each.gpu_key)}: {each.interval.rate(each.case.sample_unit)}, {each.basis}"
            for each in self.estimates
        ]
        return headed(f"<{self._head()}", lines, len(lines))

    def _repr_html_(self) -> str:
        rows = [
            (gpu_name(each.gpu_key), each.interval.rate(each.case.sample_unit), each.basis, each.case.label)
            for each in self.estimates
        ]
        return html_table(self._head(), ("GPU", "throughput", "basis", "case"), rows)

    def to_frame(self) -> "DataFrame":
        """Return one row per estimate, columns as in ``predict show --json``."""
        import pandas as pd

        return pd.DataFrame([each.flat() for each in self.estimates])

    def plot(self) -> "Figure":
        """Return the throughput of every GPU with its interval, as a plotly figure."""
        return views().predictions_figure(self)

    def _head(self) -> str:
        return (
            f"Predictions: {count(len(self.estimates), 'estimate')}, {count(len(self.refusals), 'refusal')}"
        )


def as_records(answers: Mapping[str, Estimate | Refusal]) -> dict[str, Any]:
    """Return the document of `predict show --json`."""
    from gpubench.record.sharing import readings_by

    calibration = load_calibration()
    return {
        "schema_version": PREDICTION_VERSION,
        "calibrated": calibration.fitted,
        "estimates": [
            msgspec.to_builtins(a.flat()) | {"reasons": reasons(a), "shared": readings_by(a.gpu_key, a.case)}
            for a in answers.values()
            if isinstance(a, Estimate)
        ],
        "refused": [msgspec.to_builtins(a) for a in answers.values() if isinstance(a, Refusal)],
    }


BRIEF_ESTIMATES = 30
"""Number of GPUs in the short document, best first; a third of that if each has extra figures."""
_BRIEF_FIELDS = ("gpu_key", "samples_per_s", "low", "high", "basis", "fits_memory", "largest_batch")


def as_brief_records(answers: Predictions) -> dict[str, Any]:
    """Return the document of `predict show --json --brief`: the main figures of the best GPUs.

    ``case`` is that of the best GPU. Sorting by energy adds the joules per sample; a power limit adds those
    and its effects on time and energy.
    """
    found = answers.estimates
    refused = answers.refusals
    capped = any(each.power_limit_w for each in found)
    extra = ["joules_per_sample"] if answers.by_energy or capped else []
    extra += ["power_limit_w", "capped_time", "capped_energy"] if capped else []
    best = found[: BRIEF_ESTIMATES // 3 if extra else BRIEF_ESTIMATES]
    return {
        "schema_version": PREDICTION_VERSION,
        "calibrated": load_calibration().fitted,
        "case": found[0].case if found else None,
        "estimates": [
            flat({name: getattr(each, name) for name in (*_BRIEF_FIELDS, *extra)}) for each in best
        ],
        "more": len(found) - len(best),
        "refused": len(refused),
        "reasons": first_reasons(refused),
    }


def reasons(estimate: Estimate) -> str:
    """Explain an estimate: its basis, the step's bottlenecks, the published rows behind it, and caveats."""
    parts = [f"{estimate.basis}: {estimate.method}"]
    if estimate.basis == "predicted":
        calibration = load_calibration()
        parts.append(
            f"step bound by compute {format_percent(estimate.compute_share)}, "
            f"bandwidth {format_percent(estimate.bandwidth_share)}, "
            f"host {format_percent(estimate.host_share)}"
        )
        parts.append(
            f"{evidence_on(estimate)}, {calibration.of(estimate.case.task).rows} in all, "
            f"calibrated {calibration.fitted}"
        )
    parts += [estimate.published] if estimate.published else []
    parts += [describe(f) for f in estimate.findings]
    return "; ".join(parts)


def evidence_on(estimate: Estimate) -> str:
    """Say how many published rows there are for this GPU; if none, also how many for the nearest one."""
    fitted = load_calibration().of(estimate.case.task)
    if scored := fitted.apart_by_gpu.get(estimate.gpu_key):
        return f"{count(scored, 'published row')} of this GPU (scored separately)"
    rows = fitted.rows_by_gpu
    if own := rows.get(estimate.gpu_key, 0):
        return f"{count(own, 'published row')} of this GPU"
    gpu_key, specs = estimate.gpu_key, load_specs()
    related = [key for key in rows if chip_of(key) == chip_of(gpu_key)] or [
        key for key in rows if specs[key].compute_capability == specs[gpu_key].compute_capability
    ]
    nearest = max(related, key=lambda key: (rows[key], key), default=None)
    near = f" (nearest: {rows[nearest]} of {specs[nearest].short_name})" if nearest else ""
    return f"no published rows of this GPU{near}"


def draw(estimates: Sequence[Estimate], n: int, seed: int, common_share: float | None = None) -> Floats:
    """Draw n joint throughputs of each estimate [samples/s].

    Predictions with the same starting point (the same anchors, or none) share part of their error. That part
    moves all of them together and does not change their order. The errors of measurements are independent.
    The draws of a GPU do not depend on the other GPUs.

    Args:
        estimates: The estimates to draw. A prediction without an interval is constant; a measurement too
            short to have one is drawn with a half-width of 5 %.
        n: Number of draws.
        seed: With equal seeds, a GPU has the same error in every call, whatever the workload.
        common_share: Share of the variance that predictions from one starting point have in common; None uses
            the calibration's.

    Returns:
        (len(estimates), n) samples per second.
    """
    share = load_calibration().common_share if common_share is None else common_share
    groups: dict[tuple[str, ...], Floats] = {}
    result = np.empty((len(estimates), n))
    for row, estimate in enumerate(estimates):
        error = normals(n, seed, "gpu", estimate.gpu_key)
        start = start_of(estimate)
        if start and share:
            if start not in groups:
                groups[start] = normals(n, seed, *start)
            error = math.sqrt(share) * groups[start] + math.sqrt(1 - share) * error
        rates = estimate.samples_per_s * np.exp(log_deviation(estimate) * error)
        result[row] = np.minimum(rates, highest_draw(estimate))
    return result


def start_of(estimate: Estimate) -> tuple[str, ...] | None:
    """Return the name of a prediction's starting point; None if the estimate was measured.

    Predictions from the same starting point share part of their error.
    """
    if estimate.basis != "predicted":
        return None
    return ("anchored", *estimate.evidence) if estimate.anchored else ("absolute",)


def highest_draw(estimate: Estimate) -> float:
    """Return the limit above which no throughput is drawn [samples/s]; infinite if there is none."""
    return estimate.high if estimate.high is not None and estimate.at_peak else math.inf


def log_deviation(estimate: Estimate) -> float:
    """Return the standard deviation of the log throughput, from the interval.

    0 for a prediction without an interval, which is a host-bound one.
    """
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return 0.0 if estimate.basis == "predicted" else UNKNOWN_NOISE / Z95
    if estimate.at_peak:
        return math.log(estimate.samples_per_s / estimate.low) / Z90
    z = Z90 if estimate.basis == "predicted" else Z95
    return math.log(estimate.high / estimate.low) / 2 / z
