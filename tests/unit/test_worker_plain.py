"""What a job puts where a file should be is never followed, waited for or read without end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import checkpoints
import plain
import progress
import pytest
import records

DEEP = b"[" * 100_000


def make(kind: str, path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("kind", ["pipe", "endless", "loop", "folder", "link", "nothing"])
def test_only_plain_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    make(kind, path)
    with pytest.raises(FileNotFoundError):
        plain.open_file(str(path))
    assert plain.size(str(path)) is None
    assert records.read(str(path)) is None
    assert list(records.read_lines(str(path))) == []
    assert records.read_last_lines(str(path)) == []


def test_a_plain_file_is_opened_and_ours_are_our_troubles(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    with open(plain.open_file(str(path)), "rb") as file:
        assert file.read() == b"abc"
    assert plain.size(str(path)) == 3


@pytest.mark.parametrize("deep", [DEEP, b'{"a":' * 5_000])
def test_json_too_deep_is_no_record(deep: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(deep)
    assert records.read(str(path)) is None
    path.write_bytes(b'{"step":1,"metrics":' + deep + b'\n{"step":2}\n')
    assert [row for _, row in records.read_lines(str(path))] == [{"step": 2}]


def test_lines_without_end_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x"
    long = b'{"step":1,"x":"' + b"y" * 10_000_000 + b'"}\n'
    path.write_bytes(long + b'{"step":2}\n' + long + b'{"step":3}\n' + b"z" * 200_000)
    found = list(records.read_lines(str(path)))
    assert [row["step"] for _, row in found] == [2, 3]
    assert found[0][0] == len(long) + len(b'{"step":2}\n')


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "1" + "0" * 400, "true", '"7"'])
def test_absurd_numbers_are_none(number: str, tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    path.write_text(
        '{"step": 5, "metrics": {"good": 1.5}}\n'
        f'{{"t": {number}, "step": {number}, "metrics": {{"m": {number}}}}}\n'
    )
    assert progress.last(str(path)) == {"step": 5, "metrics": {"good": 1.5}, "t": None}
    assert progress.points(str(path), 100) == [[5, {"good": 1.5}, None]]


def test_checkpoints_that_lie_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "step-1").symlink_to("/")
    (tmp_path / "latest").symlink_to("step-2")
    for name in ("step-2", "step-3", "step-4", "step-5"):
        (tmp_path / name).mkdir()
    make("pipe", tmp_path / "step-2" / "manifest.json")
    make("folder", tmp_path / "step-3" / "manifest.json")
    (tmp_path / "step-4" / "manifest.json").write_bytes(DEEP)
    (tmp_path / "step-5" / "manifest.json").write_text(
        '{"step": Infinity, "metrics": {"a": 1e999, "b": 2}, "files": {"x": {"bytes": 1'
        + "0" * 400
        + "}}}"
    )
    names = checkpoints.names(str(tmp_path))
    assert names == ["step-2", "step-3", "step-4", "step-5"]
    facts = {name: checkpoints.describe(str(tmp_path), name) for name in names}
    assert facts["step-5"]["step"] is None
    assert (facts["step-5"]["metrics"], facts["step-5"]["bytes"]) == ({"b": 2}, 0)
    for name in names:
        assert checkpoints.problem(str(tmp_path / name)) is not None
    assert checkpoints.newest_good(str(tmp_path)) == (None, names[::-1])


def test_folder_that_is_a_link_holds_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "real" / "step-1").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    assert checkpoints.names(str(tmp_path / "link")) == []
    assert list(plain.walk(str(tmp_path / "link"))) == []


@pytest.fixture
def deep_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder 1,500 deep; pytest's own cleaning does not get to its bottom."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    yield tmp_path
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_walk_goes_as_deep_as_folders_do(deep_folder: Path) -> None:
    (deep_folder / "top").write_text("x")
    (deep_folder / "away").symlink_to("/")
    paths = [path for path, _ in plain.walk(str(deep_folder))]
    assert paths[:2] == ["away", "top"]
    assert paths[2].endswith("/bottom") and paths[2].count("/") == 1_500
