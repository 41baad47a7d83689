"""A Python function that takes the options of a request by name: conversions, signature and docstring."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import msgspec

from gpubench.errors import WrongArgumentError
from gpubench.options import Parameter, help_of, parameters_of, request_from, shown_value

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


class _Type(str):
    """A type in words, which a signature shows as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def takes_options_of(request_type: type[R]) -> Callable[[Callable[[R], T]], Callable[..., T]]:
    """Let a function of a request be called with the request's options by name.

    The function still takes a request, alone. Its signature and docstring list the options.
    """

    def decorate(function: Callable[[R], T]) -> Callable[..., T]:
        call = function.__name__
        first = tuple(each.name for each in _by_place(request_type) if each.option.place)

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> T:
            if len(arguments) == 1 and not options and isinstance(arguments[0], request_type):
                return function(arguments[0])
            if arguments and not parameters_of(request_type):
                raise WrongArgumentError(f"{call}() takes no argument, not {shown_value(arguments[0])}")
            if len(arguments) > len(first):
                most = f"only {' and '.join(first)}" if first else "none"
                raise WrongArgumentError(
                    f"{call}() takes {most} without a name, not {len(arguments)} values; name the others"
                )
            named = dict(zip(first, arguments, strict=False))
            if doubled := named.keys() & options.keys():
                raise WrongArgumentError(f"{call}(): {min(doubled)} is given twice")
            return function(request_from(request_type, named | options, call))

        called.__signature__ = signature_of(request_type, function)  # type: ignore[attr-defined]
        doc = inspect.getdoc(function) or ""
        called.__doc__ = _with_arguments(doc, request_type) if parameters_of(request_type) else doc
        return called

    return decorate


def signature_of(request_type: type[msgspec.Struct], function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that a request gives to a function: options by name, with their defaults."""
    found: list[inspect.Parameter] = []
    for each in _by_place(request_type):
        by_place = each.option.place
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if by_place else inspect.Parameter.KEYWORD_ONLY
        found += [
            inspect.Parameter(flag.name, kind, default=False, annotation=_Type("bool"))
            for flag in each.option.flags
        ]
        if not each.option.flags:
            default = (
                inspect.Parameter.empty if each.default is msgspec.NODEFAULT else _as_typed(each.default)
            )
            found.append(
                inspect.Parameter(each.name, kind, default=default, annotation=_Type(each.annotation))
            )
    returns = _Type(function.__annotations__["return"])
    return inspect.Signature(found, return_annotation=returns)


def _as_typed(default: Any) -> Any:
    """Return a default as a user would type it: a choice as its text, a range as a tuple."""
    if isinstance(default, tuple):
        return tuple(_as_typed(each) for each in default)
    return default.value if isinstance(default, Enum) else default


def _by_place(request_type: type[msgspec.Struct]) -> list[Parameter]:
    """Return the options in the order of a signature: those with a place first."""
    return sorted(parameters_of(request_type), key=lambda each: each.option.place or math.inf)


def _with_arguments(doc: str, request_type: type[msgspec.Struct]) -> str:
    """Put the options into a docstring: after its text, before what it returns or raises."""
    import textwrap

    told = []
    for each in _by_place(request_type):
        flags = [f"{flag.name}: {flag.help}" for flag in each.option.flags]
        for line in flags or [f"{each.name}: {help_of(each)}"]:
            told += textwrap.wrap(line, 100, initial_indent="    ", subsequent_indent="        ")
    lines = doc.splitlines()
    ends = (n for n, line in enumerate(lines) if line in {"Returns:", "Raises:", "Example:"})
    place = next(ends, len(lines))
    before = [*"\n".join(lines[:place]).rstrip().splitlines(), ""]
    return "\n".join([*before, "Args:", *told, "", *lines[place:]]).rstrip()
