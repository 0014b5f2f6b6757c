"""What an image's build says of itself while it runs: which part, how long, how much anew (pure).

Two builders, told apart by their lines:

    Step 5/14 : RUN set -eu; …        the legacy one, on stdout; a step lasts until the next
     ---> Using cache
    #7 [3/6] RUN set -eu; …           BuildKit, on stderr; steps may run side by side
    #7 CACHED
    #7 DONE 12.3s

A layer is what RUN, COPY and ADD make. The parts are named after the Dockerfile: `user` is what
comes once the account is known (RUNNER_UID), all before it are `packages`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LEGACY = re.compile(r"Step \d+/\d+ : (.*)")
_LEGACY_END = re.compile(r"Successfully built [0-9a-f]+")
_BUILDKIT = re.compile(r"#(\d+) \[(?:\S+ )?\d+/\d+\] (.*)")
_CACHED = re.compile(r"#(\d+) CACHED")
_DONE = re.compile(r"#(\d+) DONE ([0-9.]+)s")
_LAYERS = ("RUN ", "COPY ", "ADD ")
PARTS = ("packages", "user")
_USERS_OWN = "RUNNER_UID"


@dataclass
class _Step:
    text: str
    part: str
    began: float
    seconds: float = 0.0
    cached: bool = False

    @property
    def is_layer(self) -> bool:
        return self.text.lstrip().startswith(_LAYERS)


class BuildLog:
    """Fed with each line and when it came; afterwards says what the build did."""

    def __init__(self) -> None:
        self._steps: dict[str, _Step] = {}
        self._current: _Step | None = None
        self._part = PARTS[0]

    def feed(self, line: str, now: float) -> None:
        """A line of either stream, without its end."""
        legacy = _LEGACY.match(line)
        if legacy is not None:
            self._end_current(now)
            self._current = self._begin(str(len(self._steps)), legacy[1], now)
        elif line.strip() == "---> Using cache" and self._current is not None:
            self._current.cached = True
        elif _LEGACY_END.match(line):
            self._end_current(now)
        else:
            self._feed_buildkit(line, now)

    def _feed_buildkit(self, line: str, now: float) -> None:
        begun, cached, done = _BUILDKIT.match(line), _CACHED.match(line), _DONE.match(line)
        if begun is not None and begun[1] not in self._steps:
            self._begin(begun[1], begun[2], now)
        elif cached is not None and cached[1] in self._steps:
            self._steps[cached[1]].cached = True
        elif done is not None and done[1] in self._steps:
            self._steps[done[1]].seconds = float(done[2])

    def _begin(self, name: str, text: str, now: float) -> _Step:
        if _USERS_OWN in text:
            self._part = PARTS[1]
        step = _Step(text, self._part, now)
        self._steps[name] = step
        return step

    def _end_current(self, now: float) -> None:
        if self._current is not None:
            self._current.seconds = now - self._current.began
            self._current = None

    @property
    def seconds(self) -> dict[str, float]:
        """How long each part took; parts that were not seen are left out."""
        found: dict[str, float] = {}
        for step in self._steps.values():
            found[step.part] = found.get(step.part, 0.0) + step.seconds
        return found

    @property
    def built(self) -> int:
        """Layers that were made anew."""
        return sum(step.is_layer and not step.cached for step in self._steps.values())

    @property
    def cached(self) -> int:
        """Layers that were there already."""
        return sum(step.is_layer and step.cached for step in self._steps.values())
