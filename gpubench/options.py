"""Option declarations: each field of a request declares its type, limits, choices and help.

A request is a frozen struct with fields of type ``Annotated[type, Option(...)]``. A type such as ``Positive``
has limits, which msgspec enforces. Everything else is derived from the struct: the command-line options (see
``gpubench.cli.table``), the error messages, the keys of a settings file, and the Python function of the same
name (its conversions, signature, docstring and type stub). A field without an ``Option`` is not an option. A
field named ``asked`` lists the given options, and a field named ``settings`` the settings from a file.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from gpubench import executions, precisions
from gpubench.errors import MisuseError, WrongArgumentError
from gpubench.recipes import Checkpointing, ParallelMode, Stack, TaskKind, WeightType
from gpubench.units import plain

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
AtLeastOne: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]

# Maximum number of characters that a message shows of an invalid value.
_SHOWN = 60
# Numbers outside this range have no use here; their products would overflow or fill a line with digits.
_LEAST, _MOST = 1e-9, 1e15
# The nonempty parts of a comma-separated text, stripped.
_PARTS = re.compile(r"[^,\s](?:[^,]*[^,\s])?")


class Option(msgspec.Struct, frozen=True):
    """The declaration of an option; ``options_of`` fills in the last six fields from the request's field.

    Attributes:
        help: One sentence.
        panel: Heading of its group in the help.
        name: Its name in Python; the command line has ``-`` for ``_``. If empty, the field's name.
        place: Whether it may also be given by position, in the order of the fields with this flag.
        bare: Whether the command line accepts it only by position.
        choices: All allowed values.
        read: Takes a text or Python value and the option's name, and returns the field's value (one of them,
            if there are many). Raises MisuseError, or TypeError for a wrong type.
        takes: Accepted values in words; if empty, derived from the type.
        python: Accepted Python type; if empty, derived from the type.
        metavar: Placeholder of its value in the help; if empty, derived from the type.
        short: One-letter spelling, such as ``-o``.
        commas: Whether one text may contain several values, separated by commas.
        default: The default in words, if the field's value does not describe it.
        sets: The value that a switch gives its field: ``--quick`` sets the budget to "quick". If a field has
            several switches, only one of them may be given.
        way: How it is given: by a command-line option, as a key of ``--recipe``, in a settings file, or only
            in Python. Python accepts all of them by name.
        field: The field of the request.
        base: The type of one value; ``Any`` if ``read`` converts the values.
        meta: Its limits.
        many: Whether the field is a tuple of values.
        optional: Whether None is a valid value.
        initial: Default value of the field; ``msgspec.NODEFAULT`` if it is required.
    """

    help: str = ""
    panel: str | None = None
    name: str = ""
    place: bool = False
    bare: bool = False
    choices: tuple[str, ...] = ()
    read: Callable[[Any, str], Any] | None = None
    takes: str = ""
    python: str = ""
    metavar: str | None = None
    short: str | None = None
    commas: bool = False
    default: str | None = None
    sets: str | None = None
    way: Literal["option", "recipe", "setting", "python"] = "option"
    field: str = ""
    base: Any = None
    meta: msgspec.Meta = msgspec.Meta()
    many: bool = False
    optional: bool = False
    initial: Any = None

    @property
    def limits(self) -> str:
        """The limits in words: ``above 0``, ``from 0 to below 10``; empty if there are none."""
        least = "at least" if self.meta.lt is None and self.meta.le is None else "from"
        words = {"above": self.meta.gt, least: self.meta.ge, "to below": self.meta.lt, "to": self.meta.le}
        return " ".join(f"{word} {limit:.13g}" for word, limit in words.items() if limit is not None)


# Each type in words, in a signature, and as a placeholder in the help; a switch has no placeholder.
_KNOWN: Mapping[Any, tuple[str, str, str]] = {
    bool: ("true or false", "bool", ""),
    int: ("a whole number", "int", "N"),
    float: ("a number", "float", "NUMBER"),
    date: ("a day (YYYY-MM-DD, or a date)", "date | str", "YYYY-MM-DD"),
    str: ("text", "str", "TEXT"),
    Path: ("a path", "str | Path", "PATH"),
    Any: ("a value", "Any", "TEXT"),
}


# The pattern of a number that ``figure`` reads in a longer text.
FIGURE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?-i:[kKMB])?"
GROUPED = re.compile(r"[1-9]\d{0,2}\.\d{3}", re.ASCII)
"""The pattern of a number that can mean thousands: 1.800 is 1,800 in much of Europe."""
_MULTIPLES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}

with_help = msgspec.structs.replace
"""Returns a copy of a shared option with changes for one verb, mostly to its help text."""


def typed(name: str) -> str:
    """Return a name as typed on the command line: ``budget-usd``."""
    return name.replace("_", "-")


def named(each: Option) -> str:
    """Return the name of an option for users: ``--gpu``, ``--recipe loss-chunks``, ``the setting tax``."""
    prefix = {"recipe": "--recipe ", "setting": "the setting "}.get(each.way, "--")
    return prefix + typed(each.name)


@functools.cache
def options_of(request_type: type[msgspec.Struct]) -> tuple[Option, ...]:
    """Return the options of a request in the order of its fields, inherited ones last."""
    inherited = getattr(request_type.__base__, "__struct_fields__", ())
    fields = sorted(msgspec.structs.fields(request_type), key=lambda info: info.name in inherited)
    return tuple(
        _filled_in(option, info)
        for info in fields
        for option in getattr(info.type, "__metadata__", ())
        if isinstance(option, Option)
    )


def _filled_in(option: Option, info: msgspec.structs.FieldInfo) -> Option:
    parts = [bool] if option.sets else _parts_of(info.type)
    kinds = [part for part in parts if part in (*_KNOWN,)]  # a tuple, because some parts have no hash
    choices = option.choices or tuple(part for part in parts if isinstance(part, str) and not option.read)
    base = Any if option.read else next(iter(kinds), str if choices else Any)
    takes, python, metavar = _KNOWN[base]
    if choices and not option.commas:
        words = f"Literal[{', '.join(map(json.dumps, choices))}]"
        python = words if base is str else f"{python} | {words}"
        if base is not str:
            takes, metavar = f"{takes} or {choices[0]}", f"{metavar}|{choices[0]}"
    takes, python, many = option.takes or takes, option.python or python, Ellipsis in parts  # tuple[T, ...]
    python = f"{python} | Sequence[{python}]" if many else python
    default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
    return msgspec.structs.replace(
        option,
        name=option.name or info.name,
        choices=choices,
        takes=f"{takes}, or a list of these" if many else takes,
        python=f"{python} | None" if NoneType in parts else python,
        metavar=option.metavar or ("TEXT,..." if option.commas else metavar),
        field=info.name,
        base=base,
        meta=next((part for part in parts if isinstance(part, msgspec.Meta)), msgspec.Meta()),
        many=many,
        optional=NoneType in parts,
        initial=False if option.sets else default,
    )


def _parts_of(annotation: Any) -> list[Any]:
    # Return the parts of an annotation: types, choices and metadata.
    return [annotation, *chain(*map(_parts_of, get_args(annotation)))]


# --- from given values to a request -----------------------------------------------------------------------


def request_from(
    request_type: type[R], given: Mapping[str, Any], call: str | None = None, file: str = ""
) -> R:
    """Make a request from values by name.

    Args:
        request_type: The struct.
        given: Values by option name. A single value may stand for a list of one.
        call: The Python function for messages; None for the command line, where values are text.
        file: The settings file, if some of the values are settings.

    Raises:
        WrongArgumentError: If a name is unknown, a type is wrong, or a required value is missing.
        MisuseError: If a text cannot be parsed, a number is outside its limits, a choice is unknown, or two
            options set the same field.
    """
    options = options_of(request_type)
    known = {each.name: each for each in options}
    prefix = f"{call}(): " if call else ""
    values: dict[str, Any] = {}
    set_by: dict[str, str] = {}  # the option that sets each field
    for name, value in given.items():
        if name not in known:
            of_field = [each.name for each in options if each.field == name]
            near = of_field or get_close_matches(name, known, n=1)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            raise WrongArgumentError(f"{call}() has no option {plain(name)}{meant}")
        each = known[name]
        in_file = each.way == "setting" and bool(file)
        shown = name if call else (f"{file}: {typed(name)}" if in_file else named(each))
        found = _read(each, value, f"{prefix}{shown}", text=not (call or in_file))
        if each.sets and not found:
            continue
        first = set_by.setdefault(each.field, name)
        if first != name:
            other = first if call else named(known[first])
            raise MisuseError(f"{prefix}{other} contradicts {shown}: give one of them")
        values[each.field] = each.sets or found
    for each in options:
        if each.initial is msgspec.NODEFAULT and each.field not in values:
            raise WrongArgumentError(
                f"{prefix}{each.name if call else named(each)} is missing: give {each.takes}"
            )
    records = {
        "asked": tuple(name for name in set_by.values() if given[name] is not None),
        "settings": settings_in_words(request_type, given) if file else (),
    }
    return request_type(
        **values, **{name: records[name] for name in records if name in request_type.__struct_fields__}
    )


def settings_in_words(request_type: type[msgspec.Struct], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the given settings in the format of a settings file: ``tax = 0.19``."""
    settings = {
        each.name: given[each.name]
        for each in options_of(request_type)
        if each.way == "setting" and each.name in given
    }
    lists = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
    return tuple(f"{typed(name)} = {', '.join(map(_word, values))}" for name, values in lists.items())


def _read(each: Option, value: Any, name: str, *, text: bool) -> Any:
    """Convert a given value to the value of a field; a single value may stand for a list of one."""
    if value is None and (each.optional or each.many):
        return each.initial if each.many else None
    if not each.many:
        return _read_one(each, value, name, text=text)
    if isinstance(value, str | os.PathLike):
        value = [value]
    elif isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise _refusal(each, value, name)
    value = list(value)
    if value and all(isinstance(one, str) and not one.strip(", ") for one in value):
        raise MisuseError(f"{name} is empty: give a value, or leave it out")
    if each.commas:
        value = [*chain(*(_PARTS.findall(one) if isinstance(one, str) else [one] for one in value))]
    return tuple(_read_one(each, one, name, text=text) for one in value)


def _read_one(each: Option, value: Any, name: str, *, text: bool) -> Any:
    """Return one value with the type of the field.

    A bool is not accepted as a number, nor a number as text, because that is likely a mistake.
    """
    if isinstance(value, str) and value in each.choices:
        return value
    try:
        if each.read is not None:
            return each.read(value, name)
        if text and each.base in {int, float}:
            value = int(value) if each.base is int else _typed_number(each, str(value), name)
        elif is_number(value):  # includes numpy's types
            value = int(value) if isinstance(value, Integral) else float(value)
        elif each.base is str and isinstance(value, str | os.PathLike):
            value = str(value) if isinstance(value, str) else os.fsdecode(value)
        found = msgspec.convert(
            value, Annotated[each.base, each.meta], dec_hook=lambda kind, given: kind(given)
        )
    except (TypeError, OverflowError, msgspec.ValidationError):
        raise _refusal(each, value, name) from None
    except ValueError:
        forms = "20000, 20,000, 20k, or 0.5" if each.base is float else "20000"
        raise MisuseError(
            f"{name} {shown_value(value)} is not {each.takes}: write the number alone, as {forms}"
        ) from None
    if each.choices and isinstance(found, str):
        raise unknown_choice(name, found, each.choices)
    if is_number(found) and not _is_usable(found):
        raise _refusal(each, found, name)
    return found


def _typed_number(each: Option, text: str, name: str) -> float:
    number = text.strip().removeprefix("$" if "_usd" in each.field else "")
    if GROUPED.fullmatch(number):
        whole = number.replace(".", "")
        raise MisuseError(f"{name} {shown_value(text)} can mean thousands: write {whole} or {number}0")
    return figure(number)


def figure(text: str) -> float:
    """Parse a number, including the forms ``20,000``, ``10k`` and ``1.5M``.

    A lowercase m is rejected, because 30m could mean half an hour.

    Args:
        text: As typed by the user.

    Raises:
        ValueError: If the text is not a number.
    """
    number = text.strip()
    if not re.fullmatch(FIGURE, number):
        return float(number)  # 1e6
    return float(number.rstrip("kKMB").replace(",", "")) * _MULTIPLES.get(number[-1], 1)


# --- texts -------------------------------------------------------------------------------------------------


def _refusal(each: Option, value: Any, name: str) -> MisuseError:
    if each.base in {int, float} and is_number(value, Integral if each.base is int else Real):
        kind = "" if _is_usable(value) else f"a number from {_LEAST:g} to {_MOST:g}, "
        words = f" or {each.choices[0]}" if each.choices else ""
        return MisuseError(f"{name} {shown_value(value)} must be {kind}{each.limits}".rstrip(" ,") + words)
    if each.base is date and isinstance(value, str):
        return MisuseError(f"{name} {shown_value(value)} is not a day: write it as YYYY-MM-DD")
    kind = type(value).__name__
    return WrongArgumentError(f"{name} must be {each.takes}, not {shown_value(value)} ({kind})")


def unknown_choice(name: str, value: str, choices: Iterable[str]) -> MisuseError:
    """Return the error for a value that is not one of an option's choices."""
    known = list(choices)
    near = next((f" ({each} is nearest)" for each in known if value and str(value) in each), "")
    return MisuseError(f"{name} {shown_value(str(value))} is unknown{near}; choose from {', '.join(known)}")


def unknown_name(kind: str, name: str, near: Iterable[str]) -> MisuseError:
    """Return the error for an unknown name, with the most similar known ones."""
    shown = plain(", ".join(near), 300) or "none"
    return MisuseError(f"unknown {kind} {plain(name, 80)!r}; nearest known: {shown}")


def is_number(value: Any, kind: type = Real) -> bool:
    """Return whether a value is a number of this kind, including numpy's types but not bool."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_usable(number: float) -> bool:
    return number == 0 or _LEAST <= abs(number) <= _MOST


def shown_value(value: Any) -> str:
    """Return a value for a message, in one short line."""
    try:
        return plain(repr(value), _SHOWN)
    except ValueError:  # an integer with more digits than Python formats
        return "a number this large"


def help_of(each: Option) -> str:
    """Return help, choices, limits and default of an option in one line."""
    is_obvious = each.base is bool or each.initial in (None, msgspec.NODEFAULT)
    value = each.default or ("" if is_obvious else _word(each.initial))
    choices = f" [{'|'.join(each.choices)}]" if each.choices else ""
    limits = f" ({each.limits})" if each.limits else ""
    default = f" [default: {value}]" if value else ""
    return f"{each.help}{choices}{limits}{default}"


def words_of(request: msgspec.Struct) -> tuple[str, ...]:
    """Return the command-line arguments that give this request again, without defaults.

    Relative paths stay relative and settings stay in their file, so the arguments work in the original
    folder.
    """
    words: list[str] = []
    recipe: list[str] = []
    for each in options_of(type(request)):
        value = getattr(request, each.field)
        asked = each.name in getattr(request, "asked", ())
        if (value == each.initial and not asked) or value is None or each.way in {"setting", "python"}:
            continue
        if each.way == "recipe":
            recipe.append(f"{typed(each.name)}={_word(value)}")
        elif each.base is bool:
            words += [f"--{typed(each.name)}"] if value == (each.sets or True) else []
        else:
            words += chain(
                *((f"--{typed(each.name)}", _word(one)) for one in (value if each.many else (value,)))
            )
    return (*words, "--recipe", ",".join(recipe)) if recipe else tuple(words)


def _word(value: Any) -> str:
    """Format one value in a form that ``read`` and the parser accept."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_word(share)}" for key, share in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):  # a range, or one number if its ends are equal
        ends = list(map(_word, value))
        return "-".join(ends[:1] if len(set(ends)) == 1 else ends)
    if isinstance(value, float):  # never as 1e-05: the dash would look like a range
        text = f"{Decimal(repr(value)):f}".removesuffix(".0")
        return f"{text}0" if GROUPED.fullmatch(text) else text
    return str(value)


# --- a Python function -------------------------------------------------------------------------------------


def takes_options_of(request_type: type[R]) -> Callable[[Callable[[R], T]], Callable[..., T]]:
    """Make a function of a request callable with the request's options by name.

    The function still accepts a request as its only argument. Its signature and docstring list the options.
    """

    def decorate(function: Callable[[R], T]) -> Callable[..., T]:
        call = function.__name__
        parameters = sorted(options_of(request_type), key=lambda each: not each.place)
        returns = function.__annotations__["return"]
        signature = inspect.Signature([_parameter_of(each) for each in parameters], return_annotation=returns)

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> T:
            if len(arguments) == 1 and not options and isinstance(arguments[0], request_type):
                return function(arguments[0])
            known = {name: value for name, value in options.items() if name in signature.parameters}
            try:
                bound = signature.bind_partial(*arguments, **known).arguments
            except TypeError as error:
                raise WrongArgumentError(f"{call}(): {error}") from None
            return function(request_from(request_type, options | bound, call))

        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__doc__ = _with_arguments(inspect.getdoc(function) or "", parameters)
        return called

    return decorate


def _parameter_of(each: Option) -> inspect.Parameter:
    """Return an option's part of a signature: its name, type, and default as source text."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if each.place else inspect.Parameter.KEYWORD_ONLY
    initial = tuple(each.initial) if isinstance(each.initial, tuple) else each.initial
    default = inspect.Parameter.empty if initial is msgspec.NODEFAULT else initial
    return inspect.Parameter(each.name, kind, default=default, annotation=each.python)


def _with_arguments(doc: str, options: Iterable[Option]) -> str:
    import textwrap

    fill = functools.partial(textwrap.fill, width=100, initial_indent="    ", subsequent_indent=" " * 8)
    arguments = "\n".join(fill(f"{each.name}: {help_of(each)}") for each in options)
    return f"{doc}\n\nArgs:\n{arguments}" if arguments else doc


# --- options common to several verbs -----------------------------------------------------------------------


RESULTS = Option(
    "Results folder.", default="$GPUBENCH_RESULTS, ./results if it exists, else the user's data folder"
)
Results: TypeAlias = Annotated[Path | None, RESULTS]


def _file_to_write(value: Any, name: str) -> Path:
    # ``Path`` alone would drop the slash of ``out/``, and a file named ``out`` would be written.
    if str(value).endswith(("/", os.sep)) or os.path.isdir(value):  # noqa: PTH112 - False for an invalid name
        raise MisuseError(f"{name} {shown_value(str(value))} is a folder: name a file in it")
    return Path(value)


FILE = Option(
    "File to write.",
    name="output",
    short="-o",
    read=_file_to_write,
    takes="a path",
    python="str | Path",
    metavar="PATH",
)

CLASSIC = ("cnn", "lstm", "vgg16")
"""The default workloads for measuring and ranking."""
WORKLOAD = Option(
    name="workload",
    place=True,
    takes="a name or a path",
    python="str | Path",
    metavar="NAME|FILE[:NAME]",
)
JOB_MODES = (ParallelMode.DDP, ParallelMode.FSDP)
"""How GPUs share one job: each holds all weights, or a shard of them."""
JOBS = Option(choices=JOB_MODES, default="fsdp for a model that is made for it, else ddp")


LARGEST_NUMBER = 2**40
"""Maximum batch size: larger than any real one, and small enough that no figure overflows."""
Batch: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_NUMBER)] | Literal["max"] | None
BATCH = Option(default="the workload's main batch")


AnyPrecision: TypeAlias = Annotated[
    str | None,
    Option(
        "Precision; amp picks the best one for each GPU.",
        choices=precisions.CHOICES,
        default="amp, or the workload's own",
    ),
]
EXECUTION = Option("How a step is executed.", choices=executions.OF_TORCH)
AnyExecution: TypeAlias = Annotated[str, EXECUTION]
AnyTask: TypeAlias = Annotated[str, Option("Training or inference.", choices=tuple(TaskKind))]
GPU = Option("GPU key or name.", name="gpu", commas=True)
PROVIDER = Option("Provider.", name="provider", commas=True)
REGION = Option("Region, or its first letters.", name="region")
SELLER = Option(
    "Who sells: a company (cloud), the vetted hosts of a marketplace (secure), or any host (community).",
    name="seller",
    commas=True,
    choices=("cloud", "secure", "community"),
)
GpuBatch: TypeAlias = Annotated[
    Batch,
    with_help(BATCH, help="Samples per step on one GPU; max is the largest that each GPU holds."),
]


Chunks: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
RECIPE_PANEL = "Language models"
_OWN = "the workload's own"


class RecipeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The requested recipe; None keeps the workload's."""

    weight_type: Annotated[
        str | None,
        Option(
            "Data type of the weights.",
            RECIPE_PANEL,
            choices=tuple(WeightType),
            default="that of the precision",
            way="recipe",
        ),
    ] = None
    checkpointing: Annotated[
        str | None,
        Option(
            "Which activations are recomputed in the backward pass.",
            RECIPE_PANEL,
            choices=tuple(Checkpointing),
            default=_OWN,
            way="recipe",
        ),
    ] = None
    loss_chunks: Annotated[
        Chunks | None,
        Option("Number of token chunks for computing the loss.", RECIPE_PANEL, way="recipe"),
    ] = None
    prompt_tokens: Annotated[
        Tokens | None,
        Option("Prompt tokens of a workload that generates text.", RECIPE_PANEL, way="recipe"),
    ] = None
    new_tokens: Annotated[
        Annotated[int, msgspec.Meta(ge=2, le=2**24)] | None,
        Option("Tokens generated after the prompt.", RECIPE_PANEL, way="recipe"),
    ] = None
    stack: Annotated[
        str | None,
        Option(
            "Software stack that trains a language model.",
            RECIPE_PANEL,
            choices=tuple(Stack),
            default=_OWN,
            way="recipe",
        ),
    ] = None
    context_tokens: Annotated[
        Tokens | None,
        Option("Tokens per training sequence.", RECIPE_PANEL, name="context", default=_OWN),
    ] = None
    trainable: Annotated[
        str | None,
        Option("Train adapters on a frozen base.", RECIPE_PANEL, name="lora", sets="lora"),
        Option("Train adapters on a frozen 4-bit base.", RECIPE_PANEL, name="qlora", sets="qlora"),
    ] = None


def asked_recipe(request: RecipeRequest) -> dict[str, Any]:
    """Return the recipe fields that a request sets."""
    values = {name: getattr(request, name) for name in RecipeRequest.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


class ResultsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a function that only reads stored results."""

    results: Annotated[Path | None, with_help(RESULTS, place=True)] = None
