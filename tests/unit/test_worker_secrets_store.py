from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import secrets_store
from paths import RunPaths, Workspace


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    workspace = Workspace(str(tmp_path / "ws"))
    workspace.make()
    return workspace.run("dqn-abcde")


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_what_is_written_is_read_and_removed(run: RunPaths) -> None:
    secrets_store.write(run, {"WANDB_API_KEY": b64(b"k \xff\n"), "B": b64(b"")})
    assert secrets_store.read(run, ["B", "WANDB_API_KEY"]) == {
        "B": b"",
        "WANDB_API_KEY": b"k \xff\n",
    }
    secrets_store.write(run, {"B": b64(b"new")})
    assert secrets_store.read(run, ["B", "WANDB_API_KEY"])["B"] == b"new"
    secrets_store.remove(run)
    assert not Path(run.secrets).exists()
    secrets_store.remove(run)


def test_only_the_account_can_read_them(run: RunPaths) -> None:
    before = os.umask(0)
    try:
        secrets_store.write(run, {"A": b64(b"x")})
    finally:
        os.umask(before)
    top = os.path.dirname(run.secrets)
    assert [mode(top), mode(run.secrets), mode(run.secrets + "/A")] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("name", ["B", "../A", ""])
def test_a_missing_one_is_named(run: RunPaths, name: str) -> None:
    secrets_store.write(run, {"A": b64(b"x")})
    with pytest.raises(secrets_store.Missing, match="the secret .* is not on the worker") as caught:
        secrets_store.read(run, ["A", name])
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("secrets", "says"),
    [
        ({"A": b64(b"x"), "../B": b64(b"x")}, "cannot be a secret's name"),
        ({"A": b64(b"x"), "B C": b64(b"x")}, "cannot be a secret's name"),
        ({"A": b64(b"x"), "B": "no base64!"}, "secret B cannot be read"),
        ({"A": b64(b"x"), "B": 7}, "secret B cannot be read"),
        ({"A": b64(b"x"), "B": b64(b"a\0b")}, "secret B cannot be an environment variable"),
        ({"A": b64(b"x"), "B": b64(b"x" * 65537)}, "secret B cannot be an environment variable"),
    ],
)
def test_bad_ones_are_refused_whole(run: RunPaths, secrets: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        secrets_store.write(run, secrets)
    assert not Path(run.secrets).exists()


def test_none_make_no_folder(run: RunPaths) -> None:
    secrets_store.write(run, {})
    assert not Path(run.secrets).exists()
    assert secrets_store.read(run, []) == {}
