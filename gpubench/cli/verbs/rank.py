import sys
from pathlib import Path

import msgspec

from gpubench.blocks.parts import Part
from gpubench.cli import output, table
from gpubench.errors import StorageError
from gpubench.models import Ranking
from gpubench.offers.sources import SourceError
from gpubench.options import asked_recipe
from gpubench.recommend import lines, rank
from gpubench.recommend.request import RankRequest
from gpubench.sections import answer, data

HUMAN_LIMIT = 20
"""Rows of the printed ranking."""
# Time limit for fetching a published snapshot and its hash; if exceeded, the local prices are used.
_SNAPSHOT_LIMIT_S = 1.0


def verb(
    request: RankRequest, shown: table.ShownRequest, prices: table.PricesRequest, *, as_json: bool
) -> None:
    if prices.snapshot_url is not None and not prices.offline:
        _read_published(prices.snapshot_url, request.results)
    rows = HUMAN_LIMIT if request.limit is None else request.limit
    kept = request.limit if as_json else rows
    wants_table = request.limit is not None or any(msgspec.structs.astuple(shown))
    one_a_gpu = request.one_a_gpu or not (as_json or (shown.table and shown.explain))
    ranking = rank.rank(msgspec.structs.replace(request, limit=kept, one_a_gpu=one_a_gpu))
    output.answer(
        as_json,
        lambda: rank.document(ranking, request),
        lambda: ranking_parts(ranking, rows, shown) if wants_table else answer.screen(ranking),
        (lambda: rank.brief_document(ranking, request)) if shown.brief else None,
    )
    if as_json:
        return
    if sys.stdout.isatty():
        output.say(lines.headline(ranking))  # the top of the output may have scrolled off the screen
    can_add_upload = request.dataset_gb is None and not request.relative and request.task != "infer"
    upload = "`--dataset-gb` adds the upload of your data; " if can_add_upload else ""
    makes_page = "`gpubench.report()` in Python" if asked_recipe(request) else "`gpubench report`"
    output.say(
        f"Next: {upload}`gpubench offers refresh` fetches today's prices; `gpubench run` measures the GPU "
        "here, or the CPU if there is none; `gpubench try` writes a task that measures the recommended "
        f"machine; {makes_page} makes the page."
    )


def _read_published(url: str, results: Path | None) -> None:
    # Load newer prices from a published snapshot; if that fails, keep the local prices.
    from gpubench.offers import refresh, transport  # only this ranking needs the network

    try:
        with transport.HttpTransport(within_s=_SNAPSHOT_LIMIT_S) as transport_:
            refresh.refresh_from_url(url, transport_, results=results)
    except (SourceError, StorageError) as error:
        output.say(f"snapshot-url: {error}; the local prices are used, with their dates")


def ranking_parts(
    ranking: Ranking,
    limit: int,
    shown: table.ShownRequest,
) -> list[Part]:
    """Return the answer, the first rows, buying compared with renting, and the requested tables.

    Args:
        ranking: The ranking with the rows.
        limit: Maximum number of rows.
        shown: Whether each row is an offer or the best offer of a GPU, and which extra tables to show.
    """
    hint = None if shown.table or shown.explain else "--explain"
    said = data.of_ranking(ranking, limit, every_offer=shown.table and shown.explain, more_by=hint)
    rows = answer.shown_rows(said, ranking)
    beside = [answer.factor_table(rows)] if shown.table else []
    left_out = [answer.beaten_table(rows), answer.excluded_table(ranking)] if shown.explain else []
    return [*data.brief(said, "answer", "value", "owning"), *beside, *left_out]
