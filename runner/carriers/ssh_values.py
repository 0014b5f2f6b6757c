"""What stands in the values of an ssh configuration: `~`, tokens, variables, lists of files.

`ssh -G` leaves most of it as written.
"""

from __future__ import annotations

import fnmatch
import os
import pwd
import re
import socket
from collections.abc import Mapping
from pathlib import Path


class Tokens:
    """Expands `~`, `${NAME}` and %-tokens as ssh_config(5) says."""

    def __init__(
        self,
        name: str,
        hostname: str,
        port: str,
        user: str,
        alias: str | None,
        environ: Mapping[str, str],
    ) -> None:
        self._environ = environ
        self._home, account = _account(environ)
        local = socket.gethostname()
        self._values = {
            "%": "%",
            "d": self._home,
            "h": hostname,
            "i": str(os.getuid()),
            "k": alias or name,
            "L": local.partition(".")[0],
            "l": local,
            "n": name,
            "p": port,
            "r": user,
            "u": account,
        }

    def expand(self, text: str | None, missing: list[str]) -> str | None:
        """`text` with its tokens replaced; one that is not known is added to `missing`."""
        if text is None:
            return None

        def token(match: re.Match[str]) -> str:
            value = self._values.get(match[1])
            if value is None:
                missing.append(f"%{match[1]} in {text}")
            return value or ""

        text = re.sub(r"%(.)", token, text)
        text = re.sub(r"\$\{(\w+)\}", lambda match: self._environ.get(match[1], ""), text)
        return self._home + text[1:] if text.startswith("~/") else text


def _account(environ: Mapping[str, str]) -> tuple[str, str]:
    """Home and name of this account; ssh looks at neither HOME nor USER."""
    try:
        person = pwd.getpwuid(os.getuid())
    except KeyError:
        return str(Path.home()), environ.get("USER", "")
    return person.pw_dir, person.pw_name


def existing_paths(text: str) -> list[str]:
    """The files in a list that `ssh -G` prints without quotes, though names may hold blanks."""
    paths: list[str] = []
    words = text.split(" ")
    while words:
        for count in range(len(words), 0, -1):
            path = os.path.expanduser(" ".join(words[:count]))
            if count == 1 or os.path.exists(path):
                paths.append(path)
                del words[:count]
                break
    return [path for path in paths if path and path != "none"]


def sent_environment(
    said: Mapping[str, tuple[str, ...]], environ: Mapping[str, str]
) -> dict[str, str]:
    """What SendEnv and SetEnv have a session begin with."""
    patterns = [word for line in said.get("sendenv", ()) for word in line.split()]
    sent = {
        name: value
        for name, value in environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    chosen = (line.partition("=") for line in said.get("setenv", ()))
    return {**sent, **{name: value for name, _, value in chosen}}


def agent_socket(
    text: str, tokens: Tokens, missing: list[str], environ: Mapping[str, str]
) -> str | None:
    """Where the agent listens; None when there is none to ask."""
    if text == "none":
        return None
    if text == "SSH_AUTH_SOCK":
        return environ.get("SSH_AUTH_SOCK")
    if text.startswith("$"):
        return environ.get(text[1:].strip("{}"))
    return tokens.expand(text, missing)
