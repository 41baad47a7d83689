"""The public API as type checkers see it; made by tests/make_stub.py, not by hand."""

# fmt: off
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Literal

import pandas as pd

from gpubench.errors import (
    EveryCaseFailedError,
    GpuBenchError,
    InterruptedRunError,
    MisuseError,
    NoDeviceError,
    StorageError,
    WrongArgumentError,
)
from gpubench.models import (
    BuyOrRent,
    Case,
    Choice,
    DeviceProfile,
    Estimate,
    ExcludedOffer,
    Finding,
    Measurement,
    Offer,
    Ranking,
    Row,
    Run,
    WorkloadProfile,
)
from gpubench.predict.answers import Predictions
from gpubench.predict.memory_answer import MemoryAnswer, MemoryAnswers
from gpubench.predict.question import Refusal
from gpubench.probe.backend import ProbeReport
from gpubench.sections.data import ReportData

__version__: str
__all__ = [
    "BuyOrRent", "Case", "Choice", "DeviceProfile", "Estimate", "EveryCaseFailedError", "ExcludedOffer",
    "Finding", "GpuBenchError", "InterruptedRunError", "Measurement", "MemoryAnswer", "MemoryAnswers",
    "MisuseError", "NoDeviceError", "Offer", "Predictions", "ProbeReport", "Ranking", "Refusal", "ReportData",
    "Row", "Run", "StorageError", "WorkloadProfile", "WrongArgumentError", "__version__", "load_runs",
    "memory", "predict", "probe", "rank", "report", "run",
]

def load_runs(
    results: str | Path | None = None,
) -> pd.DataFrame:
    """Return a frame with one row per stored measurement; unknown values are missing, never 0."""

def memory(
    workload: str | Path | WorkloadProfile | Sequence[str | Path | WorkloadProfile] = (), *, gpu: str |
    Sequence[str] = (), batch_size: int | None = None, accumulate: int = 1, precision: Literal["amp", "fp32",
    "tf32", "amp-fp16", "amp-bf16", "bf16", "fp8", "int8"] | None = None, execution: Literal["eager", "graph",
    "compile"] = "graph", task: Literal["train", "infer"] = "train", count: int = 1, jobs: Literal["ddp",
    "fsdp"] | None = None, results: str | Path | None = None, weight_type: Literal["float32", "bfloat16",
    "float16", "int8", "int4", "nf4"] | None = None, checkpointing: Literal["none", "selective", "full"] |
    None = None, loss_chunks: int | None = None, prompt_tokens: int | None = None, new_tokens: int | None =
    None, stack: Literal["torch", "plain", "no-flash", "fused"] | None = None, context: int | None = None,
    lora: bool = False, qlora: bool = False,
) -> MemoryAnswers:
    """Return the memory that a step needs, on which GPUs it fits, and what would make it fit.

    The user's results count: a peak measured in the same case replaces the model.

    Returns:
        One answer per workload.

    Raises:
        MisuseError: If a name is unknown, or the precision or the batch is impossible.
    """

def predict(
    workload: str | Path | WorkloadProfile, *, gpu: str | Sequence[str] = (), precision: Literal["amp",
    "fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp8", "int8"] | None = None, execution: Literal["eager",
    "graph", "compile"] = "graph", task: Literal["train", "infer"] = "train", batch_size: int | Literal["max"]
    | None = None, power_limit: float | None = None, sort: Literal["speed", "energy"] = "speed", results: str
    | Path | None = None, weight_type: Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] | None
    = None, checkpointing: Literal["none", "selective", "full"] | None = None, loss_chunks: int | None = None,
    prompt_tokens: int | None = None, new_tokens: int | None = None, stack: Literal["torch", "plain",
    "no-flash", "fused"] | None = None, context: int | None = None, lora: bool = False, qlora: bool = False,
) -> Predictions:
    """Predict the throughput of a workload on the named GPUs, using the user's own results.

    Returns:
        For each GPU key, an estimate, or a refusal with its reason.

    Raises:
        MisuseError: If a name is unknown, or the precision or the batch is impossible.
    """

def probe() -> ProbeReport:
    """List the devices of this machine, GPUs first and the CPU last.

    A missing or broken driver becomes a Problem in the report, never an exception.
    """

def rank(
    workload: str | Path | Sequence[str | Path] = (), *, mix: Mapping[str, float] | str = ..., precision:
    Literal["amp", "fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp8", "int8"] | None = None, execution:
    Literal["eager", "graph", "compile"] = "graph", task: Literal["train", "infer"] = "train", batch_size: int
    | Literal["max"] | None = None, max_latency_ms: float | None = None, samples: float | None = None, epochs:
    float | None = None, dataset_size: float | None = None, dataset_gb: float | None = None, jobs:
    Literal["independent", "ddp"] | None = None, deadline_hours: float | None = None, budget_usd: float | None
    = None, startup_minutes: float | None = None, billing_minutes: float | None = None, spot_lost: float |
    None = None, host_lost: float | None = None, storage_usd_per_month: float = 0.0, egress_usd: float = 0.0,
    tax: float = 0.0, hour_worth: float = 2.0, relative: bool = False, gpu: str | Sequence[str] = (),
    provider: str | Sequence[str] = (), region: str | Sequence[str] = (), seller: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (), spot: bool = False, commit: Literal["1y", "3y"] | None = None, count:
    int | None = None, max_usd_per_hour: float | None = None, max_price_age: int | None = None,
    min_memory_gib: float | None = None, memory_type: str | None = None, min_bandwidth_gbps: float | None =
    None, min_cores: int | None = None, min_tensor_cores: int | None = None, line: str | Sequence[str] = (),
    architecture: str | Sequence[str] = (), max_watts: float | None = None, ecc: bool = False, fp64: bool =
    False, nvlink: bool = False, cooling: Literal["active", "passive", "liquid", "module"] | None = None,
    rent: bool = False, buy: bool = False, have: str | Sequence[str] = (), max_purchase_usd: float | None =
    None, condition: Literal["new", "used"] | None = None, jobs_per_month: float | None = None, host_usd:
    float | None = None, psu_watts: float | None = None, slots: int | None = None, years: float = 3.0,
    utilization: float | tuple[float, float] | tuple[float, float, float] | str = ..., resale: float |
    tuple[float, float] | tuple[float, float, float] | str = ..., tariff: float | tuple[float, float] |
    tuple[float, float, float] | str = ..., pue: float = 1.0, circuit_watts: float | None = None, own_fan:
    bool = False, offers: str | Path | None = None, results: str | Path | None = None, as_of: date | str |
    None = None, accept_outliers: bool = False, reference: str = "nvidia-a100-sxm-80gb", sort:
    Literal["value", "time", "cost", "throughput", "joules"] = "value", limit: int | None = None, one_a_gpu:
    bool = False, draws: int = 2000, seed: int = 0, weight_type: Literal["float32", "bfloat16", "float16",
    "int8", "int4", "nf4"] | None = None, checkpointing: Literal["none", "selective", "full"] | None = None,
    loss_chunks: int | None = None, prompt_tokens: int | None = None, new_tokens: int | None = None, stack:
    Literal["torch", "plain", "no-flash", "fused"] | None = None, context: int | None = None, lora: bool =
    False, qlora: bool = False,
) -> Ranking:
    """Rank GPUs and instances for a job by dollars and hours; this needs neither a network nor a GPU.

    Returns:
        The three answers, the ranked offers, the excluded offers with reasons, and the sentences about them.

    Raises:
        MisuseError: If an option is wrong, a name is unknown, or no offer is left.

    Example:
        >>> ranking = rank("vgg16", precision="amp", gpu=["h100", "rtx 5090"])
        >>> ranking.rows[0].rank
        1
    """

def report(
    output: str | Path | None = None, results: str | Path | None = None, *, public: str | Path | None = None,
    format: Literal["html", "md", "json", "csv"] | None = None, run: str | None = None, data: ReportData |
    None = None, weight_type: Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] | None = None,
    checkpointing: Literal["none", "selective", "full"] | None = None, loss_chunks: int | None = None,
    prompt_tokens: int | None = None, new_tokens: int | None = None, stack: Literal["torch", "plain",
    "no-flash", "fused"] | None = None, context: int | None = None, lora: bool = False, qlora: bool = False,
    workload: str | Path | Sequence[str | Path] = (), mix: Mapping[str, float] | str = ..., precision:
    Literal["amp", "fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp8", "int8"] | None = None, execution:
    Literal["eager", "graph", "compile"] = "graph", task: Literal["train", "infer"] = "train", batch_size: int
    | Literal["max"] | None = None, max_latency_ms: float | None = None, samples: float | None = None, epochs:
    float | None = None, dataset_size: float | None = None, dataset_gb: float | None = None, jobs:
    Literal["independent", "ddp"] | None = None, deadline_hours: float | None = None, budget_usd: float | None
    = None, startup_minutes: float | None = None, billing_minutes: float | None = None, spot_lost: float |
    None = None, host_lost: float | None = None, storage_usd_per_month: float = 0.0, egress_usd: float = 0.0,
    tax: float = 0.0, hour_worth: float = 2.0, relative: bool = False, gpu: str | Sequence[str] = (),
    provider: str | Sequence[str] = (), region: str | Sequence[str] = (), seller: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (), spot: bool = False, commit: Literal["1y", "3y"] | None = None, count:
    int | None = None, max_usd_per_hour: float | None = None, max_price_age: int | None = None,
    min_memory_gib: float | None = None, memory_type: str | None = None, min_bandwidth_gbps: float | None =
    None, min_cores: int | None = None, min_tensor_cores: int | None = None, line: str | Sequence[str] = (),
    architecture: str | Sequence[str] = (), max_watts: float | None = None, ecc: bool = False, fp64: bool =
    False, nvlink: bool = False, cooling: Literal["active", "passive", "liquid", "module"] | None = None,
    rent: bool = False, buy: bool = False, have: str | Sequence[str] = (), max_purchase_usd: float | None =
    None, condition: Literal["new", "used"] | None = None, jobs_per_month: float | None = None, host_usd:
    float | None = None, psu_watts: float | None = None, slots: int | None = None, years: float = 3.0,
    utilization: float | tuple[float, float] | tuple[float, float, float] | str = ..., resale: float |
    tuple[float, float] | tuple[float, float, float] | str = ..., tariff: float | tuple[float, float] |
    tuple[float, float, float] | str = ..., pue: float = 1.0, circuit_watts: float | None = None, own_fan:
    bool = False, offers: str | Path | None = None, as_of: date | str | None = None, accept_outliers: bool =
    False, reference: str = "nvidia-a100-sxm-80gb", sort: Literal["value", "time", "cost", "throughput",
    "joules"] = "value", limit: int | None = None, one_a_gpu: bool = False, draws: int = 2000, seed: int = 0,
) -> str:
    """Write the report on a run (the newest by default) and the ranking.

    Returns:
        The path of the file.

    Raises:
        MisuseError: If the question is invalid, or the format is unknown.
        StorageError: If the file cannot be written.
    """

def run(
    workload: str | Path | Sequence[str | Path] = (), *, suite: Literal["default", "modern"] | None = None,
    precision: str | Sequence[str] = (), execution: str | Sequence[str] = (), framework: str | Sequence[str] =
    ..., task: Literal["train", "infer"] = "train", batch_size: int | Literal["max"] | None = None, device:
    str = "auto", gpus: int = 1, jobs: Literal["ddp", "fsdp", "independent"] | None = None, thread_scaling:
    bool = False, strong: bool = False, quick: bool = False, publish: bool = False, time_limit: float | None =
    None, seed: int = 0, allow: str | Sequence[str] = (), micro: Literal["also", "only", "none"] = "also",
    to_quality: bool = False, resume: str | None = None, results: str | Path | None = None, weight_type:
    Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] | None = None, checkpointing:
    Literal["none", "selective", "full"] | None = None, loss_chunks: int | None = None, prompt_tokens: int |
    None = None, new_tokens: int | None = None, stack: Literal["torch", "plain", "no-flash", "fused"] | None =
    None, context: int | None = None, lora: bool = False, qlora: bool = False,
) -> Run:
    """Measure workloads on a device, store the run, and return it.

    Under torchrun, every process except the first serves the first until its run is over; the run that it
    returns has no rows and is not stored.

    Raises:
        MisuseError: For a request that cannot be satisfied.
        NoDeviceError: If the device cannot be used.
        StorageError: If the run cannot be stored, or another process is writing it.
        EveryCaseFailedError: If no case gave a figure; the rows are stored.
        InterruptedRunError: After Ctrl-C or SIGTERM; finished cases are stored.
    """
