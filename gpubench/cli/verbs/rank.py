"""`gpubench rank`: options in, one call, a table or JSON out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec

from gpubench.blocks.parts import Part
from gpubench.cli.options import Verb
from gpubench.cli.output import BriefRequest, answer, say
from gpubench.options import Option
from gpubench.recommend.request import OUTPUT, RankRequest
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


def verb(request: RankRequest, shown: ShownRequest, *, as_json: bool) -> None:
    """Rank GPUs and instances by training per dollar, and say how sure that is.

    Needs no GPU and no network: measured figures where you have them, predictions elsewhere.
    """
    from gpubench.recommend.rank import brief_document, document, rank
    from gpubench.sections.answer import screen

    rows = HUMAN_LIMIT if request.limit is None else request.limit
    kept = request.limit if as_json else rows
    wants_table = request.limit is not None or any(msgspec.structs.astuple(shown))
    one_a_gpu = request.one_a_gpu or not (as_json or shown.every_offer)
    ranking = rank(msgspec.structs.replace(request, limit=kept, one_a_gpu=one_a_gpu))

    answer(
        as_json,
        lambda: document(ranking, request),
        lambda: [
            *(ranking_parts(ranking, rows, shown) if wants_table else screen(ranking)),
            *set_in_a_file(request),
        ],
        (lambda: brief_document(ranking, request)) if shown.brief else None,
    )
    if as_json:
        return
    if sys.stdout.isatty():
        from gpubench.recommend.lines import headline

        say(headline(ranking))  # its first line has left the screen by now
    say(
        "Next: `gpubench offers refresh` reads today's prices; `gpubench run` measures the GPU here, or the "
        "CPU where there is none; `gpubench try` measures the answer where it is rented; `gpubench report` "
        "makes the page."
    )


def set_in_a_file(request: RankRequest) -> list[Part]:
    """Return the line that says which settings of a file the answer rests on."""
    from gpubench.blocks.parts import Paragraph

    told = f"Set in {' or '.join(FILES)} of this folder: {'; '.join(request.settings)}."
    return [Paragraph(text=told)] if request.settings else []


def ranking_parts(
    ranking: Ranking, limit: int, shown: ShownRequest = ShownRequest(), *, more_by: str = "--explain"
) -> list[Part]:
    """Return the answer, so many rows, buying against renting, and what was asked for besides.

    Args:
        ranking: With the rows to show among its own.
        limit: Most rows.
        shown: Whether each is an offer, else each is a GPU at its best, and what is shown besides.
        more_by: What shows the notes that are left out here.
    """
    from gpubench.sections.data import of_ranking
    from gpubench.sections.section import brief
    from gpubench.sections.value import beaten_table, excluded_table, factor_table, shown_rows

    hint = None if shown.table or shown.explain else more_by
    data = of_ranking(ranking, limit, every_offer=shown.every_offer, more_by=hint)
    rows = shown_rows(data, ranking)
    beside = [factor_table(rows)] if shown.table else []
    left_out = [beaten_table(rows), excluded_table(ranking)] if shown.explain else []
    return [*brief(data, "answer", "value", "owning"), *beside, *left_out]


VERB = Verb(verb, place=120, also_called=("recommend", "best", "buy", "rent", "choose"))
