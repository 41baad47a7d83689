"""The child that stands for the processes of one job on this machine: torchrun, which ends with its parent.

torch gives its workers no descriptors but the first three. So the pipes of the parent are standard input and
output here, and what is printed goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import traceback
from typing import TYPE_CHECKING

import msgspec
import psutil

from gpubench.foreign_code import says_no_memory
from gpubench.measure import messages
from gpubench.measure.child import JOB_MODULE
from gpubench.measure.place import Place
from gpubench.measure.privacy import scrub
from gpubench.models import Status
from gpubench.parent import ParentChannel, die_with_parent, scratch_folder
from gpubench.units import Seconds

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

RANK = "rank"
"""Tells a process that it is one of the job, and not the one that stands for all."""
STORE_VARIABLE = "GPUBENCH_JOB_STORE"
"""Names the file by which the processes of one machine find each other: nothing listens for it."""
LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
KILLED_S: Seconds = 1.0


def main() -> None:
    """Run torchrun, and tell the parent which process was lost first, and of what."""
    line = ParentChannel()
    folder = scratch_folder()
    folder.mkdir(0o700)
    os.dup2(line.read_fd, 0)
    os.dup2(line.write_fd, 1)
    threading.Thread(target=_end_with_parent, args=(line.read_fd,), daemon=True).start()
    line.send(messages.Phase(name="import"))  # torch takes seconds
    import torch
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ[STORE_VARIABLE] = f"{folder}/store"
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # it would listen at every address
    os.environ.setdefault("OMP_NUM_THREADS", f"{torch.get_num_threads()}")  # torchrun would make it 1
    for name in INTERFACE_VARIABLES:  # gloo and NCCL would look for one of their own, which others may reach
        os.environ.setdefault(name, "lo" if sys.platform == "linux" else "lo0")
    status, reason, trace = Status.FAILED, "every process of the job has ended before its time", None
    try:
        run.main(
            [
                f"--nproc-per-node={line.arguments[0]}",
                "--rdzv-backend=c10d",
                "--rdzv-conf=store_type=file",
                f"--rdzv-endpoint={folder}/agent",
                f"--local-addr={LOOPBACK}",
                f"--log-dir={folder}",
                "--max-restarts=0",  # the parent decides what follows a loss
                "--monitor-interval=0.1",
                "--no-python",
                *(sys.executable, "-P", "-m", JOB_MODULE, RANK, f"{os.getpid()}"),
            ]
        )
    except ChildFailedError as error:
        status, reason, trace = _cause(error)
    except Exception as error:  # noqa: BLE001 - torch reports a start that fails in several kinds
        reason = scrub(f"the job could not be started: {error}")
    line.send(messages.JobOver(status=status, reason=reason, traceback=trace))


def _cause(error: ChildFailedError) -> tuple[Status, str, str | None]:
    """Say which process was lost first, and of what; an error of Python is in the file that it left."""
    rank, failure = error.get_first_failure()
    said = failure.error_file_data.get("message")
    if isinstance(said, dict):
        reason = scrub(f"rank {rank} of the job: {said['message']}")
        status = Status.OUT_OF_MEMORY if says_no_memory(reason) else Status.FAILED
        return status, reason, said["extraInfo"]["py_callstack"]
    how = f"ended with status {failure.exitcode}"
    if failure.exitcode < 0:
        how = f"was ended by signal {-failure.exitcode} ({failure.signal_name()})"
    return Status.FAILED, f"rank {rank} of the job {how}", None


def _end_with_parent(read_fd: int) -> None:
    """Wait until the parent has closed its pipe, and end all at once: torch would be patient."""
    parent = select.poll()
    parent.register(read_fd, 0)  # its hanging up is always reported
    parent.poll()
    ranks = psutil.Process().children(recursive=True)
    for rank in ranks:
        with contextlib.suppress(psutil.Error):  # the first one ends by itself
            rank.kill()
    psutil.wait_procs(ranks, timeout=KILLED_S)
    os._exit(0)


def be_rank(torchrun_pid: int) -> None:
    """Be one process of the job: take its pipes from where torchrun leaves them; leave word of an error.

    Never returns: what a model has left in this process could keep it from ending.
    """
    die_with_parent(torchrun_pid)
    pipes = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    from torch.distributed.elastic.multiprocessing.errors import record

    from gpubench.measure import team, worker

    place = Place.here()
    try:
        if place.rank == 0:
            line = ParentChannel(pipes)
            setup = msgspec.json.decode(line.first_line(), type=messages.Setup)
            record(worker.serve_parent)(line, setup, place)
        else:
            for pipe in pipes:  # they are the first one's alone
                os.close(pipe)
            team.follow(place)
    except BaseException:  # noqa: BLE001 - it is in torch's file by now
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == RANK:
        be_rank(int(sys.argv[2]))
    main()
