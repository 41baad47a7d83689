"""The command line: parsing, dispatch to a verb, startup and exit codes.

The options of a verb are built when the verb is called or its help is shown; its file is imported only for a
call.
"""

import csv
import errno
import gc
import signal
import sys
from typing import Any

import click

from gpubench import __version__
from gpubench.blocks.terminal import normalize_columns
from gpubench.cli import last_words, output, table
from gpubench.errors import ExitCode, GpuBenchError, exit_codes, is_interrupt
from gpubench.folders import package_text
from gpubench.names import nearest
from gpubench.units import listing

# Maximum width of help texts, in columns.
_HELP_WIDTH = 120
# Garbage-collection threshold. With Python's default of 700, a fifth of the time is spent scanning the offers
# again and again.
_OBJECTS_BETWEEN_COLLECTIONS = 200_000

# Options that people forget to type before a value, and what the value names.
_FORGOTTEN = {"--workload": "a workload", "--gpu": "a GPU"}
# Errors of a disk that is full or broken.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Verbs(click.Group):
    """The verbs, or the actions of one verb."""

    path = ""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of the verbs in the order of the table."""
        return [name.rpartition(" ")[2] for name in table.VERBS if name.rpartition(" ")[0] == self.path]

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Return a verb by its name."""
        path = f"{self.path} {name}".strip()
        verb = table.VERBS.get(path)
        if verb is not None and not verb.requests:
            actions = Verbs(name, help=verb.help, no_args_is_help=False)
            actions.path = path
            return actions
        return None if verb is None else table.command_of(path)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Call ``rank`` if a model name is in a verb's place; after ``predict``, call ``show``."""
        usual = {"": "rank", "predict": "show"}.get(self.path)
        if usual and args[0] not in self.list_commands(ctx) and _is_a_model(args[0]):
            args = [usual, *args]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; without this override, click prints an empty line on Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error


def _is_a_model(word: str) -> bool:
    from gpubench.decoders import find_decoder
    from gpubench.discovery import workload_names
    from gpubench.user_model import is_own

    known = word in workload_names() or is_own(word) or find_decoder(word) is not None
    # No verb has a digit in its name, so a word with one is a misspelled model; rank suggests the right name.
    return known or any(map(str.isdigit, word))


ABOUT = """From the GPU in this machine to the GPU you should pay for.

Three things to ask:

\b
  gpubench llama-3.1-8b --lora --samples 20000   what to rent or buy for a job
  gpubench run --quick                           how fast this machine trains
  gpubench memory vit_b16 --gpu L4               whether a model fits, and at which batch
"""

COMPLETION = 'eval "$(_GPUBENCH_COMPLETE=bash_source gpubench)"'


@click.group(
    "gpubench",
    cls=Verbs,
    help=ABOUT,
    epilog=f"Exit codes: {exit_codes()}. Completion in bash (zsh, fish): {COMPLETION}.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _HELP_WIDTH},
)
@click.version_option(__version__, "--version", message="gpubench %(version)s", help="Print the version.")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Without a verb, print what is in this machine, and the next step."""
    if ctx.invoked_subcommand is None:
        from gpubench.cli.verbs.probe import overview

        overview()


def main() -> None:
    """Run the command line; a failure prints one line on stderr and exits with its documented code."""
    output.make_safe()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 50, 50)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a measuring run has its own handler
    normalize_columns()
    try:
        status = app(prog_name="gpubench", standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        output.leave_quietly(sys.stdout, sys.stderr)
        sys.exit(ExitCode.NO)
    except GpuBenchError as error:
        last_words.fail(str(error), error.exit_code)
    except click.UsageError as error:
        last_words.fail(_misuse(error), error.exit_code)
    except OSError as error:
        if error.filename is not None:
            last_words.fail(f"cannot use {error.filename}: {error.strerror}", ExitCode.MISUSE)
        if error.errno not in _DISK_ERRORS:
            last_words.fail_unexpectedly(error)
        output.leave_quietly(sys.stdout)  # without a file name, the error is from a stream
        last_words.fail(f"cannot write the output: {error.strerror}", ExitCode.STORAGE)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last handler: no user sees a traceback
        if isinstance(error, click.Abort) or is_interrupt(error):
            last_words.fail("interrupted", ExitCode.INTERRUPTED)
        last_words.fail_unexpectedly(error)


def _misuse(error: click.UsageError) -> str:
    # Return the parser's error, the verb that was probably meant, and the help to read. The error has no
    # context if an option lacks its value.
    typed = next((each for n in (3, 2) if (each := " ".join(sys.argv[1:n])) in table.VERBS), "")
    verb = error.ctx.command_path.removeprefix("gpubench").strip() if error.ctx else typed
    path = f"gpubench {verb}".strip()
    option, word = getattr(error, "option_name", None), getattr(error, "command_name", None)
    for gone in csv.DictReader(package_text("data/gone.csv").splitlines()):
        if option and (gone["verb"], gone["option"]) == (verb, option):
            return f"{path} no longer has {option}: {gone['instead']}"
        if word and (gone["verb"], gone["option"]) == (f"{verb} {word}".strip(), ""):
            return f"{path} {word} no longer exists: {gone['instead']}"
    # For -gpu, the parser reports only -g: suggest the word that was typed, with two hyphens.
    suggestions = [
        f"-{each}"
        for each in sys.argv
        if option and len(option) == 2 and each != option and each.startswith(option)
    ]
    words = error.format_message()
    if words == "Missing command.":
        words = "add one of " + listing(
            name.rpartition(" ")[2] for name in table.VERBS if name.startswith(f"{verb} ")
        )
    elif word and not verb and "Did you mean" not in words:
        from gpubench.discovery import models_like

        suggestions = [name for name, each in table.VERBS.items() if word.lower() in each.also_called]
        suggestions += [*nearest(word, table.VERBS, cutoff=0.75), *models_like(word.lower())]
        if not suggestions:
            words = f"No such command or model {word!r}; `gpubench list` shows the models."
    elif error.ctx and words.startswith("Got unexpected extra argument"):
        flags = {flag for each in error.ctx.command.params for flag in each.opts}
        takes = [f"{what} with {flag}" for flag, what in _FORGOTTEN.items() if flag in flags]
        words += f"; name {listing(takes)}" if takes else ""
    meant = f" Did you mean '{suggestions[0]}'?" if suggestions else ""
    return f"{words}{meant} (see {path} --help)"
