"""The worker program laid out as a host has it."""

from __future__ import annotations

import json
from pathlib import Path

from runner import content


def unpack_bundle(folder: Path) -> Path:
    """Write the worker program's files into `folder`, which it returns."""
    for name, text in json.loads(content.bundle().data).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
