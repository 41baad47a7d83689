"""The public API as type checkers see it; made by tests/make_stub.py, not by hand."""

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
    Decision,
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
    "BuyOrRent",
    "Case",
    "Choice",
    "Decision",
    "DeviceProfile",
    "Estimate",
    "EveryCaseFailedError",
    "ExcludedOffer",
    "Finding",
    "GpuBenchError",
    "InterruptedRunError",
    "Measurement",
    "MemoryAnswer",
    "MemoryAnswers",
    "MisuseError",
    "NoDeviceError",
    "Offer",
    "Predictions",
    "ProbeReport",
    "Ranking",
    "Refusal",
    "ReportData",
    "Row",
    "Run",
    "StorageError",
    "WorkloadProfile",
    "WrongArgumentError",
    "__version__",
    "load_runs",
    "memory",
    "predict",
    "probe",
    "rank",
    "report",
    "run",
]

def load_runs(
    results: str | Path | None = None,
) -> pd.DataFrame:
    """Return every stored measurement as one row; unknown is missing, never 0.

    Args:
        results: Results folder. [default: $GPUBENCH_RESULTS, ./results if it is there, else the user's
            data folder]
    """

def memory(
    workload: str | Path | WorkloadProfile | Sequence[str | Path | WorkloadProfile] = (),
    *,
    gpu: str | Sequence[str] = (),
    batch_size: int | None = None,
    accumulate: int = 1,
    precision: Literal["amp", "fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp8", "int8"] | None = None,
    execution: Literal["eager", "graph", "compile"] = "graph",
    task: Literal["train", "infer"] = "train",
    count: int = 1,
    jobs: Literal["ddp", "fsdp"] | None = None,
    results: str | Path | None = None,
    weight_type: Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] | None = None,
    checkpointing: Literal["none", "selective", "full"] | None = None,
    loss_chunks: int | None = None,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
    context: int | None = None,
    lora: bool = False,
    qlora: bool = False,
) -> MemoryAnswers:
    """Say what a step needs in memory, on which GPUs it fits, and what would make it fit.

    This user's results help: a peak measured in the same case replaces the model.

    Args:
        workload: Workloads by name, or a model of your own: FILE[:NAME] or MODULE:NAME. [default: every
            standard one, in short]
        gpu: GPU key or name. [default: every NVIDIA GPU, by size]
        batch_size: Samples per step on one GPU. (at least 1) [default: the main batch]
        accumulate: Micro-batches that the batch is cut into, whose gradients are summed. (at least 1)
            [default: 1]
        precision: Precision; amp is the best of each GPU. [amp|fp32|tf32|amp-fp16|amp-
            bf16|bf16|fp8|int8] [default: amp, or the workload's own]
        execution: How a step is executed. [eager|graph|compile] [default: graph]
        task: Training or inference. [train|infer] [default: train]
        count: GPUs of one job. (from 1 to 1048576) [default: 1]
        jobs: All weights on each GPU, or a share of them. [ddp|fsdp] [default: fsdp for a model that is
            made for it, else ddp]
        results: Results folder. [default: $GPUBENCH_RESULTS, ./results if it is there, else the user's
            data folder]
        weight_type: Data type of the weights. [float32|bfloat16|float16|int8|int4|nf4] [default: that
            of the precision]
        checkpointing: Activations that are computed again in the backward pass. [none|selective|full]
            [default: the workload's own]
        loss_chunks: Chunks of tokens that the loss is computed in. (from 1 to 65536) [default: the
            workload's own]
        prompt_tokens: Tokens of a prompt, of a workload that generates. (from 1 to 16777216) [default:
            the workload's own]
        new_tokens: Tokens generated after the prompt. (from 2 to 16777216) [default: the workload's
            own]
        context: Tokens of one sequence that is trained on. (from 1 to 16777216) [default: the
            workload's own]
        lora: Train adapters over a frozen base.
        qlora: Train adapters over a frozen base in 4 bits.

    Returns:
        One answer a workload.

    Raises:
        MisuseError: If a name, a precision or the batch is not known or not possible.
    """

def predict(
    workload: str | Path | WorkloadProfile,
    *,
    gpu: str | Sequence[str] = (),
    precision: Literal["amp", "fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp8", "int8"] | None = None,
    execution: Literal["eager", "graph", "compile"] = "graph",
    task: Literal["train", "infer"] = "train",
    batch_size: int | Literal["max"] | None = None,
    results: str | Path | None = None,
    weight_type: Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] | None = None,
    checkpointing: Literal["none", "selective", "full"] | None = None,
    loss_chunks: int | None = None,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
    context: int | None = None,
    lora: bool = False,
    qlora: bool = False,
) -> Predictions:
    """Predict the throughput of a workload on GPUs by name, from this user's results where they help.

    Args:
        workload: A standard workload, or a model of your own: FILE[:NAME] or MODULE:NAME.
        gpu: GPU key or name. [default: every GPU known]
        precision: Precision; amp is the best of each GPU. [amp|fp32|tf32|amp-fp16|amp-
            bf16|bf16|fp8|int8] [default: amp, or the workload's own]
        execution: How a step is executed. [eager|graph|compile] [default: graph]
        task: Training or inference. [train|infer] [default: train]
        batch_size: Samples per step on one GPU; max is the largest that each GPU holds. [default: the
            workload's main batch]
        results: Results folder. [default: $GPUBENCH_RESULTS, ./results if it is there, else the user's
            data folder]
        weight_type: Data type of the weights. [float32|bfloat16|float16|int8|int4|nf4] [default: that
            of the precision]
        checkpointing: Activations that are computed again in the backward pass. [none|selective|full]
            [default: the workload's own]
        loss_chunks: Chunks of tokens that the loss is computed in. (from 1 to 65536) [default: the
            workload's own]
        prompt_tokens: Tokens of a prompt, of a workload that generates. (from 1 to 16777216) [default:
            the workload's own]
        new_tokens: Tokens generated after the prompt. (from 2 to 16777216) [default: the workload's
            own]
        context: Tokens of one sequence that is trained on. (from 1 to 16777216) [default: the
            workload's own]
        lora: Train adapters over a frozen base.
        qlora: Train adapters over a frozen base in 4 bits.

    Returns:
        By GPU key, an estimate, or a refusal with its reason.

    Raises:
        MisuseError: If a name, a precision, or the batch is not known or not possible.
    """

def probe() -> ProbeReport:
    """Say what the devices of this machine are, GPUs first, the CPU last.

    A driver that is missing or broken becomes a Problem in the report, never an exception.
    """

def rank(
    workload: str | Path | Sequence[str | Path] = (),
    *,
    mix: Mapping[str, float] | str = ...,
    precision: Literal["amp", "fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp8", "int8"] | None = None,
    execution: Literal["eager", "graph", "compile"] = "graph",
    task: Literal["train", "infer"] = "train",
    batch_size: int | Literal["max"] | None = None,
    max_latency_ms: float | None = None,
    samples: float | None = None,
    epochs: float | None = None,
    dataset_size: float | None = None,
    jobs: Literal["independent", "ddp"] | None = None,
    deadline_hours: float | None = None,
    budget_usd: float | None = None,
    startup_minutes: float | None = None,
    billing_minutes: float | None = None,
    spot_lost: float = 0.0,
    storage_usd_per_month: float = 0.0,
    egress_usd: float = 0.0,
    tax: float = 0.0,
    relative: bool = False,
    gpu: str | Sequence[str] = (),
    provider: str | Sequence[str] = (),
    region: str | Sequence[str] = (),
    spot: bool = False,
    reserved: bool = False,
    count: int | None = None,
    max_usd_per_hour: float | None = None,
    max_price_age: int | None = None,
    min_memory_gib: float | None = None,
    memory_type: str | None = None,
    min_bandwidth_gbps: float | None = None,
    min_cores: int | None = None,
    min_tensor_cores: int | None = None,
    line: str | Sequence[str] = (),
    architecture: str | Sequence[str] = (),
    max_watts: float | None = None,
    ecc: bool = False,
    fp64: bool = False,
    nvlink: bool = False,
    cooling: Literal["active", "passive", "liquid", "module"] | None = None,
    rent: bool = False,
    buy: bool = False,
    own: str | Sequence[str] = (),
    max_purchase_usd: float | None = None,
    jobs_per_month: float | None = None,
    host_usd: float | None = None,
    psu_watts: float | None = None,
    slots: int | None = None,
    years: float = 3.0,
    utilization: float | tuple[float, float] | tuple[float, float, float] | str = ...,
    resale: float | tuple[float, float] | tuple[float, float, float] | str = ...,
    tariff: float | tuple[float, float] | tuple[float, float, float] | str = ...,
    pue: float = 1.0,
    circuit_watts: float | None = None,
    own_fan: bool = False,
    offers: str | Path | None = None,
    results: str | Path | None = None,
    as_of: date | str | None = None,
    accept_outliers: bool = False,
    reference: str = "nvidia-a100-sxm-80gb",
    sort: Literal["value", "time", "cost", "throughput"] = "value",
    limit: int | None = None,
    one_a_gpu: bool = False,
    draws: int = 2000,
    seed: int = 0,
    weight_type: Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] | None = None,
    checkpointing: Literal["none", "selective", "full"] | None = None,
    loss_chunks: int | None = None,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
    context: int | None = None,
    lora: bool = False,
    qlora: bool = False,
) -> Ranking:
    """Rank GPUs and instances by training per dollar, from the tables on this machine; no network, no GPU.

    Args:
        workload: Workloads by name, or a model of your own: FILE[:NAME] or MODULE:NAME. [default: cnn
            lstm vgg16]
        mix: Workload mix, by share of samples: vgg16=0.5,lstm=0.5.
        precision: Precision; amp is the best of each GPU. [amp|fp32|tf32|amp-fp16|amp-
            bf16|bf16|fp8|int8] [default: amp, or the workload's own]
        execution: How a step is executed. [eager|graph|compile] [default: graph]
        task: Training or inference. [train|infer] [default: train]
        batch_size: Samples per step on one GPU; max is the largest that each GPU holds. [default: the
            workload's main batch]
        max_latency_ms: With --task infer: choose the batch whose pessimistic step time meets it; of a
            generation the time of each token after the first [ms]. (above 0)
        samples: Samples to train on, in all. (above 0)
        epochs: Epochs; with --dataset-size. (above 0)
        dataset_size: Samples per epoch. (above 0)
        jobs: One data-parallel job over all GPUs (ddp), or one job per GPU. [independent|ddp] [default:
            ddp with a job]
        deadline_hours: Keep offers whose pessimistic estimate meets it. (above 0)
        budget_usd: Keep offers whose pessimistic cost stays within it. (above 0)
        startup_minutes: Billed before the first step [min]. (at least 0) [default: 10, of what is
            rented]
        billing_minutes: Billing increment [min]. (above 0) [default: by the second]
        spot_lost: Share of work repeated after spot interruptions, for example 0.2. (from 0 to below
            10) [default: 0]
        storage_usd_per_month: Storage while the job runs. (at least 0) [default: 0]
        egress_usd: Egress of the job. (at least 0) [default: 0]
        tax: Tax as a share, for example 0.19. (at least 0) [default: 0]
        relative: Relative units, and no job: what a dollar buys in place of hours and dollars.
        gpu: GPU key, name, or part of it (h100).
        provider: Provider.
        region: Region, or its first letters.
        spot: Also rank spot prices.
        reserved: Also rank reserved prices (commitments).
        count: Exact number of GPUs. (at least 1)
        max_usd_per_hour: Highest price of the instance [USD/h]. (at least 0)
        max_price_age: Leave out older prices [days]. (at least 0)
        min_memory_gib: Least memory of one GPU [GiB]. (above 0)
        memory_type: HBM, GDDR, GDDR6 ...
        min_bandwidth_gbps: Least memory bandwidth [GB/s]. (above 0)
        min_cores: Least number of CUDA cores or stream processors. (at least 1)
        min_tensor_cores: Least number of tensor cores. (at least 1)
        line: GeForce, RTX, data center, Jetson, Radeon, Instinct ...
        architecture: Hopper, Ada Lovelace, Blackwell ...
        max_watts: Highest board power of one GPU [W]. (above 0)
        ecc: Only memory with error correction (ECC).
        fp64: Only GPUs with FP64 at a quarter of FP32 or better.
        nvlink: Only GPUs with NVLink or a similar link.
        cooling: Cooling of the card. [active|passive|liquid|module]
        rent: Only offers to rent.
        buy: Only hardware that is owned or for sale.
        own: Hardware owned or quoted: '2x RTX 4090, 3800 USD, host 1500 USD, 3 years, 60 %, 380 W'.
        max_purchase_usd: Buy the best one or two cards for at most this, host included [USD]. (above 0)
        jobs_per_month: Jobs a month that owned hardware does: gives utilization and cards needed.
            (above 0)
        host_usd: Price of the host, 0 where there is one [USD]. (at least 0) [default: 1,000 for cards
            to buy, none for --own]
        psu_watts: Power supply of the host [W]. (above 0) [default: 1,200 of a host to buy]
        slots: Slots that the cards may take. (at least 1) [default: 6 of a host to buy]
        years: Service life [years]. (above 0) [default: 3]
        utilization: Utilization, for example 0.5 or 0.3-0.8. [default: 0.25-0.9]
        resale: Resale value as a share of the price, for example 0.2-0.5. [default: 0.15-0.5]
        tariff: Electricity price [USD/kWh], for example 0.15 or 0.1-0.3. [default: 0.1-0.35]
        pue: Power usage effectiveness: facility power over IT power. (at least 1) [default: 1]
        circuit_watts: Power available to the GPUs [W]. (above 0)
        own_fan: Only cards with their own fan.
        offers: Your own price table (CSV or JSON).
        results: Results folder. [default: $GPUBENCH_RESULTS, ./results if it is there, else the user's
            data folder]
        as_of: Rank as of this day; later prices are left out.
        accept_outliers: Also rank prices far below those of every other provider.
        reference: GPU that speeds are multiples of. [default: nvidia-a100-sxm-80gb]
        sort: Order of the rows; value is cost where there is a job. [value|time|cost|throughput]
            [default: value]
        limit: Number of rows. (at least 1) [default: 20 in a terminal, all in JSON]
        one_a_gpu: Of each GPU to rent the best offer alone; of what is owned all.
        draws: Joint draws behind P(best) and ties. (at least 1) [default: 2000]
        seed: Fixes the draws. (at least 0) [default: 0]
        weight_type: Data type of the weights. [float32|bfloat16|float16|int8|int4|nf4] [default: that
            of the precision]
        checkpointing: Activations that are computed again in the backward pass. [none|selective|full]
            [default: the workload's own]
        loss_chunks: Chunks of tokens that the loss is computed in. (from 1 to 65536) [default: the
            workload's own]
        prompt_tokens: Tokens of a prompt, of a workload that generates. (from 1 to 16777216) [default:
            the workload's own]
        new_tokens: Tokens generated after the prompt. (from 2 to 16777216) [default: the workload's
            own]
        context: Tokens of one sequence that is trained on. (from 1 to 16777216) [default: the
            workload's own]
        lora: Train adapters over a frozen base.
        qlora: Train adapters over a frozen base in 4 bits.

    Returns:
        The ranked offers, those left out with their reasons, and the verdict in a sentence.

    Raises:
        MisuseError: If an option is wrong, a name is unknown, or no offer is left.

    Example:
        >>> ranking = rank("vgg16", precision="amp", gpu=["h100", "rtx 5090"])
        >>> ranking.rows[0].rank
        1
    """

def report(
    output: str | Path | None = None,
    results: str | Path | None = None,
    *,
    format: Literal["html", "md", "json", "csv"] | None = None,
    run: str | None = None,
    data: ReportData | None = None,
    weight_type: Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] | None = None,
    checkpointing: Literal["none", "selective", "full"] | None = None,
    loss_chunks: int | None = None,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
    context: int | None = None,
    lora: bool = False,
    qlora: bool = False,
    workload: str | Path | Sequence[str | Path] = (),
    mix: Mapping[str, float] | str = ...,
    precision: Literal["amp", "fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp8", "int8"] | None = None,
    execution: Literal["eager", "graph", "compile"] = "graph",
    task: Literal["train", "infer"] = "train",
    batch_size: int | Literal["max"] | None = None,
    max_latency_ms: float | None = None,
    samples: float | None = None,
    epochs: float | None = None,
    dataset_size: float | None = None,
    jobs: Literal["independent", "ddp"] | None = None,
    deadline_hours: float | None = None,
    budget_usd: float | None = None,
    startup_minutes: float | None = None,
    billing_minutes: float | None = None,
    spot_lost: float = 0.0,
    storage_usd_per_month: float = 0.0,
    egress_usd: float = 0.0,
    tax: float = 0.0,
    relative: bool = False,
    gpu: str | Sequence[str] = (),
    provider: str | Sequence[str] = (),
    region: str | Sequence[str] = (),
    spot: bool = False,
    reserved: bool = False,
    count: int | None = None,
    max_usd_per_hour: float | None = None,
    max_price_age: int | None = None,
    min_memory_gib: float | None = None,
    memory_type: str | None = None,
    min_bandwidth_gbps: float | None = None,
    min_cores: int | None = None,
    min_tensor_cores: int | None = None,
    line: str | Sequence[str] = (),
    architecture: str | Sequence[str] = (),
    max_watts: float | None = None,
    ecc: bool = False,
    fp64: bool = False,
    nvlink: bool = False,
    cooling: Literal["active", "passive", "liquid", "module"] | None = None,
    rent: bool = False,
    buy: bool = False,
    own: str | Sequence[str] = (),
    max_purchase_usd: float | None = None,
    jobs_per_month: float | None = None,
    host_usd: float | None = None,
    psu_watts: float | None = None,
    slots: int | None = None,
    years: float = 3.0,
    utilization: float | tuple[float, float] | tuple[float, float, float] | str = ...,
    resale: float | tuple[float, float] | tuple[float, float, float] | str = ...,
    tariff: float | tuple[float, float] | tuple[float, float, float] | str = ...,
    pue: float = 1.0,
    circuit_watts: float | None = None,
    own_fan: bool = False,
    offers: str | Path | None = None,
    as_of: date | str | None = None,
    accept_outliers: bool = False,
    reference: str = "nvidia-a100-sxm-80gb",
    sort: Literal["value", "time", "cost", "throughput"] = "value",
    limit: int | None = None,
    one_a_gpu: bool = False,
    draws: int = 2000,
    seed: int = 0,
) -> str:
    """Write the report of the newest run and of the ranking, and return the path of the file.

    Args:
        output: File to write. [default: a dated file in reports/ of the results folder]
        results: Results folder. [default: $GPUBENCH_RESULTS, ./results if it is there, else the user's
            data folder]
        format: Format of the report. [html|md|json|csv] [default: by the ending of the file, else html]
        run: Run whose device the report is about: a path, an id or latest. [default: the newest usable]
        data: What to report, where it is already at hand; nothing is then read or ranked.
        weight_type: Data type of the weights. [float32|bfloat16|float16|int8|int4|nf4] [default: that
            of the precision]
        checkpointing: Activations that are computed again in the backward pass. [none|selective|full]
            [default: the workload's own]
        loss_chunks: Chunks of tokens that the loss is computed in. (from 1 to 65536) [default: the
            workload's own]
        prompt_tokens: Tokens of a prompt, of a workload that generates. (from 1 to 16777216) [default:
            the workload's own]
        new_tokens: Tokens generated after the prompt. (from 2 to 16777216) [default: the workload's
            own]
        context: Tokens of one sequence that is trained on. (from 1 to 16777216) [default: the
            workload's own]
        lora: Train adapters over a frozen base.
        qlora: Train adapters over a frozen base in 4 bits.
        workload: Rank by this workload, or by a model of your own.
        mix: Workload mix, by share of samples: vgg16=0.5,lstm=0.5.
        precision: Precision; amp is the best of each GPU. [amp|fp32|tf32|amp-fp16|amp-
            bf16|bf16|fp8|int8] [default: amp, or the workload's own]
        execution: How a step is executed. [eager|graph|compile] [default: graph]
        task: Training or inference. [train|infer] [default: train]
        batch_size: Samples per step on one GPU; max is the largest that each GPU holds. [default: the
            workload's main batch]
        max_latency_ms: With --task infer: choose the batch whose pessimistic step time meets it; of a
            generation the time of each token after the first [ms]. (above 0)
        samples: Samples to train on, in all. (above 0)
        epochs: Epochs; with --dataset-size. (above 0)
        dataset_size: Samples per epoch. (above 0)
        jobs: One data-parallel job over all GPUs (ddp), or one job per GPU. [independent|ddp] [default:
            ddp with a job]
        deadline_hours: Keep offers whose pessimistic estimate meets it. (above 0)
        budget_usd: Keep offers whose pessimistic cost stays within it. (above 0)
        startup_minutes: Billed before the first step [min]. (at least 0) [default: 10, of what is
            rented]
        billing_minutes: Billing increment [min]. (above 0) [default: by the second]
        spot_lost: Share of work repeated after spot interruptions, for example 0.2. (from 0 to below
            10) [default: 0]
        storage_usd_per_month: Storage while the job runs. (at least 0) [default: 0]
        egress_usd: Egress of the job. (at least 0) [default: 0]
        tax: Tax as a share, for example 0.19. (at least 0) [default: 0]
        relative: Relative units, and no job: what a dollar buys in place of hours and dollars.
        gpu: GPU key, name, or part of it (h100).
        provider: Provider.
        region: Region, or its first letters.
        spot: Also rank spot prices.
        reserved: Also rank reserved prices (commitments).
        count: Exact number of GPUs. (at least 1)
        max_usd_per_hour: Highest price of the instance [USD/h]. (at least 0)
        max_price_age: Leave out older prices [days]. (at least 0)
        min_memory_gib: Least memory of one GPU [GiB]. (above 0)
        memory_type: HBM, GDDR, GDDR6 ...
        min_bandwidth_gbps: Least memory bandwidth [GB/s]. (above 0)
        min_cores: Least number of CUDA cores or stream processors. (at least 1)
        min_tensor_cores: Least number of tensor cores. (at least 1)
        line: GeForce, RTX, data center, Jetson, Radeon, Instinct ...
        architecture: Hopper, Ada Lovelace, Blackwell ...
        max_watts: Highest board power of one GPU [W]. (above 0)
        ecc: Only memory with error correction (ECC).
        fp64: Only GPUs with FP64 at a quarter of FP32 or better.
        nvlink: Only GPUs with NVLink or a similar link.
        cooling: Cooling of the card. [active|passive|liquid|module]
        rent: Only offers to rent.
        buy: Only hardware that is owned or for sale.
        own: Hardware owned or quoted: '2x RTX 4090, 3800 USD, host 1500 USD, 3 years, 60 %, 380 W'.
        max_purchase_usd: Buy the best one or two cards for at most this, host included [USD]. (above 0)
        jobs_per_month: Jobs a month that owned hardware does: gives utilization and cards needed.
            (above 0)
        host_usd: Price of the host, 0 where there is one [USD]. (at least 0) [default: 1,000 for cards
            to buy, none for --own]
        psu_watts: Power supply of the host [W]. (above 0) [default: 1,200 of a host to buy]
        slots: Slots that the cards may take. (at least 1) [default: 6 of a host to buy]
        years: Service life [years]. (above 0) [default: 3]
        utilization: Utilization, for example 0.5 or 0.3-0.8. [default: 0.25-0.9]
        resale: Resale value as a share of the price, for example 0.2-0.5. [default: 0.15-0.5]
        tariff: Electricity price [USD/kWh], for example 0.15 or 0.1-0.3. [default: 0.1-0.35]
        pue: Power usage effectiveness: facility power over IT power. (at least 1) [default: 1]
        circuit_watts: Power available to the GPUs [W]. (above 0)
        own_fan: Only cards with their own fan.
        offers: Your own price table (CSV or JSON).
        as_of: Rank as of this day; later prices are left out.
        accept_outliers: Also rank prices far below those of every other provider.
        reference: GPU that speeds are multiples of. [default: nvidia-a100-sxm-80gb]
        sort: Order of the rows; value is cost where there is a job. [value|time|cost|throughput]
            [default: value]
        limit: Number of rows. (at least 1) [default: 20 in a terminal, all in JSON]
        one_a_gpu: Of each GPU to rent the best offer alone; of what is owned all.
        draws: Joint draws behind P(best) and ties. (at least 1) [default: 2000]
        seed: Fixes the draws. (at least 0) [default: 0]

    Returns:
        The path of the file.

    Raises:
        MisuseError: If the question or the format is unknown, or a section plug-in is broken.
        StorageError: If the file cannot be written.
    """

def run(
    workload: str | Path | Sequence[str | Path] = ...,
    *,
    precision: str | Sequence[str] = (),
    execution: str | Sequence[str] = (),
    framework: str | Sequence[str] = ...,
    task: Literal["train", "infer"] = "train",
    batch_size: int | Literal["max"] | None = None,
    device: str = "auto",
    gpus: int = 1,
    jobs: Literal["ddp", "fsdp", "independent"] | None = None,
    thread_scaling: bool = False,
    strong: bool = False,
    nnodes: int = 1,
    rdzv_endpoint: str | None = None,
    quick: bool = False,
    publish: bool = False,
    time_limit: float | None = None,
    seed: int = 0,
    allow_shared: bool = False,
    allow_throttled: bool = False,
    micro_only: bool = False,
    no_micro: bool = False,
    to_quality: bool = False,
    resume: str | None = None,
    results: str | Path | None = None,
    weight_type: Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] | None = None,
    checkpointing: Literal["none", "selective", "full"] | None = None,
    loss_chunks: int | None = None,
    prompt_tokens: int | None = None,
    new_tokens: int | None = None,
    context: int | None = None,
    lora: bool = False,
    qlora: bool = False,
) -> Run:
    """Measure workloads on a device, store the run, and return it.

    On a machine beside the first of a job, work for it until it is over; the run that is returned is then
    without rows, and is not stored.

    Args:
        workload: Workloads by name, all of them (all), or a model of your own: FILE[:NAME] or
            MODULE:NAME. [default: cnn lstm vgg16]
        precision: Precision; amp is the best of the device. [amp|fp32|tf32|amp-fp16|amp-
            bf16|bf16|fp8|int8] [default: all of the device]
        execution: How a step is executed. [eager|graph|compile|tf-graph] [default: eager and, on a GPU,
            graph]
        framework: What runs the steps: torch itself, or Keras 3 on one of its backends. [torch|keras-
            torch|keras-tensorflow|keras-jax]
        task: Training or inference. [train|infer] [default: train]
        batch_size: Samples per step; max searches the largest that fits. [default: the workload's main
            batch]
        device: Device: auto, cpu, cuda, cuda:N, or a UUID. [default: auto]
        gpus: Also time N GPUs (of a CPU: N processes) at once, in eager; see --jobs. (at least 1)
            [default: 1]
        jobs: With --gpus or --nnodes: one job over all GPUs (ddp, or fsdp, which shards the model), or
            one on each at once. [ddp|fsdp|independent] [default: fsdp for a model that is made for it,
            else ddp]
        thread_scaling: Of a CPU: also time each case on 1, 2, 4 ... of its threads, up to all.
        strong: Share the batch out over the GPUs of the job, instead of a batch for each.
        nnodes: Machines of the job, --gpus on each; give the same command on all. (at least 1)
            [default: 1]
        rdzv_endpoint: With --nnodes: address and port of the first machine, which the others connect
            to.
        quick: One launch, 2 % intervals. The default on a CPU.
        publish: Five launches, 0.5 % intervals, and torch.compile.
        time_limit: Time for the whole run, shared out over its cases [s]. (above 0)
        seed: Fixes weights, inputs and the order of the cases. (from 0 to 2147483647) [default: 0]
        allow_shared: Measure although something else uses the GPU.
        allow_throttled: Let rows be ranked although the GPU throttled.
        micro_only: Only micro-benchmarks.
        no_micro: No micro-benchmarks.
        to_quality: Train cnn and lstm to a stated quality instead: steps, time and energy over seeds.
        resume: Go on with a run that was cut off; finished cases are kept.
        results: Results folder. [default: $GPUBENCH_RESULTS, ./results if it is there, else the user's
            data folder]
        weight_type: Data type of the weights. [float32|bfloat16|float16|int8|int4|nf4] [default: that
            of the precision]
        checkpointing: Activations that are computed again in the backward pass. [none|selective|full]
            [default: the workload's own]
        loss_chunks: Chunks of tokens that the loss is computed in. (from 1 to 65536) [default: the
            workload's own]
        prompt_tokens: Tokens of a prompt, of a workload that generates. (from 1 to 16777216) [default:
            the workload's own]
        new_tokens: Tokens generated after the prompt. (from 2 to 16777216) [default: the workload's
            own]
        context: Tokens of one sequence that is trained on. (from 1 to 16777216) [default: the
            workload's own]
        lora: Train adapters over a frozen base.
        qlora: Train adapters over a frozen base in 4 bits.

    Raises:
        MisuseError: For a request that cannot be met.
        NoDeviceError: If the device cannot be used.
        StorageError: If the run cannot be stored, or another process is writing it.
        EveryCaseFailedError: If not one case gave a figure; the rows are stored.
        InterruptedRunError: If Ctrl-C or SIGTERM came; finished cases are stored.
    """
