"""Run files: written whole or not at all, and read as if they were hostile."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpubench.cli.app import app
from gpubench.errors import MisuseError, StorageError
from gpubench.folders import data_path, results_root
from gpubench.models import DeviceProfile, Launch, Round, Status
from gpubench.offers.snapshot import offers_folder
from gpubench.predict.estimate import predict
from gpubench.predict.memory_answer import memory
from gpubench.recommend.feed import consumed_by
from gpubench.record import store

ROOT = Path(__file__).parents[2]


def test_a_run_is_read_back_as_it_was_written(tmp_path, make_run):
    run = make_run()
    path = store.write_run(tmp_path, run)
    assert path == tmp_path / "runs" / "nvidia-h200-sxm-141gb" / f"{run.run_id}.json"
    assert store.read_run(path) == run
    assert store.read_runs(tmp_path).runs == (run,)


def test_writing_again_replaces_the_file_and_leaves_no_other_file(tmp_path, make_run):
    store.write_run(tmp_path, make_run())
    path = store.write_run(tmp_path, make_run(notes=("later",)))
    assert store.read_run(path).notes == ("later",)
    assert list(path.parent.iterdir()) == [path]


def test_an_invalid_row_with_nan_is_stored_and_read_back_as_unknown(tmp_path, make_run):
    run = make_run()
    launch = Launch(index=0, rounds=(Round(steps=1, wall_s=1.0, loss=float("nan")),))
    row = msgspec.structs.replace(
        run.measurements[0],
        status=Status.INVALID,
        launches=(launch,),
        loss_trace=(1.0, float("nan"), float("inf")),
    )
    path = store.write_run(tmp_path, msgspec.structs.replace(run, measurements=(row,)))
    back = store.read_run(path).measurements[0]
    assert back.loss_trace == (1.0, None, None)
    assert back.launches[0].rounds[0].loss is None


def put(path, data):
    """Write a file that looks as if nobody had written to it for a while."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    then_s = time.time() - 2 * store.SETTLED_S
    os.utime(path, (then_s, then_s))


def test_a_file_cut_at_any_byte_is_set_aside_and_the_others_are_read(tmp_path, make_run):
    whole = store.write_run(tmp_path, make_run(run_id="20261120t000000z-whole"))
    data = whole.read_bytes().rstrip()
    for length in range(0, len(data), 7):
        victim = whole.with_name(f"20261120t000001z-cut{length}.json")
        put(victim, data[:length])
        stored = store.read_runs(tmp_path)
        assert len(stored.runs) == 1
        assert "set aside as" in stored.problems[0]
        assert not victim.exists()
        aside = victim.with_name(victim.name + ".corrupt")
        assert aside.read_bytes() == data[:length]


def test_a_second_broken_file_of_one_name_replaces_no_earlier_one(tmp_path):
    victim = tmp_path / "runs" / "cpu" / "20261120t000001z-cut.json"
    for data in (b"first", b"second", b"third"):
        put(victim, data)
        assert store.read_runs(tmp_path).runs == ()
    kept = {path.name: path.read_bytes() for path in victim.parent.iterdir()}
    assert kept == {
        f"{victim.name}.corrupt": b"first",
        f"{victim.name}.2.corrupt": b"second",
        f"{victim.name}.3.corrupt": b"third",
    }


def test_a_file_that_may_still_be_copied_is_left_in_place(tmp_path):
    """The copy would continue in the renamed file, and a healthy run would count as corrupt."""
    victim = tmp_path / "runs" / "cpu" / "20261120t000001z-half.json"
    victim.parent.mkdir(parents=True)
    victim.write_text('{"schema_version": 1, "run')
    (problem,) = store.read_runs(tmp_path).problems
    assert "left in place" in problem
    assert list(victim.parent.iterdir()) == [victim]


def test_a_broken_file_whose_run_is_being_written_is_left_in_place(tmp_path, make_run):
    path = store.write_run(tmp_path, make_run())
    put(path, b"{")
    with store.writing(tmp_path, make_run()):
        (problem,) = store.read_runs(tmp_path).problems
    assert "being written by another process" in problem
    assert path.read_bytes() == b"{"
    assert "set aside as" in store.read_runs(tmp_path).problems[0]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_healthy_run_that_cannot_be_read_now_stays_and_is_named(tmp_path, make_run, monkeypatch, number):
    path = store.write_run(tmp_path, make_run())
    put(path, path.read_bytes())
    opened = os.open

    def fails(name, *arguments, **options):
        if Path(name) == path:
            raise OSError(number, os.strerror(number), str(name))
        return opened(name, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fails)
        stored = store.read_runs(tmp_path)
    assert stored.runs == ()
    assert os.strerror(number) in stored.problems[0]
    assert list(path.parent.iterdir()) == [path]
    assert store.read_runs(tmp_path).runs == (make_run(),)


OUT_OF_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from gpubench.record import store
root, held, listed = Path(sys.argv[1]), [], store.run_files

def exhaust():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass

def list_and_exhaust(*arguments):
    found = list(listed(*arguments))
    exhaust()
    return found

if sys.argv[2] == "reading":
    store.run_files = list_and_exhaust
else:
    exhaust()
stored = store.read_runs(root)
for descriptor in held:
    os.close(descriptor)
for line in (len(stored.runs), *stored.problems):
    print(line)
"""


@pytest.mark.parametrize(("step", "words"), [("listing", "cannot list"), ("reading", "cannot read")])
def test_a_process_out_of_descriptors_renames_nothing_and_names_what_it_could_not_read(
    tmp_path, make_run, step, words
):
    path = store.write_run(tmp_path, make_run())
    put(path, path.read_bytes())
    command = [sys.executable, "-c", OUT_OF_DESCRIPTORS, tmp_path, step]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    number, problem = done.stdout.splitlines()
    assert number == "0"
    assert words in problem
    assert "Too many open" in problem
    assert list(path.parent.iterdir()) == [path]
    assert store.read_runs(tmp_path).runs == (make_run(),)


def test_a_run_or_folder_without_permission_is_kept_and_named(tmp_path, make_run):
    path = store.write_run(tmp_path, make_run())
    other = store.write_run(
        tmp_path, make_run(run_id="20261121t000000z-b", device=DeviceProfile(backend="cpu"))
    )
    put(path, path.read_bytes())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    other.parent.chmod(0)
    try:
        problems = store.read_runs(tmp_path).problems
        with pytest.raises(MisuseError, match="cannot list"):
            store.find_run(tmp_path, "latest")
    finally:
        path.chmod(0o644)
        other.parent.chmod(0o755)
    assert len(problems) == 2
    tmp_path.chmod(0)
    try:
        problems += store.read_runs(tmp_path).problems
    finally:
        tmp_path.chmod(0o755)
    assert len(problems) == 3
    assert all("Permission denied" in problem for problem in problems)
    assert len(store.read_runs(tmp_path).runs) == 2


def test_files_of_another_project_are_neither_read_nor_renamed(tmp_path, make_run):
    notes = tmp_path / "results" / "metrics.json"
    notes.parent.mkdir()
    notes.write_text('{"accuracy": 0.9}')
    assert store.read_runs(notes.parent) == store.StoredRuns(runs=())
    store.write_run(notes.parent, make_run())
    beside = notes.parent / "runs" / "metrics.json"
    beside.write_text("{")
    stored = store.read_runs(notes.parent)
    assert stored.runs == (make_run(),)
    assert "metrics.json" in stored.problems[0]
    assert notes.read_text() == '{"accuracy": 0.9}'
    assert beside.read_text() == "{"


def test_only_files_in_the_layout_of_runs_are_read_and_only_below_runs_is_a_file_set_aside(
    tmp_path, make_run
):
    """``--results /`` neither walks the disk nor renames a damaged file of another project."""
    own = store.write_run(tmp_path, make_run())
    name = own.name.replace(own.stem[-8:], "00000000")
    deep = own.parent / "deeper"
    deep.mkdir()
    for path in (own.with_name(name), deep / name):
        put(path, b"{")
    stored = store.read_runs(tmp_path)
    assert stored.runs == (make_run(),)
    assert own.with_name(f"{name}.corrupt").exists()
    assert (deep / name).exists()
    other = tmp_path / "other"
    (other / "project").mkdir(parents=True)
    for path in (other / name, other / "project" / name):
        put(path, b"{")
    (problem, beside) = store.read_runs(other).problems
    assert not list(other.rglob("*.corrupt"))
    assert name in problem
    assert name in beside


def launch_of(document):
    return document["measurements"][0]["launches"][0]


def gemm(**changes):
    """Return a GEMM at 2 TFLOP/s: 4e12 FLOP in about 2 s, three times."""
    fields = {
        "name": "gemm",
        "precision": "fp32",
        "size": "4096",
        "value": 2e12,
        "low": 1.9e12,
        "high": 2.1e12,
    }
    fields |= {"unit": "FLOP/s", "n": 3, "work": 4e12, "times_s": [2.0, 2.1, 1.9]}
    return fields | changes


def test_a_record_with_consistent_figures_is_read(tmp_path, make_run):
    document = json.loads(msgspec.json.encode(make_run()))
    launch_of(document).update(
        timed_steps=12,
        energy_j=9.0,
        energy_region_s=1.2,
        energy_source="counter",
        energy_edges_j=[100.0, 109.0],
    )
    part = gemm(times_s=[1.0, 2.0, 2.1, 1.9], left_out=1)
    document["micro"] = [gemm(), part, gemm(times_s=[1.0], n=5000)]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    assert len(store.read_run(path).micro) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(seed=float("nan")), "not a gpubench run"),
        (lambda d: d.update(seed=10**5000), "not a gpubench run"),
        (lambda d: d["measurements"][0]["case"].update(batch_size=-1), "batch_size"),
        (lambda d: d["measurements"][0]["case"].update(batch_size=10**18), "batch_size"),
        (lambda d: d["measurements"][0]["launches"][0]["rounds"][0].update(wall_s=-1.0), "wall_s"),
        (lambda d: d["measurements"][0]["launches"][0]["rounds"][0].update(steps=0), "steps"),
        (lambda d: d["measurements"][0]["launches"][0].update(rounds=[]), "without a single timed round"),
        (lambda d: d["measurements"][0]["launches"][0].update(energy_j=0.0), "energy_j"),
        (lambda d: launch_of(d).update(timed_steps=13), "13 timed steps, but its rounds contain 12"),
        (lambda d: launch_of(d).update(skipped_steps=13), "13 skipped steps of 12"),
        (lambda d: launch_of(d).update(energy_j=9.0, energy_region_s=1.0), "that contains rounds of 1.2 s"),
        (
            lambda d: launch_of(d).update(
                energy_j=9.0, energy_region_s=2.0, energy_source="counter", energy_edges_j=[100.0, 110.0]
            ),
            "energy of 9.0 J between counter readings of 100.0 and 110.0 J",
        ),
        (lambda d: d.update(micro=[gemm(low=3e12)]), "does not contain its value 2"),
        (lambda d: d.update(micro=[gemm(high=1e12)]), "does not contain its value 2"),
        (lambda d: d.update(micro=[gemm(value=0.0)]), "value"),
        (
            lambda d: d.update(micro=[gemm(times_s=[1.0, 1.1, 0.9])]),
            "its repetitions give 4e.12, but it states 2e.12",
        ),
        (lambda d: d.update(run_id="../../x"), "not a plain file name"),
        (lambda d: d.update(schema_version=0), "never existed"),
        (lambda d: d.update(schema_version="1"), "not a gpubench run"),
        (lambda d: d.pop("device"), "not a gpubench run"),
        (lambda d: d.update(started_at="yesterday"), "yesterday.* with a time zone"),
        (lambda d: d.update(finished_at="2026-11-20T00:00:00"), "with a time zone"),
        (lambda d: launch_of(d).update(began_at="2026-11-20T00:00:00"), "with a time zone"),
    ],
)
def test_a_file_with_impossible_figures_is_refused_with_the_reason(tmp_path, make_run, change, words):
    document = json.loads(msgspec.json.encode(make_run()))
    change(document)
    path = tmp_path / "run.json"
    sys.set_int_max_str_digits(0)
    try:
        path.write_text(json.dumps(document))
    finally:
        sys.set_int_max_str_digits(4300)
    with pytest.raises(MisuseError, match=words) as caught:
        store.read_run(path)
    assert "\n" not in str(caught.value)


def test_more_energy_than_the_power_limit_allows_is_refused(tmp_path, make_run):
    run = make_run()
    device = msgspec.structs.replace(run.device, power_limit_w=700.0)
    launch = msgspec.structs.replace(run.measurements[0].launches[0], energy_j=10_000.0, energy_region_s=10.0)
    row = msgspec.structs.replace(run.measurements[0], launches=(launch,))
    path = store.write_run(tmp_path, msgspec.structs.replace(run, device=device, measurements=(row,)))
    with pytest.raises(MisuseError, match=r"1000 W .* 700 W"):
        store.read_run(path)
    two = msgspec.structs.replace(row, case=msgspec.structs.replace(row.case, gpu_count=2))
    path = store.write_run(tmp_path, msgspec.structs.replace(run, device=device, measurements=(two,)))
    assert store.read_run(path).measurements[0].case.gpu_count == 2  # 500 W each


def test_deep_nesting_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"schema_version":1,"device":' + "[" * 200_000 + "]" * 200_000 + "}")
    with pytest.raises(MisuseError, match="gpubench run"):
        store.read_run(path)


def test_a_huge_sparse_file_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "runs" / "cpu" / "huge.json"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(10 * 1024**3)
    with pytest.raises(MisuseError, match="over the limit"):
        store.read_run(path)


def test_a_later_schema_says_to_upgrade_and_is_not_set_aside(tmp_path, make_run):
    document = json.loads(msgspec.json.encode(make_run())) | {"schema_version": 99}
    path = tmp_path / "runs" / "nvidia-h200-sxm-141gb" / "later.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    stored = store.read_runs(tmp_path)
    assert "upgrade gpubench" in stored.problems[0]
    assert path.exists()
    with pytest.raises(MisuseError, match="upgrade gpubench"):
        store.read_run(path)


@pytest.mark.parametrize(
    "ask",
    [
        lambda root: predict("cnn", gpu=["l4"], results=root),
        lambda root: memory("cnn", gpu=["l4"], results=root),
        lambda root: consumed_by(("nvidia-l4-24gb",), root),
    ],
    ids=["predict", "memory", "feed"],
)
def test_unreadable_run_is_reported_on_stderr_if_the_answer_has_no_notes(ask, tmp_path, capsys):
    broken = tmp_path / "runs" / "nvidia-l4-24gb" / "20261101t120000z-aaaa.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    ask(tmp_path)
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("gpubench: ")
    assert broken.name in line
    assert "gpubench run" in line


def test_a_symbolic_link_is_not_followed_nor_renamed(tmp_path, make_run):
    real = store.write_run(tmp_path / "elsewhere", make_run())
    link = tmp_path / "mine" / "runs" / "cpu" / "link.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    stored = store.read_runs(tmp_path / "mine")
    assert stored.runs == ()
    assert "not followed" in stored.problems[0]
    assert link.is_symlink()


def test_a_run_is_not_written_through_a_link(tmp_path, make_run):
    path = store.write_run(tmp_path, make_run())
    data = path.read_bytes()
    path.unlink()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path.symlink_to(precious)
    assert store.write_run(tmp_path, make_run()) == path
    assert (path.read_bytes(), precious.read_text()) == (data, "mine")


@given(st.text(max_size=30))
def test_safe_names_cannot_escape_the_results_folder(name):
    assert not store.is_safe_name(name) or ("/" not in name and "\0" not in name and ".." not in name)


@pytest.mark.parametrize(
    "run_id", ["../../x", "a/b", "a\0b", "con", "con.json", "", "..", ".hidden", "x" * 200]
)
def test_a_run_id_that_is_not_a_file_name_is_refused(tmp_path, make_run, run_id):
    with pytest.raises(MisuseError, match="plain file name"):
        store.write_run(tmp_path, make_run(run_id=run_id))
    assert list(tmp_path.iterdir()) == []


def test_runs_of_a_nested_results_folder_are_not_the_users_own(tmp_path, make_run):
    """A fresh checkout has an example in the results folder and no run yet."""
    store.write_run(tmp_path / "example", make_run())
    assert store.read_runs(tmp_path).runs == ()
    for named in (tmp_path / "example", tmp_path / "example" / "runs"):
        assert len(store.read_runs(named).runs) == 1


def test_a_gpu_key_that_is_not_a_folder_name_is_stored_under_unknown(tmp_path, make_run):
    run = make_run()
    device = msgspec.structs.replace(run.device, gpu_key="../../etc")
    path = store.write_run(tmp_path, msgspec.structs.replace(run, device=device))
    assert path.parent == tmp_path / "runs" / "unknown"


def test_a_folder_that_cannot_be_made_is_found_before_the_run(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StorageError, match=r"cannot write to .*--results"):
        store.check_writable(blocker / "results")


def test_a_file_limit_in_the_middle_of_writing_leaves_the_old_file_intact(tmp_path, make_run):
    """RLIMIT_FSIZE imitates a full disk (errno 27 instead of 28), in a child, because it cannot be undone."""
    path = store.write_run(tmp_path, make_run())
    before = path.read_bytes()
    (tmp_path / "next.json").write_bytes(msgspec.json.encode(make_run(notes=("x" * 500_000,))))
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from gpubench.errors import StorageError\n"
        "from gpubench.record import store\n"
        "root = Path(sys.argv[1]); run = store.read_run(root / 'next.json')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    store.write_run(root, run)\n"
        "except StorageError as error:\n    print(error); sys.exit(error.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert "cannot write" in done.stdout
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_kill_at_any_step_of_writing_leaves_the_old_file_intact(tmp_path, make_run, step):
    path = store.write_run(tmp_path, make_run())
    program = (
        "import os, sys, msgspec\n"
        "from pathlib import Path\n"
        "from gpubench.record import store\n"
        "root = Path(sys.argv[1]); run = store.read_runs(root).runs[0]\n"
        "die = lambda *a, **k: os.kill(os.getpid(), 9)\n"
        + ("os.fsync = die\n" if step == "fsync" else "Path.replace = die\n")
        + "store.write_run(root, msgspec.structs.replace(run, notes=('later',)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    assert done.returncode == -9
    assert store.read_runs(tmp_path).runs == (make_run(),)
    assert path.exists()


@pytest.fixture
def many(tmp_path, make_run, monkeypatch):
    """Five runs on one card and one on another; the newest three of a card are read."""
    monkeypatch.setattr(store, "NEWEST", 3)
    for n in range(5):
        run_id = f"2026112{n}t000000z-00000000"
        store.write_run(tmp_path, make_run(run_id=run_id, started_at=f"2026-11-2{n}T00:00:00Z"))
    other = DeviceProfile(backend="cuda", name="NVIDIA L4", gpu_key="nvidia-l4-24gb")
    store.write_run(tmp_path, make_run(run_id="20261101t000000z-00000002", device=other))
    return tmp_path


def test_figures_use_the_newest_runs_of_each_device_and_say_so(many):
    newest = store.newest_runs(many)
    assert sorted(run.run_id[:8] for run in newest.runs) == ["20261101", "20261122", "20261123", "20261124"]
    assert newest.passed_over == "6 runs are stored; figures are based on the newest 3 of each device"
    everything = store.read_runs(many)
    assert (len(everything.runs), everything.passed_over) == (6, None)


def test_few_runs_are_all_read_and_nothing_is_reported(tmp_path, make_run):
    store.write_run(tmp_path, make_run())
    assert store.newest_runs(tmp_path) == store.StoredRuns(runs=(make_run(),))


@pytest.mark.parametrize("verb", [("predict", "show", "--gpu", "nvidia-l4-24gb"), ("memory",)])
def test_answers_without_notes_report_skipped_older_runs_on_stderr(many, verb):
    shown = CliRunner().invoke(app, [*verb, "--workload", "vgg16", "--json", "--results", str(many)])
    assert shown.exit_code == 0
    assert "6 runs are stored" in shown.stderr
    assert "runs are stored" not in shown.stdout


def test_a_listing_reads_every_run_and_shows_how_complete_each_is(many, make_run):
    run = make_run(run_id="20261130t000000z-00000003")
    case = run.measurements[0].case
    planned = (case, msgspec.structs.replace(case, batch_size=128))
    cut = msgspec.structs.replace(run, planned=planned, finished_at="2026-11-30T00:10:00Z", interrupted=True)
    store.write_run(many, cut)
    where = ("results", "list", "--results", str(many))
    assert "1 of 2, interrupted" in CliRunner().invoke(app, where).stdout
    rows = json.loads(CliRunner().invoke(app, (*where, "--json")).stdout)["runs"]
    assert len(rows) == 7
    (row,) = (row for row in rows if row["run_id"] == cut.run_id)
    assert (row["cases"], row["measured"], row["finished"], row["interrupted"]) == (2, 1, True, True)
    assert row["workloads"] == ["cnn"]


def test_the_results_folder_comes_from_option_then_variable_then_here_then_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUBENCH_RESULTS", "/from/variable")
    assert results_root(tmp_path / "o") == tmp_path / "o"
    assert str(results_root()) == "/from/variable"
    monkeypatch.delenv("GPUBENCH_RESULTS")
    assert results_root().is_absolute()
    (tmp_path / "results").mkdir()
    assert str(results_root()) == "results"
    assert offers_folder(None) == results_root() / "offers"


def test_a_run_is_found_by_id_by_a_prefix_or_as_latest(tmp_path, make_run):
    first = store.write_run(tmp_path, make_run(run_id="20261120t000000z-aaaa"))
    last = store.write_run(tmp_path, make_run(run_id="20261121t000000z-bbbb"))
    assert store.find_run(tmp_path, "latest") == last
    assert store.find_run(tmp_path, "20261120T") == first
    assert store.find_run(tmp_path, str(first)) == first
    assert store.find_run(tmp_path / "nowhere", str(tmp_path)) == last
    upper = first.rename(first.with_name(first.name.upper().replace("JSON", "json")))
    assert store.find_run(tmp_path, "20261120T") == upper
    upper.rename(first)
    with pytest.raises(MisuseError, match="2 runs begin with"):
        store.find_run(tmp_path, "2026")
    with pytest.raises(MisuseError, match="no run 'x'"):
        store.find_run(tmp_path, "x")


def test_shipped_reference_runs_are_those_of_the_example():
    """The package ships the example byte for byte."""
    shown = {path.name: path.read_bytes() for path in (ROOT / "results/example/runs").rglob("*.json")}
    shipped = {path.name: path.read_bytes() for path in data_path("reference").glob("*.json")}
    assert shown == shipped
    assert len(store.reference_runs()) == len(shipped) > 0


def test_cpu_example_counts_neither_as_own_run_nor_as_reference():
    """The example is read only if it is named; neither the results folder nor the package counts it as the user's run."""
    (shown,) = store.read_runs(ROOT / "results/example-cpu").runs
    assert shown.device.is_cpu
    assert shown.device.gpu_key is None
    (path,) = (ROOT / "results/example-cpu/runs").rglob("*.json")
    assert not re.search(r"/home/|/root|/Users/|hostname", path.read_text(encoding="utf-8"))
    assert {shown.run_id}.isdisjoint(run.run_id for run in store.reference_runs())
    assert {shown.run_id}.isdisjoint(run.run_id for run in store.read_runs(ROOT / "results").runs)
    for name in ("report.md", "ranking.json"):
        text = (ROOT / "results/example-cpu" / name).read_text(encoding="utf-8")
        assert 0 < len(text) < 200_000
        assert not re.search(r"[ \"](/work|/tmp|/home|/root)/", text)


@pytest.mark.parametrize("read", [store.read_runs, store.newest_runs])
def test_results_path_that_is_not_a_folder_is_an_error(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MisuseError, match="not a folder"):
        read(tmp_path / "pipe")


def test_run_id_too_long_for_a_file_name_is_reported_as_no_run(tmp_path):
    with pytest.raises(MisuseError, match="no run"):
        store.find_run(tmp_path, "a" * 300)


def test_a_run_is_compared_with_the_shipped_one_that_has_most_of_its_cases(tmp_path):
    shipped = max(store.reference_runs(), key=lambda run: run.case_count)
    few = msgspec.structs.replace(
        shipped, run_id="20261127t120000z-00000000", measurements=shipped.measurements[:3]
    )
    store.write_run(tmp_path, few)
    done = CliRunner().invoke(app, ["compare", "reference", "latest", "--results", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert [row["ratio"]["value"] for row in json.loads(done.stdout)["rows"]] == [1.0] * 3
