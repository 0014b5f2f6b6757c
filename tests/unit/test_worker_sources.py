from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import checkpoints
import pytest
import records
import resumes
import snapshot
import sources
from paths import Workspace


def put(folder: Path, name: str, content: bytes = b"x", *, manifest: bool = True) -> Path:
    """A checkpoint of one file, `data/` beside it."""
    place = folder / name
    (place / "data").mkdir(parents=True)
    (place / "state.bin").write_bytes(content)
    (place / "data/inner").write_bytes(content * 2)
    if manifest:
        digest = hashlib.sha256(content).hexdigest()
        files = {"state.bin": {"bytes": len(content), "sha256": digest}}
        body = {"format": 1, "step": 1, "files": files, "metrics": {}}
        (place / "manifest.json").write_text(json.dumps(body))
    return place


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def take(source: Path, target: Path) -> str | None:
    return sources.take_newest(str(source), str(target))


def test_the_newest_is_linked_with_all_that_is_in_it(source: Path, target: Path) -> None:
    put(source, "step-1")
    newest = put(source, "step-2", b"two")
    (newest / "data/link").symlink_to("inner")
    os.mkfifo(newest / "data/pipe")
    assert take(source, target) == "step-2"
    assert [path.name for path in target.iterdir()] == ["step-2"]
    for name in ("state.bin", "data/inner", "manifest.json"):
        assert (target / "step-2" / name).samefile(newest / name)
    assert os.readlink(target / "step-2/data/link") == "inner"
    assert not (target / "step-2/data/pipe").exists()


def test_a_checkpoint_may_be_a_file(source: Path, target: Path) -> None:
    (source / "model-7.pt").write_bytes(b"weights")
    assert take(source, target) == "model-7.pt"
    assert (target / "model-7.pt").samefile(source / "model-7.pt")


def test_without_a_good_one_nothing_is_left(source: Path, target: Path) -> None:
    assert take(source, target) is None
    assert take(source / "nowhere", target) is None
    for name in ("step-1", "step-2"):
        (put(source, name) / "state.bin").write_bytes(b"y")
    (source / "step-3.tmp").mkdir()
    assert take(source, target) is None
    assert list(target.iterdir()) == []
    assert {path.name for path in source.iterdir()} == {"step-1", "step-2", "step-3.tmp"}


def test_a_damaged_one_is_passed_over_and_left_alone(source: Path, target: Path) -> None:
    put(source, "step-1")
    bad = put(source, "step-2")
    (bad / "state.bin").write_bytes(b"y")
    assert take(source, target) == "step-1"
    assert [path.name for path in target.iterdir()] == ["step-1"]
    assert bad.is_dir()


def test_across_devices_it_is_copied(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or os.stat(other).st_dev == os.stat(target).st_dev:
        pytest.skip("left out: two file systems: /dev/shm is not a second one")
    folder = other / f"sources-{os.getpid()}"
    newest = put(folder, "step-1", b"far")
    try:
        (newest / "data/link").symlink_to("inner")
        assert take(folder, target) == "step-1"
        copied = target / "step-1/state.bin"
        assert copied.read_bytes() == b"far"
        assert not copied.samefile(newest / "state.bin")
        assert os.readlink(target / "step-1/data/link") == "inner"
    finally:
        shutil.rmtree(folder)


def test_one_that_goes_meanwhile_is_not_half_taken(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, "step-1", manifest=False)
    plain_link, calls = os.link, []

    def link(place: str, *rest: str, **how: bool) -> None:
        calls.append(place)
        plain_link(place, *rest, **how)  # type: ignore[arg-type]
        if len(calls) == 1:
            # the source's keep rule: a newer one is there, this one goes
            put(source, "step-2", manifest=False)
            checkpoints.remove(str(source), "step-1")

    monkeypatch.setattr(os, "link", link)
    assert take(source, target) == "step-2"
    assert [path.name for path in target.iterdir()] == ["step-2"]
    assert (target / "step-2/data/inner").exists()


def test_one_that_its_job_deletes_meanwhile_is_not_taken(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may delete in place, and half of it may be gone before we look."""
    going = put(source, "step-1", manifest=False)
    (going / "state.bin").unlink()
    plain_link = os.link

    def link(place: str, *rest: str, **how: bool) -> None:
        plain_link(place, *rest, **how)  # type: ignore[arg-type]
        shutil.rmtree(going)

    monkeypatch.setattr(os, "link", link)
    assert take(source, target) is None
    assert list(target.iterdir()) == []


def test_a_spec_as_it_stands_has_every_resume(tmp_path: Path) -> None:
    paths = Workspace(str(tmp_path)).run("a-1")
    os.makedirs(paths.resumes)
    spec = {"id": "a-1", "params": {"steps": 1, "lr": 2}, "env": {"A": "1"}}
    assert sources.current_spec(paths, spec) == spec
    for number, steps in ((1, 5), (2, 9)):
        body = {"params": {"steps": steps}, "env": {f"R{number}": "x"}}
        records.write(resumes.path(paths, number), body)
    current = sources.current_spec(paths, spec)
    assert current["params"] == {"steps": 9, "lr": 2}
    assert current["env"] == {"A": "1", "R1": "x", "R2": "x"}


def test_what_is_gone_of_the_code_is_told(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    workspace.make()
    digest = hashlib.sha256(b"code").hexdigest()
    spec = {"id": "a-1", "snapshot": "0" * 64}
    assert sources.lost_code(workspace, spec) == "the list of its files"
    snapshot.write_tree(workspace, "0" * 64, [["a.py", "f", 0o644, 4, digest]])
    assert sources.lost_code(workspace, spec) == "1 of its files' contents"
    os.makedirs(os.path.dirname(workspace.blob(digest)))
    Path(workspace.blob(digest)).write_bytes(b"code")
    assert sources.lost_code(workspace, spec) is None
