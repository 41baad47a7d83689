"""Measurements: throughput of each case, the speedup from each choice, latency, and CPU compared with GPU."""

from collections.abc import Callable, Sequence
from itertools import cycle, groupby

import msgspec

from gpubench.blocks.parts import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    SLATE,
    Block,
    Cell,
    Charts,
    Figure,
    Look,
    Mark,
    Paragraph,
    Part,
    dots,
    number,
    table,
    text,
    two_lines,
)
from gpubench.effects import (
    Effect,
    Result,
    against_fp32,
    amp_effects,
    execution_effects,
    framework_effects,
    inference_effects,
    on_all_threads,
    results_of,
    scaling_effects,
)
from gpubench.findings import FindingKind
from gpubench.interval import Interval, faster_words, stacked
from gpubench.measure.checks import EAGER_OVER_GRAPH
from gpubench.models import (
    LEAST_GAPS,
    Case,
    Execution,
    Framework,
    Measurement,
    ParallelMode,
    Precision,
    Run,
    TaskKind,
    TimeToQuality,
)
from gpubench.profile import load_profiles
from gpubench.record.sharing import readings_by
from gpubench.sections.compared import devices, processor
from gpubench.sections.data import (
    FINDINGS,
    ReportData,
    distinguishing_settings,
    explained,
    kinds_words,
    layout_words,
    rate_of,
    title_of,
    unexplained,
    workload_name,
)
from gpubench.units import (
    UNKNOWN,
    count,
    format_bytes,
    format_duration,
    format_number,
    format_percent,
    plain,
    plural,
)

_COLORS = (SLATE, BLUE, ORANGE, GREEN, PURPLE, INK, QUIET)
_SYMBOLS = ("triangle-up", "circle", "diamond", "square", "x", "cross", "star")
LOOKS = {
    execution: Look(name=execution.value, color=color, symbol=symbol)
    for execution, color, symbol in zip(Execution, cycle(_COLORS), cycle(_SYMBOLS), strict=False)
}
"""The style of each execution, in the order of the table of executions; colors repeat after the last."""


def throughput(data: ReportData) -> list[Part]:
    """Show every measured case on this device: a chart per workload, and the table."""
    if not data.results:
        return []
    results = sorted(data.results, key=_order)
    differing = distinguishing_settings([result.case for result in results])
    # A chart for each workload, framework, task, and kind of batch: the start of the sort key.
    groups = [list(group) for _, group in groupby(results, key=lambda r: _order(r)[:4])]
    lead = (
        "Samples per second of whole training steps (forward, loss, backward, optimizer), with the 95 % "
        "interval as a line. Scales differ between workloads: an image is not a sequence."
    )
    if any(result.measurement.at_largest_batch for result in results):
        lead += (
            ' "Best batch" is a separate group: each case uses the largest batch that fits on this device, '
            "so its cases cannot be compared with the others."
        )
    has_tokens = any(result.measurement.tokens_per_s is not None for result in results)
    twin = table(
        "Every measured case on this device",
        results,
        text("Case", lambda r: f"{title_of(r)}\n{', '.join((_how(r), *differing(r.case)))}"),
        number(
            "Throughput, 95 % interval",
            lambda r: (
                rate_of(r.measurement) + ("\nfrom one process" if r.measurement.within_one_process else "")
            ),
        ),
        number("Tokens/s", lambda r: format_number(r.measurement.tokens_per_s)) if has_tokens else None,
        number("Step", lambda r: format_duration(r.measurement.step_time_s)),
        number("Peak allocated", lambda r: format_bytes(r.measurement.peak_memory_bytes), optional=1),
        number("Of peak FLOP/s", _of_peak, optional=2),
        number("Device busy", lambda r: format_percent(r.measurement.gpu_busy), optional=6),
        number("Of best GEMM here", lambda r: format_percent(r.measurement.mfu_of_gemm), optional=7),
        text("Shared", lambda r: _readings(r) or UNKNOWN, optional=8)
        if any(map(_readings, results))
        else None,
        text("Findings", lambda r: kinds_words(finding.kind for finding in r.measurement.findings)),
    )
    figures = tuple(_figure(group, differing) for group in groups)
    return [Paragraph(text=lead, tone="note"), Charts(figures=figures, twin=twin)]


def _order(result: Result) -> tuple[object, ...]:
    case = result.case
    return (
        case.workload,
        tuple(Framework).index(case.framework),
        case.task.value,
        result.measurement.at_largest_batch,
        case.batch_size,
        list(Precision).index(case.precision),
        case.memory_format or "",
        list(Execution).index(case.execution),
        case.gpu_count,
        case.workload_version,
    )


def _figure(group: Sequence[Result], differing: Callable[[Case], tuple[str, ...]]) -> Figure:
    marks = []
    for r in group:
        case, words = r.case, r.measurement.interval.text(digits=r.measurement.digits)
        version = f", version {case.workload_version}" if case.workload_version != 1 else ""
        below = ", ".join((f"batch {case.batch_size:,}", *differing(case)))  # the title says "best batch"
        marks.append(
            Mark(
                row=two_lines(f"{case.precision.value}{layout_words(case)}", f"{below}{version}"),
                interval=r.measurement.interval,
                hover=f"{case.precision.value}, {case.execution.value}: {words}",
                alt=f"{r.how}: {words}",
                kind=case.execution,
            )
        )
    unit, title = plural(plain(group[0].case.sample_unit, 20)), title_of(group[0])
    return dots(marks, LOOKS, f"{unit}/s", f"Chart, {title} in {unit} per second", title=title)


def _how(result: Result) -> str:
    return f"{result.how}{layout_words(result.case)}"


def _readings(result: Result) -> str | None:
    key = result.run.device.gpu_key
    return None if key is None else readings_by(key, result.case)


def _of_peak(result: Result) -> str:
    # Return MFU, with HFU below if the step recomputes anything.
    m = result.measurement
    recomputes = m.hfu is not None and m.hfu != m.mfu
    return format_percent(m.mfu) + (f"\nHFU {format_percent(m.hfu)}" if recomputes else "")


# --- the gain from mixed precision -------------------------------------------------------------------------

# A speedup is stated in words only if the ends of its interval are within this factor of each other.
_SURE_FACTOR = 1.5

_BASELINES = {p: f"against {p.words}" for p in Precision if p.is_usual and not p.is_amp}
_AMP_LOOKS = {
    (flagged, precision): Look(
        name=_BASELINES[precision] + (", flagged" if flagged else ""),
        color=SLATE if flagged else color,
        symbol=symbol + ("-open" if flagged else ""),
    )
    for flagged in (False, True)
    for precision, color, symbol in (
        (Precision.FP32, BLUE, "circle"),
        (Precision.TF32, GREEN, "diamond"),
    )
}


def amp(data: ReportData) -> list[Part]:
    """Show the speedup from AMP over strict fp32, and over tf32 if the device has it."""
    pairs = amp_effects(data.results)
    if not pairs:
        return []
    twin = table(
        "Speedup of AMP with its baseline",
        pairs,
        text("Case", lambda s: f"{title_of(s.result)}\n{s.result.case.execution.value} {_batches(s)}"),
        text("AMP", lambda s: f"{s.result.case.precision.value}{layout_words(s.result.case)}"),
        text("Baseline", lambda s: f"{s.baseline.case.precision.words}{layout_words(s.baseline.case)}"),
        number("Speedup, 95 % interval", lambda s: stacked(s.words)),
        number("Peak allocated", _memory, optional=7),
        number("Loss after the same steps", _loss, optional=6),
        FINDINGS,
    )
    alone = any(r.measurement.within_one_process for pair in pairs for r in (pair.result, pair.baseline))
    one = "Some of these ratios are based on a single launch."
    return [
        Paragraph(text=f"{_amp_sentence(pairs)}{f' {one}' if alone else ''}"),
        Charts(
            figures=(_amp_figure(pairs),),
            twin=twin,
            caption=(
                "1 means no gain. Gray open marks are flagged. fp32 is strict IEEE arithmetic with TF32 off "
                "in matmul, convolution and RNN."
            ),
        ),
    ]


def _amp_sentence(pairs: Sequence[Effect]) -> str:
    sure = _sure(pairs)
    if not sure:
        return "No pair was measured well enough to state a gain (see the findings)."
    narrow = [s for s in pairs if set(s.doubts) <= {FindingKind.HOST_BOUND} and _narrow(s.interval)]
    losing = [s for s in narrow if s.interval.high is not None and s.interval.high < 1]
    said = f"The largest gain from AMP: {_verdict(max(sure, key=lambda s: s.value))}."
    if losing:
        why = (
            ", because the host limits the speed of a small step"
            if all(FindingKind.HOST_BOUND in s.doubts for s in losing)
            else ""
        )
        said += f" In {count(len(losing), 'pair')} AMP is slower even at the top of the interval{why}."
    return said


def _verdict(pair: Effect) -> str:
    case = pair.result.case
    amp, baseline = case.precision.value, pair.baseline.case.precision.value
    where = f"{workload_name(case)}, {case.execution.value}, {_batches(pair)}"
    return f"{amp} against {baseline} on {where}: {faster_words(pair.interval, amp, baseline)}"


def _batches(pair: Effect) -> str:
    if pair.result.case.batch_size == pair.baseline.case.batch_size:
        return pair.result.batch_words
    return f"{pair.result.batch_words}, against {pair.baseline.batch_words}"


def _amp_figure(pairs: Sequence[Effect]) -> Figure:
    marks = []
    for pair in pairs:
        case, baseline = pair.result.case, _BASELINES[pair.baseline.case.precision]
        flags = f"<br>{', '.join(pair.doubts)}" if pair.doubts else ""
        how = f"{case.precision.value} {case.execution.value} {_batches(pair)}"
        marks.append(
            Mark(
                row=two_lines(plain(title_of(pair.result), 24), pair.result.how),
                interval=pair.interval,
                hover=f"{baseline}: {pair.words}{flags}",
                alt=f"{workload_name(case)} {how} {baseline}: {pair.words}",
                kind=(bool(pair.doubts), pair.baseline.case.precision),
            )
        )
    return dots(marks, _AMP_LOOKS, "speedup of AMP", "Dot chart of the speedup of AMP", line_at=1.0)


def _sure(pairs: Sequence[Effect]) -> list[Effect]:
    return [pair for pair in pairs if not pair.doubts and _narrow(pair.interval)]


def _narrow(interval: Interval) -> bool:
    low, high = interval.low, interval.high
    return bool(low and high and high / low <= _SURE_FACTOR)


def _memory(pair: Effect) -> str:
    amp, baseline = pair.result.measurement.peak_memory_bytes, pair.baseline.measurement.peak_memory_bytes
    if pair.memory_ratio is None:
        return UNKNOWN
    return f"{format_number(pair.memory_ratio)}×\n{format_bytes(amp)} versus {format_bytes(baseline)}"


def _loss(pair: Effect) -> str:
    gap = pair.loss_gap
    if gap is None:
        return UNKNOWN
    losses = f"{format_number(gap.result, 4)} versus {format_number(gap.baseline, 4)}"
    return f"{losses}\n{gap.steps} steps from one seed"


def _heaviest(pairs: Sequence[Effect]) -> Effect | None:
    known = _sure(against_fp32(pairs))
    return max(
        known, key=lambda pair: (pair.result.measurement.flops_per_sample or 0.0, pair.value), default=None
    )


def closing_sentence(run: Run) -> str | None:
    """Return the speedup from mixed precision on the heaviest workload; None if none is certain."""
    heaviest = _heaviest(amp_effects(on_all_threads(results_of(run))))
    return None if heaviest is None else f"{_verdict(heaviest)}."


# --- comparisons of choices, each with a table --------------------------------------------------------------

_CASE: Cell[Effect] = text("Case", lambda pair: f"{title_of(pair.result)}\n{_how(pair.result)}")
_RATIO: Cell[Effect] = number("Ratio, 95 % interval", lambda pair: stacked(pair.words))
_RATE: Cell[Effect] = number("Throughput, 95 % interval", lambda pair: rate_of(pair.result.measurement))


def host(data: ReportData) -> list[Part]:
    """Compare eager execution with a graph, which shows whether a faster GPU would help at all."""
    pairs = execution_effects(data.results)
    if not pairs:
        return []
    return [
        Paragraph(text=_host_sentence(pairs)),
        table(
            "What limits speed: eager compared with graph and compile",
            pairs,
            _CASE,
            number("Eager", lambda pair: rate_of(pair.baseline.measurement), optional=1),
            number("Graph or compile", lambda pair: rate_of(pair.result.measurement), optional=1),
            _RATIO,
            text("Paced by", _pace),
            FINDINGS,
        ),
    ]


def _host_sentence(pairs: Sequence[Effect]) -> str:
    graphs = [pair for pair in pairs if pair.result.case.execution is Execution.GRAPH and pair.leads]
    if not graphs:
        return "No graph has a reliable measurement, so whether the host limits a step is unknown."
    bound = [pair for pair in graphs if _is_host_paced(pair)]
    most = max(bound or graphs, key=lambda pair: (not pair.doubts, pair.value))
    words = faster_words(most.interval, "graph", "eager")
    largest = f"The largest gain from a graph: {workload_name(most.result.case)}, {most.result.how}: {words}."
    if bound:
        names = dict.fromkeys(workload_name(pair.result.case) for pair in bound)
        return (
            f"Launch overhead on the CPU limits {len(bound)} of {count(len(graphs), 'case')} when run "
            f"eagerly ({', '.join(names)}). A faster GPU will not help there until the batch grows or the "
            f"step runs as a graph. {largest}"
        )
    if any(_is_host_paced(pair) is None for pair in graphs):
        return f"It is unclear whether launch overhead on the CPU limits any case. {largest}"
    return f"No case is limited by launch overhead on the CPU, so a faster GPU would help. {largest}"


def _is_host_paced(pair: Effect) -> bool | None:
    # Return whether the host limits eager steps, judged by the speedup from a graph; None if undecided.
    low, high = pair.interval.low, pair.interval.high
    if low is None or high is None:
        return None
    if low > 1 and pair.value > EAGER_OVER_GRAPH:
        return True
    return False if high <= EAGER_OVER_GRAPH else None


def _pace(pair: Effect) -> str:
    if pair.baseline.measurement.is_host_bound:
        return "the host, when eager"
    if pair.result.case.execution is Execution.COMPILE:
        return UNKNOWN
    return {True: "the host, when eager", False: "the device", None: UNKNOWN}[_is_host_paced(pair)]


def frameworks(data: ReportData) -> list[Part]:
    """Show the cost of a framework on this device: the same work in Keras with each backend, and in torch."""
    what = (
        "The work is the same: layers, batch, optimizer, precision. Each framework initializes weights by "
        "its own rules. Batches are already on the device, so data loading and the first step are excluded."
    )
    return explained(
        what,
        "The same work in each framework",
        framework_effects(data.results),
        _CASE,
        text("Baseline", lambda p: f"{p.baseline.case.framework.value} {p.baseline.case.execution.value}"),
        _RATIO,
        _RATE,
        FINDINGS,
    )


def together(data: ReportData) -> list[Part]:
    """Compare several processes, one per GPU or all on one CPU, with a single one."""
    pairs = scaling_effects(data.results)
    modes = {pair.result.case.parallel_mode for pair in pairs}
    words = {
        ParallelMode.FSDP: " With fsdp every process holds a share of the weights and fetches the rest.",
        ParallelMode.INDEPENDENT: " Independent jobs exchange nothing: any loss comes from sharing the host.",
    }
    what = (
        "In a data-parallel job every process (one per GPU) has its own batch and the same weights, and each "
        "step averages the gradients. Efficiency is the throughput per process over that of a single one."
    )
    return explained(
        what + "".join(said for mode, said in words.items() if mode in modes),
        "Throughput of several processes, and its ratio to a single one's",
        pairs,
        text(
            "Case",
            lambda p: f"{workload_name(p.result.case)}\n{p.result.case.precision.value} {_batch_each(p)}",
        ),
        number("Processes", lambda p: str(p.result.case.gpu_count)),
        text(
            "How",
            lambda p: (
                p.result.case.parallel_mode.value
                + (f", {p.result.case.node_count} machines" if p.result.case.node_count > 1 else "")
            ),
            optional=2,
        ),
        _RATE,
        _RATIO,
        number("Efficiency", lambda p: format_percent(p.value / p.result.case.gpu_count)),
        FINDINGS,
    )


def _batch_each(pair: Effect) -> str:
    mine, theirs = pair.result.case.batch_size, pair.baseline.case.batch_size
    return f"batch {mine} each" if mine == theirs else f"batch {mine} each, {theirs} alone"


def threads(data: ReportData) -> list[Part]:
    """Show how a CPU scales with threads."""
    return explained(
        "Each number of threads is measured in its own processes. Efficiency is the throughput per thread "
        "over that of a single thread. No thread is pinned to a core.",
        "Throughput by number of threads, and its ratio to a single thread's",
        data.thread_pairs,
        _CASE,
        number("Threads", lambda p: f"{p.result.threads}{'' if p.result.case.threads else ', all'}"),
        _RATE,
        number("Ratio to one thread", lambda p: "1" if p.result is p.baseline else stacked(p.words)),
        number("Efficiency", lambda p: format_percent(p.value / (p.result.threads or 1))),
        FINDINGS,
    )


def outputs(data: ReportData) -> list[Part]:
    """Show the speedup from a lower precision in inference, and its error relative to float32."""
    pairs = {pair.result.case: pair for pair in inference_effects(data.results)}
    inferred = [r for r in data.results if r.case.task is TaskKind.INFER]
    return explained(
        "The error compares all outputs of at most four samples with float32 on the CPU, with the same "
        "weights: |x - y| / |y|. Weights are random, not trained: measure the loss of a trained model on its "
        "own data.",
        "Inference at a lower precision",
        [r for r in inferred if r.measurement.output_error is not None],
        text("Case", lambda r: f"{workload_name(r.case)}\n{_how(r)}"),
        number("Error of outputs", lambda r: format_percent(r.measurement.output_error, 2)),
        number(
            "Over fp32, 95 % interval", lambda r: stacked(pairs[r.case].words) if r.case in pairs else UNKNOWN
        ),
        number("Throughput, 95 % interval", lambda r: rate_of(r.measurement), optional=1),
        number("Peak allocated", lambda r: format_bytes(r.measurement.peak_memory_bytes), optional=2),
    )


# --- the time of a pass ------------------------------------------------------------------------------------


def latency(data: ReportData) -> list[Part]:
    """Show the latency of a single forward pass."""
    timed = [r for r in data.results if r.case.task is TaskKind.INFER]
    return explained(
        "Single forward passes at batch 1, each starting and ending with an idle device: the time that a "
        "user of a service waits, without network and queue.",
        "Latency at batch 1, and throughput of the main batch",
        [r for r in timed if r.measurement.latency_p50_s is not None],
        text("Case", lambda r: f"{workload_name(r.case)}\n{r.case.precision.value} {r.case.execution.value}"),
        number("Median", lambda r: format_duration(r.measurement.latency_p50_s)),
        number("p95", lambda r: format_duration(r.measurement.latency_p95_s)),
        number(
            "p99",
            lambda r: _quantile(
                r.measurement.latency_p99_s,
                sum(len(launch.latency_s) for launch in r.measurement.launches),
                "100 passes",
            ),
        ),
        number("Throughput", lambda r: _at_main_batch(r, data.results), optional=2),
    )


def _quantile(value_s: float | None, timed: int, needed: str) -> str:
    return f"{UNKNOWN}\n{timed:,} of {needed}" if value_s is None else format_duration(value_s)


def _at_main_batch(single: Result, results: Sequence[Result]) -> str:
    """Return the throughput of the same work at its main batch, else at the smallest measured batch above 1.

    The largest batch that fits does not count. Only batch and memory format may differ, because each batch is
    measured in its faster format.
    """
    profile = load_profiles().get(single.case.workload)
    main = None if profile is None else profile.main_batch
    found = [
        r
        for r in results
        if r.case.batch_size > 1
        and not r.measurement.at_largest_batch
        and r.case
        == msgspec.structs.replace(
            single.case, batch_size=r.case.batch_size, memory_format=r.case.memory_format
        )
    ]
    if not found:
        return UNKNOWN
    nearest = min(found, key=lambda r: (r.case.batch_size != main, r.case.batch_size))
    return f"{rate_of(nearest.measurement)}\n{nearest.batch_words}"


def generation(data: ReportData) -> list[Part]:
    """Show token generation: time to first token, time per later token, and throughput of both phases."""
    timed = [r for r in data.results if r.case.new_tokens and r.measurement.first_token_s is not None]
    return explained(
        "One static batch, greedy, with a key-value cache: the prompts are computed together, then one token "
        "per sequence at a time, each copied to the host. A server that batches sequences as they arrive "
        "gets more tokens from the same GPU.",
        "Token generation",
        timed,
        text("Case", _generated),
        number("First token", lambda r: format_duration(r.measurement.first_token_s)),
        number("Each later token", lambda r: format_duration(r.measurement.per_token_s)),
        number("p50", lambda r: _gap(r.measurement, 0.50), optional=3),
        number("p99", lambda r: _gap(r.measurement, 0.99)),
        number("Prompt tokens/s", lambda r: format_number(r.measurement.prefill_tokens_per_s), optional=4),
        number("Generated tokens/s", lambda r: format_number(r.measurement.decoded_tokens_per_s)),
    )


def _generated(result: Result) -> str:
    case = result.case
    tokens = f"{case.prompt_tokens:,} + {case.new_tokens:,} tokens"
    how = f"{result.batch_words}, {tokens}, {case.weight_type.value}, {case.execution.value}"
    return f"{workload_name(case)}\n{how}"


def _gap(measurement: Measurement, share: float) -> str:
    gaps = sum(len(launch.token_gap_s) for launch in measurement.launches)
    return _quantile(measurement.token_latency_s(share), gaps, f"{LEAST_GAPS:,} gaps")


def quality(data: ReportData) -> list[Part]:
    """Show how many steps each precision takes to a target quality, with the spread over seeds."""
    rows = next((run.quality for run in data.device_runs if run.quality), ())
    signs = {"accuracy": "at least", "loss": "at most"}
    return explained(
        "A small network is trained from several seeds until it reaches the target quality on held-out "
        "samples. Times cover the steps alone, and 95 % intervals are for the mean over seeds. The ratio to "
        "fp32's steps is paired by seed: an interval that includes 1 shows no difference in learning.",
        "Time to target quality",
        rows,
        text("Workload", lambda r: f"{workload_name(r.case)}\n{r.case.precision.value}"),
        text("Quality", lambda r: f"{r.metric} {signs[r.metric]} {format_number(r.target)}"),
        text("Result", _reached),
        number("Steps, 95 % interval", lambda r: _over_seeds(r, r.steps)),
        number("Time [s], 95 % interval", lambda r: _over_seeds(r, r.train_s)),
        number("Energy [J], 95 % interval", lambda r: _over_seeds(r, r.energy_j), optional=1),
        number("Ratio to fp32's steps", lambda r: _over_seeds(r, _over_fp32(r, rows))),
    )


def _reached(row: TimeToQuality) -> str:
    reached = sum(run.reached for run in row.runs)
    if row.is_reached:
        return f"reached by all {reached} seeds"
    if row.reason is not None:
        return plain(row.reason, 200)
    return f"not reached after {row.most_steps:,} steps by {len(row.runs) - reached} of {len(row.runs)} seeds"


def _over_seeds(row: TimeToQuality, value: Interval) -> str:
    return stacked(value.text()) if row.is_reached and value.value is not None else UNKNOWN


def _over_fp32(row: TimeToQuality, rows: Sequence[TimeToQuality]) -> Interval:
    of_same = (each for each in rows if each.case.workload == row.case.workload and each is not row)
    other = next((each for each in of_same if each.case.precision is Precision.FP32), None)
    return Interval(None) if other is None else row.steps_over(other)


_FURTHER = (latency, outputs, generation, frameworks, threads, together, quality)


def screen(data: ReportData) -> list[Part]:
    """Return what a terminal shows below the cases of a run: other figures, and speedups that are certain."""
    sure = _sure(amp_effects(data.results))
    parts = unexplained(part for section in _FURTHER for part in section(data))
    gains = table(
        "Speedup of AMP",
        sure,
        text("Case", lambda s: f"{title_of(s.result)} {s.result.case.execution.value} {_batches(s)}"),
        text(
            "Precision", lambda s: f"{s.result.case.precision.value} over {s.baseline.case.precision.value}"
        ),
        number("Speedup, 95 % interval", lambda s: s.words),
    )
    return [*parts, gains] if sure else [*parts, *amp(data)[:1]]  # the sentence alone


def _render(data: ReportData) -> Block | None:
    parts = [
        part for section in (throughput, amp, host, devices, processor, *_FURTHER) for part in section(data)
    ]
    if not parts:
        return None
    heaviest = _heaviest(amp_effects(data.results))
    finding = None
    if heaviest is not None:
        names = heaviest.result.case.precision.value, heaviest.baseline.case.precision.value
        finding = f"{workload_name(heaviest.result.case)}: {faster_words(heaviest.interval, *names)}"
    return Block(title="Throughput", finding=finding, parts=tuple(parts))


SECTIONS = {"measured": _render}
