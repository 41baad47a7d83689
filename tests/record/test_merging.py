"""Saving only adds: what either of two states of a run has finished is there afterwards."""

from __future__ import annotations

import os

import msgspec
import pytest

from gpubench.errors import StorageError
from gpubench.models import Launch, Measurement, MicroResult, Round, Run, Status
from gpubench.models.run import SeedRun, TimeToQuality
from gpubench.record import store


@pytest.fixture
def begun(make_run) -> Run:
    """A run of one case in three launches, before its first."""
    run = make_run()
    cases = tuple(m.case for m in run.measurements)
    return msgspec.structs.replace(run, planned=cases, launch_count=3, measurements=())


def launch(index: int, wall_s: float = 0.4, **changes) -> Launch:
    rounds = tuple(Round(steps=4, wall_s=wall_s + 0.001 * n) for n in range(3))
    return Launch(index=index, rounds=rounds, **changes)


def with_launches(run: Run, *launches: Launch, status: Status = Status.OK, reason: str | None = None) -> Run:
    row = Measurement(case=run.planned[0], status=status, reason=reason, launches=launches)
    return msgspec.structs.replace(run, measurements=(row,))


def indices(run: Run) -> list[int]:
    return [x.index for m in run.measurements for x in m.launches]


def test_a_writer_that_knows_less_takes_nothing_away(tmp_path, begun):
    """Two writers that no lock kept apart: what either finished is there afterwards."""
    whole = with_launches(begun, launch(0), launch(1), launch(2))
    gemm = MicroResult(name="gemm", precision="fp32", size="1", value=1.0, low=None, high=None, unit="s", n=1)
    store.write_run(tmp_path, msgspec.structs.replace(whole, micro=(gemm,)))
    path = store.write_run(tmp_path, with_launches(begun, launch(1, wall_s=0.5)))
    run = store.read_run(path)
    assert indices(run) == [0, 1, 2]
    assert run.measurements[0].launches[1].rounds[0].wall_s == 0.5  # of one index the writer's own
    assert run.micro == (gemm,)
    store.write_run(tmp_path, begun)
    assert indices(store.read_run(path)) == [0, 1, 2]


def test_a_row_that_gains_a_launch_is_judged_anew(tmp_path, begun):
    store.write_run(tmp_path, with_launches(begun, launch(0)))
    path = store.write_run(tmp_path, with_launches(begun, launch(1)))
    (row,) = store.read_run(path).measurements
    assert [x.index for x in row.launches] == [0, 1]
    assert row.samples_per_s == pytest.approx(640, rel=0.01)


def test_a_launch_that_was_stopped_gives_way_to_the_finished_one(tmp_path, begun):
    for states in ((True, False), (False, True)):
        for stopped in states:
            path = store.write_run(tmp_path, with_launches(begun, launch(0, stopped=stopped)))
        (kept,) = store.read_run(path).measurements[0].launches
        assert not kept.stopped


def test_a_writer_that_knows_less_takes_no_training_away(tmp_path, begun):
    seeds = tuple(SeedRun(seed=n, reached=True, steps=100, train_s=1.0, quality=0.9) for n in range(3))
    training = TimeToQuality(
        case=begun.planned[0], metric="accuracy", target=0.8, most_steps=1000, data_sha256="0" * 64
    )
    some, all_of_it = (msgspec.structs.replace(training, runs=seeds[:n]) for n in (1, 3))
    path = store.write_run(tmp_path, msgspec.structs.replace(begun, quality=(all_of_it,)))
    for known in ((), (some,)):
        store.write_run(tmp_path, msgspec.structs.replace(begun, quality=known))
        assert store.read_run(path).quality == (all_of_it,)


def test_a_failure_does_not_take_the_place_of_a_figure(tmp_path, begun):
    store.write_run(tmp_path, with_launches(begun, launch(0)))
    failed = with_launches(begun, launch(0), status=Status.FAILED, reason="x")
    path = store.write_run(tmp_path, failed)
    assert store.read_run(path).measurements[0].status is Status.OK


# --- a stored file that cannot be read -------------------------------------------------------------------


def later_schema(path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"schema_version":2', b'"schema_version":99', 1))


def too_large(path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 30)


@pytest.mark.parametrize("make", [later_schema, too_large])
def test_what_cannot_be_read_now_is_not_replaced(tmp_path, begun, make):
    one = with_launches(begun, launch(0))
    path = store.write_run(tmp_path, one)
    make(path)
    before = path.stat()
    with pytest.raises(StorageError, match="cannot be replaced") as caught:
        store.write_run(tmp_path, one)
    assert "\n" not in str(caught.value)
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert list(path.parent.iterdir()) == [path]


class Killed(BaseException):
    """Ends a process where no handler of its own runs."""


def damaged(tmp_path, run):
    """The file of a run, which went bad after its writer had stored it."""
    path = store.write_run(tmp_path, run)
    path.write_bytes(b"\x00" * 4096)
    os.utime(path, (0, 0))
    return path


def test_a_damaged_file_is_set_aside_when_its_run_goes_on(tmp_path, begun):
    one = with_launches(begun, launch(0))
    path = damaged(tmp_path, one)
    assert store.write_run(tmp_path, with_launches(begun, launch(0), launch(1))) == path
    assert path.with_name(f"{path.name}.corrupt").read_bytes() == b"\x00" * 4096
    assert indices(store.read_run(path)) == [0, 1]


@pytest.mark.parametrize("failing", ["copy", "write", "killed"])
def test_a_damaged_file_that_cannot_be_replaced_costs_nothing(tmp_path, begun, failing, monkeypatch):
    one = with_launches(begun, launch(0))
    path = damaged(tmp_path, one)

    def fail(*rest, **named):
        raise {"copy": OSError(28, "full"), "write": StorageError("full"), "killed": Killed()}[failing]

    with monkeypatch.context() as patched, pytest.raises((StorageError, Killed)):
        patched.setattr(store, "new_aside" if failing == "copy" else "write_file", fail)
        store.write_run(tmp_path, one)
    assert path.read_bytes() == b"\x00" * 4096
    aside = path.with_name(f"{path.name}.corrupt")
    assert aside.exists() == (failing == "killed")
    store.write_run(tmp_path, one)
    assert indices(store.read_run(path)) == [0]
    assert aside.read_bytes() == b"\x00" * 4096
