"""Builds the wheel and the sdist from a clean copy, as a release does."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LEAST_SETUPTOOLS = (70, 1)
"""From this one on it makes wheels by itself."""
BUILD_LIMIT_S = 300.0


def listed_files() -> list[str]:
    """Every file of the repository, those not yet added included, without what git ignores."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, check=True)
    names = {name.decode() for name in done.stdout.split(b"\0") if name}
    return sorted(name for name in names if (REPOSITORY / name).is_file())


def copy_listed(folder: Path) -> Path:
    """The same files in another folder, where no earlier build lies around."""
    for name in listed_files():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, target)
    return folder


def build(source: Path, out: Path, kind: str) -> Path:
    """The `wheel` or `sdist` made of a source tree, by the project's own backend."""
    out.mkdir(parents=True, exist_ok=True)
    program = f"import setuptools.build_meta as b; print(b.build_{kind}({str(out)!r}))"
    done = subprocess.run(
        [*_python_with_setuptools(out), "-c", program],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{kind} was not built:\n{done.stderr[-2000:]}"
    return out / done.stdout.splitlines()[-1]


def _python_with_setuptools(folder: Path) -> list[str]:
    """A python that has the backend: ours, else one of a small environment made for it."""
    try:
        found = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        found = "0"
    if tuple(int(part) for part in found.split(".")[:2] if part.isdecimal()) >= LEAST_SETUPTOOLS:
        return [sys.executable]
    place = folder.parent / "backend"
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=BUILD_LIMIT_S)
        least = ".".join(map(str, LEAST_SETUPTOOLS))
        install = ["-m", "pip", "install", "--quiet", f"setuptools>={least}"]
        subprocess.run([python, *install], check=True, timeout=BUILD_LIMIT_S)
    return [str(python)]
