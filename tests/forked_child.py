"""Runs a Python process as a fork of the test process, which has already imported torch.

Importing torch alone takes two seconds. Everything else is as in a separate process: pipes, process group,
variables, output and end. The fork imports gpubench again, so a test's changes to the package stay in the
test process. Its own children are forks too.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch._dynamo  # every training step imports it
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

MODULES = (
    "gpubench.measure.worker",
    "gpubench.probe.torch_view",
    "gpubench.profile.child",
    "strict_cuda.ailing_child",
)
"""The child programs that are forked: those that import torch."""
ANEW = {"gpubench", "gpubench_workloads", "tools"}
"""Packages that a fork imports again."""
IS_POSSIBLE = sys.platform == "linux" and torch.version.cuda is None and torch.version.hip is None
"""A GPU build of torch cannot train in a fork of a process that has trained."""
real_path = functools.cache(os.path.realpath)
"""Knows the paths of all loaded modules, which each fork of a user's model would resolve again."""
# torchrun waits for more than a second before it looks again for the other nodes, and a job here has one. For its
# log it looks up the source of each caller, here of all those inside pytest.
dynamic_rendezvous._delay = lambda seconds: time.sleep(0.01)
dynamic_rendezvous.construct_and_record_rdzv_event = lambda **_: None
dynamic_rendezvous.get_method_name = lambda *_: ""


def popen(args: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start ``python [-P] -m MODULE ...``, ``-c PROGRAM ...`` or ``SCRIPT ...`` as a fork of this process."""
    if not IS_POSSIBLE:
        return subprocess.Popen(args, **options)
    arguments = [str(word) for word in args[1:] if word != "-P"]
    here = [] if "-P" in args else [""]
    for module in [*sys.modules.values()]:
        if isinstance(file := getattr(module, "__file__", None), str):
            real_path(file)
    be_it = functools.partial(_be_it, arguments, here, options.get("env"), options.get("pass_fds", ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads that do not exist in a fork
        return subprocess.Popen(args, preexec_fn=be_it, **options)  # noqa: PLW1509 - it never returns


def run(
    command: Sequence[str], *, capture_output: bool, check: bool, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as ``subprocess.run`` does."""
    assert capture_output
    with popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        out, err = process.communicate(timeout=timeout)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def of_children() -> SimpleNamespace:
    """Return the replacement for ``subprocess`` in ``gpubench.children``, so children that import torch are forks."""

    def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        is_forked = any(module in command for module in MODULES)
        return (popen if is_forked else subprocess.Popen)(command, **options)

    return SimpleNamespace(**vars(subprocess) | {"Popen": start})


def _be_it(
    arguments: Sequence[str], here: Sequence[str], environment: dict[str, str] | None, kept: Sequence[int]
) -> NoReturn:
    """Handle the arguments as Python does; the standard streams and the group are already those of a child."""
    status = 1
    try:
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        sys.path[:0] = [*here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        _become_new({0, 1, 2, *kept})
        match arguments:
            case ["-m", module, *rest]:
                sys.argv = ["-m", *rest]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ["-c", program, *rest]:
                sys.argv = ["-c", *rest]
                exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
            case [script, *_]:
                sys.argv = [*arguments]
                runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _become_new(kept: set[int]) -> None:
    """Remove everything that a new process would not have."""
    nothing = os.open(os.devnull, os.O_RDWR)
    inherited = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    for descriptor in {*inherited} - kept - {nothing}:  # also the pipe that signals the start
        # If it were closed, its number would be reused, then closed again when its former owner is deleted.
        os.dup2(nothing, descriptor, inheritable=False)
    faulthandler.disable()
    logging.root.handlers.clear()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.resetwarnings()
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False, encoding="utf-8") for n in (1, 2))  # noqa: SIM115
    tempfile.tempdir = None
    for name in [name for name in sys.modules if name.partition(".")[0] in ANEW]:
        del sys.modules[name]
    if "GPUBENCH_STRICT_CUDA" in os.environ:
        _find_the_fake()
    from gpubench import children, foreign_code

    foreign_code._real_path = real_path
    children.subprocess = of_children()  # type: ignore[assignment]
    subprocess_handler.Popen = popen  # type: ignore[assignment,misc]  # the processes of a job of torchrun
    gc.freeze()  # each measured case collects garbage, here among the objects of all tests


def _find_the_fake() -> None:
    """Install the fake GPU if tests have put it on the path, as a new Python process does when it starts.

    A fork of a fork already has it.
    """
    from strict_cuda import in_a_child

    if not in_a_child.is_in_place():
        import sitecustomize  # noqa: F401

        in_a_child.change(torch)
        in_a_child.change(sys.modules["pynvml"])
