"""A B200 relative to an H100: predictions by fits without the harness and the card, against ten published rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpubench.models import TaskKind
from gpubench.units import format_number
from tools.calibrate import fit_table, times_of
from tools.published import Table, fitted_on

PAGE = Path(__file__).parents[2] / "docs" / "prediction-evidence.md"
B200, H100, H200 = "nvidia-b200-sxm-180gb", "nvidia-h100-sxm-80gb", "nvidia-h200-sxm-141gb"
FIRST_VALUES = 64 * 112 * 112
"""Values per image after ResNet-50's first convolution; each block of its first stage has as many (256 x 56 x 56)."""
MOST_IN_32_BITS = 2**31


class Case(NamedTuple):
    """One B200 row over one H100 row: the predicted and the measured ratio of their throughputs."""

    model: str
    precision: str
    batches: tuple[int, int]
    told: float
    read: float
    doubt: str

    @property
    def error(self) -> float:
        return self.told / self.read - 1


def rows() -> tuple[Table, np.ndarray]:
    """Return the training table, and which of its rows are from the harness that has a B200."""
    table = fitted_on(TaskKind.TRAIN)
    return table, table.harness == "lambda-pytorch"


@cache
def cases(*, newest: bool = False, blackwell: bool = True) -> tuple[Case, ...]:
    """Predict each B200 row by a fit without its harness and its card.

    Args:
        newest: Compare with the H100's rows of the newest software only, instead of all of them.
        blackwell: Whether the fit includes the other Blackwell cards.
    """
    table, here = rows()
    fit = fit_table(table, np.ones(len(table), dtype=bool))
    b200, h100 = table.gpu_key == B200, table.gpu_key == H100
    out = here | (b200 if blackwell else table.architecture == "Blackwell")
    told = np.log(table.batch) - np.log(times_of(fit, fit.without(out)).step_s)
    read = np.log(table.batch) - table.log_seconds
    found = []
    for y in np.flatnonzero(b200 & here):
        alike = h100 & here & (table.model == table.model[y]) & (table.precision == table.precision[y])
        if newest:
            alike &= table.source == max(
                table.source[alike & np.char.startswith(table.source.astype(str), "lambda-pytorch-v2")]
            )
        x = min(np.flatnonzero(alike), key=lambda row: abs(np.log(table.batch[row] / table.batch[y])))
        ratios = np.exp([told[y] - told[x], read[y] - read[x]])
        batches = int(table.batch[x]), int(table.batch[y])
        found.append(Case(table.model[y], table.precision[y], batches, *ratios, table.doubt[y]))
    return tuple(found)


def means(found: tuple[Case, ...]) -> tuple[float, float, float]:
    """Return the mean error of BERT, of the rows not in doubt, and of all rows."""
    groups = [c for c in found if c.model.startswith("bert")], [c for c in found if not c.doubt], found
    assert [len(group) for group in groups] == [4, 7, 10]
    bert, sound, every = (float(np.mean([abs(c.error) for c in group])) for group in groups)
    return bert, sound, every


@cache
def section() -> str:
    text = PAGE.read_text(encoding="utf-8").partition("## On Blackwell")[2].partition("\n## ")[0]
    return " ".join(text.split())


def percents(*ratios: float) -> tuple[str, ...]:
    return tuple(f"{100 * ratio:.0f}" for ratio in ratios)


def test_the_undoubted_rows_are_within_fifteen_percent():
    """The page gives the error without the three doubtful rows and with them."""
    found = cases()
    bert, sound, every = means(found)
    assert sound < 0.15
    assert all(abs(case.error) < 0.16 for case in found if not case.doubt)
    assert {(c.model, c.precision) for c in found if c.doubt} == {
        ("resnet50", "amp"),
        ("ssd", "amp"),
        ("ssd", "fp32"),
    }
    words = percents(sound, every, bert)
    assert (
        f"**{words[0]} % off on average over the seven rows not in doubt**, {words[1]} % over all ten"
        in section()
    )
    assert f"BERT is {words[2]} % off on average over four rows" in section()


def test_the_table_of_the_page_has_the_predictions_and_the_readings():
    for c in cases():
        label = f"`{c.model}` {c.batches[0]}, {c.batches[1]}"
        doubt = ", in doubt" if c.doubt else ""
        line = f"| {label} | {c.precision} | x{c.told:.2f} | x{c.read:.2f} | {100 * c.error:+.0f} %{doubt} |"
        assert line in section()


def test_the_page_has_the_other_ways_to_count():
    in_time = np.mean([abs(c.read / c.told - 1) for c in cases()])
    strangers = means(cases(blackwell=False))[2]
    assert (
        "All ten are {} % off counted in time, as in the tables above, and {} % in throughput".format(
            *percents(float(in_time), strangers)
        )
        in section()
    )
    bert, sound, every = percents(*means(cases(newest=True)))
    assert f"BERT is {bert} % off, the seven {sound} % and all ten {every} %" in section()


def rate_of(gpu_key: str, model: str, precision: str) -> float:
    """Return the median throughput of a card's rows of one model and precision."""
    table, here = rows()
    mine = here & (table.gpu_key == gpu_key) & (table.model == model) & (table.precision == precision)
    return float(np.median(table.batch[mine] / np.exp(table.log_seconds[mine])))


def test_doubt_about_three_rows_follows_from_the_rows_themselves():
    """No prediction is needed to doubt them: AMP halves the bytes and doubles the peak, but gains nothing there."""
    table, here = rows()
    gains = {}
    for key in (B200, H200, H100):
        for model in ("resnet50", "ssd", "bert_base_squad", "gnmt"):
            gains[key, model] = rate_of(key, model, "amp") / rate_of(key, model, "fp32")
    for model in ("resnet50", "ssd"):
        assert gains[B200, model] < 1.05
        assert min(gains[H100, model], gains[H200, model]) > 1.3
    assert min(gains[B200, "bert_base_squad"], gains[B200, "gnmt"]) > 1.6
    assert f"gains {100 * (gains[B200, 'resnet50'] - 1):.0f} % over TF32" in section()
    assert abs(rate_of(B200, "resnet50", "amp") / rate_of(H200, "resnet50", "amp") - 1) < 0.01
    ssd = (f"{rate_of(B200, 'ssd', precision):,.0f}" for precision in ("fp32", "amp"))
    assert "({} and {} images/s)".format(*ssd) in section()
    assert set(table.data_input[here & (table.model == "ssd")]) == {"loader"}
    assert set(table.data_input[here & (table.model == "resnet50")]) == {"synthetic"}


def test_doubtful_resnet50_row_is_the_only_one_beyond_32_bit_indexing():
    table, here = rows()
    mine = here & (table.model == "resnet50")
    beyond = mine & (table.batch * FIRST_VALUES > MOST_IN_32_BITS)
    assert [(table.gpu_key[i], table.precision[i]) for i in np.flatnonzero(beyond)] == [(B200, "amp")]
    assert "2^31" in table.doubt[beyond][0]
    values = [batch * FIRST_VALUES / 1e9 for batch in (3328, 2560, 1664)]
    for words in (
        "3,328 images give activations of {:.2f} billion",
        "(2,560: {:.2f} billion)",
        "(1,664: {:.2f} billion)",
    ):
        assert words.format(values.pop(0)) in section()


READ_ON_AN_H200 = {
    "in front": {640: 52.25, 1280: 51.74, 1664: 51.72, 2560: 51.52, 2664: 51.51, 2688: 56.11, 3328: 56.17},
    "first stage": {
        640: 112.42,
        1280: 111.62,
        1664: 111.59,
        2560: 111.57,
        2664: 111.52,
        2688: 129.00,
        3328: 128.92,
    },
}
"""Time per image of a forward and backward pass by batch size [us]: NCHW, autocast to float16, cuDNN's own search,
median of five; torch 2.11.0+cu130, cuDNN 9.19, 2026-11-23. In front: convolution, norm, ReLU and pooling."""


def test_documented_cost_of_64_bit_indexing_on_an_h200_matches_the_data():
    longer, added = {}, 0.0
    for part, read in READ_ON_AN_H200.items():
        within = [us for batch, us in read.items() if batch * FIRST_VALUES < MOST_IN_32_BITS]
        beyond = [us for batch, us in read.items() if batch * FIRST_VALUES > MOST_IN_32_BITS]
        assert max(within) / min(within) < 1.02
        assert min(beyond) / max(within) > 1.07
        longer[part] = read[2688] / read[2664] - 1
        added += read[2688] - read[2664]
    step_us = 1e6 / rate_of(H200, "resnet50", "amp")
    (amp,) = (c for c in cases() if (c.model, c.precision) == ("resnet50", "amp"))
    words = (
        f"{100 * longer['in front']:.0f} % longer for an image, and the first stage {100 * longer['first stage']:.0f} %",
        f"{100 * added / step_us:.0f} % of a whole step",
        f"this row is off by a factor of {format_number(amp.told / amp.read, 2)}",
    )
    assert [each for each in words if each not in section()] == []


def test_blackwell_has_no_row_of_vgg16():
    table = fitted_on(TaskKind.TRAIN)
    assert not (table.base_model[table.architecture == "Blackwell"] == "vgg16").any()
    other = {str(m) for m in table.model[(table.architecture == "Blackwell") & (table.gpu_key != B200)]}
    assert other == {"resnet50_cifar", "unet_256", "ddpm_64", "vit_base_patch16_224"}
    assert all(f"`{model}`" in section() for model in other)
