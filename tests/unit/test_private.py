"""The folder for sockets and key files: short, ours, closed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.carriers import private
from runner.errors import HostError


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="x-"))
    yield folder
    shutil.rmtree(folder)


def test_the_folder_is_for_the_owner_alone(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    folder = private.private_folder()
    assert folder == short_path / "runner" and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert private.private_folder().stat().st_mode & 0o777 == 0o700


def test_a_long_runtime_folder_is_not_used(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = short_path / ("x" * 80)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert private.private_folder() == Path(f"/tmp/runner-{os.getuid()}")
    assert len(str(private.socket_path("a"))) < 100


@pytest.mark.parametrize("name", ["a b", "a%h", 'a"b', "a'b", "a$b", "é"])
def test_a_runtime_folder_that_ssh_would_read_otherwise_is_not_used(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (short_path / name).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path / name))
    assert private.private_folder() == Path(f"/tmp/runner-{os.getuid()}")


def test_a_runtime_folder_where_nothing_can_be_made_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: True)  # as root is told also of /proc
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    assert private.private_folder() == Path(f"/tmp/runner-{os.getuid()}")


def test_what_lies_in_its_place_is_refused(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    (short_path / "elsewhere").mkdir()
    (short_path / "runner").symlink_to(short_path / "elsewhere")
    with pytest.raises(HostError, match="someone else"):
        private.private_folder()


def test_a_spoiled_key_file_is_written_anew(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    path = private.key_file("ssh-ed25519 AAAA")
    path.write_text("* ssh-ed25519 BBBB\n")
    assert private.key_file("ssh-ed25519 AAAA") == path
    assert path.read_text() == "* ssh-ed25519 AAAA\n"
