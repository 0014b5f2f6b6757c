"""DQN on two ranks, killed with -9 ten times in each of three seeds: are the parameters the same?

    python benchmarks/kill_dqn.py [seeds=1..3] [kills=10] [steps=6000] [draw=0] [targets=a,b…]

For each seed a run that nobody touches, then one of which at random moments is killed: a rank,
torchrun's agent, the launcher, or all there is of the worker and the run. The next contact starts
the worker again, as a person's would. Compared are the bytes of the last checkpoint's model.pt:
parameters, optimiser, generators. Exit status 1 when they differ, or a run did not end well.
"""

from __future__ import annotations

import collections
import hashlib
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "provisioning" / "worker")]

import pairs  # noqa: E402
import processes  # noqa: E402
import records  # noqa: E402

from runner.app.submit import submit  # noqa: E402
from runner.spec import parse_submit  # noqa: E402
from tests.helpers.local_worker import LocalWorker  # noqa: E402
from tests.helpers.wait import wait_for  # noqa: E402

OUTSIDE = ("launcher", "everything")
TARGETS = ("rank", "agent", *OUTSIDE)
STARTING_SHARE = 0.5
"""Of kills whose cause is from outside: while the attempt starts. A rank that dies before its first
step again and again is taken for what it looks like, and not started for ever."""
STARTING_S = 3.0
LATE = 0.9
DELAY_S = 0.05
RANKS = 2
LIMIT_S = 120.0
END_LIMIT_S = 600.0
WHAT = ("job=dqn", f"nproc={RANKS}", "launcher=torchrun", "gpus=0", "device=cpu")
HOW = ("hidden=64", "checkpoint_every=500", "eval_every=0", "log_every=100", "restarts=1000")
SETTINGS = {"seeds": "1..3", "kills": "10", "steps": "6000", "draw": "0", "targets": ""}


@dataclass(frozen=True)
class Kill:
    """What is killed, and when: at a step, or (None) so many seconds after the attempt began."""

    target: str
    step: int | None
    delay_s: float


def draw_kills(draw: random.Random, count: int, steps: int, targets: Sequence[str]) -> list[Kill]:
    """Kills in their order: every target about as often, the steps ever later."""
    chosen = [targets[number % len(targets)] for number in range(count)]
    draw.shuffle(chosen)
    starting = [t in OUTSIDE and draw.random() < STARTING_SHARE for t in chosen]
    drawn = [draw.randrange(int(LATE * steps)) for _ in range(starting.count(False))]
    moments = iter(sorted(drawn))
    return [
        Kill(target, None, draw.uniform(0, STARTING_S))
        if starts
        else Kill(target, next(moments), draw.uniform(0, DELAY_S))
        for target, starts in zip(chosen, starting, strict=True)
    ]


class Victim:
    """A training, and what is done to it."""

    def __init__(self, worker: LocalWorker, words: Sequence[str]) -> None:
        self.worker = worker
        request = parse_submit([*WHAT, *HOW, *words], None)
        (self.run,) = submit(worker.ctx, request, lambda run: None)
        self.attempt = 0
        self.progress = str(worker.workspace / "logs" / self.run / "progress.jsonl")
        self.done: collections.Counter[str] = collections.Counter()

    def strike(self, kill: Kill) -> None:
        """Wait for the moment, kill, and see that the attempt has ended."""
        self.attempt += 1
        wait_for(self._is_born, LIMIT_S, f"attempt {self.attempt} of {self.run}")
        if kill.step is not None:
            wait_for(lambda: self._step() >= int(kill.step or 0), LIMIT_S, f"step {kill.step}")
        time.sleep(kill.delay_s)  # the moment that was drawn
        end = self.worker.run_folder(self.run) / "attempts" / str(self.attempt) / "exit.json"
        assert not end.exists(), f"{self.run} ended before it was killed"
        pids = self._pids(kill.target)
        assert pids, f"no {kill.target} of {self.run} to kill"
        for pid in pids:
            os.kill(pid, 9)
        wait_for(lambda: not processes.living(pids), LIMIT_S, f"the end of {pids}")
        self.done[kill.target] += 1
        if kill.target == "everything":
            self.worker.status(self.run)
        wait_for(end.exists, LIMIT_S, f"the end of attempt {self.attempt} of {self.run}")

    def finish(self) -> str:
        """Wait for its end; sha256 of its last parameters, or how else it ended."""
        status = self.worker.wait(self.run, END_LIMIT_S).status
        if status.outcome != "done":
            return f"{status.outcome}: {(status.cause or {}).get('text')}"
        folders = (self.worker.workspace / "checkpoints" / self.run).glob("step-*[0-9]")
        return hashlib.sha256((max(folders) / "model.pt").read_bytes()).hexdigest()

    def _is_born(self) -> bool:
        state = self.worker.state(self.run)
        if state.get("state") == "ended":
            sys.exit(f"{self.run} ended: {(state.get('cause') or {}).get('text')}")
        return bool(self.worker.born(self.run, self.attempt))

    def _step(self) -> int:
        path = self.worker.run_folder(self.run) / "attempts" / str(self.attempt) / "proc.json"
        born = float((records.read(str(path)) or {})["started_at"])
        rows = [row for _, row in records.read_lines(self.progress) if row.get("t", 0) > born]
        return max((int(row["step"]) for row in rows if row.get("step") is not None), default=-1)

    def _pids(self, target: str) -> list[int]:
        worker = self.worker
        launcher = worker.launcher(self.run)
        if target == "launcher":
            return [launcher]
        members = {pid: words_of(pid) for pid in worker.members(self.run)}
        if target == "everything":
            return [pid for pid in (worker.supervisor, worker.dispatcher) if pid] + [
                launcher,
                *members,
            ]
        agents = {pid for pid, words in members.items() if b"front.py" in words}
        if target == "agent":
            return sorted(agents)
        ranks = [pid for pid, words in members.items() if b"dqn.py" in words and pid not in agents]
        return sorted(ranks)[-1:]


def words_of(pid: int) -> bytes:
    """A process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def main(words: Sequence[str]) -> int:
    """See the module's docstring."""
    settings = pairs.settings(words, SETTINGS)
    kills, steps = int(settings["kills"]), int(settings["steps"])
    targets = settings["targets"].split(",") if settings["targets"] else TARGETS
    wrong = 0
    worker = LocalWorker(os.environ.__setitem__)
    try:
        shutil.copytree(ROOT / "agents", worker.project / "agents")
        print(
            "seed  killed                                        attempts  causes  equal  seconds"
        )
        for seed in pairs.numbers(settings["seeds"]):
            began = time.monotonic()
            training = (f"seed={seed}", f"steps={steps}")
            untouched = Victim(worker, training).finish()
            victim = Victim(worker, training)
            for kill in draw_kills(
                random.Random(f"{settings['draw']} {seed}"), kills, steps, targets
            ):
                victim.strike(kill)
            found = victim.finish()
            causes = collections.Counter(c or "none" for c in worker.causes(victim.run))
            equal = found == untouched and ":" not in found
            wrong += not equal
            print(
                f"{seed:4}  {counted(victim.done):44}  {sum(causes.values()):8}  {counted(causes)}"
                f"  {'yes' if equal else 'NO'}  {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if not equal:
                print(f"      untouched {untouched}\n      killed    {found}", flush=True)
    finally:
        worker.close()
    return 1 if wrong else 0


def counted(counts: collections.Counter[str]) -> str:
    """`rank 3, agent 2`."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
