"""Where the rig keeps things, and how the instances are kept apart."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

INSTANCES = 10


class RigError(Exception):
    """The rig was asked for something that went wrong; the text says what."""


class Unavailable(RigError):
    """This machine cannot have that part of the rig; tests skip with the text."""


@dataclass(frozen=True)
class RigPaths:
    """The folders of one instance."""

    instance: int
    live: Path
    cache: Path

    @property
    def state_file(self) -> Path:
        return self.live / "state.json"

    @property
    def keys(self) -> Path:
        """Client keys: `id_ed25519` opens every host, `other_ed25519` none."""
        return self.live / "keys"

    @property
    def gpus(self) -> Path:
        return self.live / "gpus"

    @property
    def engine_data(self) -> Path:
        """Docker's data: kept between runs, so that the base image need not be loaded again."""
        return self.cache / f"engine-{self.instance}"

    def host(self, name: str) -> Path:
        return self.live / name


def read_paths() -> RigPaths:
    """The folders that the environment asks for."""
    word = os.environ.get("RUNNER_RIG_INSTANCE", "0")
    if not word.isdigit() or int(word) >= INSTANCES:
        raise RigError(f"RUNNER_RIG_INSTANCE is {word!r}; it must be 0 to {INSTANCES - 1}")
    live = Path(os.environ.get("RUNNER_RIG_DIR", "/var/lib/runner-rig")) / word
    cache = Path(os.environ.get("RUNNER_RIG_CACHE", "/var/cache/runner-rig"))
    for folder in (live, cache):
        if folder.is_relative_to("/tmp") or folder.is_relative_to("/run"):
            raise RigError(f"{folder}: rig hosts have a /tmp and /run of their own; choose another")
    return RigPaths(int(word), live, cache)
