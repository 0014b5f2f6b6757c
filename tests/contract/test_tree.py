"""A project folder in a git work tree, and that the rules mean the same without git."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from runner.code import tree
from runner.errors import SpecError
from runner.manifest import LeftOut, Snapshot

pytestmark = pytest.mark.usefixtures("git")
AS_SOMEBODY = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the machine's or the user's own has a say."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GIT_DIR", raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty git work tree."""
    folder = tmp_path / "p"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def git(folder: Path, *words: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env["GIT_CONFIG_NOSYSTEM"] = "1"
    argv = ["git", *AS_SOMEBODY, *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, check=True, env=env, timeout=60)
    return os.fsdecode(done.stdout)


def put(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(snapshot: Snapshot) -> list[str]:
    return [row[0] for row in snapshot.rows]


def travel(root: Path) -> list[str]:
    return names(tree.read_snapshot(root))


def test_untracked_files_travel_and_ignored_ones_do_not(root: Path) -> None:
    put(root, "new.py", "a.log", "sub/keep.log", "sub/b.log", "data/x")
    put(root, ".gitignore", text="*.log\ndata/\n")
    put(root, "sub/.gitignore", text="!keep.log\n")
    snapshot = tree.read_snapshot(root)
    assert names(snapshot) == [".gitignore", "new.py", "sub/.gitignore", "sub/keep.log"]
    assert snapshot.skipped == ("3 by .gitignore",)


def test_tracked_files_travel_though_a_rule_matches_them(root: Path) -> None:
    put(root, "d/tracked", "d/other", "d/deep/x", "a.log", "b.log")
    put(root, ".gitignore", text="d/\n*.log\n")
    git(root, "add", "-f", "d/tracked", "a.log")
    assert travel(root) == [".gitignore", "a.log", "d/tracked"]


def test_what_is_on_disk_travels_not_what_is_committed(root: Path) -> None:
    put(root, "a", "gone")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    put(root, "a", text="edited")
    (root / "gone").unlink()
    ((path, _, _, size, _),) = tree.read_snapshot(root).rows
    assert (path, size) == ("a", 6)


def test_rules_of_the_repository_above_and_of_the_user_count(root: Path, tmp_path: Path) -> None:
    put(root, "p/a.py", "p/a.tmp1", "p/a.mine", "p/a.info")
    put(root, ".gitignore", text="*.tmp1\n")
    put(root, ".git/info/exclude", text="*.info\n")
    put(tmp_path, "config/git/ignore", text="*.mine\n")
    assert travel(root / "p") == ["a.py"]


def test_case_of_names_is_as_git_is_told(root: Path) -> None:
    put(root, "A.LOG", "b.log", "c.py")
    put(root, ".gitignore", text="*.log\n")
    git(root, "config", "core.ignorecase", "true")
    assert travel(root) == [".gitignore", "c.py"]
    git(root, "config", "core.ignorecase", "false")
    assert travel(root) == [".gitignore", "A.LOG", "c.py"]


def test_rule_file_that_is_a_link_or_a_folder_has_no_rules(root: Path) -> None:
    put(root, "a.py", "b.log", "sub/c.log", "rules", text="*.log\n")
    (root / ".gitignore").symlink_to("rules")
    (root / "sub" / ".gitignore").mkdir()
    expected = [".gitignore", "a.py", "b.log", "rules", "sub/.gitignore", "sub/c.log"]
    assert travel(root) == expected
    shutil.rmtree(root / ".git")
    assert travel(root) == expected


def test_runnerignore_comes_after_git_and_brings_back(root: Path) -> None:
    put(root, "data/keep.csv", "data/big/x", "data/big/keep.csv", "tracked.py", "a.py")
    put(root, ".gitignore", text="data/\n")
    put(root, ".runnerignore", text="!keep.csv\ntracked.py\n")
    git(root, "add", "tracked.py")
    expected = [".gitignore", ".runnerignore", "a.py", "data/big/keep.csv", "data/keep.csv"]
    assert travel(root) == expected


def test_ignored_folders_do_not_travel_empty_when_something_is_brought_back(root: Path) -> None:
    put(root, "data/a/b/c", "deps/x/y", "a.py")
    (root / "deps" / "void").mkdir()
    put(root, ".gitignore", text="data/\ndeps/\n")
    put(root, ".runnerignore", text="!nothing.csv\n")
    assert travel(root) == [".gitignore", ".runnerignore", "a.py"]


def test_empty_folders_travel_also_in_git(root: Path) -> None:
    (root / "out" / "deep").mkdir(parents=True)
    put(root, "a")
    assert travel(root) == ["a", "out/deep"]


def test_repository_within_is_read_by_its_own_rules(root: Path) -> None:
    put(root, "a.py", "lib/b.py", "lib/data/big", "lib/sub/x.o", "lib/sub/x.c")
    put(root, "lib/.gitignore", text="data/\n*.o\n")
    git(root / "lib", "init", "-q")
    assert travel(root) == ["a.py", "lib/.gitignore", "lib/b.py", "lib/sub/x.c"]


def test_submodule_travels_with_its_files(root: Path, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    put(lib, "b.py", "junk.o")
    put(lib, ".gitignore", text="*.o\n")
    git(lib, "init", "-q")
    git(lib, "add", ".")
    git(lib, "commit", "-qm", "1")
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(lib), "lib")
    put(root, "lib/more.o", "a.py")
    assert travel(root) == [".gitmodules", "a.py", "lib/.gitignore", "lib/b.py"]
    (root / "lib" / ".git").write_text("gitdir: /nowhere\n")
    snapshot = tree.read_snapshot(root)
    assert names(snapshot) == [".gitmodules", "a.py", "lib/.gitignore", "lib/b.py"]
    assert [text.partition(" (")[0] for text in snapshot.warnings] == [
        "lib/.git is of no use to git"
    ]


def test_a_folder_that_is_no_repository_after_all_obeys_the_one_around_it(root: Path) -> None:
    put(root, ".gitignore", text="*.ckpt\n")
    put(root, "in/.gitignore", text="*.log\n")
    put(root, "in/.git", text="garbage")
    put(root, "in/a.py", "in/x.ckpt", "in/y.log")
    assert travel(root) == [".gitignore", "in/.gitignore", "in/a.py"]


def test_project_that_an_outer_repository_ignores_is_read_by_its_own_rules(
    root: Path,
) -> None:
    put(root, ".gitignore", text="*\n")
    put(root, "p/a.py", "p/data/x", "p/sub/y.log")
    put(root, "p/.gitignore", text="data/\n*.log\n")
    assert travel(root / "p") == [".gitignore", "a.py"]
    assert tree.read_snapshot(root / "p").warnings == ()
    put(root, "p/sub/deep/b.py", "p/sub/deep/b.log")
    assert travel(root / "p" / "sub" / "deep") == ["b.log", "b.py"]
    assert tree.read_snapshot(root / "p" / "sub" / "deep").warnings == ()
    shutil.rmtree(root / "p" / "sub")
    (root / ".git" / "HEAD").unlink()
    assert travel(root / "p") == [".gitignore", "a.py"]


@pytest.mark.parametrize("broken", ["index", "HEAD", "config", "file"])
def test_broken_repository_is_read_by_its_rule_files(root: Path, broken: str) -> None:
    put(root, "a.py", "data/x", "a.log")
    put(root, ".gitignore", text="data/\n*.log\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    if broken == "index":
        os.truncate(root / ".git" / "index", 10)
    elif broken == "file":
        (root / ".git").rename(root.parent / "elsewhere")
        (root / ".git").write_text("gitdir: /nowhere\n")
    else:
        (root / ".git" / broken).write_text("\0nonsense[")
    assert travel(root) == [".gitignore", "a.py"]
    (warning,) = tree.read_snapshot(root).warnings
    assert warning.startswith(".git is of no use to git (")
    assert warning.endswith("; the .gitignore files are read without it")


def test_without_git_installed_the_rules_are_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "a.py", "data/x", "sub/y.log", "sub/keep.log")
    put(root, ".gitignore", text="data/\n*.log\n")
    put(root, "sub/.gitignore", text="!keep.log\n")
    with_git = travel(root)
    monkeypatch.setenv("PATH", "/nowhere")
    assert travel(root) == with_git == [".gitignore", "a.py", "sub/.gitignore", "sub/keep.log"]
    (warning,) = tree.read_snapshot(root).warnings
    assert "git is not installed here" in warning


def test_git_variables_of_a_hook_do_not_lead_elsewhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    put(root, "a.py", "b.log")
    put(root, ".gitignore", text="*.log\n")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert travel(root) == [".gitignore", "a.py"]


def test_the_repository_is_not_touched(root: Path) -> None:
    put(root, "a", "b")
    git(root, "add", "a")
    git(root, "commit", "-qm", "1")
    os.utime(root / "a", (1, 1))  # git would like to note this in its index
    before = {p: p.stat().st_mtime_ns for p in (root / ".git").rglob("*")}
    tree.read_snapshot(root)
    assert {p: p.stat().st_mtime_ns for p in (root / ".git").rglob("*")} == before


def test_facts_of_the_code(root: Path) -> None:
    put(root, "a", "b", "c", "d e")
    assert tree.read_snapshot(root).code["commit"] is None
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    commit = git(root, "rev-parse", "HEAD").strip()
    clean = {"commit": commit, "branch": "main", "edited": 0, "untracked": 0, "diff_bytes": 0}
    clean |= {"files": 4, "bytes": 4}
    assert tree.read_snapshot(root).code == clean
    put(root, "a", text="zz")
    git(root, "mv", "b", "2 b")
    (root / "c").unlink()
    put(root, "? new")
    put(root, "away/x", "away/y", ".runnerignore", text="away/\n")
    put(root, "fresh/x", "fresh/y")
    snapshot = tree.read_snapshot(root)
    assert snapshot.diff is not None
    assert snapshot.code == clean | {
        "edited": 7,
        "untracked": 4,
        "files": 7,
        "bytes": 13,
        "diff_bytes": len(snapshot.diff),
    }
    git(root, "checkout", "-q", "--detach")
    assert tree.read_snapshot(root).code["branch"] == "(detached)"


def test_each_path_left_out_has_its_rule(root: Path, tmp_path: Path) -> None:
    put(root, "p/a.py", "p/data/x/y", "p/logs/b.log", "p/sub/c.tmp", "p/lib/d.o", "p/lib/d.c")
    put(root, "p/one.py", "p/results/r", "p/mine", "p/here", "p/above/x", "p/kept.log")
    put(root, ".gitignore", text="/p/above/\n")
    put(root, ".git/info/exclude", text="\nhere\n")
    put(root, "p/.gitignore", text="data/\n*.log\n!kept.log\n")
    put(root, "p/sub/.gitignore", text="*.tmp  \n")
    put(root, "p/.runnerignore", text="# not there\none.*\n!kept.log\n")
    put(root, "p/lib/.gitignore", text="*.o\n")
    put(tmp_path, "config/git/ignore", text="mine\n")
    git(root / "p" / "lib", "init", "-q")
    snapshot = tree.read_snapshot(root / "p", explain=True)
    assert {item.path: item.rule for item in snapshot.left_out} == {
        "above/": "../.gitignore:1: /p/above/",
        "data/": ".gitignore:1: data/",
        "here": "../.git/info/exclude:2: here",
        "lib/.git/": "runner itself",
        "lib/d.o": "lib/.gitignore:1: *.o",
        "logs/": ".gitignore:2: *.log",
        "mine": f"{tmp_path}/config/git/ignore:1: mine",
        "one.py": ".runnerignore:2: one.*",
        "results/": "runner itself",
        "sub/c.tmp": "sub/.gitignore:1: *.tmp",
    }
    assert snapshot.skipped == ("7 by .gitignore", "1 by .runnerignore")
    assert tree.read_snapshot(root / "p").left_out == ()


def test_folder_of_which_nothing_travels_has_the_rule_of_its_contents(root: Path) -> None:
    put(root, "d/e/x", "a.py")
    put(root, ".gitignore", text="*\n!*/\n!a.py\n!.gitignore\n")
    snapshot = tree.read_snapshot(root, explain=True)
    assert names(snapshot) == [".gitignore", "a.py"]
    assert [item for item in snapshot.left_out if item.path == "d/"] == [
        LeftOut("d/", ".gitignore:1: *")
    ]


def test_the_diff_is_of_what_travels(root: Path) -> None:
    put(
        root,
        "a.py",
        "odd \u00fc\t.py",
        "b",
        "gone",
        "away/secret",
        "typed",
        "same",
        "e",
        text="1\n",
    )
    put(root, ".runnerignore", text="away/\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    put(root, "a.py", "odd \u00fc\t.py", "away/secret", text="diff --git a/x b/x\nunsent\n")
    (root / "b").write_bytes(b"\0\xff" * 100)
    (root / "gone").unlink()
    (root / "typed").unlink()
    (root / "typed").symlink_to("a.py")
    (root / "e").chmod(0o755)
    os.utime(root / "same", (1, 1))
    put(root, "new.py")
    snapshot = tree.read_snapshot(root)
    assert snapshot.diff is not None
    heads = [line for line in snapshot.diff.split(b"\n") if line.startswith(b"diff --git")]
    assert heads == [
        b"diff --git a/a.py b/a.py",
        b"diff --git a/b b/b",
        b"diff --git a/e b/e",
        b"diff --git a/gone b/gone",
        'diff --git "a/odd \u00fc\\t.py" "b/odd \u00fc\\t.py"'.encode(),
        b"diff --git a/typed b/typed",
        b"diff --git a/typed b/typed",
    ]
    assert b"away" not in snapshot.diff
    assert b"GIT binary patch" in snapshot.diff
    assert snapshot.diff.count(b"unsent") == 2
    assert b"-1" not in snapshot.diff[snapshot.diff.index(b"a/gone") :].split(b"diff --git")[0]
    assert snapshot.code["diff_bytes"] == len(snapshot.diff)


def test_the_diff_is_seen_from_the_project(root: Path) -> None:
    put(root, "p/a", "p/away", "other", text="1\n")
    put(root, "p/.runnerignore", text="away\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    put(root, "p/a", "p/away", "other", text="2\n")
    snapshot = tree.read_snapshot(root / "p")
    assert snapshot.diff is not None
    assert snapshot.diff.startswith(b"diff --git a/a b/a\n")
    assert b"other" not in snapshot.diff
    assert (snapshot.code["edited"], snapshot.code["untracked"]) == (1, 0)


def test_a_large_diff_is_not_kept(root: Path) -> None:
    put(root, "a")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    put(root, "a", text="line\n" * 400_000)
    snapshot = tree.read_snapshot(root)
    assert snapshot.diff is None
    assert snapshot.code["diff_bytes"] > 2_000_000


def test_the_diff_runs_nothing_that_is_configured(root: Path, tmp_path: Path) -> None:
    put(root, "a.txt", text="1\n")
    put(root, ".gitattributes", text="*.txt diff=mine\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    ran = tmp_path / "ran"
    for name in ("diff.mine.textconv", "diff.mine.command", "diff.external", "core.pager"):
        git(root, "config", name, f"touch {ran}; cat")
    git(root, "config", "core.fsmonitor", f"touch {ran}; false")
    git(root, "config", "diff.noprefix", "true")
    git(root, "config", "color.ui", "always")
    put(root, "a.txt", text="2\n")
    snapshot = tree.read_snapshot(root)
    assert snapshot.diff is not None
    assert snapshot.diff.endswith(b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+2\n")
    assert not ran.exists()


def test_no_filter_of_the_repository_is_run(root: Path, tmp_path: Path) -> None:
    put(root, "a.txt", "b.dat", "c.own", text="1\n")
    put(root, ".gitattributes", text="*.txt filter=mine\n*.dat filter=a.b\n*.own filter=user\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    ran, own = tmp_path / "ran", tmp_path / "own"
    git(root, "config", "filter.mine.clean", f"touch {ran}; cat")
    git(root, "config", "filter.mine.required", "true")
    git(root, "config", "filter.a.b.process", f"touch {ran}")
    (tmp_path / ".gitconfig").write_text(f'[filter "user"]\nclean = "touch {own}; tr 2 1"\n')
    put(root, "a.txt", "b.dat", "c.own", text="2\n")
    snapshot = tree.read_snapshot(root)
    assert not ran.exists()
    assert own.exists()  # the user's own, as of git-lfs, means what it means to git
    assert snapshot.diff is not None
    assert snapshot.diff.count(b"\n-1\n+2\n") == 2


def test_missing_objects_are_not_fetched(root: Path, tmp_path: Path) -> None:
    """A partial clone lacks what the diff needs; its remote may be behind a passphrase."""
    put(root, "a", text="1\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    git(root, "config", "uploadpack.allowFilter", "true")
    allow = ("-c", "protocol.file.allow=always")
    clone = tmp_path / "clone"
    git(root, *allow, "clone", "-qn", "--filter=blob:none", root.as_uri(), os.fspath(clone))
    ran = tmp_path / "ran"
    git(clone, "config", "remote.origin.url", "host.invalid:it")
    git(clone, "config", "core.sshCommand", f"touch {ran}; false")
    git(clone, "reset", "-q")
    put(clone, "a", text="2\n")
    snapshot = tree.read_snapshot(clone)
    assert not ran.exists()
    assert names(snapshot) == ["a"]
    assert snapshot.diff is None
    assert snapshot.code["edited"] == 1


def test_edits_in_repositories_within_count(root: Path, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    put(lib, "b.py")
    git(lib, "init", "-q")
    git(lib, "add", ".")
    git(lib, "commit", "-qm", "1")
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(lib), "lib")
    git(root, "commit", "-qm", "1")
    assert tree.read_snapshot(root).code["edited"] == 0
    put(root, "lib/b.py", text="other")
    assert tree.read_snapshot(root).code["edited"] == 1
    put(root, "new/c.py", "empty/d.log")
    put(root, ".runnerignore", text="*.log\n")
    for name in ("new", "empty"):
        git(root / name, "init", "-q")
    code = tree.read_snapshot(root).code
    assert (code["edited"], code["untracked"]) == (3, 2)  # lib, new, .runnerignore


def test_a_file_that_was_there_for_a_moment_is_no_edit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, "a.py", "b.py")
    git(root, "add", ".")
    git(root, "commit", "-qm", "1")
    (root / "b.py").unlink()
    slow = tmp_path / "bin/git"
    put(
        tmp_path,
        "bin/git",
        text=f"""#!/bin/sh
mkdir -p .runner; touch .runner/it.$$.tmp
{shutil.which("git")} "$@"; status=$?
rm .runner/it.$$.tmp; exit $status
""",
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    code = tree.read_snapshot(root).code
    assert (code["edited"], code["untracked"]) == (1, 0)


def test_the_diff_holds_no_secret_of_an_emptied_file(root: Path) -> None:
    put(root, ".env", text="TOKEN=hidden\n")
    put(root, "a.py", text="1\n")
    git(root, "add", "-f", ".")
    git(root, "commit", "-qm", "1")
    put(root, ".env", text="")
    snapshot = tree.read_snapshot(root)
    assert names(snapshot) == [".env", "a.py"]
    assert snapshot.diff == b""
    assert snapshot.code["edited"] == 1


def test_names_of_odd_bytes_are_ignored_like_others(root: Path) -> None:
    for name in (b"a\xff.log", b"b\xff.py", b"new\nline.log", b'q".py'):
        (root / os.fsdecode(name)).write_text("x")
    put(root, ".gitignore", text="*.log\n")
    assert travel(root) == [".gitignore", "b\udcff.py", 'q".py']


def test_file_that_changes_while_it_is_read_is_named(root: Path) -> None:
    put(root, "growing.log")
    os.truncate(root / "growing.log", 30_000_000)
    stop = threading.Event()

    def grow() -> None:
        with open(root / "growing.log", "ab", buffering=0) as file:
            while not stop.wait(0.001):
                file.write(b"x")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        with pytest.raises(SpecError, match=r"growing\.log changes while it is read.*runnerignore"):
            tree.read_snapshot(root)
    finally:
        stop.set()
        thread.join()


# the same meaning with git and without

PARTS = ["a", "b", "data", "x.log", "y.py", "a b", "[z]", "#h", "!n", ".e", "ü", "a ", "z9", "-"]
PARTS += ["a\\", "\udcff", "tab\t", "cr\r", "A", "]"]
RULES = [
    *("a", "b/", "/data", "data/", "*.log", "!x.log", "a/b", "/a/*", "!/a/b", "**/b", "a/**"),
    *("a/**/x.log", "*.py", "!y.py", "[ab]", "[!ab]", "?", "data/*.log", "!data/", "\\#h", "\\!n"),
    *("# a comment", "", "a b", "a\\ b", "*", "!*/", "!*.py", ".*", "\\[z\\]", "/*/b", "**", "ü"),
    *("b/**", "!b/a", "*/", "a*", "!a*", "data/**/b", "/x.log", "*.l[o-p]g", "a/", "!a/", "b "),
    *(
        "a\\ ",
        "a  ",
        "!a\\ ",
        "data  ",
        "tab\t",
        "cr\r",
        "a\r",
        "a/\r",
        "\r",
        "\udcff",
        "!\udcff",
        "[\x80-\xff]",
    ),
    *("[[:alpha:]]", "![[:digit:]]", "*[[:digit:]]", "[[:alpha:]", "[[:none:]]", "[b-a]", "[]a]"),
    *(
        "[!]a]",
        "[^a]",
        "[a\\-z]",
        "[\\]]",
        "[a-",
        "[",
        "a\\",
        "a\\\\",
        "*\\",
        "!",
        "/",
        "//",
        "data**/b",
    ),
    *(
        "da**",
        "**/**",
        "***/b",
        "a/**b",
        "/**/x.log",
        "a**/",
        "\\a",
        "\\-",
        "-",
        "z?",
        "?9",
        "*/*",
        "a//b",
    ),
]


def grow_tree(root: Path, rng: random.Random) -> None:
    for _ in range(rng.randrange(5, 25)):
        path = root.joinpath(*rng.choices(PARTS, k=rng.randrange(1, 5)))
        if not any(parent.is_file() for parent in path.parents) and not path.is_dir():
            put(root, os.fspath(path.relative_to(root)))
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in rng.sample(folders, min(len(folders), rng.randrange(1, 4))):
        rules = rng.choices(RULES, k=rng.randrange(1, 7))
        text = rng.choice(["\n", "\n", "\r\n"]).join(rules) + rng.choice(["", "\n"])
        mark = rng.choice([b"", b"", b"\xef\xbb\xbf"])
        (folder / ".gitignore").write_bytes(mark + text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("seeds", [range(50), range(50, 100)], ids=str)
def test_rules_mean_without_git_what_they_mean_to_git(tmp_path: Path, seeds: range) -> None:
    wrong = []
    (tmp_path / "config" / "git").mkdir(parents=True)
    (tmp_path / "config" / "git" / "ignore").write_text("*.py\n!a/y.py\n/data/x.log\n")
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        grow_tree(folder, random.Random(seed))
        without = tree.read_snapshot(folder).rows
        git(folder, "init", "-q")
        listed = git(folder, "ls-files", "-z", "-co", "--exclude-standard")
        by_git = {name for name in listed.split("\0") if name}
        with_git = tree.read_snapshot(folder).rows
        if without != with_git or {row[0] for row in with_git if row[1] == "f"} != by_git:
            rules = {
                os.fspath(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob(".gitignore")
            }
            wrong.append((seed, rules, {row[:2] for row in set(without) ^ set(with_git)}))
    assert not wrong, "\n".join(map(repr, wrong))


@pytest.mark.parametrize("seeds", [range(30), range(30, 60)], ids=str)
def test_rules_of_a_repository_that_git_cannot_read_mean_the_same(
    tmp_path: Path, seeds: range
) -> None:
    """Also those above the project and those kept beside it."""
    wrong = []
    compared = 0
    for seed in seeds:
        top = tmp_path / str(seed)
        folder = top / "a" / "data"
        folder.mkdir(parents=True)
        rng = random.Random(seed)
        grow_tree(folder, rng)
        git(top, "init", "-q")
        for name in (".git/info/exclude", ".gitignore", "a/.gitignore"):
            rules = rng.choices([rule for rule in RULES if "\udcff" not in rule], k=1)
            (top / name).write_text("\n".join(rules))
        if not git(folder, "ls-files", "-o", "--exclude-standard"):
            continue  # all of it is left out: then only its own rules count
        compared += 1
        with_git = tree.read_snapshot(folder)
        (top / ".git" / "HEAD").unlink()
        without = tree.read_snapshot(folder)
        assert len(without.warnings) == 1
        if without.rows != with_git.rows:
            wrong.append((seed, {row[:2] for row in set(without.rows) ^ set(with_git.rows)}))
    assert not wrong, "\n".join(map(repr, wrong))
    assert compared > 10
