"""The factors that buyers compare GPUs by: one flat record of each GPU, and the filters on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from gpubench.models import GpuSpec, Offer
from gpubench.names import nearest, normalize
from gpubench.options import unknown_choice, unknown_name
from gpubench.recommend.request import RankRequest
from gpubench.specs import load_specs
from gpubench.units import GIB, format_number

Reason = Callable[[Offer, GpuSpec | None], str | None]
_GIGA = 1e9

FAST_FP64 = 0.25
"""Share of the FP32 rate from which FP64 counts as fast: data-center parts have 1/2, GeForce 1/64."""

LINES = {
    "geforce": ("GeForce", "TITAN"),
    "rtx": ("RTX professional", "Quadro"),
    "quadro": ("RTX professional", "Quadro"),
    "professional": ("RTX professional", "Quadro"),
    "tesla": ("Tesla", "Data Center"),
    "data center": ("Tesla", "Data Center"),
    "data centre": ("Tesla", "Data Center"),
    "datacenter": ("Tesla", "Data Center"),
    "jetson": ("Jetson",),
    "radeon": ("Radeon",),
    "instinct": ("Instinct",),
}
"""What buyers call a product line, and the lines of the table that it means."""

_MODULES = ("SXM", "OAM", "superchip", "system on chip", "module")
_PASSIVE_LINES = frozenset({"Tesla", "Data Center", "Instinct"})


def lines_meant(word: str) -> tuple[str, ...]:
    """Return the lines of the table that a word means, itself where it is one of them."""
    return LINES.get(normalize(word), (word,))


def ecc_of(spec: GpuSpec) -> bool | None:
    """Return whether the memory corrects errors; stacked memory (HBM) always does."""
    if spec.ecc is not None:
        return spec.ecc
    return True if (spec.memory_type or "").startswith("HBM") else None


def fp64_share(spec: GpuSpec) -> float | None:
    """Return the FP64 rate as a share of the FP32 rate."""
    if spec.fp64_flops_per_s is None or not spec.fp32_flops_per_s:
        return None
    return spec.fp64_flops_per_s / spec.fp32_flops_per_s


def has_fast_fp64(spec: GpuSpec) -> bool:
    """Return whether FP64 counts as fast; where it is not known it does not."""
    return (fp64_share(spec) or 0) >= FAST_FP64


def link_of(spec: GpuSpec) -> str | None:
    """Return the fastest link to other GPUs and the host: nvlink, pcie5, pcie4 ..."""
    return spec.link or (None if spec.pcie_generation is None else f"pcie{spec.pcie_generation}")


def cooling_of(spec: GpuSpec) -> str | None:
    """Return active (a fan), passive (the server's air), liquid or module; else what the line usually has."""
    if spec.cooling is not None:
        return spec.cooling
    if spec.form_factor is None:
        return None
    if spec.form_factor.startswith(_MODULES):
        return "module"
    return "passive" if spec.line in _PASSIVE_LINES or "server" in spec.key else "active"


_FACTORS: Mapping[str, Callable[[GpuSpec], Any]] = {
    "memory_bytes": attrgetter("memory_bytes"),
    "memory_type": attrgetter("memory_type"),
    "memory_bandwidth_bytes_per_s": attrgetter("memory_bandwidth_bytes_per_s"),
    "core_count": attrgetter("cuda_core_count"),
    "tensor_core_count": attrgetter("tensor_core_count"),
    "architecture": attrgetter("architecture"),
    "line": attrgetter("line"),
    "ecc": ecc_of,
    "fp64_share": fp64_share,
    "link": link_of,
    "cooling": cooling_of,
    "board_power_w": attrgetter("board_power_w"),
}


def factors_of(spec: GpuSpec | None) -> dict[str, Any]:
    """Return a GPU's factors as they stand beside its row; unknown is None."""
    return {name: None if spec is None else of(spec) for name, of in _FACTORS.items()}


def factor_filters(request: RankRequest) -> Iterator[tuple[str, Reason]]:
    """Yield the option and the test of each factor that the request restricts.

    What is not known of a GPU fails a filter on it, and the reason says so.

    Raises:
        MisuseError: If a line, architecture or memory type is named that the table does not know.
    """
    for name, field, bound, scale, unit in (
        ("--min-memory-gib", "memory_bytes", request.min_memory_gib, GIB, "GiB of memory"),
        (
            "the setting min-bandwidth-gbps",
            "memory_bandwidth_bytes_per_s",
            request.min_bandwidth_gbps,
            _GIGA,
            "GB/s",
        ),
        ("the setting min-cores", "cuda_core_count", request.min_cores, 1, "cores"),
        ("the setting min-tensor-cores", "tensor_core_count", request.min_tensor_cores, 1, "tensor cores"),
    ):
        if bound is not None:
            yield name, _at_least(field, bound, scale, unit)
    if request.max_watts is not None:
        yield "the setting max-watts", _at_most_watts(request.max_watts)
    if request.lines:
        wanted = [line for word in request.lines for line in lines_meant(word)]
        yield "the setting line", _one_of("line", wanted, LINES)
    if request.architectures:
        yield "the setting architecture", _one_of("architecture", request.architectures, ())
    if request.memory_type is not None:
        yield "the setting memory-type", _memory_type(request.memory_type)
    for name, is_wanted, holds, otherwise in (
        ("the setting ecc", request.ecc, ecc_of, "no memory that corrects errors, or not known"),
        ("the setting fp64", request.fp64, has_fast_fp64, "no fast FP64, or not known"),
        (
            "the setting nvlink",
            request.nvlink,
            attrgetter("is_linked"),
            "no NVLink, or only with a bridge that is sold apart",
        ),
    ):
        if is_wanted:
            yield name, _must(holds, otherwise)
    if request.cooling is not None:
        cooling = request.cooling
        yield (
            "the setting cooling",
            _must(lambda spec: cooling_of(spec) == cooling, f"its cooling is not {cooling}"),
        )


def _at_least(field: str, bound: float, scale: float, unit: str) -> Reason:
    def reason(_: Offer, spec: GpuSpec | None) -> str | None:
        value = None if spec is None else getattr(spec, field)
        if value is None:
            return f"its {unit} are not known" if unit.endswith("s") else f"its {unit} is not known"
        return None if value >= bound * scale else f"{format_number(value / scale)} {unit}, under {bound:g}"

    return reason


def _at_most_watts(most: float) -> Reason:
    def reason(_: Offer, spec: GpuSpec | None) -> str | None:
        power_w = None if spec is None else spec.board_power_w
        if power_w is None:
            return "its power is not known"
        return None if power_w <= most else f"{power_w:g} W for one GPU, above {most:g} W"

    return reason


def _one_of(field: str, wanted: Sequence[str], more: Iterable[str]) -> Reason:
    known = sorted({value for spec in load_specs().values() if (value := getattr(spec, field))})
    chosen = {normalize(name) for name in wanted}
    for name in sorted(chosen - {normalize(value) for value in known}):
        raise unknown_name(field, name, nearest(name, [*known, *more]) or known)

    def reason(_: Offer, spec: GpuSpec | None) -> str | None:
        value = None if spec is None else getattr(spec, field)
        if value is None:
            return f"its {field} is not known"
        return None if normalize(value) in chosen else f"{field} {value}"

    return reason


def _memory_type(wanted: str) -> Reason:
    known = sorted({spec.memory_type for spec in load_specs().values() if spec.memory_type})
    start = wanted.casefold()
    if not any(name.casefold().startswith(start) for name in known):
        raise unknown_choice("the setting memory-type", wanted, known)

    def reason(_: Offer, spec: GpuSpec | None) -> str | None:
        if spec is None or spec.memory_type is None:
            return "its memory type is not known"
        return None if spec.memory_type.casefold().startswith(start) else f"memory {spec.memory_type}"

    return reason


def _must(holds: Callable[[GpuSpec], bool | None], otherwise: str) -> Reason:
    def reason(_: Offer, spec: GpuSpec | None) -> str | None:
        return None if spec is not None and holds(spec) else otherwise

    return reason
