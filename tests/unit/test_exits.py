from __future__ import annotations

from pathlib import Path

import pytest

from runner.exits import report_bug, write_traceback


def test_a_traceback_goes_to_a_temporary_file_where_there_is_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = write_traceback(ValueError("x"))
    assert path is not None and path.parent == tmp_path
    assert "ValueError: x" in path.read_text()


def test_it_says_so_when_there_is_nowhere_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert report_bug(ValueError("\x1b\n" + "x" * 900)) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "  nowhere to write the traceback"
    assert lines[0].isprintable() and len(lines[0]) < 260
