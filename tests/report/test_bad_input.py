"""Pages without data, with only failures, and with names that are far too long, right-to-left, or markup."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.models import Measurement, Status
from gpubench.report.page import render

from . import samples

NAMES = {
    "long": "x" * 10_000,
    "words": "long name " * 1_000,
    "right to left": "\u202e\u05de\u05e2\u05d1\u05d3\u202c \u0645\u0639\u0627\u0644\u062c",
    "markup": "<b onclick=alert(1)>|**`[x](y)`{{ 7*7 }}</b></script>",
    "empty": "",
}


def named(name: str):
    """Return a run with this name for its device, workload and environment."""
    run = samples.h200_run()
    first = run.measurements[0]
    case = msgspec.structs.replace(first.case, workload=name or "x", sample_unit=name or "image")
    return msgspec.structs.replace(
        run,
        device=msgspec.structs.replace(run.device, name=name, gpu_key=None),
        environment=msgspec.structs.replace(run.environment, cpu=name, os=name),
        measurements=(msgspec.structs.replace(first, case=case), *run.measurements[1:3]),
        micro=(),
    )


@pytest.mark.parametrize("kind", ["html", "md", "json", "csv"])
@pytest.mark.parametrize("name", list(NAMES))
def test_a_name_is_text_of_bounded_length_in_every_format(name, kind):
    text = render(samples.report_data(named(NAMES[name])), kind)
    if kind == "html":
        assert "<b onclick" not in text
        assert "\u202e" not in text
        shown = text.partition('id="figures"')[0]
        assert "x" * 500 not in shown
    if kind == "md":
        assert "<b onclick" not in text
        assert "x" * 500 not in text


def test_a_right_to_left_name_does_not_reverse_adjacent_text():
    name = "\u05de\u05e2\u05d1\u05d3 \u05d2\u05e8\u05e4\u05d9"
    text = render(samples.report_data(named(f"{name} (32 GB)")), "html")
    assert f"<h1>\u2068{name}\u2069 (32 GB)</h1>" in text


def test_a_page_without_a_ranking_shows_the_measurements():
    data = samples.report_data(samples.cpu_run(), ranking=None, ranking_problem="no offer is left")
    shown = render(data, "html")
    assert '<p class="warning">no offer is left</p>' in shown
    assert shown.index("no offer is left") < shown.index("<h2>Throughput")


@pytest.mark.parametrize("kind", ["html", "md", "json", "csv"])
def test_a_run_with_only_failures_gives_a_page_that_says_why(kind):
    failed = tuple(
        Measurement(case=m.case, status=Status.FAILED, reason="CUDA error: illegal memory access")
        for m in samples.h200_run().measurements
    )
    text = render(samples.report_data(samples.h200_run(measurements=failed, micro=())), kind)
    assert "illegal memory access" in text
    assert "NVIDIA H200" in text


@pytest.mark.parametrize("kind", ["html", "md", "json", "csv"])
def test_no_run_and_no_ranking_still_give_a_page(kind):
    text = render(samples.report_data(ranking=None, ranking_problem="no offer is left"), kind)
    assert text
    if kind in {"html", "md"}:
        assert "no offer is" in text
