"""Reading published measurements: usable rows are used; all others are counted and named."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from csvs import write_csv

from gpubench.errors import MisuseError
from gpubench.models import TaskKind
from gpubench.predict.chips import Mode, chips
from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS
from gpubench.predict.roofline import HOST_S_PER_OPERATOR
from gpubench.profile import load_profiles
from gpubench.sections.prediction import LAYOUT
from gpubench.specs import find_spec, load_specs
from tools.calibrate import batch_spread, fit_table, host_prior_s, pairs_of
from tools.evaluate import outcome_of
from tools.published import (
    COLUMNS,
    DATA,
    EXECUTIONS,
    INPUTS_OF_DATA,
    MEASUREMENTS,
    base_model,
    fitted_on,
    model_profiles,
    read_csv,
    shipped,
)

GOOD = {
    "source": "lab", "gpu": "Tesla T4", "model": "resnet50", "mode": "train", "precision": "fp32",
    "batch_size": "64", "metric": "throughput", "unit": "images/s", "value": "100",
}  # fmt: skip


@pytest.mark.parametrize(("name", "least"), [("published.csv", 4900), ("published_inference.csv", 2000)])
def test_the_shipped_rows_state_their_source(name, least):
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > least
    assert set(COLUMNS) < set(rows[0])
    of_inference = set(model_profiles().loc[TaskKind.INFER].index)
    for row in rows:
        assert "@" in row["source_ref"]
        assert row["licence"]
        assert row["gpu_key"] in load_specs()
        if name == "published.csv":
            assert row["math_mode"] in {"fp32", "tf32", "tf32-conv", "amp", "half"}
        else:
            assert (row["mode"], row["model"] in of_inference) == ("inference", True)


def test_the_slowdown_of_contiguous_images_is_as_said():
    """Of 834 networks that timm timed in both layouts on an RTX 3090, 5 % slow down by more than 1.45 times."""
    rates = {layout: {} for layout in ("nhwc", "nchw")}
    for row in csv.DictReader((DATA / "published.csv").read_text(encoding="utf-8").splitlines()):
        layout = row["source"].removeprefix("timm-train-")
        if layout in rates:
            rates[layout][row["model"], row["precision"]] = float(row["value"])
    slower = [rate / rates["nchw"][of] for of, rate in rates["nhwc"].items() if of in rates["nchw"]]
    assert len(slower) == 834
    assert np.quantile(slower, 0.95) == pytest.approx(1.45, abs=0.005)
    assert "up to 1.5 times" in LAYOUT


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_each_shipped_row_states_how_it_was_measured(name):
    """Execution, torch version, input, optimizer and doubt are columns; an unstated value is empty, never guessed."""
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    trained = set(model_profiles().loc[TaskKind.TRAIN].index)
    for row in rows:
        assert row["execution"] in {"", *EXECUTIONS}
        assert row["data_input"] in {"", *INPUTS_OF_DATA}
        assert row["optimizer_in_step"] in ({""} if row["mode"] == "inference" else {"yes", "no"})
        assert re.fullmatch(r"(\d+(\.\d+)?)?", row["torch"])
        stated = row["batch_size"] not in {"", "0"}
        ranged = row["batch_low"] != "" and 0 < int(row["batch_low"]) < int(row["batch_high"])
        assert stated or ranged or row["model"] not in trained, row
        assert stated != ("batch not stated" in row["doubt"]), row
    for column in ("execution", "data_input", "torch", "doubt"):
        assert len({row[column] for row in rows}) > 1, column
    executions = {}
    for row in rows:
        executions.setdefault(row["source"], set()).add(row["execution"])
    assert max(map(len, executions.values())) == 1  # because the fit assumes one host per source


def test_execution_columns_of_a_row_override_its_source(tmp_path):
    """A source's name implies nothing that the row states differently."""
    rows = [
        GOOD | {"execution": execution, "optimizer_in_step": optimizer, "data_input": "loader", "torch": "2.8",
                "doubt": "two cards", "source": source}
        for source in ("ryujaehun-new", "a stranger")
        for execution, optimizer in (("eager", "yes"), ("compile", "no"))
    ]  # fmt: skip
    rows = [row | {"gpu": gpu} for row, gpu in zip(rows, ("T4", "L4", "T4", "L4"), strict=True)]
    table = read_csv(write_csv(tmp_path / "x.csv", rows)).table
    assert list(table.execution) == [
        {"nvidia-tesla-t4-16gb": "eager", "nvidia-l4-24gb": "compile"}[key] for key in table.gpu_key
    ]
    assert list(table.arithmetic.no_optimizer) == [e == "compile" for e in table.execution]
    assert list(host_prior_s(table)) == [HOST_S_PER_OPERATOR[e] for e in table.execution]
    assert set(table.data_input) == {"loader"}
    assert set(table.torch) == {"2.8"}
    assert set(table.doubt) == {"two cards"}


def test_row_without_optional_columns_takes_the_facts_of_its_source_or_harness(tmp_path):
    rows = [GOOD | {"source": source} for source in ("ryujaehun-new", "ryujaehun-another", "a stranger")]
    rows.append(GOOD | {"source": "timm-infer-amp-nchw-pt240-dynamo", "mode": "inference"})
    table = read_csv(write_csv(tmp_path / "x.csv", rows)).table
    found = dict(
        zip(table.source, zip(table.execution, table.arithmetic.no_optimizer, strict=True), strict=True)
    )
    assert found == {
        "ryujaehun-new": ("eager", True), "ryujaehun-another": ("eager", True), "a stranger": ("", False),
        "timm-infer-amp-nchw-pt240-dynamo": ("compile", False),
    }  # fmt: skip


def test_an_unstated_batch_is_a_range(tmp_path):
    """The middle of the range is used, and its ends give the spread; an absurd range is ignored."""
    given = [
        ("64", "", ""),
        ("0", "32", "512"),
        ("0", "", ""),
        ("0", "512", "32"),
        ("0", "-1", "nan"),
        ("8", "1", "99"),
    ]
    gpus = ("T4", "L4", "RTX 4090", "RTX 3090", "H100 SXM", "H200")
    rows = [
        GOOD | {"gpu": gpu, "batch_size": batch, "batch_low": low, "batch_high": high}
        for gpu, (batch, low, high) in zip(gpus, given, strict=True)
    ]
    table = read_csv(write_csv(tmp_path / "x.csv", rows)).table
    found = {key: tuple(map(int, ends)) for key, *ends in zip(
        table.gpu_key, table.batch, table.batch_low, table.batch_high, strict=True
    )}  # fmt: skip
    keys = [find_spec(gpu).key for gpu in gpus]
    assert [found[key] for key in keys] == [
        (64, 64, 64), (128, 32, 512), (128, 16, 1024), (128, 16, 1024), (128, 16, 1024), (8, 8, 8),
    ]  # fmt: skip
    spread = dict(zip(table.gpu_key, batch_spread(table), strict=True))
    assert [bool(spread[key]) for key in keys] == [False, True, True, True, True, False]


def test_the_wider_the_plausible_batches_the_less_a_row_counts_and_the_wider_its_interval(tmp_path):
    def told(low, high):
        rows = [GOOD, GOOD | {"gpu": "L4", "batch_size": "0", "batch_low": low, "batch_high": high}]
        outcome = outcome_of(read_csv(write_csv(tmp_path / "x.csv", rows)).table, TaskKind.TRAIN)
        return outcome.pairs.weight.sum(), outcome.half_width.sum(), np.nansum(outcome.level_half_width)

    (stated, *widths), (some, *wider), (few, *widest) = told("64", "64"), told("32", "128"), told("1", "4096")
    assert stated == pytest.approx(2)  # a vote for each of the two cards
    assert few < 0.9 * some < some < stated
    for each in zip(widths, wider, widest, strict=True):
        assert list(each) == sorted(set(each))


def test_shipped_rows_with_an_unstated_batch_count_less_in_the_fit():
    table = fitted_on(TaskKind.TRAIN)
    unsure = table.batch_high > table.batch_low
    assert set(table.harness[unsure]) == {"gpu-insights", "nvidia-dle"}
    assert unsure.sum() == 24
    fit = fit_table(table, np.ones(len(table), dtype=bool))
    told = replace(table, batch_low=table.batch, batch_high=table.batch)
    same = fit_table(told, np.ones(len(table), dtype=bool))
    share = fit.weight / same.weight
    assert share[unsure].min() < 0.7
    assert np.average(share[unsure]) < 0.96
    assert np.median(share[~unsure]) == pytest.approx(1, abs=0.01)
    pairs = pairs_of(table)
    assert (pairs.weight[pairs.spread > 0] < pairs_of(told).weight[pairs.spread > 0]).all()


def test_the_page_counts_the_shipped_and_the_fitted_rows():
    counts = []
    for name in ("published.csv", "published_inference.csv"):
        with (DATA / name).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        counts.append(f"{len(rows):,}")
        if name == "published.csv":
            counts.append(f"{len({row['source'] for row in rows})} sources")
            trained = model_profiles().loc[TaskKind.TRAIN].index
            timm = [row for row in rows if row["source"].startswith("timm") and row["model"] not in trained]
            counts.append(f"{len(timm):,} are networks")
    fitted, both = fitted_on(TaskKind.TRAIN), fitted_on(TaskKind.TRAIN, (FITTED_VENDOR, *OTHER_VENDORS))
    skipped = shipped((FITTED_VENDOR, *OTHER_VENDORS)).skipped
    unprofiled = sum(n for reason, n in skipped.items() if reason.startswith("no profile"))
    kepler = sum(n for reason, n in skipped.items() if "Kepler" in reason)
    counts += [
        f"{len(fitted):,} steps", f"{len(set(fitted.source))} sources", f"{len(both) - len(fitted)} steps on AMD",
        f"{unprofiled:,} rows", f"{kepler} of Kepler",
    ]  # fmt: skip
    text = " ".join((DATA.parents[1] / "docs/prediction-evidence.md").read_text(encoding="utf-8").split())
    part = text[text.index("`python -m tools.calibrate` fits it") :].partition("## Inference and tokens")[0]
    assert [count for count in counts if count not in part] == []


def test_only_the_rows_of_compiled_inference_count_as_compiled():
    table = fitted_on(TaskKind.INFER)
    compiled = table.arithmetic.compiled
    assert {str(s) for s in table.source[compiled]} == {
        str(s) for s in table.source if str(s).endswith("-dynamo")
    }
    assert not compiled[~table.inference].any()


def test_kepler_is_left_out_and_reported():
    reading = shipped()
    assert not any("k80" in key for key in reading.table.gpu_key)
    assert any("k80" in reason for reason in reading.skipped)
    assert 0.98 * reading.rows < len(reading.table) + sum(reading.skipped.values()) <= reading.rows  # repeats


def test_precision_labels_are_mapped_to_the_arithmetic_that_actually_ran():
    table = fitted_on(TaskKind.TRAIN)

    def modes(source, gpu_key, precision):
        rows = (table.source == source) & (table.gpu_key == gpu_key) & (table.precision == precision)
        assert rows.any()
        return set(table.arithmetic.conv[rows]), set(table.arithmetic.matmul[rows])

    h100, v100 = "nvidia-h100-sxm-80gb", "nvidia-tesla-v100-sxm2-16gb"
    assert modes("lambda-pytorch-22.09", h100, "fp32") == ({Mode.TF32}, {Mode.TF32})
    assert modes("lambda-pytorch-22.09", v100, "fp32") == ({Mode.FP32}, {Mode.FP32})
    assert modes("xhmy-torch-benchmark", h100, "fp32") == ({Mode.TF32}, {Mode.FP32})
    assert modes("neusight-labels", h100, "fp32") == ({Mode.FP32}, {Mode.FP32})
    assert modes("lambda-pytorch-22.09", h100, "amp") == ({Mode.HALF}, {Mode.HALF})


def test_autocast_casts_weights_and_gradients_but_half_precision_models_do_not(tmp_path):
    rows = [GOOD | {"precision": precision, "mode": mode} for precision, mode in (
        ("amp", "train"), ("amp", "inference"), ("fp16", "train")
    )]  # fmt: skip
    table = read_csv(write_csv(tmp_path / "x.csv", rows)).table
    kind = zip(table.precision, table.inference, strict=True)
    cast = {(p, bool(i)): b for (p, i), b in zip(kind, table.work.cast_bytes, strict=True)}
    weights = 25.56e6
    assert cast["amp", False] == pytest.approx(2 * 6 * weights)
    assert cast["amp", True] == pytest.approx(6 * weights)
    assert cast["fp16", False] == 0


def test_every_unit_is_converted_to_seconds_per_step(tmp_path):
    rows = [
        GOOD,
        GOOD | {"gpu": "NVIDIA H100 PCIe 80GB", "metric": "step_time", "unit": "ms", "value": "640"},
    ]
    table = read_csv(write_csv(tmp_path / "x.csv", rows)).table
    assert np.exp(table.log_seconds) == pytest.approx([0.64, 0.64])


@pytest.mark.parametrize("model", ["gnmt", "gpt2_large_s1024", "bert_base_squad+Adam"])
def test_tokens_are_converted_to_samples_of_their_model(tmp_path, model):
    """A row in tokens equals the row in sequences: one sequence is 54, 1,024 or 384 tokens."""
    of_one = {"gnmt": 54, "gpt2_large_s1024": 1024, "bert_base_squad+Adam": 384}[model]
    rows = [
        GOOD | {"source": unit, "model": model, "unit": unit, "value": str(value)}
        for unit, value in (("tokens/s", 2.0 * of_one), ("sequences/s", 2.0))
    ]
    table = read_csv(write_csv(tmp_path / "x.csv", rows)).table
    assert np.exp(table.log_seconds) == pytest.approx([32.0, 32.0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "Banana 9000"}, "unknown GPU 'Banana 9000'"),
        ({"gpu": "Tesla K80"}, "Kepler"),
        ({"gpu": "AMD Instinct MI300X"}, "AMD"),
        ({"model": "nobodynet"}, "no profile of model 'nobodynet'"),
        ({"unit": "tokens/s"}, "whose tokens per sample are not known 'resnet50'"),
        ({"unit": "furlongs/s"}, "unknown unit 'furlongs/s'"),
        ({"precision": "int3"}, "unknown precision 'int3'"),
        ({"mode": "sleep"}, "unknown mode 'sleep'"),
        ({"value": "-1"}, "not a positive number"),
        ({"value": "0"}, "not a positive number"),
        ({"value": "nan"}, "not a positive number"),
        ({"value": "inf"}, "not a positive number"),
        ({"value": ""}, "not a positive number"),
        ({"batch_size": "-4"}, "not a positive number"),
        ({"batch_size": "1e300"}, "not a positive number"),
        ({"metric": "step_time", "unit": "ms", "batch_size": "0"}, "a step time without its batch"),
        ({"gpu": "x\x1b[31mred"}, "unknown GPU"),
    ],
)
def test_a_bad_row_is_counted_and_named_and_a_good_one_still_used(tmp_path, change, reason):
    reading = read_csv(write_csv(tmp_path / "x.csv", [GOOD, GOOD | change]))
    assert len(reading.table) == 1
    ((seen, count),) = reading.skipped.items()
    assert reason in seen
    assert count == 1
    assert "\x1b" not in seen


def test_apostrophe_in_a_model_name_does_not_create_another_skip_reason(tmp_path):
    strange = [GOOD | {"model": name} for name in ("mine", "lab's", 'say "lab\'s"')]
    reading = read_csv(write_csv(tmp_path / "x.csv", [GOOD, *strange, GOOD | {"value": ""}]))
    assert len(reading.skipped) == 4
    assert reading.skipped_by_kind == {
        "no profile of model": 3,
        "value or batch is not a positive number": 1,
    }


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", ",".join(COLUMNS) + "\n", "\x00\x01"])
def test_a_file_with_nothing_usable_is_misuse(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MisuseError):
        read_csv(path)


def test_a_missing_or_binary_file_is_misuse(tmp_path):
    with pytest.raises(MisuseError, match="cannot read"):
        read_csv(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(MisuseError, match="no column gpu"):
        read_csv(tmp_path / "x.csv")
    head = ",".join(COLUMNS).encode()
    (tmp_path / "x.csv").write_bytes(head + b"\nlab,T4 \xae\nlab,T4 \xae\n")
    with pytest.raises(MisuseError, match=r"none of 2 .*2 x .*UTF-8.* \(lines 2 and 3\)"):
        read_csv(tmp_path / "x.csv")


EIGHTY = [GOOD | {"value": str(100 + n), "source": f"lab {n}"} for n in range(80)]


def corrupted(path: Path, number: int, spoil: Callable[[bytes], bytes]) -> Path:
    """Write 80 good rows, and corrupt one line."""
    lines = write_csv(path, EIGHTY).read_bytes().splitlines(keepends=True)
    lines[number - 1] = spoil(lines[number - 1])
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda line: line.replace(b"Tesla T4", b"Tesla\xae T4"), "not UTF-8 text (line 11)"),
        (lambda line: b'"' + line, "a quote that is not closed on its line (line 11)"),
        (lambda line: line.replace(b"Tesla", b'"Tesla'), "a quote that is not closed on its line (line 11)"),
        (lambda line: b"x" * 140_000 + line, "field larger than field limit (131072) (line 11)"),
        (lambda line: b'"' + b"x" * 140_000 + line, "field larger than field limit (131072) (line 11)"),
    ],
)
def test_a_broken_line_affects_only_itself(tmp_path, spoil, reason):
    reading = read_csv(corrupted(tmp_path / "x.csv", 11, spoil))
    assert reading.rows == 80
    assert len(reading.table) == 79
    assert reading.skipped == {reason: 1}
    assert "lab 9" not in set(reading.table.source)
    assert {"lab 8", "lab 10", "lab 79"} < set(reading.table.source)


def test_many_broken_lines_are_counted_and_the_first_are_named(tmp_path):
    path = write_csv(tmp_path / "x.csv", EIGHTY)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:61], *(b"\xae" + line for line in lines[61:])]))
    reading = read_csv(path)
    assert len(reading.table) == 60
    assert reading.skipped == {"not UTF-8 text (lines 62, 63, 64, 65, 66 and 15 more)": 20}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_byte_order_mark_determines_the_encoding(tmp_path, encoding, end):
    path = write_csv(tmp_path / "x.csv", EIGHTY)
    want = read_csv(path)
    path.write_bytes(path.read_text(encoding="utf-8").replace("\n", end).encode(encoding))
    reading = read_csv(path)
    assert (reading.rows, reading.skipped) == (80, {})
    assert list(reading.table.log_seconds) == list(want.table.log_seconds)


@pytest.mark.parametrize(("codec", "mark"), [("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")])
def test_a_broken_line_of_utf_16_affects_only_itself(tmp_path, codec, mark):
    path = write_csv(tmp_path / "x.csv", EIGHTY)
    text = path.read_text(encoding="utf-8").replace("lab 9,", "lab \ud83d,")
    path.write_bytes(mark + text.encode(codec, "surrogatepass") + b"\0")
    reading = read_csv(path)
    assert reading.rows == 81  # the odd byte after the last line is its own line
    assert len(reading.table) == 79
    assert reading.skipped == {"not UTF-16 text (lines 11 and 82)": 2}


def test_a_broken_column_name_affects_only_that_column(tmp_path):
    path = write_csv(tmp_path / "x.csv", [row | {"note": "x"} for row in EIGHTY])
    path.write_bytes(path.read_bytes().replace(b"note", b"Gr\xf6\xdfe", 1))
    reading = read_csv(path)
    assert (len(reading.table), reading.skipped) == (80, {})
    (unread,) = reading.unread
    assert unread.startswith("gr")


def test_a_stray_quote_in_the_header_has_no_effect(tmp_path):
    for at in (b"source", b"model"):
        path = corrupted(tmp_path / "x.csv", 1, lambda line, at=at: line.replace(at, b'"' + at))
        reading = read_csv(path)
        assert (len(reading.table), reading.skipped, reading.unread) == (80, {}, ())


def test_quotes_that_close_on_their_line_are_read_normally(tmp_path):
    """Separators within quotes, doubled quotes, and quotes within a cell."""
    path = corrupted(tmp_path / "x.csv", 11, lambda line: line.replace(b"lab 9", b'"lab, ""9"""'))
    assert 'lab, "9"' in set(read_csv(path).table.source)
    path = corrupted(tmp_path / "x.csv", 11, lambda line: line.replace(b"lab 9", b'lab "9'))
    assert 'lab "9' in set(read_csv(path).table.source)


def test_every_nvidia_gpu_has_its_chip_and_no_other_does():
    assert {key for key, spec in load_specs().items() if spec.vendor == "NVIDIA"} == set(chips())


def test_model_name_variants_resolve_to_one_base_model():
    assert base_model("ResNet50@224+Adam") == base_model("resnet50") == "resnet50"
    ours = [name for name in model_profiles().loc[TaskKind.TRAIN].index if name in load_profiles()]
    assert len(model_profiles().loc[TaskKind.TRAIN].index) == 106 + len(set(ours) - {"resnet50", "vgg16"})
    assert {"transformer", "bert_base", "vit_b16", "lstm_large"} <= set(ours)
