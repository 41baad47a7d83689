"""What a verb may be asked, declared once: a field of its request carries its help, choices and limits.

A request is a frozen struct whose fields are ``Annotated[type, Option(...)]``. From it come the options of
the command line (``gpubench.cli.options``), the checks, and what a Python function of the same name accepts:
its conversions, its ``inspect.signature``, the "Args" of its docstring and the stub for type checkers. A
field without an ``Option`` is none; one named ``asked`` is told which options were given.
"""

from __future__ import annotations

import functools
import math
import os
import types
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from gpubench.errors import MisuseError, WrongArgumentError
from gpubench.units import plain

R = TypeVar("R", bound=msgspec.Struct)

_SHOWN = 60
"""Characters of a wrong value that a message repeats."""
_ASKED = "asked"


class Flag(NamedTuple):
    """A switch that sets its field to one value: ``--quick`` is budget "quick"."""

    name: str
    value: str
    help: str


class Option(msgspec.Struct, frozen=True):
    """What is said of a field.

    Attributes:
        help: One sentence.
        panel: Heading of the help that it stands under.
        name: On the command line and in Python, with ``_``; None is the field's own.
        old: Earlier spellings: still accepted, no longer shown.
        place: May be given without its name too, in this place, from 1; 0 is by name alone.
        bare: On the command line it is given by its place alone, without a name.
        choices: Every value that it may have.
        above, least, below, most: Limits of a number.
        read: From text, or a value given in Python, and the option's name, to the field's value; of several,
            to one of them. Raises MisuseError, or TypeError for a wrong type.
        takes: What ``read`` accepts, in words.
        python: What ``read`` accepts, as a type.
        metavar: What stands for its value in the help.
        short: One-letter spelling, such as ``-o``.
        commas: Whether one text may name several, separated by commas.
        default: The default in words, where the field's value does not say it.
        flags: In place of one option, switches that each set a value; at most one may be given.
        python_only: No option of the command line.
    """

    help: str = ""
    panel: str | None = None
    name: str | None = None
    old: tuple[str, ...] = ()
    place: int = 0
    bare: bool = False
    choices: tuple[str, ...] = ()
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    read: Callable[[Any, str], Any] | None = None
    takes: str = ""
    python: str = ""
    metavar: str | None = None
    short: str | None = None
    commas: bool = False
    default: str | None = None
    flags: tuple[Flag, ...] = ()
    python_only: bool = False

    @property
    def limits(self) -> str:
        """The limits in words: ``above 0``, ``from 0 to below 1``; empty where there are none."""
        low = f"above {_figure(self.above)}" if self.above is not None else None
        if self.least is not None:
            ends = self.below is not None or self.most is not None
            low = f"from {_figure(self.least)}" if ends else f"at least {_figure(self.least)}"
        high = None if self.most is None else f"{'to' if low else 'at most'} {_figure(self.most)}"
        if self.below is not None:
            high = f"{'to ' if low else ''}below {_figure(self.below)}"
        return " ".join(part for part in (low, high) if part)


class Parameter(msgspec.Struct, frozen=True):
    """A field of a request together with its option; ``kind`` is the type of one value.

    Attributes:
        many: Whether the field is a tuple of such values.
        optional: Whether None is a value.
        default: Value of the field where nothing is given; ``msgspec.NODEFAULT`` where it must be.
    """

    field: str
    option: Option
    kind: Any
    many: bool
    optional: bool
    default: Any

    @property
    def name(self) -> str:
        """The name on the command line and in Python."""
        return self.option.name or self.field

    @property
    def annotation(self) -> str:
        """The type that a Python caller may give."""
        one = self.option.python or _PYTHON.get(self.kind, "Any")
        if self.option.choices and not self.option.commas:
            quoted = (f'"{choice}"' for choice in self.option.choices)
            one = f"Literal[{', '.join(quoted)}]"
        several = f"{one} | Sequence[{one}]" if self.many else one
        return f"{several} | None" if self.optional else several

    @property
    def takes(self) -> str:
        """What a caller may give, in words."""
        one = self.option.takes or _WORDS.get(self.kind, "a value")
        return f"{one}, or a list of such" if self.many else one


_PYTHON: Mapping[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", Path: "str | Path"}
_WORDS: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path (text or Path)",
}


def said(option: Option, **changes: Any) -> Option:
    """Return a shared option with the words of one verb."""
    return msgspec.structs.replace(option, **changes)


def spelled(name: str) -> str:
    """Return a name as on the command line: ``budget_usd`` is ``--budget-usd``."""
    return "--" + name.replace("_", "-")


@functools.cache
def parameters_of(request_type: type[msgspec.Struct]) -> tuple[Parameter, ...]:
    """Return the options of a request in the order of its fields, those that it inherits last."""
    inherited = getattr(request_type.__base__, "__struct_fields__", ())
    fields = sorted(msgspec.structs.fields(request_type), key=lambda info: info.name in inherited)
    found = (_parameter(info) for info in fields)
    return tuple(parameter for parameter in found if parameter is not None)


def _parameter(info: msgspec.structs.FieldInfo) -> Parameter | None:
    kind, *noted = get_args(info.type) if get_origin(info.type) is Annotated else (info.type,)
    option = next((each for each in noted if isinstance(each, Option)), None)
    if option is None:
        return None
    members = get_args(kind) if get_origin(kind) in {Union, types.UnionType} else (kind,)
    optional = types.NoneType in members
    (kind, *rest) = [member for member in members if member is not types.NoneType]
    many = get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
    if many:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        option, kind = said(option, choices=option.choices or get_args(kind)), str
    default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
    return Parameter(
        field=info.name,
        option=option,
        kind=object if rest else kind,
        many=many,
        optional=optional,
        default=default,
    )


# --- from what is given to a request ----------------------------------------------------------------------


def request_from(request_type: type[R], given: Mapping[str, Any], call: str | None = None) -> R:
    """Make a request of what is given by name.

    Args:
        request_type: The struct.
        given: Values by the option's name or an earlier one. Text stands for what it says, a lone value for
            several.
        call: The Python function that a message names; None is the command line.

    Raises:
        WrongArgumentError: If a name is unknown, a type is wrong, or a value that must be given is missing.
        MisuseError: If a text cannot be read, or two switches contradict each other.
    """
    known = _by_name(request_type)
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    asked: list[str] = []
    for name, value in given.items():
        if name not in known:
            raise WrongArgumentError(f"{call}() has no option {plain(name)}{_meant(request_type, name)}")
        parameter, flag = known[name]
        if flag is not None and not _converted(_ONE_FLAG, value, _named(name, call)):
            continue
        other = names.setdefault(parameter.field, name)
        if other != name:
            second = spelled(name) if call is None else name
            raise MisuseError(f"{_named(other, call)} contradicts {second}: give one of them")
        if value is not None:
            asked.append(parameter.name if flag is None else flag.name)
        wanted = value if flag is None else flag.value
        values[parameter.field] = _value(parameter, wanted, _named(name, call))
    for parameter in parameters_of(request_type):
        if parameter.default is msgspec.NODEFAULT and parameter.field not in values:
            raise WrongArgumentError(f"{_named(parameter.name, call)} is missing: give {parameter.takes}")
    if _ASKED in request_type.__struct_fields__:
        values[_ASKED] = tuple(asked)
    return request_type(**values)


def _named(name: str, call: str | None) -> str:
    return spelled(name) if call is None else f"{call}(): {name}"


@functools.cache
def _by_name(request_type: type[msgspec.Struct]) -> Mapping[str, tuple[Parameter, Flag | None]]:
    """Every name that is accepted: those that a signature shows, and earlier ones."""
    found: dict[str, tuple[Parameter, Flag | None]] = {}
    for parameter in parameters_of(request_type):
        flags, old = parameter.option.flags, parameter.option.old
        found.update({flag.name: (parameter, flag) for flag in flags})
        found.update(dict.fromkeys(old if flags else (parameter.name, *old), (parameter, None)))
    return found


def _meant(request_type: type[msgspec.Struct], name: str) -> str:
    """Ask after the option that a wrong name comes from: that of the field so called, else the nearest."""
    import difflib

    shown = {
        parameter.field: [flag.name for flag in parameter.option.flags] or [parameter.name]
        for parameter in parameters_of(request_type)
    }
    near = shown.get(name) or difflib.get_close_matches(name, chain(*shown.values()), n=1)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _value(parameter: Parameter, value: Any, name: str) -> Any:
    if value is None and (parameter.optional or parameter.many):
        return parameter.default if parameter.many else None
    if not parameter.many:
        return _converted(parameter, value, name)
    if isinstance(value, str | os.PathLike):
        value = value.split(",") if parameter.option.commas and isinstance(value, str) else [value]
    elif isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(parameter, value, name)
    several = [_converted(parameter, each, name) for each in value]
    if not parameter.option.commas:
        return tuple(several)
    return tuple(word.strip() for each in several for word in each.split(",") if word.strip())


def _converted(parameter: Parameter, value: Any, name: str) -> Any:
    """Return one value as the field holds it.

    A bool is no number here, and a number no text: who gives one for the other has mistaken the option.
    """
    kind, read = parameter.kind, parameter.option.read
    try:
        if read is not None:
            return read(value, name)
        if kind is Path and isinstance(value, str | os.PathLike):
            return Path(value)
        if kind is str and isinstance(value, str):
            return str(value)
        if kind is bool and isinstance(value, bool):
            return value
        if kind is int and is_number(value, Integral):
            return int(value)
        if kind is float and is_number(value):
            return float(value)
    except (TypeError, OverflowError):
        raise _wrong(parameter, value, name) from None
    if kind not in _WORDS:
        return value
    raise _wrong(parameter, value, name)


def is_number(value: Any, kind: type = Real) -> bool:
    """Whether a value is a number of this kind, numpy's too; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _wrong(parameter: Parameter, value: Any, name: str) -> WrongArgumentError:
    kind = type(value).__name__
    return WrongArgumentError(f"{name} must be {parameter.takes}, not {shown_value(value)} ({kind})")


def shown_value(value: Any) -> str:
    """Return a value as a message shows it: in one short line."""
    try:
        return plain(repr(value), _SHOWN)
    except ValueError:  # a whole number of more digits than Python writes
        return "so large a number"


_ONE_FLAG = Parameter(field="", option=Option(), kind=bool, many=False, optional=False, default=False)


def words_of(request: msgspec.Struct) -> tuple[str, ...]:
    """Return the words of a command line that ask for this request again; an unasked default stays unsaid.

    Relative paths stay relative, so the words hold in the folder that they were first typed in.
    """
    words: list[str] = []
    for parameter in parameters_of(type(request)):
        value = getattr(request, parameter.field)
        asked = parameter.name in getattr(request, _ASKED, ())
        if (value == parameter.default and not asked) or value is None or parameter.option.python_only:
            continue
        name = spelled(parameter.name)
        if parameter.option.flags:
            words += [spelled(flag.name) for flag in parameter.option.flags if flag.value == value]
        elif parameter.kind is bool:
            words += [name] if value else []
        else:
            words += [
                word for each in (value if parameter.many else (value,)) for word in (name, _word(each))
            ]
    return tuple(words)


def _word(value: Any) -> str:
    """Write one value as ``read`` and the parser take it."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_word(share)}" for key, share in value.items())
    if isinstance(value, tuple):
        known = list(map(_word, value))
        return known[0] if len(set(known)) == 1 else "-".join(known)
    if isinstance(value, float):  # never as 1e-05: its dash would part a range
        return f"{Decimal(repr(value)):f}".removesuffix(".0")
    return str(value)


# --- checks -----------------------------------------------------------------------------------------------


def check_fields(request: R) -> R:
    """Return the request, or say in one line which field is no choice, not finite, or outside of its limits.

    Raises:
        MisuseError: Naming the option as on the command line.
    """
    for parameter in parameters_of(type(request)):
        value = getattr(request, parameter.field)
        for each in value if parameter.many else (value,):
            if each is not None:
                _check(parameter, each)
    return request


def unknown_choice(name: str, value: str, choices: Iterable[str]) -> MisuseError:
    """Return the refusal of a value that is none of the few that an option takes."""
    return MisuseError(f"{name} {shown_value(str(value))} is unknown; choose from {', '.join(choices)}")


def unknown_name(kind: str, name: str, near: Iterable[str]) -> MisuseError:
    """Return the refusal of a name that is none of many, with those that look most like it."""
    shown = plain(", ".join(near), 300) or "none"
    return MisuseError(f"unknown {kind} {plain(name, 80)!r}; nearest known: {shown}")


def _figure(value: float) -> str:
    return f"{value:.10g}"


def _check(parameter: Parameter, value: Any) -> None:
    option = parameter.option
    if option.read is not None:  # a request made in code has passed no reader
        option.read(value, spelled(parameter.name))
    if option.choices and value not in option.choices:
        raise unknown_choice(spelled(parameter.name), value, option.choices)
    if parameter.kind not in {int, float}:
        return
    try:
        finite = math.isfinite(value)
        within = (
            finite
            and (option.above is None or value > option.above)
            and (option.least is None or value >= option.least)
            and (option.below is None or value < option.below)
            and (option.most is None or value <= option.most)
        )
        shown = _figure(value)
    except OverflowError:  # a whole number beyond every float
        finite, within, shown = False, False, "so large a number"
    if not within:
        limits = (option.limits if finite else f"a finite number {option.limits}").rstrip()
        raise MisuseError(f"{spelled(parameter.name)} {shown} must be {limits}")


# --- words -------------------------------------------------------------------------------------------------


def help_of(parameter: Parameter) -> str:
    """Return what is said of an option in one line, with its default; of a range those are its ends."""
    default = parameter.default
    if isinstance(default, tuple) and not parameter.many:
        return help_text(parameter.option, f"{_figure(default[0])}-{_figure(default[-1])}")
    if isinstance(default, str):
        return help_text(parameter.option, default)
    number = is_number(default)
    return help_text(parameter.option, _figure(default) if number else None)


def help_text(option: Option, default: str | None = None) -> str:
    """Return help, choices, limits and default of an option in one line."""
    choices = f" [{'|'.join(option.choices)}]" if option.choices else ""
    limits = f" ({option.limits})" if option.limits else ""
    default = option.default or default
    return f"{option.help}{choices}{limits}{f' [default: {default}]' if default else ''}"
