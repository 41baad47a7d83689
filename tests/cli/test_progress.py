"""The lines before, during and after a run: the work ahead, the progress, and what the run shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report import samples

from gpubench.cli.progress import ProgressLine, line_of
from gpubench.cli.verbs.run import tell
from gpubench.measure.budget import budget_of
from gpubench.measure.messages import CaseBegan, Phase, RoundDone, RunPlanned
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.measure.request import RunRequest
from gpubench.models import (
    Case,
    Execution,
    Finding,
    FindingKind,
    Measurement,
    Precision,
    Round,
    Run,
    Settings,
)
from gpubench.record.store import write_run
from gpubench.sections.measured import closing_sentence
from gpubench.session.session import Prepared, Session

PLANNED = RunPlanned(cases=6, launches=3, most_s=300.0, budget="default", device="a GPU")


def test_run_announces_its_maximum_measuring_time() -> None:
    head = "measuring 6 cases x 3 launches on a GPU, budget default"
    assert line_of(PLANNED).removeprefix(head) == ": rounds for at most 5 min if steps are short"
    micro = msgspec.structs.replace(PLANNED, cases=0, launches=1, most_s=0.0)
    assert line_of(micro) == "measuring micro-benchmarks only on a GPU, budget default"


def test_the_progress_line_starts_with_the_time_and_shows_the_rate() -> None:
    live = ProgressLine()
    for event in (
        PLANNED,
        CaseBegan(case=samples.case("cnn", 64), launch=0, number=2, total=6),
        Phase(name="timed"),
        RoundDone(timed=True, round=Round(steps=10, wall_s=0.5), half_width=0.02),
    ):
        live.note(event)
    line = live.line()
    assert line.startswith("0:00  rounds 0:00 of at most 5:00  2/6 cnn")
    assert line.endswith("  1,280 images/s ±2.0 %  timed, round 1")
    assert " W" not in line, "the device does not report its power"
    live.note(
        RoundDone(
            timed=True, round=Round(steps=10, wall_s=0.5), half_width=0.02, power_w=652.4, temperature_c=61
        )
    )
    assert live.line().endswith("±2.0 %  652 W  61 °C  timed, round 2")
    live.note(CaseBegan(case=samples.case("vgg16", 64), launch=0, number=3, total=6))
    assert "images/s" not in live.line(), "the rate was that of the case before"
    live.note(RoundDone(timed=True, round=Round(steps=10, wall_s=330.0)))
    assert live.line().startswith("0:00  rounds 5:31, past 5:00: slow steps  3/6 vgg16"), (
        "a bound stays after it has passed"
    )
    live.note(CaseBegan(case=samples.case("vgg16", 64), launch=0, number=4, total=8, most_s=400.0))
    assert live.line().startswith("0:00  rounds 5:31 of at most 6:40  4/8"), (
        "an eager case takes the place of a graph"
    )


def test_a_run_ends_with_what_mixed_precision_gained_on_the_heaviest_workload() -> None:
    sentence = closing_sentence(samples.h200_run())
    assert sentence is not None
    assert sentence.startswith("amp-bf16 against fp32 on vgg16, graph, batch 64: amp-bf16 is 4.")
    assert sentence.endswith(") as fast as fp32.")
    assert closing_sentence(samples.h200_run(measurements=())) is None


@pytest.fixture
def told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Return a function that gives the lines that a run of one case prints at eighty columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def tell_of(case: Case, run: Run | None = None) -> list[str]:
        run = run or samples.h200_run()
        cases = (PlannedCase(reference="vgg16", case=case),)
        prepared = Prepared(
            device=run.device,
            plan=Plan(budget=budget_of("quick", on_cpu=False), seed=0, cases=cases),
            root=tmp_path,
            findings=(),
            remark=None,
            settings=Settings(),
        )
        session = Session(run=run, path=write_run(tmp_path, run))
        tell(session, prepared, RunRequest(results=tmp_path), None, as_json=False)
        return capsys.readouterr().out.splitlines()

    return tell_of


def of_vgg16(*precisions: str) -> list[Measurement]:
    """Return the rows of VGG16 as a graph at these precisions."""
    rows = samples.h200_run().measurements
    found = {(m.case.workload, m.case.precision, m.case.execution): m for m in rows if m.launches}
    return [found["vgg16", Precision(each), Execution.GRAPH] for each in precisions]


def test_the_last_lines_of_a_run_are_the_answer_and_the_gain(told: Callable[..., list[str]]) -> None:
    """At eighty columns the answer is the last screen, below the gain from mixed precision."""
    printed = told(samples.case("vgg16", 64))
    answer = next(at for at, line in enumerate(printed) if re.match(r"(Cheapest|Sensible)", line))
    assert len(printed) - answer <= 20
    gain = next(at for at, line in enumerate(printed) if line.startswith("amp-bf16 against fp32 on vgg16, "))
    assert gain < answer
    assert "as fast as fp32." in " ".join(printed[gain:answer])
    assert " is 4." in printed[gain]


def test_each_certain_gain_from_mixed_precision_gets_a_line(told: Callable[..., list[str]]) -> None:
    """A run on a GPU, where the seven cases of the suite are steady, with micro-benchmarks."""
    of_suite = {("cnn", "fp32"), ("lstm", "fp32"), ("vgg16", "fp32")}
    of_suite |= {(name, "amp-bf16") for name, _ in of_suite} | {("resnet50", "amp-bf16")}
    whole = samples.h200_run()
    suite: dict[tuple[str, str], Measurement] = {}
    for row in whole.measurements:
        key = row.case.workload, row.case.precision.value
        if key in of_suite and row.case.execution is Execution.GRAPH:
            suite.setdefault(key, row)
    run = msgspec.structs.replace(whole, measurements=tuple(suite.values()), micro=samples.micro())
    printed = told(samples.case("vgg16", 64), run)
    assert len(printed) <= 60
    gains = printed[printed.index("Speedup of AMP") :]
    for name, line in zip(("cnn", "lstm", "vgg16"), gains[3:6], strict=True):
        assert re.match(
            rf"{name} graph batch \d+ +amp-bf16 over fp32 +\d\.\d+× \(\d\.\d+ to \d\.\d+\)$", line
        )


def test_a_quick_run_of_a_cpu_is_reported_in_sixty_lines(told: Callable[..., list[str]]) -> None:
    """Six cases, each with every finding that a busy machine causes, and micro-benchmarks."""
    told_apart = ("HOST_BUSY", "NOISY", "NOT_CONVERGED", "NOT_STEADY", "SHORT_LOOK")
    doubts = tuple(Finding(kind=FindingKind(kind), value=0.87, limit=0.5) for kind in told_apart)
    four = samples.cpu_run().measurements
    lstm, vgg16 = (
        msgspec.structs.replace(row, case=msgspec.structs.replace(row.case, precision=Precision.AMP_BF16))
        for row in four[2:]
    )
    rows = tuple(msgspec.structs.replace(row, findings=doubts) for row in (*four, lstm, vgg16))
    of_run = tuple(Finding(kind=kind) for kind in (FindingKind.NO_TELEMETRY, FindingKind.ONE_PROCESS))
    busy = samples.cpu_run(measurements=rows, micro=samples.micro(), findings=of_run)
    printed = told(samples.case("vgg16", 64), busy)
    assert len(printed) <= 60
    named = [line for line in printed if re.match("(cnn|lstm|vgg16) (fp32|amp-bf16) batch ", line)]
    assert len(named) == 6, "one line for each case"
    assert all(line.endswith("  3 4 5 6 7") for line in named)
    for number, kind in enumerate(told_apart, 3):
        start = next(i for i, line in enumerate(printed) if line.startswith(f"{number} "))
        assert f"[{kind}]" in " ".join(printed[start : start + 4])


@pytest.mark.parametrize(
    "asked", [{"threads": 2}, {"framework": "keras-jax"}, {"precision": "int8", "task": "infer"}]
)
def test_a_run_about_threads_frameworks_or_int8_does_not_end_with_what_to_rent(
    told: Callable[..., list[str]], asked: dict[str, Any]
) -> None:
    case = msgspec.convert(msgspec.to_builtins(samples.case("vgg16", 64)) | asked, Case)
    printed = told(case)
    assert not any("Sensible" in line for line in printed)


def test_a_gain_with_an_interval_that_contains_one_is_no_difference() -> None:
    amp, fp32 = of_vgg16("amp-bf16", "fp32")
    launches = tuple(msgspec.structs.replace(each, **samples.PROOFS) for each in amp.launches)
    alike = msgspec.structs.replace(fp32, launches=launches)
    sentence = closing_sentence(samples.h200_run(measurements=(amp, alike)))
    assert sentence is not None
    assert ": no difference found; " in sentence
    assert sentence.endswith(" % would have been detected.")


def test_closing_line_never_claims_a_gain_that_the_page_omits() -> None:
    """Neither the page nor the last line of a run shows a gain if its bounds differ by more than half."""
    amp, fp32 = of_vgg16("amp-bf16", "fp32")
    first = amp.launches[0]
    noisy = tuple(
        msgspec.structs.replace(each, wall_s=each.wall_s * (1 + i % 2))
        for i, each in enumerate(first.rounds[:8])
    )
    rough = msgspec.structs.replace(amp, launches=(msgspec.structs.replace(first, rounds=noisy),))
    assert closing_sentence(samples.h200_run(measurements=(rough, fp32))) is None


def test_a_run_that_continues_says_how_much_of_it_is_left() -> None:
    left = msgspec.structs.replace(PLANNED, left=7)
    assert all(each in line_of(left) for each in ("7 of 18 launches", "budget default", "at most 5 min"))
    single = line_of(msgspec.structs.replace(left, launches=1, left=2))
    assert single is not None
    assert " 2 of 6 cases on " in single
