"""The options of a verb on the command line, made of the fields of its request."""

from __future__ import annotations

import functools
import inspect
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from gpubench.errors import MisuseError
from gpubench.options import Parameter, help_of, parameters_of, request_from, spelled
from gpubench.units import plain

R = TypeVar("R", bound=msgspec.Struct)

_PARSED: dict[Any, Any] = {bool: bool, int: int, float: float, Path: Path}
"""What the parser reads itself; everything else is text until ``request_from`` reads it."""

_BY_PLACE = "_by_place"
"""Ends the name of the argument that stands for an option given without its name."""


def options_of(
    request_type: type[R], *, only: Collection[str] = (), panels: dict[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb one option for each field of its request, before the parameters of its own.

    Args:
        request_type: The request; the verb's parameter ``request`` receives it.
        only: Names of the options to offer; empty offers all.
        panels: Panel by option where it is another than the field's.
    """
    chosen = [
        each
        for each in parameters_of(request_type)
        if not each.option.python_only and (not only or each.name in only)
    ]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(verb, eval_str=True)
        own = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in signature.parameters.values()
            if each.name != "request"
        ]
        made = [
            parameter
            for each in chosen
            for parameter in _typer_parameters(each, (panels or {}).get(each.name, each.option.panel))
        ]

        @functools.wraps(verb)
        def called(**given: Any) -> None:
            mine = {each.name: given.pop(each.name) for each in own}
            verb(request=request_from(request_type, _named(given, chosen)), **mine)

        del called.__wrapped__  # typer reads the signature of what is wrapped, where it is told of it
        parameters = [*made, *own]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return decorate


def _typer_parameters(each: Parameter, panel: str | None) -> Iterator[inspect.Parameter]:
    option = each.option
    if option.flags:
        for flag in option.flags:
            switch = typer.Option(spelled(flag.name), help=flag.help, rich_help_panel=panel)
            yield _parameter(flag.name, bool, switch, default=False)
        return
    kind = _PARSED.get(str if option.read else each.kind, str)
    if each.many:
        kind = types.GenericAlias(list, (kind,))
    if _by_place(each):
        info = typer.Argument(
            help=help_of(each),
            metavar=each.name.upper(),
            show_default=False,
            autocompletion=_completion(_names_for(each)),
        )
        yield _parameter(f"{each.name}{_BY_PLACE}", kind | None, info)
        yield _parameter(each.name, kind | None, _info(each, panel, "The same, by name."))
        return
    if kind is bool:
        yield _parameter(each.name, kind, _info(each, panel, help_of(each)), default=False)
    else:  # None where it is not given, so that the request knows what was
        yield _parameter(each.name, kind | None, _info(each, panel, help_of(each)))
    for old in option.old:
        yield _parameter(old, kind | None, typer.Option(spelled(old), hidden=True))


def _by_place(each: Parameter) -> bool:
    """Whether an option may be given without its name here too: a list of names, or what must be given."""
    return bool(each.option.place) and (each.many or each.default is msgspec.NODEFAULT)


def _info(each: Parameter, panel: str | None, text: str) -> Any:
    option = each.option
    return typer.Option(
        spelled(each.name),
        *((option.short,) if option.short else ()),
        help=text,
        metavar=option.metavar or ("TEXT,..." if option.commas else None),
        rich_help_panel=panel,
        autocompletion=_completion(option.choices or _names_for(each)),
    )


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
        "reference_gpu": _gpus,
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


def _parameter(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    annotation = Annotated[kind, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _named(given: dict[str, Any], chosen: Sequence[Parameter]) -> dict[str, Any]:
    """Return what was given, by option; what was given by place joins the option that it stands for."""
    found = {name: value for name, value in given.items() if value is not None and value is not False}
    for each in chosen:
        by_place = found.pop(f"{each.name}{_BY_PLACE}", None)
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
