"""Workloads are found by name without importing them; two with one name are an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpubench import discovery
from gpubench.discovery import load_workload, workload_named, workload_names
from gpubench.errors import MisuseError
from gpubench.options import request_from
from gpubench.predict.request import MemoryRequest, PredictRequest
from gpubench.user_model import check_own, is_own

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def fresh_discovery() -> object:
    discovery._installed.cache_clear()
    yield
    discovery._installed.cache_clear()


def plug_in(folder: Path, name: str, target: str) -> None:
    """Write what pip installs for a package with one workload."""
    info = folder / f"other_{len(list(folder.glob('*.dist-info')))}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {info.name.split('-')[0]}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpubench.workloads]\n{name} = {target}\n")


def test_names_are_sorted_and_nothing_is_imported() -> None:
    code = (
        "import sys\nfrom gpubench.discovery import workload_names\nnames = workload_names()\n"
        "assert list(names) == sorted(names) and {'cnn', 'lstm', 'vgg16'} <= {*names}, names\n"
        "assert not {'torch', 'pandas', 'gpubench_workloads.cnn'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_checkout_is_read_from_its_own_folder() -> None:
    assert load_workload("cnn").name == "cnn"
    assert Path(str(sys.modules["gpubench_workloads.cnn"].__file__)) == ROOT / "workloads" / "cnn.py"


def test_third_party_plug_in_is_discovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_discovery: object
) -> None:
    plug_in(tmp_path, "outside", "outside_module:WORKLOAD")
    (tmp_path / "outside_module.py").write_text(
        "from dataclasses import replace\nfrom gpubench.discovery import load_workload\n"
        "WORKLOAD = replace(load_workload('cnn'), name='outside')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "outside" in workload_names()
    assert load_workload("outside").name == "outside"


def test_a_name_offered_twice_is_an_error_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_discovery: object
) -> None:
    plug_in(tmp_path, "cnn", "intruder:WORKLOAD")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MisuseError, match=r"two installed packages .*cnn.*intruder"):
        workload_names()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "raise ImportError('no such thing')",
            r"workload outside of the package other_0 .*: ImportError: no such thing",
        ),
        ("WORKLOAD = 3", "is of type int, not a Workload"),
        ("import sys; sys.exit(7)", r"workload outside of the package other_0 .*: calls sys.exit\(7\)"),
        ("x = (", r"workload outside of the package other_0 .*: syntax error in line 1"),
    ],
)
def test_a_broken_plug_in_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_discovery: object, source: str, message: str
) -> None:
    module = f"outside_{abs(hash(source))}"
    plug_in(tmp_path, "outside", f"{module}:WORKLOAD")
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MisuseError, match=message) as caught:
        load_workload("outside")
    assert "\n" not in str(caught.value)


def test_an_unknown_workload_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(MisuseError, match=r"'vgg61'.*vgg16"):
        load_workload("vgg61")
    with pytest.raises(MisuseError, match=r"nearest known: none; `gpubench list` shows"):
        load_workload("zzzzzz")


def test_the_nearest_name_is_shown_in_a_form_that_is_accepted() -> None:
    with pytest.raises(MisuseError, match=r"nearest known: resnet50_transfer,"):
        load_workload("ResNet50 transfer")


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("bert-base", "bert_base"), ("BERT base", "bert_base"), ("ResNet-50", "resnet50"), ("ViT-B/16", "vit_b16"),
        ("llama-8b-qlora", "llama_8b_qlora"), ("./bert-base.py", "./bert-base.py"), ("nothing-like-it", "nothing-like-it"),
        ("qwen2.5-7b", "qwen2.5-7b"), ("all", "all"), ("", ""),
    ],
)  # fmt: skip
def test_a_workload_is_found_in_common_spellings(said: str, name: str) -> None:
    assert workload_named(said) == name


@pytest.mark.parametrize("verb", ["memory", "predict show"])
def test_each_verb_accepts_a_workload_in_common_spellings(verb: str) -> None:
    request = {"memory": MemoryRequest, "predict show": PredictRequest}[verb]
    made = request_from(request, {"workload": "Bert-Base"})
    assert "bert_base" in getattr(made, {"memory": "workloads", "predict show": "workload"}[verb])


@pytest.mark.parametrize(
    ("reference", "own"),
    [
        ("vgg16", False), ("rnn_cell", False), ("a-b", False),
        ("model.py", True), ("./model.py:NET", True), ("dir/model", True), ("package.module:NET", True),
    ],
)  # fmt: skip
def test_references_to_a_users_own_model_are_recognized(reference: str, own: bool) -> None:
    assert is_own(reference) is own


def test_a_name_too_long_for_any_file_system_is_no_file() -> None:
    assert workload_named("a" * 300) == "a" * 300
    with pytest.raises(MisuseError, match="unknown workload"):
        load_workload("a" * 300)
    with pytest.raises(MisuseError, match="there is no"):
        check_own(f"hf:{'a' * 300}", {})
