"""Make the frozen fixture. Run this again only if the columns of a table or the format of a file change.

``python tests/golden/cut.py tables`` cuts the shipped tables to the rows named below, ``runs`` builds the
stored runs, and ``calibration`` fits the cut measurements. ``offers.csv`` was written by hand. The fixture is
independent of the figures in the shipped tables, so a changed figure is no reason to run this.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from report import samples  # noqa: E402 - tests/ is on the path only now

from golden.produce import DAY, RESULTS, TABLES, environment  # noqa: E402
from gpubench.findings import Finding, FindingKind  # noqa: E402
from gpubench.folders import data_bytes, package_path  # noqa: E402
from gpubench.models import Execution, Launch, Measurement, Precision, Run, Status  # noqa: E402
from gpubench.record.store import write_run, writing  # noqa: E402
from tools.published import DATA, published_bytes  # noqa: E402

GPUS = (
    "nvidia-h200-sxm-141gb",
    "nvidia-h100-sxm-80gb",
    "nvidia-h100-pcie-80gb",
    "nvidia-h100-unstated-80gb",
    "nvidia-a100-sxm-80gb",
    "nvidia-a100-pcie-80gb",
    "nvidia-l4-24gb",
    "nvidia-tesla-t4-16gb",
    "nvidia-tesla-v100-sxm2-16gb",
    "nvidia-geforce-rtx-3090-24gb",
    "nvidia-geforce-rtx-4090-24gb",
    "amd-mi300x-192gb",
)
MODELS = ("resnet50", "bert_base_squad", "ssd", "densenet201", "vgg13", "vgg16", "alexnet", "gnmt")
SOURCES = ("lambda-pytorch-22.09", "lambda-pytorch-20.10", "lambda-pytorch-20.01", "xhmy-torch-benchmark")
VERSION = "0.0.1"
"""The version in the stored runs: never one that was released, because the goldens replace the current version."""
WORKLOADS = ("augment", "cnn", "lstm", "resnet50", "vgg16")


def tables() -> None:
    """Cut the shipped tables to some of their rows, unchanged."""
    _cut("gpus.csv", lambda row: row["key"] in GPUS)
    _cut("card_prices.csv", lambda row: row["gpu_key"] in GPUS)
    _cut("chips.csv", lambda row: row["gpu_key"] in GPUS)
    _cut("instances.csv", lambda row: row["gpu_key"] in GPUS)
    _cut("model_profiles.csv", lambda row: row["model"] in MODELS)
    _cut(
        "published.csv",
        lambda row: row["gpu_key"] in GPUS and row["model"] in MODELS and row["source"] in SOURCES,
    )
    _cut("scaling.csv", lambda row: row["gpu_key"] in GPUS)
    _cut("product_rates.csv", lambda row: row["gpu_key"] in GPUS)
    _cut("inference_profiles.csv", lambda row: row["model"].partition("@")[0] in MODELS)
    _cut(
        "published_inference.csv",
        lambda row: (
            row["gpu_key"] in GPUS
            and row["model"].partition("@")[0] in MODELS
            and row["source"].startswith("timm-infer-amp-nchw-pt240")
        ),
    )
    (TABLES / "sources.csv").write_bytes(published_bytes("sources.csv"))
    for name in ("h200_readings.json", "memory_allowance.json"):
        (TABLES / name).write_bytes(data_bytes(name))
    profiles = msgspec.json.decode(data_bytes("workload_profiles.json"))
    kept = [profile for profile in profiles if profile["name"] in WORKLOADS]
    (TABLES / "workload_profiles.json").write_bytes(
        b"[\n" + b",\n".join(msgspec.json.encode(p) for p in kept) + b"\n]\n"
    )


def _cut(name: str, wanted) -> None:
    shipped = package_path(f"data/{name}")
    with (shipped if shipped.is_file() else DATA / name).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if wanted(row)]
    with (TABLES / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, reader.fieldnames or (), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def runs() -> None:
    """Build the stored runs: a sound one, one on a CPU, and one with doubtful and failed cases."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    for run in (sound_run(), samples.cpu_run(), doubtful_run()):
        small = _small(run)
        with writing(RESULTS, small):
            write_run(RESULTS, small)


def sound_run() -> Run:
    """Return a run without doubts: cases that the host does not limit, and one out of memory."""
    run = samples.h200_run()
    return msgspec.structs.replace(run, measurements=tuple(m for m in run.measurements if not m.findings))


def doubtful_run() -> Run:
    """Return a run of the same card two days earlier: slower, noisy and throttled, with cases that have no figure."""
    slow = (Finding(kind=FindingKind.THROTTLED, value="SwThermalSlowdown"),)
    capped = (Finding(kind=FindingKind.POWER_CAPPED, value=0.8, limit=0.95),)
    allowed = (Finding(kind=FindingKind.THROTTLED_ALLOWED, value="SwPowerCap"),)
    eager = Execution.EAGER
    rows = (
        samples.measurement(samples.case(), 0.0223, findings=slow, seed=1),
        samples.measurement(samples.case(execution=eager), 0.0231, 0.06, findings=capped, seed=1),
        samples.measurement(samples.case(precision=Precision.FP32), 0.0977, launches=1, seed=1),
        samples.measurement(samples.case("cnn", 512, execution=eager), 2.44e-3, 0.05, seed=1),
        samples.measurement(samples.case("cnn", 512), 0.62e-3, findings=allowed, seed=1),
        samples.measurement(
            samples.case("cnn", 64, Precision.FP32, eager, memory_format=None), 1.9e-3, launches=2, seed=1
        ),
        Measurement(
            case=samples.case("cnn", 512, Precision.FP32),
            status=Status.INVALID,
            reason="the loss is not finite after 12 steps",
        ),
        Measurement(
            case=samples.case("lstm", 512), status=Status.FAILED, reason="CUDA error: illegal memory access"
        ),
        Measurement(
            case=samples.case("vgg16", 4096), status=Status.OUT_OF_MEMORY, reason="CUDA out of memory"
        ),
    )
    return samples.h200_run(
        run_id="20261118T080000Z-d0d0d0",
        started_at="2026-11-18T08:00:00Z",
        finished_at=None,
        planned=tuple(row.case for row in rows),
        measurements=rows,
        micro=(),
        findings=(Finding(kind=FindingKind.SHARED_GPU, value="2 other processes"),),
    )


def _small(run: Run) -> Run:
    """Shorten long lists, since people read the fixture too, and fill in what a check requires."""
    measurements = tuple(
        msgspec.structs.replace(
            m, launches=tuple(_thin(x, strict=m.case.precision is Precision.FP32) for x in m.launches)
        )
        for m in run.measurements
    )
    return msgspec.structs.replace(
        run,
        run_id=run.run_id.lower(),
        measurements=measurements,
        environment=msgspec.structs.replace(run.environment, gpubench=VERSION),
    )


def _thin(launch: Launch, *, strict: bool) -> Launch:
    return msgspec.structs.replace(
        launch,
        warmup=tuple(msgspec.structs.replace(r, loss=2.3) for r in launch.warmup[::5]),
        precision_errors={"matmul": 1e-7} if strict else {},
        telemetry=launch.telemetry[::20],
        loss_curve=launch.loss_curve[::5],
    )


def calibration() -> None:
    """Fit the cut measurements."""
    target = TABLES / "calibration.json"
    subprocess.run(
        [sys.executable, "-m", "tools.calibrate", "--date", DAY, "-o", target],
        check=True,
        env=environment(120),
    )


if __name__ == "__main__":
    for step in sys.argv[1:] or ("tables", "runs", "calibration"):
        {"tables": tables, "runs": runs, "calibration": calibration}[step]()
