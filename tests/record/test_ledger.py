"""The ledger of a run: what has ended stays, whatever becomes of the process, the file or another writer."""

from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest

from gpubench.errors import MisuseError, StorageError
from gpubench.files import append_line
from gpubench.measure import messages
from gpubench.measure.plan import PlannedCase, Unit
from gpubench.measure.protocol import Progress, Record
from gpubench.models import SCHEMA_VERSION, Launch, MicroResult, Round, Run, Status
from gpubench.models.run import SeedRun, TimeToQuality
from gpubench.record import ledger, store
from gpubench.session import resume

DEATH = "the measuring process was killed by signal 9"


@pytest.fixture
def begun(make_run) -> Run:
    """A run of one case in three launches, before its first."""
    run = make_run()
    cases = tuple(m.case for m in run.measurements)
    return msgspec.structs.replace(run, planned=cases, launch_count=3, measurements=())


def launch(index: int, wall_s: float = 0.4, **changes) -> Launch:
    rounds = tuple(Round(steps=4, wall_s=wall_s + 0.001 * n) for n in range(3))
    return Launch(index=index, rounds=rounds, **changes)


def with_launches(run: Run, *launches: Launch, **changes) -> Run:
    (row,) = run.measurements or (bare_row(run),)
    row = msgspec.structs.replace(row, launches=launches, **changes)
    return msgspec.structs.replace(run, measurements=(row,))


def bare_row(run: Run):
    from gpubench.models import Measurement

    return Measurement(case=run.planned[0], status=Status.OK)


def note(root, before: Run, after: Run) -> Run:
    store.note_launch(root, before, after.measurements[0])
    return after


def indices(run: Run) -> list[int]:
    return [x.index for m in run.measurements for x in m.launches]


# --- lines ---------------------------------------------------------------------------------------------


def test_a_launch_that_only_the_ledger_knows_is_read_and_its_row_judged_anew(tmp_path, begun):
    one = with_launches(begun, launch(0))
    path = store.write_run(tmp_path, begun)
    note(tmp_path, begun, one)
    note(tmp_path, one, with_launches(one, launch(0), launch(1)))
    assert indices(msgspec.json.decode(path.read_bytes(), type=Run)) == []
    (row,) = store.read_run(path).measurements
    assert [x.index for x in row.launches] == [0, 1]
    assert row.samples_per_s == pytest.approx(640, rel=0.01)
    assert [r.run_id for r in store.read_runs(tmp_path).runs] == [begun.run_id]


def test_each_launch_is_one_line_and_what_is_known_already_is_not_written_again(tmp_path, begun):
    one = with_launches(begun, launch(0))
    two = with_launches(one, launch(0), launch(1))
    path = store.write_run(tmp_path, begun)
    note(tmp_path, begun, one)
    note(tmp_path, one, two)
    note(tmp_path, two, two)  # a launch that died added none
    lines = ledger.ledger_path(path).read_bytes().splitlines()
    head, *rows = (ledger._decoded(line, ledger.Line) for line in lines)
    assert head.run == begun
    assert [[x.index for x in line.row.launches] for line in rows] == [[0], [1]]


@pytest.mark.parametrize("keep", [0, 1, 40, -2, -1])
def test_a_line_that_was_cut_off_costs_itself_alone(tmp_path, begun, keep):
    path = store.write_run(tmp_path, begun)
    one = note(tmp_path, begun, with_launches(begun, launch(0)))
    before = ledger.ledger_path(path).read_bytes()
    two = note(tmp_path, one, with_launches(one, launch(0), launch(1)))
    whole = ledger.ledger_path(path).read_bytes()
    ledger.ledger_path(path).write_bytes(before + whole[len(before) :][:keep])
    assert indices(store.read_run(path)) == ([0, 1] if keep == -1 else [0])
    note(tmp_path, two, with_launches(two, launch(0), launch(1), launch(2)))
    assert indices(store.read_run(path)) == ([0, 1, 2] if keep == -1 else [0, 2])


def test_a_line_that_is_added_while_the_ledger_is_read_is_no_error(tmp_path, begun, monkeypatch):
    path = store.write_run(tmp_path, begun)
    one = note(tmp_path, begun, with_launches(begun, launch(0)))
    size = ledger.ledger_path(path).stat().st_size
    real = os.fstat

    def before_the_next_line(descriptor):
        facts = list(real(descriptor))
        patched.undo()
        note(tmp_path, one, with_launches(one, launch(0), launch(1)))
        return os.stat_result(facts)

    with monkeypatch.context() as patched:
        patched.setattr("gpubench.files.os", SimpleNamespace(**vars(os) | {"fstat": before_the_next_line}))
        told = ledger.told(ledger.read(path))
    assert ledger.ledger_path(path).stat().st_size > size
    assert indices(told) == [0]
    assert indices(store.read_run(path)) == [0, 1]


def test_the_ledger_stands_in_for_a_damaged_file_which_is_set_aside_when_the_run_goes_on(tmp_path, begun):
    path = store.write_run(tmp_path, begun)
    one = note(tmp_path, begun, with_launches(begun, launch(0)))
    path.write_bytes(b"\x00" * 4096)
    assert indices(store.read_run(path)) == [0]
    store.write_run(tmp_path, one)
    assert path.with_name(f"{path.name}.corrupt").read_bytes() == b"\x00" * 4096
    assert indices(store.read_run(path)) == [0]


def test_it_goes_once_the_run_is_whole_in_its_file(tmp_path, begun):
    store.write_run(tmp_path, begun)
    one = note(tmp_path, begun, with_launches(begun, launch(0)))
    path = store.write_run(tmp_path, one)
    assert ledger.ledger_path(path).exists()
    store.write_run(tmp_path, msgspec.structs.replace(one, finished_at="2026-11-20T01:00:00Z"))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_ledger_of_another_run_or_one_that_cannot_be_true_is_named_and_the_file_stays(tmp_path, begun):
    path = store.write_run(tmp_path, begun)
    append_line(ledger.ledger_path(path), msgspec.json.encode(ledger.Line(run=begun)))
    never = with_launches(begun, launch(0, wall_s=-1.0)).measurements[0]
    append_line(ledger.ledger_path(path), msgspec.json.encode(ledger.Line(row=never)))
    before = path.read_bytes()
    with pytest.raises(MisuseError, match=r"launches\.jsonl contradicts"):
        store.read_run(path)
    ledger.close(path)
    other = msgspec.structs.replace(begun, run_id="20261121t000000z-00000000")
    append_line(ledger.ledger_path(path), msgspec.json.encode(ledger.Line(run=other)))
    with pytest.raises(MisuseError, match="is of run 20261121"):
        store.read_run(path)
    assert store.read_runs(tmp_path).problems
    assert path.read_bytes() == before


@pytest.mark.parametrize("read", [store.read_runs, store.newest_runs, store.list_runs])
@pytest.mark.parametrize("has_file", [True, False])
def test_one_of_a_later_gpubench_is_refused_in_a_line_and_left_alone(
    tmp_path, begun, has_file, read, monkeypatch
):
    """Whatever else its lines hold: how a later schema lays out a run is not known here."""
    monkeypatch.setattr(store, "MANY_RUNS", 0)
    path = store.write_run(tmp_path, begun)
    note(tmp_path, begun, with_launches(begun, launch(0)))
    lines = ledger.ledger_path(path)
    later = b'{"run":{"schema_version":99,"laid":"out otherwise"}}\n{"row":{"case":"of its own"}}\n'
    for content in (lines.read_bytes().replace(b'"schema_version":2', b'"schema_version":99', 1), later):
        assert b'"schema_version":99' in content
        lines.write_bytes(content)
        if not has_file:
            path.unlink(missing_ok=True)
        before = {each: each.read_bytes() for each in (path, lines) if each.exists()}
        (problem,) = getattr(read(tmp_path), "problems", None) or read(tmp_path)[1]
        assert problem.startswith(f"{lines.name} has schema 99,")
        assert f"up to {SCHEMA_VERSION}:" in problem
        with pytest.raises(StorageError, match="upgrade gpubench"):
            store.write_run(tmp_path, begun)
        assert {each: each.read_bytes() for each in before} == before


def test_a_file_whose_ledger_could_have_no_name_has_none(tmp_path, begun):
    """A name of 251 bytes is one of a file; with the ledger's ending it is too long for any."""
    path = store.write_run(tmp_path, begun)
    longest = path.with_name(f"{'a' * 246}.json")
    path.rename(longest)
    with pytest.raises(OSError, match="too long"):
        ledger.ledger_path(longest).lstat()
    stored = store.read_runs(tmp_path)
    assert ([run.run_id for run in stored.runs], stored.problems) == ([begun.run_id], ())


def test_a_link_in_its_place_is_not_written_through(tmp_path, begun):
    path = store.write_run(tmp_path, begun)
    target = tmp_path / "of the user.txt"
    target.write_text("mine")
    ledger.ledger_path(path).symlink_to(target)
    with pytest.raises(StorageError, match="cannot write"):
        note(tmp_path, begun, with_launches(begun, launch(0)))
    assert target.read_text() == "mine"


# --- saving never shrinks ------------------------------------------------------------------------------


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


def test_what_cannot_be_read_now_is_not_replaced(tmp_path, begun, monkeypatch):
    path = store.write_run(tmp_path, with_launches(begun, launch(0)))
    before = path.read_bytes()
    path.chmod(0o600)
    ledger.ledger_path(path).mkdir()  # no regular file: what it would say is not known
    with pytest.raises(StorageError, match="cannot be replaced"):
        store.write_run(tmp_path, begun)
    assert path.read_bytes() == before


# --- deaths --------------------------------------------------------------------------------------------


def died(unit: Unit) -> messages.CaseDone:
    return Progress().done(unit, Status.FAILED, DEATH)


def test_a_death_keeps_the_sound_launches_of_its_case_and_is_measured_anew(begun):
    unit = Unit(launch=0, planned=PlannedCase(reference="cnn", case=begun.planned[0]))
    record = Record(plan=None, device=begun.device)
    record.take(unit, messages.CaseDone(status=Status.OK, launch=launch(0)))
    second = msgspec.structs.replace(unit, launch=1)
    record.take(second, died(second))
    assert record.ended == {}
    assert [x.index for x in record.launches[unit.planned.case]] == [0]
    run = with_launches(begun, *record.launches[unit.planned.case])
    assert resume.finished_units(run, 3) == {(unit.planned.case, 0)}


def test_a_death_in_the_first_launch_is_measured_anew_and_an_exception_is_not(begun):
    unit = Unit(launch=0, planned=PlannedCase(reference="cnn", case=begun.planned[0]))
    record = Record(plan=None, device=begun.device)
    record.take(unit, died(unit))
    assert record.ended == {unit.planned.case: (Status.FAILED, DEATH, None)}
    run = with_launches(begun, *record.launches[unit.planned.case], status=Status.FAILED, reason=DEATH)
    assert resume.finished_units(run, 3) == frozenset()
    assert resume.without_cut_off(run).measurements == ()
    raised = with_launches(begun, Launch(index=0), status=Status.FAILED, reason="ValueError")
    assert resume.finished_units(raised, 3) == {(unit.planned.case, n) for n in range(3)}


# --- the two files of a run ------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [b"", b"\n", b'{"run":{"schema_ver', b'{"run":{"schema_ver\n'])
def test_a_ledger_that_was_cut_off_in_its_first_line_takes_every_later_launch(tmp_path, begun, left):
    path = store.write_run(tmp_path, begun)
    ledger.ledger_path(path).write_bytes(left)
    one = note(tmp_path, begun, with_launches(begun, launch(0)))
    note(tmp_path, one, with_launches(one, launch(0), launch(1)))
    assert indices(store.read_run(path)) == [0, 1]
    path.unlink()
    assert indices(store.read_run(path)) == [0, 1]


def test_rows_without_a_line_of_how_the_run_began_count_for_its_file(tmp_path, begun):
    path = store.write_run(tmp_path, begun)
    note(tmp_path, begun, with_launches(begun, launch(0)))
    lines = ledger.ledger_path(path)
    lines.write_bytes(lines.read_bytes().replace(b'{"run"', b'{"ruin', 1))
    assert indices(store.read_run(path)) == [0]
    path.unlink()
    with pytest.raises(MisuseError, match="how its run"):
        store.read_run(path)
    (problem,) = store.read_runs(tmp_path).problems
    assert "move it away" in problem


class Killed(BaseException):
    """Ends a process where no handler of its own runs."""


def damaged(tmp_path, begun) -> tuple:
    """A run whose file is bad and whose ledger has its launch."""
    path = store.write_run(tmp_path, begun)
    one = note(tmp_path, begun, with_launches(begun, launch(0)))
    path.write_bytes(b"\x00" * 4096)
    os.utime(path, (0, 0))
    return path, one


@pytest.mark.parametrize("failing", ["copy", "write", "killed"])
def test_a_damaged_file_that_cannot_be_replaced_costs_nothing(tmp_path, begun, failing, monkeypatch):
    path, one = damaged(tmp_path, begun)

    def fail(*rest, **named):
        raise {"copy": OSError(28, "full"), "write": StorageError("full"), "killed": Killed()}[failing]

    with monkeypatch.context() as patched, pytest.raises((StorageError, Killed)):
        patched.setattr(store, "new_aside" if failing == "copy" else "write_file", fail)
        store.write_run(tmp_path, one)
    assert path.read_bytes() == b"\x00" * 4096
    aside = path.with_name(f"{path.name}.corrupt")
    assert aside.exists() == (failing == "killed")
    assert [indices(run) for run in store.read_runs(tmp_path).runs] == [[0]]
    store.write_run(tmp_path, one)
    assert indices(msgspec.json.decode(path.read_bytes(), type=Run)) == [0]
    assert aside.read_bytes() == b"\x00" * 4096


def test_a_ledger_whose_file_is_gone_is_a_run_that_goes_on(tmp_path, begun):
    path, _ = damaged(tmp_path, begun)
    path.unlink()
    assert [indices(run) for run in store.read_runs(tmp_path).runs] == [[0]]
    assert store.find_run(tmp_path, "latest") == path
    assert store.stored_paths(tmp_path, begun) == (path,)
    store.write_run(tmp_path, begun)  # knows nothing of it
    assert indices(msgspec.json.decode(path.read_bytes(), type=Run)) == [0]
