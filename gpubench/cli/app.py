"""The command line: its verbs, and how it starts and ends.

Each verb is a file of ``gpubench.cli.verbs``; it and its room are imported, and its options laid out, when it
is called or its help is asked for.
"""

from __future__ import annotations

import csv
import errno
import gc
import re
import signal
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from gpubench import __version__
from gpubench.blocks.terminal import heed_columns
from gpubench.cli import verbs
from gpubench.cli.last_words import last_words
from gpubench.cli.options import Verb, read_plainly, with_options
from gpubench.cli.output import leave_quietly, make_safe
from gpubench.errors import ExitCode, GpuBenchError, exit_codes, is_interrupt
from gpubench.folders import package_text
from gpubench.units import listing, plain

MESSAGE_LIMIT = 2000
OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Python's 700 looks the same thousands of offers through again and again: a fifth of a ranking's time."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def verb_names() -> tuple[str, ...]:
    """The verbs by name, without importing any: the files of ``gpubench.cli.verbs``."""
    return tuple(found.name.replace("_", "-") for found in iter_modules(verbs.__path__))


def load_verb(name: str) -> Verb:
    """Import the file of a verb."""
    verb: Verb = import_module(f"{verbs.__name__}.{name.replace('-', '_')}").VERB
    return verb


class Verbs(TyperGroup):
    """The group of all verbs; laying all of them out would take a fifth of the start of each."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _WhenCalled(dict.fromkeys(verb_names()))
        read_plainly(self)

    def main(self, *args: Any, **given: Any) -> Any:
        """Run the command line; its help heeds the width as its tables do."""
        heed_columns()
        return super().main(*args, **given)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take a model that is named first for a question of ``rank``: ``gpubench resnet50 --spot``."""
        if args[0] not in self.commands and _is_a_model(args[0]):
            args = ["rank", *args]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; typer would make an interruption an exit code without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error


def _is_a_model(word: str) -> bool:
    from gpubench.decoders import find_decoder
    from gpubench.discovery import workload_names
    from gpubench.user_model import is_own

    return word in workload_names() or is_own(word) or find_decoder(word) is not None


class _WhenCalled(UserDict[str, Any]):
    """Commands by name; each is None until it is first asked for."""

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _make(name)
        return self.data[name]

    def __iter__(self) -> Iterator[str]:
        """Name the verbs in the order of the help, which each states."""
        return iter(sorted(self.data, key=lambda name: load_verb(name).place))


def _make(name: str) -> Any:
    alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    alone.callback()(lambda: None)  # or typer makes a single verb the whole program
    verb = load_verb(name)
    if isinstance(verb.run, Mapping):
        actions = typer.Typer(help=verb.help, no_args_is_help=True)
        for action, run in verb.run.items():
            actions.command(action)(with_options(run, verb.only))
        alone.add_typer(actions, name=name)
    else:
        alone.command(name)(with_options(verb.run, verb.only))
    group: Any = typer.main.get_command(alone)
    command = group.commands[name]
    for each in (command, *getattr(command, "commands", {}).values()):
        read_plainly(each)
    return command


ABOUT = """From the GPU in this machine to the GPU you should pay for.

Three things to ask:

- `gpubench llama-3.1-8b --lora --samples 20000`: what to rent or buy for a job
- `gpubench run --quick`: how fast this machine trains
- `gpubench memory vit_b16 --gpu L4`: whether a model fits, and at which batch
"""

app = typer.Typer(
    name="gpubench",
    cls=Verbs,
    help=ABOUT,
    epilog=f"Exit codes: {exit_codes()}.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # as "rich" it would take "[default: ...]" for markup and drop it
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"gpubench {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Alone: print what is in this machine, and the next step."""
    del version
    if ctx.invoked_subcommand is None:
        from gpubench.cli.verbs.probe import overview

        overview()


def main() -> None:
    """Run the command line; a failure is one line on stderr and its documented exit code."""
    make_safe()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 50, 50)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C; a run that measures has its own
    try:
        status = app(standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        leave_quietly(sys.stdout, sys.stderr)
        sys.exit(ExitCode.NO)
    except GpuBenchError as error:
        _fail(str(error), error.exit_code)
    except typer.TyperException as error:  # misuse found by the parser itself
        _fail(_misuse(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", ExitCode.INTERRUPTED)
    except OSError as error:
        if error.filename is not None:
            _fail(f"cannot use {error.filename}: {error.strerror}", ExitCode.MISUSE)
        if error.errno not in _NO_ROOM:
            _fail_unexpectedly(error)
        leave_quietly(sys.stdout)  # files of ours are named, a stream has no name
        _fail(f"cannot write the output: {error.strerror}", ExitCode.STORAGE)
    except Exception as error:  # noqa: BLE001 - the last handler: nobody is shown a traceback
        if is_interrupt(error):
            _fail("interrupted", ExitCode.INTERRUPTED)
        _fail_unexpectedly(error)


def _fail_unexpectedly(error: Exception) -> NoReturn:
    _fail(last_words(error), ExitCode.INTERNAL)


def _misuse(error: typer.TyperException) -> str:
    """What the parser holds against the line, the verb that may have been meant, and whose help says more."""
    words = error.format_message()
    context = getattr(error, "ctx", None)
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name or "")
        context = context.parent
    if context is None and not names and sys.argv[1:2] and sys.argv[1] in verb_names():
        names = sys.argv[1:2]  # an option without its value is found before there is a context
    path = " ".join(["gpubench", *names])
    option = getattr(error, "option_name", None)
    group = getattr(error, "ctx", None)
    unknown = re.search(r"No such command '([^']+)'", words)
    asked = " ".join([*names, unknown[1]]) if unknown else ""
    for gone in csv.DictReader(package_text("data/gone.csv").splitlines()):
        if option and (gone["verb"], gone["option"]) == (" ".join(names), option):
            return f"{path} has no {option} any more: {gone['instead']}"
        if (gone["verb"], gone["option"]) == (asked, ""):
            return f"gpubench {asked} is no more: {gone['instead']}"
    word = unknown[1].lower() if unknown and "Did you mean" not in words else None
    also: Sequence[str] = ()
    if word is not None and not names:
        from gpubench.discovery import models_like

        also = [name for name in verb_names() if word in load_verb(name).also_called]
        also = also or models_like(word)  # a model may be named first
    meant = f" Did you mean '{also[0]}'?" if also else ""
    words = words or f"add one of {listing(_verbs_of(group))}"  # the help was shown
    return f"{words}{meant} (see {path} --help)"


def _verbs_of(context: Any) -> tuple[str, ...]:
    return tuple(getattr(getattr(context, "command", None), "commands", ()))


def _fail(message: str, exit_code: int) -> NoReturn:
    # A message may quote a file name or a driver's words: no escape of theirs reaches the terminal.
    try:
        print(f"gpubench: {plain(' '.join(message.split()), MESSAGE_LIMIT)}", file=sys.stderr)
    except OSError:  # a log on a full disk: the exit code says it still
        leave_quietly(sys.stderr)
    sys.exit(exit_code)
