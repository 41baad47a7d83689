"""Sealed forecasts: predictions made before any measurement, and unchanged since."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import msgspec
import pytest
from command import here

from gpubench import __version__
from gpubench.errors import MisuseError
from gpubench.files import table_json
from gpubench.folders import data_path
from gpubench.predict import seal as sealing
from gpubench.predict.calibration import load_calibration
from gpubench.predict.seal import score_sealed, seal

SEALS = Path(__file__).parents[2] / "docs" / "seals"
CASES = "Workload,gpu,execution,note\nvgg16,RTX 5080,,ours\nvgg16,T4,eager,\nllama_8b,T4,,too large\n"


@pytest.fixture
def cases(tmp_path):
    path = tmp_path / "cases.csv"
    path.write_text(CASES)
    return path


@pytest.fixture
def sealed(cases, tmp_path):
    path = tmp_path / "seal.json"
    path.write_bytes(table_json(seal(cases), order="sorted"))
    return path


def test_seal_lists_each_case_once_with_its_settings(cases):
    cases.write_text(CASES + "vgg16,nvidia-geforce-rtx-5080-16gb,graph,the same\n")
    made = seal(cases)
    known, eager, refused = made.forecasts
    assert known.case == "--workload vgg16 --gpu nvidia-geforce-rtx-5080-16gb"
    assert "--execution eager" in eager.case
    assert known.low < known.samples_per_s < known.high
    assert known.samples_per_s == float(f"{known.samples_per_s:.4g}")
    assert (refused.samples_per_s, refused.basis) == (None, None)
    assert refused.refused.startswith("T4 has no BF16 hardware")
    assert made.version == __version__
    assert len(made.commit) == 40


def test_anybody_can_check_the_hash_without_gpubench(sealed):
    told = json.loads(sealed.read_bytes())
    assert list(told) == sorted(told)
    bare = {key: value for key, value in told.items() if key != "sha256"}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == told["sha256"]


def test_seal_never_uses_the_users_measurements(cases, monkeypatch):
    def refuse(_):
        raise AssertionError("the user's own runs were read")

    monkeypatch.setattr("gpubench.record.store.own_runs", refuse)
    assert len(seal(cases).forecasts) == 3


def test_readings_are_compared_with_the_forecasts(sealed, tmp_path):
    first, second, _ = json.loads(sealed.read_bytes())["forecasts"]
    readings = tmp_path / "readings.csv"
    readings.write_text(
        "workload,gpu,execution,samples_per_s\n"
        f"vgg16,RTX 5080,graph,{first['samples_per_s']}\n"
        f"vgg16,Tesla T4,eager,{second['high'] * 2}\n"
        "vgg16,T4,,100\nllama_8b,T4,,1\nvgg16,RTX 5080,,0\n"
    )
    held = score_sealed(sealed, readings)
    off = second["high"] * 2 / second["samples_per_s"] - 1
    assert held["readings"] == 2
    assert held["mape"] == pytest.approx(off / 2, abs=1e-3)
    assert held["coverage_90"] == 0.5
    reasons = [each["reason"] for each in held["skipped"]]
    assert reasons[0] == "the seal does not have this case"
    assert reasons[1].startswith("the seal has no figure: ")
    assert reasons[2] == "no samples_per_s above 0"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"low": ', '"low": 1', "was changed after it was sealed"),
        ('"version": "', '"version": "9', "was changed after it was sealed"),
        ('"forecasts"', '"mine": 1, "forecasts"', "mine"),
    ],
)
def test_a_seal_that_was_changed_is_refused(sealed, cases, old, new, said):
    sealed.write_text(sealed.read_text().replace(old, new, 1))
    with pytest.raises(MisuseError, match=said):
        score_sealed(sealed, cases)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("load_calibration", lambda: msgspec.structs.replace(load_calibration(), common_share=0.5)),
        ("LANGUAGE_RESIDUAL", 1.0),
        ("IMAGE_RESIDUAL", 1.0),
    ],
)
def test_sealed_forecast_of_other_coefficients_is_refused_and_names_its_version(
    sealed, cases, monkeypatch, name, other
):
    monkeypatch.setattr(sealing, name, other)
    with pytest.raises(
        MisuseError, match=rf"coefficients other .* gpubench {__version__}, commit [0-9a-f]{{40}}"
    ):
        score_sealed(sealed, cases)


def test_refit_that_finds_the_same_coefficients_keeps_its_seals(sealed, cases, monkeypatch):
    told = json.loads(sealed.read_bytes())["forecasts"][0]
    cases.write_text(f"workload,gpu,samples_per_s\nvgg16,RTX 5080,{told['samples_per_s']}\n")
    again = msgspec.structs.replace(load_calibration(), fitted="2027-01-01", inputs={"gpus.csv": "0" * 64})
    monkeypatch.setattr(sealing, "load_calibration", lambda: again)
    assert score_sealed(sealed, cases)["readings"] == 1


def test_own_calibration_neither_seals_nor_scores(sealed, cases, tmp_path, monkeypatch):
    """Nobody else could repeat forecasts made with it, and no version of gpubench would score them."""
    own = tmp_path / "calibration.json"
    own.write_bytes((data_path("calibration.json")).read_bytes())
    monkeypatch.setattr(sealing, "own_calibration_path", lambda: own)
    for use in (lambda: seal(cases), lambda: score_sealed(sealed, cases)):
        with pytest.raises(MisuseError, match=rf"shipped calibration: move your own, .*{own.name}"):
            use()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workload,gpu\n", "no line below its header: give a case per line"),
        ("workload,gpu,batch\nvgg16,T4,1\n", "unknown column 'batch'; known: batch_size, "),
        ("workload,gpu,power_limit\nvgg16,T4,60\n", "unknown column 'power_limit'"),
        ("workload,gpu,GPU\nvgg16,T4,L4\n", "more than one column 'gpu'"),
        ("workload,gpu\nvgg16,T4,1\n", "line 2: more cells than columns"),
        ("workload,gpu\nvgg16,T4\n\nvgg16,T4,1\n", "line 4: more cells than columns"),
        ("workload,gpu\nvgg16,\n", "line 2: a case needs exactly one GPU"),
        ("workload,gpu,batch_size\nvgg16,T4,0\n", "line 2: --batch-size"),
        ("workload,gpu,samples_per_s\nvgg16,T4,-1\n", "no line can be scored against the seal"),
    ],
)
def test_a_table_without_valid_cases_is_refused_in_one_line(sealed, cases, text, said):
    cases.write_text(text)
    with pytest.raises(MisuseError, match=said) as caught:
        score_sealed(sealed, cases)
    assert "\n" not in str(caught.value)


def test_boolean_column_accepts_yes_and_no():
    cells = {"workload": "llama_1b", "gpu": "T4"}
    found = [sealing._case_of(cells | {"lora": said}).trainable for said in ("yes", "no")]
    assert found == ["lora", None]


def test_boolean_column_refuses_anything_else():
    """A spreadsheet's TRUE must not be read as no."""
    with pytest.raises(MisuseError, match="lora 'true': must be yes or no"):
        sealing._case_of({"workload": "llama_1b", "gpu": "T4", "lora": "TRUE"})


def test_an_invalid_case_is_named(cases):
    cases.write_text("workload,gpu,loss_chunks\nvgg16,T4,2\n")
    with pytest.raises(MisuseError, match=r"--workload vgg16 --gpu .* --recipe loss-chunks=2: vgg16: "):
        seal(cases)


def test_the_seal_and_score_commands_work_together(cases, tmp_path):
    path = tmp_path / "out.json"
    done = here("predict", "seal", cases, "-o", path)
    assert (done.returncode, done.stdout.strip()) == (0, str(path))
    told = json.loads(path.read_bytes())["forecasts"][0]
    cases.write_text(f"workload,gpu,samples_per_s\nvgg16,RTX 5080,{told['samples_per_s']}\n")
    done = here("predict", "score", "--sealed", path, cases)
    assert done.returncode == 0, done.stderr
    assert "1 reading, MAPE 0 %, median 0 %, 90 % interval covers 100 %" in " ".join(done.stdout.split())


def test_one_shipped_seal_is_of_the_shipped_coefficients():
    """After a refit: `gpubench predict seal docs/seals/2026-12.csv -o docs/seals/DATE.json`; the old ones stay."""
    now = sealing._coefficients()
    assert now in {sealing.read_seal(path).coefficients for path in SEALS.glob("*.json")}


def test_shipped_seals_are_intact_and_cover_unpublished_cards_only():
    fitted = [load_calibration().train, load_calibration().infer]
    published = {key for each in fitted for key in (*each.rows_by_gpu, *each.apart_by_gpu)}
    for path in SEALS.glob("*.json"):
        made = sealing.read_seal(path)
        assert made.commit is not None
        assert len({each.case for each in made.forecasts}) == len(made.forecasts)
    with (SEALS / "2026-12.csv").open() as file:
        assert not published & {row["gpu"] for row in csv.DictReader(file)}
