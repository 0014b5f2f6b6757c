"""The one image of a test's project, made from the rig's base image."""

from __future__ import annotations

from pathlib import Path

from tests.rig.engine import RigEngine

PIN = """["cpu"]
base = "{base}"
torch = "2.13.0"
cuda = "none"
driver_min = "0"
capabilities = []
"""


def pin_base(project: Path, docker: RigEngine) -> None:
    """Let the project know the image `cpu`."""
    (project / "images.toml").write_text(PIN.format(base=docker.base_image))
