"""A verb, and its options on the command line, made of its requests: laid out, read, completed."""

from __future__ import annotations

import functools
import inspect
import keyword
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import msgspec
import typer

from gpubench.errors import MisuseError
from gpubench.options import Option, Parameter, check_fields, help_of, parameters_of, request_from, spelled
from gpubench.units import plain

_PARSED: dict[Any, Any] = {bool: bool, int: int, float: float, Path: Path}
"""What the parser reads itself; everything else is text until ``request_from`` reads it."""

_BY_PLACE = "_by_place"
"""Ends the name of the argument that stands for an option given without its name."""


Action: TypeAlias = Callable[..., int | None]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What every verb is asked: how to print its answer."""

    json: Annotated[bool, Option("Print one JSON document on stdout.")] = False


class Verb(msgspec.Struct, frozen=True):
    """A verb of the command line.

    Attributes:
        run: Takes its requests in order and ``as_json``, and returns its exit code, None for 0; or several
            such actions by name.
        help: Of several actions; else it is what ``run`` says of itself.
        place: Where it stands in the help, the smallest first.
        also_called: What it is called elsewhere.
        only: The options to offer by name, each with its panel in the help; empty offers all of its requests.
    """

    run: Action | Mapping[str, Action]
    help: str = ""
    place: int = 1000
    also_called: tuple[str, ...] = ()
    only: Mapping[str, str | None] = {}


def with_options(action: Action, only: Mapping[str, str | None]) -> Callable[..., None]:
    """Return what the parser calls: with an option for each field of the requests, and ``--json``."""
    asked = inspect.signature(action, eval_str=True).parameters.values()
    offered = {
        each.annotation: [
            parameter
            for parameter in parameters_of(each.annotation)
            if not parameter.option.python_only and (not only or parameter.name in only)
        ]
        for each in asked
        if each.name != "as_json"
    }

    @functools.wraps(action)
    def called(**given: Any) -> None:
        requests = [check_fields(request_from(kind, _given_of(offered[kind], given))) for kind in offered]
        output = request_from(Output, _given_of(parameters_of(Output), given))
        code = action(*requests, as_json=output.json)
        if code:
            raise typer.Exit(code)

    del called.__wrapped__  # typer reads the signature of what is wrapped, where it is told of it
    laid_out = [
        made
        for each in chain(*offered.values(), parameters_of(Output))
        for made in _laid_out(each, only.get(each.name, each.option.panel))
    ]
    called.__signature__ = inspect.Signature(laid_out)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in laid_out}
    return called


# --- laid out for the parser ------------------------------------------------------------------------------


def _laid_out(each: Parameter, panel: str | None) -> Iterator[inspect.Parameter]:
    """Yield what the parser is told of an option: its switches, its place, its name, its earlier names."""
    option = each.option
    if option.flags:
        for flag in option.flags:
            switch = typer.Option(spelled(flag.name), help=flag.help, rich_help_panel=panel)
            yield _parameter(flag.name, bool, switch, default=False)
        return
    kind = _PARSED.get(str if option.read else each.kind, str)
    if each.many:
        kind = types.GenericAlias(list, (kind,))
    by_place = option.bare or (option.place and (each.many or each.default is msgspec.NODEFAULT))
    if by_place:
        argument = typer.Argument(
            help=help_of(each),
            metavar=option.metavar if option.bare else each.name.upper(),
            show_default=False,
            autocompletion=_completion(_names_for(each)),
        )
        must_be = option.bare and each.default is msgspec.NODEFAULT
        default = inspect.Parameter.empty if must_be else None
        yield _parameter(f"{each.name}{_BY_PLACE}", kind if must_be else kind | None, argument, default)
    if option.bare:
        return
    named = typer.Option(
        spelled(each.name),
        *((option.short,) if option.short else ()),
        help=f"Same as the {each.name.upper()} argument." if by_place else help_of(each),
        metavar=option.metavar or ("TEXT,..." if option.commas else None),
        rich_help_panel=panel,
        autocompletion=_completion(option.choices or _names_for(each)),
    )
    if kind is bool:
        yield _parameter(each.name, kind, named, default=False)
    else:  # None where it is not given, so that the request knows what was
        yield _parameter(each.name, kind | None, named)
    for old in option.old:
        yield _parameter(old, kind | None, typer.Option(spelled(old), hidden=True))


def _parameter(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    annotation = Annotated[kind, info]
    return inspect.Parameter(
        _as_parameter(name), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _as_parameter(name: str) -> str:
    """Return what an option is called among Python's parameters, where ``--from`` cannot be one."""
    return f"{name}_" if keyword.iskeyword(name) else name


def _given_of(parameters: Sequence[Parameter], given: dict[str, Any]) -> dict[str, Any]:
    """Return what was given of a request, by option; what was given by place joins what it stands for."""
    found: dict[str, Any] = {}
    for each in parameters:
        for name in (each.name, *each.option.old, *(flag.name for flag in each.option.flags)):
            value = given.get(_as_parameter(name))
            if value is not None and value is not False:
                found[name] = value
        by_place = given.get(f"{each.name}{_BY_PLACE}")
        if by_place is None:
            continue
        if each.many:
            found[each.name] = [*by_place, *found.get(each.name, ())]
        elif each.name in found:
            twice = f"{plain(by_place)} and {plain(found[each.name])}"
            raise MisuseError(f"{spelled(each.name)} is given twice: {twice}")
        else:
            found[each.name] = by_place
    return found


# --- read by the parser -----------------------------------------------------------------------------------

_WORDS: dict[Any, str] = {int: "a whole number", float: "a number"}
_SHOWN = {bool: "", str: "TEXT", int: "N", float: "NUMBER", Path: "PATH"}
"""What the help shows for a value, where an option has no better word; a switch takes none."""


class _Plainly:
    """Reads a parameter as typer does, without pydantic, whose import takes a third of the start of a verb.

    typer makes its own reader of each parameter when the first is read, given or not, unless there is one.
    """

    def __init__(self, kind: Callable[[str], Any]) -> None:
        self._kind = kind

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        return [self._read(each, param, ctx) for each in value] if many else self._read(value, param, ctx)

    def _read(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return self._kind(value)
        except ValueError:
            words = f"{value!r} is not {_WORDS[self._kind]}."
            raise typer.BadParameter(words, ctx=ctx, param=param) from None


def _nothing(ctx: Any) -> str:
    del ctx
    return ""


def read_plainly(command: Any) -> None:
    """Give each parameter of a command such a reader, also those that typer adds: help and completion."""
    laid_out = command.get_params

    def get_params(ctx: Any) -> list[Any]:
        parameters: list[Any] = laid_out(ctx)
        for each in parameters:
            annotation = each.type_descriptor.annotation
            (kind,) = get_args(annotation) or (annotation,)
            if kind in _SHOWN:
                each._runtime_param = _Plainly(kind)  # noqa: SLF001 - typer has no public place for a reader
                if each.param_type_name == "argument":
                    each.display_type_rich = _nothing  # its name is enough
                elif each.metavar is None:
                    each.metavar = _SHOWN[kind]
        return parameters

    command.get_params = get_params


# --- completed by the shell -------------------------------------------------------------------------------


def _completion(
    choices: Sequence[str] | Callable[[], Iterable[str]] | None,
) -> Callable[[str], Sequence[str]] | None:
    if not choices:
        return None

    def completions(incomplete: str) -> Sequence[str]:
        known = choices() if callable(choices) else choices
        spelled_so = dict.fromkeys(_as_typed(choice, incomplete) for choice in known)
        return [choice for choice in spelled_so if choice.lower().startswith(incomplete.lower())]

    return completions


def _as_typed(choice: str, incomplete: str) -> str:
    """Return a name as it goes on from what was typed: a shell takes a space as the end of a name.

    Within quotes a space stays; elsewhere it is a hyphen, which names a GPU as well.

    >>> _as_typed("RTX 4090", "rt"), _as_typed("RTX 4090", "RTX 4")
    ('rtx-4090', 'RTX 4090')
    """
    if " " in incomplete:
        return choice
    choice = choice.replace(" ", "-")
    return choice.lower() if incomplete == incomplete.lower() else choice


def _names_for(each: Parameter) -> Callable[[], Iterable[str]] | None:
    """Return what finds the names that an option takes; it runs only where a shell asks."""
    return {
        "workload": _workloads,
        "precision": _precisions,
        "gpu": _gpus_and_families if each.many else _gpus,
        "reference": _gpus,
        "provider": _providers,
    }.get(each.name)


def _workloads() -> Iterable[str]:
    from gpubench.discovery import workload_names

    return (*workload_names(), "all")


def _precisions() -> Iterable[str]:
    from gpubench.precisions import Precision

    return (*(precision.value for precision in Precision), "amp")


def _gpus() -> Iterable[str]:
    """Return each GPU by its key, and by its short name where that names it."""
    from gpubench.specs import find_spec, load_specs

    short = (spec.short_name for spec in load_specs().values() if "(" not in spec.short_name)
    return [*sorted(load_specs()), *sorted(name for name in short if find_spec(name.replace(" ", "-")))]


def _gpus_and_families() -> Iterable[str]:
    """Return also what several GPUs are called together: "H100"."""
    from gpubench.specs import load_specs

    first = Counter(spec.short_name.split()[0] for spec in load_specs().values())
    families = (name for name, cards in first.items() if cards > 1 and any(map(str.isdigit, name)))
    return [*sorted(families), *_gpus()]


def _providers() -> Iterable[str]:
    from gpubench.offers.snapshot import load_offers

    return sorted({offer.provider for offer in load_offers().offers})
