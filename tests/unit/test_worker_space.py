from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import serve
import space
from paths import Workspace

from tests.helpers.small_disk import small_disk, use_up_inodes


def blocks(path: Path) -> int:
    return path.lstat().st_blocks * 512


def test_a_file_with_several_names_counts_where_it_is_met_first(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    (first / "x").write_bytes(b"x" * 50_000)
    os.link(first / "x", first / "y")
    os.link(first / "x", second / "x")
    (second / "own").write_bytes(b"x" * 10_000)
    seen = space.Seen()
    assert seen.count(str(first)) == blocks(first / "x") >= 50_000
    assert seen.count(str(second)) == blocks(second / "own")
    assert seen.count(str(tmp_path / "nothing")) == 0


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "big").write_bytes(b"x" * 100_000)
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    (tmp_path / "whole").symlink_to(outside)
    assert space.Seen().count(str(top)) < 10_000
    assert space.Seen().count(str(tmp_path / "whole")) == 0
    for path in (top, tmp_path / "whole"):
        space.remove(str(path), space.Freed())
        assert not os.path.lexists(path)
    assert (outside / "big").exists()


@pytest.mark.parametrize("dry", [True, False])
def test_room_comes_back_with_the_last_name(tmp_path: Path, dry: bool) -> None:
    inside = [tmp_path / "a", tmp_path / "b"]
    for folder in inside:
        folder.mkdir()
    (inside[0] / "both").write_bytes(b"x" * 50_000)
    os.link(inside[0] / "both", inside[1] / "both")
    (inside[0] / "kept").write_bytes(b"x" * 50_000)
    os.link(inside[0] / "kept", inside[1] / "kept")
    os.link(inside[0] / "kept", tmp_path / "kept")
    (inside[1] / "own").write_bytes(b"x" * 9_000)
    sizes = blocks(inside[0] / "both"), blocks(inside[1] / "own")
    freed = space.Freed()
    found = []
    for folder in inside:
        if dry:
            freed.add_below(str(folder))
        else:
            space.remove(str(folder), freed)
        found.append(freed.bytes)
    assert found == [0, sum(sizes)]
    assert inside[0].exists() is dry


def test_what_a_job_nested_without_end_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.getcwd()
    try:
        os.chdir(top)
        for _ in range(60):  # a path of more than 4096 bytes
            os.mkdir("n" * 100)
            os.chdir("n" * 100)
        Path("file").write_text("x" * 5000)
    finally:
        os.chdir(here)
    freed = space.Freed()
    try:
        space.remove(str(top), freed)
    finally:
        left = top.exists()
        subprocess.run(["rm", "-rf", top], check=True)
    assert not left
    assert freed.bytes >= 5000
    space.remove(str(top), freed)  # gone already


def test_what_a_job_closed_is_removed() -> None:
    home = Path(tempfile.mkdtemp(prefix="space-"))
    top = home / "top"
    (top / "closed/inner").mkdir(parents=True)
    (top / "closed/inner/file").write_text("x")
    nobody = 65534
    for path in (home, top, top / "closed", top / "closed/inner", top / "closed/inner/file"):
        if os.geteuid() == 0:  # whom no mode keeps out
            os.chown(path, nobody, nobody)
    for path in (top / "closed/inner", top / "closed"):
        path.chmod(0)
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(nobody)
                os.setuid(nobody)
            space.remove(str(top), space.Freed())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    left = top.exists()
    subprocess.run(["chmod", "-R", "u+rwx", home], check=True)
    shutil.rmtree(home)
    assert not left


def test_contents_are_swept_by_who_is_alone(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    workspace.make()
    using, sweeping = space.using_contents, space.sweeping_contents
    with using(workspace), using(workspace), sweeping(workspace) as alone:
        assert not alone
    with sweeping(workspace) as alone:
        assert alone
        code = "import sys; sys.path[:0] = sys.argv[2:]; import paths, space\n"
        code += "with space.using_contents(paths.Workspace(sys.argv[1])): print('in')"
        folder = str(Path(space.__file__).parent)
        argv = [sys.executable, "-c", code, str(tmp_path), folder]
        waiting = subprocess.Popen(argv, stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
    assert waiting.communicate(timeout=10)[0] == b"in\n"


@pytest.mark.parametrize(
    ("kind", "inodes", "left", "text"),
    [
        ("tmpfs", 30, 0, "no inodes left"),
        ("ramfs", None, None, "No space"),
        ("tmpfs", 9999, 1, "No"),
    ],
)
def test_no_room_for_files_is_told_from_no_room_for_bytes(
    tmp_path: Path, kind: str, inodes: int | None, left: int | None, text: str
) -> None:
    place = Workspace(str(tmp_path / "ws"))
    with small_disk(tmp_path / "ws", "1m", kind, inodes):
        place.make()
        if left == 0:
            use_up_inodes(tmp_path / "ws")
        files = space.room(place).files
        assert files == left if not left else files and files >= left
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        told = serve.os_refusal(place, error)
        assert (told["code"], told["errno"]) == ("no-space", errno.ENOSPC)
        assert text in told["text"]
    other = serve.os_refusal(place, OSError(errno.EIO, "broken"))
    assert other["code"] == "os"
