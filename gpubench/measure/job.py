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
from typing import TYPE_CHECKING

import psutil

from gpubench.foreign_code import says_no_memory
from gpubench.measure import messages
from gpubench.measure.privacy import scrub
from gpubench.models import Status
from gpubench.parent import ParentChannel, scratch_folder
from gpubench.units import Seconds

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

RANK_MODULE = "gpubench.measure.rank"
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
                *(sys.executable, "-P", "-m", RANK_MODULE, f"{os.getpid()}"),
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


if __name__ == "__main__":
    main()
