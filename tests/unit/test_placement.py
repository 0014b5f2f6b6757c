"""Where a worker is: which host files mean the same one, and the argv that reaches it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runner.model import Host
from runner.placement import worker_argv, worker_key

PROGRAM = ["python3", "-c", "print('a b')", "", "$HOME", "*", "ü;x", "a'b\"c"]


def test_the_same_workspace_is_one_worker_whatever_else_the_files_say() -> None:
    one = Host("gpu1", ssh="drl@gpu1", workspace="~/runner")
    other = Host("big", ssh="gpu1.lan", workspace="~/runner/", image="torch-2.5", gpus="none")
    assert worker_key(one) == worker_key(other)


@pytest.mark.parametrize("workspace", ["~/runner2", "/data/runner", "~/RUNNER"])
def test_another_workspace_is_another_worker(workspace: str) -> None:
    assert worker_key(Host("a", workspace=workspace)) != worker_key(Host("a"))


def test_a_key_never_changes_from_version_to_version() -> None:
    # a container made by an older version must still be found
    assert worker_key(Host("a", ssh="a", workspace="~/runner")) == "74cc6138"


def test_local_needs_nothing_around_it() -> None:
    assert worker_argv(Host("local", runtime="local"), PROGRAM) == PROGRAM


def test_words_reach_the_container_as_they_are(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
    docker.chmod(0o755)
    host = Host("gpu1", ssh="gpu1")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    out = subprocess.run(worker_argv(host, PROGRAM), env=env, capture_output=True, check=True)
    words = out.stdout.decode().split("\0")[:-1]
    uid = subprocess.run(["id", "-u"], capture_output=True, check=True).stdout.decode().strip()
    assert words == ["exec", "-i", f"runner-{uid}-{worker_key(host)}", *PROGRAM]
