"""Pairs, run side by side: A, B, A, B …, so that what the machine does meanwhile meets both.

Seconds depend on the machine and on who else uses it; the ratio within a round much less so. Each
round runs every side once, in an order that is rotated from round to round; the first rounds are
thrown away. A process is measured from outside: wall time from before its start to after its end,
CPU time of it and of the children it waited for. What it leaves running (a shared connection, a
worker) is not counted.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = Path("results") / "bench"


@dataclass(frozen=True)
class Sample:
    """One run of one side."""

    wall_s: float
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Side:
    """One of the things compared; `measure` does it once."""

    name: str
    measure: Callable[[], Sample]


@dataclass(frozen=True)
class Goal:
    """What the median of a side against the first side is to be at most; one of the two is given.

    factor: times the first side's. extra_s: seconds more than it.
    """

    side: str
    factor: float | None = None
    extra_s: float | None = None


@dataclass(frozen=True)
class Spread:
    """Where numbers lie."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Pairs:
    """All rounds of one comparison; the first side is what the others are held against."""

    name: str
    samples: Mapping[str, Sequence[Sample]]
    goals: Sequence[Goal] = field(default=())

    @property
    def sides(self) -> list[str]:
        """Names, the first one being the base."""
        return list(self.samples)

    def walls(self, side: str) -> list[float]:
        """Wall seconds, round by round."""
        return [sample.wall_s for sample in self.samples[side]]

    def ratios(self, side: str) -> list[float]:
        """Of each round, this side's wall time by the first side's."""
        base = self.walls(self.sides[0])
        return [mine / other for mine, other in zip(self.walls(side), base, strict=True)]

    def extras(self, side: str) -> list[float]:
        """Of each round, this side's wall time less the first side's."""
        base = self.walls(self.sides[0])
        return [mine - other for mine, other in zip(self.walls(side), base, strict=True)]


# pure


def turns(sides: int, rounds: int) -> list[list[int]]:
    """The order of the sides in each round: everyone is first equally often."""
    return [[(start + step) % sides for step in range(sides)] for start in range(rounds)]


def spread(numbers: Sequence[float]) -> Spread:
    """Median, lowest, highest."""
    return Spread(statistics.median(numbers), min(numbers), max(numbers))


def is_met(pairs: Pairs, goal: Goal) -> bool:
    """Whether the median over the rounds keeps to a goal."""
    if goal.factor is not None:
        return statistics.median(pairs.ratios(goal.side)) <= goal.factor
    assert goal.extra_s is not None, "a goal without a number"
    return statistics.median(pairs.extras(goal.side)) <= goal.extra_s


def table(pairs: Pairs) -> list[str]:
    """Lines for people."""
    base = pairs.sides[0]
    width = max(map(len, pairs.sides))
    rounds = len(pairs.samples[base])
    lines = [
        f"{pairs.name}: {rounds} rounds, median (lowest to highest)",
        f"  {'':{width}}  {'wall ms':>26}  {'CPU ms':>8}  {'times ' + base:>24}",
    ]
    for side in pairs.sides:
        wall = spread([1000 * value for value in pairs.walls(side)])
        cpu = statistics.median(1000 * sample.cpu_s for sample in pairs.samples[side])
        line = f"  {side:{width}}  {_around(wall, 1):>26}  {cpu:8.1f}"
        if side != base:
            line += f"  {_around(spread(pairs.ratios(side)), 2):>24}"
        lines.append(line)
    return lines + [_verdict(pairs, goal) for goal in pairs.goals]


def _around(found: Spread, digits: int) -> str:
    return f"{found.median:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _verdict(pairs: Pairs, goal: Goal) -> str:
    word = "reached" if is_met(pairs, goal) else "MISSED"
    if goal.factor is not None:
        asked, got = f"{goal.factor:g} times", statistics.median(pairs.ratios(goal.side))
        return f"  goal: {goal.side} at most {asked} {pairs.sides[0]}: {word} ({got:.2f})"
    assert goal.extra_s is not None
    got = 1000 * statistics.median(pairs.extras(goal.side))
    asked = f"{1000 * goal.extra_s:g} ms more than"
    return f"  goal: {goal.side} at most {asked} {pairs.sides[0]}: {word} ({got:.1f} ms)"


def document(pairs: Pairs) -> dict[str, object]:
    """The same with every number, for a JSON file."""
    base, *others = pairs.sides
    return {
        "format": 1,
        "name": pairs.name,
        "base": base,
        "samples": {
            side: [asdict(sample) for sample in samples] for side, samples in pairs.samples.items()
        },
        "ratios": {side: asdict(spread(pairs.ratios(side))) for side in others},
        "extra_s": {side: asdict(spread(pairs.extras(side))) for side in others},
        "goals": [{**asdict(goal), "met": is_met(pairs, goal)} for goal in pairs.goals],
    }


def settings(words: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The defaults with the words `key=value` of a command line; another word ends the program."""
    given = dict(defaults)
    for word in words:
        key, _, value = word.partition("=")
        if key not in defaults:
            told = " ".join(f"[{key}={value}]" for key, value in defaults.items())
            sys.exit(f"{word}: usage: {Path(sys.argv[0]).name} {told}")
        given[key] = value
    return given


def numbers(text: str) -> range:
    """`1..5`, both ends included, or one number."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


# doing


class Failed(Exception):
    """What was to be measured did not work."""


def measure(
    name: str, sides: Sequence[Side], *, rounds: int, warm_up: int = 1, goals: Sequence[Goal] = ()
) -> Pairs:
    """Run every side `warm_up` and then `rounds` times."""
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    for number, order in enumerate(turns(len(sides), warm_up + rounds)):
        for place in order:
            sample = sides[place].measure()
            if number >= warm_up:
                samples[sides[place].name].append(sample)
    return Pairs(name, samples, goals)


def process(
    name: str,
    argv: Sequence[str],
    *,
    before: Callable[[], object] = lambda: None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Side:
    """A side that is a whole process, which must end with 0; `before` is not measured."""

    def once() -> Sample:
        before()
        return run_process(argv, cwd=cwd, env=env)

    return Side(name, once)


def run_process(
    argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Sample:
    """One process from outside. Raises Failed, with what it said."""
    out = os.memfd_create("said")  # no reader that would take CPU time beside it
    try:
        began = time.perf_counter()
        child = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        _, status, used = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            said = os.pread(out, 4000, 0).decode("utf-8", "replace")
            raise Failed(f"{shlex.join(argv)}: exit {child.returncode}\n{said.strip()}")
    finally:
        os.close(out)
    return Sample(wall_s, used.ru_utime + used.ru_stime)


def report(pairs: Pairs) -> None:
    """Print the table and leave all numbers in results/bench/."""
    print("\n".join(table(pairs)), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{pairs.name}.json"
    path.write_text(json.dumps(document(pairs), indent=1) + "\n")
    print(f"  all numbers: {path}\n", flush=True)


def read_rounds(words: Sequence[str], default: int) -> int:
    """`rounds=N` of a benchmark's command line."""
    if not words:
        return default
    key, _, value = words[0].partition("=")
    if len(words) > 1 or key != "rounds" or not value.isdecimal() or int(value) < 1:
        sys.exit(f"usage: {Path(sys.argv[0]).name} [rounds=N]")
    return int(value)
