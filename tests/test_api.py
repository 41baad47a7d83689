"""The public Python API: the exported names can be called, whatever was imported before."""

from __future__ import annotations

import functools
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import make_stub
import msgspec
import pandas as pd
import pytest
from recommend.builders import H100, RTX5090, offer, rank_of, run_of
from report import samples

import gpubench
from gpubench.errors import MisuseError, WrongArgumentError
from gpubench.labels import gpu_name
from gpubench.models import DeviceProfile, Offer, Precision, Ranking, Run
from gpubench.probe.backend import Host, ProbeReport

FUNCTIONS = ("load_runs", "memory", "predict", "probe", "rank", "report", "run")
MOST_CHARACTERS = 2000
EXAMPLE = Path(__file__).parents[1] / "results" / "example"

SAY_WHAT_THEY_ARE = f"""
import inspect, gpubench
for name in {FUNCTIONS!r}:
    function = getattr(gpubench, name)
    print(name, callable(function), inspect.signature(function), inspect.getdoc(function).splitlines()[0])
"""


def test_every_public_name_is_callable_twice_and_after_its_package_was_imported() -> None:
    import gpubench.predict.estimate
    import gpubench.probe.select
    import gpubench.report.page

    for name in set(gpubench.__all__) - {"__version__"}:
        assert callable(getattr(gpubench, name)), name
        assert callable(getattr(gpubench, name)), name
    assert all(
        inspect.isclass(getattr(gpubench, name))
        for name in set(gpubench.__all__) - {"__version__", *FUNCTIONS}
    )


@pytest.mark.parametrize(
    "before",
    [
        "import gpubench.predict.estimate, gpubench.probe.select, gpubench.report.page",
        "from gpubench.predict import estimate; from gpubench import probe, report, predict, rank",
        "import gpubench; gpubench.rank(limit=1)",
        "import gpubench; gpubench.probe; gpubench.report; gpubench.predict; gpubench.probe()",
    ],
)
def test_signature_and_help_do_not_depend_on_earlier_imports(before: str) -> None:
    """Two processes: one only inspects, and one first imports packages with those names."""
    fresh, after = (said(first + SAY_WHAT_THEY_ARE) for first in ("", before))
    assert after == fresh
    assert [line.split()[0] for line in fresh] == list(FUNCTIONS)
    lines = dict(line.split(maxsplit=1) for line in fresh)
    assert "workload: 'str | Path | WorkloadProfile', *, gpu: 'str | Sequence[str]' = ()" in lines["predict"]
    assert "-> 'ProbeReport'" in lines["probe"]
    assert "(output: 'str | Path | None' = None, results: 'str | Path | None' = None, *" in lines["report"]


@functools.cache
def said(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_callable_package_is_still_a_module() -> None:
    import gpubench.predict as package

    assert inspect.ismodule(package)
    assert package.__name__ == "gpubench.predict"
    assert package.estimate.estimate


def test_dir_lists_the_public_names_regardless_of_imports() -> None:
    code = "import gpubench; print(*(n for n in dir(gpubench) if not n.startswith('_')))"
    assert said(code)[0].split() == sorted(set(gpubench.__all__) - {"__version__"})
    assert said(f"import gpubench.models, gpubench.cli.app; {code}") == said(code)


def test_signatures_show_defaults_as_they_are_typed_and_only_public_types() -> None:
    for name in FUNCTIONS:
        shown = str(inspect.signature(getattr(gpubench, name)))
        assert not re.search(r"= \(?<|=\w+\(", shown), name
        known = set(dir(gpubench)) | {"None", "True", "False", "Literal", "Path", "Sequence", "Mapping"}
        assert set(re.findall(r"\b[A-Z]\w+", re.sub(r"'[^']*'|\"[^\"]*\"|pd\.\w+", "", shown))) <= known, name


def test_the_stub_matches_the_signatures_of_the_functions() -> None:
    """``python tests/make_stub.py`` updates it."""
    assert make_stub.STUB.read_text(encoding="utf-8") == make_stub.stub()


CALLS = {
    'gpubench.rank("vgg16", precision="amp", gpu=["h100", "rtx 5090"], utilization=(0.3, 0.7))': None,
    'gpubench.rank(["vgg16", "cnn"], mix={"vgg16": 1.0}, results=Path("x"), lora=True)': None,
    'gpubench.run(quick=True, precision=["fp32"], time_limit=60)': None,
    'gpubench.report("page.html", workload="vgg16").upper()': None,
    'gpubench.rank("vgg16").rows[0].offer.price_usd_per_hour': None,
    'gpubench.rank(precision="fp99")': 'Argument "precision" to "rank" has incompatible type',
    'gpubench.rank(gpus="h100")': 'Unexpected keyword argument "gpus" for "rank"; did you mean "gpu"?',
    'gpubench.rank(count="4")': 'Argument "count" to "rank" has incompatible type "str"',
    'gpubench.rank("vgg16", "h100")': 'Too many positional arguments for "rank"',
    "gpubench.predict()": 'Missing positional argument "workload" in call to "predict"',
    "gpubench.load_runs(3)": 'Argument 1 to "load_runs" has incompatible type "int"',
}
"""Calls, each with the error that a type checker reports, or None."""


@pytest.mark.slow
def test_a_type_checker_accepts_and_refuses_calls_like_the_functions(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "calls.py"
    program.write_text("from pathlib import Path\nimport gpubench\n" + "\n".join(CALLS))
    package = Path(gpubench.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", str(program)],
        cwd=package,
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line.split(": error: ") for line in done.stdout.splitlines() if ": error: " in line]
    errors = {int(place.rpartition(":")[2]): words for place, words in told}
    wanted = {line: words for line, words in enumerate(CALLS.values(), start=3) if words is not None}
    assert errors.keys() == wanted.keys(), done.stdout
    assert all(words in errors[line] for line, words in wanted.items()), done.stdout


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"probe"}))
def test_help_lists_every_option(name: str) -> None:
    function = getattr(gpubench, name)
    text = pydoc.plain(pydoc.render_doc(function))
    for option in inspect.signature(function).parameters:
        assert re.search(rf"^\s+{option}: \S", text, re.MULTILINE), option


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "given",
    [5, b"x", object(), [5], (None, None, None)],
    ids=["int", "bytes", "object", "list", "tuple"],
)
def test_wrong_argument_raises_our_error_naming_the_function(name: str, given: object) -> None:
    arguments = given if isinstance(given, tuple) else (given,)
    with pytest.raises(WrongArgumentError, match=rf"^{name}\(\)") as caught:
        getattr(gpubench, name)(*arguments)
    assert isinstance(caught.value, TypeError)
    with pytest.raises(WrongArgumentError, match=rf"^{name}\(\).* nosuch"):
        getattr(gpubench, name)(nosuch=given)


def test_probe_may_be_called_again() -> None:
    assert gpubench.probe().devices
    assert gpubench.probe().devices[-1].backend == "cpu"


def test_a_callable_package_passes_its_options() -> None:
    assert "no_such_option" in str(_error(lambda: gpubench.report(no_such_option=1)))
    assert "no_such_option" in str(_error(lambda: gpubench.predict(no_such_option=1)))


def test_the_report_accepts_a_path_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented call is ``gpubench.report("page.html")``. A results folder may be text too."""
    monkeypatch.chdir(tmp_path)
    samples.of_few_models(monkeypatch)
    assert gpubench.report("page.html", workload="vgg16") == "page.html"
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    written = gpubench.report(results=str(tmp_path / "mine"), format="md")
    assert Path(written).parent == tmp_path / "mine" / "reports"


def test_importing_gpubench_loads_no_heavy_library() -> None:
    code = "import sys, gpubench, gpubench.probe, gpubench.report, gpubench.predict; print(len([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'pandas', 'plotly', 'msgspec')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def large_ranking() -> Ranking:
    long = "x" * 300
    offers: list[Offer] = [
        offer(key, 1 + number / 100, instance=f"{long}{number}", region=long, provider=long)
        for number in range(300)
        for key in (H100, RTX5090)
    ]
    offers += [offer(H100, 1, kind="historic", instance=f"old{number}") for number in range(300)]
    return rank_of(offers, {H100: 3000.0, RTX5090: 1000.0}, width=1.2)


def large_run() -> Run:
    run = samples.h200_run()
    measurements = run.measurements * 20
    return msgspec.structs.replace(run, measurements=measurements, notes=("a note " * 100,) * 50)


ANSWERS: dict[str, Callable[[], Any]] = {
    "load_runs": lambda: gpubench.load_runs(EXAMPLE),
    "memory": gpubench.memory,
    "memory of one": lambda: gpubench.memory("vgg16"),
    "memory of one that fits nowhere": lambda: gpubench.memory("vgg16", batch_size=2**30),
    "memory of one card": lambda: gpubench.memory("vgg16", gpu="rtx-4090")[0],
    "predict": lambda: gpubench.predict("vgg16"),
    "probe": gpubench.probe,
    "rank": large_ranking,
    "run": large_run,
}
"""Calls of every public function except ``report``, which returns the path of its file."""


def test_return_types_of_all_public_functions_are_covered() -> None:
    assert {name.split()[0] for name in ANSWERS} == {*FUNCTIONS} - {"report"}


@pytest.mark.parametrize("make", ANSWERS.values(), ids=ANSWERS)
def test_results_and_their_parts_have_public_types_and_a_short_repr(
    make: Callable[[], Any],
) -> None:
    result = make()
    assert len(repr(result)) < MOST_CHARACTERS
    parts = [*result[:3]] if isinstance(result, tuple) else []
    if not isinstance(result, pd.DataFrame):
        assert type(result).__name__ in gpubench.__all__
        assert repr(result).startswith(f"<{type(result).__name__}"), "a summary, not the fields"
    for name in getattr(result, "__struct_fields__", ()):
        value = getattr(result, name)
        parts += value[:3] if isinstance(value, tuple) else [value]
    assert all(len(repr(part)) <= MOST_CHARACTERS for part in parts if isinstance(part, msgspec.Struct))


def test_memory_answers_are_a_tuple_with_the_usual_card_names() -> None:
    answers = gpubench.memory("vgg16", gpu=["rtx-4090", "nvidia-tesla-t4-16gb"], batch_size=256)
    assert isinstance(answers, tuple)
    (answer,) = answers
    for shown in (repr(answers), repr(answer), answers._repr_html_(), answer._repr_html_()):
        assert "RTX 4090" in shown
        assert "geforce" not in shown
        assert "fits (needs" in shown
    both = gpubench.memory(["vgg16", "cnn"], gpu="rtx-4090")
    assert repr(both).index("vgg16") < repr(both).index("cnn")
    assert "cnn" in both._repr_html_()
    radeon = gpubench.memory("vgg16", precision="tf32", gpu="amd-radeon-rx-7700s-8gb")
    assert radeon[0].refused[0].reason[:20] in repr(radeon)


def test_a_ranking_shows_rows_best_and_day() -> None:
    ranking = rank_of([offer(H100, 2.0), offer(RTX5090, 3.0)], {H100: 3000.0, RTX5090: 1000.0})
    shown = repr(ranking)
    assert "2 rows" in shown
    assert ranking.as_of in shown
    assert shown.index("1x H100") < shown.index("1x RTX 5090"), "by the names that every table has"
    assert "$2.00/h" in shown
    mine = repr(gpubench.rank("resnet50", have="h100", max_purchase_usd=2000, draws=50))
    assert "1x H100 SXM5 80GB of yours (yours), $" in mine
    assert re.search(r"2x RTX 3080 Ti to buy \(used, 3 years at 50 %\), \$[\d.]+/h, the job \$", mine)


def test_a_run_shows_device_and_cases() -> None:
    run = samples.h200_run()
    shown = repr(run)
    assert run.run_id in shown
    assert run.device.name in shown
    assert run.measurements[0].case.workload in shown
    assert repr(run_of(None)).startswith("<Run run-None")


def test_a_probe_of_many_devices_is_brief() -> None:
    devices = tuple(
        DeviceProfile(backend="cuda", name=f"GPU {'y' * 300} {n}", gpu_key=H100) for n in range(64)
    )
    report = ProbeReport(devices=devices, host=Host(os="Linux", python="3.11"), problems=())
    assert len(repr(report)) < MOST_CHARACTERS
    assert "64 devices" in repr(report)


def test_predictions_are_a_dict_with_a_short_repr() -> None:
    answers = gpubench.predict("vgg16")
    assert isinstance(answers, dict)
    assert set(answers) == {each.gpu_key for each in (*answers.estimates, *answers.refusals)}
    assert len(repr(answers)) < MOST_CHARACTERS
    first, second = (gpu_name(each.gpu_key) for each in answers.estimates[:2])
    assert repr(answers).index(first) < repr(answers).index(second)
    assert first in answers._repr_html_()
    assert list(gpubench.predict("vgg16", gpu="l4")) == ["nvidia-l4-24gb"]
    assert list(gpubench.predict("vgg16", gpu=["l4", "nvidia-tesla-t4-16gb"])) == [
        "nvidia-l4-24gb",
        "nvidia-tesla-t4-16gb",
    ]


def test_predict_accepts_a_results_folder_as_text(tmp_path: Path) -> None:
    assert gpubench.predict("cnn", gpu="l4", results=str(tmp_path))
    assert gpubench.load_runs(str(tmp_path)).empty
    with pytest.raises(TypeError, match="must be a"):
        gpubench.load_runs(3)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_notebook_shows_a_small_table(name: str) -> None:
    page = ANSWERS[name]()._repr_html_()
    if name == "load_runs":  # the markup is from pandas, which also truncates it
        assert "<table" in page
        return
    table = ET.fromstring(f"<div>{page}</div>")
    (*_, shown) = table.findall(".//table")
    heads, rows = shown.findall(".//thead//th"), shown.findall(".//tbody/tr")
    assert 1 <= len(rows) <= 20
    assert all(len(row) == len(heads) for row in rows)
    assert len(page) < 20_000


PLOTTED = {
    "ranking": large_ranking,
    "run": large_run,
    "predict": lambda: gpubench.predict("vgg16", gpu=["h100-sxm", "l4"]),
    "memory": lambda: gpubench.memory("vgg16", gpu="l4"),
}


@pytest.mark.parametrize("make", PLOTTED.values(), ids=PLOTTED)
def test_every_answer_has_a_table_a_notebook_view_and_a_plot(make) -> None:
    answer = make()
    frame = answer.to_frame()
    assert len(frame) == len(getattr(answer, "rows", getattr(answer, "measurements", answer)))
    assert "<table" in answer._repr_html_()
    figure = answer.plot()
    assert sum(len(trace.x) for trace in figure.data) >= 1
    assert all(trace.error_x.type == "data" for trace in figure.data if "markers" in trace.mode)


def test_a_ranking_plots_its_answers_by_name_on_the_axes_of_the_page() -> None:
    figure = gpubench.rank("resnet50", gpu=["h100", "l4", "rtx 4090"]).plot()
    texts = [text for trace in figure.data if trace.text is not None for text in trace.text if text]
    assert any("Cheapest" in text for text in texts)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    steps = next(trace for trace in figure.data if trace.mode == "lines")
    assert list(steps.y) == sorted(steps.y, reverse=True)
    assert list(steps.x) == sorted(steps.x)


@pytest.mark.parametrize("precision", list(Precision))
def test_run_plot_includes_a_case_of_any_precision(precision: Precision) -> None:
    measured = large_run()
    row = next(m for m in measured.measurements if m.samples_per_s is not None)
    row = msgspec.structs.replace(row, case=msgspec.structs.replace(row.case, precision=precision))
    assert len(msgspec.structs.replace(measured, measurements=(row,)).plot().data) == 1


def test_a_ranking_shows_its_answer_first_in_a_notebook() -> None:
    page = gpubench.rank("vgg16", limit=3)._repr_html_()
    assert page.count("<br/><small>") == page.count("<small>") > 3  # no style sheet separates the lines
    assert page.index("vgg16, 24 GPU-hours of one A100") < page.index("<table")
    assert "Sensible" in page


def test_no_name_becomes_markup_in_a_notebook() -> None:
    ranking = rank_of([offer(H100, instance="<script>x</script>", provider="a&b")], {H100: 1.0})
    assert "<script>" not in ranking._repr_html_()
    assert "a&amp;b" in ranking._repr_html_()


def test_hostile_names_reach_no_terminal_through_repr() -> None:
    ranking = rank_of([offer(H100, instance="x\x1b[2J", provider="\u202ey")], {H100: 1.0})
    assert not {"\x1b", "\u202e"} & set(repr(ranking))


def _error(call) -> Exception:
    try:
        call()
    except (TypeError, MisuseError) as error:
        return error
    raise AssertionError("took an option that does not exist")
