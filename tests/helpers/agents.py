"""The shipped agents, as the tests import them: a run by hand with folders of its own."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AGENTS = Path(__file__).resolve().parents[2] / "agents"
if str(AGENTS) not in sys.path:
    sys.path.insert(0, str(AGENTS))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A runtime.Run of one rank on a CPU, whose folders lie in tmp_path."""
    runtime = importlib.import_module("runtime")  # found by the path above

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setenv("RUNNER_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("RUNNER_LOGS", str(tmp_path / "logs"))
    monkeypatch.setenv("RUNNER_PROGRESS", str(tmp_path / "progress.jsonl"))
    monkeypatch.setenv("RUNNER_RESUME", "")
    monkeypatch.delenv("RUNNER_PARAMS", raising=False)
    yield runtime.Run("test", device="cpu")
    for number, handler in kept.items():
        signal.signal(number, handler)


def progress(folder: Path) -> list[dict[str, Any]]:
    """The lines of progress that a `run` in this folder has written."""
    text = (folder / "progress.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


WALKS = """
import gymnasium as gym, numpy as np, random
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

class Walk(gym.Env):
    '''A walk by random steps; subclasses break one thing each.'''
    def __init__(self, seen=Box(-np.inf, np.inf, (1,), np.float32), acts=Discrete(2)):
        self.observation_space, self.action_space = seen, acts
    def draw(self):
        return self.np_random.normal()
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x = 0, self.draw()
        return np.array([self.x], np.float32), {}
    def step(self, action):
        self.t += 1
        self.x += self.draw()
        return np.array([self.x], np.float32), float(self.x), self.t >= 15, False, {}

class Old(Walk):
    def step(self, action):
        return super().step(action)[:4]
class Shared(Walk):
    def draw(self):
        return np.random.normal() + random.random()
class Easy(Walk, gym.utils.EzPickle):
    pass
class Slow(Walk, gym.utils.EzPickle):
    '''Its copy is a fresh one, which shows after 90 steps only.'''
    def __init__(self):
        gym.utils.EzPickle.__init__(self)
        super().__init__()
        self.t = 0
    def step(self, action):
        self.t += 1
        return np.array([max(0, self.t - 90)], np.float32), 0.0, False, False, {}
class Open(Walk):
    def __init__(self):
        super().__init__()
        self.file = open('/dev/null')
    def close(self):
        self.file.close()
class Forgetful(Walk):
    def __setstate__(self, state):
        self.__dict__.update(state, x=0.0)
class Endless(Walk):
    def step(self, action):
        return *super().step(action)[:2], False, False, {}

for one in (Walk, Old, Shared, Easy, Slow, Open, Forgetful, Endless):
    gym.register(f'{one.__name__}-v0', one)
gym.register('Image-v0', lambda: Walk(seen=Box(0, 255, (8, 8, 3), np.uint8)))
gym.register('Table-v0', lambda: Walk(seen=Dict(a=Discrete(2))))
gym.register('Many-v0', lambda: Walk(acts=MultiDiscrete([2, 2])))
gym.register('Smooth-v0', lambda: Walk(acts=Box(-1, 1, (1,))))
"""


@pytest.fixture(scope="session")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module `walks` of small environments, each with one peculiarity."""
    folder = tmp_path_factory.mktemp("walks")
    (folder / "walks.py").write_text(WALKS)
    return folder


@pytest.fixture
def at_walks(walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`walks:NAME-v0` can be made; the current folder is an empty one."""
    monkeypatch.syspath_prepend(str(walks))  # undone with all that is appended to it
    monkeypatch.chdir(tmp_path)
