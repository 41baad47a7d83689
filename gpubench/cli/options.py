"""A verb, and its options on the command line, made of its requests: laid out, read, completed."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from gpubench.errors import MisuseError
from gpubench.options import Option, help_of, options_of, request_from, spelled
from gpubench.units import plain

Action: TypeAlias = Callable[..., int | None]

_JSON = typer.Option("--json", help="Print one JSON document on stdout.", metavar="")


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
        request.annotation: [
            each
            for each in options_of(request.annotation)
            if not each.python_only and (not only or each.name in only)
        ]
        for request in asked
        if request.name != "as_json"
    }

    def called(as_json: bool, **given: Any) -> None:
        requests = [request_from(kind, _given_of(offered[kind], given)) for kind in offered]
        if code := action(*requests, as_json=as_json):
            raise typer.Exit(code)

    options = [made for each in chain(*offered.values()) for made in _laid_out(each, only)]
    laid_out = [*options, _parameter("as_json", bool, _JSON, default=False)]
    called.__doc__ = action.__doc__
    called.__signature__ = inspect.Signature(laid_out)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in laid_out}
    return called


def _laid_out(each: Option, only: Mapping[str, str | None]) -> Iterator[inspect.Parameter]:
    """Yield what the parser is told of an option: its place, its name, its earlier names."""
    kind = bool if each.base is bool else list[str] if each.many else str
    must_be = each.initial is msgspec.NODEFAULT
    by_place = each.bare or (each.place and (each.many or must_be))
    names = _names_for(each)
    if by_place:
        yield _parameter(
            f"place_{each.name}",
            kind,
            typer.Argument(
                help=help_of(each),
                metavar=each.metavar if each.bare else each.name.upper(),
                show_default=False,
                autocompletion=names,
            ),
            inspect.Parameter.empty if each.bare and must_be else None,
        )
    if each.bare:
        return
    yield _parameter(
        f"name_{each.name}",
        kind,
        typer.Option(
            spelled(each.name),
            *([each.short] if each.short else []),
            help=f"Same as the {each.name.upper()} argument." if by_place else help_of(each),
            metavar=each.metavar,
            rich_help_panel=only.get(each.name, each.panel),
            autocompletion=names,
        ),
        default=False if kind is bool else None,
    )
    for old in each.old:
        yield _parameter(f"name_{old}", kind, typer.Option(spelled(old), hidden=True))


def _parameter(name: str, kind: Any, info: Any, default: Any = None) -> inspect.Parameter:
    annotation = Annotated[kind, info] if default is not None else Annotated[kind | None, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _given_of(offered: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given of a request, by option; what was given by place joins what it stands for."""
    found: dict[str, Any] = {}
    for each in offered:
        named = {name: given.get(f"name_{name}") for name in (each.name, *each.old)}
        found |= {name: value for name, value in named.items() if value not in (None, False)}
        by_place = given.get(f"place_{each.name}")
        if by_place is not None and each.name in found and not each.many:
            twice = f"{plain(by_place)} and {plain(found[each.name])}"
            raise MisuseError(f"{spelled(each.name)} is given twice: {twice}")
        if by_place is not None:
            found[each.name] = [*by_place, *found.get(each.name, ())] if each.many else by_place
    return found


# --- read by the parser -----------------------------------------------------------------------------------


class _Text:
    """Leaves what was typed as it is, for ``request_from`` to read.

    typer would make a reader of pydantic of each parameter, given or not, and importing pydantic takes a
    third of the start of a verb.
    """

    @staticmethod
    def coerce(value: Any, param: Any, ctx: Any) -> Any:
        del ctx
        return () if value is None and (param.multiple or param.nargs == -1) else value


def read_plainly(command: Any) -> None:
    """Give each parameter of a command such a reader, also those that typer adds: help and completion."""
    laid_out = command.get_params

    def get_params(ctx: Any) -> list[Any]:
        parameters: list[Any] = laid_out(ctx)
        for each in parameters:
            each._runtime_param = _Text  # noqa: SLF001 - typer has no public place for a reader
            if each.param_type_name == "argument":
                each.display_type_rich = lambda ctx: ""  # noqa: ARG005 - its name is enough
            elif each.metavar is None:  # one of typer's own, which are switches
                each.metavar = ""
        return parameters

    command.get_params = get_params


# --- completed by the shell -------------------------------------------------------------------------------


def _names_for(each: Option) -> Callable[[str], Sequence[str]] | None:
    """Return what completes a value of an option; it looks for names only where a shell asks."""
    names = _NAMES.get(each.name, (lambda: each.choices) if each.choices else None)

    def completions(incomplete: str) -> Sequence[str]:
        typed = dict.fromkeys(_as_typed(name, incomplete) for name in (names() if names else ()))
        return [name for name in typed if name.lower().startswith(incomplete.lower())]

    return completions if names else None


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


def _workloads() -> Iterable[str]:
    from gpubench.decoders import decoder_names
    from gpubench.discovery import workload_names

    return (*workload_names(), *decoder_names(), "all")


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


_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "workload": _workloads,
    "gpu": _gpus_and_families,
    "reference": _gpus,
    "provider": _providers,
}
"""What finds the names that an option takes."""
