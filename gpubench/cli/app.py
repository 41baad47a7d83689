"""The command line: one small file a verb; it and its room are imported when it is called."""

from __future__ import annotations

import errno
import gc
import re
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from gpubench import __version__
from gpubench.cli.last_words import last_words
from gpubench.cli.streams import leave_quietly, make_safe
from gpubench.cli.verbs import VERBS, Verbs
from gpubench.errors import ExitCode, GpuBenchError, exit_codes, is_interrupt
from gpubench.units import listing, plain

MESSAGE_LIMIT = 2000
OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""Python's 700 looks the same thousands of offers through again and again: a fifth of a ranking's time."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    name="gpubench",
    cls=Verbs,
    help=(f"From the GPU in this machine to the GPU you should pay for.\n\nExit codes: {exit_codes()}."),
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # as "rich" it would take "[default: ...]" for markup and drop it
    context_settings={"help_option_names": ["-h", "--help"]},
)

_ALSO_CALLED = {
    **dict.fromkeys(("bench", "benchmark", "measure", "start", "test", "train"), "run"),
    **dict.fromkeys(("info", "detect", "device", "devices", "gpus", "status"), "probe"),
    **dict.fromkeys(("price", "prices", "cost", "costs", "cloud"), "offers"),
    **dict.fromkeys(("recommend", "best", "buy", "rent", "choose"), "rank"),
    **dict.fromkeys(("html", "page", "export"), "report"),
    **dict.fromkeys(("fit", "fits", "vram", "mem"), "memory"),
    **dict.fromkeys(("diff", "regress"), "compare"),
}
"""What a verb is called elsewhere; the parser itself finds the ones that are mistyped."""


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
        from gpubench.cli.probe import overview

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
        if (
            error.filename is None and error.errno in _NO_ROOM
        ):  # files of ours are named, a stream has no name
            leave_quietly(sys.stdout)
            _fail(f"cannot write the output: {error.strerror}", ExitCode.STORAGE)
        if error.filename is None:
            _fail_unexpectedly(error)
        _fail(f"cannot use {error.filename}: {error.strerror}", ExitCode.MISUSE)
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
    if context is None and not names and sys.argv[1:2] and sys.argv[1] in VERBS:
        names = sys.argv[1:2]  # an option without its value is found before there is a context
    path = " ".join(["gpubench", *names])
    group = getattr(error, "ctx", None)
    unknown = re.search(r"No such command '([^']+)'", words)
    verb = _ALSO_CALLED.get(unknown[1].lower()) if unknown else None
    meant = f" Did you mean '{verb}'?" if verb in _verbs_of(group) and "Did you mean" not in words else ""
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
