"""A folder of wheels, so that a host's pip needs no network: fetched once from the registry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = ("supervisor==4.3.0", "py-spy==0.4.3", "six==1.17.0")
_LIMIT_S = 300.0


def fetch_wheels(folder: Path) -> Path:
    """The folder, which holds `PACKAGES` then."""
    done = folder / "done"
    if not done.exists() or done.read_text().split() != list(PACKAGES):
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
        argv += ["--no-deps", "--dest", str(folder), *PACKAGES]
        subprocess.run(argv, check=True, timeout=_LIMIT_S, capture_output=True)
        done.write_text("\n".join(PACKAGES))
    folder.chmod(0o755)
    return folder
