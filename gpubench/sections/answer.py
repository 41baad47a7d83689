"""The answer and the ranking: the three answers, the sentences about them, and a table of all offers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gpubench.blocks.parts import (
    BASIS_GLYPHS,
    MOST_ROWS,
    NO_BREAK_SPACE,
    Block,
    Bullets,
    Cell,
    Fact,
    Facts,
    Paragraph,
    Part,
    RowMark,
    Table,
    link,
    number,
    table,
    text,
)
from gpubench.findings import FindingKind, remark
from gpubench.groups import grouped
from gpubench.interval import Interval, stacked
from gpubench.labels import CONDITION_WORDS, SELLERS, gpu_name, gpus_of, offer_lines, price_of, pricing_words
from gpubench.models import (
    MAY_NOT_FIT,
    BuyOrRent,
    Choice,
    Elsewhere,
    ExcludedOffer,
    Offer,
    ParallelMode,
    PriceCondition,
    Pricing,
    Ranking,
    Row,
    SortedBy,
    TaskKind,
    fits_text,
)
from gpubench.offers.dates import dated
from gpubench.providers import price_page
from gpubench.recommend.economics import generation_times, token_costs
from gpubench.recommend.factors import factors_of
from gpubench.recommend.lines import (
    BOTH,
    CHANCE,
    COST,
    Line,
    basis_text,
    hours_text,
    in_words,
    lines,
    precisions_of,
    seller,
    what_of,
)
from gpubench.recommend.rows import best_to_rent_and_to_own
from gpubench.recommend.speeds import batches_of, gpus_needed
from gpubench.sections.data import (
    MOST_OF_A_NOTE,
    ReportData,
    cases_words,
    in_stock_words,
    measured_facts,
    per_s_unit,
    price_date_words,
)
from gpubench.sentences import say
from gpubench.specs import load_specs
from gpubench.units import (
    LEAST_USD,
    UNKNOWN,
    capitalized,
    count,
    format_bytes,
    format_chance,
    format_duration,
    format_number,
    format_percent,
    format_price,
    format_usd,
    listing,
    plain,
)

MOST_WORDS = 120
"""Maximum number of words on the first screen, so that it can be read at a glance."""


def title(ranking: Ranking) -> str:
    """Return the headline: the model, "inference" if it isn't trained, the job and the precision."""
    model = plain(" + ".join(dict.fromkeys(case.workload for case in ranking.cases)), 60)
    task = "" if ranking.cases[0].task is TaskKind.TRAIN else " inference"
    precision = precisions_of(each for line in lines(ranking) for each in line.choice.row.estimates)
    job = ranking.objective if ranking.job is None else ranking.job.words
    return say("title", model=model + task, job=plain(job, 80), precision=precision)


def answer_table(ranking: Ranking) -> Table:
    """Return the answers, one per row: GPUs with their basis, seller, time, cost, and chance of being best.

    If the time of the job is unknown, throughput and value replace time and cost.
    """
    rows = lines(ranking)
    figures = [
        number(capitalized(per_s_unit(ranking)), _cell(lambda row: ranking.throughput_of(row).words())),
        number(capitalized(plain(ranking.value_unit, 60)), _cell(lambda row: ranking.value_of(row).words())),
    ]
    if any(line.choice.row.hours.value is not None for line in rows):
        figures = [
            number("Time", _cell(hours_text)),
            number(COST, _cell(lambda row: row.cost_usd.by(format_usd))),
        ]
    return table(
        "",
        rows,
        text("", lambda line: line.names),
        text("GPUs", lambda line: f"{what_of(line.choice)}\n{basis_text(line.choice.row)}"),
        text(  # the kind of seller only if it is not a cloud
            "Seller",
            lambda line: stacked(seller(line.choice.offer)).removesuffix(f"\n{SELLERS['cloud']}"),
        ),
        *figures,
        number(CHANCE, _chances),
    )


def _chances(line: Line) -> str:
    if len(line.chances) < 2:
        return stacked("".join(line.chances))
    return BOTH.join(line.chances).replace(" %", f"{NO_BREAK_SPACE}%")


def _cell(words: Callable[[Row], str]) -> Callable[[Line], str]:
    # Return a function that formats the row of an answer, with its interval on a second line.
    return lambda line: stacked(words(line.choice.row)).replace(" to ", "\N{EN DASH}")


def _not_in_table(ranking: Ranking) -> list[str]:
    # Return the sentences that add something to the table, replies to the question first.
    shown = set(in_words(ranking))
    said = (*ranking.said("asked"), *ranking.said("answer", "sureness"))
    return [each for each in said if each not in shown]


def _kept(ranking: Ranking, shown: Table) -> tuple[list[str], int]:
    # Return the sentences that fit below the table, and how many are left out, including all notes. Replies
    # and cautions always stay.
    cells = [cell for row in shown.rows for cell in row] + [column.title for column in shown.columns]
    asked, cautions = ranking.said("asked"), ranking.said("caution")
    always = " ".join([title(ranking), *cells, *cautions, *asked])
    most = MOST_WORDS - _RESERVED_WORDS + (_EXTRA_WORDS_FOR_REPLIES if asked else 0)
    left = most - len(always.split())
    kept: list[str] = []
    for each in _not_in_table(ranking):
        words = 0 if each in asked else len(each.split())
        if words <= left or each in asked:
            kept.append(each)
            left -= words
    return [*kept, *cautions], len(_not_in_table(ranking)) - len(kept) + len(ranking.said("note"))


# Additional words that the first screen may have if it replies to options.
_EXTRA_WORDS_FOR_REPLIES = 15

# Words reserved for the rule below the table's header and for the hint that there is more.
_RESERVED_WORDS = 8


def screen(ranking: Ranking) -> list[Part]:
    """Return the first screen: title, answers, and the sentences that fit."""
    shown = answer_table(ranking)
    kept, left_out = _kept(ranking, shown)
    rest = f"--table adds {count(left_out, 'note')} and {count(len(ranking.by_gpu), 'GPU')}"
    return [
        Paragraph(text=title(ranking), tone="headline"),
        shown,
        Paragraph(text=" ".join(plain(each, 600) for each in kept)),
        Paragraph(text=rest),
    ]


def _answer(data: ReportData) -> Block:
    ranking = data.ranking
    if ranking is None:
        why = data.ranking_problem or "no ranking was requested"
        problem = Paragraph(text=f"There is no ranking: {plain(why, 400)}", tone="headline")
        measured = tuple(Facts(rows=(fact,), prominent=True) for fact in measured_facts(data.results))
        return Block(title="The answer", parts=(problem, *measured), brief=(problem,))
    parts: tuple[Part, ...] = (
        Paragraph(text=title(ranking), tone="headline"),
        answer_table(ranking),
        Bullets(
            items=tuple(plain(each, 600) for each in (*_not_in_table(ranking), *ranking.said("caution")))
        ),
    )
    return Block(title="The answer", parts=parts, brief=parts)


# --- each answer in full --------------------------------------------------------------------------------

MOST_REGIONS = 4
# Maximum length of the text about memory, which can quote an error of third-party code.
_MOST_MEMORY_CHARACTERS = 300


def in_full(ranking: Ranking) -> Facts:
    """Return each answer, and the best hardware to own, with all that a buyer should know before paying."""
    found = {line.names: line.choice for line in lines(ranking)}
    utilization: dict[tuple[str, str, int], float | None] = {
        _machine(each): each.utilization for each in ranking.buy_or_rent
    }
    if ranking.best_to_own is not None:
        utilization.setdefault(_machine(ranking.best_to_own.offer), ranking.best_to_own_use)
        if ranking.best_to_own.offer not in {each.offer for each in found.values()}:
            found["Best to own"] = ranking.best_to_own
    return Facts(
        rows=tuple(
            Fact(term=name, value=_in_full(each, utilization.get(_machine(each.offer))))
            for name, each in found.items()
        )
    )


def _machine(of: Offer | BuyOrRent) -> tuple[str, str, int]:
    return of.instance, of.gpu_key, of.gpu_count


def _in_full(choice: Choice, utilization: float | None) -> str:
    row = choice.row
    date = dated(plain(choice.offer.price_date, 20), row.price_age_days)
    label, listed_usd = _label(choice), format_usd(row.listed_usd_per_hour)
    if choice.source == "own":
        paid = "" if choice.purchase_usd is None else f" {label} ({date})"
        busy = "" if utilization is None else f", if busy {format_percent(utilization)}"
        price = f"{what_of(choice)}{paid}, {listed_usd} an hour of work{busy}"
    else:
        listed = "" if row.is_expected_as_listed else f" of {listed_usd}"
        where = f"{gpus_of(choice.offer)} at {plain(choice.offer.provider, 30)}"
        price = f"{where}, {price_of(row)} ({label}{listed}, {date})"
    job = [] if row.hours.value is None else [f"{hours_text(row)} and {row.cost_usd.by(format_usd)}"]
    return "; ".join([price, *job, fits_words(choice), *_to_know(choice)])


def _label(choice: Choice) -> str:
    if choice.condition is PriceCondition.LIST and choice.offer.pricing is not Pricing.ON_DEMAND:
        return f"{pricing_words(choice.offer)} price"
    return CONDITION_WORDS[choice.condition]


def fits_words(choice: Choice) -> str:
    """Say whether the job fits in memory, and how much it needs: "fits (needs 6.1 to 7.8 of 24 GiB)".

    The text has no figures if the device has run the job.
    """
    row = choice.row
    if row.fits_memory is None and not row.estimate.may_fit:
        return "memory not checked"
    fits = fits_text(sharded=row.parallel_mode is ParallelMode.FSDP)
    return plain(row.estimate.memory_text or fits, _MOST_MEMORY_CHARACTERS)


def _to_know(choice: Choice) -> Iterator[str]:
    # Yield remarks on data loading, availability, other prices, and the quota of a new account.
    offer = choice.offer
    if choice.feed_vcpus is not None:
        needs = f"data loading needs {format_number(choice.feed_vcpus, 2)}"
        few = ": too few" if choice.can_feed is False else ""
        unknown = "vCPUs (how many the machine has is unknown)"
        yield f"{needs} {unknown}" if offer.vcpus is None else f"{needs} of its {offer.vcpus:g} vCPUs{few}"
    if choice.regions:
        more = len(choice.regions) - MOST_REGIONS
        first = [plain(each, 30) for each in choice.regions[:MOST_REGIONS]]
        yield f"in {listing(first) if more <= 0 else ', '.join([*first, f'{more} more'])}"
    if choice.also_at:
        yield f"also at {listing([_elsewhere_words(each, offer.gpu_count) for each in choice.also_at])}"
    if choice.needs_quota:
        yield "a new account must request a quota"
    if choice.price_note:
        yield f"price: {plain(choice.price_note, 120)}"
    if offer.in_stock is not None:
        yield in_stock_words(offer)
    if page := price_page(offer.provider, offer.source):
        yield page


def _elsewhere_words(each: Elsewhere, gpu_count: int) -> str:
    # Return another provider of the GPU, and the cost of the job (or an hour) there: "aws 8x $12.00".
    there = each.offer
    so_many = "" if there.gpu_count == gpu_count else f" {there.gpu_count}x"
    cost = f"{format_usd(each.usd_per_hour)}/h" if each.cost_usd is None else format_usd(each.cost_usd)
    return f"{plain(there.provider, 30)}{so_many} {cost}"


# --- the ranking ----------------------------------------------------------------------------------------

MAX_EXCLUDED_REASONS = 80

_TITLES: dict[SortedBy, str] = {
    "total": "Dollars and hours of the job, ranked",
    "value": "Work per dollar, ranked",
    "throughput": "Throughput, ranked",
    "cost": "Job cost, ranked",
    "time": "Job time, ranked",
    "joules": "Energy per sample, ranked",
}
_P_OF_GPU = (
    "P(best) of GPU: the probability that some offer of this GPU is the best, allowing for price changes "
    "since the quotes; over all GPUs it adds up to 100 %"
)
_P_OF_OFFER = (
    "P(best): the probability that this offer is the best, allowing for price changes since its quote; "
    "over all offers it adds up to 100 %"
)
_SHARED_RANK = (
    "=: shared rank, because the figures cannot separate the rows, or because the row is a more expensive "
    "offer of a GPU with that rank"
)
_FEED_BOUND = (
    f"{FindingKind.FEED_BOUND.value}: its vCPUs are assumed to prepare fewer images than its GPUs "
    "can process, which limits throughput, time, cost and chances; latency is for the GPUs alone"
)
_NOT_DOMINATED = "not dominated: nothing else is as fast, as cheap and as large in memory at once"
_STATIC_BATCH = (
    "Static batch: all sequences start together. A server that batches them as they arrive has a higher "
    "throughput"
)


def _ranking(data: ReportData) -> Block | None:
    ranking = data.ranking
    if ranking is None:
        return None
    lead = f"Ranked for {cases_words(ranking.cases)}; as of {plain(ranking.as_of, 30)}."
    workloads = {case.workload for case in ranking.cases}
    if len(workloads) > 1:
        what = "ratios to one reference GPU" if ranking.by_reference else "samples per second"
        lead += f" The {len(workloads)} workloads are combined by the geometric mean of their {what}."
    shown, total = ranking.rows[:MOST_ROWS], ranking.offer_count or len(ranking.rows)
    caption = "The only offer" if total == 1 else f"All {total:,} offers"
    if len(shown) < total:
        caption = f"The first {len(shown)} of {total:,} offers; the JSON report has all of them"
    parts: list[Part] = [Paragraph(text=lead), in_full(ranking), offers(data, ranking, shown, caption)]
    if ranking.excluded:
        parts.append(excluded_table(ranking))
    return Block(title=_TITLES[ranking.sorted_by], parts=tuple(parts), brief=_brief(data, ranking))


def shown_rows(data: ReportData, ranking: Ranking) -> tuple[Row, ...]:
    """Return the rows for a terminal: the best rental of each GPU, and all hardware owned or for sale.

    On request, or if there is only one GPU model or nothing to rent, each offer has its own row. There are at
    most ``data.most_offers`` rows.
    """
    rows = ranking.rows
    if not _each_is_an_offer(data, ranking):
        best = {id(row) for row in best_to_rent_and_to_own(rows)}
        rows = tuple(row for row in rows if row.offer.pricing is Pricing.OWNED or id(row) in best)
    return rows[: data.most_offers]


def _each_is_an_offer(data: ReportData, ranking: Ranking) -> bool:
    if data.every_offer:
        return True
    best_of_each = ranking.by_gpu
    rented = any(each.source != "own" for each in best_of_each)
    return not rented or len({each.offer.gpu_key for each in best_of_each}) == 1


def _brief(data: ReportData, ranking: Ranking) -> tuple[Part, ...]:
    # Return the top of the ranking, the answers in full, the notes, and the meaning of the terms.
    rows = shown_rows(data, ranking)
    one_a_gpu = not _each_is_an_offer(data, ranking)
    shown = offers(data, ranking, rows, "", wide=True, one_a_gpu=one_a_gpu)
    notes = [plain(note, MOST_OF_A_NOTE) for note in ranking.said("note")]
    legend = _legend(ranking, rows, one_a_gpu=one_a_gpu)
    items: list[str] = []
    if one_a_gpu and ranking.offer_count is not None:
        every = f"--table --explain --limit {ranking.offer_count} lists them"
        items.append(f"One row per GPU: its best offer. Ranks count all offers; {every}.")
    if data.more_by is None:
        items = [*notes, *items, *legend]
    else:
        items.append(f"{count(len(notes) + len(legend), 'more note')}: {data.more_by}.")
    return (shown, in_full(ranking), Bullets(items=tuple(dict.fromkeys(items))))


def _legend(ranking: Ranking, rows: Sequence[Row], *, one_a_gpu: bool) -> list[str]:
    # Return the terms that the rows use, each with its meaning.
    bound = any(each.kind is FindingKind.FEED_BOUND for row in rows for each in row.findings)
    terms = (
        (not ranking.shared_ranks.isdisjoint(row.rank for row in rows), _SHARED_RANK),
        (bound, _FEED_BOUND),
        (any(row.pareto for row in rows), _NOT_DOMINATED),
        (any(row.p_best is not None for row in rows), _P_OF_GPU if one_a_gpu else _P_OF_OFFER),
        (any(row.estimate.case.new_tokens for row in rows), _STATIC_BATCH),
    )
    return [f"{meaning}." for is_used, meaning in terms if is_used]


def excluded_table(ranking: Ranking) -> Table:
    """Return the excluded offers, grouped by reason."""
    by_reason = grouped((offer.reason, offer) for offer in ranking.excluded)
    rows = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return table(
        f"Not ranked: {count(len(ranking.excluded), 'offer')}, by reason",
        rows[:MAX_EXCLUDED_REASONS],
        text("Reason", lambda row: plain(row[0], 300)),
        number("Offers", lambda row: str(len(row[1]))),
        text("Which", lambda row: listing(_which(row[1]), most=8)),
        folded=True,
    )


def _which(offers: Sequence[ExcludedOffer]) -> list[str]:
    gpus = {x.gpu_key for x in offers}
    if len(gpus) > 1:
        return sorted({gpu_name(key) for key in gpus})
    names = [f"{plain(x.provider, 30)} {plain(x.instance, 40)}" for x in offers]
    return [f"{gpu_name(next(iter(gpus)))} at {names[0]}", *names[1:]]


def beaten_table(rows: Sequence[Row]) -> Table:
    """Return each offer that another offer beats in every respect, next to the better offer."""
    return table(
        "Beaten in every respect",
        [row for row in rows if row.dominated_by is not None],
        text("Offer", lambda r: offer_lines(r.offer)),
        text("By", lambda r: plain(r.dominated_by or "")),
    )


def factor_table(rows: Sequence[Row]) -> Table:
    """Return the specifications of the GPUs in the offers, one GPU per line."""
    factors = {row.offer.gpu_key: factors_of(load_specs().get(row.offer.gpu_key)) for row in rows}

    def known(name: str, words: Callable[[Any], str] = str) -> Callable[[str], str]:
        return lambda key: UNKNOWN if factors[key][name] is None else words(factors[key][name])

    def whole(value: float) -> str:
        return f"{value:,.0f}"

    def share(value: float) -> str:  # of the FP32 rate: "1/2", "1/64"; at most "1/1"
        return f"1/{max(1 / value, 1):.0f}" if value else UNKNOWN

    return table(
        "GPU specifications",
        list(factors),
        text("GPU", gpu_name),
        number(
            "Memory",
            lambda key: f"{format_bytes(factors[key]['memory_bytes'])}\n{factors[key]['memory_type'] or ''}",
        ),
        number("GB/s", known("memory_bandwidth_bytes_per_s", lambda value: whole(value / 1e9))),
        number("Cores", known("core_count", whole), optional=1),
        number("Tensor cores", known("tensor_core_count", whole), optional=4),
        text("Architecture", known("architecture"), optional=2),
        text("Line", known("line"), optional=7),
        text("ECC", known("ecc", {True: "yes", False: "no"}.__getitem__), optional=5),
        text("FP64", known("fp64_share", share), optional=6),
        text("Link", known("link"), optional=3),
        text("Cooling", known("cooling"), optional=8),
        number("W", known("board_power_w", whole)),
    )


# --- offers as a table ----------------------------------------------------------------------------------

# Maximum length of an offer's note in its row.
_NOTE_CHARACTERS = 80

RANK, P_BEST = "Rank", "P(best)"
"""Titles of columns that the notes below the table explain."""


def offers(
    data: ReportData,
    ranking: Ranking,
    rows: Sequence[Row],
    caption: str,
    *,
    wide: bool = False,
    one_a_gpu: bool = False,
) -> Table:
    """Return a table of offers, one per row, in the order of the ranking.

    Args:
        data: The data, with the user's device; rows with its model are marked.
        ranking: The ranking of the rows, with its units, job and batches.
        rows: The rows to show.
        caption: Title of the table.
        wide: Whether to add columns for latency and, if batches differ, for the batch size.
        one_a_gpu: Whether each row represents its GPU model. If so, P(best) is the model's, and a column
            lists other offers.
    """
    timed = any(row.latency_s is not None for row in rows)
    generated = any(row.estimate.case.new_tokens for row in rows)
    batches = {batches_of(row.estimates) for row in ranking.rows}
    shared = any(row.parallel_mode is ParallelMode.FSDP for row in ranking.rows)
    up_front = _up_front(data)
    return table(
        caption,
        rows,
        text("GPUs and offer", lambda r: offer_lines(r.offer, here(data, r))),
        text("Memory", _gpus_needed) if shared else None,
        number(RANK, rank_words(ranking)),
        text("Price and its date", lambda r: f"{price_of(r)}\n{up_front(r)}{price_date_words(r)}"),
        *_speed_and_cost(ranking, one_a_gpu=one_a_gpu),
        number(f"{P_BEST}\nof GPU" if one_a_gpu else P_BEST, _chance_of(ranking, one_a_gpu=one_a_gpu)),
        *_token_columns(rows),
        text("Also at", also_at(ranking), optional=3) if one_a_gpu else None,
        number("Batch", lambda r: " ".join(f"{batch:,}" for batch in batches_of(r.estimates)), optional=5)
        if wide and len(batches) > 1
        else None,
        number("Time per token" if generated else "Latency", _latency) if wide and timed else None,
        text(
            "Basis",
            lambda r: (
                f"{BASIS_GLYPHS[r.estimate.basis]}{NO_BREAK_SPACE}"
                f"{'guess' if r.estimate.is_a_guess else r.estimate.basis}"
            ),
            optional=1,
            glyph=True,
        ),
        link("Link", lambda r: price_page(r.offer.provider, r.offer.source), optional=8),
        text("Remarks", remarks_of, optional=6, below=True),
        marks=marks(data, rows),
    )


def rank_words(ranking: Ranking) -> Callable[[Row], str]:
    """Return a function that formats a row's rank: marked if shared, a dash if missing."""
    shared = ranking.shared_ranks
    return lambda row: UNKNOWN if row.rank is None else f"{row.rank}{'=' if row.rank in shared else ''}"


def _speed_and_cost(ranking: Ranking, *, one_a_gpu: bool) -> Iterator[Cell[Row]]:
    # Yield columns for throughput and value, and for time and cost of a job if there is one.
    timed = any(row.hours.value is not None for row in ranking.rows)
    if not (timed and ranking.by_reference):
        yield number(
            capitalized(per_s_unit(ranking)),
            lambda r: stacked(ranking.throughput_of(r).words()),
            optional=(6 if one_a_gpu else 4) if timed else 3,
        )
        yield number(
            capitalized(plain(ranking.value_unit, 60)),
            lambda r: stacked(ranking.value_of(r).words()),
            optional=7 if timed else 0,
        )
    if timed:
        yield number(
            "Time", lambda r: stacked(r.hours.collapsed.by(lambda hours: format_duration(hours * 3600)))
        )
        yield number("Cost", lambda r: stacked(r.cost_usd.collapsed.by(format_usd)))


def _gpus_needed(row: Row) -> str:
    if row.estimate.fewest_gpus == 1 and row.parallel_mode is ParallelMode.FSDP:
        return fits_text(sharded=True)
    return gpus_needed(row.estimate.fewest_gpus)


def _up_front(data: ReportData) -> Callable[[Row], str]:
    # Return a function that gives the purchase price of owned hardware: "$1,450 up front; ".
    paid = {_machine(each): each.purchase_usd for each in data.buy_or_rent}

    def words(row: Row) -> str:
        usd = paid.get(_machine(row.offer)) if row.offer.pricing is Pricing.OWNED else None
        return "" if usd is None else f"{format_price(usd)} up front; "

    return words


def _chance_of(ranking: Ranking, *, one_a_gpu: bool) -> Callable[[Row], str]:
    """Return a function that formats a row's chance of being the best.

    If each row represents its GPU, a rental row has the chance of all offers of that GPU.
    """
    best_of_each = ranking.by_gpu if one_a_gpu else ()
    of_gpu = {each.offer.gpu_key: each.p_best_of_gpu for each in best_of_each if each.source != "own"}

    def chance(row: Row) -> str:
        own = row.offer.pricing is Pricing.OWNED
        return format_chance(row.p_best if own else of_gpu.get(row.offer.gpu_key, row.p_best))

    return chance


_TOKENS = {
    "training": "training",
    "forward pass": "forward pass",
    "prefill": "prompts of one static batch",
    "decode": "generated in one static batch",
}


def _token_columns(rows: Iterable[Row]) -> Iterator[Cell[Row]]:
    # Yield a column for each kind of token that has a cost worth showing in any row.

    def cost_of(what: str) -> Callable[[Row], str]:
        return lambda row: stacked(token_costs(row).get(what, Interval(None)).by(format_usd))

    costs = (cost for row in rows for cost in token_costs(row).items())
    for what in dict.fromkeys(what for what, usd in costs if (usd.value or 0.0) >= LEAST_USD):
        yield number(f"USD per million tokens, {_TOKENS[what]}", cost_of(what), optional=3)


def _latency(row: Row) -> str:
    # Return the time of a batch; for generation, also the time per token, to which a latency limit applies.
    whole = format_duration(row.latency_s)
    return f"{_token_time(row)}\n{whole} per batch" if row.estimate.case.new_tokens else whole


def _token_time(row: Row) -> str:
    times = generation_times(row.estimate)
    return UNKNOWN if times is None else format_duration(times.per_token_s.value)


def also_at(ranking: Ranking) -> Callable[[Row], str]:
    """Return a function that lists other providers of a GPU: "lium $10.06, aws $12.00"."""
    elsewhere = {(each.offer.gpu_key, each.source == "own"): each for each in ranking.by_gpu}

    def others(row: Row) -> str:
        best = elsewhere.get((row.offer.gpu_key, row.offer.pricing is Pricing.OWNED))
        found = () if best is None else best.also_at
        return ", ".join(_elsewhere_words(each, row.offer.gpu_count) for each in found) or UNKNOWN

    return others


def remarks_of(row: Row) -> str:
    """Return short remarks on a row."""
    # A column shows the age of each price, so a stale price needs no remark.
    remarks = [remark(f) for f in row.findings if f.kind is not FindingKind.STALE_PRICE]
    offer, lost = row.offer, row.spot_break_even
    per_token = f"{_token_time(row)} per token, " if row.estimate.case.new_tokens else ""
    batch = f"{per_token}{format_duration(row.latency_s)} per batch of {row.estimate.case.batch_size}"
    pays = f"as long as interruptions add less than {format_percent(lost)} to the work" if lost else None
    remarks += [
        words
        for applies, words in (
            (offer.kind == "marketplace", CONDITION_WORDS[PriceCondition.SINGLE_HOST]),
            (offer.note, plain(offer.note or "", _NOTE_CHARACTERS)),
            (offer.in_stock is not None, in_stock_words(offer)),
            (row.pareto, "not dominated"),
            (row.estimate.may_fit, MAY_NOT_FIT),
            (row.fits_memory is None and not row.estimate.may_fit, "memory not checked"),
            (row.latency_s is not None, batch),
            (lost is not None, f"spot pays off {pays}" if pays else "spot never pays off"),
            (offer.gpu_count > 1, f"scaling {row.scaling_efficiency:.2f}, {plain(row.scaling_basis, 40)}"),
        )
        if applies
    ]
    return ", ".join(dict.fromkeys(remarks)) or "none"


def here(data: ReportData, row: Row) -> str:
    """Return a mark for offers with the user's GPU model."""
    own = data.device is not None and data.device.gpu_key == row.offer.gpu_key
    return " (yours)" if own else ""


def marks(data: ReportData, rows: Sequence[Row]) -> tuple[RowMark | None, ...]:
    """Return the marks of rows: the user's GPU model, ties at the top, throttled measurements."""
    leading = sum(row.rank == 1 for row in rows)

    def mark(row: Row) -> RowMark | None:
        if here(data, row):
            return "here"
        if row.rank == 1 and (row.tie or leading > 1):
            return "tie"
        return "bad" if any(f.kind is FindingKind.THROTTLED for f in row.findings) else None

    return tuple(mark(row) for row in rows)


SECTIONS = {"answer": _answer, "value": _ranking}
