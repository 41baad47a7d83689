"""Filters on what a GPU is: memory, bandwidth, cores, line, architecture, ECC, FP64, cooling, power."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gpubench.errors import MisuseError
from gpubench.models import GpuSpec, Offer
from gpubench.names import nearest, normalize
from gpubench.recommend.factors import (
    FAST_FP64,
    LINES,
    cooling_of,
    ecc_of,
    fp64_share,
    has_nvlink,
    lines_meant,
)
from gpubench.recommend.request import RankRequest
from gpubench.specs import load_specs
from gpubench.units import GIB, format_number, plain

Reason = Callable[[Offer, GpuSpec | None], str | None]
_GIGA = 1e9


def factor_filters(request: RankRequest) -> Iterator[tuple[str, Reason]]:
    """Yield the option and the test of each factor that the request restricts.

    What is not known of a GPU fails a filter on it, and the reason says so.

    Raises:
        MisuseError: If a line, architecture or memory type is named that the table does not know.
    """
    yield from _figures(request)
    yield from _names(request)
    yield from _features(request)


def _figures(request: RankRequest) -> Iterator[tuple[str, Reason]]:
    for name, field, bound, scale, unit in (
        ("--min-memory-gib", "memory_bytes", request.min_memory_gib, GIB, "GiB of memory"),
        ("--min-bandwidth-gbps", "memory_bandwidth_bytes_per_s", request.min_bandwidth_gbps, _GIGA, "GB/s"),
        ("--min-cores", "cuda_core_count", request.min_cores, 1, "cores"),
        ("--min-tensor-cores", "tensor_core_count", request.min_tensor_cores, 1, "tensor cores"),
    ):
        if bound is not None:
            yield name, _at_least(field, bound, scale, unit)
    if request.max_watts is not None:
        yield "--max-watts", _at_most_watts(request.max_watts)


def _names(request: RankRequest) -> Iterator[tuple[str, Reason]]:
    if request.lines:
        wanted = [line for word in request.lines for line in lines_meant(word)]
        yield "--line", _one_of("line", wanted, LINES)
    if request.architectures:
        yield "--architecture", _one_of("architecture", request.architectures, ())
    if request.memory_type is not None:
        yield "--memory-type", _memory_type(request.memory_type)


def _features(request: RankRequest) -> Iterator[tuple[str, Reason]]:
    if request.ecc:
        yield "--ecc", _must(ecc_of, "no memory that corrects errors, or not known")
    if request.fp64:
        yield "--fp64", _must(lambda spec: (fp64_share(spec) or 0) >= FAST_FP64, "no fast FP64, or not known")
    if request.nvlink:
        yield "--nvlink", _must(has_nvlink, "no NVLink, or only with a bridge that is sold apart")
    if request.cooling is not None:
        cooling = request.cooling
        yield "--cooling", _must(lambda spec: cooling_of(spec) == cooling, f"its cooling is not {cooling}")


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
        near = ", ".join(nearest(name, [*known, *more])) or ", ".join(known)
        raise MisuseError(f"unknown {field} {plain(name)!r}; nearest known: {near}")

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
        raise MisuseError(f"unknown memory type {plain(wanted)!r}; known: {', '.join(known)}")

    def reason(_: Offer, spec: GpuSpec | None) -> str | None:
        if spec is None or spec.memory_type is None:
            return "its memory type is not known"
        return None if spec.memory_type.casefold().startswith(start) else f"memory {spec.memory_type}"

    return reason


def _must(holds: Callable[[GpuSpec], bool | None], otherwise: str) -> Reason:
    def reason(_: Offer, spec: GpuSpec | None) -> str | None:
        return None if spec is not None and holds(spec) else otherwise

    return reason
