"""Every reader and writer of files, given files of the wrong kind and hostile content."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from readers import READERS, Reader, outcome

from gpubench.errors import StorageError
from gpubench.files import create_file, write_file
from gpubench.folders import data_bytes

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="POSIX file types"),
]

GIGABYTE = 1 << 30


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def zeros(path: Path) -> None:
    """Make a copy of /dev/zero, which never ends, if this user may create a device; else a link to it."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except OSError:
        path.symlink_to("/dev/zero")


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def gigabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GIGABYTE)


def no_file(path: Path) -> None:
    assert not path.exists()


REFUSED = {
    fifo: "a pipe",
    folder: "a folder",
    unix_socket: "a socket",
    zeros: "a device|a link",
    link_to_zeros: "a device|a link",
    link_to_itself: "a link|symbolic links",
    gigabyte: r"1\.00 GiB",
    no_file: "No such file|there is no",
}
"""What a reader finds in place of a file, and words of its message."""
READERS_AND_TABLES = READERS | {
    "shipped table": Reader(lambda path: data_bytes(str(path)), lambda: b"any text")
}
"""Also the reader of tables in $GPUBENCH_DATA, which leaves their content to others."""
CONTENTS = {
    "nothing": b"",
    "deep nesting": b"[" * 200_000,
    "deep nesting in a field": b'{"a":' * 200_000,
    "bytes that are not UTF-8": b"\xff\xfe\x00" * 1000,
    "a surrogate": b'{"run_id": "\\ud800"}',
    "an integer of 100,000 digits": b'{"schema_version": ' + b"9" * 100_000 + b"}",
    "no number": b'{"schema_version": NaN}',
    "beyond every number": b'{"schema_version": 1e999}',
    "null": b"null",
    "one quote": b'"',
    "a line of 1 MB": b"a" * 1_000_000,
    "zeros": b"\x00" * 4096,
    "half a letter": b'{"schema_version": 1, "run_id": "\xc3',
    "another document": b'{"schema_version": 1, "kind": "letter", "offers": "none"}',
    "an escape": b'{"schema_version": "\x1b[2J"}',
}


@pytest.mark.parametrize("reader", READERS_AND_TABLES.values(), ids=READERS_AND_TABLES)
@pytest.mark.parametrize(("make", "words"), REFUSED.items(), ids=lambda given: getattr(given, "__name__", ""))
def test_every_reader_refuses_special_files(tmp_path, reader: Reader, make, words):
    path = tmp_path / f"x{reader.ending}"
    path.write_bytes(reader.sample())
    outcome(reader, path)  # loads its dependencies
    path.unlink()
    make(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = outcome(reader, path)
    assert re.search(words, said)
    assert is_one_line(said)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB


def is_one_line(said: str) -> bool:
    return said.splitlines() == [said] and len(said) < 2000 and "\x1b" not in said


@pytest.mark.parametrize("reader", READERS_AND_TABLES.values(), ids=READERS_AND_TABLES)
def test_every_reader_refuses_a_name_that_no_file_can_have(tmp_path, reader: Reader):
    for name in ("a\0", "a" * 300):
        assert is_one_line(outcome(reader, tmp_path / f"{name}{reader.ending}"))


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_every_reader_accepts_a_sound_file_and_refuses_others_in_one_line(tmp_path, reader: Reader):
    """A reader of lines gets each content as a whole line, and every reader also gets names of another kind."""
    for ending in (".csv", ".json", reader.ending):
        path = tmp_path / f"x{ending}"
        for name, content in CONTENTS.items():
            path.write_bytes(content + b"\n" * (reader.ending == ".jsonl"))
            said = outcome(reader, path)
            assert said is not None, name
            assert is_one_line(said), name
    path.write_bytes(reader.sample())
    assert outcome(reader, path) is None


@pytest.mark.parametrize("reader", READERS_AND_TABLES.values(), ids=READERS_AND_TABLES)
def test_a_link_is_followed_only_if_the_user_named_it(tmp_path, reader: Reader):
    target = tmp_path / "elsewhere"
    target.write_bytes(reader.sample())
    path = tmp_path / f"x{reader.ending}"
    path.symlink_to(target)
    said = outcome(reader, path)
    assert (said is None) if reader.on_command else ("not followed" in said)


def write(path: Path) -> None:
    write_file(path, b"new")


def create(path: Path) -> None:
    try:
        create_file(path, b"new")
    except OSError as error:
        raise StorageError(str(error)) from error


WRITERS = {write: {fifo: "No such device", folder: "a folder", unix_socket: "a socket"}, create: {}}
"""The writers, with words of their messages about what is there already."""


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
@pytest.mark.parametrize("make", [fifo, folder, unix_socket, link_to_itself], ids=lambda make: make.__name__)
def test_every_writer_reports_obstacles_without_blocking(tmp_path, writer, make):
    path = tmp_path / "x"
    make(path)
    kind = stat.S_IFMT(path.lstat().st_mode)
    if (make, writer) == (link_to_itself, write):
        writer(path)  # the link is replaced, not followed
        assert path.read_bytes() == b"new"
    else:
        with pytest.raises(StorageError, match=WRITERS[writer].get(make, "File exists")) as caught:
            writer(path)
        assert is_one_line(str(caught.value))
        assert stat.S_IFMT(path.lstat().st_mode) == kind
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_no_writer_writes_through_a_link(tmp_path):
    target, path = tmp_path / "target", tmp_path / "x"
    target.write_text("mine")
    for writer in WRITERS:
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with contextlib.suppress(StorageError):
            writer(path)
        assert target.read_text() == "mine"


def test_an_escape_in_a_file_name_does_not_reach_the_terminal(tmp_path):
    hostile = tmp_path / "runs" / "cpu" / "20261120t000000z-\x1b[31mred\x1b]0;title\x07.json"
    hostile.parent.mkdir(parents=True)
    hostile.write_text("{}")
    for verb in (("results", "list"), ("results", "add", str(hostile)), ("rank", "--gpu", "l4")):
        done = subprocess.run(
            [sys.executable, "-m", "gpubench", *verb, "--results", str(tmp_path)],
            capture_output=True,
            check=False,
        )
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"red" in done.stdout + done.stderr
        assert b"Traceback" not in done.stderr


def test_the_path_of_a_page_is_exact_in_json_and_harmless_on_a_terminal(tmp_path):
    """Under a UTF-8 locale, a name has bytes that are not UTF-8, and an escape."""
    page = os.fsencode(tmp_path) + b"/\x1b[31mred\xff.md"
    command = [sys.executable, "-m", "gpubench", "report", "--format", "md", "-o", page]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    piped = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert piped.stdout == page + b"\n"
    assert b"\x1b" not in piped.stderr
    reading, writing = pty.openpty()
    shown = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=True, env=environment)
    os.close(writing)
    said = os.read(reading, 65_536)
    os.close(reading)
    assert b"\x1b" not in said + shown.stderr
    assert b"red.md" in said
