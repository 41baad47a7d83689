"""A link in place of a device's folder: runs are not read through it, so none is stored through it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from gpubench.cli.app import app
from gpubench.errors import ExitCode, StorageError
from gpubench.record.store import check_writable


def linked(tmp_path, name="nvidia-h100-sxm-80gb"):
    root, elsewhere = tmp_path / "L", tmp_path / "T"
    (root / "runs").mkdir(parents=True)
    elsewhere.mkdir()
    (root / "runs" / name).symlink_to(elsewhere)
    return root


def test_a_link_is_refused_and_named_before_anything_is_stored(tmp_path):
    root = linked(tmp_path)
    with pytest.raises(StorageError, match="nvidia-h100-sxm-80gb is a link") as caught:
        check_writable(root)
    assert caught.value.exit_code == ExitCode.STORAGE
    assert not list((tmp_path / "T").iterdir())


def test_a_dangling_link_is_refused_too(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "cpu").symlink_to(tmp_path / "gone")
    with pytest.raises(StorageError, match="cpu is a link"):
        check_writable(tmp_path)


def test_folders_above_may_be_links(tmp_path):
    real = tmp_path / "real"
    (real / "cpu").mkdir(parents=True)
    (tmp_path / "R").mkdir()
    (tmp_path / "R" / "runs").symlink_to(real)
    check_writable(tmp_path / "R")
    (tmp_path / "S").symlink_to(tmp_path / "R")
    check_writable(tmp_path / "S")


@pytest.mark.parametrize(
    "words", [("run", "cnn", "--device", "cpu", "--quick"), ("results", "add", "x"), ("run", "--resume", "x")]
)
def test_every_verb_that_stores_ends_with_exit_5(tmp_path, words):
    done = CliRunner().invoke(app, [*words, "--results", str(linked(tmp_path, "cpu"))])
    assert isinstance(done.exception, StorageError)
    assert "is a link" in str(done.exception)
