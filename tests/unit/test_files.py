"""What is no regular file is refused at once, never waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.files import read_regular


def test_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "link") == b"x"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, says in ((tmp_path / "fifo", "not a regular file"), (tmp_path, "Is a directory")):
        with pytest.raises(OSError, match=says):
            read_regular(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_regular("/dev/zero")
