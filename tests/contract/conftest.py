"""Fixtures of the tests that go to a real sshd from this process."""

from __future__ import annotations

import pytest

from tests.helpers.become import become
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
