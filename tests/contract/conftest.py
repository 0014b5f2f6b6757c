"""Fixtures of several files of tests: an operator of a real sshd, somebody with a crontab."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.helpers.become import become
from tests.helpers.cron_desk import CronDesk
from tests.helpers.local_worker import LocalWorker
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator


@pytest.fixture
def me(operator: Operator, sshd: RigHost, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """This process as an operator who reaches the rig's hosts."""
    return become(operator, monkeypatch)


@pytest.fixture(params=["openssh", "fabric"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each of the two ways."""
    return str(request.param)


@pytest.fixture
def desk(local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[CronDesk]:
    here = os.getcwd()
    made = CronDesk(local_worker)
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    yield made
    os.chdir(here)
