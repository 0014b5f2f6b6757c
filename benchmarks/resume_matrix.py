"""Trainings killed and resumed: do they end with the bytes of one that was left alone?

    python benchmarks/resume_matrix.py [only=dqn,ppo] [families=atari,box2d] [moments=collecting]
                                       [random=2] [document=docs/resume.md]

Each agent on each family of environments it can play: short trainings, killed at a moment that a
hook finds (`strikes.py`) and resumed from their newest checkpoint until
they end. Compared are model.pt, metrics and replay memory (by its rows) of the last checkpoints. An
attempt is a process of its own, forked from one that has only imported; of two ranks they are fresh
ones under torchrun. Exit status 1 when one differs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pairs
import strikes

LIMIT_S = 120
OWN = {"only": "", "families": "", "moments": "", "random": "2", "document": "docs/resume.md"}
OFF = "steps=1200 num_envs=2 hidden=16 buffer_size=700 learning_starts=100 "
ON = "num_envs=2 hidden=16 "
HOW = {
    "dqn": OFF + "train_every=8 updates=2 batch_size=16 n_step=2",
    "sac": OFF + "train_every=8 updates=2 batch_size=16",
    "ppo": ON + "steps=1280 rollout=32 epochs=2 batch_size=32",
    "ppo_lstm": ON + "steps=1280 rollout=32 epochs=2 batch_size=1",
    "ippo": ON + "steps=1280 rollout=32 epochs=2 batch_size=64",
}
OFTEN = " checkpoint_every=320 eval_every=320 eval_episodes=2 log_every=100 seed=3 device=cpu"
PICTURES = {
    "dqn": " steps=320 buffer_size=260 checkpoint_every=80 eval_every=160 learning_starts=60"
    " train_every=16 eval_episodes=1",
    "ppo": " steps=320 rollout=20 checkpoint_every=80 eval_every=160 epochs=1 eval_episodes=1",
}
RECALL, PONG = "memory_task:Recall-v0", "ALE/Breakout-v5"
ROWS = [
    ("dqn", "classic control", "CartPole-v1"), ("dqn", "memory task", RECALL),
    ("dqn", "atari", PONG), ("dqn", "box2d", "LunarLander-v3"),
    ("ppo", "classic control", "CartPole-v1"), ("ppo", "memory task", RECALL),
    ("ppo", "mujoco", "Hopper-v5"), ("ppo", "atari", PONG), ("ppo", "box2d", "BipedalWalker-v3"),
    ("sac", "classic control", "Pendulum-v1"), ("sac", "mujoco", "Hopper-v5"),
    ("sac", "box2d", "BipedalWalker-v3"),
    ("ppo_lstm", "classic control", "CartPole-v1"), ("ppo_lstm", "memory task", RECALL),
    ("ppo_lstm", "box2d", "LunarLander-v3"),
    ("ippo", "teams", "mpe2.simple_spread_v3"),
]  # fmt: skip
MOMENTS = {
    "collecting": ["collect:0.6"], "updates": ["update:0.6"], "evaluation": ["evaluate:0.6"],
    "half of model.pt": ["half:0.6"], "before the manifest": ["manifest:0.6"],
    "before the rename": ["rename:0.6"], "after the rename": ["renamed:0.6"],
    "before any": ["collect:0.1"], "SIGTERM": ["term:0.6"],
    "twice": ["collect:0.45", "rename:0.4"],
}  # fmt: skip
TWO = "one of two ranks"
NO_PLACE = "cannot be kept in a checkpoint: a resume begins new episodes"


class Case:
    """One agent on one environment; `ranks` of it."""

    def __init__(self, agent: str, family: str, env: str, folder: Path, ranks: int = 1) -> None:
        words = (HOW[agent] + OFTEN + (PICTURES[agent] if family == "atari" else "")).split()
        self.words = [f"{k}={v}" for k, v in dict(w.split("=") for w in words).items()]
        self.words.append(f"env={env}")
        self.agent, self.folder, self.ranks, self.number = agent, folder, ranks, 0

    def attempt(self, where: Path, told: dict[str, str], after_s: float = 0) -> int:
        """Exit status, negative of a signal. after_s: seconds until it is killed; 0: never."""
        where.mkdir(exist_ok=True)
        last = newest(where)
        told = {"RUNNER_CHECKPOINTS": str(where / "checkpoints"), "RUNNER_LOGS": str(where / "l"),
                "RUNNER_RESUME": str(last or ""), **told}  # fmt: skip
        if self.ranks > 1:
            log = (where / "said").open("w")
            return subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone",
                 f"--nproc-per-node={self.ranks}", strikes.__file__, self.agent, *self.words],
                env={**os.environ, **told}, stdout=log, stderr=log, timeout=LIMIT_S,
            ).returncode  # fmt: skip
        pid = os.fork()
        if not pid:
            log = os.open(where / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1), os.dup2(log, 2)
            strikes.attempt(self.agent, self.words, told)
        if after_s:
            time.sleep(after_s)
            os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def untouched(self) -> Path | None:
        """Trained to the end; None: it was refused or failed."""
        self.alone, began = self.folder / "alone", time.monotonic()
        status = self.attempt(self.alone, {"TALLY": str(self.folder / "tally")})
        self.took_s = time.monotonic() - began
        self.seen = json.loads((self.folder / "tally").read_text()) if status == 0 else {}
        return newest(self.alone) if status == 0 else None

    def killed(self, strikes: Sequence[str]) -> str:
        """`equal`, or what else became of it. strikes: kind:share of all such moments."""
        self.number += 1
        where = self.folder / str(self.number)
        for strike in strikes:
            kind, _, share = strike.partition(":")
            if kind == "wall":
                self.attempt(where, {}, max(0.05, float(share) * self.took_s))
                continue
            at = max(1, round(float(share) * self.seen.get(kind, 0)))
            if not self.seen.get(kind):
                return "no such moment"
            status = self.attempt(where, {"MOMENT": kind, "AT": str(at)})
            if status != (143 if kind == "term" else 1 if self.ranks > 1 else -signal.SIGKILL):
                return f"**ended with {status}**"
        status = self.attempt(where, {})
        begins = NO_PLACE in (where / "said").read_text()
        if status:
            return f"**resumed: {status}** {(where / 'said').read_text()[-300:]}"
        found = difference(newest(self.alone), newest(where))
        shutil.rmtree(where)
        return found and "begins new episodes" if begins and found else found or "equal"


def newest(where: Path) -> Path | None:
    """The last whole checkpoint."""
    found = (where / "checkpoints").glob("step-*[0-9]")
    return max(found, default=None)


def difference(one: Path | None, other: Path | None) -> str:
    """What differs between two checkpoints; empty: nothing."""
    if one is None or other is None or one.name != other.name:
        return "**another end**"
    if (one / "model.pt").read_bytes() != (other / "model.pt").read_bytes():
        return "**differs: model.pt**"
    for path in sorted(one.glob("open-rank*")):
        if path.read_bytes() != (other / path.name).read_bytes():
            return f"**differs: {path.name}**"
    for rank in range(2):
        rows = [b"".join(p.read_bytes() for p in sorted(c.glob(f"replay-rank{rank}-*")))
                for c in (one, other)]  # fmt: skip
        least = min(map(len, rows))  # segments begin where the history of saves had them begin
        if rows[0][len(rows[0]) - least :] != rows[1][len(rows[1]) - least :]:
            return "**differs: replay memory**"
    manifests = [json.loads((c / "manifest.json").read_text())["metrics"] for c in (one, other)]
    return "" if manifests[0] == manifests[1] else "**differs: metrics**"


def main(words: Sequence[str]) -> int:
    """Each row in turn; the table."""
    own = pairs.settings(words, OWN)
    sys.path.insert(0, str(strikes.AGENTS))
    import torch  # noqa: F401, I001  imported once, for all that are forked

    names = "torch.utils.tensorboard dqn sac ppo ppo_lstm ippo cv2 gymnasium.envs.mujoco.mujoco_env"
    for name in [*names.split(), "ale_py", "mujoco", "mpe2.simple_spread_v3", "Box2D"]:
        with contextlib.suppress(ImportError):
            __import__(name)
    draw, lines, wrong = random.Random(0), [], 0
    moments = {k: v for k, v in MOMENTS.items() if not own["moments"] or k in own["moments"]}
    for number in range(int(own["random"])):
        moments[f"at random {number + 1}"] = [f"wall:{draw.uniform(0.2, 0.9):.2f}"]
    head = ["agent", "environments", *moments, TWO]
    for agent, family, env in ROWS:
        if own["only"] and agent not in own["only"].split(","):
            continue
        if own["families"] and family not in own["families"].split(","):
            continue
        with tempfile.TemporaryDirectory(prefix="resume-") as name:
            case = Case(agent, family, env, Path(name))
            if case.untouched() is None:
                cells = ["not trained: " + (Path(name) / "alone" / "said").read_text()[-200:]]
            else:
                cells = [case.killed(strikes) for strikes in moments.values()]
            cells.append(two_ranks(agent, family, env, Path(name)))
        wrong += sum("**" in cell for cell in cells)
        print(f"{agent}, {family} ({env}, {case.took_s:.1f} s): {'; '.join(cells)}", flush=True)
        lines.append(f"| {agent} | {family}, {env} | {' | '.join(cells)} |")
        write(Path(own["document"]), head, lines)
    return 1 if wrong else 0


def two_ranks(agent: str, family: str, env: str, folder: Path) -> str:
    """SIGKILL of rank 1 under torchrun, for DQN and PPO."""
    if family != "classic control" or agent not in ("dqn", "ppo"):
        return ""
    (folder / "two").mkdir()
    case = Case(agent, family, env, folder / "two", ranks=2)
    return case.killed(["update:0.6"]) if case.untouched() else "not trained"


def write(path: Path, head: Sequence[str], lines: Sequence[str]) -> None:
    """The table as a document."""
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]
    path.write_text(HEAD + "\n".join(rows) + "\n")


HEAD = """# Killed and resumed

Written by `python benchmarks/resume_matrix.py`: each agent on each family of environments it plays,
a short training, killed with SIGKILL at the moment the column names (SIGTERM where it says so) and
resumed from its newest checkpoint to the end. `equal`: the last checkpoint has the same bytes in
model.pt and the replay memory, and the same metrics, as that of a training which was left alone.
`begins new episodes`: the environments' state cannot be kept (Box2D), as the first lines of the log
say; such a training goes on, with other numbers, and ends equal where it was killed before its
first checkpoint. Moments at random are drawn in wall time; "twice" is killed in the resumed
attempt, too. One thread on a CPU, the same number of ranks; two are tried for DQN and PPO. The
environments' own files are not compared: those of MuJoCo and of Atari games
are not the same bytes in two trainings that nobody touched either.

"""

if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main(sys.argv[1:]))
