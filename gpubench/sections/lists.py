"""The lists of verbs, one line per item: workloads, GPUs, offers, published runs, stored runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpubench.blocks.parts import Paragraph, Part, Table, link, number, table, text
from gpubench.labels import gpu_name, pricing_words
from gpubench.models import Run
from gpubench.offers.dates import show_price_date
from gpubench.providers import price_page
from gpubench.units import UNKNOWN, format_bytes, format_si, format_usd, plain

if TYPE_CHECKING:
    from gpubench.models import GpuSpec, WorkloadProfile
    from gpubench.offers.listing import ListedOffer
    from gpubench.probe.probe import Unmeasured

BILLION = 1e9
_PLUG_IN = "an installed plug-in, profiled when it is used"


def workloads(found: Mapping[str, WorkloadProfile | None]) -> Table:
    """Return one line per workload; dashes if a plug-in's workload has no profile."""

    def known(tell: Callable[[WorkloadProfile], str]) -> Callable[[str], str]:
        return lambda name: UNKNOWN if (profile := found[name]) is None else tell(profile)

    return table(
        "",
        tuple(found),
        text("Workload", lambda name: name),
        text("What it is", lambda name: getattr(found[name], "summary", _PLUG_IN), optional=2),
        number("Parameters\ntrained", known(_parameters)),
        number("FLOP/sample\nforward", known(lambda p: _flops(p, p.forward_flops_per_sample))),
        number("FLOP/sample\ntrain", known(lambda p: _flops(p, p.train_flops_per_sample))),
        text("Batches", known(lambda p: ", ".join(map(str, p.batches)))),
        text(
            "sample", known(lambda p: f"{p.sample_unit} {' x '.join(map(str, p.sample_shape))}"), optional=1
        ),
    )


def has_counted_work(profile: WorkloadProfile) -> bool:
    """Whether its FLOPs measure its work; for an input pipeline they do not."""
    return profile.parameters > 0


def _parameters(profile: WorkloadProfile) -> str:
    if not profile.parameters:
        return "none"
    trained = profile.trainable_parameters
    if trained in {0, profile.parameters}:
        return _short(profile.parameters) if profile.parameters >= BILLION else f"{profile.parameters:,}"
    few = _short(trained) if profile.parameters >= BILLION else f"{trained:,}"
    return f"{few} of {_short(profile.parameters)}"


def _short(parameters: int) -> str:
    return f"{parameters / BILLION:.2f}B" if parameters >= BILLION else f"{parameters / 1e6:.1f}M"


def _flops(profile: WorkloadProfile, flops: float) -> str:
    return format_si(flops, "FLOP") if has_counted_work(profile) and flops else UNKNOWN


def specifications(specs: Sequence[GpuSpec]) -> Table:
    """Return one line per GPU of the specification table."""
    return table(
        "",
        specs,
        text("Key", lambda spec: spec.key),
        text("Name", lambda spec: spec.name, optional=4),
        text("Architecture", lambda spec: spec.architecture or UNKNOWN, optional=3),
        number("Memory", lambda spec: format_bytes(spec.memory_bytes)),
        number("Bandwidth", lambda spec: format_si(spec.memory_bandwidth_bytes_per_s, "B/s"), optional=2),
        number("FP32", lambda spec: format_si(spec.fp32_flops_per_s, "FLOP/s")),
        number("FP16 tensor", lambda spec: format_si(spec.fp16_tensor_flops_per_s, "FLOP/s"), optional=1),
    )


def unmeasured(processors: Sequence[Unmeasured]) -> Table:
    """Return one line per processor without timings."""
    return table(
        "",
        processors,
        text("Processor", lambda row: row.name),
        text("Why it is not measured", lambda row: row.reason),
        text("What is known", lambda row: row.known, optional=1),
        text("What probe lists", lambda row: row.listed_by or "nothing", optional=2),
    )


def listed(rows: Sequence[ListedOffer]) -> list[Part]:
    """Return one line per offer, and below the table why some offers never rank."""
    reasons = list(dict.fromkeys(row.not_ranked_because for row in rows if row.not_ranked_because))

    def provider(row: ListedOffer) -> str:
        mark = f" [{reasons.index(row.not_ranked_because) + 1}]" if row.not_ranked_because else ""
        return f"{row.offer.provider}{mark}"

    return [
        table(
            "",
            rows,
            text("GPU", lambda row: gpu_name(row.offer.gpu_key)),
            number("GPUs", lambda row: str(row.offer.gpu_count)),
            number("$/GPU-h", lambda row: _dollars(row.offer.usd_per_gpu_hour)),
            number("$/h", lambda row: _dollars(float(row.offer.price_usd_per_hour)), 4),
            text("Provider", provider),
            text("Instance", lambda row: plain(row.offer.instance, 36), 8),
            text("Region", lambda row: row.offer.region or UNKNOWN, 5),
            text("Pricing", lambda row: pricing_words(row.offer), 2),
            text("Kind", lambda row: row.offer.kind, 3),
            text("Price of", lambda row: show_price_date(row.offer.price_date), 4),
            text(
                "Age",
                lambda row: (
                    f"{row.price_age_days} days" + f", {row.freshness}" * (row.freshness != "current")
                ),
                optional=1,
            ),
            link("Link", lambda row: price_page(row.offer.provider, row.offer.source), 9),
            text("Stock", _stock, 6) if any(row.offer.in_stock is not None for row in rows) else None,
        ),
        *(
            Paragraph(text=f"[{number_}] not ranked: {reason}", tone="note")
            for number_, reason in enumerate(reasons, 1)
        ),
    ]


def _stock(row: ListedOffer) -> str:
    if row.offer.in_stock is None:
        return UNKNOWN
    return f"{'in stock' if row.offer.in_stock else 'not seen'} {row.offer.stock_date}"


def _dollars(price: float) -> str:
    return format_usd(price) if price else "free"


def stored(runs: Sequence[Run]) -> list[Part]:
    """Return one line per run, in the order given; nothing if there are none."""
    if not runs:
        return []
    return [
        table(
            "",
            runs,
            text("Run", lambda run: run.run_id),
            text("Started", lambda run: run.started_at, optional=2),
            text(
                "Device",
                lambda run: (
                    gpu_name(run.device.gpu_key) if run.device.gpu_key else run.device.name or UNKNOWN
                ),
            ),
            text("Budget", lambda run: run.budget, optional=1),
            text("Measured", _run_measured),
            text("Workloads", lambda run: " ".join(run.workload_names)),
        )
    ]


def _run_measured(run: Run) -> str:
    end = ", interrupted" if run.interrupted else "" if run.finished_at else ", unfinished"
    return f"{run.measured_count} of {run.case_count}{end}"
