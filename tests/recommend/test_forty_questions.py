"""Forty questions of buyers with their answers, on a small market with fixed prices.

Each row has the question, the arithmetic, which can be redone by hand from the tables below, and the answer.
Arithmetic is enough, because throughput has no interval here, and several GPUs always work on one job at 0.9
of their sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from gpubench.blocks.terminal import show
from gpubench.errors import MisuseError
from gpubench.models import Pricing, Ranking, Row
from gpubench.offers.listing import list_offers
from gpubench.offers.quotes import read_quotes
from gpubench.offers.refresh import refresh
from gpubench.offers.request import OffersRequest
from gpubench.offers.snapshot import load_offers
from gpubench.offers.sources import Complete, Quote
from gpubench.recommend.owning import break_even, hourly_range, must_work, payback
from gpubench.recommend.rank import check
from gpubench.recommend.request import RankRequest
from gpubench.sections.answer import screen

from . import builders, test_owning
from .builders import (
    A100,
    H100,
    L4,
    RTX5090,
    T4,
    TODAY,
    estimate,
    evidence_of,
    judge,
    log_normal,
    offer,
)
from .test_buying import cards, too_dear, used
from .test_owning import machine, rtx_3090, weigh

# --- the market ---------------------------------------------------------------------------------------------

RATES = {H100: 3000.0, A100: 1000.0, RTX5090: 900.0, L4: 400.0, T4: 200.0}
"""Samples/s of one GPU."""

SLOWER = {H100: 1200.0, A100: 500.0, RTX5090: 100.0, L4: 100.0, T4: 50.0}
"""Samples/s of one GPU in a second workload."""

MARKET = [
    offer(H100, 6.00, provider="aws", instance="p5.4xlarge", region="us-east-1"),
    offer(H100, 3.00, provider="lambda", instance="gpu_1x_h100"),
    offer(H100, 24.00, provider="oci", instance="BM.GPU.H100.8", region="eu-frankfurt-1", gpu_count=8),
    offer(A100, 2.50, provider="azure", instance="NC24", region="westeurope"),
    offer(A100, 1.50, provider="azure", instance="NC24", region="westeurope", pricing=Pricing.RESERVED, term_years=1),
    offer(A100, 16.00, provider="azure", instance="ND96", region="westeurope", gpu_count=8),
    offer(RTX5090, 0.45, provider="vast", instance="RTX 5090", kind="marketplace"),
    offer(RTX5090, 0.60, provider="runpod", instance="RTX 5090", kind="marketplace"),
    offer(L4, 0.70, provider="gcp", instance="g2", region="us-central1"),
    offer(L4, 0.80, provider="gcp", instance="g2", region="europe-west4"),
    offer(T4, 0.50, provider="aws", instance="g4dn", region="us-east-1"),
    offer(T4, 0.20, provider="aws", instance="g4dn", region="us-east-1", pricing=Pricing.SPOT),
]  # fmt: skip
"""Price of the instance [USD/h]."""

JOB = {"samples": 108e6}
"""30 h of 1,000 samples/s."""


def ask(**options: Any) -> Ranking:
    """Rank the market by samples per dollar, or for a job by its cost."""
    return builders.rank_of(MARKET, RATES, **options)


def ask_both(**options: Any) -> Ranking:
    """Rank the market by two workloads."""
    request = check(
        RankRequest(**{"draws": 50, "relative": True, "startup_minutes": 0, "host_lost": 0} | options)
    )
    names = request.workload_names
    answers = {
        name: {k: estimate(k, r) for k, r in rates.items()}
        for name, rates in zip(names, (RATES, SLOWER), strict=True)
    }
    return judge(request, MARKET, lambda keys: evidence_of(answers), today=TODAY, drawer=log_normal)


def best(**options: Any) -> Row:
    """Return the first row."""
    return ask(**options).rows[0]


def at(row: Row) -> str:
    """Return the provider and instance of a row."""
    return f"{row.offer.provider} {row.offer.instance}"


def value(**options: Any) -> tuple[str, float]:
    """Return the best place, and the work that a dollar buys there [millions of samples]."""
    row = best(**options)
    return at(row), row.samples_per_usd.value / 1e6


def job(**options: Any) -> tuple[str, float, float]:
    """Return the best place for a job, its hours and its dollars."""
    row = best(**JOB | options)
    return at(row), row.hours.value, row.cost_usd.value


def of(place: str, **options: Any) -> Row:
    """Return the row of one place."""
    return next(row for row in ask(**options).rows if at(row) == place)


class Question(NamedTuple):
    """A question, the arithmetic, the call that asks it, and the answer."""

    words: str
    sum: str
    ask: Callable[[], Any]
    answer: Any


WORTH = [
    Question("What gives most for a dollar?", "3600 x 900 / 0.45", value, ("vast RTX 5090", 7.2)),
    Question("And at a cloud, not at a single host?", "3600 x 3000 / 3.00",
             lambda: value(providers=("aws", "azure", "gcp", "lambda")), ("lambda gpu_1x_h100", 3.6)),
    Question("In Europe?", "8 x 3600 x 3000 / 24 = 3.6, before 1.8 (L4), 1.8 (8x A100), 1.44 (A100)",
             lambda: value(regions=("eu",)), ("oci BM.GPU.H100.8", 3.6)),
    Question("In Europe, one GPU?", "L4: 3600 x 400 / 0.80 = 1.8; A100: 3600 x 1000 / 2.50 = 1.44",
             lambda: value(regions=("eu",), count=1), ("gcp g2", 1.8)),
    Question("In the United States?", "L4: 3600 x 400 / 0.70 = 2.057; H100: 3600 x 3000 / 6 = 1.8",
             lambda: value(regions=("us",)), ("gcp g2", 2.0571)),
    Question("At Amazon, with spot?", "T4 spot: 3600 x 200 / 0.20 / 1.0407 = 3.46; H100: 1.8",
             lambda: value(providers=("aws",), spot=True), ("aws g4dn", 3.459)),
    Question("If a quarter of the work is done again?", "3600 x 200 / 1.25 / 0.20",
             lambda: value(providers=("aws",), spot=True, spot_lost=0.25), ("aws g4dn", 2.88)),
    Question("How much work may be lost before spot costs as much as on demand?", "0.50 / 0.20 - 1",
             lambda: best(providers=("aws",), spot=True).spot_break_even, 1.5),
    Question("With 40 GB or more?", "H100 at 3.6; the 32 GB of an RTX 5090 are too few",
             lambda: value(min_memory_gib=40), ("lambda gpu_1x_h100", 3.6)),
    Question("Under 100 W?", "L4 (72 W) 2.057 before T4 (70 W) 1.44",
             lambda: value(max_watts=100), ("gcp g2", 2.0571)),
    Question("With NVLink?", "no GeForce, no L4, no T4: H100 at 3.6",
             lambda: value(nvlink=True), ("lambda gpu_1x_h100", 3.6)),
    Question("For at most 0.55 an hour?", "0.45 is, 0.60 is not",
             lambda: [at(row) for row in ask(max_usd_per_hour=0.55).rows], ["vast RTX 5090", "aws g4dn"]),
    Question("Eight GPUs?", "H100: 8 x 3000 x 3600 / 24 = 3.6; A100: 8 x 1000 x 3600 / 16 = 1.8",
             lambda: value(count=8), ("oci BM.GPU.H100.8", 3.6)),
    Question("What is fastest, one job a GPU?", "8 x 3000 samples/s",
             lambda: (at(best(sort="throughput")), best(sort="throughput").samples_per_s.value),
             ("oci BM.GPU.H100.8", 24_000)),
    Question("What do a million samples cost at best?", "0.45 / 3600 / 900 x 1e6",
             lambda: best().usd_per_million_samples, 0.1389),
    Question("How many A100s equal an RTX 5090, and how many A100 hours does a dollar buy?", "900 / 1000, 0.9 / 0.45",
             lambda: (best().score.value, best().reference_hours_per_usd.value), (0.9, 2.0)),
    Question("Two workloads of equal weight?", "sqrt(900 x 100) = 300: 3600 x 300 / 0.45",
             lambda: ask_both(workloads=("vgg16", "lstm")).rows[0].samples_per_usd.value / 1e6, 2.4),
    Question("Half of each by work?", "H100: 1 / (0.5 / 3000 + 0.5 / 1200) = 1714.3: 3600 x 1714.3 / 3; RTX 5090: 1.44",
             lambda: [f(ask_both(mix={"vgg16": 0.5, "lstm": 0.5}).rows[0])
                      for f in (at, lambda row: row.samples_per_usd.value / 1e6)],
             ["lambda gpu_1x_h100", 2.0571]),
]  # fmt: skip

JOBS = [
    Question("What does the job cost at best?", "108e6 / 900 / 3600 = 33.33 h x 0.45",
             job, ("vast RTX 5090", 33.333, 15.0)),
    Question("By tonight, in 12 hours?", "H100: 108e6 / 3000 / 3600 = 10 h x 3.00; 8x H100: 33.33 USD",
             lambda: job(deadline_hours=12), ("lambda gpu_1x_h100", 10.0, 30.0)),
    Question("In 5 hours?", "8x H100: 108e6 / (8 x 3000 x 0.9) / 3600 = 1.389 h x 24; 8x A100: 66.67 USD",
             lambda: job(deadline_hours=5), ("oci BM.GPU.H100.8", 1.3889, 33.333)),
    Question("What is fastest for 32 dollars?", "H100 for 30.00 in 10 h; 8x H100 is 33.33",
             lambda: job(sort="time", budget_usd=32), ("lambda gpu_1x_h100", 10.0, 30.0)),
    Question("With 10 minutes of startup?", "(33.333 + 0.1667) x 0.45",
             lambda: job(startup_minutes=10), ("vast RTX 5090", 33.5, 15.075)),
    Question("Billed by the hour?", "34 x 0.45", lambda: job(billing_minutes=60), ("vast RTX 5090", 33.333, 15.3)),
    Question("Both, on an H100?", "10.1667 h, billed 11 x 3.00",
             lambda: job(startup_minutes=10, billing_minutes=60, providers=("lambda",)),
             ("lambda gpu_1x_h100", 10.1667, 33.0)),
    Question("With 73 USD of storage a month?", "15 + 73 x 33.333 / 730",
             lambda: job(storage_usd_per_month=73), ("vast RTX 5090", 33.333, 18.333)),
    Question("With 5 USD of egress and 20 % tax?", "(15 + 5) x 1.2",
             lambda: job(egress_usd=5, tax=0.2), ("vast RTX 5090", 33.333, 24.0)),
    Question("On spot at Amazon, a quarter lost?", "108e6 / 160 / 3600 = 187.5 h x 0.20, before 60.00 of the H100",
             lambda: job(providers=("aws",), spot=True, spot_lost=0.25), ("aws g4dn", 187.5, 37.5)),
    Question("One job a GPU, on eight?", "10 h x 24 / 8",
             lambda: (of("oci BM.GPU.H100.8", **JOB, jobs="independent").hours.value,
                      of("oci BM.GPU.H100.8", **JOB, jobs="independent").cost_usd.value), (10.0, 30.0)),
    Question("90 epochs of 1.2 million?", "90 x 1.2e6 = 108e6 samples",
             lambda: best(epochs=90, dataset_size=1.2e6).cost_usd.value, 15.0),
    Question("On an A100 reserved for a year?", "108e6 / 1000 / 3600 = 30 h x 1.50, on demand 75.00",
             lambda: job(providers=("azure",), count=1, commit="1y"), ("azure NC24", 30.0, 45.0)),
]  # fmt: skip

OWNING = [
    Question("What does an hour of a card for 30,000 USD cost?",
             "21,000 / (4 x 8760 x 0.5) = 1.199, and 0.65 x 1.3 x 0.15 = 0.127",
             lambda: hourly_range(machine()).likely, 1.3254),
    Question("After how many hours has it paid against 2.99 USD/h?", "21,000 / (2.99 - 0.127)",
             lambda: break_even(machine(), 2.99, resale=9000, utilization=0.5, tariff=0.15), 7334.3),
    Question("When does an RTX 3090 for 1,207 USD pay against 0.130 USD/h?",
             "845 / (0.130 - 0.0525) = 10,903 h: / 26,280 = 41 %; / 0.5 / 730 = 29.9 months",
             lambda: [f(weigh([rtx_3090()], [offer(H100, 0.13)], {H100: 3000}).buy_or_rent[0])
                      for f in (must_work, payback)],
             ["41 % of all hours", "pays off after 30 of 36 months at 50 %"]),
    Question("Do two RTX 3090 with a host cost at most 3,000 USD, or at most 3,500?", "2 x 1,207 + 1,000 = 3,414",
             lambda: [not too_dear(cards(2), max_purchase_usd=most) for most in (3000, 3500)], [False, True]),
    Question("How busy do 4 jobs of 73 h a month keep a card, and how busy would 14?",
             "4 x 73 / 730 = 0.4; 14 x 73 / 730 = 1.4",
             lambda: [used(cards(), jobs_per_month=n).utilization.likely for n in (4, 14)], [0.4, 1.4]),
]  # fmt: skip


class Feed:
    """A price source that returns the next of the given answers each time."""

    name = provider = "feed"

    def __init__(self, *answers):
        self.answers = list(answers)

    def fetch(self, transport):
        yield from self.answers.pop(0)


def quote(gpu: str, price: float, memory_gib: float | None = None, **changes: Any) -> Quote:
    """Return a feed's price for one GPU."""
    fields = {"provider": "feed", "instance": gpu, "region": None, "gpu": gpu, "gpu_memory_gib": memory_gib}
    return Quote(**fields | {"gpu_count": 1, "price": price, "source": "a feed"} | changes)


def a_cent_for_a_b300() -> tuple[str, list[str]]:
    """Rank with a B300 at a cent; return the best place, and who was excluded as an outlier."""
    b300 = "nvidia-b300-sxm-270gb"
    honest = [
        offer(b300, 6.5, provider="lambda", instance="b300"),
        offer(b300, 7.0, provider="oci", instance="b300"),
    ]
    cent = offer(b300, 0.01, provider="feed", instance="b300")
    found = builders.rank_of([*MARKET, *honest, cent], RATES | {b300: 8000.0})
    return at(found.rows[0]), [
        each.provider for each in found.excluded if "the setting accept-outliers" in each.reason
    ]


def three_old_cards() -> list[str]:
    """Rank V100s at 0.19 and 0.20 next to 3.06; two similar prices confirm each other."""
    v100 = "nvidia-tesla-v100-sxm2-16gb"
    prices = {"runpod": 0.19, "verda": 0.20, "aws": 3.06, "azure": 3.06}
    found = builders.rank_of(
        [offer(v100, price, provider=name) for name, price in prices.items()], {v100: 500.0}, gpus=("v100",)
    )
    return [row.offer.provider for row in found.rows]


def the_a100_pair() -> list[tuple[str, float]]:
    """Read quotes for two A100s of one name; their memory distinguishes them."""
    pair = [
        quote("A100 SXM4", price, memory, provider="vast", kind="marketplace")
        for price, memory in ((0.70, 40.0), (0.90, 80.0))
    ]
    table = read_quotes(pair, "2026-11-20T00:00:00Z").table
    return [(each.gpu_key, float(each.price_usd_per_hour)) for each in table.offers]


@pytest.fixture
def after_an_empty_answer(tmp_path) -> Callable[[], tuple[str, float]]:
    """Return a function that refreshes twice, at last with an empty answer, and returns state and price."""

    def run() -> tuple[str, float]:
        feed = Feed([quote("T4", 0.4, 16.0), Complete(pricings=(Pricing.ON_DEMAND,))], [])
        for day in (18, 19):
            done = refresh([feed], None, results=tmp_path, now=datetime(2026, 11, day, tzinfo=UTC))
        (stands,) = (each for each in load_offers(tmp_path).offers if each.provider == "feed")
        return done.sources["feed"].state, float(stands.price_usd_per_hour)

    return run


def refused(call: Callable[[], Any]) -> str:
    """Return the message for a question that cannot be answered."""
    with pytest.raises(MisuseError) as caught:
        call()
    return str(caught.value).partition(";")[0]


FEEDS = [
    Question("Is a B300 at a cent the best value?", "0.01 is under a fifth of 6.75, and nobody is within twice of it",
             a_cent_for_a_b300, ("vast RTX 5090", ["feed"])),
    Question("Are V100s at 0.19 and 0.20 accepted next to 3.06?", "0.20 is within twice of 0.19",
             three_old_cards, ["runpod", "verda", "aws", "azure"]),
    Question("Which A100 are the two 'A100 SXM4' of a marketplace?", "40 and 80 GiB",
             the_a100_pair, [("nvidia-a100-sxm-40gb", 0.70), ("nvidia-a100-sxm-80gb", 0.90)]),
    Question("Who is the provider 'gpc'?", "gcp is the nearest known",
             lambda: refused(lambda: list_offers(MARKET, OffersRequest(providers=("gpc",)), TODAY)),
             "unknown provider 'gpc'"),
]  # fmt: skip

FORTY = [*WORTH, *JOBS, *OWNING, *FEEDS]


@pytest.mark.parametrize("question", FORTY, ids=lambda question: question.words)
def test_answer_matches_the_hand_calculation(question):
    answer = question.ask()
    if isinstance(answer, tuple | list):
        assert len(answer) == len(question.answer)
        for mine, theirs in zip(answer, question.answer, strict=True):
            assert _alike(mine, theirs), (question.sum, answer)
    else:
        assert _alike(answer, question.answer), (question.sum, answer)


def _alike(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, float | int) and not isinstance(theirs, bool):
        return mine == pytest.approx(theirs, rel=1e-4)
    return mine == theirs


@pytest.fixture
def rankings(monkeypatch) -> list[Ranking]:
    """Collect every ranking that a question makes on the way to its answer."""
    made: list[Ranking] = []
    really = judge

    def noted(*given: Any, **named: Any) -> Ranking:
        made.append(really(*given, **named))
        return made[-1]

    for module in (builders, test_owning, sys.modules[__name__]):
        monkeypatch.setattr(module, "judge", noted)
    return made


@pytest.mark.parametrize("question", FORTY, ids=lambda question: question.words)
def test_the_first_screen_is_short(question, rankings, monkeypatch, capsys):
    """At most 24 lines and 120 words at 80 and at 120 columns; every caution is shown."""
    question.ask()
    if not rankings:
        assert question.words in WITHOUT_A_RANKING
    for ranking in rankings:
        cautions = ranking.said("caution")
        for columns in ("80", "120"):
            monkeypatch.setenv("COLUMNS", columns)
            show(*screen(ranking))
            shown = capsys.readouterr().out
            words = " ".join(shown.split())
            assert len(shown.splitlines()) <= 24
            assert len(words.split()) <= 120 + sum(len(each.split()) for each in cautions[2:])
            assert all(" ".join(each.split()) in words for each in cautions)


WITHOUT_A_RANKING = {
    "What does an hour of a card for 30,000 USD cost?",
    "After how many hours has it paid against 2.99 USD/h?",
    "Do two RTX 3090 with a host cost at most 3,000 USD, or at most 3,500?",
    "How busy do 4 jobs of 73 h a month keep a card, and how busy would 14?",
    "Which A100 are the two 'A100 SXM4' of a marketplace?",
    "Who is the provider 'gpc'?",
}


def test_an_empty_answer_after_a_full_one_keeps_the_prices(after_an_empty_answer):
    """The failure is reported, and the price of the day before, 0.40, stays."""
    assert after_an_empty_answer() == ("failed", 0.4)


def test_the_table_has_forty_questions():
    assert len({question.words for question in FORTY}) == len(FORTY) == 40
