"""`gpubench rank`: options in, one call, a table or JSON out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec

from gpubench.blocks.parts import Part
from gpubench.cli.options import Verb
from gpubench.cli.output import BriefRequest, answer, say
from gpubench.errors import StorageError
from gpubench.options import Option
from gpubench.recommend.request import EVIDENCE, OUTPUT, RankRequest
from gpubench.settings import FILES

if TYPE_CHECKING:
    from gpubench.models import Ranking

HUMAN_LIMIT = 20


class ShownRequest(BriefRequest, frozen=True, kw_only=True):
    """What is printed of a ranking besides its best rows."""

    table: Annotated[
        bool,
        Option(
            "Also list the best offer of each GPU, with its memory, cores, ECC and power, and what to know "
            "before paying.",
            OUTPUT,
        ),
    ] = False
    explain: Annotated[
        bool,
        Option("Also list every note, and what is left out and why; with --table, every offer.", OUTPUT),
    ] = False

    @property
    def every_offer(self) -> bool:
        """Whether a row is an offer, and not a GPU at its best."""
        return self.table and self.explain


class PricesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where newer prices lie, if anywhere."""

    snapshot_url: Annotated[
        str | None, Option("URL of a published snapshot of prices that is read first.", way="setting")
    ] = None
    offline: Annotated[
        bool, Option("Read no published prices, whatever the setting snapshot-url says.", EVIDENCE)
    ] = False


SNAPSHOT_LIMIT_S = 1.0
"""For a published snapshot and its hash; after that the prices here do."""


def verb(request: RankRequest, shown: ShownRequest, prices: PricesRequest, *, as_json: bool) -> None:
    """Rank GPUs and instances by training per dollar, and say how sure that is.

    Needs no GPU and no network: measured figures where you have them, predictions elsewhere.
    """
    from gpubench.recommend.rank import brief_document, document, rank

    if prices.snapshot_url is not None and not prices.offline:
        _read_published(prices.snapshot_url, request)
    rows = HUMAN_LIMIT if request.limit is None else request.limit
    kept = request.limit if as_json else rows
    wants_table = request.limit is not None or any(msgspec.structs.astuple(shown))
    one_a_gpu = request.one_a_gpu or not (as_json or shown.every_offer)
    ranking = rank(msgspec.structs.replace(request, limit=kept, one_a_gpu=one_a_gpu))

    def screen() -> list[Part]:
        return first_screen(ranking, notes_in_full=bool(request.own or request.offers))

    answer(
        as_json,
        lambda: document(ranking, request),
        lambda: [
            *(ranking_parts(ranking, rows, shown) if wants_table else screen()),
            *set_in_a_file(request),
        ],
        (lambda: brief_document(ranking, request)) if shown.brief else None,
    )
    if as_json:
        return
    if sys.stdout.isatty():
        from gpubench.sections.verdict import headline

        say(headline(ranking))  # its first line has left the screen by now
    say(
        "Next: `gpubench offers refresh` reads today's prices; `gpubench run` measures the GPU here, or the "
        "CPU where there is none; `gpubench try` measures the answer where it is rented; `gpubench report` "
        "makes the page."
    )


def _read_published(url: str, request: RankRequest) -> None:
    """Take the newer prices of a published snapshot over; without them those that are here do."""
    from gpubench.offers.refresh import take_over
    from gpubench.offers.sources import SourceError
    from gpubench.offers.transport import HttpTransport

    try:
        with HttpTransport(within_s=SNAPSHOT_LIMIT_S) as transport:
            take_over(url, transport, results=request.results)
    except (SourceError, StorageError) as error:
        say(f"snapshot-url: {error}; the prices that are here stand, with their days")


def set_in_a_file(request: RankRequest) -> list[Part]:
    """Return the line that says which settings of a file the answer rests on."""
    from gpubench.blocks.parts import Paragraph

    told = f"Set in {' or '.join(FILES)} of this folder: {'; '.join(request.settings)}."
    return [Paragraph(text=told)] if request.settings else []


def first_screen(ranking: Ranking, *, notes_in_full: bool) -> list[Part]:
    """Return the verdict, and what shows the rest.

    Args:
        ranking: The answer; its cautions stand in the verdict.
        notes_in_full: As where a person named machines or a table of their own: what became of them is said.
    """
    from gpubench.blocks.parts import Paragraph
    from gpubench.sections.data import of_ranking
    from gpubench.sections.section import brief
    from gpubench.sentences import texts
    from gpubench.units import count, plain

    gpus = count(len(ranking.decision.by_gpu), "GPU")
    notes = ranking.notes[: ranking.decisive_notes]
    rest = (
        f"{gpus}: --table" if notes_in_full else f"{count(len(notes), 'note')} to read first, {gpus}: --table"
    )
    first = [note for note in notes if note.startswith("Set aside of ")]
    below = [plain(note, 1000) for note in notes if note not in first] if notes_in_full else []
    first += [] if notes_in_full else [note for note in notes if note == texts()["toy_mix"]]
    card = brief(of_ranking(ranking, 0), "verdict")
    before, after = ([Paragraph(text=plain(each, 1000)) for each in said] for said in (first, [*below, rest]))
    return [*before, *card, *after]


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
    from gpubench.sections.data import of_ranking
    from gpubench.sections.section import brief
    from gpubench.sections.value import beaten_table, excluded_table, factor_table, shown_rows

    hint = None if shown.explain else more_by
    data = of_ranking(ranking, limit, every_offer=shown.every_offer, more_by=hint)
    rows = shown_rows(data, ranking)
    beside = [factor_table(rows)] if shown.table else []
    left_out = [beaten_table(rows), excluded_table(ranking)] if shown.explain else []
    return [*brief(data, "verdict", "value", "owning"), *beside, *left_out]


VERB = Verb(verb, place=120, also_called=("recommend", "best", "buy", "rent", "choose"))
