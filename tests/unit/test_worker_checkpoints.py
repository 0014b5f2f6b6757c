from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import checkpoints
import pytest


def save(top: Path, name: str, step: int = 0, data: bytes = b"weights") -> Path:
    place = top / name
    place.mkdir()
    (place / "model.pt").write_bytes(data)
    files = {"model.pt": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    body = {"format": 1, "step": step, "metrics": {"eval/return": 1.5}, "files": files}
    (place / "manifest.json").write_text(json.dumps(body))
    return place


def test_unfinished_and_hidden_entries_do_not_count(tmp_path: Path) -> None:
    for name in ("step-2", "a.tmp", "b.part", ".bad-step-9", "step-10", "best.pt"):
        (tmp_path / name).mkdir()
    assert checkpoints.names(str(tmp_path)) == ["best.pt", "step-2", "step-10"]
    assert checkpoints.names(str(tmp_path / "none")) == []


def test_a_manifest_describes_its_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, "step-7", step=7)
    assert checkpoints.describe(str(tmp_path), "step-7") == {
        "name": "step-7",
        "step": 7,
        "bytes": 7,
        "verified": None,
        "metrics": {"eval/return": 1.5},
    }


def test_a_plain_file_is_a_checkpoint_too(tmp_path: Path) -> None:
    (tmp_path / "model_500.zip").write_bytes(b"12345")
    found = checkpoints.describe(str(tmp_path), "model_500.zip")
    assert (found["step"], found["bytes"]) == (500, 5)
    assert checkpoints.problem(str(tmp_path / "model_500.zip")) is None


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "manifest"])
def test_every_damage_is_seen(tmp_path: Path, damage: str) -> None:
    place = save(tmp_path, "step-1")
    assert checkpoints.problem(str(place)) is None
    if damage == "missing":
        (place / "model.pt").unlink()
    elif damage == "short":
        (place / "model.pt").write_bytes(b"weight")
    elif damage == "flipped":
        (place / "model.pt").write_bytes(b"weighTs")
    else:
        (place / "manifest.json").write_text("{torn")
    assert checkpoints.problem(str(place))


def test_the_newest_good_one_is_found_and_bad_ones_set_aside(tmp_path: Path) -> None:
    save(tmp_path, "step-000100")
    save(tmp_path, "step-000200")
    (save(tmp_path, "step-000300") / "model.pt").write_bytes(b"")
    good, bad = checkpoints.newest_good(str(tmp_path))
    assert good == str(tmp_path / "step-000200")
    assert bad == ["step-000300"]
    assert (tmp_path / ".bad-step-000300").is_dir()
    assert checkpoints.newest_good(str(tmp_path)) == (good, [])


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert checkpoints.newest_good(str(tmp_path)) == (None, [])


def test_setting_the_same_name_aside_twice(tmp_path: Path) -> None:
    for _ in range(2):
        (save(tmp_path, "step-1") / "model.pt").write_bytes(b"")
        assert checkpoints.newest_good(str(tmp_path)) == (None, ["step-1"])


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "/etc/passwd", ""])
def test_a_manifest_that_names_files_elsewhere_does_not_verify(tmp_path: Path, name: str) -> None:
    place = save(tmp_path, "step-1")
    body = json.loads((place / "manifest.json").read_text())
    body["files"][name] = {"bytes": 1, "sha256": "0"}
    (place / "manifest.json").write_text(json.dumps(body))
    assert checkpoints.problem(str(place)) == f"manifest.json names {name!r}"


def test_files_in_folders_of_a_checkpoint_are_verified_too(tmp_path: Path) -> None:
    place = save(tmp_path, "step-1")
    (place / "sub").mkdir()
    (place / "sub/a").write_bytes(b"abcd")
    body = json.loads((place / "manifest.json").read_text())
    body["files"]["sub/a"] = {"bytes": 4, "sha256": hashlib.sha256(b"abcd").hexdigest()}
    (place / "manifest.json").write_text(json.dumps(body))
    assert checkpoints.problem(str(place)) is None
    (place / "sub/a").write_bytes(b"abcx")
    assert checkpoints.problem(str(place)) == "sub/a is damaged"
    (place / "sub").rename(tmp_path / ".elsewhere")
    (place / "sub").symlink_to(tmp_path / ".elsewhere")
    assert checkpoints.problem(str(place)) == "sub/a lies in no folder of its own"


def test_a_manifest_without_files_does_not_verify(tmp_path: Path) -> None:
    (save(tmp_path, "step-1") / "manifest.json").write_text("{}")
    assert checkpoints.problem(str(tmp_path / "step-1")) == "manifest.json names no files"


def test_one_that_cannot_be_set_aside_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, "step-1")
    (save(tmp_path, "step-2" + "x" * 246) / "model.pt").write_bytes(b"")
    path, bad = checkpoints.newest_good(str(tmp_path))
    assert (path, len(bad)) == (str(tmp_path / "step-1"), 1)


def test_leftovers_behind_a_link_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other/.old-precious").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "other")
    checkpoints.remove_leftovers(str(tmp_path / "link"))
    assert (tmp_path / "other/.old-precious").is_dir()


def test_a_checkpoint_that_vanishes_while_it_is_described(tmp_path: Path) -> None:
    os.symlink("nowhere", tmp_path / "step-3")
    assert checkpoints.describe(str(tmp_path), "step-3")["bytes"] == 0
