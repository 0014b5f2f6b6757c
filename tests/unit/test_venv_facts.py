"""What a `venv` host answers, as a value: told by this machine, and cut short."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.model import Host
from runner.placement import worker_key
from runner.venv_facts import ANSWERS_IN_S, SCRIPT, VenvFacts, parse, words

CUT = "runner-0123"
HOST = Host("box", runtime="venv")
KEY = worker_key(HOST)


def asked(home: Path, python: str | None = None, script: str = SCRIPT) -> str:
    told = words(dataclasses.replace(HOST, python=python), "small")
    done = subprocess.run(
        ["sh", "-c", script, "runner", CUT, *told],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        capture_output=True,
        check=False,
        timeout=60,
        text=True,
    )
    return "\n" + done.stdout


def read(home: Path, python: str | None = None) -> VenvFacts:
    return parse(asked(home, python), CUT, KEY)


def test_a_bare_account_has_pythons_and_no_environment(tmp_path: Path) -> None:
    facts = read(tmp_path)
    assert facts.machine.home == str(tmp_path)
    assert facts.machine.docker_version is None
    assert facts.pythons and facts.pythons[0].version[0] == 3
    assert (facts.record, facts.links, facts.whole) == ({}, {}, frozenset())


def test_a_named_python_is_the_only_one_that_is_looked_at(tmp_path: Path) -> None:
    (only,) = read(tmp_path, sys.executable).pythons
    assert only.path == sys.executable
    assert only.version == tuple(sys.version_info[:3])
    assert only.alone == (sys.prefix == sys.base_prefix)
    assert read(tmp_path, "/nowhere/python3").pythons == ()


def test_a_python_that_does_not_answer_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nsleep 61.25\n")
    python.chmod(0o755)
    script = SCRIPT.replace(f" {ANSWERS_IN_S}'", " 1'")
    assert script != SCRIPT
    facts = parse(asked(tmp_path, str(python), script), CUT, KEY)
    assert (facts.pythons, facts.silent) == ((), (str(python),))
    seen = [each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline") if each.exists()]
    assert b"sleep\00061.25\0" not in seen


def test_where_environments_go_is_measured_and_named(tmp_path: Path) -> None:
    facts = read(tmp_path)
    found = os.statvfs(tmp_path)
    assert facts.free_bytes is not None
    assert abs(facts.free_bytes - found.f_bavail * found.f_frsize) < 1 << 30
    assert os.path.ismount(facts.mount)


def test_environments_and_what_points_to_them(tmp_path: Path) -> None:
    state = tmp_path / ".local/state/runner"
    own = state / f"workers/venv-{KEY}"
    (own / "pins").mkdir(parents=True)
    for name, is_whole in (("aaaa", True), ("bbbb", False)):
        (state / "venvs" / name / "bin").mkdir(parents=True)
        (state / "venvs" / name / "bin/python3").symlink_to(sys.executable)
        if is_whole:
            (state / "venvs" / name / "runner.json").write_text("{}")
    for name in ("cccc", ".gone-dddd"):
        (state / "venvs" / name).mkdir()
    (own / "current").symlink_to("../../venvs/aaaa")
    (own / "pins/small").symlink_to("../../../venvs/bbbb")
    (own / "worker.json").write_text(json.dumps({"host": "box"}))
    facts = read(tmp_path)
    assert facts.links == {"current": "aaaa", "small": "bbbb"}
    assert facts.whole == {"aaaa"}
    assert facts.unused == {"cccc", ".gone-dddd"}
    assert facts.record == {"host": "box"}


def test_an_answer_that_breaks_off_is_none(tmp_path: Path) -> None:
    text = asked(tmp_path).rsplit(f"{CUT} venv-end", 1)[0]
    with pytest.raises(ValueError, match="breaks off"):
        parse(text, CUT, KEY)
