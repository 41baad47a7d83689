"""Runs a child process that measures, or that represents a job; ``launcher.Child`` starts it.

For a job of several processes on this machine, the child is torchrun, which ends with its parent. torch
passes only the first three file descriptors to its workers. In these processes, the parent's pipes are
therefore standard input and output, and anything printed goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import psutil

from gpubench.children import ParentChannel, die_with_parent, exit_words, scratch_folder
from gpubench.errors import GpuBenchError, NoDeviceError
from gpubench.foreign_code import says_no_memory
from gpubench.measure import messages
from gpubench.measure.capability import versions
from gpubench.measure.messages import MODULE, STORE_VARIABLE, UNDER_TORCHRUN, Place
from gpubench.measure.privacy import scrub
from gpubench.models import Finding, Framework, MicroResult, Status
from gpubench.units import Seconds

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from gpubench.measure.case import WorkerContext

RANK = "rank"
"""The argument of a process that is one rank of a job; another process represents the whole job."""
LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# Longest wait for killed processes to end.
KILLED_S: Seconds = 1.0

Serve = Callable[[messages.Command], None]
"""Carries out one command and reports its end."""


def main() -> None:
    """Serve one parent until it closes its pipe."""
    if sys.argv[1] == RANK:
        _run_as_rank(int(sys.argv[2]))
    line = ParentChannel()
    if line.arguments not in ([], [UNDER_TORCHRUN]):
        _represent_job(line)
        return
    setup = msgspec.json.decode(line.first_line(), type=messages.Setup)
    serve_parent(line, setup, Place.here() if UNDER_TORCHRUN in line.arguments else None)


def serve_parent(line: ParentChannel, setup: messages.Setup, place: Place | None = None) -> None:
    """Open the device or report why that fails, then carry out the parent's commands one by one.

    Args:
        line: The channel to the parent.
        setup: The parent's first message.
        place: The place of this process in a job; None without a job.
    """
    commands = line.listen(msgspec.json.Decoder(messages.Command), messages.Stop)
    line.send(messages.Phase(name="import"))
    try:
        if not setup.device.runs_steps:
            serve_one: Serve = _open_opencl(setup, line)
        elif setup.framework is Framework.TORCH:
            serve_one = partial(serve, context=open_context(setup, line, place), line=line)
        else:
            serve_one = _open_keras(setup, line)
    except (RuntimeError, OSError, ImportError, GpuBenchError) as error:
        code = error.exit_code if isinstance(error, GpuBenchError) else NoDeviceError.exit_code
        line.send(messages.Refused(reason=scrub(f"{error}"), exit_code=code))
        return
    while True:
        command = commands.get()
        line.return_home()  # paths of models are relative to the folder in which this process started
        serve_one(command)


def _open_keras(setup: messages.Setup, line: ParentChannel) -> Serve:
    # Return the function that carries out commands in Keras; torch is imported only if it is the backend.
    began_s = time.perf_counter()
    from gpubench.measure import keras_case

    bench = keras_case.open_bench(setup, line, began_s)

    def serve_one(command: messages.Command) -> None:
        assert isinstance(command, messages.MeasureCase)  # the plan has no other work for Keras
        line.send(messages.scrubbed(keras_case.measure_case(command, bench)))

    return serve_one


def _open_opencl(setup: messages.Setup, line: ParentChannel) -> Serve:
    # Return the function that carries out commands on an OpenCL device, which runs only micro-benchmarks.
    began_s = time.perf_counter()
    from gpubench.measure.opencl import open_queue, run_micro

    imported_s = time.perf_counter()
    line.send(messages.Phase(name="context"))
    queue = open_queue(setup.device)
    cold_s = {"import": imported_s - began_s, "context": time.perf_counter() - imported_s}
    line.send(messages.Ready(cold_s=cold_s))

    def serve_one(command: messages.Command) -> None:
        assert isinstance(command, messages.MeasureMicro)  # the plan has no other work for OpenCL
        send_micro(line, run_micro(queue, setup.device, setup.budget, time_s=command.time_s))

    return serve_one


def open_context(setup: messages.Setup, line: ParentChannel, place: Place | None = None) -> WorkerContext:
    """Load torch, open the device, check that it is the probed one, and report that this process is ready."""
    began_s = time.perf_counter()
    import torch

    from gpubench.measure.case import WorkerContext
    from gpubench.measure.step import check_device, identity_of, open_hardware
    from gpubench.measure.team import Over, Team
    from gpubench.probe.probe import GpuGroup, open_telemetry

    imported_s = time.perf_counter()
    line.send(messages.Phase(name="context"))
    hardware = open_hardware(setup.device)
    findings = check_device(setup.device)
    if setup.memory_share is not None:
        hardware.call("set_per_process_memory_fraction", setup.memory_share)
    threads = torch.get_num_threads()
    team = None if place is None else Team(setup, hardware, place)
    if team is not None:
        line.farewell = partial(team.announce, Over())
    telemetry = (
        open_telemetry(setup.device)
        if place is None
        else GpuGroup((setup.device, *setup.peers), whole=place.machines == 1)
    )
    opened_s = time.perf_counter()
    cudnn = torch.backends.cudnn.version() if hardware.is_cuda else None
    line.send(
        messages.Ready(
            torch=str(torch.__version__),
            cuda=torch.version.cuda,
            cudnn=None if cudnn is None else str(cudnn),
            cpu_threads=threads,
            nccl=".".join(map(str, torch.cuda.nccl.version())) if team and hardware.is_cuda else None,
            identity=identity_of(setup.device),
            memory_bytes=hardware.memory_bytes(),
            cudnn_benchmark=torch.backends.cudnn.benchmark if hardware.is_cuda else None,
            cold_s={"import": imported_s - began_s, "context": opened_s - imported_s},
            findings=findings,
            packages=versions(Framework.TORCH),
        )
    )
    of_job = {"local_processes": place.local_size, "cause_of": team.cause_of} if place and team else {}
    return WorkerContext.serving(setup, line, telemetry, hardware=hardware, team=team, **of_job)


def serve(command: messages.Command, context: WorkerContext, line: ParentChannel) -> None:
    """Carry out one command and report its end."""
    from gpubench.measure.case import measure_case, train_to_quality, try_batch
    from gpubench.measure.micro import run_all_reduce, run_micro
    from gpubench.measure.proofs import prove

    done: messages.Ending
    match command:
        case messages.MeasureMicro(time_s=time_s):
            hardware, budget, telemetry = context.hardware, context.budget, context.telemetry
            results: Iterator[MicroResult | Finding] = (
                run_micro(hardware, context.profile, budget, telemetry, time_s=time_s)
                if context.team is None
                else run_all_reduce(context.team, hardware, budget, telemetry, time_s)
            )
            send_micro(line, results)
            return
        case messages.MeasureCase():
            done = measure_case(command, context)
        case messages.TrainToQuality():
            done = train_to_quality(command, context)
        case messages.TryBatch():
            done = try_batch(command, context)
        case messages.Prove():
            done = prove(command, context)
        case _:
            raise TypeError(f"unknown command here: {type(command).__name__}")
    line.send(messages.scrubbed(done))


def send_micro(line: ParentChannel, results: Iterator[MicroResult | Finding]) -> None:
    """Report micro-benchmarks as they finish, one message each, until the parent asks to stop."""
    line.send(messages.Phase(name="micro"))
    for each in results:
        line.send(
            messages.MicroDone(finding=each) if isinstance(each, Finding) else messages.MicroDone(result=each)
        )
        if line.stop.is_set():
            break
    line.send(messages.MicroDone(last=True))


# --- several processes on this machine --------------------------------------------------------------------


def _represent_job(line: ParentChannel) -> None:
    # Run torchrun, and report to the parent which process was lost first, and why.
    folder = scratch_folder()
    folder.mkdir(0o700)
    os.dup2(line.read_fd, 0)
    os.dup2(line.write_fd, 1)
    threading.Thread(target=_end_with_parent, args=(line.read_fd,), daemon=True).start()
    line.send(messages.Phase(name="import"))  # importing torch takes seconds
    import torch
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ[STORE_VARIABLE] = f"{folder}/store"
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # a TCP store would listen on every address
    os.environ.setdefault("OMP_NUM_THREADS", f"{torch.get_num_threads()}")  # torchrun would set it to 1
    for name in INTERFACE_VARIABLES:  # gloo or NCCL might choose an interface that other machines reach
        os.environ.setdefault(name, "lo" if sys.platform == "linux" else "lo0")
    status, reason, trace = Status.FAILED, "every process of the job ended early", None
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
                *(sys.executable, "-P", "-m", MODULE, RANK, f"{os.getpid()}"),
            ]
        )
    except ChildFailedError as error:
        status, reason, trace = _cause(error)
    except Exception as error:  # noqa: BLE001 - torch has several errors for a failed start
        reason = scrub(f"the job could not start: {error}")
    line.send(messages.JobOver(status=status, reason=reason, traceback=trace))


def _cause(error: ChildFailedError) -> tuple[Status, str, str | None]:
    # Return which process was lost first, and why; torch writes a Python error to a file.
    rank, failure = error.get_first_failure()
    report = failure.error_file_data.get("message")
    if isinstance(report, dict):
        reason = scrub(f"rank {rank} of the job: {report['message']}")
        status = Status.OUT_OF_MEMORY if says_no_memory(reason) else Status.FAILED
        return status, reason, report["extraInfo"]["py_callstack"]
    return Status.FAILED, f"rank {rank} of the job {exit_words(failure.exitcode)}", None


def _end_with_parent(read_fd: int) -> None:
    # Wait until the parent has closed its pipe, then kill all ranks, because torch would wait for them.
    parent = select.poll()
    parent.register(read_fd, 0)  # a hang-up is always reported
    parent.poll()
    ranks = psutil.Process().children(recursive=True)
    for rank in ranks:
        with contextlib.suppress(psutil.Error):  # rank 0 ends on its own
            rank.kill()
    psutil.wait_procs(ranks, timeout=KILLED_S)
    os._exit(0)


def _run_as_rank(torchrun_pid: int) -> None:
    # Run as one process of the job, with the pipes that torchrun passes on, and report any error.
    # This function never returns, because threads left by a model could keep the process from ending.
    die_with_parent(torchrun_pid)
    pipes = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    from torch.distributed.elastic.multiprocessing.errors import record

    from gpubench.measure import team

    place = Place.here()
    try:
        if place.rank == 0:
            line = ParentChannel(pipes)
            setup = msgspec.json.decode(line.first_line(), type=messages.Setup)
            record(serve_parent)(line, setup, place)
        else:
            for pipe in pipes:  # only the first process uses them
                os.close(pipe)
            team.follow(place)
    except BaseException:  # noqa: BLE001 - torch has written the error to its file
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
