"""The verbs: each imported, and its options laid out, when it is called or its help is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperGroup

VERBS = {
    "probe": "probe",
    "doctor": "doctor",
    "list": "listing",
    "run": "run",
    "check": "check",
    "compare": "compare",
    "results": "results",
    "offers": "offers",
    "predict": "predict",
    "memory": "memory",
    "calibrate": "calibrate",
    "rank": "rank",
    "report": "report",
    "feed": "feed",
    "new-workload": "new_workload",
}
"""By name, in the order of the help, the module of ``gpubench.cli`` whose ``verb`` it is."""


class Verbs(TyperGroup):
    """The group of all verbs; laying all of them out would take a fifth of the start of each."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _WhenCalled(self.commands)
        _read_plainly(self)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; typer would make an interruption an exit code without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error


class _WhenCalled(MutableMapping[str, Any]):
    """Commands by name; one of ``VERBS`` is made when it is first asked for."""

    def __init__(self, made: MutableMapping[str, Any]) -> None:
        self._made = dict(made)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, VERBS[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**VERBS, **self._made})

    def __len__(self) -> int:
        return len({**VERBS, **self._made})

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]


def _make(name: str, module: str) -> Any:
    alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    alone.callback()(lambda: None)  # or typer makes a single verb the whole program
    verb = import_module(f"gpubench.cli.{module}").verb
    if isinstance(verb, typer.Typer):  # a group of actions
        alone.add_typer(verb, name=name)
    else:
        alone.command(name)(verb)
    group: Any = typer.main.get_command(alone)
    command = group.commands[name]
    for each in (command, *getattr(command, "commands", {}).values()):
        _read_plainly(each)
    return command


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


def _read_plainly(command: Any) -> None:
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
