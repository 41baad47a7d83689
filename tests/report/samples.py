"""Synthetic runs and rankings with known figures, for the report's tests and for viewing the page."""

from __future__ import annotations

import math
import random
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec import structs

from gpubench.findings import Finding, FindingKind
from gpubench.interval import Interval
from gpubench.models import (
    Answer,
    BuyOrRent,
    Case,
    Choice,
    DeviceProfile,
    Environment,
    Estimate,
    ExcludedOffer,
    Execution,
    Launch,
    Measurement,
    MemoryFormat,
    MicroResult,
    Offer,
    Precision,
    PriceCondition,
    Pricing,
    Ranking,
    Round,
    Row,
    Run,
    Sentence,
    Status,
    Switches,
    TaskKind,
    TelemetrySample,
)
from gpubench.profile import load_profiles
from gpubench.sections.data import ReportData

TODAY = date(2026, 11, 20)
FEW_MODELS = ("resnet50", "vgg16", "llama_8b_lora")
H200 = "nvidia-h200-sxm-141gb"

# ms per step (eager, graph), of the size they have on an H200; those of vgg16 were measured there
H200_STEPS_MS = {
    ("cnn", 512, Precision.FP32): (2.07, 1.125),
    ("cnn", 512, Precision.TF32): (1.92, 0.81),
    ("cnn", 512, Precision.AMP_BF16): (2.44, 0.62),
    ("lstm", 512, Precision.FP32): (2.05, 0.73),
    ("lstm", 512, Precision.TF32): (2.03, 0.52),
    ("lstm", 512, Precision.AMP_BF16): (2.84, 0.43),
    ("vgg16", 64, Precision.FP32): (97.7, 97.5),
    ("vgg16", 64, Precision.TF32): (36.7, 36.6),
    ("vgg16", 64, Precision.AMP_BF16): (20.2, 19.64),
}
FLOPS = {"cnn": 2.3e7, "lstm": 1.6e7, "vgg16": 92_648_177_664.0}
UNITS = {"cnn": "image", "lstm": "sequence", "vgg16": "image"}


def h200() -> DeviceProfile:
    return DeviceProfile(
        backend="cuda",
        vendor="NVIDIA",
        name="NVIDIA H200",
        gpu_key=H200,
        device_id="d" * 16,
        architecture="Hopper",
        compute_capability=(9, 0),
        sm_count=132,
        cuda_core_count=16896,
        memory_bytes=150_754_820_096,
        memory_bandwidth_bytes_per_s=4.814e12,
        sm_clock_max_hz=1.98e9,
        memory_clock_max_hz=3.201e9,
        power_limit_w=700.0,
        power_limit_default_w=700.0,
        pcie_generation=5,
        pcie_width=16,
        driver_version="580.159.04",
        cuda_driver_version="13.0",
        ecc_enabled=True,
        mig_enabled=False,
        virtualization="passthrough",
        tensor_core_precisions=("tf32", "bf16", "fp16", "fp8"),
        unavailable={"nvlink_count": "NotSupported"},
    )


def cpu() -> DeviceProfile:
    return DeviceProfile(
        backend="cpu",
        vendor="AMD",
        name="AMD EPYC 9354",
        architecture="x86_64",
        memory_bytes=24 * 2**30,
        device_id="c" * 16,
    )


def environment(**changes) -> Environment:
    fields = {
        "gpubench": "0.1.0", "python": "3.11.9", "os": "Linux 6.8", "cpu": "AMD EPYC 9354", "cpu_count": 16, "cpu_threads": 16,
        "ram_bytes": 128 * 2**30, "torch": "2.13.0", "cuda": "13.0", "cudnn": "9.12", "driver": "580.159.04", "cudnn_benchmark": True,
    }  # fmt: skip
    return Environment(**(fields | changes))


def case(
    workload="vgg16", batch=64, precision=Precision.AMP_BF16, execution=Execution.GRAPH, **changes
) -> Case:
    image = workload != "lstm"
    layout = (
        MemoryFormat.CHANNELS_LAST
        if image and precision is not Precision.FP32
        else MemoryFormat.CONTIGUOUS
        if image
        else None
    )
    fields = {
        "workload": workload, "workload_version": 1, "task": TaskKind.TRAIN, "precision": precision, "execution": execution,
        "memory_format": layout, "batch_size": batch, "sample_unit": UNITS.get(workload, "sample"),
    }  # fmt: skip
    return Case(**(fields | changes))


PROOFS = {"precision_errors": {"matmul": 1e-7}, "control_errors": {"matmul": 3e-4}}
"""Errors against float64: tiny for strict fp32, visible for TF32."""


def measurement(
    a_case: Case,
    step_s: float,
    spread: float = 0.002,
    *,
    launches: int = 3,
    seed: int = 0,
    telemetry: bool = True,
    **changes,
) -> Measurement:
    rng = random.Random(f"{a_case.label}{seed}")
    steps = max(1, math.ceil(0.5 / step_s))
    rows = []
    for index in range(launches):
        level = step_s * (1 + rng.gauss(0, spread / 2))
        rounds = tuple(
            Round(steps=steps, wall_s=steps * level * (1 + rng.gauss(0, spread)), loss=2.3 / (i + 1))
            for i in range(20)
        )
        warmup = tuple(Round(steps=steps, wall_s=steps * level * (1.05 - 0.002 * i)) for i in range(20))
        rows.append(
            Launch(
                index=index,
                rounds=rounds,
                warmup=warmup,
                peak_memory_bytes=int(9.2e9),
                gpu_busy=min(1.0, 0.26 if a_case.execution is Execution.EAGER and step_s < 5e-3 else 0.985),
                switches=_switches(a_case.precision),
                **(PROOFS if a_case.precision is Precision.FP32 else {}),
                telemetry=_telemetry(rng) if telemetry else (),
                telemetry_source="nvml" if telemetry else None,
                energy_j=650.0 * sum(r.wall_s for r in rounds) if telemetry else None,
                loss_curve=tuple(
                    2.3 * 0.97**i + (0.002 if a_case.precision.is_amp else 0.0) for i in range(30)
                ),
                energy_source="counter" if telemetry else None,
                energy_region_s=sum(r.wall_s for r in rounds) if telemetry else None,
            )
        )
    peak = {Precision.FP32: 66.9e12, Precision.TF32: 494.5e12}.get(a_case.precision, 989e12)
    fields = {
        "flops_per_sample": FLOPS.get(a_case.workload),
        "peak_flops_per_s": peak,
        "loss_trace": (2.3, 1.2, 0.8),
    }
    return Measurement(case=a_case, status=Status.OK, launches=tuple(rows), **(fields | changes))


def _switches(precision: Precision) -> Switches:
    on = precision is not Precision.FP32
    word = "tf32" if on else "ieee"
    return Switches(
        cudnn_allow_tf32=on,
        matmul_allow_tf32=on,
        conv_fp32_precision=word,
        rnn_fp32_precision=word,
        matmul_fp32_precision=word,
    )


def _telemetry(rng: random.Random) -> tuple[TelemetrySample, ...]:
    return tuple(
        TelemetrySample(
            t_s=i / 10,
            sm_clock_hz=1.98e9 if i < 70 else 1.89e9,
            memory_clock_hz=3.201e9,
            power_w=640 + rng.gauss(0, 12),
            temperature_c=61 - 20 * math.exp(-i / 12),
            utilization=1.0,
            memory_used_bytes=int(9.4e9),
            clock_event_reasons=() if i < 70 else ("SwPowerCap",),
        )
        for i in range(100)
    )


def h200_run(slower: float = 1.0, **changes) -> Run:
    rows = []
    for (workload, batch, precision), times in H200_STEPS_MS.items():
        for execution, ms in zip((Execution.EAGER, Execution.GRAPH), times, strict=True):
            host_bound = ms < 5 and execution is Execution.EAGER
            findings = (
                (Finding(kind=FindingKind.HOST_BOUND, value=round(times[0] / times[1], 2), limit=1.1),)
                if host_bound
                else ()
            )
            rows.append(
                measurement(
                    case(workload, batch, precision, execution),
                    slower * ms / 1e3,
                    0.05 if host_bound else 0.002,
                    findings=findings,
                )
            )
    rows.append(
        Measurement(
            case=case("vgg16", 4096),
            status=Status.OUT_OF_MEMORY,
            reason="CUDA out of memory at batch 4096; try a batch of 2048 or smaller",
        )
    )
    fields = {
        "run_id": "20261120T093000Z-a1b2c3", "started_at": "2026-11-20T09:30:00Z", "finished_at": "2026-11-20T09:41:12Z", "budget": "default",
        "seed": 0, "device": h200(), "environment": environment(), "measurements": tuple(rows), "micro": micro(),
        "findings": (Finding(kind=FindingKind.UUID_ALL_ZEROS),),
    }  # fmt: skip
    return Run(**(fields | changes))


TEN_GPUS = {
    "NVIDIA H200": (H200, 1.0),
    "NVIDIA H100 80GB HBM3": ("nvidia-h100-sxm-80gb", 1.07),
    "NVIDIA A100-SXM4-80GB": ("nvidia-a100-sxm-80gb", 2.1),
    "NVIDIA L40S": ("nvidia-l40s-48gb", 2.7),
    "NVIDIA GeForce RTX 4090": ("nvidia-geforce-rtx-4090-24gb", 2.4),
    "NVIDIA RTX A6000": ("nvidia-rtx-a6000-48gb", 4.1),
    "NVIDIA GeForce RTX 3090": ("nvidia-geforce-rtx-3090-24gb", 4.5),
    "NVIDIA A10": ("nvidia-a10-24gb", 6.2),
    "NVIDIA L4": ("nvidia-l4-24gb", 8.0),
    "Tesla T4": ("nvidia-tesla-t4-16gb", 14.0),
}
"""Ten devices, the newest run first, each with its slowdown relative to the first."""


def ten_runs() -> tuple[Run, ...]:
    return tuple(
        h200_run(
            run_id=f"20261120T0{9 - i}3000Z-a1b2c{i}",
            started_at=f"2026-11-20T0{9 - i}:30:00Z",
            finished_at=f"2026-11-20T0{9 - i}:41:12Z",
            device=structs.replace(h200(), name=name, gpu_key=key, device_id=f"{i}" * 16),
            slower=slower,
        )
        for i, (name, (key, slower)) in enumerate(TEN_GPUS.items())
    )


def of_few_models(patch: pytest.MonkeyPatch) -> None:
    """Let the calculator answer for only a few models, since all of them take two seconds."""
    few = {name: load_profiles()[name] for name in FEW_MODELS}
    patch.setattr("gpubench.report.calculator.load_profiles", lambda: few)


def own_offers(path: Path, count: int) -> Path:
    """Write a price table with this many offers of the ten GPUs, each with its own price and day."""
    rng = random.Random(0)
    keys = [key for key, _ in TEN_GPUS.values()]
    rows = ["provider,instance,gpu_key,gpu_count,vcpus,ram_gib,region,on_demand_usd_per_h,price_date"]
    rows += [
        f"provider {i % 40},type-{i},{keys[i % 10]},{2 ** (i % 4)},{8 * (1 + i % 9)},{32 * (1 + i % 11)},"
        f"region-{i % 17},{rng.uniform(0.4, 1.6) * 2 ** (i % 4) * (12 - i % 10) / 4:.3f},2026-11-{1 + i % 18:02}"
        for i in range(count)
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def micro() -> tuple[MicroResult, ...]:
    rows = [
        ("gemm", "fp32", "4096", 51.4e12, "FLOP/s"), ("gemm", "fp32", "8192", 51.3e12, "FLOP/s"), ("gemm", "tf32", "8192", 348.5e12, "FLOP/s"),
        ("gemm", "fp16", "4096", 683.7e12, "FLOP/s"), ("gemm", "bf16", "4096", 722.7e12, "FLOP/s"), ("gemm", "bf16", "8192", 680.9e12, "FLOP/s"),
        ("device copy", None, "2048 MiB", 4267e9, "B/s"), ("host to device pinned", None, "256 MiB", 55.5e9, "B/s"),
        ("host to device pageable", None, "256 MiB", 22.1e9, "B/s"), ("launch wall", None, "1000", 5.7e-6, "s"),
    ]  # fmt: skip
    return tuple(
        MicroResult(name=n, precision=p, size=s, value=v, low=v * 0.995, high=v * 1.005, unit=u, n=40)
        for n, p, s, v, u in rows
    )


def cpu_run(**changes) -> Run:
    fields = {
        "run_id": "20261119T101500Z-0f0f0f", "started_at": "2026-11-19T10:15:00Z", "finished_at": "2026-11-19T10:17:20Z", "budget": "quick", "seed": 0,
        "device": cpu(), "environment": environment(cuda=None, cudnn=None, driver=None, cudnn_benchmark=None, cpu_count=2, cpu_threads=2),
        "measurements": (
            measurement(case("cnn", 64, Precision.FP32, Execution.EAGER, memory_format=None), 0.0141, 0.02, launches=1, telemetry=False, peak_flops_per_s=None),
            measurement(case("cnn", 64, Precision.AMP_BF16, Execution.EAGER, memory_format=None), 0.0192, 0.03, launches=1, telemetry=False, peak_flops_per_s=None),
            measurement(case("lstm", 64, Precision.FP32, Execution.EAGER), 0.0205, 0.02, launches=1, telemetry=False, peak_flops_per_s=None),
            measurement(case("vgg16", 1, Precision.FP32, Execution.EAGER, memory_format=None), 1.31, 0.02, launches=1, telemetry=False, peak_flops_per_s=None,
                        findings=(Finding(kind=FindingKind.NOT_CONVERGED, value=0.031, limit=0.02),)),
        ),
    }  # fmt: skip
    return Run(**(fields | changes))


def offer(
    gpu_key: str,
    price: str,
    provider="lambda",
    instance="gpu_1x",
    *,
    count=1,
    price_date="2026-10-04",
    **changes,
) -> Offer:
    fields = {
        "provider": provider, "instance": instance, "region": "us-east", "gpu_key": gpu_key, "gpu_count": count, "vcpus": 16.0, "ram_bytes": 64 * 2**30,
        "price_usd_per_hour": Decimal(price), "pricing": Pricing.ON_DEMAND, "kind": "vm", "price_date": price_date, "source": "price page of the provider",
    }  # fmt: skip
    return Offer(**(fields | changes))


def ranked(
    rank: int, an_offer: Offer, samples_per_s: float, width: float = 1.3, basis="predicted", **changes
) -> Row:
    price = float(an_offer.price_usd_per_hour)
    low, high = samples_per_s / width, samples_per_s * width
    estimate = Estimate(
        case=case(),
        gpu_key=an_offer.gpu_key,
        samples_per_s=samples_per_s / an_offer.gpu_count,
        low=low / an_offer.gpu_count,
        high=high / an_offer.gpu_count,
        basis=basis,
        method="roofline per operator, as a ratio from the H200 here"
        if basis == "predicted"
        else "this user's run",
        anchored=True if basis == "predicted" else None,
        evidence=("20261120T093000Z-a1b2c3",),
        fits_memory=True,
    )
    per_usd = 3600 / price
    fields = {
        "rank": rank, "offer": an_offer, "estimate": estimate, "usd_per_hour": Interval(price, price, price), "samples_per_s": Interval(samples_per_s, low, high), "gpus_samples_per_s": samples_per_s,
        "samples_per_usd": Interval(samples_per_s * per_usd, low * per_usd, high * per_usd), "scaling_efficiency": 1.0 if an_offer.gpu_count == 1 else 0.85,
        "scaling_basis": "one GPU" if an_offer.gpu_count == 1 else "modeled", "p_best": 0.42 / rank, "pareto": rank < 3,
        "price_age_days": (TODAY - date.fromisoformat(an_offer.price_date)).days if len(an_offer.price_date) == 10 else 323,
    }  # fmt: skip
    return Row(**(fields | changes))


# key, provider, instance, count, USD/h, images/s of the whole instance, basis, width, date
_OFFERS = (
    ("nvidia-geforce-rtx-4090-24gb", "vast", "rtx4090", 1, "0.34", 1180, "predicted", 1.34, "2026-11-02"),
    (
        "nvidia-geforce-rtx-5090-32gb",
        "runpod",
        "rtx-5090-community",
        1,
        "0.69",
        2050,
        "predicted",
        1.38,
        "2026-11-02",
    ),
    ("nvidia-h200-sxm-141gb", "vast", "h200", 1, "2.20", 3259, "measured", 1.004, "2026-11-02"),
    ("nvidia-geforce-rtx-3090-24gb", "vast", "rtx3090", 1, "0.16", 546, "predicted", 1.31, "2026-11-02"),
    ("nvidia-h100-sxm-80gb", "lambda", "gpu_1x_h100_sxm5", 1, "3.99", 2880, "predicted", 1.17, "2026-10-04"),
    ("nvidia-h100-sxm-80gb", "aws", "p5.48xlarge", 8, "55.04", 19600, "predicted", 1.31, "2026"),
    ("nvidia-h100-pcie-80gb", "lambda", "gpu_1x_h100_pcie", 1, "2.49", 2020, "predicted", 1.2, "2026-10-04"),
    ("nvidia-a100-sxm-80gb", "runpod", "a100-sxm", 1, "1.49", 1390, "reference", 1.01, "2026-11-02"),
    ("nvidia-a100-pcie-80gb", "runpod", "a100-pcie", 1, "1.19", 1240, "predicted", 1.25, "2026-11-02"),
    ("nvidia-l40s-48gb", "runpod", "l40s", 1, "0.86", 1010, "predicted", 1.34, "2026-11-02"),
    ("nvidia-rtx-6000-ada-48gb", "runpod", "rtx-6000-ada", 1, "0.77", 1040, "predicted", 1.34, "2026-11-02"),
    ("nvidia-l4-24gb", "gcp", "g2-standard-4", 1, "0.71", 330, "predicted", 1.32, "2026-08"),
    ("nvidia-tesla-t4-16gb", "aws", "g4dn.xlarge", 1, "0.526", 178, "predicted", 1.45, "2026"),
    ("nvidia-tesla-v100-sxm2-16gb", "aws", "p3.2xlarge", 1, "3.06", 560, "predicted", 1.3, "2026"),
    ("nvidia-a10g-24gb", "aws", "g5.xlarge", 1, "1.006", 470, "predicted", 1.33, "2026"),
    ("nvidia-b200-sxm-180gb", "lambda", "gpu_1x_b200", 1, "6.69", 5600, "predicted", 1.5, "2026-10-04"),
)


def choice(row: Row) -> Choice:
    """Return a row as a choice without further facts."""
    is_a_host = row.offer.kind == "marketplace"
    return Choice(row=row, condition=PriceCondition.SINGLE_HOST if is_a_host else PriceCondition.LIST)


def ranking(**changes) -> Ranking:
    raw = [
        (offer(key, usd, p, i, count=n, price_date=d), float(s), b, w)
        for key, p, i, n, usd, s, b, w, d in _OFFERS
    ]
    raw.sort(key=lambda x: -x[1] / float(x[0].price_usd_per_hour))
    rows = [ranked(max(1, i - 2), o, s, w, b, tie=i < 4) for i, (o, s, b, w) in enumerate(raw, start=1)]
    fields = {
        "as_of": "2026-11-20", "objective": "samples_per_usd", "cases": (case(),), "unit": "images", "throughput_unit": "images/s", "value_unit": "images per dollar", "reference_gpu_key": None, "rows": tuple(rows),
        "excluded": (
            ExcludedOffer(provider="aws", instance="g7.xlarge", gpu_key="nvidia-unknown", reason="no compute rates in the specification table", rule="no reliable throughput estimate"),
            ExcludedOffer(provider="gcp", instance="a4", gpu_key="nvidia-b200-sxm-180gb", reason="spot price only", rule="--spot"),
        ),
        "sentences": (
            Sentence(kind="answer", text="The RTX 4090 on vast gives the most VGG16 training for a dollar, in a tie with the RTX 3090 and the RTX 5090."),
            Sentence(kind="answer", text="The H200 measured here is 2.3× as dear an image, and 2.8× as fast."),
            Sentence(kind="note", text="Predictions start from the H200 measured here."),
        ),
        "job": None,
    }  # fmt: skip
    told = fields | changes
    first = choice(told["rows"][0] if told["rows"] else rows[0])
    answers = {name: Answer(choice=first) for name in ("cheapest", "sensible", "fastest")}
    return Ranking(**({"answers": answers, "by_gpu": (first,)} | told))


def buy_or_rent(**changes) -> BuyOrRent:
    fields = {
        "gpu_key": "nvidia-geforce-rtx-4090-24gb", "gpu_count": 1, "instance": "3 years at 50 %", "purchase_usd": 1900.0, "power_w": 450.0,
        "condition": PriceCondition.USED, "host_usd": 0.0, "price_date": "2026-08-01", "years": 3.0, "utilization": 0.5, "usd_per_hour": 0.169, "usd_per_hour_low": 0.085, "usd_per_hour_high": 0.403,
        "against": "1x RTX 3090 at vast RTX 3090", "against_pricing": Pricing.ON_DEMAND, "equivalent_usd_per_hour": 0.168, "break_even_hours": 13267.0,
        "break_even_hours_low": 4019.0, "break_even_hours_high": None, "break_even_utilization": 0.505, "break_even_utilization_low": 0.153,
        "break_even_utilization_high": None, "verdict": "depends", "assumed": ("utilization", "power_w"),
    }  # fmt: skip
    return BuyOrRent(**(fields | changes))


def report_data(*runs: Run, **changes) -> ReportData:
    fields = {"today": TODAY, "runs": runs, "ranking": ranking(), "buy_or_rent": (buy_or_rent(),)}
    return ReportData(**(fields | changes))


HOSTILE = "</script><script>alert(1)</script><img src=http://x.test/a onerror=alert(2)><a href='javascript:alert(3)'>y</a>\x1b[31m\x00"


def hostile_data() -> ReportData:
    """Return data with markup, escapes and control characters in every field that comes from outside."""
    text = HOSTILE
    names = ("name", "gpu_key", "architecture", "driver_version", "virtualization")
    device = DeviceProfile(backend="cuda", unavailable={text: text}, **dict.fromkeys(names, text))
    names = ("gpubench", "python", "os", "cpu", "torch", "cuda", "cudnn", "driver", "container", "git_commit")
    env = Environment(variables={text: text}, **dict.fromkeys(names, text))
    a_case = case(text, sample_unit=text)
    rows = (
        measurement(a_case, 0.02, findings=(Finding(kind=FindingKind.NOISY, value=text, limit=text),)),
        measurement(case(text, sample_unit=text, precision=Precision.FP32), 0.05),
        Measurement(case=case(f"{text}2"), status=Status.FAILED, reason=text),
    )
    names = ("run_id", "started_at", "finished_at", "budget", "protocol")
    run = Run(
        seed=0,
        device=device,
        environment=env,
        measurements=rows,
        notes=(text,),
        **dict.fromkeys(names, text),
    )
    names = ("provider", "instance", "region", "source", "note", "kind")
    bad_offer = offer(H200, "2.20", price_date=f"2026{text}", **dict.fromkeys(names, text))
    offers = [
        ranked(1, bad_offer, 3000.0, price_age_days=3),
        ranked(2, offer(text, "1.00", provider="=HYPERLINK(1)", price_date="2026-11-01"), 1000.0),
    ]
    estimates = [
        ranked(row.rank, row.offer, row.samples_per_s.value, price_age_days=3, scaling_basis=text)
        for row in offers
    ]
    names = ("unit", "throughput_unit", "value_unit", "reference_gpu_key", "as_of", "objective")
    bad = ranking(
        rows=tuple(estimates),
        sentences=(Sentence(kind="answer", text=text), Sentence(kind="note", text=text)),
        excluded=(ExcludedOffer(provider=text, instance=text, gpu_key=text, reason=text, rule=text),),
        **dict.fromkeys(names, text),
    )
    owned = buy_or_rent(gpu_key=text, instance=text, against=text)
    return ReportData(today=TODAY, runs=(run,), ranking=bad, problems=(text,), buy_or_rent=(owned,))
