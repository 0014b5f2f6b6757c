"""Small packages made by a test, so that pip needs no network: wheels, and sdists that wait."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

ALONE = ("env.PIP_NO_INDEX=1", "env.PIP_CONFIG_FILE=/dev/null")
"""Words of a submit with which pip looks at no index."""


def pip_words(folder: Path) -> tuple[str, ...]:
    """Words of a submit with which pip knows the packages in a folder alone."""
    return (*ALONE, f"env.PIP_FIND_LINKS={folder}")


def make_wheel(folder: Path, name: str, version: str, *requires: str, text: str = "") -> Path:
    """A wheel with one module of that name, which has `VERSION`."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(wheel_bytes(name, version, requires, text))
    return path


def wheel_bytes(name: str, version: str, requires: tuple[str, ...] = (), text: str = "") -> bytes:
    """The wheel as it lies in a file."""
    info = f"{name}-{version}.dist-info"
    meta = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    meta += [f"Requires-Dist: {each}" for each in requires]
    files = {
        f"{name}.py": f"VERSION = {version!r}\n{text}",
        f"{info}/METADATA": "\n".join([*meta, ""]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for each, content in files.items():
            archive.writestr(each, content)
    return out.getvalue()


_BACKEND = """
import os, pathlib, time
HELD = pathlib.Path({held!r})
def build_wheel(folder, settings=None, metadata=None):
    HELD.with_suffix(".at").touch()
    while HELD.exists():
        time.sleep(0.02)
    name = {wheel!r}
    pathlib.Path(folder, name).write_bytes(pathlib.Path(__file__).with_name(name).read_bytes())
    return name
"""


def make_held_sdist(folder: Path, name: str, version: str, held: Path) -> Path:
    """An sdist whose building lasts as long as the file `held` is there; it touches `HELD.at`."""
    wheel = f"{name}-{version}-py3-none-any.whl"
    top = f"{name}-{version}"
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    info = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        "PKG-INFO": info.encode(),
        "pyproject.toml": system.encode(),
        "backend.py": _BACKEND.format(held=str(held), wheel=wheel).encode(),
        wheel: wheel_bytes(name, version),
    }
    path = folder / f"{top}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for each, content in files.items():
            entry = tarfile.TarInfo(f"{top}/{each}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path
