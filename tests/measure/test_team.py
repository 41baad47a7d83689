"""Several processes as one data-parallel job, for real: on the CPU, with gloo instead of NCCL."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import forked_child
import msgspec
import psutil
import pytest
import torch
import two_ranks
from builders import endless, run_all
from patience import Stopwatch, wait_until
from torch import nn

from gpubench.errors import MisuseError
from gpubench.measure import messages, team
from gpubench.measure.budget import QUICK
from gpubench.measure.capability import NotHereError
from gpubench.measure.launcher import Control, Launcher
from gpubench.measure.loop import Loop, OutOfTimeError
from gpubench.measure.messages import STORE_VARIABLE, Setup
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.measure.team import place_model
from gpubench.models import (
    FindingKind,
    Measurement,
    MicroResult,
    ParallelMode,
    Precision,
    Status,
    TaskKind,
)
from gpubench.profile.blocks import repeated_blocks

# Each process must see the others' samples: the targets of the first are 0, those of the second 1, so the
# one weight converges to 0.5 if gradients are averaged, and to 0 if they are not.
AVERAGED = """
import os, signal, sys, time
import torch
from torch import nn, distributed

BATCH = [0]

def rank():
    return distributed.get_rank() if distributed.is_initialized() else 0

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 3.0 + 4.0 * rank()))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        {act}
        return self.weight.expand(len(x), 1)

def build(batch_size):
    size = {size}
    return Net(), torch.ones(size, 1), torch.full((size, 1), float(rank())), nn.functional.mse_loss, SGD

def SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.4)
"""


@pytest.fixture
def make_plan(tmp_path, make_case, tiny_budget, cpu, forked_children):
    def make(act="pass", counts=(2,), size="batch_size", batches=(4,), **changes) -> Plan:
        file = tmp_path / "together.py"
        file.write_text(AVERAGED.replace("{act}", act).replace("{size}", size))
        cases = tuple(
            PlannedCase(
                reference=f"{file}",
                case=make_case(
                    workload="together",
                    precision=Precision.FP32,
                    batch_size=batch,
                    memory_format=None,
                    gpu_count=n,
                    **{k: v for k, v in changes.items() if k == "task"},
                ),
            )
            for n in counts
            for batch in batches
        )
        rest = {k: v for k, v in changes.items() if k != "task"}
        return Plan(budget=tiny_budget, seed=0, cases=cases, on_cpu=True, peers=(cpu,), **rest)

    return make


EXCHANGED = ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "128 MiB")
LOOPBACK = "0100007F"
"""127.0.0.1 as the kernel writes it."""


def listening_at() -> set[str]:
    """Return the addresses at which this process or a descendant listens, from the kernel's table of sockets."""
    below = [psutil.Process(), *psutil.Process().children(recursive=True)]
    inodes = {
        target.removeprefix("socket:[").removesuffix("]")
        for process in below
        for link in Path(f"/proc/{process.pid}/fd").iterdir()
        if (target := _target(link)).startswith("socket:")
    }
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
    ]
    listening = "0A"
    return {row[1].rpartition(":")[0] for row in rows if row[3] == listening and row[9] in inodes}


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed meanwhile
        return ""


class Job(NamedTuple):
    """The results of the cases in one job of two processes, by their names in ``one_job``."""

    found: dict[str, Measurement]
    micro: list[MicroResult]
    open_to: set[str]
    left: list[str]


_JOBS: list[Job] = []
"""The one job of this process, kept once it has run because it starts three processes that import torch."""


@pytest.fixture
def one_job(make_plan, cpu, tmp_path) -> Job:
    """Run one job at first use: together, alone, forward, separately, and sharded with and without blocks."""
    if _JOBS:
        return _JOBS[0]
    (each,) = make_plan().cases
    file = tmp_path / "blocks.py"
    file.write_text(BLOCKS)
    blocks = msgspec.structs.replace(each, reference=f"{file}")
    sharded = {"parallel_mode": ParallelMode.FSDP, "precision": Precision.AMP_BF16}
    asked = {
        "together": (each, {}),
        "alone": (each, {"gpu_count": 1}),
        "forward": (each, {"task": TaskKind.INFER}),
        "apart": (each, {"parallel_mode": ParallelMode.INDEPENDENT}),
        "whole": (each, sharded),
        "blocks": (blocks, sharded | {"workload": "blocks"}),
    }
    cases = {
        name: msgspec.structs.replace(of, case=msgspec.structs.replace(of.case, **changes))
        for name, (of, changes) in asked.items()
    }
    plan = msgspec.structs.replace(
        make_plan(micro="also"),
        cases=tuple(cases.values()),
        has_micro=True,  # as if those of one process were already measured
        peers=(msgspec.structs.replace(cpu, name="Slow CPU"),),
    )
    open_to: set[str] = set()

    def look(event: messages.Event) -> None:
        if isinstance(event, messages.RoundDone):
            open_to.update(listening_at())

    launcher = Launcher(plan, cpu, look)
    found = {m.case: m for m in launcher.run()}
    running = psutil.Process().children(recursive=True)
    left = [p.name() for p in running if p.status() != psutil.STATUS_ZOMBIE]
    named = {name: found[planned.case] for name, planned in cases.items()}
    _JOBS.append(Job(named, launcher.micro, open_to, left))
    return _JOBS[0]


def test_two_processes_train_one_model_on_different_samples(one_job):
    alone, together = one_job.found["alone"], one_job.found["together"]
    assert alone.status is together.status is Status.OK, together.reason
    # Alone the weight reaches its own target, 0. Together it stops halfway, with a loss of 0.5 ** 2 for each.
    assert alone.launches[0].rounds[-1].loss == pytest.approx(0.0, abs=1e-4)
    assert together.launches[0].rounds[-1].loss == pytest.approx(0.25, abs=1e-3)
    assert together.launches[0].loss_curve[0] == pytest.approx(9.0)  # the first process's parameters count
    assert together.samples_per_s * together.step_time_s == pytest.approx(2 * 4)
    assert together.launches[0].parameters_moved is True
    assert together.launches[0].host_issue_s == ()


def test_a_job_listens_only_on_the_loopback_address_and_leaves_no_process(one_job):
    assert one_job.open_to == {LOOPBACK}
    assert one_job.left == []


DEATHS = {
    4: ("raise ValueError('a bug of mine')", Status.FAILED, "rank 1 of the job: ValueError: a bug of mine"),
    5: (
        "os.kill(os.getpid(), signal.SIGKILL)",
        Status.FAILED,
        "rank 1 of the job was killed by signal 9 (SIGKILL)",
    ),
    6: ("raise torch.OutOfMemoryError('CUDA out of memory')", Status.OUT_OF_MEMORY, "rank 1 of the job"),
    7: (
        "sys.exit(0)",
        Status.FAILED,
        "rank 1 of the job: RuntimeError: the model ended its process: SystemExit: 0",
    ),
}


@pytest.mark.parametrize("fatal", [(5,), pytest.param((4, 6, 7), marks=pytest.mark.slow)])
def test_the_loss_of_one_process_fails_the_case_and_names_its_cause(make_plan, cpu, fatal):
    """The second process dies in each case except batch 8; every case after a loss has its own job."""
    fates = {batch: DEATHS[batch][0] for batch in fatal}
    act = f"rank() == 1 and self.calls == 3 and exec({fates}.get(BATCH[0], 'pass'))"
    plan = make_plan(act, size="BATCH.__setitem__(0, batch_size) or batch_size", batches=(*fatal, 8))
    measurements = {m.case.batch_size: m for m in run_all(plan, cpu)}
    for batch in fatal:
        _, status, words = DEATHS[batch]
        row = measurements[batch]
        assert row.status is status, row.reason  # waiting for the lost process would end in a timeout
        assert words in row.reason
    assert measurements[8].status is Status.OK, measurements[8].reason


ENDS = {
    "rank 0 is killed": ("rank() == 0 and os.kill(os.getpid(), signal.SIGKILL)", Status.FAILED,
                         "rank 0 of the job was killed by signal 9 (SIGKILL)"),
    "torchrun is killed": ("rank() == 1 and os.kill(os.getppid(), signal.SIGKILL)", Status.FAILED,
                           "the measuring process was killed by signal 9"),
    "rank 0 hangs": ("rank() == 0 and time.sleep(600)", Status.TIMEOUT, "no report during "),
    "rank 1 hangs": ("rank() == 1 and time.sleep(600)", Status.TIMEOUT, "no report during "),
}  # fmt: skip
ENDS_S = 5.0


def all_end(left: Callable[[], object]) -> None:
    """Wait until no process is left, and fail if that takes too long."""
    watch = Stopwatch()
    wait_until(lambda: not left() or watch.free_s() > ENDS_S)
    assert not left()


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDS)
def test_if_any_process_of_a_job_is_lost_all_end_and_the_next_case_has_its_own_job(
    make_plan, cpu, monkeypatch, tmp_path, what
):
    act, status, words = ENDS[what]
    monkeypatch.setenv("TMPDIR", f"{tmp_path}")
    monkeypatch.setenv("GPUBENCH_TEST_JOB", f"{tmp_path}")
    act = f"self.calls == 30 and BATCH[0] == 4 and ({act})"
    plan = make_plan(act, size="BATCH.__setitem__(0, batch_size) or batch_size", batches=(4, 8))
    remarks: list[str] = []

    def note(event: messages.Event) -> None:
        if isinstance(event, messages.Remark):
            remarks.append(event.text)

    launcher = Launcher(plan, cpu, note)
    launcher.phase_limits_s |= dict.fromkeys(("first steps", "warm-up", "timed"), 4.0)
    found = {}
    for measurement in launcher.run():
        found[measurement.case.batch_size] = measurement
        if measurement.case.batch_size == 4:
            all_end(lambda: in_the_job(f"{tmp_path}"))
    assert (found[4].status, words in found[4].reason) == (status, True), found[4].reason
    assert found[4].launches[0].warmup  # earlier readings stay
    assert found[8].status is Status.OK, found[8].reason
    assert remarks == []  # processes that end with the job were not left running by the model
    assert not list(tmp_path.glob("gpubench-*"))


def in_the_job(name: str) -> list[psutil.Process]:
    """Every other process that has the test's name in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("GPUBENCH_TEST_JOB") == name:
                found.append(process)
    return found


def test_the_time_limit_ends_a_job_between_blocks_and_the_next_case_is_not_stuck(make_plan, cpu):
    """Neither case would end on its own.

    The limit is too short for a case if a loaded machine builds the job slowly.
    """
    plan = endless(make_plan("time.sleep(0.03)", batches=(4, 5), task=TaskKind.INFER, time_limit_s=4.0))

    def on_event(event: messages.Event) -> None:
        if isinstance(event, messages.Phase) and event.name == "context":
            launcher.began_s = time.monotonic()  # the first process has imported torch

    launcher = Launcher(plan, cpu, on_event)
    measurements = list(launcher.run())
    assert sorted(m.case.batch_size for m in measurements) == [4, 5]
    for measurement in measurements:
        assert measurement.status is Status.OK or "time" in measurement.reason, measurement.reason
    first, second = (sum(r.wall_s for x in m.launches for r in (*x.warmup, *x.rounds)) for m in measurements)
    assert first < plan.time_limit_s / 2
    assert first + second < plan.time_limit_s


BLOCKS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    def forward(self, x):
        return x + self.layers(x)

def build(batch_size):
    net = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
    return net, torch.randn(batch_size, 8), torch.ones(batch_size, 1), nn.functional.mse_loss, SGD

def SGD(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


def test_a_sharded_model_is_compared_with_the_cpu_and_trains_and_one_without_blocks_is_not_measured(one_job):
    """At amp-bf16, where the first loss is compared; a sharded model needs every process for that."""
    refused, trained = one_job.found["whole"], one_job.found["blocks"]
    assert refused.status is Status.UNSUPPORTED
    assert "use --jobs ddp" in refused.reason
    if not two_ranks.SHARDS_ON_A_CPU:
        assert (trained.status, "use --jobs ddp" in trained.reason) == (Status.UNSUPPORTED, True)
        return
    assert trained.status is Status.OK, trained.reason
    (launch,) = trained.launches
    assert launch.reference_error < 0.05
    assert launch.parameters_moved is True
    assert launch.rounds[-1].loss < launch.loss_curve[0]


def test_independent_jobs_run_at_once_and_exchange_nothing(one_job):
    measurement = one_job.found["apart"]
    assert measurement.status is Status.OK, measurement.reason
    # Each process reaches its own target, as it does alone.
    assert measurement.launches[0].rounds[-1].loss == pytest.approx(0.0, abs=1e-4)
    assert measurement.samples_per_s * measurement.step_time_s == pytest.approx(2 * 4)
    unequal = [f.value for f in measurement.findings if f.kind is FindingKind.UNEQUAL_GPUS]
    assert unequal == ["1 × Some CPU and 1 × Slow CPU"]


def test_the_exchange_between_processes_is_measured_once_in_the_job(one_job):
    """On a busy machine the slowest sizes are left out."""
    sizes = [f"{size}, 2 processes" for size in EXCHANGED]
    assert len(one_job.micro) > 2
    assert [m.size for m in one_job.micro] == sizes[: len(one_job.micro)]
    for result in one_job.micro:
        assert (result.name, result.unit) == ("all-reduce", "B/s")
        # each of two processes sends and receives its bytes once
        assert result.value == pytest.approx(result.work * result.repeats / median(result.times_s), rel=0.2)
    assert one_job.micro[2].work == 2**20


def test_a_stop_ends_every_process_of_the_job(make_plan, cpu):
    control = Control()

    def stop(event: messages.Event) -> None:
        if isinstance(event, messages.RoundDone) and event.timed:
            control.stop()

    plan = endless(make_plan("time.sleep(0.01)", task=TaskKind.INFER))
    (measurement,) = run_all(plan, cpu, on_event=stop, control=control)
    assert measurement.launches[0].rounds
    all_end(lambda: psutil.Process().children(recursive=True))


def test_multi_gpu_inference_runs_the_same_forward_pass_on_each_gpu(one_job):
    measurement = one_job.found["forward"]
    assert measurement.status is Status.OK, measurement.reason
    assert measurement.samples_per_s * measurement.step_time_s == pytest.approx(2 * 4)


def test_a_call_reaches_current_processes_and_none_of_an_earlier_attempt(tmp_path, cpu, monkeypatch):
    """torchrun keeps its store when it restarts the processes, with the names of processes that are gone."""
    monkeypatch.setenv(STORE_VARIABLE, f"{tmp_path / 'store'}")
    team.open_store.cache_clear()
    store = team.open_store()
    for rank in (1, 2):
        store.set(f"here/{rank}", "long gone")
    heard: dict[int, team.Call] = {}
    others = [
        threading.Thread(target=lambda rank=rank: heard.update({rank: team.answer_call(store, rank)}))
        for rank in (1, 2)
    ]
    for each in others:
        each.start()
    call = team.Call(setup=Setup(device=cpu, budget=QUICK, seed=7))
    team.call_others(store, call, 3)
    for each in others:
        each.join(20)
    assert heard == {1: call, 2: call}
    old = threading.Thread(
        target=team.call_others, args=(store, team.Call(setup=None, versions="gpubench 0"), 2)
    )
    old.start()
    with pytest.raises(MisuseError, match="rank 0 has gpubench 0: install the same versions"):
        team.answer_call(store, 1)
    old.join(20)
    team.open_store.cache_clear()


def test_a_block_that_would_pass_the_deadline_is_not_announced(fake_clock):
    from gpubench.measure.loop import Clock

    announced: list[tuple[int, int]] = []
    loop = Loop(
        advance=lambda _: fake_clock.advance(1.0),
        edge_loss=lambda *_: 0.0,
        clock=Clock(synchronize=fake_clock.synchronize, now_ns=fake_clock.now_ns),
        deadline_s=fake_clock.now * 1e-9 + 6.5,
        announce=lambda first, count: announced.append((first, count)),
    )
    loop.round(2)
    loop.round(4)
    with pytest.raises(OutOfTimeError):
        loop.round(1)
    assert announced == [(0, 2), (2, 4)]


# --- one model in two processes -----------------------------------------------------------------------------


TOLERANCE = {"sgd": 1e-5, "adamw": 1e-3}
SHARDS = pytest.mark.skipif(not two_ranks.SHARDS_ON_A_CPU, reason="this torch shards only over CUDA devices")
MODES = [pytest.param(mode, marks=SHARDS if mode is ParallelMode.FSDP else ()) for mode in two_ranks.MODES]


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> list[dict[str, list[list[float]]]]:
    """The parameters of each of two processes after ten steps, by mode and optimizer."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(two_ranks.__file__)
    ranks = [forked_child.popen([sys.executable, script, f"{rank}", f"{port}", folder]) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("optimizer", two_ranks.OPTIMIZERS)
@pytest.mark.parametrize("mode", MODES)
def test_ten_steps_of_two_processes_equal_those_of_one_on_the_combined_batch(together, mode, optimizer):
    alone = two_ranks.trained(0, 1, ParallelMode.SINGLE, optimizer)
    untrained = [p.flatten().tolist() for p in two_ranks.net(seed=0).parameters()]
    assert max(map(_distance, alone, untrained)) > 10 * TOLERANCE[optimizer]
    for found in together:
        assert max(map(_distance, found[f"{mode} {optimizer}"], alone)) < TOLERANCE[optimizer]


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_train_in_fp8_like_one_up_to_rounding(together, mode):
    """Each process scales its half of the batch, so the last digits of the sums differ from those of one process."""
    pytest.importorskip("torchao", exc_type=ImportError)
    alone = two_ranks.trained(0, 1, ParallelMode.SINGLE, two_ranks.EIGHT_BITS)
    untrained = two_ranks.net(seed=0)
    moved = max(map(_distance, alone, (p.flatten().tolist() for p in untrained.parameters())))
    first, second = (found[f"{mode} {two_ranks.EIGHT_BITS}"] for found in together)
    assert first == second
    assert max(map(_distance, first, alone)) < 0.1 * moved


def _distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def test_the_blocks_of_a_model_are_its_repeated_parts_and_not_single_layers():
    from torch.nn import TransformerEncoder, TransformerEncoderLayer

    encoder = TransformerEncoder(TransformerEncoderLayer(8, 2, 8), num_layers=3, enable_nested_tensor=False)
    assert repeated_blocks(encoder) == tuple(encoder.layers)
    nested = nn.Sequential(nn.ModuleList([two_ranks.Block(), two_ranks.Block()]), nn.Linear(2, 2))
    assert repeated_blocks(nested) == tuple(nested[0])
    assert repeated_blocks(nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(4)))) == ()
    assert repeated_blocks(nn.LSTM(8, 8, num_layers=2)) == ()


def test_a_model_without_blocks_is_not_sharded_and_says_so(make_case):
    case = make_case(workload="plain", gpu_count=2, parallel_mode=ParallelMode.FSDP)
    with pytest.raises(NotHereError, match=r"plain .* --jobs ddp"):
        place_model(nn.Sequential(nn.Linear(2, 2)), case, torch.device("cpu"))
