"""Which part of the world a region is in, however its provider spells it: westeurope, us-central1, FI."""

from __future__ import annotations

import re
from functools import cache

_EUROPE = """
    europe eu uk france germany sweden norway switzerland poland italy spain finland netherlands belgium
    ireland denmark austria portugal greece romania czech estonia iceland bulgaria hungary latvia lithuania
    slovenia slovakia
    amsterdam stockholm frankfurt paris london warsaw oslo zurich milan madrid helsinki gra waw sbg rbx
    al at be bg ch cz de dk ee es fi fr gb gr hr hu ie is it lt lu lv md mt nl no pl pt ro rs se si sk ua
"""
_UNITED_STATES = """
    us usa eastus westus centralus northcentralus southcentralus westcentralus
    ny virginia ohio oregon california texas utah iowa arizona nevada chicago dallas houston seattle
"""
_ASIA = """
    asia ap apac eastasia southeastasia japan japaneast japanwest korea koreacentral koreasouth
    india centralindia southindia westindia jioindiawest jioindiacentral
    singapore taiwan indonesia malaysia malaysiawest hongkong tokyo osaka seoul mumbai hyderabad
    cn hk id in jp kr my ph sg th tw vn
"""
_WORLD = {
    "eu": frozenset(_EUROPE.split()),
    "us": frozenset(_UNITED_STATES.split()),
    "asia": frozenset(_ASIA.split()),
}
_NAMES = {"eu": "eu", "europe": "eu", "us": "us", "usa": "us", "asia": "asia"}
_OCEANIA = re.compile(r"ap-southeast-[246]|ap-(sydney|melbourne)-\d")
"""Amazon and Oracle file Australia and New Zealand under Asia Pacific."""

_AZURE = re.compile(
    r"(?:north|south|east|west|central)+(europe|asia|us)"
    r"|(?:uk|france|germany|sweden|norway|switzerland|poland|italy|spain|austria|belgium|denmark)"
    r"(?:north|south|east|west|central)+"
)
"""Azure writes its regions in one word; the countries are those of Europe."""


def is_in(region: str, wanted: str) -> bool:
    """Return whether a region is the one asked for: by its beginning, or by its part of the world.

    ``wanted`` is in lower case; ``eu`` and ``europe`` are the continent, ``us`` and ``asia`` as they say.

    >>> [is_in(region, "eu") for region in ("westeurope", "eu-north-1", "FI", "eastus", "uksouth")]
    [True, True, True, False, True]
    >>> is_in("us-central1", "us"), is_in("ap-southeast-2", "asia"), is_in("us-east-1", "us-east")
    (True, False, True)
    """
    place = region.casefold()
    world = _NAMES.get(wanted)
    return place.startswith(wanted) if world is None else world_of(place) == world


@cache
def world_of(place: str) -> str | None:
    """Return eu, us or asia, where a region in lower case tells; else None."""
    if _OCEANIA.fullmatch(place):
        return None
    azure = _AZURE.fullmatch(re.sub(r"\d+$", "", place))
    words = [azure[1] or "europe"] if azure else re.sub(r"\d+", " ", place).replace("-", " ").split()
    # The first word that tells counts: us-east-1 before any city or code behind it.
    for word in (each.strip("(),.") for each in words):
        for world, known in _WORLD.items():
            if word in known:
                return world
    return None
