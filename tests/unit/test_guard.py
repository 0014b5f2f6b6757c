"""What does not travel unless it is asked for: secrets, large files, too much in all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.code import guard, tree
from runner.errors import SpecError

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn\n-----END OPENSSH PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
SECRETS = {
    ".env": "A=1",
    "deploy/.env.local": "A=1",
    "id_rsa": "x",
    "keys/id_ed25519": "x",
    "ID_ECDSA": "x",
    "server.key": "x",
    "a.p12": "x",
    "b.PFX": "x",
    ".netrc": "machine api.wandb.ai",
    "_netrc": "x",
    ".pypirc": "x",
    ".git-credentials": "x",
    "credentials.json": "{}",
    "kubeconfig": "x",
    ".kube/config": "x",
    "home/.aws/credentials": "x",
    "chain.pem": CERTIFICATE + KEY,
    "notes.txt": "\n" + KEY,
    "rsa": "-----BEGIN RSA PRIVATE KEY-----\n",
    "bot.json": '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\n"}',
}
HARMLESS = {
    ".env.example": "A=",
    ".env.local.sample": "A=",
    ".env.template": "A=",
    ".environment": "x",
    "env": "x",
    "id_rsa.pub": "ssh-rsa AAAA",
    "ca.pem": CERTIFICATE,
    "keys.py": f"TEXT = '''{KEY}'''",
    "key": "x",
    "a.json": '{"private_key": null}',
    "config": "x",
    "credentials": "x",
    "credentials.json.py": "x",
    "kubeconfig.py": "x",
    ".netrc/x": "x",
    "empty.key": "",
}


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def large(root: Path, name: str, size: int) -> None:
    put(root, name, "")
    os.truncate(root / name, size)


def refusal(root: Path, **how: int) -> SpecError:
    with pytest.raises(SpecError) as caught:
        tree.read_snapshot(root, **how)  # type: ignore[arg-type]
    assert caught.value.advice[-1] == "nothing was sent"
    return caught.value


@pytest.mark.parametrize("name", SECRETS)
def test_secret_is_refused_by_name_and_can_be_left_out_or_sent(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, SECRETS[name])
    put(tmp_path, "a.py", "x")
    error = refusal(tmp_path)
    assert error.message.startswith(f"{name} (")
    assert error.message.endswith(") looks like a secret and would travel with the code")
    leave, send = (line.rpartition(":  ")[2] for line in error.advice[:2])
    put(tmp_path, ".runnerignore", leave)
    assert name not in {row[0] for row in tree.read_snapshot(tmp_path).rows}
    put(tmp_path, ".runnerignore", send)
    assert name in {row[0] for row in tree.read_snapshot(tmp_path).rows}
    put(tmp_path, ".runnerignore", "")
    assert refusal(tmp_path).message == error.message  # also when it was read before


def test_what_only_resembles_a_secret_travels(tmp_path: Path) -> None:
    for name, text in HARMLESS.items():
        put(tmp_path, name, text)
    rows = tree.read_snapshot(tmp_path).rows
    assert [row[0] for row in rows] == sorted(HARMLESS)


def test_first_few_of_many_are_named(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path, f"{number}/.env", "x")
    kind = "environment with secrets"
    assert refusal(tmp_path).message == (
        f"0/.env ({kind}), 1/.env ({kind}), 2/.env ({kind}) and 2 more look like secrets and "
        "would travel with the code"
    )


def test_line_of_a_nested_runnerignore_lets_a_secret_travel(tmp_path: Path) -> None:
    put(tmp_path, "sub/.env", "x")
    put(tmp_path, "sub/.runnerignore", "!.env\n")
    assert [row[0] for row in tree.read_snapshot(tmp_path).rows] == [
        "sub/.env",
        "sub/.runnerignore",
    ]


def test_folder_that_is_brought_back_does_not_bring_its_secrets(tmp_path: Path) -> None:
    put(tmp_path, "data/.env", "x")
    put(tmp_path, ".gitignore", "data/\n")
    put(tmp_path, ".runnerignore", "!data/\n")
    assert refusal(tmp_path).message.startswith("data/.env (")


def test_ignored_secret_is_nobodys_concern(tmp_path: Path) -> None:
    put(tmp_path, ".env", "x")
    put(tmp_path, ".gitignore", ".env\n")
    assert [row[0] for row in tree.read_snapshot(tmp_path).rows] == [".gitignore"]


@pytest.mark.parametrize("name", ["big [1].bin", "b*\\ig", "bi\ng "])
def test_large_file_is_refused_by_name_and_size(tmp_path: Path, name: str) -> None:
    large(tmp_path, name, guard.FILE_BYTES + 1)
    large(tmp_path, "just", guard.FILE_BYTES)
    error = refusal(tmp_path)
    assert error.message.endswith(
        " (50 MB) is a large file and would travel with the code (over 50 MB each is)"
    )
    assert error.message.isprintable()
    if name.isprintable():
        put(tmp_path, ".runnerignore", error.advice[1].rpartition(":  ")[2])
        assert {row[0] for row in tree.read_snapshot(tmp_path).rows} >= {name, "just"}


def test_too_much_in_all_names_the_largest_folders(tmp_path: Path) -> None:
    large(tmp_path, "data/raw/a/x", 40_000_000)
    large(tmp_path, "data/raw/b/x", 40_000_000)
    large(tmp_path, "data/y", 1_000_000)
    large(tmp_path, "src/model", 9_000_000)
    large(tmp_path, "z.bin", 2_000_000)
    put(tmp_path, "a.py", "x")
    error = refusal(tmp_path, limit_bytes=50_000_000)
    assert error.message == "the code is 92 MB; at most 50 MB travel"
    assert error.advice[0] == "largest: data/raw/ 81 MB, src/model 9.0 MB"
    assert error.advice[2] == 'or allow more in runner.toml: code_limit = "116m"'
    assert tree.read_snapshot(tmp_path, limit_bytes=92_000_001).code["bytes"] == 92_000_001


def test_nothing_is_read_before_sizes_and_names_are_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a", "x")
    large(tmp_path, "big", 60_000_000)
    monkeypatch.setattr(tree, "open_regular", None)
    refusal(tmp_path)
    assert not (tmp_path / ".runner").exists()
