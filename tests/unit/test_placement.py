"""Where a worker is: which host files mean the same one, and the argv that reaches it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runner.model import Host
from runner.placement import ANY, container_suffix, suffix_elsewhere, worker_argv, worker_key

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
    assert words == ["exec", "-i", f"runner-{uid}-{worker_key(host)}-torch-2.6", *PROGRAM]


def test_a_container_is_named_by_image_and_by_generation_once_it_is_old() -> None:
    host = Host("gpu1", ssh="gpu1", image="cpu")
    assert container_suffix(host) == "74cc6138-cpu"
    assert container_suffix(host, "other") == "74cc6138-other"
    assert container_suffix(host, "other", 3) == "74cc6138-other-old-3"


def test_where_a_worker_sends_us_to() -> None:
    host = Host("gpu1", ssh="gpu1")
    told = {"image": "cpu", "generation": 3, "active": False}
    assert suffix_elsewhere(host, told) == "74cc6138-cpu-old-3"
    assert suffix_elsewhere(host, {**told, "active": True}) == "74cc6138-cpu"
    for wrong in ({"image": '"; rm -rf ~; "'}, {"generation": "3"}, {"generation": -1}):
        assert suffix_elsewhere(host, {**told, **wrong}) is None
    assert suffix_elsewhere(host, {}) is None


def test_any_worker_of_the_workspace_is_found_by_its_label(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\n[ "$1" = exec ] || { printf "%s\\n" "$@" > "$0.asked"; cat "$0.ids"; exit; }\n'
        'for word in "$@"; do printf "%s\\0" "$word"; done\n'
    )
    docker.chmod(0o755)
    host = Host("gpu1", ssh="gpu1")
    argv = worker_argv(host, PROGRAM, container=ANY)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    (tmp_path / "docker.ids").write_text("new\nold\n")
    out = subprocess.run(argv, env=env, capture_output=True, check=True)
    assert out.stdout.decode().split("\0")[:-1] == ["exec", "-i", "new", *PROGRAM]
    asked = (tmp_path / "docker.asked").read_text().splitlines()
    uid = subprocess.run(["id", "-u"], capture_output=True, check=True).stdout.decode().strip()
    assert f"label=org.runner.key={worker_key(host)}" in asked
    assert f"name=^/?runner-{uid}-{worker_key(host)}-" in asked and "status=running" in asked
    (tmp_path / "docker.ids").write_text("")
    none = subprocess.run(argv, env=env, capture_output=True, check=False)
    assert none.returncode == 1 and b"No such container" in none.stderr
