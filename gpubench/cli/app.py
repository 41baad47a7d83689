"""The command line: its verbs, and how it starts and ends.

Each verb is a file of ``gpubench.cli.verbs``; it and its room are imported, and its options laid out, when it
is called or its help is asked for.
"""

from __future__ import annotations

import csv
import errno
import gc
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from gpubench import __version__
from gpubench.blocks.terminal import heed_columns
from gpubench.cli import verbs
from gpubench.cli.last_words import last_words
from gpubench.cli.options import Actions, Verb, command_of
from gpubench.cli.output import leave_quietly, make_safe
from gpubench.errors import ExitCode, GpuBenchError, exit_codes, is_interrupt
from gpubench.folders import package_text
from gpubench.options import unknown_choice
from gpubench.units import listing, plain

MESSAGE_LIMIT = 2000
HELP_WIDTH = 120
"""Most columns of a help text."""
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


class Verbs(click.Group):
    """The group of all verbs; each is laid out where it is called or its help is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs in the order of the help, which each states."""
        del ctx
        return sorted(verb_names(), key=lambda name: load_verb(name).place)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a verb by name."""
        del ctx
        known = verb_names()
        return command_of(name, load_verb(name), lambda: map(load_verb, known)) if name in known else None

    def main(self, *args: Any, **given: Any) -> Any:
        """Run the command line; its help heeds the width as its tables do."""
        heed_columns()
        return super().main(*args, **given)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Take a model that is named first for a question of ``rank``: ``gpubench resnet50 --spot``."""
        if args[0] not in verb_names() and _is_a_model(args[0]):
            args = ["rank", *args]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; the parser would answer an interruption by an empty line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error


def _is_a_model(word: str) -> bool:
    from gpubench.decoders import find_decoder
    from gpubench.discovery import workload_names
    from gpubench.user_model import is_own

    return word in workload_names() or is_own(word) or find_decoder(word) is not None


ABOUT = """From the GPU in this machine to the GPU you should pay for.

Three things to ask:

\b
  gpubench llama-3.1-8b --lora --samples 20000   what to rent or buy for a job
  gpubench run --quick                           how fast this machine trains
  gpubench memory vit_b16 --gpu L4               whether a model fits, and at which batch
"""


@click.group(
    "gpubench",
    cls=Verbs,
    help=ABOUT,
    epilog=f"Exit codes: {exit_codes()}.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH},
)
@click.version_option(__version__, "--version", message="gpubench %(version)s", help="Print the version.")
@click.option(
    "--show-completion",
    metavar="SHELL",
    help="Print what completes the command line in bash, zsh, fish or powershell.",
)
@click.pass_context
def app(ctx: click.Context, show_completion: str | None) -> None:
    """Alone: print what is in this machine, and the next step."""
    if show_completion is not None:
        _show_completion(show_completion)
    elif ctx.invoked_subcommand is None:
        from gpubench.cli.verbs.probe import overview

        overview()


def _show_completion(shell: str) -> None:
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    if completion is None:
        raise unknown_choice("--show-completion", shell, ("bash", "zsh", "fish", "powershell"))
    print(completion(app, {}, "gpubench", "_GPUBENCH_COMPLETE").source())


def main() -> None:
    """Run the command line; a failure is one line on stderr and its documented exit code."""
    make_safe()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 50, 50)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C; a run that measures has its own
    try:
        status = app(prog_name="gpubench", standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        leave_quietly(sys.stdout, sys.stderr)
        sys.exit(ExitCode.NO)
    except GpuBenchError as error:
        _fail(str(error), error.exit_code)
    except click.UsageError as error:
        _fail(_misuse(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
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


def _misuse(error: click.UsageError) -> str:
    """What the parser holds against the line, the verb that may have been meant, and whose help says more."""
    names: list[str] = []
    context = error.ctx
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name or "")
        context = context.parent
    if error.ctx is None and sys.argv[1:2] and sys.argv[1] in verb_names():
        names = sys.argv[1:2]  # an option without its value is found before there is a context
    path = " ".join(["gpubench", *names])
    option = getattr(error, "option_name", None)
    word = getattr(error, "command_name", None)
    for gone in csv.DictReader(package_text("data/gone.csv").splitlines()):
        if option and (gone["verb"], gone["option"]) == (" ".join(names), option):
            return f"{path} has no {option} any more: {gone['instead']}"
        if word and (gone["verb"], gone["option"]) == (" ".join([*names, word]), ""):
            return f"{path} {word} is no more: {gone['instead']}"
    words = error.format_message()
    also: Sequence[str] = ()
    if isinstance(error, NoArgsIsHelpError) and isinstance(error.ctx.command, Actions):
        print(words)
        words = f"add one of {listing(error.ctx.command.commands)}"
    elif word and not names and "Did you mean" not in words:
        from gpubench.discovery import models_like

        also = [name for name in verb_names() if word.lower() in load_verb(name).also_called]
        also = also or models_like(word.lower())  # a model may be named first
    meant = f" Did you mean '{also[0]}'?" if also else ""
    return f"{words}{meant} (see {path} --help)"


def _fail(message: str, exit_code: int) -> NoReturn:
    # A message may quote a file name or a driver's words: no escape of theirs reaches the terminal.
    try:
        print(f"gpubench: {plain(' '.join(message.split()), MESSAGE_LIMIT)}", file=sys.stderr)
    except OSError:  # a log on a full disk: the exit code says it still
        leave_quietly(sys.stderr)
    sys.exit(exit_code)
