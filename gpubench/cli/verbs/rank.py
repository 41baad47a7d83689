import sys

import msgspec

from gpubench import units
from gpubench.blocks.parts import Paragraph, Part
from gpubench.cli.output import answer, say
from gpubench.cli.table import PricesRequest, ShownRequest
from gpubench.errors import StorageError
from gpubench.models import Ranking
from gpubench.offers.sources import SourceError
from gpubench.recommend import rank
from gpubench.recommend.request import RankRequest
from gpubench.sections import data, section, value, verdict
from gpubench.sentences import texts

HUMAN_LIMIT = 20


SNAPSHOT_LIMIT_S = 1.0
"""For a published snapshot and its hash; after that the prices here do."""


def verb(request: RankRequest, shown: ShownRequest, prices: PricesRequest, *, as_json: bool) -> None:
    if prices.snapshot_url is not None and not prices.offline:
        _read_published(prices.snapshot_url, request)
    rows = HUMAN_LIMIT if request.limit is None else request.limit
    kept = request.limit if as_json else rows
    wants_table = request.limit is not None or any(msgspec.structs.astuple(shown))
    one_a_gpu = request.one_a_gpu or not (as_json or shown.every_offer)
    ranking = rank.rank(msgspec.structs.replace(request, limit=kept, one_a_gpu=one_a_gpu))
    in_full = bool(request.own or request.offers)
    answer(
        as_json,
        lambda: rank.document(ranking, request),
        lambda: (
            ranking_parts(ranking, rows, shown)
            if wants_table
            else first_screen(ranking, notes_in_full=in_full)
        ),
        (lambda: rank.brief_document(ranking, request)) if shown.brief else None,
    )
    if as_json:
        return
    if sys.stdout.isatty():
        say(verdict.headline(ranking))  # its first line has left the screen by now
    say(
        "Next: `gpubench offers refresh` reads today's prices; `gpubench run` measures the GPU here, or the "
        "CPU where there is none; `gpubench try` measures the answer where it is rented; `gpubench report` "
        "makes the page."
    )


def _read_published(url: str, request: RankRequest) -> None:
    """Take the newer prices of a published snapshot over; without them those that are here do."""
    from gpubench.offers import refresh, transport  # the network, which no other ranking needs

    try:
        with transport.HttpTransport(within_s=SNAPSHOT_LIMIT_S) as way:
            refresh.take_over(url, way, results=request.results)
    except (SourceError, StorageError) as error:
        say(f"snapshot-url: {error}; the prices that are here stand, with their days")


def first_screen(ranking: Ranking, *, notes_in_full: bool) -> list[Part]:
    """Return the verdict, and what shows the rest.

    Args:
        ranking: The answer; its cautions stand in the verdict.
        notes_in_full: As where a person named machines or a table of their own: what became of them is said.
    """
    notes = ranking.notes[: ranking.decisive_notes]
    gpus = f"{units.count(len(ranking.decision.by_gpu), 'GPU')}: --table"
    before = [note for note in notes if note.startswith("Set aside of ")]
    if notes_in_full:
        after = [*(note for note in notes if note not in before), gpus]
    else:
        before += [note for note in notes if note == texts()["toy_mix"]]
        after = [f"{units.count(len(notes), 'note')} to read first, {gpus}"]
    first, last = ([Paragraph(text=units.plain(each, 1000)) for each in notes] for notes in (before, after))
    return [*first, *section.brief(data.of_ranking(ranking, 0), "verdict"), *last]


def ranking_parts(
    ranking: Ranking, limit: int, shown: ShownRequest = ShownRequest(), *, more_by: str = "--explain"
) -> list[Part]:
    """Return the verdict, so many rows, buying against renting, and what was asked for besides.

    Args:
        ranking: With the rows to show among its own.
        limit: Most rows.
        shown: Whether each is an offer, else each is a GPU at its best, and what is shown besides.
        more_by: What shows the notes that are left out here.
    """
    hint = None if shown.explain else more_by
    said = data.of_ranking(ranking, limit, every_offer=shown.every_offer, more_by=hint)
    rows = value.shown_rows(said, ranking)
    beside = [value.factor_table(rows)] if shown.table else []
    left_out = [value.beaten_table(rows), value.excluded_table(ranking)] if shown.explain else []
    return [*section.brief(said, "verdict", "value", "owning"), *beside, *left_out]
