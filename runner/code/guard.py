"""What does not travel unless it was asked for: secrets, large files, too much in all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from runner.code.complaints import RUNNERIGNORE, shown, size_text
from runner.code.patterns import escaped
from runner.code.walk import File
from runner.errors import SpecError
from runner.grammar.values import NOTHING_SENT

FILE_BYTES = 50 * 10**6
"""A single file that is larger is hardly code."""
NAMED = 3
"""How many files a refusal names."""

_KEY = "private key"
_PASSWORDS = "passwords"
_CREDENTIALS = "credentials"
_KINDS = {
    r"id_(?:rsa|dsa|ecdsa|ed25519)|[^/]*\.(?:key|p12|pfx|ppk)": _KEY,
    r"[._]netrc|\.pypirc|\.pgpass|\.git-credentials": _PASSWORDS,
    r"credentials\.json|kubeconfig|\.aws/credentials|\.kube/config": _CREDENTIALS,
    r"\.env(?:\.(?!(?:[^/]*\.)?(?:example|sample|template)\Z)[^/]+)?": "environment with secrets",
}
_BY_NAME = re.compile(
    "(?:^|/)(?:" + "|".join(f"({name})" for name in _KINDS) + r")\Z", re.IGNORECASE
)
_BEGINS_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_ANY_KEY = b"PRIVATE KEY-----"


def secret_by_name(path: str) -> str | None:
    """What a file of this name holds, where that should not travel."""
    found = _BY_NAME.search(path)
    return None if found is None else list(_KINDS.values())[(found.lastindex or 1) - 1]


def secret_by_content(path: str, begin: bytes) -> str | None:
    """The same by the first bytes of what it holds, a MiB at most."""
    if _BEGINS_KEY.match(begin[:200].lstrip()):
        return _KEY
    ending = path[path.rfind(".") :].lower()
    if ending == ".pem" and _ANY_KEY in begin:
        return _KEY
    if ending == ".json" and b'"private_key"' in begin and _ANY_KEY in begin:
        return "key of a service account"
    return None


def check(files: Sequence[File], limit_bytes: int) -> None:
    """Before anything is read. Raises SpecError for what should not travel, by name and size."""
    wary = [file for file in files if not file.is_asked_for]
    refuse_secrets(
        (file.path, kind)
        for file in wary
        if file.stat.st_size and (kind := secret_by_name(file.path)) is not None
    )
    _refuse_large([file for file in wary if file.stat.st_size > FILE_BYTES])
    whole = sum(file.stat.st_size for file in files)
    if whole > limit_bytes:
        raise SpecError(
            f"the code is {size_text(whole)}; at most {size_text(limit_bytes)} travel",
            f"largest: {', '.join(_largest(files))}",
            f"leave out what runs do not need by lines in {RUNNERIGNORE},",
            f'or allow more in runner.toml: code_limit = "{_limit_above(whole)}"',
            NOTHING_SENT,
        )


def refuse_secrets(found: Iterable[tuple[str, str]]) -> None:
    """Raises SpecError for these, pairs of path and kind, if there are any."""
    pairs = list(found)
    if not pairs:
        return
    names = some([f"{shown(path)} ({kind})" for path, kind in pairs])
    what = "looks like a secret" if len(pairs) == 1 else "look like secrets"
    raise SpecError(f"{names} {what} and would travel with the code", *_way_out(pairs[0][0]))


def _refuse_large(files: Sequence[File]) -> None:
    if not files:
        return
    by_size = sorted(files, key=lambda file: -file.stat.st_size)
    names = some([f"{shown(file.path)} ({size_text(file.stat.st_size)})" for file in by_size])
    what = "is a large file" if len(files) == 1 else "are large files"
    raise SpecError(
        f"{names} {what} and would travel with the code (over {size_text(FILE_BYTES)} each is)",
        *_way_out(by_size[0].path),
    )


def _way_out(path: str) -> tuple[str, ...]:
    rule = shown(escaped(path))
    return (
        f"to leave it out, a line in {RUNNERIGNORE}:  {rule}",
        f"to send it all the same, a line there:  !{rule}",
        NOTHING_SENT,
    )


def some(names: Sequence[str]) -> str:
    """The first few of these names, and how many more there are."""
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _largest(files: Sequence[File]) -> list[str]:
    """What is largest at the root, each as deep as nearly all of it lies."""
    found = _parts(files, "")
    out = []
    for place, size in found[:NAMED]:
        if size < 0.05 * found[0][1]:
            break
        while place.endswith("/") and (inside := _parts(files, place)[0])[1] >= 0.9 * size:
            place = inside[0]
        out.append(f"{shown(place)} {size_text(size)}")
    return out


def _parts(files: Sequence[File], folder: str) -> list[tuple[str, int]]:
    """What is directly in a folder with all that is below it, largest first."""
    sizes: dict[str, int] = {}
    for file in files:
        if file.path.startswith(folder):
            head, slash, _ = file.path[len(folder) :].partition("/")
            name = folder + head + slash
            sizes[name] = sizes.get(name, 0) + file.stat.st_size
    return sorted(sizes.items(), key=lambda item: -item[1])


def _limit_above(count: int) -> str:
    """A limit with some room, as runner.toml takes it."""
    unit, name = (10**9, "g") if count > 10**9 else (10**6, "m")
    return f"{int(count * 1.25 / unit) + 1}{name}"
