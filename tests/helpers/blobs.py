"""Contents of snapshots for the tests: rows, packs, and a workspace that has some."""

from __future__ import annotations

import hashlib
from typing import Any

import contents as receiving
from paths import Workspace

from runner import wire


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file_row(path: str, data: bytes, mode: int = 0o644) -> list[Any]:
    return [path, "f", mode, len(data), digest(data)]


def pack(*contents: bytes) -> bytes:
    return b"".join(
        wire.PACK_HEAD.pack(hashlib.sha256(data).digest(), len(data)) + data for data in contents
    )


def store(workspace: Workspace, *contents: bytes) -> None:
    writer = receiving.BlobWriter(workspace, sizes(*contents))
    writer.feed(pack(*contents))
    writer.close()


def sizes(*contents: bytes) -> dict[str, int]:
    return {digest(data): len(data) for data in contents}
