"""What it means when a program on a host ends without having spoken."""

from __future__ import annotations

import pytest

from runner.carriers.failures import docker_failure, program_failure
from runner.errors import ProvisionError, WorkerError

NO_RIGHT = (
    "permission denied while trying to connect to the Docker daemon socket at "
    "unix:///var/run/docker.sock: Get http://%2Fvar: connect: permission denied"
)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("Error: No such container: runner-1000-1a2b3c4d", "no worker"),
        ("Error response from daemon: Container 12 is not running", "container does not run"),
        ("Error response from daemon: Container 12 is restarting, wait", "container does not run"),
        (NO_RIGHT, "may not use Docker"),
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", "run"),
        ("sh: 1: exec: docker: not found", "no Docker"),
        ("bash: line 1: docker: command not found", "no Docker"),
    ],
)
def test_docker_words_become_advice(said: str, word: str) -> None:
    error = docker_failure("gpu1", said)
    assert isinstance(error, ProvisionError) and error.status == 4
    assert error.message.startswith("gpu1: ") and word in error.message


def test_a_worker_that_is_not_there_says_how_to_make_it() -> None:
    error = docker_failure("gpu1", "Error: No such container: x")
    assert error is not None and error.advice == ("runner provision host=gpu1",)


def test_other_words_are_quoted() -> None:
    error = program_failure("gpu1", 3, "line\nTraceback: it broke\n\n")
    assert isinstance(error, WorkerError)
    assert error.message == "gpu1: the worker program ended with status 3"
    assert error.advice == ("it said: Traceback: it broke",)
    assert "signal 9" in program_failure("gpu1", -9, "").message
