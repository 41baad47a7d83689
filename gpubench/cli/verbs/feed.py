"""`gpubench feed`: can this host prepare images as fast as a GPU takes them?"""

from __future__ import annotations

from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.recommend.request import FeedRequest


def verb(request: FeedRequest, *, as_json: bool) -> None:
    """Say whether this host can prepare images as fast as a GPU trains on them (needs kornia)."""
    from gpubench.recommend.feed import feed
    from gpubench.sections.feeding import prepared

    report = feed(request)
    if report.remark and not as_json:
        say(report.remark)
    answer(as_json, lambda: report, lambda: prepared(report))


VERB = Verb(verb, place=140)
