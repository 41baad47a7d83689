"""The sections on host, memory, loss, telemetry, micro-benchmarks, CPU, devices, prediction and owning."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.blocks.parts import Charts, Table
from gpubench.effects import amp_effects, effect, execution_effects
from gpubench.findings import DOUBTFUL
from gpubench.interval import Interval
from gpubench.models import (
    Checkpointing,
    Execution,
    Finding,
    FindingKind,
    Launch,
    Measurement,
    ParallelMode,
    Precision,
    Round,
    Status,
    TaskKind,
    TelemetrySample,
)
from gpubench.sections.compared import LOOKS, cpu_gpu_pairs, points_of
from gpubench.spread import PARTS
from gpubench.units import UNKNOWN, format_number, format_percent

from . import samples
from .test_sections import block_of, words_of


def table_of(key: str, data) -> Table:
    block = block_of(key, data)
    found = [p for p in block.parts if isinstance(p, Table)] + [
        p.twin for p in block.parts if isinstance(p, Charts)
    ]
    return found[0]


def test_eager_and_graph_are_paired_with_all_else_equal():
    pairs = execution_effects(samples.report_data(samples.h200_run()).results)
    assert len(pairs) == 9
    for pair in pairs:
        assert pair.baseline.case == msgspec.structs.replace(pair.result.case, execution=Execution.EAGER)


def test_a_faster_gpu_is_not_recommended_for_host_bound_cases():
    text = words_of("host", samples.report_data(samples.h200_run()))
    assert "limits 6 of 9 cases" in text
    assert "A faster GPU will not help" in text


def test_a_device_bound_run_says_that_a_faster_gpu_would_help():
    rows = tuple(m for m in samples.h200_run().measurements if m.case.workload == "vgg16")
    assert "No case" in words_of("host", samples.report_data(samples.h200_run(measurements=rows)))


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ((1.01, 1.03), "No case is limited"),
        ((0.98, 1.06), "no difference found; 6 % would have been detected"),
        ((0.9, 1.3), "unclear whether"),
        ((0.99, 1.6), "unclear whether"),
        ((1.2, 1.4), "Launch overhead on the CPU limits 3 of 3 cases when run eagerly (vgg16)"),
        ((None, None), "unclear whether"),
    ],
)
def test_interval_decides_whether_host_or_device_is_the_bottleneck(monkeypatch, ends, found):
    rows = tuple(m for m in samples.h200_run().measurements if m.case.workload == "vgg16")
    data = samples.report_data(samples.h200_run(measurements=rows))
    low, high = ends
    middle = 1.0 if low is None else (low + high) / 2
    monkeypatch.setattr("gpubench.effects.ratio", lambda *_: Interval(middle, *ends))
    assert found in words_of("host", data)


def test_amp_states_peak_memory_and_loss_with_the_speedup():
    data = samples.report_data(samples.h200_run())
    row = table_of("amp", data).rows[0]
    assert row[-3].startswith("1.00×")
    assert "30 steps" in row[-2]


def amp_over_fp32(
    step_s: float, spread: float, peaks: tuple[int, int] = (1, 1), findings: tuple[Finding, ...] = ()
):
    """Return data with AMP and fp32 of one workload; fp32 takes 0.1 s a step, the peaks are of AMP and fp32 [B]."""
    rows = []
    ways = ((Precision.AMP_BF16, step_s, peaks[0]), (Precision.FP32, 0.1, peaks[1]))
    for precision, each_s, peak_bytes in ways:
        rounds = tuple(Round(steps=10, wall_s=10 * each_s * (1 + sign * spread)) for sign in (1, -1) * 10)
        of_launch = Launch(index=0, rounds=rounds, peak_memory_bytes=peak_bytes, **samples.PROOFS)
        rows.append(
            Measurement(
                case=samples.case(precision=precision),
                status=Status.OK,
                launches=(of_launch,),
                findings=findings,
            )
        )
    return samples.report_data(samples.h200_run(measurements=tuple(rows)))


def test_amp_is_called_slower_only_if_its_whole_interval_is():
    """4 % slower: certain with rounds that agree to 0.1 %, possible with rounds that differ by 20 %."""
    assert "In 1 pair AMP is slower" in words_of("amp", amp_over_fp32(0.104, 0.001))
    perhaps = amp_over_fp32(0.104, 0.1)
    (pair,) = amp_effects(perhaps.results)
    assert pair.interval.value < 1 < pair.interval.high
    assert "AMP is slower" not in words_of("amp", perhaps)


def test_the_host_is_named_as_the_cause_of_a_slower_amp_only_where_it_was_found_to_be():
    unflagged = words_of("amp", amp_over_fp32(0.104, 0.001))
    assert "In 1 pair AMP is slower even at the top of the interval." in unflagged
    host_bound = (Finding(kind=FindingKind.HOST_BOUND, value=1.3, limit=1.1),)
    (faster,), (slower,) = (
        amp_over_fp32(0.05, 0.001).runs,
        amp_over_fp32(0.2, 0.001, findings=host_bound).runs,
    )
    small = (
        msgspec.structs.replace(row, case=msgspec.structs.replace(row.case, batch_size=8))
        for row in slower.measurements
    )
    both = samples.h200_run(measurements=(*faster.measurements, *small))
    assert "top of the interval, because the host limits" in words_of("amp", samples.report_data(both))


def test_amp_states_its_own_peak_before_that_of_the_baseline():
    (row,) = table_of("amp", amp_over_fp32(0.05, 0.001, (6 * 2**30, 12 * 2**30))).rows
    assert row[-3] == "0.500×\n6.00 GiB versus 12.0 GiB"


def pair_with_losses(curves):
    """Return the effect of AMP with these loss curves by precision."""
    rows = []
    for precision, curve in curves.items():
        m = samples.measurement(samples.case(precision=precision), 0.02)
        launches = tuple(msgspec.structs.replace(each, loss_curve=curve) for each in m.launches)
        rows.append(msgspec.structs.replace(m, launches=launches))
    (pair,) = amp_effects(samples.report_data(samples.h200_run(measurements=tuple(rows))).results)
    return pair


def test_the_loss_gap_is_the_mean_of_the_last_fifth_of_the_common_steps_in_whole_rotations():
    """A fifth of 49 common steps is 9, in whole rotations 8: a mean of 1.3 against 1.0."""
    curves = {
        Precision.AMP_BF16: (*[9.0] * 41, *[1.5, 1.1] * 4),
        Precision.FP32: (*[9.0] * 41, *[1.0] * 8, 0.1),
    }
    gap = pair_with_losses(curves).loss_gap
    assert (gap.result, gap.baseline, gap.steps, gap.value) == pytest.approx((1.3, 1.0, 49, 0.3))


def test_a_loss_that_is_not_finite_gives_no_gap():
    pair = pair_with_losses(dict.fromkeys((Precision.AMP_BF16, Precision.FP32), (1.0,) * 9 + (None,)))
    assert pair.loss_gap is None


def test_a_gain_is_not_claimed_from_noise():
    rows = [
        samples.measurement(samples.case(precision=p), s, spread=0.6)
        for p, s in ((Precision.FP32, 0.1), (Precision.AMP_BF16, 0.02))
    ]
    assert "No pair was" in words_of("amp", samples.report_data(samples.h200_run(measurements=tuple(rows))))


def test_a_flagged_pair_is_grayed_out_and_never_in_the_headline():
    run = samples.h200_run()
    noisy = tuple(
        msgspec.structs.replace(m, findings=(Finding(kind=FindingKind.NOISY, value=0.2, limit=0.05),))
        if m.case.workload == "vgg16"
        else m
        for m in run.measurements
    )
    data = samples.report_data(samples.h200_run(measurements=noisy))
    assert words_of("amp", data).split(".")[0].count("vgg16") == 0
    figure = next(p for p in block_of("amp", data).parts if isinstance(p, Charts)).figures[0].figure
    gray = [trace for trace in figure["data"] if trace["marker"]["symbol"].endswith("-open")]
    assert sum(len(trace["x"]) for trace in gray) == 8, (
        "four of vgg16, and four that are host-bound in eager execution"
    )
    assert {trace["marker"]["color"] for trace in gray} == {"#7a8594"}


@pytest.mark.parametrize("kind", sorted(DOUBTFUL))
@pytest.mark.parametrize("of_run", [False, True])
def test_no_doubtful_figure_is_a_headline_and_each_doubt_is_named(kind, of_run):
    rows = tuple(
        samples.measurement(samples.case(precision=precision), step_s, 0.001)
        for precision, step_s in ((Precision.FP32, 0.1), (Precision.AMP_BF16, 0.02))
    )
    found = (Finding(kind=kind, value=0.5),)
    run = samples.h200_run(measurements=rows)
    if of_run:
        run = msgspec.structs.replace(run, findings=found)
    else:
        marked = msgspec.structs.replace(rows[1], findings=found)
        run = msgspec.structs.replace(run, measurements=(rows[0], marked))
    data = samples.report_data(run)
    assert "largest gain" not in words_of("amp", data)
    assert table_of("amp", data).rows[0][-1] == kind


def test_telemetry_names_the_reasons_for_a_reduced_clock():
    text = words_of("method", samples.report_data(samples.h200_run()))
    assert "SwPowerCap 30 %" in text
    assert "Energy per sample" in text
    assert "Telemetry during" in text
    assert "Telemetry during" not in words_of("method", samples.report_data(samples.cpu_run()))


def test_micro_benchmarks_are_shown_with_the_dense_rate_of_their_precision():
    data = samples.report_data(samples.h200_run())
    rows = {row[0]: row for row in table_of("micro", data).rows}
    best = rows["gemm bf16\n4096, the best size"]
    assert best[1].startswith("722.7 TFLOP/s")
    assert best[2] == "989 TFLOP/s"
    assert best[3] == "73.0 %"
    assert "gemm bf16\n8192" in rows
    assert rows["device copy\n2048 MiB"][3] == "88.9 %"
    assert rows["launch wall\n1000"][3] == "—"


def test_a_micro_benchmark_has_the_telemetry_of_its_time():
    watched = msgspec.structs.replace(
        samples.micro()[3], mean_power_w=612.0, sm_clock_min_hz=1.755e9, clock_event_reasons=("sw_power_cap",)
    )
    data = samples.report_data(samples.h200_run(micro=(watched,)))
    (row,) = table_of("micro", data).rows
    assert row[5].split("\n") == ["612 W", "at least 1.75 GHz", "sw_power_cap"]


def test_the_gpu_is_compared_with_the_cpu_and_the_note_says_that_the_batches_differ():
    data = samples.report_data(samples.h200_run(), samples.cpu_run())
    found = {c.cpu.case.workload: c for c in cpu_gpu_pairs(data)}
    assert set(found) == {"cnn", "lstm", "vgg16"}
    gpu, cpu = found["vgg16"].gpu, found["vgg16"].cpu
    assert effect(gpu, cpu).value == pytest.approx(3259 * 1.31, rel=0.02)
    assert gpu.case.batch_size != cpu.case.batch_size
    assert "batches differ" in words_of("processor", data)


def test_equal_batches_are_preferred():
    gpu = samples.h200_run(
        measurements=(*samples.h200_run().measurements, samples.measurement(samples.case("cnn", 64), 0.00035))
    )
    found = {c.cpu.case.workload: c for c in cpu_gpu_pairs(samples.report_data(gpu, samples.cpu_run()))}
    assert found["cnn"].gpu.case.batch_size == found["cnn"].cpu.case.batch_size == 64


def test_a_factor_is_reported_only_at_an_equal_batch_without_doubt():
    rows = [
        samples.measurement(samples.case("cnn", 64), 0.00035),
        msgspec.structs.replace(
            samples.measurement(samples.case("lstm", 64), 0.00035),
            findings=(Finding(kind=FindingKind.NOISY),),
        ),
        samples.measurement(samples.case("vgg16", 512), 0.00035),
    ]
    data = samples.report_data(samples.h200_run(measurements=tuple(rows)), samples.cpu_run())
    factors = {row[0]: row[3].partition("\n") for row in table_of("processor", data).rows}
    assert factors["lstm"] == ("—", "\n", "flagged")
    assert factors["vgg16"] == ("—", "\n", "batches differ")


def test_the_threads_are_shown_with_every_figure_of_the_cpu():
    data = samples.report_data(samples.h200_run(), samples.cpu_run())
    rows = table_of("processor", data).rows
    assert all(", 2 threads" in row[1] and "threads" not in row[2] for row in rows)


def test_for_a_small_network_no_gpu_is_needed():
    """At 4,540 images a second, a million take cnn 220 s; VGG16 trains only 0.76 images a second."""
    text = words_of("processor", samples.report_data(samples.cpu_run()))
    assert "For cnn no GPU is needed" in text
    assert "For lstm no GPU is needed" in text
    assert "For vgg16 (flagged NOT_CONVERGED) a GPU is needed" in text
    assert "is undecided" not in text


def cpu_page(*measurements) -> str:
    return words_of("processor", samples.report_data(samples.cpu_run(measurements=measurements)))


def on_the_cpu(step_s: float, spread: float = 0.02, **changes):
    case = samples.case("cnn", 64, Precision.FP32, Execution.EAGER, memory_format=None, **changes)
    made = samples.measurement(case, step_s, launches=1, telemetry=False)
    rounds = tuple(Round(steps=10, wall_s=10 * step_s * (1 + sign * spread)) for sign in (1, -1) * 10)
    return msgspec.structs.replace(made, launches=(msgspec.structs.replace(made.launches[0], rounds=rounds),))


def test_slow_cpu_report_states_its_speed_and_promises_no_gpu_speedup():
    """A million images of VGG16 at 0.76 a second take 15 days."""
    text = cpu_page(*(m for m in samples.cpu_run().measurements if m.case.workload == "vgg16"))
    assert "vgg16 (flagged NOT_CONVERGED)" in text
    assert "10 times the limit of 15 min." in text


def test_a_difference_inside_the_interval_is_not_claimed():
    """64 images in 57.6 ms are a million in 15 minutes: at this limit only the interval decides."""
    pace_s = 64 * 900 / 1e6
    open_ones = cpu_page(on_the_cpu(pace_s)), cpu_page(on_the_cpu(pace_s * 0.98, 0.1))
    assert all("it is undecided" in each for each in open_ones), "the low end is too slow"
    assert not any("too slow to" in each for each in open_ones)
    assert "cnn no GPU" in cpu_page(on_the_cpu(pace_s * 0.9))
    assert "cnn this CPU" in cpu_page(on_the_cpu(pace_s * 1.1))
    one_round = on_the_cpu(pace_s / 2)
    launch = msgspec.structs.replace(one_round.launches[0], rounds=one_round.launches[0].rounds[:1])
    bare = msgspec.structs.replace(one_round, launches=(launch,))
    assert bare.samples_per_s_low is None
    assert "it is undecided" in cpu_page(bare), "no interval"


def test_one_slow_case_does_not_make_the_cpu_slow():
    slow = msgspec.structs.replace(on_the_cpu(0.2), case=samples.case("cnn", 64, Precision.FP32))
    text = cpu_page(slow, on_the_cpu(0.0141))
    assert "cnn no GPU" in text
    assert "too slow" not in text


def test_without_training_the_section_says_so_and_names_no_limit():
    text = cpu_page(on_the_cpu(0.0141, task=TaskKind.INFER))
    assert "no reliable training" in text
    assert "15 min" not in text


def test_a_flagged_figure_of_cpu_or_gpu_is_marked():
    rows = table_of("processor", samples.report_data(samples.h200_run(), samples.cpu_run())).rows
    cells = {row[0]: row[1] for row in rows}
    assert cells["vgg16"].endswith("\nflagged NOT_CONVERGED")
    assert "flagged" not in cells["cnn"]


def test_one_thread_is_singular():
    run = samples.cpu_run(environment=samples.environment(cpu_threads=1))
    rows = table_of("processor", samples.report_data(run)).rows
    assert all(", 1 thread" in row[1] and "threads" not in row[1] for row in rows)


def other_gpu():
    device = msgspec.structs.replace(
        samples.h200(), name="NVIDIA L4", gpu_key="nvidia-l4-24gb", device_id="e" * 16
    )
    return samples.h200_run(run_id="20261101T000000Z-e", started_at="2026-11-01T00:00:00Z", device=device)


def test_two_gpus_are_compared_on_equal_cases_with_an_interval():
    data = samples.report_data(samples.h200_run(), other_gpu())
    table = table_of("devices", data)
    assert {row[1] for row in table.rows} == {"NVIDIA H200", "NVIDIA L4"}
    assert {row[3].split("\n")[0] for row in table.rows} == {"—", "1.00×"}, "a ratio has three digits"


def test_roofline_point_matches_its_flops_and_bytes():
    """Points are below the lower of the two roofs, and small networks are left of large ones."""
    points = {
        (p.result.case.workload, p.result.case.precision): p
        for p in points_of(samples.report_data(samples.h200_run()))
    }
    fp32 = points["vgg16", Precision.FP32]
    assert fp32.rate < fp32.roof == pytest.approx(66.9e12, rel=0.02)
    assert points["lstm", Precision.FP32].intensity < fp32.intensity
    assert points["vgg16", Precision.AMP_BF16].intensity > fp32.intensity


@pytest.mark.parametrize("precision", [p for p in Precision if p is not Precision.FP32])
def test_every_step_in_half_precision_moves_half_of_the_bytes(precision: Precision):
    """vgg16 at batch 64 moves 41.8 GB at 4 bytes per element, 20.9 at 2, plus 2.8 for its optimizer either way."""
    made = samples.measurement(samples.case("vgg16", 64, precision), 0.04)
    (point,) = points_of(samples.report_data(samples.h200_run(measurements=(made,))))
    moved = 2.77e9 + 41.85e9 * (1.0 if precision is Precision.TF32 else 0.5)
    assert point.intensity == pytest.approx(64 * 92.648e9 / moved, rel=0.01)


def test_two_gpus_without_a_common_case_are_not_compared():
    lone = msgspec.structs.replace(
        other_gpu(), measurements=(samples.measurement(samples.case("vgg16", 128), 0.04),)
    )
    assert block_of("devices", samples.report_data(samples.h200_run(), lone)) is None


def test_predictions_state_their_interval_and_basis():
    text = words_of("prediction", samples.report_data(samples.h200_run()))
    assert "13 of 15 kinds" in text
    assert "×0.77 to ×1.30" in text


def test_a_distant_prediction_is_called_a_guess():
    ranking = samples.ranking()
    rows = [
        msgspec.structs.replace(
            row,
            estimate=msgspec.structs.replace(
                row.estimate, findings=(Finding(kind=FindingKind.OUT_OF_DOMAIN),)
            ),
        )
        for row in ranking.rows
    ]
    text = words_of(
        "prediction", samples.report_data(ranking=msgspec.structs.replace(ranking, rows=tuple(rows)))
    )
    assert "guess: RTX 4090" in text


def test_owning_is_compared_with_renting_the_same_work():
    decision = samples.buy_or_rent(years=3.0, utilization=0.4)
    table = table_of("owning", samples.report_data(buy_or_rent=(decision,)))
    assert table.rows[0][5].split("\n") == ["13,000 h", "4,000 h to never"]
    assert [line.partition(" %")[0] for line in table.rows[0][6].split("\n")] == ["50", "15"]
    assert table.rows[0][7].endswith("not pay off within 36 months at 40 %")
    text = words_of("owning", samples.report_data())
    assert "depends on how" in text
    assert "25 to 90 %" in text


def test_each_verdict_has_its_sentence():
    rows = tuple(samples.buy_or_rent(verdict=verdict, assumed=()) for verdict in ("buy", "rent"))
    text = words_of("owning", samples.report_data(buy_or_rent=rows))
    assert "buying is" in text
    assert "renting is" in text
    assert "Assumed" not in text


def test_without_a_purchase_price_the_section_is_missing():
    assert block_of("owning", samples.report_data(buy_or_rent=())) is None


def test_a_capped_power_limit_is_highlighted_with_the_device():
    capped = msgspec.structs.replace(samples.h200(), power_limit_w=450.0)
    text = words_of("device", samples.report_data(samples.h200_run(device=capped)))
    assert "450 W against 700 W" in text
    assert "against" not in words_of("device", samples.report_data(samples.h200_run()))


def test_a_page_about_the_cpu_still_includes_the_gpu_of_the_same_folder():
    data = samples.report_data(samples.h200_run(), samples.cpu_run(), about=samples.cpu_run().run_id)
    assert data.device.is_cpu
    assert {c.gpu.run.device.name for c in cpu_gpu_pairs(data)} == {"NVIDIA H200"}
    assert "also has runs" in words_of("evidence", data)


def test_inference_states_median_and_tail_of_single_passes():
    """A hundred passes take 1 to 100 ms, so the median is between 50 and 51 ms and the tail near 99 ms."""
    m = samples.measurement(samples.case("resnet50", 64, task=TaskKind.INFER), 0.01, telemetry=False)
    passes = tuple(i / 1e3 for i in range(1, 101))
    timed = msgspec.structs.replace(
        m, launches=(msgspec.structs.replace(m.launches[0], latency_s=passes), *m.launches[1:])
    )
    data = samples.report_data(samples.h200_run(measurements=(timed,)))
    row = table_of("latency", data).rows[0]
    assert row[1] in {"50.0 ms", "50.5 ms", "51.0 ms"}
    assert row[3].startswith(("99", "100"))
    assert block_of("latency", samples.report_data(samples.h200_run())) is None


def test_generation_reports_first_token_time_and_tail_latency():
    """A prompt of 512 tokens takes 0.5 s, then a token 20 ms, and one in fifty 90 ms."""
    case = msgspec.structs.replace(
        samples.case("llama_8b", 4, task=TaskKind.INFER), prompt_tokens=512, new_tokens=128, cache_tokens=640
    )
    m = samples.measurement(case, 0.01, telemetry=False)

    def row_of(gaps: int) -> tuple[str, ...]:
        launch = msgspec.structs.replace(
            m.launches[0],
            first_token_s=(0.5, 0.5, 0.6),
            per_token_s=(0.02, 0.02, 0.03),
            token_gap_s=tuple(0.09 if n % 50 == 0 else 0.02 for n in range(gaps)),
        )
        timed = msgspec.structs.replace(m, launches=(launch, *m.launches[1:]))
        return table_of("generation", samples.report_data(samples.h200_run(measurements=(timed,)))).rows[0]

    work, first, after, p50, p99, prompt, generated = row_of(1000)
    assert work.startswith("llama_8b\nbatch 4, 512 + 128 tokens, ")
    assert (first, after, p50, p99) == ("500 ms", "20.0 ms", "20.0 ms", "90.0 ms")
    assert (prompt, generated) == ("4,100", "200")
    assert row_of(999)[4].endswith("\n999 of 1,000 gaps")
    assert block_of("generation", samples.report_data(samples.h200_run())) is None


def inferred(batch: int, step_s: float, **changes):
    case = samples.case("resnet50", batch, task=TaskKind.INFER, **changes)
    return samples.measurement(case, step_s, telemetry=False)


def test_the_throughput_shown_with_a_latency_is_of_the_same_work_at_the_main_batch():
    """64 images in 16 ms are 4,000 a second; batch 1 alone gives 200, and the best batch differs."""
    m = inferred(1, 0.005)
    launch = msgspec.structs.replace(m.launches[0], latency_s=(0.005,) * 100)
    single = msgspec.structs.replace(m, launches=(launch, *m.launches[1:]))
    best = msgspec.structs.replace(inferred(900, 0.1), batch_choice="largest")
    others = (inferred(64, 0.1, precision=Precision.FP32), inferred(64, 0.1, execution=Execution.EAGER))

    def cell(*more):
        rows = table_of("latency", samples.report_data(samples.h200_run(measurements=(single, *more)))).rows
        return next(row for row in rows if row[0].endswith("amp-bf16 graph"))[4]

    assert cell(best, *others, inferred(8, 0.01), inferred(128, 0.03), inferred(64, 0.016)).startswith("4,0")
    assert cell(best, *others, inferred(64, 0.016)).endswith("\nbatch 64")
    assert cell(best, *others) == "—"


def test_excluded_offers_are_listed_by_reason():
    data = samples.report_data()
    table = next(
        p for p in block_of("value", data).parts if isinstance(p, Table) and "Not ranked" in p.caption
    )
    assert sum(int(row[1]) for row in table.rows) == len(data.ranking.excluded)


def test_scaling_is_shown_per_gpu_and_only_with_a_single_gpu_baseline():
    """Four GPUs train 3,600 images/s and one 1,000: 3.6 times, 90 %."""
    one = samples.case("resnet50", batch=64, execution=Execution.EAGER)
    four = msgspec.structs.replace(one, gpu_count=4)
    rows = (samples.measurement(one, 0.064), samples.measurement(four, 64 * 4 / 3600))
    row = table_of("together", samples.report_data(samples.h200_run(measurements=rows))).rows[0]
    assert row[:3] == ("resnet50\namp-bf16 batch 64 each", "4", "ddp")
    assert row[4].startswith("3.596×")
    assert row[5] == "90 %"
    assert block_of("together", samples.report_data(samples.h200_run(measurements=rows[1:]))) is None


def test_a_row_states_the_parallel_mode_and_the_shared_batch():
    one = samples.case("resnet50", batch=64, execution=Execution.EAGER)
    strong = msgspec.structs.replace(
        one, gpu_count=4, node_count=2, batch_size=16, parallel_mode=ParallelMode.FSDP
    )
    rows = (samples.measurement(one, 0.064), samples.measurement(strong, 64 / 3600))
    row = table_of("together", samples.report_data(samples.h200_run(measurements=rows))).rows[0]
    assert row[:3] == ("resnet50\namp-bf16 batch 16 each, 64 alone", "4", "fsdp, 2 machines")
    assert row[4].startswith("3.601×")


def test_jobs_and_recipes_of_one_workload_are_distinguished_wherever_its_rows_appear():
    """In the chart, two rows with one label would overlap."""
    one = samples.case("llama_1b", batch=4, precision=Precision.BF16, execution=Execution.EAGER)
    cases = (
        one,
        msgspec.structs.replace(one, checkpointing=Checkpointing.FULL),
        msgspec.structs.replace(one, gpu_count=2, parallel_mode=ParallelMode.INDEPENDENT),
    )
    rows = tuple(samples.measurement(case, 0.1) for case in (*cases, samples.case("cnn")))
    table = table_of("throughput", samples.report_data(samples.h200_run(measurements=rows)))
    shown = [row[0].partition("\n")[2] for row in table.rows]
    alone = "bf16 eager batch 4, channels_last"
    assert shown[1:] == [alone, f"{alone}, full checkpointing", f"{alone}, 2 processes, independent jobs"]
    assert shown[0] == "amp-bf16 graph batch 64, channels_last", (
        "with one row there is nothing to distinguish"
    )


def test_the_warm_up_is_excluded_from_the_telemetry():
    hot = TelemetrySample(t_s=-5.0, power_w=9999.0, clock_event_reasons=("hw_thermal_slowdown",))
    run = samples.h200_run()
    rows = tuple(
        msgspec.structs.replace(
            m,
            launches=tuple(msgspec.structs.replace(x, telemetry=(hot, *x.telemetry)) for x in m.launches),
        )
        for m in run.measurements
    )
    with_it = samples.report_data(msgspec.structs.replace(run, measurements=rows))
    assert "9,999" not in words_of("method", with_it)
    assert "hw_thermal" not in words_of("method", with_it)


def test_the_method_section_has_the_spread_of_rounds_and_launches_and_one_time_costs():
    run = samples.h200_run()
    paid = msgspec.structs.replace(run.measurements[0].launches[0], cold_s={"import": 3.0, "first_step": 0.5})
    first = msgspec.structs.replace(run.measurements[0], launches=(paid, *run.measurements[0].launches[1:]))
    data = samples.report_data(samples.h200_run(measurements=(first, *run.measurements[1:])))
    tables = {part.caption: part for part in block_of("method", data).parts if isinstance(part, Table)}
    spread = next(table for caption, table in tables.items() if caption.startswith("Launches"))
    assert len(spread.rows) == len(data.results)
    assert all(row[2].startswith("60 × ") and len(row[5].split(", ")) == 3 for row in spread.rows)
    ledger = next(table for caption, table in tables.items() if caption.startswith("Error of each figure"))
    assert [column.title for column in ledger.columns[1:]] == [name.capitalize() for name in PARTS]
    measured = [result.measurement for result in data.results]
    assert [row[2] for row in ledger.rows] == [format_percent(m.between_launches) for m in measured]
    assert {row[4:] for row in ledger.rows} == {("0.60 %", "5.0 %")}
    assert "One-time costs, not part of the steps: import 3.00 s, first step 500 ms." in words_of(
        "method", data
    )


def test_throughput_row_shows_its_share_of_the_best_gemm_rate():
    row = samples.measurement(samples.case(), 0.01964, gemm_flops_per_s=722.7e12)
    data = samples.report_data(samples.h200_run(measurements=(row,)))
    (cells,) = table_of("throughput", data).rows
    assert cells[6] == format_percent(row.mfu_of_gemm)
    assert row.mfu_of_gemm == pytest.approx(92.65e9 * 64 / 0.01964 / 722.7e12, rel=0.01)


def test_tokens_per_second_are_shown_only_for_token_inputs():
    images, sequences = (
        samples.measurement(samples.case(workload=n), 0.01964) for n in ("vgg16", "llama_1b")
    )
    sequences = msgspec.structs.replace(sequences, tokens_per_sample=2048)
    for row, tokens in ((images, None), (sequences, format_number(2048 * 64 / 0.01964))):
        block = table_of("throughput", samples.report_data(samples.h200_run(measurements=(row,))))
        cells = dict(zip([column.title for column in block.columns], block.rows[0], strict=True))
        assert cells.get("Tokens/s") == tokens
    both = table_of("throughput", samples.report_data(samples.h200_run(measurements=(images, sequences))))
    place = [column.title for column in both.columns].index("Tokens/s")
    assert UNKNOWN in {cells[place] for cells in both.rows}


@pytest.mark.parametrize(("again", "words"), [(1.0, ""), (1.25, "\nHFU {}")])
def test_hfu_is_shown_below_mfu_if_a_step_recomputes_anything(again, words):
    row = samples.measurement(samples.case(), 0.01964)
    row = msgspec.structs.replace(row, hardware_flops_per_sample=again * row.flops_per_sample)
    data = samples.report_data(samples.h200_run(measurements=(row,)))
    (cells,) = table_of("throughput", data).rows
    assert cells[4] == format_percent(row.mfu) + words.format(format_percent(row.hfu))


def test_every_precision_has_a_distinct_style() -> None:
    looks = [(look.color, look.symbol) for look in LOOKS.values()]
    assert [*LOOKS] == [*Precision]
    assert len({*looks}) == len(looks)
