from gpubench.cli.output import answer, say
from gpubench.recommend.feed import feed
from gpubench.recommend.request import FeedRequest
from gpubench.sections.lists import prepared


def verb(request: FeedRequest, *, as_json: bool) -> None:
    report = feed(request)
    if report.remark and not as_json:
        say(report.remark)
    answer(as_json, lambda: report, lambda: prepared(report))
