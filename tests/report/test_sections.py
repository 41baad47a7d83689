"""Each section has the right text for known input, and all of them keep a contract."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from gpubench.blocks.parts import Block, Bullets, Facts, Paragraph, Table, as_html
from gpubench.effects import amp_effects
from gpubench.models import Execution, Precision, Pricing, Status
from gpubench.recommend.lines import basis_text
from gpubench.recommend.rows import best_of_each_gpu
from gpubench.sections import compared, device, measured
from gpubench.sections.data import HEADINGS, PLACES
from gpubench.sections.data import block_of as section_of

from . import samples
from .contract import SectionContract, texts


def block_of(key: str, data) -> Block | None:
    """Return a section; a part of measurements, comparisons or devices is returned as a section of its own."""
    if key in PLACES:
        return section_of(key, data)
    told = next(getattr(module, key) for module in (measured, compared, device) if hasattr(module, key))
    parts = tuple(told(data))
    return Block(title=key, parts=parts) if parts else None


def words_of(key: str, data) -> str:
    block = block_of(key, data)
    return "" if block is None else " ".join(texts(block))


@pytest.mark.parametrize("section", PLACES)
class TestBuiltInSections(SectionContract):
    pass


def test_the_answer_comes_first_and_its_notes_follow():
    data = samples.report_data(samples.h200_run())
    headline, answers = section_of(next(iter(PLACES)), data).parts[:2]
    assert headline.tone == "headline"
    assert answers.rows
    (note,) = data.ranking.said("note")
    assert note in words_of("evidence", data)


def test_an_interval_of_one_launch_is_called_one_within_a_process():
    for run, alone in ((samples.cpu_run(), True), (samples.h200_run(), False)):
        data = samples.report_data(run)
        assert ("from one process" in words_of("throughput", data)) is alone
        assert ("from one process" in words_of("evidence", data)) is alone


def test_without_runs_it_is_reported_that_nothing_was_measured_here():
    assert "Nothing was measured" in words_of("evidence", samples.report_data())


def test_a_cpu_is_called_a_cpu_and_anchors_no_gpu():
    text = words_of("evidence", samples.report_data(samples.cpu_run()))
    assert "is a CPU" in text
    assert "no GPU prediction starts from a CPU measurement" in text


def test_a_failed_ranking_leaves_its_reason():
    data = samples.report_data(
        samples.h200_run(), ranking=None, ranking_problem="no offer is left: 3 dropped by --region"
    )
    assert "no offer is" in words_of("answer", data)
    assert block_of("value", data) is None


def test_the_device_table_compares_the_data_sheet_with_the_driver():
    table = next(
        p for p in block_of("device", samples.report_data(samples.h200_run())).parts if isinstance(p, Table)
    )
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Memory bandwidth"] == ("4.81 TB/s", "4.80 TB/s")
    assert rows["Multiprocessors"] == ("132", "132")


def test_amp_is_compared_with_a_baseline_that_is_named():
    text = words_of("amp", samples.report_data(samples.h200_run()))
    assert "against fp32 (IEEE, TF32 off)" in text
    assert "strict IEEE" in text


def test_a_speed_up_is_the_ratio_of_throughputs_with_errors_in_quadrature():
    """fp32 takes 100 ms and AMP 20 ms, with half-widths a and b: 5, times or over exp(hypot(ln(1+a), ln(1+b)))."""
    fp32 = samples.measurement(samples.case(precision=Precision.FP32), 0.1, 0.01)
    amp = samples.measurement(samples.case(precision=Precision.AMP_BF16), 0.02, 0.01)
    run = samples.h200_run(measurements=(fp32, amp))
    (pair,) = amp_effects(samples.report_data(run).results)
    assert pair.value == pytest.approx(amp.samples_per_s / fp32.samples_per_s)
    width = math.hypot(math.log1p(amp.relative_half_width), math.log1p(fp32.relative_half_width))
    assert math.log(pair.interval.high / pair.value) == pytest.approx(width)
    assert pair.interval.low * pair.interval.high == pytest.approx(pair.value**2)


def test_amp_is_never_paired_across_executions_or_batches():
    fp32 = samples.measurement(samples.case(precision=Precision.FP32, execution=Execution.EAGER), 0.1)
    other = samples.measurement(samples.case(precision=Precision.TF32, batch=128), 0.1)
    amp = samples.measurement(samples.case(precision=Precision.AMP_BF16), 0.02)
    assert amp_effects(samples.report_data(samples.h200_run(measurements=(fp32, other, amp))).results) == ()


def test_the_cost_of_the_cheapest_work_follows_from_price_and_throughput():
    """1,180 images a second at 0.34 USD/h: a million takes 847 s and thus costs 0.0800 USD."""
    cheapest = min(samples.ranking().rows, key=lambda row: row.usd_per_million_samples)
    assert cheapest.usd_per_million_samples == pytest.approx(0.0800, abs=5e-5)


def test_each_kind_of_gpu_is_listed_once_with_its_best_offer():
    rows = best_of_each_gpu(samples.ranking().rows)
    assert len({row.offer.gpu_key for row in rows}) == len(rows)
    assert rows[0].rank == 1


def test_failed_rows_are_shown_with_their_reason():
    text = words_of("method", samples.report_data(samples.h200_run()))
    assert "out of memory" in text
    assert "batch of 2048" in text


def test_findings_say_what_to_do():
    assert "or use --execution graph" in words_of("method", samples.report_data(samples.h200_run()))


def test_files_that_could_not_be_read_are_counted():
    text = words_of("method", samples.report_data(samples.h200_run(), problems=("a.json: cut short",)))
    assert "1 result file" in text
    nothing_else = words_of("method", samples.report_data(problems=("a.json: cut short",)))
    assert "Nothing was measured" in nothing_else
    assert "a.json: cut short" in nothing_else


def test_old_prices_are_not_called_current():
    text = words_of("prices", samples.report_data())
    assert "not current" in text
    assert "up to 323 days" in words_of("value", samples.report_data())
    assert "the earliest possible day" in text


def test_several_gpus_are_predicted_from_a_measured_one():
    one, eight = (
        samples.ranked(1, samples.offer("nvidia-h100-sxm-80gb", "4", count=count), 2880.0, basis="reference")
        for count in (1, 8)
    )
    assert (basis_text(one), basis_text(eight)) == ("measured", "predicted")


def test_the_source_of_a_used_price_is_named_in_full():
    """A ledger under CC BY requires its name and license both in a document's row and on the page."""
    ledger = "GPU rental price data by gpurentalprices.com, CC BY 4.0, from https://example.org/" + "p" * 120
    row = samples.ranked(1, samples.offer("nvidia-l4-24gb", "0.71", source=ledger), 330.0)
    assert row.flat()["price_source"] == ledger
    assert ledger in words_of("prices", samples.report_data(ranking=samples.ranking(rows=(row,))))


def test_the_rental_compared_with_a_card_is_named_in_full_and_its_pricing_once():
    reserved = "8x H100 SXM5 80GB at aws p5.48xlarge us-east-1 (reserved 1 y)"
    for against, pricing, shown in (
        (reserved, Pricing.RESERVED, reserved),
        ("1x L4 at gcp", Pricing.ON_DEMAND, "1x L4 at gcp, on demand"),
    ):
        decision = samples.buy_or_rent(against=against, against_pricing=pricing)
        shown_block = block_of("owning", samples.report_data(buy_or_rent=(decision,)))
        owning = next(part for part in shown_block.brief if isinstance(part, Table))
        titles = [column.title for column in owning.columns]
        assert owning.rows[0][titles.index("Against")] == shown


def test_doubts_about_used_specification_rows_are_footnotes():
    data = samples.report_data(samples.h200_run())
    assert data.spec.doubt
    assert data.spec.doubt[:40] in words_of("footnotes", data)


def test_unusable_data_still_gives_every_section():
    run = samples.h200_run()
    failed = tuple(
        msgspec.structs.replace(m, status=Status.FAILED, reason="crash", launches=())
        for m in run.measurements
    )
    data = samples.report_data(samples.h200_run(measurements=failed))
    assert block_of("throughput", data) is None
    assert "crash" in words_of("method", data)


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match="columns"):
        Table(caption="x", columns=(), rows=(("a",),))


def test_parts_are_distinguished_by_the_text_collector():
    block = Block(title="t", parts=(Facts(rows=()), Bullets(items=("b",)), Paragraph(text="p")))
    assert texts(block) == ["t", "b", "p"]


def test_remarks_that_a_table_refers_to_are_numbered_on_the_page():
    for is_numbered, tag in ((True, "ol"), (False, "ul")):
        page = as_html(Block(title="t", parts=(Bullets(items=("b",), numbered=is_numbered),)))
        assert f'<{tag} class="bullets">' in page
        assert f"</{tag}>" in page


def test_every_heading_is_in_the_documentation_and_has_sections():
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    used = {heading for _, heading in PLACES.values()}
    assert used - {None} == set(HEADINGS)
    for name in HEADINGS.values():
        assert f"| {name} |" in text, name
