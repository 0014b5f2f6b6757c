"""The package holds what the repository holds: no file forgotten, none too many.

Everything that is not Python is named in setup.cfg, so a new folder or kind of file is easily left
behind, which would show only on somebody else's machine.
"""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from runner import __version__
from tests.helpers import packages

CONTENT = ("agents", "hosts", "provisioning")
ROOT_CONTENT = ("Dockerfile",)


def expected(names: list[str]) -> set[str]:
    """Names in the wheel, from names in the repository."""
    found = {name for name in names if name.startswith("runner/")}
    for name in names:
        top = name.split("/")[0]
        # a host file in hosts/ is somebody's own
        if name in ROOT_CONTENT or (
            top in CONTENT and (top != "hosts" or name.endswith(".example"))
        ):
            found.add(f"runner/_content/{name}")
    return found


def in_wheel(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel but the installer's own."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not PurePosixPath(name).parts[0].endswith(".dist-info")
        }


@pytest.fixture(scope="module")
def source(git: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages.copy_listed(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages.build(source, tmp_path_factory.mktemp("built") / "sdist", "sdist")


@pytest.fixture(scope="module")
def wheel(source: Path, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # after the sdist: both leave things in `source`, and neither may ship the other's
    return packages.build(source, tmp_path_factory.mktemp("built") / "wheel", "wheel")


@pytest.fixture(scope="module")
def wheel_of_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    # older Pythons, as Debian 12's, have no filter, and newer ones want one
    careful: dict[str, str] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **careful)
    (top,) = folder.iterdir()
    return packages.build(top, tmp_path_factory.mktemp("built") / "wheel", "wheel")


def test_the_wheel_holds_exactly_what_the_repository_holds(wheel: Path) -> None:
    there, wanted = set(in_wheel(wheel)), expected(packages.listed_files())
    assert sorted(wanted - there) == [], "left behind: add it to setup.cfg"
    assert sorted(there - wanted) == [], "too many"


def test_what_a_worker_and_a_new_project_need_travels(wheel: Path) -> None:
    content = {name.removeprefix("runner/_content/") for name in in_wheel(wheel)}
    assert {
        "Dockerfile",
        "agents/dqn.py",
        "agents/dqn.toml",
        "provisioning/entrypoint",
        "provisioning/images.toml",
        "provisioning/worker/__main__.py",
        "provisioning/worker/supervisord.conf",
        "provisioning/worker/verbs/submit.py",
    } <= content
    assert [name for name in content if name.startswith("hosts/")], "no example of a host file"


def test_files_travel_unchanged(wheel: Path) -> None:
    for name, data in in_wheel(wheel).items():
        original = packages.REPOSITORY / name.removeprefix("runner/_content/")
        assert data == original.read_bytes(), name


def test_only_runner_is_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {PurePosixPath(name).parts[0] for name in archive.namelist()}
    assert tops == {"runner", f"runner-{__version__}.dist-info"}


def test_nothing_that_python_left_behind_travels(wheel: Path) -> None:
    assert [name for name in in_wheel(wheel) if "__pycache__" in name or ".pyc" in name] == []


def test_the_sdist_makes_the_same_wheel(wheel: Path, wheel_of_sdist: Path) -> None:
    assert wheel_of_sdist.name == wheel.name
    assert in_wheel(wheel_of_sdist) == in_wheel(wheel)


def test_the_version_is_the_programs_own(sdist: Path, wheel: Path) -> None:
    assert sdist.name == f"runner-{__version__}.tar.gz"
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"runner-{__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in text


def test_torch_comes_only_when_asked_for(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"runner-{__version__}.dist-info/METADATA").decode()
    needs = [line for line in text.splitlines() if line.startswith("Requires-Dist:")]
    assert [line for line in needs if "torch" in line and "extra ==" not in line] == []
    assert [line for line in needs if "torch" in line], "the agents' extra has lost it"
