from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from runner.errors import SpecError
from runner.grammar.secret import MOST_BYTES, files_inside, read_secrets


def value_of(sources: dict[str, str | None], name: str = "T") -> bytes:
    return base64.b64decode(read_secrets(sources)[name])


def test_a_variable_is_taken_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"T", b"a\xff\n")
    assert value_of({"T": None}) == b"a\xff\n"


@pytest.mark.parametrize(
    ("content", "value"),
    [(b"x", b"x"), (b"x\n", b"x"), (b"x\r\n", b"x"), (b"x\n\n", b"x\n"), (b" x ", b" x ")],
)
def test_a_file_loses_one_newline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, value: bytes
) -> None:
    (tmp_path / "t").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    assert value_of({"T": "t"}) == value
    assert value_of({"T": str(tmp_path / "t")}) == value


def test_the_largest_file_is_taken_and_one_byte_more_is_not(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(b"x" * MOST_BYTES + b"\n")
    assert len(value_of({"T": str(file)})) == MOST_BYTES
    file.write_bytes(b"x" * (MOST_BYTES + 1))
    with pytest.raises(SpecError, match="secret.T has over 65536 bytes"):
        read_secrets({"T": str(file)})


@pytest.mark.parametrize("content", [b"s3cr3t\0", b"", b"\n", b"s3cr3t" * 20000])
def test_what_cannot_be_a_variable_is_refused_without_its_value(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(SpecError, match="secret.T") as caught:
        read_secrets({"T": str(tmp_path / "t")})
    assert "s3cr3t" not in repr(caught.value) + " ".join(caught.value.advice)
    assert caught.value.advice[-1] == "nothing was sent"


def test_what_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("T", raising=False)
    with pytest.raises(SpecError, match="secret.T: the variable T is not set here") as caught:
        read_secrets({"T": None})
    assert caught.value.status == 2
    monkeypatch.setenv("T", "")
    with pytest.raises(SpecError, match="the variable T is empty here"):
        read_secrets({"T": None})
    with pytest.raises(SpecError, match="No such file"):
        read_secrets({"T": str(tmp_path / "none")})
    with pytest.raises(SpecError, match="Is a directory"):
        read_secrets({"T": str(tmp_path)})
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SpecError, match="not a regular file"):
        read_secrets({"T": str(tmp_path / "fifo")})


def test_many_large_ones_are_too_much_for_a_frame(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"x" * MOST_BYTES)
    with pytest.raises(SpecError, match="in all"):
        read_secrets({f"T{number}": str(tmp_path / "t") for number in range(17)})


def test_files_of_the_project_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "p"
    (root / "sub").mkdir(parents=True)
    (root / "key").write_text("x")
    (tmp_path / "link").symlink_to(root / "key")
    monkeypatch.chdir(root / "sub")
    sources = {"A": "../key", "B": None, "C": "mine", "D": str(tmp_path / "other")}
    assert files_inside(sources, root) == {"key": "A", "sub/mine": "C"}
    assert files_inside({"A": str(tmp_path / "link")}, root) == {"key": "A"}
