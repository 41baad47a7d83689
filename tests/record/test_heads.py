"""Stores of thousands of runs: heads are listed, the newest of each case are read, and no index is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import platformdirs
import pytest
from typer.testing import CliRunner

from gpubench.cli.app import app
from gpubench.files import BadContentError
from gpubench.models import DeviceProfile, Finding, FindingKind, Status
from gpubench.record import heads, store

NOT_UTF8 = (
    b'{"schema_version":2,"run_id":"x","started_at":"x","budget":"x","device":{"backend":"x"},"environment":{},'
    b'"measurements":[{"case":{"workload":"cnn\xeb"},"status":"ok"}]}'
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and a store that counts as large from the fourth run on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "MANY_RUNS", 3)
    return tmp_path / "cache"


@pytest.fixture
def stored(tmp_path, make_run):
    """Twenty runs of one case on one card, one of a row with a finding, and one on another card."""
    root = tmp_path / "results"
    for n in range(20):
        store.write_run(
            root, make_run(run_id=f"20261120t0000{n:02d}z-00000000", started_at=f"2026-11-20T00:00:{n:02d}Z")
        )
    doubted = make_run(run_id="20261101t000000z-00000001", started_at="2026-11-01T00:00:00Z")
    row = msgspec.structs.replace(
        doubted.measurements[0], findings=(Finding(kind=FindingKind.THROTTLED, value="x"),)
    )
    store.write_run(root, msgspec.structs.replace(doubted, measurements=(row,)))
    other = DeviceProfile(backend="cuda", name="NVIDIA L4", gpu_key="nvidia-l4-24gb")
    store.write_run(
        root, make_run(run_id="20261102t000000z-00000002", started_at="2026-11-02T00:00:00Z", device=other)
    )
    return root


def test_a_file_name_that_is_no_utf_8_costs_the_index_alone(stored):
    some = next((stored / "runs").rglob("*.json"))
    os.link(some, os.fsencode(some.parent) + b"/20261119t999999z-\xff.json")
    assert len(store.list_runs(stored)[0]) >= 22


def test_figures_rest_on_the_newest_of_each_case_and_that_is_said(stored):
    read = store.newest_runs(stored)
    assert [run.run_id[13:15] for run in read.runs if run.started_at > "2026-11-03"] == [
        f"{n}" for n in range(15, 20)
    ]
    assert {run.run_id for run in read.runs} >= {"20261101t000000z-00000001", "20261102t000000z-00000002"}
    assert "22 runs are stored" in read.passed_over
    assert len(store.read_runs(stored).runs) == 22


@pytest.mark.parametrize("verb", [("predict", "show", "--gpu", "nvidia-l4-24gb"), ("memory",)])
def test_answers_without_notes_say_on_stderr_that_older_runs_are_passed_over(stored, verb):
    shown = CliRunner().invoke(app, [*verb, "--workload", "vgg16", "--json", "--results", str(stored)])
    assert shown.exit_code == 0
    assert "22 runs are stored" in shown.stderr
    assert "runs are stored" not in shown.stdout


def test_few_runs_are_all_read_and_nothing_is_kept_of_them(tmp_path, make_run, cache):
    store.write_run(tmp_path, make_run())
    assert store.newest_runs(tmp_path).passed_over is None
    assert not cache.exists()


def test_a_listing_is_the_same_from_heads_from_their_index_and_from_whole_runs(stored, monkeypatch, cache):
    first = store.list_runs(stored)
    (index,) = cache.rglob("*.json")
    assert index.is_relative_to(platformdirs.user_cache_dir("gpubench", appauthor=False))
    assert store.list_runs(stored) == first
    monkeypatch.setattr(store, "MANY_RUNS", 100)
    assert store.list_runs(stored) == first
    assert len(first[0]) == 22
    shown = CliRunner().invoke(app, ["results", "list", "--json", "--results", str(stored)])
    assert {row["measured"] for row in json.loads(shown.stdout)["runs"]} == {1}


def test_an_interrupted_run_is_listed_as_such_with_how_much_of_it_is_there(tmp_path, make_run):
    run = make_run()
    case = run.measurements[0].case
    planned = (case, msgspec.structs.replace(case, batch_size=128))
    cut = msgspec.structs.replace(run, planned=planned, finished_at="2026-11-20T00:10:00Z", interrupted=True)
    store.write_run(tmp_path, cut)
    where = ("results", "list", "--results", str(tmp_path))
    assert "1 of 2, interrupted" in CliRunner().invoke(app, where).stdout
    (row,) = json.loads(CliRunner().invoke(app, (*where, "--json")).stdout)["runs"]
    assert (row["finished"], row["interrupted"]) == (True, True)


def test_a_file_that_changed_is_read_again_though_its_size_and_its_date_are_the_same(stored):
    store.list_runs(stored)
    path = store.find_run(stored, "20261102")
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"status":"ok"', b'"status":"OK"'))
    path.write_bytes(path.read_bytes().replace(b"NVIDIA L4", b"NVIDIA T9").replace(b'"OK"', b'"ok"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert "NVIDIA T9" in {head.device for head in store.list_runs(stored)[0]}
    path.unlink()
    assert len(store.list_runs(stored)[0]) == 21


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[" * 5000, b'{"version": 0, "entries": {}}', b"null"]
)
def test_an_index_that_is_damaged_or_of_another_version_is_made_anew(stored, cache, content):
    first = store.list_runs(stored)
    (index,) = cache.rglob("*.json")
    index.write_bytes(content)
    assert store.list_runs(stored) == first
    assert index.read_bytes() != content


def test_an_index_that_cannot_be_written_costs_nothing_but_time(stored, cache):
    cache.mkdir()
    (cache / "gpubench").write_text("in the way")
    assert len(store.list_runs(stored)[0]) == 22


def test_a_broken_file_among_many_is_named_and_set_aside_and_a_later_schema_is_not(stored):
    broken, later = (store.find_run(stored, name) for name in ("20261102", "20261101"))
    broken.write_bytes(b"{")
    os.utime(broken, (0, 0))
    later.write_bytes(later.read_bytes().replace(b'"schema_version":2', b'"schema_version":9'))
    found, problems = store.list_runs(stored)
    assert len(found) == 20
    assert sorted("set aside" in problem for problem in problems) == [False, True]
    assert later.exists()
    assert not broken.exists()


def test_a_case_that_is_no_utf8_is_bad_content():
    """Text that was passed over at first is decoded later."""
    with pytest.raises(BadContentError, match="gpubench run"):
        heads.head_of(NOT_UTF8, Path("x.json"))


def test_rows_that_ended_otherwise_do_not_shadow_a_figure(make_run, tmp_path):
    run = make_run()
    failed = msgspec.structs.replace(run.measurements[0], status=Status.FAILED, launches=())
    rows = {"2026-11-20": run.measurements[0]} | {f"2026-11-2{n}": failed for n in range(1, 8)}
    found = {
        tmp_path / day: heads.head_of_run(
            msgspec.structs.replace(run, started_at=f"{day}T00:00:00Z", measurements=(row,)), tmp_path
        )
        for day, row in rows.items()
    }
    chosen = heads.newest_of_each(found)
    assert tmp_path / "2026-11-20" in chosen
    assert len(chosen) == 1 + heads.NEWEST


@pytest.fixture
def behind(stored):
    """A run that goes on among many: its file has no launch, its ledger one."""
    path = store.find_run(stored, "20261120t000019z")
    run = msgspec.structs.replace(store.read_run(path), run_id="20261121t000000z-00000003")
    planned = tuple(m.case for m in run.measurements)
    begun = msgspec.structs.replace(run, started_at="2026-11-21T00:00:00Z", planned=planned, measurements=())
    path = store.write_run(stored, begun)
    assert store.list_runs(stored)[0][-1].measured == 0  # the index knows it so
    store.note_launch(stored, begun, run.measurements[0])
    return path


@pytest.mark.parametrize("file", ["whole", "damaged", "missing"])
def test_among_many_runs_too_the_ledger_counts_whatever_became_of_the_file(stored, behind, file, monkeypatch):
    if file == "damaged":
        behind.write_bytes(b"{")
        os.utime(behind, (0, 0))
    elif file == "missing":
        behind.unlink()
    for _ in ("read", "from the index"):
        found, problems = store.list_runs(stored)
        assert (found[-1].run_id, found[-1].measured, problems) == ("20261121t000000z-00000003", 1, ())
    newest = store.newest_runs(stored)
    assert (newest.runs[-1].run_id, newest.problems) == ("20261121t000000z-00000003", ())
    monkeypatch.setattr(store, "MANY_RUNS", 100)
    assert store.list_runs(stored) == (found, ())
    assert not list(stored.rglob("*.corrupt"))
