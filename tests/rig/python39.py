"""A real Python 3.9, to run what workers run: the machine's, else Debian bullseye's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.rig.base_image import LIMIT_S, Say, bootstrap
from tests.rig.paths import Unavailable
from tests.rig.processes import locked

PROBE = "import ctypes, json, sys; print('%d.%d' % sys.version_info[:2])"


def find_python39(cache: Path) -> Path | None:
    """An executable that was run and said 3.9 (a name on PATH may be a stub)."""
    for candidate in _candidates(cache):
        if _says_39(candidate):
            return candidate
    return None


def make_python39(cache: Path, say: Say) -> Path:
    """One that is there, else one unpacked into the cache (as root; about 40 s)."""
    found = find_python39(cache)
    if found is not None:
        return found
    if os.geteuid() != 0:
        raise Unavailable("no python3.9 runs here, and only root can unpack one")
    if shutil.which("debootstrap") is None:
        raise Unavailable("no python3.9 runs here, and debootstrap is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "python39.lock", wait_s=LIMIT_S, refusal="held by {holder}"):
        found = find_python39(cache)
        if found is None:
            tree = cache / "bullseye"
            new = cache / "bullseye.new"
            shutil.rmtree(new, ignore_errors=True)
            bootstrap(new, cache, "bullseye", ["python3"], say)
            shutil.rmtree(tree, ignore_errors=True)
            new.rename(tree)
            _write_front(tree)
            found = find_python39(cache)
    if found is None:
        raise Unavailable("the python3.9 of Debian bullseye does not run here")
    return found


def _candidates(cache: Path) -> Iterator[Path]:
    on_path = shutil.which("python3.9")
    if on_path:
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/3.9*/bin/python3.9"))
    yield cache / "bullseye" / "python3.9"


def _write_front(tree: Path) -> None:
    """A plain executable for the tree's interpreter, on the tree's own C library."""
    front = tree / "python3.9"
    here, there = tree / "lib/x86_64-linux-gnu", tree / "usr/lib/x86_64-linux-gnu"
    loader = next(here.glob("ld-*.so"))  # lib64 names it by a link that starts at the root
    start = f'"{loader}" --library-path "{here}:{there}" "{tree}/usr/bin/python3.9"'
    front.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
    front.chmod(0o755)


def _says_39(candidate: Path) -> bool:
    try:
        argv = [str(candidate), "-I", "-S", "-c", PROBE]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == "3.9"
