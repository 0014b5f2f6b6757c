"""Finds what travels with the runner, and packs it: the worker bundle, the image context.

A checkout, plain or editable, has `provisioning/` and `Dockerfile` beside `runner/`; an installed
wheel has them in `runner/_content`. Both packs are deterministic: same content, same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PACKAGE = Path(__file__).parent
_SHARED = (
    *("__init__.py", "files.py", "flow.py", "messages.py", "outbox.py", "passing.py", "sending.py"),
    *("states.py", "sums.py", "wire.py"),
)
"""Modules of `runner` that the worker shares."""
_IMAGE_FILES = ("entrypoint", "packages.py", "requirements.txt")
"""What the Dockerfile copies beside the worker."""
_NOT_CONTENT = ("__pycache__", ".pyc", ".pyo", "~", ".orig", ".swp")


class Bundle(NamedTuple):
    """The worker program: a JSON table of names and texts, the shared modules in `runner/`."""

    digest: str
    data: bytes


def root() -> Path:
    """The folder that holds `provisioning/`, `agents/`, `hosts/` and `Dockerfile`."""
    for folder in (_PACKAGE / "_content", _PACKAGE.parent):
        if (folder / "provisioning" / "worker").is_dir() and (folder / "Dockerfile").is_file():
            return folder
    raise RuntimeError(
        f"this runner is incomplete: no provisioning/worker and Dockerfile near {_PACKAGE}"
    )


def worker_folder() -> Path:
    """The worker program's own files."""
    return root() / "provisioning" / "worker"


def agents_folder() -> Path:
    """The agents that `runner init` copies."""
    return root() / "agents"


def hosts_folder() -> Path:
    """The examples of host files that `runner init` copies."""
    return root() / "hosts"


def images_file() -> Path:
    """The image pins."""
    return root() / "provisioning" / "images.toml"


def bundle() -> Bundle:
    """The worker program. The digest is that of `data`."""
    files = sorted(_bundle_files().items())
    texts = {name: path.read_text(encoding="utf-8") for name, path in files}
    data = json.dumps(texts, separators=(",", ":")).encode("ascii")
    return Bundle(hashlib.sha256(data).hexdigest(), data)


def image_context() -> bytes:
    """The tar that `docker build -` takes: Dockerfile, what it copies, the worker in `worker/`."""
    files = {f"worker/{name}": path for name, path in _bundle_files().items()}
    files["Dockerfile"] = root() / "Dockerfile"
    files.update({name: root() / "provisioning" / name for name in _IMAGE_FILES})
    return pack(files)


def _bundle_files() -> dict[str, Path]:
    folder = worker_folder()
    files = {path.relative_to(folder).as_posix(): path for path in _files_in(folder)}
    files.update({f"runner/{name}": _PACKAGE / name for name in _SHARED})
    return files


def _files_in(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(_NOT_CONTENT)]
        yield from (Path(top, name) for name in names if not name.endswith(_NOT_CONTENT))


def pack(files: dict[str, Path]) -> bytes:
    """A tar of `files` (name in it, file): sorted, without owners and times, mode 0644 or 0755."""
    import tarfile  # only provisioning needs it

    folders = {
        "/".join(parts[:count])
        for parts in (name.split("/") for name in files)
        for count in range(1, len(parts))
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted([*files, *folders]):
            info = tarfile.TarInfo(name)
            if name in folders:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
                continue
            data = files[name].read_bytes()
            info.size = len(data)
            info.mode = 0o755 if data.startswith(b"#!") else 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
