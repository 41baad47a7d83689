"""The catalog: GPU specifications from datasheets, and dated offers."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import msgspec

from gpubench.models.record import Record
from gpubench.pricings import Pricing

Seller = Literal["cloud", "secure", "community"]
"""The kind of seller: a company with a list price, a vetted marketplace host, or any marketplace host."""


class GpuSpec(Record, frozen=True, kw_only=True):
    """A row of data/gpus.csv in SI units: dense rates with FP32 accumulation, for one die or device index.

    Attributes:
        tdp_w: Power limit of the GPU with its memory; None if only a module limit is published.
        module_tdp_w: Power limit of a module shared with a CPU, or one GPU's part of that limit.
        ecc: Whether the memory can correct errors; also True for boards with ECC off by default.
        cooling: active (a fan), passive (server airflow), liquid, or module.
        shared_names: Price-list names shared with other cards; they mean this card only if the memory
            matches.
        driver_names: Driver names shared with other cards; memory and power limit distinguish them.
        board_source: Source of clocks, lanes, FP64 and board data.
        variants: For a price-list name without a form factor, the keys of the cards that it can mean. The row
            has the values of the slowest one.
        not_ranked_because: Why an accelerator is listed for information only; None if it is ranked.
    """

    key: str
    name: str
    aliases: tuple[str, ...]
    vendor: str
    line: str | None
    architecture: str | None
    compute_capability: str | None
    release_year: int | None
    sm_count: int | None
    cuda_core_count: int | None
    tensor_core_count: int | None
    memory_bytes: int | None
    memory_type: str | None
    memory_bandwidth_bytes_per_s: float | None
    l2_bytes: int | None
    fp32_flops_per_s: float | None
    fp16_vector_flops_per_s: float | None
    tf32_tensor_flops_per_s: float | None
    fp16_tensor_flops_per_s: float | None
    bf16_tensor_flops_per_s: float | None
    fp8_tensor_flops_per_s: float | None
    int8_ops_per_s: float | None
    tdp_w: float | None
    form_factor: str | None
    pcie_generation: int | None
    nvlink_bytes_per_s: float | None
    launch_price_usd: Decimal | None
    price_source: str | None
    source: str
    doubt: str | None
    as_of: str | None = None
    module_tdp_w: float | None = None
    base_clock_hz: float | None = None
    boost_clock_hz: float | None = None
    pcie_lanes: int | None = None
    fp64_flops_per_s: float | None = None
    ecc: bool | None = None
    cooling: str | None = None
    slot_count: float | None = None
    power_connector: str | None = None
    shared_names: tuple[str, ...] = ()
    driver_names: tuple[str, ...] = ()
    board_source: str | None = None
    variants: tuple[str, ...] = ()
    not_ranked_because: str | None = None

    @property
    def short_name(self) -> str:
        """The name without maker and brand: "RTX 4090", "T4", "H100 SXM5 80GB"; unique in the table."""
        name = self.name.removeprefix("NVIDIA ").removeprefix("AMD ")
        return name.replace("Tesla ", "").replace("GeForce ", "")

    @property
    def is_nvidia(self) -> bool:
        """Whether the GPU runs CUDA, like ``DeviceProfile.is_nvidia`` for a probed GPU."""
        return self.vendor == "NVIDIA"

    @property
    def link(self) -> Literal["nvlink", "fabric"] | None:
        """The link between these GPUs other than PCIe (NVLink or Infinity Fabric); None if there is none."""
        if not self.nvlink_bytes_per_s:
            return None
        return "nvlink" if self.is_nvidia else "fabric"

    @property
    def is_linked(self) -> bool:
        """Whether all GPUs of this model have the link; a bridge for two PCIe cards is sold separately."""
        return self.link is not None and not (self.form_factor or "PCIe").startswith("PCIe")

    @property
    def board_power_w(self) -> float | None:
        """Power to supply and cool: the module limit if a CPU shares the module, else the GPU limit [W]."""
        return self.tdp_w if self.module_tdp_w is None else self.module_tdp_w


class Offer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One offer; the price is for the entire instance, excluding tax, in USD.

    ``kind`` is vm, marketplace, serverless, or one of ``offers.table.NOT_RANKED``, which are only listed.
    ``is_floor`` marks a minimum price in the source: "from", "starting at", or the lowest of several.
    ``price_date`` may be partial (``2026``, ``2026-08``); ``term_years`` is set only on reserved prices.
    ``in_stock`` is whether the instance was available on ``stock_date``; None if no source reports it.
    The price on a marketplace is the lowest listed price; ``ask_count`` is the number of listings, and
    ``ask_median_usd_per_hour`` their median price, if a source gives them. ``seller`` is None only for owned
    hardware. ``host_id`` and ``machine_id`` are the marketplace's, ``reliability`` is the host's uptime
    share, ``pcie_bytes_per_s`` is measured to one GPU, and ``disk_bytes`` is the maximum available.

    No field can refer back to the offer, so the garbage collector need not track 100,000 offers.
    """

    provider: str
    instance: str
    region: str | None
    gpu_key: str
    gpu_count: int
    vcpus: float | None
    ram_bytes: int | None
    price_usd_per_hour: Decimal
    pricing: Pricing
    kind: str
    price_date: str
    source: str
    note: str | None = None
    term_years: int | None = None
    retrieved_at: str | None = None
    in_stock: bool | None = None
    stock_date: str | None = None
    ask_count: int | None = None
    ask_median_usd_per_hour: Decimal | None = None
    seller: Seller | None = None
    is_floor: bool | None = None
    host_id: str | None = None
    machine_id: str | None = None
    reliability: float | None = None
    pcie_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None
    upload_bytes_per_s: float | None = None
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        """Set the seller if the source gives none: any host of a marketplace, or a cloud."""
        if self.seller is None and self.pricing is not Pricing.OWNED:
            usual: Seller = "community" if self.kind == "marketplace" else "cloud"
            msgspec.structs.force_setattr(self, "seller", usual)

    @property
    def usd_per_gpu_hour(self) -> float:
        """The price per GPU [USD/h]."""
        return float(self.price_usd_per_hour / self.gpu_count)
