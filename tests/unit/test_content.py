"""The worker bundle and the image context: what is in them, and that they never vary."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from runner import content


def names_in(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


def test_the_bundle_holds_the_worker_and_what_both_sides_share() -> None:
    names = list(json.loads(content.bundle().data))
    assert {"__main__.py", "dispatcher.py", "supervisord.conf"} <= set(names)
    assert [name for name in names if name.startswith("runner/")] == [
        "runner/__init__.py",
        "runner/files.py",
        "runner/flow.py",
        "runner/messages.py",
        "runner/outbox.py",
        "runner/passing.py",
        "runner/sending.py",
        "runner/states.py",
        "runner/sums.py",
        "runner/wire.py",
    ]


def test_the_bundle_is_named_by_its_bytes() -> None:
    bundle = content.bundle()
    assert bundle == content.bundle()
    assert bundle.digest == hashlib.sha256(bundle.data).hexdigest()


def test_the_bundle_holds_nothing_that_python_left_behind() -> None:
    assert not [name for name in json.loads(content.bundle().data) if "pycache" in name]


def test_the_image_context_is_whole() -> None:
    names = set(names_in(content.image_context()))
    assert {"Dockerfile", "entrypoint", "worker/__main__.py", "worker/runner/wire.py"} <= names
    assert content.image_context() == content.image_context()


def test_the_image_context_has_what_the_dockerfile_copies() -> None:
    lines = (content.root() / "Dockerfile").read_text().splitlines()
    asked = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert "requirements.txt" in asked
    assert asked <= set(names_in(content.image_context()))


def test_what_a_program_starts_with_decides_its_mode() -> None:
    with tarfile.open(fileobj=io.BytesIO(content.image_context())) as tar:
        assert tar.getmember("entrypoint").mode == 0o755
        assert tar.getmember("Dockerfile").mode == 0o644


def test_a_pack_does_not_depend_on_order_times_or_modes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    first = content.pack({"x/a": tmp_path / "a", "b": tmp_path / "b"})
    os.utime(tmp_path / "a", (1, 1))
    (tmp_path / "b").chmod(0o600)
    assert content.pack({"b": tmp_path / "b", "x/a": tmp_path / "a"}) == first
    (tmp_path / "a").write_text("other")
    assert content.pack({"b": tmp_path / "b", "x/a": tmp_path / "a"}) != first


def test_an_incomplete_installation_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_PACKAGE", tmp_path / "runner")
    with pytest.raises(RuntimeError, match="incomplete"):
        content.root()


def test_what_a_project_starts_from_is_found() -> None:
    assert content.images_file().is_file()
    assert content.agents_folder().is_dir() and content.hosts_folder().is_dir()
