"""`gpubench report` as a user runs it: real store, real ranking. tests/test_faults.py makes a page without torch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command import here
from memory_cases import BY_BYTES

from gpubench.recommend.rank import rank
from gpubench.recommend.request import RankRequest
from gpubench.record.store import write_run
from gpubench.report import page
from gpubench.sections.answer import fits_words
from gpubench.sections.data import gather

from . import samples


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return here("report", *arguments)


def test_with_no_runs_it_ranks_and_says_that_nothing_was_measured(tmp_path, monkeypatch):
    samples.of_few_models(monkeypatch)
    done = command("--results", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "one self-contained file" in done.stderr
    path = Path(done.stdout.strip())
    assert path.parent == tmp_path / "reports"
    page = path.read_text(encoding="utf-8")
    assert "Nothing was measured" in page
    assert "resnet50, 90 epochs of ImageNet" in page


def test_a_stored_run_is_on_the_page_and_anchors_the_ranking(tmp_path):
    write_run(tmp_path, samples.h200_run())
    data = gather(RankRequest(results=tmp_path, as_of=samples.TODAY))
    assert data.device.name == "NVIDIA H200"
    bases = {row.estimate.basis for row in data.ranking.rows if row.offer.gpu_key == samples.H200}
    assert bases == {"measured"}


def test_json_on_stdout_names_the_file(tmp_path):
    done = command("--results", tmp_path, "--format", "md", "--json")
    answer = json.loads(done.stdout)
    assert Path(answer["path"]).suffix == ".md"
    assert answer["size_bytes"] == Path(answer["path"]).stat().st_size


@pytest.mark.parametrize(("arguments", "code"), [(("--format", "pdf"), 2), (("-o", "/proc/nope/page.md"), 5)])
def test_mistakes_give_one_line_and_their_exit_code(tmp_path, arguments, code):
    done = command("--results", tmp_path, *arguments)
    assert done.returncode == code
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("verb", ["report", "share latest", "check --cuda", "predict seal cases.csv"])
@pytest.mark.parametrize("there", [True, False])
def test_a_folder_is_no_file_to_write(tmp_path, verb, there):
    folder = tmp_path / "out"
    if there:
        folder.mkdir()
    done = here(*verb.split(), "-o", str(folder) if there else f"{folder}/")
    assert done.returncode == 2
    assert "is a folder: name a file in it" in done.stderr
    assert folder.is_dir() is there
    assert not folder.is_file()


def test_a_damaged_result_file_is_counted_on_the_page(tmp_path):
    write_run(tmp_path, samples.cpu_run())
    broken = tmp_path / "runs" / "cpu" / "20260101T000000Z-ffffff.json"
    broken.write_text("{", encoding="utf-8")
    data = gather(RankRequest(results=tmp_path, as_of=samples.TODAY))
    assert len(data.problems) == 1
    assert data.device.is_cpu


def test_the_ranking_can_be_about_one_workload_and_a_job(tmp_path):
    page.report(tmp_path / "page.md", tmp_path, workload="vgg16", samples=1e6)
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "Ranked for vgg16, training" in text
    assert "| Time |" in text.replace("---:", "")


@pytest.mark.usefixtures("traced_here")
def test_fit_of_an_untraced_user_model_is_shown_with_its_bound(tmp_path):
    """The Markdown page shows it, and so does the best offer of the ranking."""
    path = tmp_path / "net.py"
    path.write_text(BY_BYTES)
    data = gather(RankRequest(results=tmp_path, as_of=samples.TODAY, workloads=(str(path),)))
    why = "not traced: NotImplementedError: Not available for 'meta' device type (net.py line 10)"
    assert why in page.render(data, "md")
    assert why in fits_words(data.ranking.first)


@pytest.mark.usefixtures("traced_here")
def test_a_users_model_is_built_once_for_a_page(tmp_path):
    """The ranking, the hardware to buy and the memory once traced the model separately, which took seconds."""
    path, seen = tmp_path / "net.py", tmp_path / "seen.txt"
    written = f"\nwith open({str(seen)!r}, 'a') as seen:\n    seen.write('built\\n')\n"
    path.write_text(BY_BYTES + written)
    gather(RankRequest(results=tmp_path, as_of=samples.TODAY, workloads=(str(path),)))
    first = seen.read_text().count("built")
    seen.unlink()
    rank(workload=path, results=tmp_path, as_of=samples.TODAY)
    assert first == seen.read_text().count("built") > 0


def test_rows_that_the_page_does_not_show_are_not_built(tmp_path, monkeypatch):
    """With 100,000 offers these rows took most of the time of a report."""
    monkeypatch.setattr(page, "MOST_OFFERS", 30)
    monkeypatch.setattr(page, "gather", lambda *asked, **of: made.append(gather(*asked, **of)) or made[-1])
    made = []
    for workload in ("vgg16", "llama_8b_lora"):
        whole = gather(RankRequest(results=tmp_path, as_of=samples.TODAY, workloads=(workload,)))
        page.report(tmp_path / f"{workload}.md", tmp_path, workload=workload, as_of=samples.TODAY)
        assert 30 < len(made[-1].ranking.rows) < len(whole.ranking.rows) / 2


def test_invalid_report_request_is_an_error_and_writes_no_page(tmp_path):
    done = command("--results", tmp_path, "--workload", "no-such-workload")
    assert done.returncode == 2
    assert not (tmp_path / "reports").exists()


def test_the_page_can_be_about_an_older_run(tmp_path):
    write_run(tmp_path, samples.h200_run())
    write_run(tmp_path, samples.cpu_run())
    done = command("--results", tmp_path, "--run", samples.cpu_run().run_id, "-o", tmp_path / "page.md")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.md").read_text(encoding="utf-8").startswith("# AMD EPYC 9354")
    assert command("--results", tmp_path, "--run", "nothing-like-it").returncode == 2
