"""Normalizes GPU names from drivers, frameworks, clouds and price lists.

An unknown name is reported, never guessed. The form factor is part of the identity: an "H100" without one
could be any of three cards that differ by a third, so it resolves to nothing.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable

from gpubench.groups import grouped

MEMORY_TOLERANCE = 0.09
"""Tolerance for comparing memory sizes, as a share: a device reports 1 to 2 % less than its marketed memory,
and a GDDR6 card with ECC about 6 % less."""

_NOISE = re.compile(r"\((?:r|tm|c)\)|[®™]")
_BREAKS = re.compile(r"[\s_/]+")


def normalize(name: str) -> str:
    """Fold case, remove trademark signs, and turn white space, ``_`` and ``/`` into single spaces.

    >>> normalize("NVIDIA  GeForce(R) RTX_4090")
    'nvidia geforce rtx 4090'
    """
    return _BREAKS.sub(" ", _NOISE.sub("", name.casefold())).strip()


def sized(name: str) -> str:
    """Normalize a name, with the memory size in the format of keys.

    >>> sized("A100 80 GiB")
    'a100 80gb'
    """
    return re.sub(r"(\d) ?gi?b\b", r"\1gb", normalize(name))


def squeeze(name: str) -> str:
    """Normalize a name and remove its spaces: for price lists and drivers, ``RTX 4090`` is ``RTX4090``.

    A hyphen stays: Google's type ``nvidia-h100-80gb`` is the SXM card, but "NVIDIA H100 80GB" is any H100.

    >>> squeeze("GeForce RTX 4090"), squeeze("A100-SXM4-80GB")
    ('geforcertx4090', 'a100-sxm4-80gb')
    """
    return normalize(name).replace(" ", "")


def letters(name: str) -> str:
    """Fold case, and remove everything that people put between the letters and digits of a name.

    >>> letters("Bert-Base"), letters("Vast.ai")
    ('bertbase', 'vastai')
    """
    return _PUNCTUATION.sub("", name.casefold())


_PUNCTUATION = re.compile(r"[\W_]+")
# A number of GPUs before a name. The name may be a number of three or more digits: 2x 3090.
_COUNTED = re.compile(r"(\d{1,3}) ?[xX×] ?(\D.*|\d{3,}.*)")
# A number of GPUs after a name that ends in a digit or a space, so MX150 has none.
_COUNTED_AFTER = re.compile(r"(.*(?:\d| )) ?[xX×] ?(\d{1,3})")


@functools.lru_cache(maxsize=4096)
def counted(name: str) -> tuple[int | None, str]:
    """Split a name into the number of GPUs, if stated before or after it, and the rest.

    >>> counted("2x RTX 3090"), counted("8xH100"), counted("A100 x8"), counted("H100"), counted("MX150")
    ((2, 'RTX 3090'), (8, 'H100'), (8, 'A100'), (None, 'H100'), (None, 'MX150'))
    """
    if (found := _COUNTED.fullmatch(name.strip())) is not None:
        return int(found[1]), found[2]
    if (found := _COUNTED_AFTER.fullmatch(name.strip())) is not None:
        return int(found[2]), found[1].strip()
    return None, name


_SIZE = re.compile(r"(?<![a-z\d])(\d{1,4}(?:\.\d)?) ?(?:gb|gib|g)(?![a-z\d])")


def without_size(name: str) -> str:
    """Return a name without the memory size at its end.

    >>> without_size("NVIDIA GH200 120GB"), without_size("NVIDIA H100 80GB HBM3")
    ('nvidia gh200', 'nvidia h100 80gb hbm3')
    """
    return re.sub(r" \d{1,4} ?gi?b$", "", normalize(name))


_PART_OF_A_GPU = re.compile(r"\bmig\b|\d+g\.\d+gb")
_WORDS = re.compile(r"[a-z\d.]+")
_NUMBER_AND_SUFFIX = re.compile(r"(\d{4})(ti|super|s|d)")
# Words in the name of a GPU that do not identify it.
_INSIGNIFICANT = frozenset(
    ["nvidia", "amd", "tesla", "instinct", "geforce", "gpu", "card", "graphics", "tensor", "core"]
) | {"nvl72", "grace", "hopper", "superchip"}
MEMORY_KINDS = frozenset(["gddr5", "gddr5x", "gddr6", "gddr6x", "gddr7", "hbm2", "hbm2e", "hbm3", "hbm3e"])
"""Words that distinguish GPUs in only a few names, as in "H100 80GB HBM3"."""


def loose_words(name: str) -> tuple[frozenset[str], float | None] | None:
    """Return the words of a name that identify a GPU, in any order, and its memory size [GiB].

    None for a part of a GPU, or if no word is left.

    >>> sorted(loose_words("NVIDIA H100 80GB (SXM5)")[0]), loose_words("NVIDIA H100 80GB (SXM5)")[1]
    (['h100', 'sxm'], 80.0)
    >>> loose_words("A100-SXM4-40GB-MIG-1g.5gb") is None
    True
    """
    text = re.sub(r"[-(),:]", " ", normalize(name))
    if _PART_OF_A_GPU.search(text):
        return None
    size = _SIZE.search(text)
    words = set[str]()
    for word in _WORDS.findall(_SIZE.sub(" ", text)):
        if word.startswith("sxm") or word == "hgx":
            words.add("sxm")
        elif (parts := _NUMBER_AND_SUFFIX.fullmatch(word)) is not None:
            words.update(parts.groups())
        else:
            words.add(word)
    words -= _INSIGNIFICANT
    return (frozenset(words), float(size[1]) if size else None) if words else None


_TPU_SLICE = re.compile(r"(?:tpu-)?(v\d\w*)-(\d{1,4})", re.ASCII)
# Google counts slices of v5e and v6e in chips, and of the others in cores, two per chip.
_TPU_CHIPS_PER_UNIT = {"v2": 0.5, "v3": 0.5, "v4": 0.5, "v5p": 0.5, "v5e": 1.0, "v6e": 1.0}


@functools.lru_cache(maxsize=4096)
def tpu_slice(name: str) -> tuple[str, int] | None:
    """Return version and chips of a TPU slice from its name in a price list; None for other names.

    >>> tpu_slice("tpu-v5litepod-8"), tpu_slice("v3-8"), tpu_slice("A100-80GB")
    (('v5e', 8), ('v3', 4), None)
    """
    found = _TPU_SLICE.fullmatch(name.strip().lower())
    if found is None:
        return None
    version = "v5e" if found[1] == "v5litepod" else found[1]
    chips = int(found[2]) * _TPU_CHIPS_PER_UNIT.get(version, 0.0)
    return (version, round(chips)) if chips >= 1 else None


# Look-alike characters: RTX 4O90 has a letter O; 1, l and I look the same in many fonts.
_LOOK_ALIKE = str.maketrans("oil", "011")


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> tuple[str, ...]:
    """Return at most three known names that are similar to this one, for "did you mean ...?".

    Punctuation and look-alike characters are ignored; among names that differ only in these, the closest
    spelling is returned. A ``cutoff`` of 0 returns some names however dissimilar.

    >>> nearest("H-1OO", ["h100", "RTX 4090"])
    ('h100',)
    >>> nearest("qwen2.5-9b", ["qwen2-57b", "qwen2.5-7b"])
    ('qwen2.5-7b',)
    """
    by_look = grouped((_look(each), each) for each in known)
    near = difflib.get_close_matches(_look(name), by_look, n=3, cutoff=cutoff)

    def similarity(each: str) -> float:
        return difflib.SequenceMatcher(None, normalize(name), normalize(each)).ratio()

    return tuple(max(by_look[look], key=similarity) for look in near)


def _look(name: str) -> str:
    return letters(normalize(name)).translate(_LOOK_ALIKE)
