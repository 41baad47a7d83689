"""Option declarations: accepted values from Python and the command line, refused values, and messages."""

from __future__ import annotations

import inspect
import math
from datetime import date
from pathlib import Path
from typing import get_args

import click
import numpy as np
import pytest
from command import here
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gpubench
from gpubench.cli.app import app
from gpubench.cli.table import VERBS as TABLE
from gpubench.cli.table import PricesRequest, ShownRequest, TryRequest
from gpubench.errors import MisuseError, WrongArgumentError
from gpubench.measure.request import RunRequest
from gpubench.models import SortedBy
from gpubench.offers.request import Format, OffersRequest, RefreshRequest
from gpubench.options import Option, options_of, request_from, typed, words_of
from gpubench.predict.request import MemoryRequest, PredictRequest
from gpubench.recipes import TaskKind
from gpubench.recommend.request import SORTS, FeedRequest, Range, RankRequest
from gpubench.report.request import ReportRequest

REQUESTS = {"rank": RankRequest, "run": RunRequest, "predict": PredictRequest}
VERBS = {"rank": ("rank",), "run": ("run",), "predict": ("predict", "show")}


def asked_of_verbs() -> list[type]:
    """The requests of the verbs."""
    return sorted({kind for verb in TABLE.values() for kind in verb.requests}, key=lambda kind: kind.__name__)


NEEDED = {PredictRequest: {"workload": "cnn"}, TryRequest: {"answer": Path("answer.json")}}
MOST_LINE = 300


def numbers_with_limits() -> list[tuple[type, Option]]:
    return [
        (request, each)
        for request in asked_of_verbs()
        for each in options_of(request)
        if each.base in {int, float} and each.read is None
    ]


def within(parameter: Option, value: float) -> bool:
    limits = parameter.meta
    return (
        math.isfinite(value)
        and (parameter.base is float or isinstance(value, int))
        and (limits.gt is None or value > limits.gt)
        and (limits.ge is None or value >= limits.ge)
        and (limits.lt is None or value < limits.lt)
        and (limits.le is None or value <= limits.le)
    )


@pytest.mark.parametrize(
    ("request_type", "name"),
    [(RankRequest, "gpu"), (OffersRequest, "gpu"), (FeedRequest, "gpu")]
    + [(each, "provider") for each in (RankRequest, OffersRequest, RefreshRequest)],
)
def test_names_may_be_separated_by_commas_as_well(request_type: type, name: str) -> None:
    given = [{name: "one, two"}, {name: ["one", "two"]}]
    assert [getattr(request_from(request_type, each), f"{name}s") for each in given] == [("one", "two")] * 2


@pytest.mark.parametrize("empty", ["", " , ", [""]])
def test_an_empty_name_is_refused_because_it_would_mean_every_gpu(empty: object) -> None:
    """An unset shell variable gives this: ``--gpu "$GPU"``."""
    with pytest.raises(MisuseError, match="--gpu is empty: give a value, or leave it out"):
        request_from(RankRequest, {"gpu": empty})
    assert request_from(RankRequest, {"gpu": []}).gpus == ()


def test_a_price_of_zero_is_a_valid_limit() -> None:
    assert request_from(RankRequest, {"max_usd_per_hour": 0.0}, "rank").max_usd_per_hour == 0
    with pytest.raises(MisuseError, match="max_usd_per_hour -1"):
        request_from(RankRequest, {"max_usd_per_hour": -1.0}, "rank")


def test_sort_keys_match_the_allowed_ranking_orders() -> None:
    assert {*SORTS, "total"} == set(get_args(SortedBy))  # for a job "value" means the same


@pytest.mark.parametrize("request_type", asked_of_verbs())
def test_every_field_describes_its_purpose(request_type: type) -> None:
    for each in options_of(request_type):
        assert each.help[-1] in ".)", each.field
        assert each.help[0].isupper(), each.field
        assert "[default" not in each.help, each.field
        if each.base not in {bool, int, float, str, date, Path} and each.field != "data":
            assert each.read is not None, each.field
        if each.read is not None:
            assert each.takes != "a value", each.field
            assert each.python != "Any", each.field


@pytest.mark.parametrize(
    ("request_type", "parameter"), numbers_with_limits(), ids=lambda x: getattr(x, "field", "")
)
@settings(max_examples=12)
@example(value=math.nan)
@example(value=math.inf)
@example(value=10**400)
@given(value=st.floats() | st.integers(-(10**6), 10**6) | st.just(10**400))
def test_a_number_is_accepted_exactly_within_its_limits(request_type, parameter, value) -> None:
    try:
        sound = within(parameter, value) and (value == 0 or 1e-9 <= abs(value) <= 1e15)
    except OverflowError:
        sound = False
    asked = {**NEEDED.get(request_type, {}), parameter.name: value}
    if sound:
        assert getattr(request_from(request_type, asked, "it"), parameter.field) == value
    else:
        with pytest.raises(MisuseError) as caught:
            request_from(request_type, asked, "it")
        assert str(caught.value).startswith(f"it(): {parameter.name} ")
        assert len(str(caught.value)) < MOST_LINE


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"gpu": "h100"}, "gpus", ("h100",)),
        ({"gpu": ["h100", "b200"]}, "gpus", ("h100", "b200")),
        ({"gpu": ("h100",)}, "gpus", ("h100",)),
        ({"gpu": None}, "gpus", ()),
        ({"workload": Path("models/net.py")}, "workloads", ("models/net.py",)),
        ({"results": "somewhere"}, "results", Path("somewhere")),
        ({"offers": Path("a.csv")}, "offers", Path("a.csv")),
        ({"count": np.int64(4)}, "count", 4),
        ({"samples": np.float32(2)}, "samples", 2.0),
        ({"samples": 10}, "samples", 10.0),
        ({"utilization": 0.5}, "utilization", Range(0.5, 0.5, 0.5)),
        ({"utilization": (0.3, 0.7)}, "utilization", Range(0.3, 0.5, 0.7)),
        ({"utilization": "0.3-0.7"}, "utilization", Range(0.3, 0.5, 0.7)),
        ({"resale": [0.1, 0.2, 0.4]}, "resale", Range(0.1, 0.2, 0.4)),
        ({"mix": {"vgg16": 1, "lstm": 3}}, "mix", {"vgg16": 1.0, "lstm": 3.0}),
        ({"mix": "vgg16=1,lstm=3"}, "mix", {"vgg16": 1.0, "lstm": 3.0}),
        ({"batch_size": "max"}, "batch_size", "max"),
        ({"batch_size": 8}, "batch_size", 8),
        ({"buy": True}, "rent_or_buy", "buy"),
        ({"buy": True, "rent": False}, "rent_or_buy", "buy"),
        ({"rent": True}, "rent_or_buy", "rent"),
        ({"max_price_age": 30}, "max_price_age_days", 30),
    ],
    ids=str,
)
def test_python_accepts_text_for_a_path_and_one_value_for_several(options, field, value) -> None:
    assert getattr(request_from(RankRequest, options, "rank"), field) == value


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"min_memory_gib": "24"}, ("min_memory_gib", "a number", "'24' (str)")),
        ({"count": 2.5}, ("count", "a whole number", "2.5 (float)")),
        ({"count": True}, ("count", "a whole number", "True (bool)")),
        ({"gpu": 4090}, ("gpu", "text, or a list of these", "4090 (int)")),
        ({"gpu": ["h100", 1]}, ("gpu", "text", "1 (int)")),
        ({"gpu": {"h100": 1}}, ("gpu", "text", "(dict)")),
        ({"results": 3}, ("results", "a path", "3 (int)")),
        ({"spot": "yes"}, ("spot", "true or false", "'yes' (str)")),
        ({"buy": 1}, ("buy", "true or false", "1 (int)")),
        ({"precision": 16}, ("precision", "text", "16 (int)")),
        ({"utilization": (1, 2, 3, 4)}, ("utilization", "LOW-HIGH", "(tuple)")),
        ({"mix": ["vgg16"]}, ("mix", "WORKLOAD=SHARE", "(list)")),
        ({"batch_size": 1.5}, ("batch_size", "a whole number or max", "1.5 (float)")),
        ({"as_of": 20261120}, ("as_of", "a day", "(int)")),
        ({"workload": 7}, ("workload", "a name or a path", "7 (int)")),
        ({"tax": None}, ("tax", "a number", "None (NoneType)")),
        ({"color": "red"}, ("no option color",)),
        ({"min_memory": 24}, ("no option min_memory", "did you mean min_memory_gib")),
        ({"gpus": "h100"}, ("no option gpus", "did you mean gpu?")),
        ({"workloads": "vgg16"}, ("no option workloads", "did you mean workload?")),
        ({"context_tokens": 8}, ("no option context_tokens", "did you mean context?")),
        ({"rent_or_buy": "buy"}, ("no option rent_or_buy", "did you mean rent or buy?")),
        ({"utilisatoin": 0.5}, ("no option utilisatoin", "did you mean utilization?")),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_with_its_value_and_what_is_expected(options, named) -> None:
    with pytest.raises(WrongArgumentError) as caught:
        gpubench.rank(**options)
    said = str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, MisuseError)
    assert said.startswith("rank()")
    assert all(word in said for word in named), said
    assert len(said) < MOST_LINE
    assert "\n" not in said


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"workload": "vgg16"}, "workloads", ("vgg16",)),
        ({"precision": "fp32, amp"}, "precisions", ("fp32", "amp")),
        ({"precision": ["fp32", "amp"]}, "precisions", ("fp32", "amp")),
        ({"quick": True}, "budget", "quick"),
        ({"publish": True}, "budget", "publish"),
        ({"micro": "none"}, "micro", "none"),
        ({"allow": "shared, throttled"}, "allow", ("shared", "throttled")),
        ({"time_limit": 60}, "time_limit_s", 60.0),
    ],
    ids=str,
)
def test_run_accepts_the_names_of_the_command_line(options, field, value) -> None:
    assert getattr(request_from(RunRequest, options, "run"), field) == value


def test_run_request_records_which_options_were_given() -> None:
    assert request_from(RunRequest, {"seed": 0, "quick": True}, "run").asked == ("seed", "quick")
    given = {"time_limit": 60, "workload": "./net.py", "quick": False}
    assert request_from(RunRequest, given, "run").asked == ("time_limit", "workload")
    assert request_from(RunRequest, {"workload": None}, "run").asked == ()
    with pytest.raises(MisuseError, match="leave out the setting seed"):
        gpubench.run(resume="latest", seed=0)


@pytest.mark.parametrize(
    ("name", "request_type"), [*REQUESTS.items(), ("report", ReportRequest), ("memory", MemoryRequest)]
)
def test_python_accepts_no_name_that_its_signature_lacks(name: str, request_type: type) -> None:
    function = getattr(gpubench, name)
    shown = set(inspect.signature(function).parameters)
    fields = {each.field for each in options_of(request_type)}
    assert "gpus" in fields - shown or name == "run"
    for field in fields - shown:
        meant = " or ".join(each.name for each in options_of(request_type) if each.field == field)
        words = rf"^{name}\(\) has no option {field}; did you mean {meant}\?$"
        with pytest.raises(WrongArgumentError, match=words):
            function(**{field: None})


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=5)
    | st.sampled_from([object(), Path("x"), "max", "0.2-0.5", "a=1"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("request_type", "name"),
    [(kind, each.name) for kind in (RankRequest, RunRequest) for each in options_of(kind)],
    ids=lambda value: getattr(value, "__name__", value),
)
@settings(max_examples=10)  # of each option
@given(value=VALUES)
def test_any_value_of_any_option_is_accepted_or_refused_in_one_line(request_type, name, value) -> None:
    problem = ""
    try:
        request_from(request_type, {name: value}, "rank")
    except MisuseError as error:
        problem = str(error)
    assert len(problem) < MOST_LINE
    assert "\n" not in problem


def test_a_value_of_any_size_is_shown_in_one_short_line() -> None:
    with pytest.raises(WrongArgumentError) as caught:
        gpubench.rank(gpu=["a", "b\x1b[2J" * 10**5, object()])
    assert len(str(caught.value)) < MOST_LINE
    for batch in (0, -3, 2**41, 10**5000):
        with pytest.raises(
            MisuseError,
            match=r"batch_size .* must be (a number from 1e-09 to 1e\+15, )?from 1 to 1099511627776 or max$",
        ):
            gpubench.rank(batch_size=batch)
    with pytest.raises(MisuseError) as misuse:
        gpubench.rank(sort="\x1b[2J" + "x" * 10**5)
    assert len(str(misuse.value)) < MOST_LINE
    assert "\x1b" not in str(misuse.value)


def test_switches_that_contradict_each_other_are_named() -> None:
    with pytest.raises(MisuseError, match=r"rank\(\): rent contradicts buy"):
        gpubench.rank(rent=True, buy=True)


def test_extra_positional_arguments_are_refused() -> None:
    with pytest.raises(WrongArgumentError, match=r"^rank\(\): too many positional arguments"):
        gpubench.rank("vgg16", "h100")
    with pytest.raises(WrongArgumentError, match="multiple values for argument 'workload'"):
        gpubench.rank("vgg16", workload="lstm")


def spellings(name: str) -> set[tuple[str, bool]]:
    """Return every long spelling of a verb's options, and whether it is hidden."""
    command = app
    for word in VERBS.get(name, (name,)):
        command = command.get_command(click.Context(command), word)
    return {
        (spelling, parameter.hidden)
        for parameter in command.params
        for spelling in parameter.opts
        if spelling.startswith("--")
    }


@pytest.mark.parametrize("name", VERBS)
def test_python_and_the_command_line_have_the_same_names(name: str) -> None:
    """Python accepts every option of a request by name; some are not options of the command line, but set in a
    file or with ``--recipe``.
    """
    offered = {spelling for spelling, _ in spellings(name)}
    signature = inspect.signature(getattr(gpubench, name))
    by_way = {each.name: each.way for each in options_of(REQUESTS[name])}
    assert set(signature.parameters) == set(by_way)
    assert {f"--{typed(each)}" for each, way in by_way.items() if way == "option"} <= offered
    assert not {f"--{typed(each)}" for each, way in by_way.items() if way != "option"} & offered
    assert "recipe" in by_way.values()
    assert "--recipe" in offered


@pytest.mark.parametrize("name", [*VERBS, "report"])
def test_the_command_line_has_no_name_that_python_lacks(name: str) -> None:
    of_command_line = {"--json", "--help", "--report", "--recipe"} | {
        f"--{typed(each.name)}" for request in (ShownRequest, PricesRequest) for each in options_of(request)
    }
    signature = inspect.signature(getattr(gpubench, name))
    known = {f"--{typed(each)}" for each in signature.parameters} | of_command_line
    assert {spelling for spelling, hidden in spellings(name) if not hidden} <= known


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("rank", "--utilisation", "0.5"), "rank no longer has --utilisation: set utilization in gpubench"),
        (("rank", "--own", "h100"), "rank no longer has --own: use --have SPEC"),
        (("memory", "--parallel", "ddp"), "memory no longer has --parallel: use --jobs"),
        (("--install-completion",), "no longer has --install-completion: add eval"),
        (("--show-completion", "bash"), "no longer has --show-completion: add eval"),
    ],
)
def test_old_spelling_names_the_current_one(words, instead) -> None:
    out, told = said(*words)
    assert out == ""
    assert told.startswith(f"gpubench: gpubench {instead}")


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (("predict", "show", "vgg16", "--task"), tuple(TaskKind)),
        (("offers", "import", "prices.csv", "--format"), get_args(Format)),
        (("compare", "a", "b", "--by"), ("device",)),
        (("rank", "vgg16", "--sort"), SORTS),
    ],
    ids=lambda value: value[-1],
)
def test_choices_are_in_the_help_and_in_the_refusal(words, choices) -> None:
    known = ", ".join(choices)
    refused = said(*words, "foo")[1]
    assert f"gpubench: {words[-1]} 'foo' is unknown; choose from {known}\n" in refused
    shown = " ".join(said(*words[:-1], "--help")[0].replace("│", " ").split())
    assert f"[{'|'.join(choices)}]" in shown.replace("| ", "|")  # a line may end after a choice


def test_partial_choice_is_refused_with_the_full_name() -> None:
    refused = said("rank", "vgg16", "--precision", "fp16")[1]
    assert "--precision 'fp16' is unknown (amp-fp16 is nearest); choose from amp" in refused


@pytest.mark.parametrize(
    ("words", "metavar"),
    [
        (("rank", "--as-of"), "YYYY-MM-DD"),
        (("offers", "import", "prices.csv", "--price-date"), "YYYY[-MM[-DD]]"),
    ],
)
def test_a_date_option_shows_its_format_and_refuses_other_text(words, metavar) -> None:
    assert f"{words[-1]} {metavar} " in " ".join(said(*words[:-1], "--help")[0].split())
    assert f"{words[-1]} 'soon' is not a d" in said(*words, "soon")[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("rank", "--limit", "x"), "--limit 'x' is not a whole number: write the number alone, as 20000"),
        (("rank", "--as-of", "20.11.2026"), "--as-of '20.11.2026' is not a day: write it as YYYY-MM-DD"),
        (("rank", "--limit", "1e3"), "--limit '1e3' is not a whole number: write the number alone, as 20000"),
        (
            ("rank", "--samples", "many"),
            "--samples 'many' is not a number: write the number alone, as 20000, 20,000, 20k, or 0.5",
        ),
    ],
)
def test_a_text_that_is_not_a_number_is_refused_in_one_line(words, told) -> None:
    assert said(*words) == ("", f"gpubench: {told}\n")


@pytest.mark.parametrize(
    ("typed_as", "number"),
    [
        ("20000", 20_000),
        ("20,000", 20_000),
        ("1,250,000.5", 1_250_000.5),
        ("10k", 10_000),
        ("2.5K", 2_500),
        ("1.5M", 1_500_000),
        ("2B", 2e9),
        ("1e6", 1e6),
    ],
)
def test_a_large_number_may_have_separators_and_suffixes(typed_as, number) -> None:
    assert request_from(RankRequest, {"samples": typed_as}).samples == number


@pytest.mark.parametrize("name", ["max_purchase_usd", "budget_usd", "hour_worth"])
def test_a_sum_of_money_may_start_with_a_dollar_sign(name) -> None:
    assert request_from(RankRequest, {name: "$30,000"}) == request_from(RankRequest, {name: "30k"})


@pytest.mark.parametrize("name", ["max_purchase_usd", "budget_usd", "hour_worth", "samples", "dataset_size"])
@pytest.mark.parametrize("typed_as", ["1.800", "12.500", "999.999"])
def test_a_number_that_can_mean_thousands_is_refused_with_both_meanings(name, typed_as) -> None:
    whole = typed_as.replace(".", "")
    with pytest.raises(MisuseError, match=f"can mean thousands: write {whole} or {typed_as}0$"):
        request_from(RankRequest, {name: typed_as})
    assert (
        getattr(request_from(RankRequest, {name: f"{typed_as}0"}), name.replace("worth", "worth_usd")) < 1e3
    )
    assert request_from(RankRequest, {name: whole}) != request_from(RankRequest, {name: f"{typed_as}0"})


def test_the_words_of_a_request_are_never_a_number_that_can_mean_thousands() -> None:
    request = request_from(RankRequest, {"budget_usd": 1.234}, "rank")
    assert words_of(request) == ("--budget-usd", "1.2340")


@pytest.mark.parametrize("typed_as", ["$20", "30m", "1,25", "1,0000", "k", "10kk", "10 k 3", "-3k"])
def test_an_ambiguous_number_is_refused(typed_as) -> None:
    with pytest.raises(MisuseError, match="samples"):
        request_from(RankRequest, {"samples": typed_as})


def said(*arguments: str) -> tuple[str, str]:
    done = here(*arguments, COLUMNS="200")
    return done.stdout, done.stderr
