"""The values of secrets, read where the operator keeps them; they go to the worker alone.

`secret.NAME` is the operator's variable NAME, `secret.NAME=@FILE` what a file holds, without the
newline at its end. No error, record or `repr` has a value in it.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path

from runner.errors import SpecError
from runner.fields import said
from runner.files import open_regular
from runner.grammar.values import NOTHING_SENT

MOST_BYTES = 64 * 1024
"""Of one value: it becomes an environment variable, which Linux keeps below 128 KiB."""
MOST_BYTES_IN_ALL = 1 << 20


def read_secrets(sources: Mapping[str, str | None]) -> dict[str, str]:
    """Each secret's value in base64, as it travels. Raises SpecError.

    sources: name to the file that holds it, relative to the working folder; None: the variable.
    """
    values = {
        name: _variable(name) if file is None else _content(name, file)
        for name, file in sources.items()
    }
    if sum(map(len, values.values())) > MOST_BYTES_IN_ALL:
        raise SpecError(f"the secrets have over {MOST_BYTES_IN_ALL} bytes in all", NOTHING_SENT)
    return {name: base64.b64encode(value).decode("ascii") for name, value in values.items()}


def _variable(name: str) -> bytes:
    value = os.environb.get(name.encode("ascii"))
    if not value:
        raise SpecError(
            f"secret.{name}: the variable {name} is {'not set' if value is None else 'empty'} here",
            f"secret.{name}=@FILE takes it from a file",
            NOTHING_SENT,
        )
    return _checked(name, value)


def _content(name: str, file: str) -> bytes:
    try:
        with open_regular(Path(file)) as opened:
            value = opened.read(MOST_BYTES + 3)
    except OSError as error:
        raise SpecError(f"secret.{name}: {said(file)}: {error.strerror}", NOTHING_SENT) from error
    if value.endswith(b"\n"):
        value = value[:-1].removesuffix(b"\r")
    if not value:
        raise SpecError(f"secret.{name}: {said(file)} is empty", NOTHING_SENT)
    return _checked(name, value)


def _checked(name: str, value: bytes) -> bytes:
    if len(value) > MOST_BYTES:
        raise SpecError(f"secret.{name} has over {MOST_BYTES} bytes", NOTHING_SENT)
    if b"\0" in value:
        raise SpecError(f"secret.{name} has a NUL byte, which no variable holds", NOTHING_SENT)
    return value


def files_inside(sources: Mapping[str, str | None], root: Path) -> dict[str, str]:
    """Path below `root` to the name of each secret whose file lies there."""
    found = {}
    for name, file in sources.items():
        if file is None:
            continue
        typed = Path(os.path.abspath(file))
        for path in (typed, typed.resolve()):
            for top in (root, root.resolve()):
                if path.is_relative_to(top):
                    found[str(path.relative_to(top))] = name
    return found
