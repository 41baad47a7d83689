"""The calibration: what data/calibration.json contains, and which file is used."""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.errors import MisuseError
from gpubench.files import read_json
from gpubench.folders import data_bytes, data_path, user_data
from gpubench.models import GpuSpec, TaskKind
from gpubench.predict.chips import Chips, architecture_of
from gpubench.predict.question import FITTED_VENDOR
from gpubench.predict.roofline import Coefficients
from gpubench.profile import load_profiles
from gpubench.units import MIB

CALIBRATION_VERSION = 6
# Size limit; the shipped file, for about 60 GPUs, takes 0.2 MiB.
MOST_BYTES = 16 * MIB
SHIPPED = "calibration.json"
# Published jobs, each run on two GPU counts, to which the shares of ``predict/model.py`` are fitted
JOBS = "scaling.csv"
# Tables of the package that the fit reads.
INPUTS = (JOBS, "gpus.csv", "mlperf.csv")
# Prefix of the names of inputs that are profiles: "profile of vgg16".
PROFILE = "profile of "
# Smallest typical log error assumed for a pair of GPUs.
LEAST_SCALE = 0.02
# Largest log slowdown (``Scale.slow``) attributed to the measured card. If one is larger, the prediction from
# datasheets is wrong for the workload.
MOST_SLOW = 0.8


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The typical |log error| of a predicted ratio between two GPUs: a sum of four nonnegative terms.

    Attributes:
        base: Added for every pair.
        gap: Added for each factor of e between the ratio of the bandwidths and that of the peaks.
        crossing: Added if only one of the two GPUs has tensor cores for the step's arithmetic.
        slow: Added for each factor of e by which the measured GPU is slower than its level (its prediction
            from datasheets), as under a power limit, on a shared card or on a slow host. A faster reading
            adds nothing. This term is fitted separately, so it never narrows an interval.
    """

    base: float
    gap: float
    crossing: float
    slow: float


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """One fit, and its errors on harnesses (benchmark programs) and GPUs that were left out of it.

    Attributes:
        host_s_per_operator: Host time per operator, by source [s].
        deviations: By architecture, log factors on compute, tensor cores and bandwidth relative to the
            datasheet.
        scale: Typical error of a ratio between two GPUs; None for predictions from datasheets alone.
        other_vendors: Log half-width of the 90 % interval for other vendors' GPUs, which are never fitted, by
            ``group_names``. Half precision has an entry of its own, named by ``halved``, if it has rows.
        factor: Half-width of the 90 % interval: a multiple of the typical error for ratios, a log for
            predictions from datasheets. ``known`` is for GPUs of an architecture with fitted rows,
            ``stranger`` for all others.
    """

    coefficients: Coefficients
    host_s_per_operator: dict[str, float]
    deviations: dict[str, list[float]]
    scale: Scale | None
    factor: dict[str, float]
    other_vendors: dict[str, float]

    def half_width(self, spec: GpuSpec, usual: float = 1.0, *, half: bool = False) -> float:
        """Return the log half-width of the 90 % interval of a GPU.

        Args:
            spec: The GPU.
            usual: For ratios, the typical error of the pair; 1 for predictions from datasheets.
            half: Whether the step computes in half precision.
        """
        for name in group_names(spec):
            own = self.other_vendors.get(halved(name) if half else name, self.other_vendors.get(name))
            if own is not None:
                return own
        if spec.vendor != FITTED_VENDOR and self.other_vendors:
            return max(self.other_vendors.values())
        return self.width_from_rows(spec, usual)

    def width_from_rows(self, spec: GpuSpec, usual: float) -> float:
        """Return the log half-width by the fitted rows alone, whatever the vendor of the GPU.

        A ratio between two cases on one GPU needs no wider interval for its vendor.
        """
        return usual * self.factor["known" if self.knows(spec) else "stranger"]

    def knows(self, spec: GpuSpec) -> bool:
        """Whether rows of the GPU's architecture were fitted."""
        return spec.vendor == FITTED_VENDOR and architecture_of(spec.key) in self.deviations


def group_names(spec: GpuSpec) -> tuple[str, str]:
    """Return the groups with a common interval that a GPU is in: its architecture, then its product line."""
    line = f"{spec.vendor} {spec.line}"
    return f"{line} {architecture_of(spec.key)}", line


def halved(group: str) -> str:
    """Return the name of a group for steps in half precision, which run on matrix cores."""
    return f"{group} at half precision"


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """The fit for one task.

    Attributes:
        rows, sources: Numbers of published measurements of the task, and of their sources.
        rows_by_gpu: Number of published rows of the task for each GPU.
        apart_by_gpu: The same for other vendors' GPUs. These rows are not fitted; they show how large the
            error of the fit is on those GPUs.
        ratio: The fit for predictions that start from a measured GPU.
        level: The fit for predictions from datasheets alone.
    """

    rows: int
    sources: int
    rows_by_gpu: dict[str, int]
    ratio: Learned
    level: Learned
    apart_by_gpu: dict[str, int] = {}


class ScalingShares(msgspec.Struct, frozen=True, kw_only=True):
    """The fit for scaling to several GPUs (``model.scaling``).

    Attributes:
        logs: Logs of the shares, in the order of ``model.SHARES``.
        covariance: Covariance of those logs.
        noise: Additional typical log error for each doubling of the GPU count.
        factor: Ratio of the 90 % interval's half-width to the typical error.
        other_vendors: Log half-width of the interval of GPUs that are not in the fit; None if no
            published job ran on them.
    """

    logs: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float
    factor: float
    other_vendors: float | None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a prediction needs besides the tables.

    Attributes:
        inputs: SHA-256 of each table and profile behind the fit, and of the user's own runs if they were
            added.
        train, infer: The fit for each task.
        scaling: The fit for scaling to several GPUs.
        common_share: Share of an error's variance that all predictions from one anchor have in common.
    """

    schema_version: int
    fitted: str
    inputs: dict[str, str]
    train: Fitted
    infer: Fitted
    scaling: ScalingShares
    common_share: float

    def of(self, task: TaskKind) -> Fitted:
        """Return the fit for a task."""
        return self.infer if task is TaskKind.INFER else self.train

    @property
    def stale(self) -> tuple[str, ...]:
        """Names of the tables and profiles that have changed since the fit.

        For a table that is not installed, the hash in the shipped calibration counts as the current one.
        """
        shipped = read_calibration(data_path(SHIPPED)).inputs
        now = shipped | installed_inputs(shipped | self.inputs)
        return tuple(name for name, current in now.items() if self.inputs.get(name) != current)


def pair_scale(scale: Scale, own: Chips, target: Chips, mode: Indices, slowdown: Floats | float) -> Floats:
    """Return the typical |log error| of each pair, (n,).

    Args:
        scale: From the calibration.
        own: (n,) GPUs that were measured, or one.
        target: (n,) GPUs that are predicted.
        mode: (n,) arithmetic that most of the step uses.
        slowdown: (n,) log of the measured GPU's time over its level, the time predicted from its datasheet;
            NaN if unknown.
    """
    features = pair_features(own, target, mode, slowdown)
    usual = features @ np.array([scale.base, scale.gap, scale.crossing, scale.slow])
    return np.asarray(np.maximum(usual, LEAST_SCALE), dtype=float)


def pair_features(own: Chips, target: Chips, mode: Indices, slowdown: Floats | float) -> Floats:
    """Return the factors on the four terms of ``Scale`` for each pair, (n, 4)."""
    each = np.arange(len(mode))
    measured = each if len(own.bandwidth) == len(each) else np.zeros_like(each)
    peaks = np.log(own.peaks[measured, mode] / target.peaks[each, mode])
    gap = np.abs(np.log(own.bandwidth[measured] / target.bandwidth) - peaks)
    crossing = own.tensor[measured, mode] != target.tensor[each, mode]
    slow = np.broadcast_to(np.fmin(np.fmax(slowdown, 0.0), MOST_SLOW), len(each))
    return np.stack([np.ones(len(each)), gap, crossing.astype(float), slow], axis=1)


@cache
def load_calibration() -> Calibration:
    """Read the current calibration: the user's own if there is one, else the shipped one."""
    own = own_calibration_path()
    return read_calibration(own if own.is_file() else data_path(SHIPPED))


def read_calibration(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        MisuseError: If it cannot be read, is damaged, or has another schema version.
    """
    hint = "delete it or run gpubench predict calibrate --with RESULTS"
    calibration = read_json(path, Calibration, MOST_BYTES, what="a calibration", hint=hint, follow_links=True)
    if calibration.schema_version != CALIBRATION_VERSION:
        raise MisuseError(
            f"{path} has schema {calibration.schema_version}, not {CALIBRATION_VERSION}: {hint}"
        )
    return calibration


def own_calibration_path() -> Path:
    """Return the path of the user's own calibration, written by `gpubench predict calibrate`."""
    return user_data() / "calibration.json"


def installed_inputs(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the package's tables behind a fit, and of each profile among the named inputs."""
    profiles = (name for name in names if name.startswith(PROFILE))
    return {name: hash_of(data_bytes(name)) for name in INPUTS} | {
        name: _hash_of_profile(name.removeprefix(PROFILE)) for name in profiles
    }


def _hash_of_profile(name: str) -> str:
    # No fit reads the memory
    profile = load_profiles().get(name)
    work = profile and msgspec.structs.replace(profile, memory=())
    return hash_of(msgspec.json.encode(work, order="sorted"))


def hash_of(content: bytes) -> str:
    """Return the SHA-256 of these bytes in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
