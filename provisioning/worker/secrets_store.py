"""A run's secrets on the worker: files that only the account reads, gone when the run has ended.

.runner/secrets/RUN/NAME holds the value, byte for byte. Values come in a request's frame, base64,
and are in no record, argv or log.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
from typing import Any, Dict, Iterable

import plain
import records
from paths import RunPaths

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
"""What may be a secret's name: it becomes an environment variable and a file."""
MOST_BYTES = 64 * 1024
"""Of one value: execve takes 128 KiB for a variable at most."""


class Missing(KeyError):
    """A secret that the run was given is not there; `str` of it names the secret."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        text = "the secret %s is not on the worker; give it again with secret.%s"
        return text % (self.name, self.name)


def write(paths: RunPaths, secrets: Dict[str, Any]) -> None:
    """Keep `{"NAME": base64}` for a run, beside and over what it has already.

    Raises ValueError for what is no name or value; then nothing was written.
    """
    values = {name: _decoded(name, text) for name, text in secrets.items()}
    if not values:
        return
    for folder in (os.path.dirname(paths.secrets), paths.secrets):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            os.chmod(folder, 0o700)
    for name, value in values.items():
        records.write_new_bytes(os.path.join(paths.secrets, name), value, mode=0o600)


def read(paths: RunPaths, names: Iterable[str]) -> Dict[str, bytes]:
    """{name: value} of the secrets named. Raises Missing for the first that is not there."""
    out = {}
    for name in names:
        if not NAME.match(str(name)):
            raise Missing(str(name))
        try:
            with open(plain.open_file(os.path.join(paths.secrets, name)), "rb") as file:
                out[name] = file.read()
        except FileNotFoundError:
            raise Missing(name) from None
    return out


def remove(paths: RunPaths) -> None:
    """Forget all secrets of a run; it may have none."""
    shutil.rmtree(paths.secrets, ignore_errors=True)


def _decoded(name: str, text: Any) -> bytes:
    if not NAME.match(name):
        raise ValueError("%r cannot be a secret's name" % name)
    try:
        value = base64.b64decode(text, validate=True)
    except (TypeError, binascii.Error, ValueError):
        raise ValueError("the value of the secret %s cannot be read" % name) from None
    if len(value) > MOST_BYTES or b"\0" in value:
        raise ValueError(
            "the secret %s cannot be an environment variable: over %d bytes, or a NUL in it"
            % (name, MOST_BYTES)
        )
    return value
