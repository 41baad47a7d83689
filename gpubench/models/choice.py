"""One choice of a ranking as data: a row, and what else must be known before it is paid for."""

from __future__ import annotations

from typing import Literal

from gpubench.models.catalog import Offer
from gpubench.models.record import Record
from gpubench.models.row import Row
from gpubench.pricings import PriceCondition, Pricing

Source = Literal["cloud", "marketplace", "own"]
"""Who has the machine: a provider with regions and quotas, a single host of a marketplace, the buyer."""


class Job(Record, frozen=True, kw_only=True):
    """The work that hours and dollars are of.

    Attributes:
        words: "90 epochs of ImageNet", "24 h of one A100 SXM4 80GB".
        samples: How much, in ``unit``; of work given in hours of a reference GPU its likely figure.
        is_default: Whether nobody asked for it.
        startup_minutes: Paid before the first step on every rented machine.
    """

    words: str
    samples: float
    unit: str
    is_default: bool
    startup_minutes: float
    reference_gpu_key: str | None = None
    reference_hours: float | None = None


class Asks(Record, frozen=True, kw_only=True):
    """What the hosts of marketplaces ask for an hour of one such GPU, paid alike [USD].

    Attributes:
        low, high: Ends of what nine tenths of them lie within, by the spread of their logarithms.
        own_weight: How much the asks count against what the list prices of clouds suggest: 1 is alone.
    """

    median_usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    ask_count: int
    provider_count: int
    own_weight: float = 1.0


class Elsewhere(Record, frozen=True, kw_only=True):
    """The same GPU at another provider: its best offer there, with what to expect to pay."""

    offer: Offer
    usd_per_hour: float
    cost_usd: float | None = None


class Choice(Record, frozen=True, kw_only=True):
    """A row with what else must be known before it is paid for; unknown is None.

    Attributes:
        row: The offer instead; without a rank where it stands beside the ranking, as hardware to buy
            unless asked for.
        condition: What its price is: a list price, one host's, of new or used cards, or quoted by the buyer.
        purchase_usd: Of owned hardware: GPUs and the counted share of the host, ``host_usd``.
        assumed: Of owned hardware: what was not given.
        price_note: What speaks against the price, or stands beside it; of a card to buy where it was read.
        price_doubt: How far a price that no other provider confirms stands from theirs; None if it is
            believed.
        asks: Of a marketplace: what the others ask.
        regions: If this provider has this GPU in this number, the offer's own first.
        needs_quota: Whether a new account must ask for a quota first.
        p_best_of_gpu: Probability that the best is an offer of this GPU, anyone's; to rent and to own apart.
        feed_images_per_s: Photographs that must be decoded and augmented each second at work, of spot before
            any work is lost; None for other data.
        feed_vcpus: How many vCPUs that takes, at ``recommend.candidates.IMAGES_PER_VCPU_S``, assumed.
        also_at: The same GPU elsewhere, best first.
        host_unsaid: What nobody says of the host, with what the job takes of it: "RAM (23.2 GiB needed)".
    """

    row: Row
    condition: PriceCondition
    purchase_usd: float | None = None
    host_usd: float | None = None
    assumed: tuple[str, ...] = ()
    price_note: str | None = None
    price_doubt: str | None = None
    asks: Asks | None = None
    regions: tuple[str, ...] = ()
    needs_quota: bool | None = None
    p_best_of_gpu: float | None = None
    feed_images_per_s: float | None = None
    feed_vcpus: float | None = None
    also_at: tuple[Elsewhere, ...] = ()
    host_unsaid: tuple[str, ...] = ()

    @property
    def offer(self) -> Offer:
        """What is paid for."""
        return self.row.offer

    @property
    def source(self) -> Source:
        """Who has the machine."""
        if self.offer.pricing is Pricing.OWNED:
            return "own"
        return "marketplace" if self.offer.kind == "marketplace" else "cloud"

    @property
    def fed_share(self) -> float | None:
        """Photographs that its vCPUs prepare, as a share of what its GPUs take; None if not known."""
        vcpus = self.offer.vcpus
        return None if vcpus is None or not self.feed_vcpus else vcpus / self.feed_vcpus

    @property
    def can_feed(self) -> bool | None:
        """Whether its vCPUs prepare as many photographs as its GPUs take; None if that is unknown."""
        return None if self.fed_share is None else self.fed_share >= 1
