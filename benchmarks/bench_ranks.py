"""Two ranks of an agent against one: the same returns, equal parameters, and what it costs.

    python benchmarks/bench_ranks.py [seeds=1..5] [episodes=100] [only=dqn,ppo,ppo_pendulum]

Each seed is a pair: one rank alone, and two that torchrun starts, over the same total of steps by
the recipe agents/NAME.toml. The last parameters play fresh episodes. Timed is the training without
its imports, evaluations and checkpoints, and each all-reduce of a gradient: in microseconds of wall
(which is also waiting for the other rank) and of CPU (all threads of a rank). Then short trainings,
from numbers and from pictures: by torchrun and by mpirun, and resumed from the middle; all ranks of
all of them must hold the same bytes, and no two environments may have been given the same seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pairs
import rank

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPES = ("dqn", "ppo", "ppo_pendulum")
OWN = {"seeds": "1..5", "episodes": "100", "only": ",".join(RECIPES)}
QUIET = {"eval_every": "0", "checkpoint_every": "0", "device": "cpu"}
SHORT = {
    "dqn": "steps=2000 num_envs=4 learning_starts=500 checkpoint_every=1000",
    "ppo": "steps=2048 checkpoint_every=1024",
    "dqn_atari": "steps=400 buffer_size=2000 learning_starts=100 eval_every=0 checkpoint_every=200",
    "ppo_atari": "steps=512 num_envs=4 rollout=32 eval_every=0 checkpoint_every=256",
}
"""Whose checkpoints begin with one in the middle, from which they are resumed."""


def recipe(name: str, words: dict[str, str]) -> tuple[str, list[str]]:
    """The agent's script, and its options with others in place of some."""
    job = tomllib.loads((rank.AGENTS / f"{name}.toml").read_text("utf-8"))
    options = {key: str(value) for key, value in job["params"].items()}
    return job["entry"], [f"{key}={value}" for key, value in {**options, **words}.items()]


def train(
    name: str, words: dict[str, str], folder: Path, *, how: str, resume: Path | None = None
) -> list[dict[str, Any]]:
    """What each rank of a training found; its checkpoints are in `folder`. how: see `front`."""
    entry, options = recipe(name, words)
    folder.mkdir()
    env = {
        **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
        "RUNNER_CHECKPOINTS": str(folder / "checkpoints"), "RUNNER_LOGS": str(folder / "logs"),
        "RUNNER_PROGRESS": os.devnull, "RUNNER_RESUME": str(resume or ""),
    }  # fmt: skip
    env.pop("RUNNER_PARAMS", None)
    start = front(how, folder, env)
    pairs.run_process(
        ["timeout", "900", *start, rank.__file__, entry, str(folder), *options], env=env
    )
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


def front(how: str, folder: Path, env: dict[str, str]) -> list[str]:
    """What to write before a script to have it started: `alone`, `torchrun` or `mpirun`."""
    if how == "alone":
        return [sys.executable]
    if how == "torchrun":
        options = ["--standalone", "--nproc-per-node=2", f"--log-dir={folder}"]
        return [sys.executable, "-m", "torch.distributed.run", *options]
    sys.path.insert(0, str(rank.AGENTS.parent / "provisioning" / "worker"))
    import mpi  # with the runner's own options

    try:
        mpi.prepare(str(folder), env)
    except mpi.Missing as missing:
        raise pairs.Failed(str(missing)) from missing
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    return mpi.command(2, ["env", "-u", "LD_PRELOAD", sys.executable])  # that is for mpirun alone


def play(folder: Path, seed: int, episodes: int) -> float:
    """Mean return of fresh episodes by the last parameters."""
    checkpoint = max((folder / "checkpoints").glob("step-*"))
    words = [f"checkpoint={checkpoint}", f"episodes={episodes}", f"seed={seed}"]
    env = {**os.environ, "RUNNER_LOGS": str(folder / "played"), "RUNNER_CHECKPOINTS": str(folder)}
    env |= {"RUNNER_PROGRESS": os.devnull, "OMP_NUM_THREADS": "1"}
    pairs.run_process([sys.executable, str(rank.AGENTS / "evaluate.py"), *words], env=env)
    return float(json.loads((folder / "played" / "evaluation.json").read_text())["return"]["mean"])


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        yield Path(folder)


def pair(name: str, seed: int, episodes: int) -> dict[str, Any]:
    """One rank and two, in an order that the seed turns."""
    found: dict[str, Any] = {"seed": seed}
    for how in ("alone", "torchrun") if seed % 2 else ("torchrun", "alone"):
        with place() as folder:
            ranks = train(name, {**QUIET, "seed": str(seed)}, folder / "run", how=how)
            found[how] = {"ranks": ranks, "return": play(folder / "run", seed, episodes)}
    check(found["torchrun"]["ranks"])
    return found


def check(ranks: list[dict[str, Any]]) -> None:
    """Two ranks, one vector of parameters, and an environment's seed nowhere twice."""
    given = [seed for each in ranks for seed in each["seeds"]]
    assert len(ranks) == 2 and len(set(given)) == len(given) > 1, given
    assert len({each["digest"] for each in ranks}) == 1, "the ranks' parameters differ"


def short(name: str) -> dict[str, str]:
    """What held of a short training: in words, by what was tried."""
    words = {"seed": "1", "device": "cpu", **dict(w.split("=") for w in SHORT[name].split())}
    told: dict[str, str] = {}
    with place() as folder:
        first = train(name, words, folder / "torchrun", how="torchrun")
        check(first)
        told["environments"] = f"{len(first[0]['seeds'])} + {len(first[1]['seeds'])}, no seed twice"
        told["ranks"] = f"equal, {first[0]['digest'][:12]}"
        checkpoints = sorted((folder / "torchrun" / "checkpoints").glob("step-*"))
        for what, how, resume in (
            ("mpirun", "mpirun", None),
            ("resumed", "torchrun", checkpoints[0]),
        ):
            try:
                ranks = train(name, words, folder / what, how=how, resume=resume)
            except pairs.Failed as problem:
                if how != "mpirun" or "mpirun:" not in str(problem):
                    raise
                told[what] = f"left out: {problem}"
                continue
            last = folder / what / "checkpoints" / checkpoints[-1].name
            kept = [(each / "model.pt").read_bytes() for each in (last, checkpoints[-1])]
            same = ranks[0]["digest"] == ranks[1]["digest"] == first[0]["digest"]
            assert same and kept[0] == kept[1], f"{name}: {what}: other bytes"
            told[what] = "same bytes"
    return told


def rows(name: str, found: list[dict[str, Any]]) -> list[str]:
    """The table of a recipe, a line for each seed, and what the pairs say together."""

    def ratio(key: str) -> pairs.Spread:
        return pairs.spread([
            sum(r[key] for r in each["torchrun"]["ranks"]) / (2 if key == "wall_s" else 1)
            / each["alone"]["ranks"][0][key] for each in found
        ])  # fmt: skip

    both = [rank for each in found for rank in each["torchrun"]["ranks"]]
    lines = [f"{name}: {both[0]['numbers']:,} parameters, {both[0]['updates']:,} updates"]
    lines.append(f"  {'seed':>4}  {'return, one rank':>16}  {'two ranks':>9}")
    for each in found:
        cells = (each[how]["return"] for how in ("alone", "torchrun"))
        lines.append("  {:>4}  {:16.1f}  {:9.1f}".format(each["seed"], *cells))
    for what, key in (("wall", "average_wall_us"), ("CPU", "average_cpu_us")):
        there = pairs.spread([rank[key] for rank in both])
        lines.append(f"  an all-reduce, {what}: {_around(there, 0)} µs")
    for what, key in (("wall", "wall_s"), ("CPU of both", "cpu_s")):
        lines.append(f"  a training, {what}: {_around(ratio(key), 2)} times one rank's")
    return lines


def _around(found: pairs.Spread, digits: int) -> str:
    return f"{found.median:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def main(words: list[str]) -> None:
    """Measure, print, and leave all numbers in results/bench/."""
    own = pairs.settings(words, OWN)
    only, episodes = own["only"].split(","), int(own["episodes"])
    if not set(only) <= set(RECIPES):
        sys.exit(f"only={own['only']}: not among {', '.join(RECIPES)}")
    held = {name: short(name) for name in SHORT}
    for name, told in held.items():
        print(f"{name}: " + "; ".join(f"{what}: {how}" for what, how in told.items()), flush=True)
    measured: dict[str, list[dict[str, Any]]] = {}
    pairs.RESULTS.mkdir(parents=True, exist_ok=True)
    for name in only:
        for seed in pairs.numbers(own["seeds"]):
            measured.setdefault(name, []).append(pair(name, seed, episodes))
            body = {"format": 1, "name": "ranks", "short": held, "pairs": measured}
            (pairs.RESULTS / "ranks.json").write_text(json.dumps(body, indent=1) + "\n")
            print(f"  {name} seed {seed} done", file=sys.stderr, flush=True)
        print("\n".join(rows(name, measured[name])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
