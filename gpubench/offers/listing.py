"""Lists the requested offers, marks outdated prices, and matches regions."""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache

import msgspec

from gpubench.models import Offer
from gpubench.names import counted, nearest
from gpubench.offers.dates import NOT_CURRENT_AFTER_DAYS, age_days, freshness, has_day
from gpubench.offers.outliers import ADMITTED_BY, AskedPrices
from gpubench.offers.request import OffersRequest
from gpubench.offers.table import NOT_RANKED, OfferKey, Offers, offer_key
from gpubench.options import unknown_name
from gpubench.providers import find_provider
from gpubench.specs import load_specs, matching_keys

ANY_REGION = "any"


class ListedOffer(msgspec.Struct, frozen=True, kw_only=True):
    """An offer with its derived fields as of one day."""

    offer: Offer
    price_age_days: int
    freshness: str
    not_ranked_because: str | None


def known_providers(wanted: Iterable[str], present: Iterable[str]) -> frozenset[str]:
    """Return the requested providers in lowercase.

    Raises:
        MisuseError: If a provider is unknown; the message names similar ones.
    """
    known = sorted({provider.casefold() for provider in present})
    found = {name: find_provider(name, known) for name in wanted}
    if unknown := sorted(name for name, provider in found.items() if provider is None):
        raise unknown_name("provider", unknown[0], nearest(unknown[0], known, cutoff=0.0))
    return frozenset(provider for provider in found.values() if provider)


def known_regions(
    wanted: Iterable[str], present: Iterable[str | None], others: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the requested regions in lowercase.

    A region is a prefix of one in ``present`` or ``others``, a country, or a part of the world.

    Raises:
        MisuseError: If nothing is in a region; the message names similar ones.
    """
    known = sorted({region.casefold() for region in present if region} | {*others})
    names = tuple(name.casefold() for name in wanted)
    for name in names:
        if not any(is_in(region, name) for region in known):
            raise unknown_name("region", name, nearest(name, known) or ("eu", "us", "asia"))
    return names


def list_offers(offers: Iterable[Offer], wanted: OffersRequest, today: date) -> tuple[ListedOffer, ...]:
    """Return the requested offers, cheapest GPU-hour first.

    Args:
        offers: Every known offer, because each price that is not the user's own is compared with the others.
        wanted: The request.
        today: The day as of which price ages are computed.

    Raises:
        MisuseError: If a GPU, provider or region is unknown.
    """
    every = Offers.of(offers)
    gpus = {(key, stated) for stated, gpu in map(counted, wanted.gpus) for key in matching_keys(gpu)}
    providers = known_providers(wanted.providers, every.provider.present)
    regions = known_regions(wanted.regions, every.region.present, [ANY_REGION])

    def passes(offer: Offer) -> bool:
        return (
            (not providers or offer.provider.casefold() in providers)
            and (not regions or any(is_in(offer.region or ANY_REGION, name) for name in regions))
            and (not wanted.sellers or offer.seller in wanted.sellers)
            and (not gpus or bool(gpus & {(offer.gpu_key, None), (offer.gpu_key, offer.gpu_count)}))
        )

    prices, old = every.cached(AskedPrices), outdated(every, today)
    doubted = prices.left_out(every)
    listed = [
        _listed(offer, today, prices.doubt(offer) if is_doubted else None, old.get(offer_key(offer)))
        for offer, is_doubted in zip(every, doubted.tolist(), strict=True)
        if passes(offer)
    ]
    return tuple(
        sorted(
            listed,
            key=lambda row: (row.offer.usd_per_gpu_hour or math.inf, row.offer.provider, row.offer.instance),
        )
    )


def outdated(offers: Offers, today: date) -> Mapping[OfferKey, str]:
    """Return why each superseded price does not rank; the user's own prices are never superseded.

    A price over 180 days old does not rank if there is a newer one for the same GPU and pricing. A price
    dated without a day does not rank if there is one dated with a day for the same GPU, pricing, provider,
    region and count.
    """
    rankable = [
        (offer, (offer.gpu_key, offer.pricing), (offer.provider, offer.region, offer.gpu_count))
        for offer in offers.where(~(offers.by_user | offers.is_owned))
        if offer.kind not in NOT_RANKED
    ]
    is_old = [age_days(offer.price_date, today) > NOT_CURRENT_AFTER_DAYS for offer, *_ in rankable]
    have_newer = {gpu for (_, gpu, _), old in zip(rankable, is_old, strict=True) if not old}
    reasons = dict.fromkeys(
        (
            offer_key(offer)
            for (offer, gpu, _), old in zip(rankable, is_old, strict=True)
            if old and gpu in have_newer
        ),
        f"its price is over {NOT_CURRENT_AFTER_DAYS} days old, and there are newer ones for this GPU",
    )
    dated = {  # an outdated price supersedes no other
        (gpu, place)
        for offer, gpu, place in rankable
        if has_day(offer.price_date) and offer_key(offer) not in reasons
    }
    for offer, gpu, place in rankable:
        if (gpu, place) in dated and not has_day(offer.price_date):
            reasons.setdefault(
                offer_key(offer), "its price has no day, unlike another price for this GPU there"
            )
    return reasons


def _listed(offer: Offer, today: date, doubt: str | None, old: str | None) -> ListedOffer:
    age, spec = age_days(offer.price_date, today), load_specs().get(offer.gpu_key)
    not_ranked_because = NOT_RANKED.get(offer.kind) or (spec.not_ranked_because if spec else None) or old
    if not_ranked_because is None and doubt is not None:
        not_ranked_because = f"{doubt}; {ADMITTED_BY} ranks it"
    return ListedOffer(
        offer=offer,
        price_age_days=age,
        freshness=freshness(age),
        not_ranked_because=not_ranked_because,
    )


# --- parts of the world ----------------------------------------------------------------------------------

# Words in the names of regions: parts of the world, countries and their codes, cities, clouds' own names.
_WORDS = {
    "eu": """
        eu france germany sweden poland italy spain finland netherlands belgium
        ireland denmark austria portugal greece romania czech estonia bulgaria hungary latvia
        lithuania slovenia slovakia
        amsterdam stockholm frankfurt paris warsaw milan madrid helsinki gra waw sbg rbx
        at be bg cz de dk ee es fi fr gr hr hu ie it lt lu lv mt nl pl pt ro se si sk
    """,
    "europe": "europe",
    "not eu": """
        uk norway switzerland iceland london oslo zurich
        al ba ch gb is md no rs ua
    """,
    "us": """
        us usa eastus westus centralus northcentralus southcentralus westcentralus
        ny virginia ohio oregon california texas utah iowa arizona nevada chicago dallas houston seattle
    """,
    "asia": """
        asia ap apac eastasia southeastasia japan japaneast japanwest korea koreacentral koreasouth
        india centralindia southindia westindia jioindiawest jioindiacentral
        singapore taiwan indonesia malaysia malaysiawest hongkong tokyo osaka seoul mumbai hyderabad
        cn hk id in jp kr my ph sg th tw vn
    """,
}
_WORLD_OF = {word: world for world, words in _WORDS.items() for word in words.split()}
_EUROPEAN = frozenset({"eu", "europe", "not eu"})
_NAMES = {"eu": {"eu"}, "europe": {"eu", "europe"}, "us": {"us"}, "usa": {"us"}, "asia": {"asia"}}
# London and Zurich at Google and Amazon; by their names, they could be in the European Union.
_OUTSIDE_THE_EU = re.compile(r"(europe-west[26]|eu-west-2|eu-central-2)(?!\d).*")
_GOOGLE_IN_EUROPE = re.compile(r"europe-[a-z]+\d.*")
# Australia and New Zealand, which Amazon and Oracle list under Asia Pacific.
_OCEANIA = re.compile(r"ap-southeast-[246]|ap-(sydney|melbourne)-\d")

# Azure's one-word regions: northeurope is Ireland, westeurope the Netherlands.
_AZURE = re.compile(
    r"(?:north|south|east|west|central)+(europe|asia|us)"
    r"|(uk|france|germany|sweden|norway|switzerland|poland|italy|spain|austria|belgium|denmark)"
    r"(?:north|south|east|west|central)+"
)


_DIRECTION = "(?:jio|north|south|east|west|central)*"
# Countries by name and code, with the names of cities and regions that clouds use for their sites there.
_COUNTRIES = {
    "austria at": "vienna",
    "australia au": "sydney melbourne ap-southeast-2 ap-southeast-4 australia-southeast1",
    "belgium be": "europe-west1",
    "brazil br": "saopaulo sa-east-1 southamerica-east1",
    "canada ca": "montreal toronto bhs ca-central-1 northamerica-northeast1",
    "finland fi": "helsinki europe-north1",
    "france fr": "paris gra gravelines rbx sbg eu-west-3 europe-west9",
    "germany de": "frankfurt berlin eu-central-1 europe-west3 europe-west10",
    "iceland is": "reykjavik",
    "india in": "mumbai hyderabad ap-south-1 asia-south1 asia-south2",
    "ireland ie": "dublin eu-west-1 northeurope",
    "israel il": "telaviv il-central-1 me-west1",
    "italy it": "milan eu-south-1 europe-west8 europe-west12",
    "japan jp": "tokyo osaka ap-northeast-1 ap-northeast-3 asia-northeast1 asia-northeast2",
    "korea kr": "seoul ap-northeast-2 asia-northeast3",
    "netherlands nl": "amsterdam europe-west4 westeurope",
    "norway no": "oslo",
    "poland pl": "warsaw waw europe-central2",
    "romania ro": "bucharest",
    "singapore sg": "ap-southeast-1 asia-southeast1 southeastasia",
    "spain es": "madrid eu-south-2 europe-southwest1",
    "sweden se": "stockholm eu-north-1 europe-north2",
    "switzerland ch": "zurich eu-central-2 europe-west6",
    "taiwan tw": "asia-east1",
    "uk gb": "london eu-west-2 europe-west2",
}


@cache
def _country(wanted: str) -> re.Pattern[str] | None:
    # Compiled when a region is requested, not at import. A country code counts only at the beginning or after
    # the code of a continent (RunPod: EU-FR-1). Azure joins a name to a direction: francesouth, southindia.
    for names, places in _COUNTRIES.items():
        name, code = names.split()
        if wanted in {name, code}:
            anywhere = "|".join([f"{_DIRECTION}{name}{_DIRECTION}", *places.split()])
            return re.compile(f"(?:(?<![a-z0-9])(?:{anywhere})|^(?:(?:eur?|ap|sea|oc)-)?{code})(?![a-z0-9])")
    return None


def is_in(region: str, wanted: str) -> bool:
    """Return whether a region matches a requested one, by prefix, country or part of the world.

    ``wanted`` is in lowercase: ``eu`` is the European Union, ``europe`` the continent; ``us``,
    ``asia``, and countries by name or code work too. A region known only as Europe is not in ``eu``.

    >>> [is_in(region, "eu") for region in ("westeurope", "eu-north-1", "FI", "eastus", "uksouth", "EU-NO-1")]
    [True, True, True, False, False, False]
    >>> is_in("uksouth", "europe"), is_in("europe-west2", "europe"), is_in("europe-west2", "eu")
    (True, True, False)
    >>> is_in("us-central1", "us"), is_in("ap-southeast-2", "asia"), is_in("us-east-1", "us-east")
    (True, False, True)
    >>> [is_in(region, "germany") for region in ("eu-central-1", "europe-west3", "DE", "eu-central-2")]
    [True, True, True, False]
    """
    place = region.casefold()
    if (country := _country(wanted)) is not None:
        return country.search(place) is not None
    world = _NAMES.get(wanted)
    return place.startswith(wanted) if world is None else world_of(place) in world


@cache
def world_of(place: str) -> str | None:
    """Return eu, europe (outside the EU, or not known to be in it), us or asia for a lowercase region.

    None if the region is elsewhere or unknown.
    """
    if _OCEANIA.fullmatch(place):
        return None
    if _GOOGLE_IN_EUROPE.fullmatch(place) or _OUTSIDE_THE_EU.fullmatch(place):
        return "europe" if _OUTSIDE_THE_EU.fullmatch(place) else "eu"
    azure = _AZURE.fullmatch(re.sub(r"\d+$", "", place))
    if azure:
        words = [azure[2] or azure[1].replace("europe", "eu")]
    else:
        words = re.sub(r"\d+", " ", place).replace("-", " ").split()
    worlds = [world for word in words if (world := _WORLD_OF.get(word.strip("(),.")))]
    if worlds and worlds[0] in _EUROPEAN:
        return "eu" if "eu" in worlds and "not eu" not in worlds else "europe"
    # The first known word decides, before any later city or code: us-east-1 is in the US.
    return worlds[0] if worlds else None
