"""A task for agents that remember: a cue is shown once, and asked for when an episode ends.

    env=memory_task:Recall-v0        episodes of 16 steps
    env=memory_task:Recall64-v0      of 64; also Recall256-v0, Recall1024-v0, Recall4096-v0

What is seen at the last step has nothing to do with the cue, so a policy without a memory is right
by chance only: its mean return is 1 / cues, and the best one is 1.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Recall(gym.Env[Floats, np.int64]):
    """A cue, noise, then a question: an action that names the cue gives 1, another 0.

    length: steps of an episode, those of cue and question included. cues: how many kinds there
    are, and actions. What is seen is (cues + 2,) numbers: at the first step the cue's own is 1,
    later all of them are noise; then whether this is the cue, and whether this is the question.
    Actions before the question change nothing.
    """

    def __init__(self, length: int = 16, cues: int = 4) -> None:
        if length < 2 or cues < 2:
            raise ValueError(f"length is {length} and cues {cues}; both must be at least 2")
        self.length, self.cues = length, cues
        self.observation_space = Box(-np.inf, np.inf, (cues + 2,), np.float32)
        self.action_space = Discrete(cues)
        self.t = self.cue = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Draw and show another cue."""
        super().reset(seed=seed)
        self.t, self.cue = 0, int(self.np_random.integers(self.cues))
        seen = np.zeros(self.cues + 2, np.float32)
        seen[self.cue] = seen[-2] = 1.0
        return seen, {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Go on to the next noise or to the question; an answer to that ends the episode."""
        self.t += 1
        seen = np.zeros(self.cues + 2, np.float32)
        seen[:-2] = self.np_random.standard_normal(self.cues, np.float32)
        if self.t == self.length:
            return seen, float(action == self.cue), True, False, {}
        seen[-1] = self.t == self.length - 1
        return seen, 0.0, False, False, {}


gym.register("Recall-v0", Recall)
for _length in (64, 256, 1024, 4096):
    gym.register(f"Recall{_length}-v0", Recall, kwargs={"length": _length})
