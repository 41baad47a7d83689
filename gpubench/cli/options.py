"""A verb, and its options on the command line, made of its requests: laid out, read, completed."""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import click
import msgspec

from gpubench.cli.output import say
from gpubench.errors import MisuseError
from gpubench.options import RECIPE as RECIPE_PANEL
from gpubench.options import (
    Option,
    help_of,
    options_of,
    request_from,
    settings_for,
    settings_in_words,
    spelled,
    typed,
    unknown_name,
)
from gpubench.settings import FILES, Settings, read_settings
from gpubench.units import listing, plain

Action: TypeAlias = Callable[..., int | None]
RECIPE = "recipe"


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


class Command(click.Command):
    """A verb as the parser knows it; its help lists the options by what they are about."""

    panels: Mapping[str | None, str | None] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by panel, those without one first."""
        by_panel: dict[str, list[tuple[str, str]]] = {"Options": []}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                by_panel.setdefault(self.panels.get(each.name) or "Options", []).append(record)
        for panel, records in by_panel.items():
            with formatter.section(panel):
                _write(formatter, records)


_SEAM = "|\0 "
"""Where a list of choices may be broken while its lines are laid out: behind a bar, never within a choice."""
_WIDEST_TERM = 30


def _write(formatter: click.HelpFormatter, records: Sequence[tuple[str, str]]) -> None:
    """Write options beside what they mean; no word and no choice is broken."""
    widths = [len(term) for term, _ in records]
    beside = min(max(widths, default=0), _WIDEST_TERM) + 2
    room = max(formatter.width - formatter.current_indent - beside, 20)
    for term, words in records:
        text = words.replace("|", _SEAM)
        lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
        lines = [line.replace(_SEAM, "|").replace("\0", "") for line in lines]
        if len(term) > beside - 2:
            lines.insert(0, "")
        for head, line in zip([term, *[""] * len(lines)], lines, strict=False):
            formatter.write(f"{'':{formatter.current_indent}}{head:{beside}}{line}".rstrip() + "\n")


class Actions(click.Group):
    """The actions of a verb; its help names them in the order of the verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the actions."""
        del ctx
        return list(self.commands)


def command_of(name: str, verb: Verb, every: Callable[[], Iterable[Verb]] = tuple) -> click.Command:
    """Return the command of a verb, or the group of its actions.

    Args:
        name: What is typed.
        verb: The verb.
        every: Imports every verb: asked where a file sets what this one does not heed.
    """
    if isinstance(verb.run, Mapping):
        actions = [_command(action, run, verb.only, every) for action, run in verb.run.items()]
        return Actions(name, actions, help=verb.help, short_help=verb.help, no_args_is_help=True)
    return _command(name, verb.run, verb.only, every)


def _requests_of(action: Action) -> list[type[msgspec.Struct]]:
    asked = inspect.signature(action, eval_str=True).parameters.values()
    return [each.annotation for each in asked if each.name != "as_json"]


def _command(
    name: str, action: Action, only: Mapping[str, str | None], every: Callable[[], Iterable[Verb]]
) -> Command:
    """Return a command with an option for each field of the requests of an action, and ``--json``."""
    offered = {
        request: [
            each
            for each in options_of(request)
            if each.way in {"option", "recipe"} and (not only or each.name in only)
        ]
        for request in _requests_of(action)
    }

    def called(as_json: bool, **given: Any) -> None:
        known = _settings_of_folder(offered, every)
        settings = {request: settings_for(request, known.values, known.file) for request in offered}
        requests = [
            request_from(request, _given_of(options, given), settings=settings[request])
            for request, options in offered.items()
        ]
        code = action(*requests, as_json=as_json)
        for request, values in settings.items():
            if values and "settings" not in request.__struct_fields__:
                say(f"set in {known.file}: {listing(settings_in_words(request, values))}")
        if code:
            click.get_current_context().exit(code)

    options = [each for of_one in offered.values() for each in of_one]
    laid_out = [made for each in options for made in _laid_out(each)]
    as_json = click.Option(["as_json", "--json"], is_flag=True, help="Print one JSON document on stdout.")
    about = inspect.getdoc(action) or ""
    command = Command(
        name,
        params=[*laid_out, *_recipe_option(options), as_json],
        callback=called,
        help=about,
        short_help=about.partition("\n\n")[0],
        epilog=_settings_told(offered),
    )
    command.panels = {f"name_{each.name}": only.get(each.name, each.panel) for each in options}
    command.panels[f"name_{RECIPE}"] = RECIPE_PANEL
    return command


def _settings_told(requests: Iterable[type[msgspec.Struct]]) -> str | None:
    """Return what a help text says of the settings that a verb heeds."""
    names = [
        typed(each.name) for request in requests for each in options_of(request) if each.way == "setting"
    ]
    files = " or ".join(FILES)
    return f"Settings, in {files} of the folder you are in: {', '.join(names)}." if names else None


def requests_of(verb: Verb) -> list[type[msgspec.Struct]]:
    """Return what a verb, or any action of it, is asked."""
    actions = verb.run.values() if isinstance(verb.run, Mapping) else [verb.run]
    return list(chain(*map(_requests_of, actions)))


def _settings_of_folder(
    requests: Iterable[type[msgspec.Struct]], every: Callable[[], Iterable[Verb]]
) -> Settings:
    """Return the settings of the working folder, where one of these requests heeds any.

    Raises:
        MisuseError: If a file is no TOML, or sets what no verb heeds.
    """
    heeded = _settings_of(requests)
    known = read_settings(Path()) if heeded else Settings()
    if not known.values.keys() <= heeded:
        heeded |= _settings_of(chain(*map(requests_of, every())))
        for name in sorted(known.values.keys() - heeded):
            raise unknown_name(f"setting in {known.file}", name, get_close_matches(name, heeded))
    return known


def _settings_of(requests: Iterable[type[msgspec.Struct]]) -> set[str]:
    return {each.name for request in requests for each in options_of(request) if each.way == "setting"}


def _recipe_option(options: Iterable[Option]) -> list[click.Option]:
    """Return ``--recipe`` where there are keys of it."""
    keys = [f"{typed(each.name)}: {help_of(each)}" for each in options if each.way == RECIPE]
    about = "\n\n".join(
        ["How the workload is trained or run, where it is not as the workload itself says.", *keys]
    )
    return [
        click.Option([f"name_{RECIPE}", "--recipe"], multiple=True, metavar="KEY=VALUE,...", help=about)
        for _ in keys[:1]
    ]


def _laid_out(each: Option) -> Iterator[click.Parameter]:
    """Yield what the parser is told of an option: its place, and its name."""
    if each.way == RECIPE:
        return
    must_be = each.initial is msgspec.NODEFAULT
    by_place = each.bare or (each.place and (each.many or must_be))
    complete = _completing(each)
    if by_place:
        yield click.Argument(
            [f"place_{each.name}"],
            help=help_of(each),
            nargs=-1 if each.many else 1,
            required=each.bare and must_be,
            metavar=each.metavar if each.bare else f"[{each.name.upper()}]{'...' if each.many else ''}",
            shell_complete=complete,
        )
    if not each.bare:
        yield click.Option(
            [f"name_{each.name}", spelled(each.name), *filter(None, [each.short])],
            help=f"Same as the {each.name.upper()} argument." if by_place else help_of(each),
            is_flag=each.base is bool or None,
            multiple=each.many,
            metavar=each.metavar or None,
            shell_complete=complete,
        )


def _given_of(offered: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given of a request, by option; what was given by place joins what it stands for."""
    found = _recipe_of(
        given.get(f"name_{RECIPE}") or (), [each.name for each in offered if each.way == RECIPE]
    )
    for each in offered:
        by_name, by_place = given.get(f"name_{each.name}"), given.get(f"place_{each.name}")
        if by_place and by_name and not each.many:
            twice = f"{plain(by_place)} and {plain(by_name)}"
            raise MisuseError(f"{spelled(each.name)} is given twice: {twice}")
        value = (
            [*(by_place or ()), *(by_name or ())] if each.many else by_name if by_place is None else by_place
        )
        if value not in (None, False, []):
            found[each.name] = value
    return found


def _recipe_of(words: Iterable[str], keys: Sequence[str]) -> dict[str, Any]:
    """Read ``weight-type=bfloat16,loss-chunks=8``, once or several times over."""
    found: dict[str, Any] = {}
    for part in chain(*(each.split(",") for each in words)) if keys else ():
        key, _, value = part.partition("=")
        name = key.strip().replace("-", "_")
        if name not in keys or not value.strip():
            known = listing(map(typed, keys))
            raise MisuseError(f"--recipe {plain(part)!r} is not KEY=VALUE, with a key of {known}")
        if name in found:
            raise MisuseError(f"--recipe gives {plain(key)} twice")
        found[name] = value.strip()
    return found


# --- completed by the shell -------------------------------------------------------------------------------


def _completing(each: Option) -> Callable[..., Sequence[str]] | None:
    """Return what completes a value of an option; it looks for names only where a shell asks."""
    names = _NAMES.get(each.name, (lambda: each.choices) if each.choices else None)

    def completions(ctx: Any, parameter: Any, incomplete: str) -> Sequence[str]:
        del ctx, parameter
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
    "provider": _providers,
}
"""What finds the names that an option takes."""
