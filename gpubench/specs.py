"""Reads data/gpus.csv, the table of GPU datasheets, and resolves GPU names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any

import msgspec

from gpubench import names
from gpubench.errors import MisuseError
from gpubench.folders import data_table
from gpubench.groups import K, grouped
from gpubench.models import GpuSpec
from gpubench.names import MEMORY_TOLERANCE
from gpubench.options import unknown_name
from gpubench.units import GIB, listing, plain

NO_GPU_NEAR = ("none; `gpubench list --gpus` shows all",)
"""What a message lists if no name is similar."""


@cache
def load_specs() -> Mapping[str, GpuSpec]:
    """Return every GPU of the specification table by key, in table order.

    Raises:
        MisuseError: If a cell of the table does not parse; the message names its line and column.
    """
    specs = {spec.key: spec for spec in data_table("gpus.csv", GpuSpec)}
    return {key: _slowest(spec, [specs[k] for k in spec.variants]) for key, spec in specs.items()}


def find_spec(
    name: str, memory_bytes: int | None = None, power_limit_w: float | None = None
) -> GpuSpec | None:
    """Return the row for a device or catalog name; None if unknown or ambiguous.

    Args:
        name: A key, a marketing name, or any alias.
        memory_bytes: Memory reported by the device, to distinguish cards with the same name [B].
        power_limit_w: Default power limit, to distinguish cards that also have the same memory [W].
    """
    key = _resolve(name, memory_bytes, "driver", power_limit_w)
    if key is None and memory_bytes is not None:  # a GH200's name may state the size of its CPU memory
        key = _resolve(names.without_size(name), memory_bytes, "driver", power_limit_w)
    return load_specs()[key] if key else None


def _resolve(
    name: str, memory_bytes: int | None, with_memory: str, power_limit_w: float | None = None
) -> str | None:
    # Return the only key with this name, or else with spaces for its hyphens: H100-NVL. If no single card has
    # the name and the memory is known, names of the kind ``with_memory`` are tried too: see ``_names_by``.
    for spelling in dict.fromkeys((name, name.replace("-", " "))):
        keys = _named(spelling, "card", memory_bytes)
        if len(keys) != 1 and memory_bytes is not None:
            keys = _named(spelling, with_memory, memory_bytes)
            if len(keys) > 1:
                keys = tuple(key for key in keys if _has_limit(load_specs()[key], power_limit_w))
        if len(keys) == 1:
            return keys[0]
    return None


def _named(name: str, kind: str, memory_bytes: int | None = None) -> tuple[str, ...]:
    # Return the keys with a name of this kind, restricted to cards with the reported memory, if given.
    keys = _index(kind).get(names.squeeze(name), ())
    sizes = {key: load_specs()[key].memory_bytes for key in keys}
    return tuple(
        key
        for key, size in sizes.items()
        if memory_bytes is None or size is None or abs(memory_bytes - size) <= MEMORY_TOLERANCE * size
    )


# A card's default power limit differs from its datasheet by at most this share.
_POWER_TOLERANCE = 0.15


def _has_limit(spec: GpuSpec, power_limit_w: float | None) -> bool:
    return bool(
        power_limit_w and spec.tdp_w and abs(power_limit_w - spec.tdp_w) <= _POWER_TOLERANCE * spec.tdp_w
    )


_FAMILIES = ("RTX", "GTX")


def _find_typed(name: str) -> GpuSpec | None:
    """Return the row for a name typed by a user; a GeForce number suffices, as in "1080 ti"."""
    spec = find_spec(name)
    if spec is not None or not name[:1].isdigit():
        return spec
    of_families = filter(None, (find_spec(f"{family} {name}") for family in _FAMILIES))
    known = {each.key: each for each in of_families}
    return next(iter(known.values())) if len(known) == 1 else None


def _in_every_size(name: str) -> tuple[str, ...]:
    # Return the key of a typed name, and the keys of cards that differ only in memory size (RTX 4060 Ti).
    spec = _find_typed(name)
    others = (_named(spelling, "shared") for spelling in (name, *(f"{each} {name}" for each in _FAMILIES)))
    return (spec.key, *chain.from_iterable(others)) if spec else ()


# Maximum number of candidate cards to name; the others are counted.
_MOST_MEANT = 8


def require_spec(name: str) -> GpuSpec:
    """Return the row for a name typed by a user, or raise with its possible meanings or similar names.

    The name may be one of the card's names, or words that only this card's key contains, in any case and with
    any separators.

    Raises:
        MisuseError: If no single GPU of the table has this name.
    """
    spec = _find_typed(name)
    if spec is None:
        meant = _meanings(name)
        if not meant and not name.strip().isdigit():  # a number alone occurs in the names of many cards
            meant = _cards_of(known_keys(name))
            if len(meant) == 1:
                return load_specs()[meant[0]]
        if meant:
            cards = listing(meant, most=_MOST_MEANT)
            raise MisuseError(f"ambiguous GPU {plain(name, 80)!r}; it can be any of {cards}: name one")
        raise unknown_gpu(name)
    return spec


def unknown_gpu(name: str, others: Sequence[str] = ()) -> MisuseError:
    """Return the error for an unknown GPU name, with similar known names.

    Args:
        name: As typed by the user.
        others: Similar names of GPUs that are not in the table.
    """
    stated, gpu = names.counted(name)
    if stated is not None and known_keys(gpu):
        return MisuseError(f"{plain(name, 80)!r} is {stated} GPUs: give the name of one, {plain(gpu, 80)!r}")
    if {"laptop", "mobile", "notebook"}.isdisjoint(names.normalize(name).replace("-", " ").split()):
        near = names.nearest(name, architectures(), cutoff=0.75)  # lower would match short card names
        return unknown_name("GPU", name, near or nearest_keys(name) or others or NO_GPU_NEAR)
    known = sorted(spec.short_name for key, spec in load_specs().items() if "laptop" in key)
    return MisuseError(
        f"there is no figure for {plain(name, 80)!r}: each laptop's maker sets the power, and thus speed, of "
        f"its GPU; gpubench run measures it there, and then rank --have knows it. Laptop GPUs with a figure: "
        f"{listing(known)}"
    )


def usual_spec(name: str) -> GpuSpec:
    """Return the row for a typed name; a name without a form factor means the SXM module.

    If that module has two memory sizes, the name means the larger.

    Raises:
        MisuseError: As in ``require_spec``, if there is no unique module.
    """
    return _find_typed(name) or _usual_form(name) or require_spec(name)


def meaning_taken(name: str) -> str | None:
    """Explain how ``usual_spec`` interpreted a name of several cards; None for other names.

    >>> meaning_taken("H100")
    'H100 is read as nvidia-h100-sxm-80gb; it can also be nvidia-h100-nvl-94gb and nvidia-h100-pcie-80gb'
    """
    taken = _find_typed(name) or _usual_form(name)
    others = [key for key in _in_every_size(name) or _meanings(name) if taken and key != taken.key]
    if taken is None or not others:
        return None
    return f"{plain(name, 80)} is read as {taken.key}; it can also be {listing(others)}"


def _usual_form(name: str) -> GpuSpec | None:
    modules = [key for key in _cards_of(_named(name, "open")) if {"sxm", "sxm2"} & {*key.split("-")}]
    return max((load_specs()[key] for key in modules), key=lambda each: each.memory_bytes or 0, default=None)


def _meanings(name: str) -> tuple[str, ...]:
    # Return every card with this name.
    return _cards_of(key for kind in ("card", "shared", "open") for key in _named(name, kind))


def nearest_keys(name: str) -> tuple[str, ...]:
    """Return the keys with the most similar names or aliases."""
    index = {**_index("open"), **_index("shared"), **_index("card")}
    return _cards_of(key for alias in names.nearest(names.squeeze(name), index) for key in index[alias])


def _cards_of(keys: Iterable[str]) -> tuple[str, ...]:
    # Return the distinct cards that the rows represent, in order.
    return tuple(dict.fromkeys(card for key in keys for card in load_specs()[key].variants or (key,)))


@lru_cache(maxsize=4096)
def offered_gpu_key(name: str, memory_gib: float | None = None) -> str | None:
    """Return the key for a GPU name in a price list; None if unknown or ambiguous.

    A name without a form factor ("H100", 80 GB) has its own row with the values of the slowest variant. If no
    name matches exactly, its words may be in any order, and a size among them is the memory: "H100 (80 GB)
    SXM".

    Args:
        name: The GPU name in the price list.
        memory_gib: Memory of one GPU in the price list, in GiB or in GB of 10^9 bytes.
    """
    memory_bytes = None if memory_gib is None else round(memory_gib * GIB)
    key = _resolve(name, memory_bytes, "shared")
    meant = (key,) if key else _named(name, "open", memory_bytes)
    meant = meant if len(meant) == 1 else offered_keys(name, memory_gib)
    return meant[0] if len(meant) == 1 else None


@lru_cache(maxsize=4096)
def offered_keys(name: str, memory_gib: float | None = None) -> tuple[str, ...]:
    """Return every row that the words of a name can mean; arguments as in ``offered_gpu_key``.

    >>> offered_keys("H100 (80GB) SXM"), len(offered_keys("A100"))
    (('nvidia-h100-sxm-80gb',), 2)
    """
    parsed = names.loose_words(name)
    if parsed is None:
        return ()
    words, size_gib = parsed
    index = _words_index()
    keys = index.get(words) or index.get(words | {"rtx"}) or index.get(words - names.MEMORY_KINDS, ())
    numbers = [word for word in words if word.isdigit() and len(word) < 4]
    if not keys and size_gib is None and len(numbers) == 1:  # "A100 SXM 80": a size without a unit
        keys, size_gib = index.get(words - {*numbers}, ()), float(numbers[0])
    sizes = [size * GIB for size in (size_gib, memory_gib) if size is not None]

    def has_sizes(key: str) -> bool:
        own = load_specs()[key].memory_bytes
        return own is None or all(abs(size - own) <= MEMORY_TOLERANCE * own for size in sizes)

    found = list(filter(has_sizes, keys))
    # A row with variants stands for them.
    variants = {variant for key in found for variant in load_specs()[key].variants}
    return tuple(key for key in found if key not in variants)


@cache
def _words_index() -> Mapping[frozenset[str], tuple[str, ...]]:
    # Return the rows by the words of their names, without sizes and insignificant words.
    parsed = ((names.loose_words(name), key) for name, key in chain(_names_by("card"), _names_by("open")))
    return _distinct((words[0], key) for words, key in parsed if words is not None)


def _distinct(pairs: Iterable[tuple[K, str]]) -> dict[K, tuple[str, ...]]:
    return {name: tuple(dict.fromkeys(keys)) for name, keys in grouped(pairs).items()}


@cache
def keys_of_name(name: str) -> tuple[str, ...]:
    """Return every card that a name in a price list can mean, with any memory size.

    >>> keys_of_name("A100 SXM4")
    ('nvidia-a100-sxm-40gb', 'nvidia-a100-sxm-80gb')
    """
    sizes = {spec.memory_bytes for spec in load_specs().values() if spec.memory_bytes is not None}
    found = {offered_gpu_key(name), *(offered_gpu_key(name, size / GIB) for size in sizes)}
    return tuple(sorted(key for key in found if key is not None))


def matching_keys(name: str) -> tuple[str, ...]:
    """Return every key that a name can mean: the exact match, else all keys or names with its words.

    >>> matching_keys("h100 sxm"), len(matching_keys("H100"))
    (('nvidia-h100-sxm-80gb',), 6)

    Raises:
        MisuseError: If there is none; the message has similar known names.
    """
    return known_keys(name) or (require_spec(name).key,)


@cache
def architectures() -> tuple[str, ...]:
    """Return the architectures of the table, each once."""
    return tuple(dict.fromkeys(spec.architecture for spec in load_specs().values() if spec.architecture))


def known_keys(name: str) -> tuple[str, ...]:
    """Return every key that a name can mean, as ``matching_keys`` does, or nothing."""
    words = {*names.sized(name).replace("-", " ").split()}
    with_words = (key for key, spec in load_specs().items() if words and words <= _words_of(spec))
    return _named(name, "printed") or _in_every_size(name) or tuple(with_words)


def _words_of(spec: GpuSpec) -> set[str]:
    family = names.normalize(f"{spec.line or ''} {spec.architecture or ''}")
    return {*spec.key.split("-"), *family.split()}


@cache
def _index(kind: str) -> Mapping[str, tuple[str, ...]]:
    return _distinct((names.squeeze(name), key) for name, key in _names_by(kind))


def _names_by(kind: str) -> Iterator[tuple[str, str]]:
    # Yield names of one kind with the keys of their rows. ``card`` names come from drivers, frameworks and
    # most price lists; ``open`` names leave the form factor open. Several cards have the same ``shared`` name
    # in price lists, so it needs the memory too: an H100 with 94 GB is the NVL card. So does a ``driver``
    # name: an "NVIDIA H100" with 94 GB is a module. ``printed`` names are for display.
    for key, spec in load_specs().items():
        printed = (key, spec.name, spec.short_name)
        own = "open" if spec.variants else "card"
        by_kind = {own: (*printed, *spec.aliases), "shared": spec.shared_names, "driver": spec.driver_names}
        yield from ((name, key) for name in (by_kind | {"printed": printed}).get(kind, ()))


_LOWEST = (
    "sm_count",
    "cuda_core_count",
    "tensor_core_count",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "l2_bytes",
    "fp32_flops_per_s",
    "fp16_vector_flops_per_s",
    "tf32_tensor_flops_per_s",
    "fp16_tensor_flops_per_s",
    "bf16_tensor_flops_per_s",
    "fp8_tensor_flops_per_s",
    "fp64_flops_per_s",
    "int8_ops_per_s",
    "pcie_generation",
)
_COMMON = ("line", "architecture", "compute_capability", "release_year", "memory_type", "ecc")


def _slowest(spec: GpuSpec, variants: Sequence[GpuSpec]) -> GpuSpec:
    """Fill in a row that stands for several cards: the lowest of each figure, and the highest known TDP.

    A figure is unknown if it is unknown for any of the cards. A fact such as the architecture is unknown
    unless all of them share it.
    """
    if not variants:
        return spec

    def values(field: str) -> list[Any]:
        return [getattr(variant, field) for variant in variants]

    lowest = {field: None if None in values(field) else min(values(field)) for field in _LOWEST}
    common = {field: values(field)[0] if len({*values(field)}) == 1 else None for field in _COMMON}
    powers = [power for power in values("tdp_w") if power is not None]
    return msgspec.structs.replace(spec, **lowest, **common, tdp_w=max(powers, default=None))
