"""A diff of git's without the files that do not travel: pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_START = re.compile(rb"^diff --git ", re.MULTILINE)
_UNMERGED = re.compile(rb"^\* Unmerged path .*\n", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([abtnvfr\"\\]|[0-7]{3})")
_MEANING = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))


def filtered(diff: bytes, travels: Callable[[bytes], bool]) -> bytes:
    """The parts of a diff about files that travel; a deletion stays as the bare fact.

    diff: as `git diff-index -p --no-renames --irreversible-delete` prints it.
    """
    return b"".join(
        part
        for path, part in _parts(_UNMERGED.sub(b"", diff))
        if (travels(path) or _is_deletion(part)) and part.count(b"\n") > 1
    )


def _parts(diff: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each file's path and its part of the diff.

    No line inside begins like its head: those of a text have a sign before them, those of a binary
    file no blanks.
    """
    starts = [found.start() for found in _START.finditer(diff)]
    for start, end in zip(starts, [*starts[1:], len(diff)], strict=False):
        part = diff[start:end]
        yield _path(part[len(b"diff --git ") : part.find(b"\n")]), part


def _path(head: bytes) -> bytes:
    """The path in `a/PATH b/PATH`, both the same; either may be quoted, then both are."""
    half = head[: len(head) // 2]
    if half.startswith(b'"'):
        return _ESCAPE.sub(_meaning, half[1:-1])[2:]
    return half[2:]


def _meaning(found: re.Match[bytes]) -> bytes:
    what = found[1]
    return bytes([int(what, 8) if len(what) == 3 else _MEANING[what[0]]])


def _is_deletion(part: bytes) -> bool:
    return part.split(b"\n", 2)[1].startswith(b"deleted file mode ")
