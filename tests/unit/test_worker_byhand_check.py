"""What an image run by hand refuses before anything starts: a line each, with the way out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import byhand_check
import pytest

KEY = "ssh-ed25519 " + "A" * 68 + " me@here\n"


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(byhand_check, "_user", list)  # the tests may be root's
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        os.chmod(folder, 0o755)
        workspace, keys = Path(folder) / "workspace", Path(folder) / "keys" / "authorized_keys"
        for name in ("code", "checkpoints", "logs"):
            (workspace / name).mkdir(parents=True)
        keys.parent.mkdir(mode=0o755)
        keys.write_text(KEY)
        keys.chmod(0o644)
        yield workspace


def said(root: Path, services: str = "sshd,jupyter", **environ: str) -> list[str]:
    keys = str(root.parent / "keys" / "authorized_keys")
    return byhand_check.problems({"RUNNER_SERVICES": services, **environ}, str(root), keys)


def test_all_is_well_and_nothing_is_left_behind(root: Path) -> None:
    assert said(root) == said(root, "jupyter", RUNNER_LISTEN="0.0.0.0") == []
    assert sorted(path.name for path in root.rglob("*")) == ["checkpoints", "code", "logs"]


def test_no_service_and_unknown_ones(root: Path) -> None:
    assert "RUNNER_SERVICES=jupyter,sshd" in said(root, "")[0]
    assert said(root, "jupiter sshd") == [
        "RUNNER_SERVICES: 'jupiter' is no service (did you mean jupyter?); "
        "there are: sshd, jupyter, tensorboard"
    ]
    assert ascii("\x1b[2J")[1:-1] in said(root, "\x1b[2J")[0]


@pytest.mark.parametrize("address", ["everywhere", "0.0.0.0\nPermitRootLogin yes", "0.0.0.0:22"])
def test_what_is_no_address(root: Path, address: str) -> None:
    [line] = said(root, RUNNER_LISTEN=address)
    assert line.startswith("RUNNER_LISTEN: ") and "is no IP address" in line and "\n" not in line


def test_without_a_key_there_is_no_sshd(root: Path) -> None:
    keys = root.parent / "keys" / "authorized_keys"
    keys.write_text("# nobody\n\n")
    assert "is empty" in said(root)[0] and said(root, "jupyter") == []
    keys.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert "holds a private key" in said(root)[0]
    keys.unlink()
    assert said(root) == [
        f"sshd has no key to let in; mount a public key: -v ~/.ssh/id_ed25519.pub:{keys}:ro"
    ]
    keys.mkdir()  # what Docker makes of a source that is not there
    assert "the file mounted there is not on the host" in said(root)[0]


def test_keys_that_others_may_write_are_refused(root: Path) -> None:
    (root.parent / "keys" / "authorized_keys").chmod(0o666)
    assert "others could add keys" in said(root)[0]
    assert said(root)[0].endswith("; on the host: chmod go-w what is mounted there")


@pytest.mark.skipif(os.getuid() != 0, reason="left out: root: only it can give a file away")
def test_keys_of_another_user_come_with_a_way_out(root: Path) -> None:
    keys = root.parent / "keys" / "authorized_keys"
    os.chown(keys, 4321, 4321)
    copy = "on the host, and mount COPY: sudo install -m 644 -o 1234 -g 1234 KEY.pub COPY"
    for path in (root, *root.iterdir()):
        os.chown(path, 1234, 1234)
    assert as_user(1234, root, "sshd") == [
        f"{keys} belongs to uid 4321 with mode 644: others could add keys; {copy}, "
        "or build the image for that user: make image RUNNER_UID=4321"
    ]
    keys.chmod(0o600)
    [line] = as_user(1234, root, "sshd")
    assert line == f"{keys} cannot be read by uid 1234: Permission denied; {copy}"


@pytest.mark.skipif(os.getuid() != 0, reason="left out: root: only it can give a folder away")
def test_a_folder_of_another_is_named_with_its_owner(root: Path) -> None:
    os.chown(root / "checkpoints", 0, 0)
    os.chown(root / "logs", 4321, 4321)
    for path in (root.parent, root, root / "code"):
        os.chown(path, 1234, 1234)
    lines = as_user(1234, root)
    assert lines == [
        f"{root}/checkpoints cannot be written: it belongs to uid 0 (root), this image's user is "
        "uid 1234; on the host: sudo chown 1234:1234 FOLDER",
        f"{root}/logs cannot be written: it belongs to uid 4321, this image's user is uid 1234; "
        "on the host: sudo chown 1234:1234 FOLDER, or build the image for that user: "
        "make image RUNNER_UID=4321",
    ]
    os.chown(root, 0, 0)
    root.chmod(0o700)
    assert len(as_user(1234, root)) == 1
    root.chmod(0o755)
    os.chown(root, 1234, 1234)
    (root / "code").chmod(0o500)
    assert as_user(1234, root)[0].endswith("by its owner; on the host: chmod u+rwx FOLDER")


def as_user(uid: int, root: Path, services: str = "jupyter") -> list[str]:
    """The same, said by a process of that user."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(uid)
            os.setuid(uid)
            os.write(write, "\n".join(said(root, services)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text.splitlines()


def test_other_mounts_below_the_workspace_are_looked_at(root: Path, tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    (root / "my data").mkdir()
    table.write_text(
        f"1 0 0:1 / / rw - overlay o rw\n2 1 8:1 /x {root}/my\\040data rw - ext4 d rw\n"
        f"3 1 8:1 /y {root}/code rw - ext4 d rw\n4 1 8:1 /z {root}/gone rw - ext4 d rw\n"
    )
    assert byhand_check.other_mounts(str(root), str(table)) == []
    looked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byhand_check, "unwritable", lambda path: looked.append(path) or path)
        assert byhand_check.other_mounts(str(root), str(table)) == [f"{root}/my data"]
    assert looked == [f"{root}/my data"]


def test_root_and_strangers_to_the_image_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert "does not run as root" in byhand_check._user()[0]
    monkeypatch.setattr(os, "getuid", lambda: 59_999)
    assert byhand_check._user() == [
        "uid 59999 is not this image's user; build one for it: make image RUNNER_UID=59999"
    ]
