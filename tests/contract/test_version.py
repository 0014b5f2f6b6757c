"""Which version runs where."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from runner import __version__, wire
from runner.app import version
from runner.app.context import Context
from runner.errors import NotFound
from runner.model import Host, Project
from tests.helpers.hostile_worker import hostile_host
from tests.helpers.local_worker import LocalWorker, Notes


def test_this_side_alone_asks_nobody(local_worker: LocalWorker) -> None:
    (here,) = version.version(local_worker.ctx, None)
    assert (here.host, here.contact.state) == ("here", "ok")
    assert here.facts["runner"] == __version__
    assert here.facts["python"] == platform.python_version()
    assert not local_worker.workspace.exists()


def test_worker_says_what_it_is(local_worker: LocalWorker) -> None:
    local_worker.wait(local_worker.submit("true"))
    _, there = version.version(local_worker.ctx, "local")
    assert there.contact.state == "ok"
    assert there.facts["runner"] == __version__
    assert there.facts["wire"] == wire.WIRE
    assert there.facts["runtime"] == "local"
    assert str(there.facts["worker"]).startswith("w-")
    assert there.facts["workspace"] == str(local_worker.workspace)
    assert there.facts["launchers"] == []


def test_unknown_host(local_worker: LocalWorker) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        version.version(local_worker.ctx, "nowhere")


def test_silent_host_and_one_without_a_worker_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(host: Host) -> str:
        ctx = Context(Project(tmp_path, "p", "p"), {"bad": host}, Notes())
        _, there = version.version(ctx, "bad")
        assert there.contact.error is not None and "bad" in there.contact.error
        return there.contact.state

    host = hostile_host(tmp_path, monkeypatch.setenv, dies=True)
    assert ask(host) == "unreachable"
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexit 0\n")
    assert ask(host) == "no-worker"
