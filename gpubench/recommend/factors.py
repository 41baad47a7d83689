"""Requirements for a GPU and its host: the properties by which buyers compare GPUs, and the needs of a job.

A property of the host (memory, disk, PCIe lanes) that no source states is reported as missing, never assumed.
vCPUs are judged by the images that they can prepare; too few of them slow a row down instead of excluding it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from gpubench.models import GpuSpec, Offer, TaskKind, WorkloadProfile
from gpubench.names import nearest, normalize
from gpubench.offers.table import LEAST_PCIE_BYTES_PER_S
from gpubench.options import unknown_choice, unknown_name
from gpubench.recommend.request import RankRequest
from gpubench.specs import load_specs
from gpubench.units import GIB, format_bytes, format_number

Reason = Callable[[Offer, GpuSpec | None], str | None]
"""Maps an offer and its GPU to the reason for dropping the offer; None keeps it."""

# FP64 is fast if its rate is at least this share of the FP32 rate: data-center GPUs have 1/2, GeForce 1/64.
_FAST_FP64 = 0.25

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
"""Common names for product lines, with the corresponding lines of the GPU table."""

_MODULES = ("SXM", "OAM", "superchip", "system on chip", "module")
_PASSIVE_LINES = frozenset({"Tesla", "Data Center", "Instinct"})


def lines_meant(word: str) -> tuple[str, ...]:
    """Return the product lines of the GPU table that a word means; a line's own name means that line."""
    return LINES.get(normalize(word), (word,))


def _ecc_of(spec: GpuSpec) -> bool | None:
    # Return whether the memory corrects errors; stacked memory (HBM) always does.
    if spec.ecc is not None:
        return spec.ecc
    return True if (spec.memory_type or "").startswith("HBM") else None


def fp64_share(spec: GpuSpec) -> float | None:
    """Return the FP64 rate as a share of the FP32 rate; None if either is unknown."""
    if spec.fp64_flops_per_s is None or not spec.fp32_flops_per_s:
        return None
    return spec.fp64_flops_per_s / spec.fp32_flops_per_s


def link_of(spec: GpuSpec) -> str | None:
    """Return the fastest link to other GPUs or the host: nvlink, pcie5, pcie4 ...; None if unknown.

    A bridge for two PCIe cards does not count, because it is sold separately.
    """
    pcie = None if spec.pcie_generation is None else f"pcie{spec.pcie_generation}"
    return spec.link if spec.is_linked else pcie


def cooling_of(spec: GpuSpec) -> str | None:
    """Return active (a fan), passive (server airflow), liquid or module; None if unknown.

    If the table does not state the cooling, it follows from the form factor, or else from the product line.
    """
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
    "ecc": _ecc_of,
    "fp64_share": fp64_share,
    "link": link_of,
    "cooling": cooling_of,
    "board_power_w": attrgetter("board_power_w"),
}


def factors_of(spec: GpuSpec | None) -> dict[str, Any]:
    """Return the properties of a GPU by name; an unknown property is None."""
    return {name: None if spec is None else of(spec) for name, of in _FACTORS.items()}


def factor_filters(request: RankRequest) -> Iterator[tuple[str, Reason]]:
    """Yield the option and the test for each property that the request restricts.

    An unknown value fails the test.

    Raises:
        MisuseError: If no GPU of the table has a requested line, architecture or memory type.
    """
    lines = _known("line", [line for word in request.lines for line in lines_meant(word)], LINES)
    architectures = _known("architecture", request.architectures, ())
    memory = _memory_type(request.memory_type)
    for name, field, bound, scale, unit in (
        ("--min-memory-gib", "memory_bytes", request.min_memory_gib, GIB, "GiB of memory"),
        ("the setting min-bandwidth-gbps", "memory_bandwidth_bytes_per_s", request.min_bandwidth_gbps,
         1e9, "GB/s"),
        ("the setting min-cores", "cuda_core_count", request.min_cores, 1, "cores"),
        ("the setting min-tensor-cores", "tensor_core_count", request.min_tensor_cores, 1, "tensor cores"),
    ):  # fmt: skip
        if bound is not None:
            yield name, _at_least(field, bound, scale, unit)
    most_w, cooling = request.max_watts or math.inf, request.cooling
    tests = (
        ("max-watts", request.max_watts is not None,
         _test(attrgetter("board_power_w"), lambda watts: watts <= most_w, "its power is not known",
               lambda watts: f"{watts:g} W for one GPU, above {most_w:g} W")),
        ("line", bool(lines),
         _test(attrgetter("line"), lambda line: normalize(line) in lines, "its line is not known",
               lambda line: f"line {line}")),
        ("architecture", bool(architectures),
         _test(attrgetter("architecture"), lambda name: normalize(name) in architectures,
               "its architecture is not known", lambda name: f"architecture {name}")),
        ("memory-type", bool(memory),
         _test(attrgetter("memory_type"), lambda name: name.casefold().startswith(memory),
               "its memory type is not known", lambda name: f"memory {name}")),
        ("ecc", request.ecc, _test(_ecc_of, bool, _NO_ECC)),
        ("fp64", request.fp64, _test(fp64_share, lambda share: share >= _FAST_FP64, _NO_FP64)),
        ("nvlink", request.nvlink, _test(attrgetter("is_linked"), bool, _NO_LINK)),
        ("cooling", cooling is not None,
         _test(cooling_of, lambda kind: kind == cooling, "its cooling is not known",
               lambda kind: f"its cooling is {kind}, not {cooling}")),
    )  # fmt: skip
    yield from ((f"the setting {name}", reason) for name, is_asked, reason in tests if is_asked)


_NO_ECC = "its memory has no ECC, or this is not known"
_NO_FP64 = "it has no fast FP64, or this is not known"
_NO_LINK = "it has no NVLink, or only with a bridge that is sold separately"


def _at_least(field: str, bound: float, scale: float, unit: str) -> Reason:
    return _test(
        attrgetter(field),
        lambda value: value >= bound * scale,
        f"its {unit} {'are' if unit.endswith('s') else 'is'} not known",
        lambda value: f"{format_number(value / scale)} {unit}, under {bound:g}",
    )


def _test(
    property_of: Callable[[GpuSpec], Any],
    passes: Callable[[Any], bool],
    unknown: str,
    failed: Callable[[Any], str] | None = None,
) -> Reason:
    # Return a test of a GPU's property; without ``failed``, a value that fails gets the text ``unknown`` too.
    def reason(_: Offer, spec: GpuSpec | None) -> str | None:
        value = None if spec is None else property_of(spec)
        if value is not None and passes(value):
            return None
        return unknown if value is None or failed is None else failed(value)

    return reason


def _known(field: str, wanted: Sequence[str], synonyms: Iterable[str]) -> frozenset[str]:
    # Return the wanted names normalized for comparison; a name that no GPU has is an error.
    known = sorted({value for spec in load_specs().values() if (value := getattr(spec, field))})
    chosen = frozenset(map(normalize, wanted))
    if unknown := sorted(chosen - set(map(normalize, known))):
        raise unknown_name(field, unknown[0], nearest(unknown[0], [*known, *synonyms]) or known)
    return chosen


def _memory_type(wanted: str | None) -> str:
    known = sorted({spec.memory_type for spec in load_specs().values() if spec.memory_type})
    start = (wanted or "").casefold()
    if wanted is not None and not (start and any(name.casefold().startswith(start) for name in known)):
        raise unknown_choice("the setting memory-type", wanted, known)
    return start


# --- the host -------------------------------------------------------------------------------------------

RAM_OVER_WEIGHTS = 1.2
"""RAM needed to read and check a weights file and copy it to the GPU, relative to the size of the file."""
RAM_BYTES_PER_GPU = 4 * GIB
"""Assumed RAM of one process with its CUDA context and data loaders."""
# Disk space for weights, relative to their size: one file to load and one to save.
_DISK_OVER_WEIGHTS = 2
# Assumed disk space of the system, torch and its libraries.
_SYSTEM_DISK_BYTES = 20 * GIB
# Language models with at least this many parameters are published in bfloat16 or float16.
_SIXTEEN_BITS_FROM = 1e9
# Mean file size of ILSVRC 2012: 138 GB of 1,281,167 training images.
_PHOTOGRAPH_FILE_BYTES = 110_000


class HostNeed(msgspec.Struct, frozen=True, kw_only=True):
    """The minimum that a job needs from its host; an unknown part adds nothing.

    Attributes:
        weights_bytes: Size of the largest weights file, in its usual type.
        disk_bytes: Size of the system, the weights and the photographs.
    """

    weights_bytes: float = 0.0
    disk_bytes: float = 0.0

    def ram_bytes(self, gpu_count: int) -> float:
        """Return the RAM that a host with this many GPUs needs [B]."""
        weights = self.weights_bytes
        return RAM_OVER_WEIGHTS * weights + RAM_BYTES_PER_GPU * gpu_count if weights else 0.0


NOTHING_ASKED = HostNeed()


def need_of(profiles: Iterable[WorkloadProfile], task: str, images: float) -> HostNeed:
    """Return the requirements of the most demanding workload.

    Args:
        profiles: The workloads. Weights of a large language model have 16 bits, others are float32.
        task: train or infer; only training reads a data set.
        images: Number of photographs in the data set; an unknown number counts as 0.
    """
    every = list(profiles)
    large = [p.tokens_per_sample is not None and p.parameters >= _SIXTEEN_BITS_FROM for p in every]
    weights = max(p.parameters * (2.0 if is_large else 4.0) for p, is_large in zip(every, large, strict=True))
    reads = task == TaskKind.TRAIN and any(each.takes_photographs for each in every)
    data = images * _PHOTOGRAPH_FILE_BYTES if reads else 0.0
    return HostNeed(
        weights_bytes=weights, disk_bytes=_SYSTEM_DISK_BYTES + _DISK_OVER_WEIGHTS * weights + data
    )


class Requirement(NamedTuple):
    """A requirement for a host.

    Attributes:
        option: Its name in the list of exclusions.
        fields: The fields of an offer that it depends on; the first one is compared with the minimum.
        least: Maps the job's need and the number of GPUs to the minimum.
        short: Text for a value below the minimum.
        unsaid: Text for an offer without that value.
    """

    option: str
    fields: tuple[str, ...]
    least: Callable[[HostNeed, int], float]
    short: str
    unsaid: str


REQUIREMENTS = (
    Requirement(
        "too little RAM in the host",
        ("ram_bytes", "gpu_count"),
        HostNeed.ram_bytes,
        "its {has} of RAM is below the {least} needed for loading",
        "RAM ({least} needed)",
    ),
    Requirement(
        "too small a disk in the host",
        ("disk_bytes",),
        lambda need, _: need.disk_bytes,
        "its disk of {has} is below the {least} that the system, weights and data need",
        "disk ({least} needed)",
    ),
    Requirement(
        "GPUs on a riser",
        ("pcie_bytes_per_s",),
        lambda _, __: LEAST_PCIE_BYTES_PER_S,
        "its GPUs get {gigabytes:.2g} GB/s over PCIe, as on a one-lane riser",
        "PCIe bandwidth",
    ),
)


def shortfall(requirement: Requirement, need: HostNeed, offer: Offer, _: GpuSpec | None = None) -> str | None:
    """Return why a host fails a requirement; None if it passes or the value is unknown."""
    has, least = getattr(offer, requirement.fields[0]), requirement.least(need, offer.gpu_count)
    if has is None or has >= least:
        return None
    return requirement.short.format(has=format_bytes(has), least=format_bytes(least), gigabytes=has / 1e9)


def unsaid(offer: Offer, need: HostNeed) -> Iterator[str]:
    """Yield what no source states about an offer's host, with the job's need; nothing if that is unknown."""
    yield from (
        requirement.unsaid.format(least=format_bytes(requirement.least(need, offer.gpu_count)))
        for requirement in REQUIREMENTS
        if need.weights_bytes and getattr(offer, requirement.fields[0]) is None
    )
