"""The one reader of data/gpus.csv: what each GPU's datasheet says, in SI units."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.resources import files

from gpubench import names
from gpubench.errors import MisuseError
from gpubench.models import GpuSpec
from gpubench.units import GIB, MIB


@cache
def load_specs() -> Mapping[str, GpuSpec]:
    """Return every GPU of the specification table by key, in the table's order.

    Raises:
        ValueError: If a cell of the shipped table does not parse; the message names row and column.
    """
    text = files("gpubench").joinpath("data/gpus.csv").read_text(encoding="utf-8")
    return {row["key"]: _spec(row) for row in csv.DictReader(text.splitlines())}


def find_spec(name: str, memory_bytes: int | None = None) -> GpuSpec | None:
    """Return the row that a device or catalogue name belongs to; None where unknown or ambiguous.

    Args:
        name: A key, a marketing name, or any alias.
        memory_bytes: The memory that the device reported, to part cards that share a name [B].
    """
    specs = load_specs()
    key = names.resolve(name, _alias_index(), {k: s.memory_bytes for k, s in specs.items()}, memory_bytes)
    return specs[key] if key else None


def require_spec(name: str) -> GpuSpec:
    """Return the row of a name, or raise with the nearest known names.

    Raises:
        MisuseError: If no single GPU of the table has this name.
    """
    spec = find_spec(name)
    if spec is None:
        near = ", ".join(names.nearest(name, load_specs())) or "see `gpubench list --gpus`"
        raise MisuseError(f"unknown or ambiguous GPU {name!r}; nearest known: {near}")
    return spec


def offered_gpu_key(name: str) -> str | None:
    """Return the key of the GPU that a price list means; None where unknown or ambiguous."""
    spec = find_spec(name)
    return spec.key if spec else None


def matching_keys(name: str) -> tuple[str, ...]:
    """Return every key that a name can mean: the one it names, else all whose key or name holds its words.

    >>> matching_keys("h100 sxm"), len(matching_keys("H100"))
    (('nvidia-h100-sxm-80gb',), 3)

    Raises:
        MisuseError: If there is none; the message shows the nearest known names.
    """
    spec = find_spec(name)
    if spec is not None:
        return (spec.key,)
    words = names.normalise(name).replace("-", " ").split()
    keys = tuple(key for key in load_specs() if words and set(words) <= set(key.split("-")))
    if not keys:
        require_spec(name)
    return keys


@cache
def _alias_index() -> Mapping[str, tuple[str, ...]]:
    return names.index_aliases(
        (alias, key) for key, spec in load_specs().items() for alias in (key, spec.name, *spec.aliases)
    )


def _spec(row: Mapping[str, str]) -> GpuSpec:
    def number(column: str, scale: float = 1.0) -> float | None:
        text = row[column].strip()
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"data/gpus.csv, row {row['key']}, column {column}: {text!r} is no figure")
        return value * scale

    def whole(column: str, scale: float = 1.0) -> int | None:
        value = number(column, scale)
        return None if value is None else round(value)

    def money(column: str) -> Decimal | None:
        try:
            return Decimal(row[column]) if row[column].strip() else None
        except InvalidOperation:
            raise ValueError(
                f"data/gpus.csv, row {row['key']}, column {column}: {row[column]!r} is no sum"
            ) from None

    return GpuSpec(
        key=row["key"],
        name=row["name"],
        aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
        vendor=row["vendor"],
        line=row["line"] or None,
        architecture=row["architecture"] or None,
        compute_capability=row["compute_capability"] or None,
        release_year=whole("release_year"),
        sm_count=whole("sm_or_cu_count"),
        cuda_core_count=whole("cuda_cores"),
        tensor_core_count=whole("tensor_cores"),
        memory_bytes=whole("memory_gib", GIB),
        memory_type=row["memory_type"] or None,
        memory_bandwidth_bytes_per_s=number("memory_bandwidth_gbps", 1e9),
        l2_bytes=whole("l2_mib", MIB),
        fp32_flops_per_s=number("fp32_tflops", 1e12),
        fp16_vector_flops_per_s=number("fp16_nontensor_tflops", 1e12),
        tf32_tensor_flops_per_s=number("tf32_tensor_tflops_dense", 1e12),
        fp16_tensor_flops_per_s=number("fp16_tensor_tflops_dense", 1e12),
        bf16_tensor_flops_per_s=number("bf16_tensor_tflops_dense", 1e12),
        fp8_tensor_flops_per_s=number("fp8_tensor_tflops_dense", 1e12),
        int8_ops_per_s=number("int8_tops_dense", 1e12),
        tdp_w=number("tdp_w"),
        form_factor=row["form_factor"] or None,
        pcie_generation=whole("pcie_gen"),
        nvlink_bytes_per_s=number("nvlink_gbps", 1e9),
        launch_price_usd=money("launch_msrp_usd"),
        street_price_usd=money("current_street_usd"),
        price_source=row["price_source"] or None,
        source=row["source"],
        doubt=row["doubt"] or None,
        as_of=row["as_of"] or None,
    )
