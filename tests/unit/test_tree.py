"""What a project folder becomes without git: rows, modes, links, and what cannot travel."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from runner.code import tree
from runner.code.walk import DEEPEST
from runner.errors import SpecError
from runner.manifest import LeftOut, Snapshot


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside any git work tree, of somebody without rules of their own."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    return tmp_path


def put(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(snapshot: Snapshot) -> list[str]:
    return [row[0] for row in snapshot.rows]


def test_rows_say_path_mode_size_and_digest(root: Path) -> None:
    put(root, "a.py", "run.sh", "empty/.keep")
    (root / "run.sh").chmod(0o700)
    (root / "bare").mkdir()
    (root / "to-a").symlink_to("a.py")
    digest = hashlib.sha256(b"x").hexdigest()
    assert tree.read_snapshot(root).rows == (
        ("a.py", "f", 0o644, 1, digest),
        ("bare", "d", 0, 0, ""),
        ("empty/.keep", "f", 0o644, 1, digest),
        ("run.sh", "f", 0o755, 1, digest),
        ("to-a", "l", 0, 0, "a.py"),
    )


def test_edit_of_the_same_size_and_time_is_noticed(root: Path) -> None:
    put(root, "m.py", text="a=1")
    before = os.stat(root / "m.py")
    first = tree.read_snapshot(root)
    put(root, "m.py", text="a=2")
    os.utime(root / "m.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert tree.read_snapshot(root).digest != first.digest


def test_executable_bit_alone_makes_another_snapshot(root: Path) -> None:
    put(root, "run.sh")
    first = tree.read_snapshot(root)
    (root / "run.sh").chmod(0o755)
    assert tree.read_snapshot(root).digest != first.digest


def test_same_folder_is_the_same_snapshot(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    put(root, "b", "a", "d/c")
    put(other, "d/c", "a", "b")
    assert tree.read_snapshot(root).digest == tree.read_snapshot(other).digest


def test_never_sent(root: Path) -> None:
    put(
        root,
        "results/r",
        "build/b",
        "dist/d",
        "hosts/h.toml",
        ".venv/v",
        ".runner/x",
        "a.egg-info/p",
    )
    put(root, "__pycache__/a.pyc", "sub/__pycache__/a.pyc", "sub/.git", ".git/config")
    put(root, "sub/results/kept", "sub/build/kept", "hosts.py")
    assert names(tree.read_snapshot(root)) == ["hosts.py", "sub/build/kept", "sub/results/kept"]


def test_nested_rules_and_negations(root: Path) -> None:
    put(root, "a.log", "keep.log", "sub/a.log", "sub/keep.log", "sub/own.txt", "own.txt", "d/x")
    put(root, ".gitignore", text="*.log\n!keep.log\n/d/\n")
    put(root, "sub/.gitignore", text="keep.log\nown.txt\n!a.log\n")
    found = names(tree.read_snapshot(root))
    assert found == [".gitignore", "keep.log", "own.txt", "sub/.gitignore", "sub/a.log"]


def test_runnerignore_brings_back_and_has_the_last_word(root: Path) -> None:
    put(root, "data/keep.csv", "data/big.csv", "data/deep/keep.csv", "data/deep/x", "a.pt", "b.pt")
    put(root, ".gitignore", text="data/\n*.pt\n")
    put(root, ".runnerignore", text="!keep.csv\n!a.pt\n.gitignore\n")
    snapshot = tree.read_snapshot(root)
    assert names(snapshot) == [".runnerignore", "a.pt", "data/deep/keep.csv", "data/keep.csv"]
    assert snapshot.skipped == ("3 by .gitignore", "1 by .runnerignore")


def test_folder_from_which_nothing_is_brought_back_does_not_travel_empty(root: Path) -> None:
    put(root, "data/a/b", "a.py")
    put(root, ".gitignore", text="data/\n")
    put(root, ".runnerignore", text="!other.csv\n")
    assert names(tree.read_snapshot(root)) == [".gitignore", ".runnerignore", "a.py"]


def test_rule_inside_a_left_out_folder_brings_nothing_back(root: Path) -> None:
    put(root, "data/a")
    put(root, "data/.gitignore", text="!a\n")
    put(root, ".gitignore", text="data/\n")
    put(root, ".runnerignore", text="!other.csv\n")
    assert names(tree.read_snapshot(root)) == [".gitignore", ".runnerignore"]


def test_nested_runnerignore_has_the_last_word_below_its_folder(root: Path) -> None:
    put(root, "sub/a.csv", "sub/b.csv", "sub/deep/a.csv", "a.csv", "c.py", "sub/c.py")
    put(root, ".gitignore", text="b.csv\n")
    put(root, ".runnerignore", text="a.csv\n")
    put(root, "sub/.runnerignore", text="!/a.csv\n!b.csv\nc.py\n.runnerignore\n")
    snapshot = tree.read_snapshot(root, explain=True)
    assert names(snapshot) == [".gitignore", ".runnerignore", "c.py", "sub/a.csv", "sub/b.csv"]
    assert snapshot.left_out == (
        LeftOut("a.csv", ".runnerignore:1: a.csv"),
        LeftOut("sub/.runnerignore", "sub/.runnerignore:4: .runnerignore"),
        LeftOut("sub/c.py", "sub/.runnerignore:3: c.py"),
        LeftOut("sub/deep/a.csv", ".runnerignore:1: a.csv"),
    )


def test_runnerignore_in_a_left_out_folder_brings_back_from_it(root: Path) -> None:
    put(root, "data/keep.csv", "data/big.csv", "data/.gitignore", "other/x")
    put(root, ".gitignore", text="data/\nother/\n")
    put(root, "data/.runnerignore", text="!/keep.csv\n")
    snapshot = tree.read_snapshot(root, explain=True)
    assert names(snapshot) == [".gitignore", "data/keep.csv"]
    assert [item.path for item in snapshot.left_out] == [
        "data/.gitignore",
        "data/.runnerignore",
        "data/big.csv",
        "other/",
    ]


def test_later_line_of_runnerignore_about_a_folder_counts_for_all_below(root: Path) -> None:
    put(root, "data/a.csv", "data/b", "more/a.csv", "more/b")
    put(root, ".runnerignore", text="more/\n!*.csv\ndata/\n")
    assert names(tree.read_snapshot(root)) == [".runnerignore", "more/a.csv"]


def test_left_out_folders_are_not_entered_for_what_cannot_be_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "data/raw/x/y", "data/keep/deep/z", "other/x", "src/a.key")
    put(root, ".gitignore", text="data/\nother/\n")
    put(root, ".runnerignore", text="!/data/keep/**\n!/src/a.key\n!/data/r*\n!/data/raw/[z]/x\n")
    listed: list[str] = []
    really = os.scandir

    def scandir(path: str) -> object:
        listed.append(os.path.relpath(path, root))
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = names(tree.read_snapshot(root, None))
    assert "data/keep/deep/z" in found
    assert "other" not in listed
    assert "data/keep/deep" in listed


def test_rules_of_the_user_count_without_git_too(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    put(home, "git/ignore", text="*.swp\nb\n")
    put(root, "a", "a.swp", "b")
    put(root, ".gitignore", text="!b\n")
    snapshot = tree.read_snapshot(root, explain=True)
    assert names(snapshot) == [".gitignore", "a", "b"]
    assert snapshot.left_out == (LeftOut("a.swp", f"{home}/git/ignore:1: *.swp"),)


def test_rule_file_from_another_editor_means_the_same(root: Path) -> None:
    put(root, "a.log", "b.log", "x\u2028y", "x", "y")
    (root / ".gitignore").write_bytes(b"\xef\xbb\xbfa.log\r\nb.log\r\n!\nx\xe2\x80\xa8y\n\\\n")
    assert names(tree.read_snapshot(root)) == [".gitignore", "x", "y"]


def test_links_inside_travel_as_links(root: Path) -> None:
    put(root, "sub/f", "a/b/c")
    for name, target in {
        "b": "nowhere",
        "c": ".",
        "d": "sub/f",
        "a/up": "../sub/f",
        "a/b/top": "../../a",
        "loop": "loop",
        "folder": "sub",
    }.items():
        (root / name).symlink_to(target)
    rows = {row[0]: row[4] for row in tree.read_snapshot(root).rows if row[1] == "l"}
    assert rows == {
        "b": "nowhere",
        "c": ".",
        "d": "sub/f",
        "a/up": "../sub/f",
        "a/b/top": "../../a",
        "loop": "loop",
        "folder": "sub",
    }


def test_link_that_leaves_through_another_link_is_refused(root: Path) -> None:
    put(root, "a/b")
    (root / "here").symlink_to(".")
    (root / "a" / "out").symlink_to("../here/../x")
    with pytest.raises(SpecError, match=r"^a/out is a link that leaves the project \(to \.\./here"):
        tree.read_snapshot(root)
    (root / "a" / "out").unlink()
    (root / "a" / "in").symlink_to("../here/a/../a/b")
    assert ("a/in", "l", 0, 0, "../here/a/../a/b") in tree.read_snapshot(root).rows


@pytest.mark.parametrize("target", ["/etc/hostname", "..", "../x", "a/../../x", "./.././y"])
def test_link_that_leaves_is_refused_by_name(root: Path, target: str) -> None:
    put(root, "a/b")
    (root / "out").symlink_to(target)
    with pytest.raises(SpecError) as caught:
        tree.read_snapshot(root)
    assert "out is a link that leaves the project" in caught.value.message
    assert target in caught.value.message
    assert ".runnerignore" in caught.value.advice[0]
    put(root, ".runnerignore", text="out\n")
    assert names(tree.read_snapshot(root)) == [".runnerignore", "a/b"]


def test_names_of_odd_bytes(root: Path) -> None:
    odd = [b"a\xff\xfe", b"new\nline", b"\xc3\xbc", b"-rf", b" ", b"'q'\"", b"*?[", b"\x1b[31m"]
    for name in odd:
        (root / os.fsdecode(name)).write_text("x")
    found = [os.fsencode(name) for name in names(tree.read_snapshot(root))]
    assert sorted(found) == sorted(odd)


def test_odd_names_obey_rules_of_the_same_bytes(root: Path) -> None:
    (root / os.fsdecode(b"a\xff")).write_text("x")
    (root / os.fsdecode(b"b\xff")).write_text("x")
    (root / ".gitignore").write_bytes(b"a\xff\n")
    assert names(tree.read_snapshot(root)) == [".gitignore", "b\udcff"]


def test_what_is_no_file_is_left_out_and_said(root: Path) -> None:
    put(root, "a")
    os.mkfifo(root / "pipe")
    for number in range(4):
        os.mkfifo(root / f"pipe{number}")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(root / "b.sock"))
        snapshot = tree.read_snapshot(root, explain=True)
    assert names(snapshot) == ["a"]
    assert snapshot.skipped == ("6 not a file",)
    assert snapshot.warnings == ("left out, as no file: b.sock, pipe, pipe0 and 3 more",)
    assert snapshot.left_out[0] == LeftOut("b.sock", "not a file")


@pytest.fixture
def stranger() -> object:
    """Somebody whom file modes hold back, as they do not hold back root."""
    if os.geteuid() != 0:
        yield None
        return
    os.seteuid(65534)
    try:
        yield None
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("folder", [False, True])
def test_what_cannot_be_read_is_named(
    root: Path, folder: bool, request: pytest.FixtureRequest
) -> None:
    for parent in (root, *root.parents[:3]):
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(0o755)
    put(root, "secret/file")
    locked = root / "secret" if folder else root / "secret" / "file"
    locked.chmod(0)
    request.getfixturevalue("stranger")
    with pytest.raises(SpecError) as caught:
        tree.read_snapshot(root)
    assert f"{locked.relative_to(root)} cannot be read: Permission denied" in caught.value.message
    assert "nothing was sent" in caught.value.advice[0]


def test_what_is_left_out_need_not_be_readable(root: Path, request: pytest.FixtureRequest) -> None:
    """Though something in it might be brought back: the advice to leave it out must help."""
    for parent in (root, *root.parents[:3]):
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(0o755)
    put(root, "db/locked/x.md", "db/y.md", "db/z")
    put(root, ".runnerignore", text="db/\n!*.md\n")
    (root / "db/locked").chmod(0)
    request.getfixturevalue("stranger")
    snapshot = tree.read_snapshot(root, None, explain=True)
    assert names(snapshot) == [".runnerignore", "db/y.md"]
    assert LeftOut("db/locked/", ".runnerignore:1: db/") in snapshot.left_out


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_vanishes_during_the_walk_is_named(
    root: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "a", "b/c")
    place = root / "z"
    {"file": place.touch, "folder": place.mkdir, "link": lambda: place.symlink_to("a")}[what]()
    really = os.scandir

    def scandir(path: str) -> object:
        if os.path.basename(path) == "b":
            place.rmdir() if what == "folder" else place.unlink()
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SpecError, match="^z vanished meanwhile; type the same words again$"):
        tree.read_snapshot(root)


def test_link_in_the_place_of_a_file_is_not_followed(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_text("s")
    put(root, "a")
    really = os.open

    def swap(path: str, *rest: int, **more: int) -> int:
        if os.fspath(path).endswith("/a") and not (root / "a").is_symlink():
            (root / "a").unlink()
            (root / "a").symlink_to(outside)
        return really(path, *rest, **more)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(SpecError, match="a changes while it is read"):
        tree.read_snapshot(root)


def test_file_that_changed_since_it_was_read_is_not_sent(root: Path) -> None:
    put(root, "a")
    (row,) = tree.read_snapshot(root).rows
    assert b"".join(tree.read_content(root, "a", 1, row[4])) == b"x"
    put(root, "a", text="y")
    with pytest.raises(SpecError, match="a changed while it was sent"):
        list(tree.read_content(root, "a", 1, row[4]))
    (root / "a").unlink()
    with pytest.raises(SpecError, match="a vanished meanwhile"):
        list(tree.read_content(root, "a", 1, row[4]))


def test_facts_of_the_code_without_git(root: Path) -> None:
    put(root, "a", "b", text="xyz")
    assert tree.read_snapshot(root).code == {"files": 2, "bytes": 6}


def test_empty_project_is_a_snapshot(root: Path) -> None:
    snapshot = tree.read_snapshot(root)
    assert snapshot.rows == ()
    assert len(snapshot.digest) == 64


@pytest.mark.parametrize("name", [".gitignore", ".runnerignore"])
def test_rules_in_a_fifo_are_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(SpecError, match=f"{name} cannot be read: not a regular file"):
        tree.read_snapshot(tmp_path)


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    tmp_path.joinpath(*["d"] * (DEEPEST - 1)).mkdir(parents=True)
    tree.read_snapshot(tmp_path)
    tmp_path.joinpath(*["d"] * (DEEPEST + 1)).mkdir(parents=True)
    with pytest.raises(SpecError, match="d/d.*more than 200 folders"):
        tree.read_snapshot(tmp_path)
