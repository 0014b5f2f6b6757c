"""A run of the job `tests/faults/train.py`: held at a point, let go, and judged by its traces."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import checkpoints

from tests.faults import train
from tests.helpers.local_worker import LocalWorker, Table
from tests.helpers.wait import wait_for

PROGRAM = Path(train.__file__)
JOB = """entry = "train.py"
grace = "10s"
[params]
outside = ""
talks = false
patient = true
saves = true
save_s = 0.0
"""
HELD_S = 30.0
_names = itertools.count()


@dataclass
class Traces:
    """What one run left, in figures."""

    outcome: str
    causes: list[str | None]
    starts: int
    double_starts: int
    steps_repeated: int
    problems: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """For the table: how it ended, why each attempt but the last did, how many there were."""
        runs = [(cause or "ok", len([*same])) for cause, same in itertools.groupby(self.causes)]
        told = [f"{cause} × {count}" if count > 1 else cause for cause, count in runs]
        return f"{self.outcome}: {', '.join(told)}"


def lay_job(worker: LocalWorker) -> None:
    """Put the job into the worker's project."""
    worker.file("agents/train.py", PROGRAM.read_text())
    worker.file("agents/train.toml", JOB)
    # ranks start in a fraction of the time where torch cannot be found
    worker.file("hide/torch/__init__.py", "raise ImportError('hidden')\n")


class Trained:
    """One run, its folder outside (as we and as the job see it), and what is asked of it."""

    def __init__(
        self,
        worker: LocalWorker,
        submit: Callable[..., str],
        folder: Path,
        inside: str,
        nproc: int,
        words: Iterable[str] = (),
    ) -> None:
        name = f"outside-{time.monotonic_ns()}-{next(_names)}"
        self.worker = worker
        self.nproc = nproc
        self.outside = folder / name
        self.outside.mkdir()
        self.outside.chmod(0o777)
        given = [f"nproc={nproc}", "env.PYTHONPATH=hide", f"outside={inside}/{name}", *words]
        self.run = submit("train", *given)

    @classmethod
    def of(cls, worker: LocalWorker, run: str, outside: Path) -> Trained:
        """A run of one rank that somebody else submitted."""
        made = cls.__new__(cls)
        made.worker, made.run, made.outside, made.nproc = worker, run, outside, 1
        return made

    # -- leading it ---------------------------------------------------------------------------

    def let_go(self, points: Iterable[str] = (*train.POINTS, "stopping")) -> None:
        """From here on it passes these points, all unless told otherwise."""
        for point in points:
            (self.outside / f"go-{point}").touch()

    def is_at(self, point: str) -> bool:
        return all((self.outside / f"at-{point}-{rank}").exists() for rank in range(self.nproc))

    def until_at(self, point: str) -> None:
        """Let it go as far as a point; wait until every rank is held there."""
        points = list(train.POINTS)
        self.let_go(points[: points.index(point)])
        self.until_seen(point)

    def until_seen(self, point: str) -> None:
        """Wait until every rank says that it is there."""
        wait_for(lambda: self.is_at(point), HELD_S, f"{self.run} at {point}")

    def until_ended(self, limit_s: float) -> None:
        wait_for(lambda: self.state == "ended", limit_s, f"{self.run} to end, {self.worker.state}")

    @property
    def state(self) -> str:
        return str(self.worker.state(self.run).get("state"))

    @property
    def began_again(self) -> bool:
        """Whether an attempt after the first has come as far as the job."""
        return any(int(words[0]) > 1 for words in self.lines("starts"))

    @property
    def ranks(self) -> dict[int, Table]:
        """rank to who it is, of the newest attempt."""
        found = {}
        for words in self.lines("starts"):
            found[int(words[1])] = {"pid": int(words[2]), "ns": int(words[3])}
        return found

    def lines(self, name: str) -> list[list[str]]:
        """The words of each line that the job noted in a file."""
        path = self.outside / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    # -- judging it ---------------------------------------------------------------------------

    def traces(self) -> Traces:
        """What the record and the job's own notes tell; what is wrong is in `problems`."""
        worker, run = self.worker, self.run
        state = worker.state(run)
        starts = [(int(line[0]), int(line[4])) for line in self.lines("starts") if line[1] == "0"]
        traces = Traces(
            outcome=str(state.get("outcome")),
            causes=worker.causes(run),
            starts=len(starts),
            double_starts=len(self.lines("double")),
            steps_repeated=0,
        )
        say = traces.problems.append
        if traces.double_starts:
            say("two attempts at the same time")
        if len({attempt for attempt, _ in starts}) != len(starts):
            say(f"an attempt was started twice: {starts}")
        spans = self._spans()
        for one, two in itertools.combinations(sorted(spans), 2):
            if spans[one][1] >= spans[two][0]:
                say(f"attempts {one} and {two} beat at the same time")
        taken: dict[int, list[int]] = {}
        for line in self.lines("steps"):
            if line[1] == "0":
                taken.setdefault(int(line[0]), []).append(int(line[2]))
        done = 0
        for attempt, begun in starts:
            if not max(0, done - train.EVERY) <= begun <= done:
                say(f"attempt {attempt} went on from step {begun}, the last one was {done}")
            traces.steps_repeated += max(0, done - begun)
            done = max(taken.get(attempt, [begun]))
        for rank in range(self.nproc):
            traces.problems += self._log_problems(rank)
        traces.problems += self._artifact_problems(traces.outcome)
        if left := worker.members(run):
            say(f"processes left: {left}")
        return traces

    def _spans(self) -> dict[int, tuple[float, float]]:
        """attempt to its first and last sign of life."""
        spans: dict[int, tuple[float, float]] = {}
        for line in [*self.lines("starts"), *self.lines("beats"), *self.lines("steps")]:
            attempt, moment = int(line[0]), float(line[-1])
            first, last = spans.get(attempt, (moment, moment))
            spans[attempt] = min(first, moment), max(last, moment)
        return spans

    def _log_problems(self, rank: int) -> list[str]:
        """What was written is there: each line noted, and of an attempt at most one more."""
        path = self.outside / f"log-{rank}"
        noted: dict[bytes, list[bytes]] = {}
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            noted.setdefault(line.split(b".")[0], []).append(line)
        log = self.worker.log(self.run, rank)
        for lines in noted.values():
            before, text, log = log.partition(b"".join(lines))
            if not text:
                return [f"rank {rank}: lines are not in the log"]
            if before.count(b"\n") > 1:
                return [f"rank {rank}: in the log stands {before[:200]!r}"]
        if b"Traceback" in log:
            return []  # what it said when it gave up
        return (
            [f"rank {rank}: at the log's end stands {log[:200]!r}"] if log.count(b"\n") > 1 else []
        )

    def _artifact_problems(self, outcome: str) -> list[str]:
        folder = str(self.worker.workspace / "checkpoints" / self.run)
        found = checkpoints.names(folder)
        told = [f"{n}: {p}" for n in found if (p := checkpoints.problem(f"{folder}/{n}"))]
        if outcome != "done":
            return told
        last = f"step-{train.STEPS:09d}"
        if last not in found:
            return [*told, f"no final checkpoint among {found}"]
        data = Path(folder, last, "model.bin").read_bytes()
        right = data == train.parameters(train.model_after(train.STEPS))
        return told if right else [*told, "the parameters are not those of an untouched run"]
