"""What the Dockerfile asks about a base's packages, and that the pins by pip are the image's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from runner import content
from runner.inventory import read_images
from runner.model import Project

PROGRAM = content.root() / "provisioning" / "packages.py"
REQUIREMENTS = content.root() / "provisioning" / "requirements.txt"


def lay(site: Path, name: str, version: str, *requires: str) -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {rule}" for rule in requires]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def ask(site: Path, *words: str) -> list[str]:
    """What packages.py says for a Python that has but what lies in `site`."""
    code = "import runpy, sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
    code += "sys.path.insert(0, sys.argv[1]); sys.argv = sys.argv[2:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    argv = [sys.executable, "-I", "-S", "-c", code, str(site), str(PROGRAM), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def test_what_is_there_is_frozen_in_the_version_that_pip_knows(tmp_path: Path) -> None:
    lay(tmp_path, "torch", "2.6.0+cu124")
    lay(tmp_path, "numpy", "2.1.2")
    found = ask(tmp_path, "frozen", "torch", "torchvision", "torchaudio", "numpy")
    assert found == ["torch==2.6.0+cu124", "numpy==2.1.2"]


def test_only_what_is_missing_is_to_be_fetched(tmp_path: Path) -> None:
    site = tmp_path / "site"
    lay(site, "numpy", "1.26.4")
    lay(site, "gymnasium", "0.29.1", 'pygame>=2 ; extra == "classic-control"', "numpy>=1.21")
    lay(site, "supervisor", "4.2.5")
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("# a word\ngymnasium[classic-control]==1.4.0\nnumpy\nsupervisor==4.3.0\n")
    assert ask(site, "missing", str(wanted)) == ["gymnasium[classic-control]==1.4.0"]
    lay(site, "pygame", "2.6.0")
    assert ask(site, "missing", str(wanted)) == []
    wanted.write_text("jupyterlab==4.6.6  # a word\nnumpy\n")
    assert ask(site, "missing", str(wanted)) == ["jupyterlab==4.6.6"]


def test_the_pins_by_pip_are_exact_and_the_image_has_the_same(tmp_path: Path) -> None:
    lines = [line.partition("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines()]
    of_image = {line for line in lines if "==" in line}
    assert len(of_image) == 6
    pins = read_images(Project(root=tmp_path, name="p", id="p"))
    assert {pin.cuda for pin in pins.values()} == {"12.4", "11.8", "12.6"}
    for pin in pins.values():
        asked = [line for line in pin.pip if not line.startswith("--")]
        assert all(
            re.fullmatch(r"[a-z-]+(\[[a-z-]+\])?==[0-9.]+(\+cu\d+)?", line) for line in asked
        )
        assert of_image < set(asked)
        torch = next(line for line in asked if line.startswith("torch=="))
        assert re.fullmatch(
            rf"torch=={re.escape(pin.torch)}(\+cu{pin.cuda.replace('.', '')})?", torch
        )
        assert {"7.5", "8.0", "8.6"} < set(pin.capabilities)
