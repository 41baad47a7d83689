"""Importing runs of other machines never replaces a stored run, whichever process writes it and when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from command import here

from gpubench.errors import MisuseError
from gpubench.models import Status
from gpubench.record import sharing, store
from gpubench.record.store import add_runs


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def command(root: Path, *arguments: object) -> tuple[int, str, str]:
    done = here("results", "add", *arguments, "--results", root)
    return done.returncode, done.stdout, done.stderr


def lesser(run):
    """Return the run as it was before it was finished."""
    return msgspec.structs.replace(run, measurements=(), finished_at=None)


def test_runs_of_other_machines_are_imported_and_bad_files_named(tmp_path, make_run):
    other = tmp_path / "other"
    store.write_run(other, make_run())
    (other / "runs" / "broken.json").write_text("{")
    added = add_runs(tmp_path / "mine", [other])
    assert [path.parent.name for path in added.written] == ["nvidia-h200-sxm-141gb"]
    assert "broken.json" in added.refused[0]
    assert (other / "runs" / "broken.json").exists()
    with pytest.raises(MisuseError, match="does not exist"):
        add_runs(tmp_path / "mine", [tmp_path / "nowhere"])


def test_a_run_with_impossible_scaling_is_not_imported(tmp_path, make_run):
    """The same step time on four GPUs is four times the throughput; a fifth more is impossible."""
    (one,) = make_run().measurements
    four = msgspec.structs.replace(one, case=msgspec.structs.replace(one.case, gpu_count=4))
    rounds = tuple(msgspec.structs.replace(r, wall_s=r.wall_s / 1.2) for r in one.launches[0].rounds)
    faster = msgspec.structs.replace(
        four, launches=(msgspec.structs.replace(four.launches[0], rounds=rounds),)
    )
    rows = (four, faster, msgspec.structs.replace(faster, status=Status.INVALID))
    for number, (row, count) in enumerate(zip(rows, (1, 0, 1), strict=True)):
        run = make_run(run_id=f"20261120t000000z-{number}", measurements=(one, row))
        path = store.write_run(tmp_path / "theirs", run)
        store.read_run(path)  # in the user's own folder the run stays, and `check` names it
        added = add_runs(tmp_path / "mine", [path])
        assert len(added.written) == count
        assert count or "(cnn fp32 eager batch 64 in 4 processes: 4.8, limit 4.2)" in added.refused[0]


def test_a_row_that_claims_to_be_valid_against_its_own_record_is_not_imported(tmp_path, make_run):
    """A stranger's file states its own verdicts, peak and arithmetic; no field of it may vouch for a speed."""
    (row,) = make_run().measurements
    (launch,) = row.launches
    fast = tuple(msgspec.structs.replace(r, wall_s=r.wall_s / 1e6) for r in launch.rounds)
    spoiled = {
        "no parameter changed": {"parameters_moved": False},
        "more FLOP/s than the device can do (cnn fp32 eager batch 64: ": {"rounds": fast},
    }
    for number, (words, change) in enumerate(spoiled.items()):
        wrong = msgspec.structs.replace(row, launches=(msgspec.structs.replace(launch, **change),))
        run = make_run(run_id=f"20261120t000000z-{number}", measurements=(wrong,))
        added = add_runs(tmp_path / "mine", [store.write_run(tmp_path / "theirs", run)])
        assert (added.written, words in added.refused[0]) == ([], True), added.refused


def test_different_content_under_a_stored_id_is_refused_with_exit_5_and_the_stored_run_stays(
    tmp_path, make_run
):
    mine = tmp_path / "mine"
    stored = store.write_run(mine, make_run(finished_at="2026-11-20T00:10:00Z"))
    before = snapshot(mine)
    new = store.write_run(tmp_path / "theirs", make_run(run_id="20261121t000000z-new"))
    theirs = store.write_run(tmp_path / "theirs", lesser(make_run()))
    code, out, err = command(mine, theirs, "--json")
    assert code == 5, err
    answer = json.loads(out)
    assert (answer["added"], answer["already_stored"]) == ([], [])
    (line,) = answer["refused"]
    assert "different content" in line
    assert str(stored) in line
    assert f"refused: {line}" in err
    assert "Traceback" not in err
    assert snapshot(mine) == before
    code, out, err = command(mine, tmp_path / "theirs")  # the others of a folder are imported anyway
    assert code == 5, err
    assert Path(out.strip()).name == new.name
    assert snapshot(mine).items() >= before.items()


def test_the_same_content_in_another_layout_changes_nothing(tmp_path, make_run):
    mine = tmp_path / "mine"
    stored = store.write_run(mine, make_run())
    before = snapshot(mine)
    indented = tmp_path / "indented.json"
    indented.write_bytes(msgspec.json.format(msgspec.json.encode(make_run()), indent=4))
    code, out, err = command(mine, indented, stored, mine, "--json")
    assert code == 0, err
    assert json.loads(out) == {"added": [], "already_stored": [str(stored)] * 3, "refused": []}
    assert "0 added, 3 already" in err
    assert snapshot(mine) == before


def test_run_ids_are_case_insensitive(tmp_path, make_run):
    mine = tmp_path / "mine"
    stored = store.write_run(mine, make_run())
    before = snapshot(mine)
    upper = make_run(run_id="20261120T000000Z-ABCD1234")
    theirs = store.write_run(tmp_path / "theirs", upper)
    assert add_runs(mine, [theirs]).present == [stored]
    theirs = store.write_run(tmp_path / "theirs, lesser", lesser(upper))
    assert "different content" in add_runs(mine, [theirs]).conflicts[0]
    assert snapshot(mine) == before


def test_a_run_in_another_devices_folder_is_found_there(tmp_path, make_run):
    mine = tmp_path / "mine"
    elsewhere = mine / "runs" / "unknown" / f"{make_run().run_id}.json"
    elsewhere.parent.mkdir(parents=True)
    store.write_run(mine, make_run()).rename(elsewhere)
    before = snapshot(mine)
    theirs = store.write_run(tmp_path / "theirs", make_run())
    assert add_runs(mine, [theirs]).present == [elsewhere]
    device = msgspec.structs.replace(make_run().device, gpu_key="nvidia-h100-sxm-80gb")
    theirs = store.write_run(tmp_path / "other", make_run(device=device))
    assert "different content" in add_runs(mine, [theirs]).conflicts[0]
    assert snapshot(mine) == before
    assert store.write_run(mine, make_run(notes=("later",))) == elsewhere  # a later write goes there too


def test_a_stored_run_that_is_unreadable_now_is_not_replaced(tmp_path, make_run, monkeypatch):
    mine = tmp_path / "mine"
    stored = store.write_run(mine, make_run())
    before = snapshot(mine)
    theirs = store.write_run(tmp_path / "theirs", make_run())
    opened = os.open

    def fails(name, *arguments, **options):
        if Path(name) == stored:
            raise OSError(5, "Input/output error", str(name))
        return opened(name, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fails)
        added = add_runs(mine, [theirs])
    assert "Input/output error" in added.conflicts[0]
    assert (added.written, added.present) == ([], [])
    assert snapshot(mine) == before
    stored.write_text("{")
    assert "cannot be compared" in add_runs(mine, [theirs]).conflicts[0]
    assert stored.read_text() == "{"


def test_a_run_that_is_being_written_is_not_imported(tmp_path, make_run):
    mine = tmp_path / "mine"
    theirs = store.write_run(tmp_path / "theirs", make_run())
    with store.writing(mine, make_run()):
        code, _, err = command(mine, theirs)
    assert code == 5, err
    assert "being written by another process" in err
    assert not list(mine.rglob("*.json"))
    assert command(mine, theirs)[0] == 0


def test_if_many_collide_exactly_one_is_stored_and_the_others_get_a_message(tmp_path, make_run):
    """Eight processes import eight contents of one id at once, for ten ids."""
    mine, ids = tmp_path / "mine", [f"20261120t000000z-{n}" for n in range(10)]
    for writer in range(8):
        for run_id in ids:
            store.write_run(tmp_path / str(writer), make_run(run_id=run_id, notes=(str(writer),)))
    program = (
        "import sys\nfrom pathlib import Path\nfrom gpubench.record.store import add_runs\n"
        "root = Path(sys.argv[1])\nsys.stdin.readline()\n"
        "added = add_runs(root / 'mine', [root / sys.argv[2]])\n"
        "assert not added.refused, added.refused\nprint(len(added.written), len(added.conflicts))\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path, str(writer)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for writer in range(8)
    ]  # fmt: skip
    for each in writers:
        each.stdin.write("go\n")
        each.stdin.flush()
    answers = [each.communicate(timeout=120) for each in writers]
    assert [err for _, err in answers if err] == []
    counts = [tuple(map(int, out.split())) for out, _ in answers]
    assert sum(written for written, _ in counts) == len(ids)
    assert sum(conflicts for _, conflicts in counts) == 7 * len(ids)
    stored = store.read_runs(mine)
    assert sorted(run.run_id for run in stored.runs) == ids
    assert stored.problems == ()
    assert not list(mine.rglob(".*"))


@pytest.mark.parametrize(
    ("folder", "whose"), [("shared/ann", "shared by ann"), ("usb stick", "20261120t000000z-abcd1234.json")]
)
def test_an_added_run_is_said_to_be_whose_and_from_where_and_not_measured_here(
    tmp_path, make_run, folder, whose
):
    stored = store.write_run(tmp_path / "theirs", make_run())
    source = tmp_path / folder / stored.name
    source.parent.mkdir(parents=True)
    stored.rename(source)
    mine = tmp_path / "mine"
    assert command(mine, source)[0] == 0
    assert command(mine, source)[2].startswith("0 added, 1 already")
    [run] = store.read_runs(mine).runs
    assert (run.added_from, run.origin.split(", ")[0]) == (whose, whose)
    assert sharing.shareable(run)[0].added_from is None
    again = tmp_path / "again"
    assert len(add_runs(again, [mine]).written) == 1
    assert store.read_runs(again).runs[0].added_from == whose
