"""The reliability of the figures: what was measured, the basis of predictions, and their intervals."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpubench.blocks.parts import Block, Bullets, Cell, Facts, Paragraph, Part, number, table, text
from gpubench.findings import Finding, FindingKind, describe
from gpubench.interval import stacked
from gpubench.labels import gpu_name
from gpubench.models import Estimate, MemoryFormat
from gpubench.predict.answers import Predictions, evidence_on
from gpubench.predict.calibration import load_calibration
from gpubench.recommend.rows import best_of_each_gpu
from gpubench.record.sharing import readings_by
from gpubench.sections.data import MOST_OF_A_NOTE, ReportData, kinds_words, measured_facts
from gpubench.units import UNKNOWN, Watts, count, format_number, format_percent, listing, per_second, plain

MOST_ROWS, MOST_TALL_ROWS = 20, 8
"""Maximum number of rows on one screen: with one line per row, and with several."""
REGRET_SETTINGS, REGRET = 60, 0.0475
"""Number of measured settings, and their mean regret: the extra cost of choosing by prediction, as a share of
the best choice's cost. A test compares both with docs/decision.md."""
CAPPED = (
    "time and energy are ratios of the job under a limit of {limit} W to the job without one; the power "
    "without a limit is the reading if the case was measured, else the usual share of board power"
)
LAYOUT = (
    "images are in channels_last layout; in contiguous layout, the default of torch, a convolutional network "
    "takes up to 1.5 times as long on tensor cores"
)
"""The factor: above 1.45 for 5 % of 834 networks of timm on an RTX 3090; 1.46 for VGG16 on an H200."""


def _predicted(data: ReportData) -> Block | None:
    best = best_of_each_gpu(data.ranking.rows) if data.ranking is not None else ()
    predicted = [row.estimate for row in best if row.estimate.basis == "predicted"]
    if not predicted:
        return None
    calibration = load_calibration()
    finding = f"{len(predicted)} of {count(len(best), 'kind')} of GPU are predicted"
    anchored = sum(estimate.anchored is True for estimate in predicted)
    said = (
        f"{finding}; {anchored} of them start from a measurement of the same case on a GPU, the rest from "
        "datasheets. Measuring any GPU with `gpubench run` narrows every interval. An interval should "
        "contain the true figure for 9 of 10 GPUs, so it may be wrong for one card. Part of the error is "
        "common to all predictions from one starting point, so the order is more certain than the level. The "
        f"model was fitted to published measurements ({calibration.train.rows:,} rows of training, "
        f"{calibration.infer.rows:,} of inference, {plain(calibration.fitted, 20)}); the project's "
        "docs/prediction-evidence.md gives the errors on held-out GPUs. "
        f"In {REGRET_SETTINGS} measured settings, "
        "each with its harness and GPU held out, choosing by prediction cost "
        f"{format_percent(REGRET)} more on average than the best choice, with waiting at $2 an hour."
    )
    far = [gpu_name(e.gpu_key) for e in predicted if FindingKind.OUT_OF_DOMAIN in _kinds(e)]
    words = f"Unlike every GPU with published measurements, so only a guess: {listing(far)}."
    basis = table(
        "Basis of each prediction",
        predicted[:MOST_ROWS],
        text("GPU", lambda e: gpu_name(e.gpu_key)),
        number("90 % interval", _width),
        *_basis_columns(),
        text("Evidence", lambda e: ", ".join(plain(x, 60) for x in e.evidence[:4]) or UNKNOWN),
        text("Remarks", lambda e: kinds_words(_kinds(e))),
        folded=True,
    )
    warned = [Paragraph(text=words, tone="warning")] if far else []
    return Block(
        title="Accuracy of the predictions", finding=finding, parts=(Paragraph(text=said), *warned, basis)
    )


def answered(answers: Predictions, *, whole: bool = True) -> tuple[Part, ...]:
    """Return each GPU with its figure and basis, fastest first, then the GPUs without a figure.

    Args:
        answers: The predictions.
        whole: Whether to show all columns, even if the GPUs do not fit on one screen.
    """
    if not whole and len(answers) > MOST_ROWS:
        return _fastest(answers)
    kinds = dict.fromkeys(kind for e in answers.estimates for kind in _kinds(e))
    shared = any(readings_by(e.gpu_key, e.case) for e in answers.estimates)
    return (
        table(
            "",
            answers.estimates,
            text("GPU", lambda e: gpu_name(e.gpu_key)),
            number("Throughput", lambda e: stacked(e.interval.text(f" {per_second(e.case.sample_unit)}"))),
            text("Case", _case),
            text("Basis", lambda e: e.basis),
            *_on_energy(answers),
            text("Memory", lambda e: plain(e.memory_text, 160) if e.memory_text else UNKNOWN),
            *_basis_columns(compute=5, bandwidth=4, host=3, method=2),
            text("Rows", evidence_on, optional=6),
            text("Shared", lambda e: readings_by(e.gpu_key, e.case) or UNKNOWN) if shared else None,
            text("Remarks", lambda e: kinds_words(_kinds(e)), optional=1),
        ),
        Bullets(
            items=(
                *(describe(Finding(kind=kind)) for kind in kinds),
                *_published(answers),
                *_on_the_limit(answers),
                *_on_the_layout(answers),
                *(f"{gpu_name(a.gpu_key)}: no prediction: {a.reason}" for a in answers.refusals),
            )
        ),
    )


def _on_energy(answers: Predictions) -> tuple[Cell[Estimate], ...]:
    # Return the columns on energy, if the GPUs are sorted by energy or have a power limit.
    joules: Cell[Estimate] = number("Joules per sample", lambda e: stacked(e.joules_per_sample.text(" J")))
    capped: tuple[Cell[Estimate], ...] = (
        number("Time", lambda e: stacked(e.capped_time.text("×"))),
        number("Energy", lambda e: stacked(e.capped_energy.text("×"))),
    )
    return (*([joules] if answers.by_energy else []), *(capped if _limit_w(answers) else ()))


def _on_the_limit(answers: Predictions) -> list[str]:
    limit_w = _limit_w(answers)
    return [] if limit_w is None else [CAPPED.format(limit=format_number(limit_w))]


def _on_the_layout(answers: Predictions) -> list[str]:
    layouts = {e.case.memory_format for e in answers.estimates if e.basis == "predicted"}
    return [LAYOUT] if MemoryFormat.CHANNELS_LAST in layouts else []


def _limit_w(answers: Predictions) -> Watts | None:
    return next((e.power_limit_w for e in answers.estimates if e.power_limit_w), None)


def _fastest(answers: Predictions) -> tuple[Part, ...]:
    energy = _on_energy(answers)
    shown = answers.estimates[: MOST_TALL_ROWS if energy else MOST_ROWS]
    cases = listing(dict.fromkeys(e.case.label for e in shown), most=2)
    more = (
        f"all {count(len(answers), 'GPU')}, with the basis of each figure: --table; single GPUs: --gpu NAME"
    )
    head = table(
        "",
        shown,
        text("GPU", lambda e: gpu_name(e.gpu_key)),
        number("Throughput", lambda e: e.interval.text(f" {per_second(e.case.sample_unit)}")),
        text("Basis", lambda e: e.basis),
        *energy,
    )
    beside = [Paragraph(text=each) for each in (*_on_the_limit(answers), more)]
    return Paragraph(text=cases, tone="headline"), head, *beside


def _published(answers: Predictions) -> Iterator[str]:
    # Yield the published readings of the cards; for many cards, only how many have one.
    read = [each for each in answers.estimates if each.published]
    if len(answers) <= MOST_ROWS:
        yield from (f"{gpu_name(each.gpu_key)}: {each.published}" for each in read)
    elif read:
        yield f"{count(len(read), 'card')} with a published reading of this workload: select one with --gpu"


def scored(document: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return the errors of predictions: overall, then by slice."""
    owned, heaviest = document["no_gpu_owned"], document["heaviest_source"]
    scores, fixes = {"all pairs": document, **document["by_slice"]}, document.get("fixes", {})
    if document.get("inference") is not None:
        scores["inference"] = document["inference"]

    lost = format_percent(document["regret"]["throughput"])
    mape, median = format_percent(owned["mape"]), format_percent(owned["median_ape"])
    said = [
        f"no GPU owned: {owned['rows']} rows, MAPE {mape}, median {median}",
        f"order: Spearman {format_number(document['spearman'])}; throughput lost by the first choice: {lost}",
        *(f"column missing, taken as {each}" for each in document.get("assumed", ())),
        *(
            f"skipped: {count_} x {reason}" + (f": {fixes[reason]}" if fixes.get(reason) else "")
            for reason, count_ in document.get("skipped", {}).items()
        ),
    ]
    if (several := document.get("several_gpus")) is not None:
        off, covered = format_percent(several["mape"]), format_percent(several["coverage_90"])
        said.append(
            f"several GPUs in one job, harness held out: {several['jobs']} jobs, MAPE {off}, "
            f"90 % interval covers {covered}"
        )
    if heaviest is not None:
        share = format_percent(heaviest["share"])
        said.insert(0, f"heaviest harness: {plain(heaviest['harness'])}, {share} of the votes")
    return (
        table(
            "",
            list(scores.items()),
            text("Slice", lambda item: plain(item[0])),
            number("Pairs", lambda item: f"{item[1]['pairs']:,}"),
            number("Targets", lambda item: str(item[1].get("targets") or UNKNOWN), optional=3),
            _error("MAPE", "mape"),
            _error("Median", "median_ape"),
            _error("90 % interval covers", "coverage_90"),
            number("Half-width", lambda item: _times(item[1].get("half_width_factor")), optional=2),
            _error("MAPE of peak and bandwidth", "mape", "geometric_mean"),
            _error("its median", "median_ape", "geometric_mean"),
        ),
        Bullets(items=tuple(said)),
    )


def _times(factor: float | None) -> str:
    return UNKNOWN if factor is None else f"×{format_number(factor)}"


def scored_seal(document: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return the errors of sealed forecasts, case by case."""
    scores = f"{count(document['readings'], 'reading')}, MAPE {format_percent(document['mape'])}"
    covered = format_percent(document["coverage_90"])
    return (
        table(
            "",
            document["rows"],
            text("Case", lambda row: plain(row["case"], 160)),
            number("Measured", lambda row: format_number(row["read"])),
            number("Forecast", lambda row: format_number(row["samples_per_s"])),
            number(
                "90 % interval", lambda row: f"{format_number(row['low'])} to {format_number(row['high'])}"
            ),
            text("Within", lambda row: {True: "yes", False: "no", None: UNKNOWN}[row["is_inside"]]),
        ),
        Bullets(
            items=(
                f"{scores}, median {format_percent(document['median_ape'])}, 90 % interval covers {covered}",
                *(f"skipped: {plain(each['case'], 160)}: {each['reason']}" for each in document["skipped"]),
            )
        ),
    )


def _error(name: str, key: str, within: str | None = None) -> Cell[tuple[str, Mapping[str, Any]]]:
    # Return a column with one score of a slice; ``within`` names the nested scores of the simpler model.

    def cell(item: tuple[str, Mapping[str, Any]]) -> str:
        found = item[1] if within is None else item[1].get(within) or {}
        return format_percent(found.get(key))

    return number(name, cell)


def _case(e: Estimate) -> str:
    if e.batch_choice != "largest":
        return e.case.label
    by = "the memory model" if e.batch_found_by is None else f"run {plain(e.batch_found_by)}"
    return f"{e.case.label}\nthe largest that fits, by {by}"


def _basis_columns(
    *, compute: int = 0, bandwidth: int = 0, host: int = 0, method: int = 0
) -> tuple[Cell[Estimate], ...]:
    # Return columns for the basis of a figure; each argument is ``Column.optional`` of one of them.
    return (
        number("Compute", lambda e: format_percent(e.compute_share), compute),
        number("Bandwidth", lambda e: format_percent(e.bandwidth_share), bandwidth),
        number("Host", lambda e: format_percent(e.host_share), host),
        text("Method", lambda e: plain(e.method, 160), method),
    )


def _kinds(e: Estimate) -> list[FindingKind]:
    return [f.kind for f in e.findings if f.kind is not FindingKind.STALE_PRICE]


def _width(estimate: Estimate) -> str:
    # Return the interval as factors of the estimate, which can be compared between GPUs.
    if estimate.low is None or estimate.high is None:
        return UNKNOWN
    down, up = estimate.low / estimate.samples_per_s, estimate.high / estimate.samples_per_s
    return f"×{format_number(down, 2)} to ×{format_number(up, 3)}"


# --- the basis of the answer --------------------------------------------------------------------------


def _measured_and_noted(data: ReportData) -> Block:
    facts = measured_facts(data.results)
    notes = () if data.ranking is None else data.ranking.said("note")
    parts = (
        *([Facts(rows=facts, prominent=True)] if facts else ()),
        _evidence(data),
        *([Bullets(items=tuple(plain(note, MOST_OF_A_NOTE) for note in notes))] if notes else ()),
    )
    return Block(title="Basis of the answer", parts=parts)


def _evidence(data: ReportData) -> Paragraph:
    if not data.results:
        return Paragraph(
            text=(
                "Nothing was measured on this machine: every throughput below is a reference run or a "
                "prediction. `gpubench run` measures this device."
            ),
            tone="warning",
        )
    workloads = listing(dict.fromkeys(result.case.workload for result in data.results))
    name = plain((data.device.name if data.device else None) or "an unnamed device", 80)
    said = f"Measured on {name}: {workloads}, {count(len(data.results), 'case')}."
    if data.device is not None and data.device.is_cpu:
        said += " This is a CPU, and no GPU prediction starts from a CPU measurement."
        others = [run.device.name or "a GPU" for run in data.runs if not run.device.is_cpu]
        if others:
            cards = listing(dict.fromkeys(others))
            said += f" The results folder also has runs of {cards}, which the ranking uses."
        else:
            said += " No GPU was measured: the GPUs below are reference runs or predictions from datasheets."
        return Paragraph(text=said, tone="warning")
    return Paragraph(text=said, tone="note")


SECTIONS = {"evidence": _measured_and_noted, "prediction": _predicted}
