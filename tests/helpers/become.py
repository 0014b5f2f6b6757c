"""This process as the operator: their home, their ssh, their folder for sockets."""

from __future__ import annotations

import pytest

from tests.rig.operator import Operator


def become(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> Operator:
    """Take on the operator's environment until the test ends."""
    for name in ("SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in operator.env.items():
        if name != "PYTHONPATH":
            monkeypatch.setenv(name, value)
    return operator
