"""The part of the world and the country of a region."""

from __future__ import annotations

import pytest

from gpubench.offers.listing import is_in, world_of
from gpubench.offers.snapshot import embedded_offers

PLACES = {
    "eu": (
        "westeurope", "northeurope", "francecentral", "swedencentral", "germanywestcentral", "eu-west-1", "eu-west-3",
        "eu-central-1", "europe-west4", "europe-west4-a", "europe-west12", "eu-amsterdam-1", "GRA", "FI", "EU-RO-1",
        "Europe (DE)",
    ),
    "europe": (
        "uksouth", "ukwest", "norwayeast", "switzerlandnorth", "eu-west-2", "eu-west-2a", "eu-central-2",
        "europe-west2", "europe-west2-a", "europe-west6", "uk-london-1", "eu-zurich-1", "EU-NO-1", "EU-IS-1", "GB",
        "CH", "NO", "oslo-norway-3", "Europe",
    ),
    "us": ("eastus", "eastus2", "westus3", "southcentralus", "us-east-1", "us-central1", "us-west4-b", "US", "US-TX-3"),
    "asia": (
        "eastasia", "southeastasia", "japaneast", "koreacentral", "centralindia", "ap-northeast-1", "ap-southeast-1",
        "asia-east1", "asia-south1", "JP", "tokyo-japan-2",
    ),
    None: (
        "australiaeast", "ap-southeast-2", "canadacentral", "ca-central-1", "brazilsouth", "sa-east-1", "uaenorth",
        "me-west1", "southafricanorth", "northamerica-northeast1", "RU", "any", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("world", "place"), [(w, place) for w, places in PLACES.items() for place in places])
def test_a_region_is_in_its_part_of_the_world_and_in_no_other(world, place):
    assert world_of(place.casefold()) == world
    assert [name for name in ("eu", "us", "asia") if is_in(place, name)] == (
        [world] if world in {"eu", "us", "asia"} else []
    )
    assert is_in(place, "europe") == (world in {"eu", "europe"})


def test_unknown_region_filter_is_a_prefix_match():
    assert is_in("us-east-1", "us-east")
    assert not is_in("eastus", "us-east")
    assert is_in("europe-west1", "europe-w")
    assert not is_in("northeurope", "europe-w")


@pytest.mark.parametrize(
    ("country", "place"),
    [
        ("france", "EU-FR-1"), ("sweden", "EU-SE-1"), ("nl", "EU-NL-1"), ("japan", "AP-JP-1"),
        ("singapore", "SEA-SG-1"), ("australia", "OC-AU-1"), ("iceland", "EUR-IS-1"), ("germany", "eu-de"),
        ("france", "francesouth"), ("germany", "germanynorth"), ("india", "southindia"), ("india", "jioindiawest"),
        ("australia", "australiasoutheast"), ("korea", "koreasouth"), ("brazil", "brazilsoutheast"),
    ],
)  # fmt: skip
def test_country_is_found_in_names_of_any_cloud(country, place):
    assert is_in(place, country)


@pytest.mark.parametrize(("country", "place"), [("ca", "US-CA-2"), ("de", "US-DE-1"), ("india", "Indiana, US"),
    ("in", "US-IN-1"), ("se", "southeastasia"), ("fr", "africa-south1"), ("no", "northeurope")])  # fmt: skip
def test_code_of_a_state_or_part_of_a_word_is_no_country(country, place):
    assert not is_in(place, country)


def test_shipped_regions_are_placed_except_those_elsewhere():
    unplaced = {
        o.region for o in embedded_offers().offers if o.region and world_of(o.region.casefold()) is None
    }
    elsewhere = {"AU", "BHS", "CA", "CANADA-1", "RU", "me-west1", "north-america"}
    assert unplaced == elsewhere | {"sa-east-1", "brazilsouth"}
