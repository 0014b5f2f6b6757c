"""What no host file may show to its jobs."""

from __future__ import annotations

import pytest

from runner.data_rules import refused_data

HOME = "/home/drl"


@pytest.mark.parametrize("path", ["/data/atari", "/home/drl/sets", "/srv/run", "/home/drl/.sshx"])
def test_a_folder_of_data_is_one(path: str) -> None:
    assert refused_data(path, workspace="/home/drl/runner", home=HOME) is None


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/", "root of the file system"),
        ("//./", "root of the file system"),
        ("/proc/1/root", "kernel's"),
        ("/dev", "kernel's"),
        ("/run/docker.sock", "Docker socket"),
        ("/var/run", "Docker socket"),
        ("/run/user/7", "Docker socket"),
        ("/home/drl/.ssh", "lies in .ssh"),
        ("/home/drl/.ssh/keys", "lies in .ssh"),
        ("/home/drl/.local/state/runner/leases", "runner's own state"),
        ("/home/drl", "it holds .ssh"),
        ("/home/drl/.local/state", "it holds the runner's own state"),
        ("/work", "it is the workspace or holds it"),
        ("/work/ws", "it is the workspace or holds it"),
        ("/work/ws/runs", "it lies in the workspace"),
    ],
)
def test_what_is_refused(path: str, why: str) -> None:
    sockets = ("/run/docker.sock", "/var/run/docker.sock", "/run/user/7/docker.sock")
    said = refused_data(path, workspace="/work/ws", home=HOME, sockets=sockets)
    assert said is not None and why in said


def test_without_the_home_only_what_can_be_known_is_refused() -> None:
    assert refused_data("/home/drl", workspace="~/runner") is None
