"""docs/never.md: each promise names tests that exist, and three of them are shown here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from runner.app.job_add import add_job

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/never.md"
UNPICKLE = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "torch", "joblib"}
REACH_OUT = {"http", "urllib", "requests", "httpx", "aiohttp", "ftplib", "smtplib", "xmlrpc"}

ASKED_FOR = {"runner/sending.py"}
"""Modules that reach out because the operator told them where to; the page names what they do."""
GIVEN_TO_A_SHELL = {"host_scripts.py", "questions.py", "stub.py", "quoting.py", "host_program.py"}
SCRIPT = """\
import argparse
open("ran", "w").close()
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.parse_args()
"""


def named() -> list[tuple[str, str]]:
    """(file, test) of each that the page names."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))


def test_every_test_that_is_named_exists() -> None:
    lost = [
        f"{file}::{test}"
        for file, test in named()
        if not (ROOT / file).is_file() or f"def {test}(" not in (ROOT / file).read_text("utf-8")
    ]
    assert not lost, "\n".join(lost)


def test_every_promise_names_a_test() -> None:
    promises = re.findall(r"^\| (?!never |---)(.+) \| (.*) \|$", PAGE.read_text("utf-8"), re.M)
    assert len(promises) > 15
    assert not [promise for promise, tests in promises if "::test_" not in tests]


def programs(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "_content" not in path.parts:
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> set[str]:
    """First names of everything that a module imports, wherever it does; not of `urllib.parse`,
    which reads texts alone."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module != "urllib.parse":
            found.add((node.module or "").partition(".")[0])
    return found


def test_nothing_is_unpickled_here() -> None:
    assert {
        str(p): found for p, tree in programs("runner") if (found := imports(tree) & UNPICKLE)
    } == {}


def test_the_operators_side_speaks_to_hosts_alone() -> None:
    """Over ssh, or to addresses in a file of the operator's own; sockets are opened by the
    carriers, and by forwarding on the loopback here."""
    found = {str(path.relative_to(ROOT)): imports(tree) for path, tree in programs("runner")}
    reach_out = {path for path, names in found.items() if names & REACH_OUT}
    assert reach_out == ASKED_FOR
    sockets = {path for path, names in found.items() if "socket" in names}
    others = {path for path in sockets if not path.startswith("runner/carriers/")}
    assert others == {"runner/flow.py", "runner/app/forwarding.py"}


def constants(tree: ast.Module) -> Iterator[str]:
    """Every text of a module but its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        ast.get_docstring(node, clean=False)
        for node in ast.walk(tree)
        if isinstance(node, documented)
    }
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and value not in docstrings:
            yield value


def test_nothing_is_started_with_sudo() -> None:
    """It is no word of an argv anywhere, and stands in no text that a host's shell is given."""
    for path, tree in programs("runner", "provisioning"):
        assert "sudo" not in set(constants(tree)), path
    for path, tree in programs("runner"):
        if path.name in GIVEN_TO_A_SHELL:
            assert not [text for text in constants(tree) if "sudo" in text], path
    for name in ("Dockerfile", "provisioning/entrypoint"):
        assert "sudo" not in (ROOT / name).read_text(encoding="utf-8")


def test_job_add_runs_nothing_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "runner.toml").write_text('name = "p"\nid = "p-1"\n')
    (tmp_path / "train.py").write_text(SCRIPT)
    add_job(tmp_path, "train.py", None)
    assert (tmp_path / "agents/train.toml").is_file()
    assert not (tmp_path / "ran").exists()
