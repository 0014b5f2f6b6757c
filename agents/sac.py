"""Soft actor-critic, for flat observations and actions in a finite box.

Sources: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), whose two
critics and whose temperature that keeps an entropy these are; Fujimoto et al., "Addressing
Function Approximation Error in Actor-Critic Methods" (2018), for the lesser of two values.

By hand:   python agents/sac.py steps=20000 seed=1
Evaluate:  python agents/sac.py evaluate=CHECKPOINT episodes=100 seed=0
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import runtime  # noqa: F401  first: it sets how many threads torch and numpy start

# isort: split
import checkpoint
import environments
import evaluation
import health
import numpy as np
import seeds
import torch
import torch.nn.functional as F
from episodes import Episodes
from launch import launch
from loop import drive
from numpy.typing import NDArray
from options import check_ranges
from parameters import Descent, flatten_parameters
from replay import Replay
from runtime import Run
from schedules import straight
from side_by_side import SideBySide
from squashed import Actor, Policy
from torch import Tensor, nn

Floats = NDArray[np.float32]
LOSSES = ("value", "policy", "entropy", "temperature", "gradient_norm", "policy_gradient_norm")

# options


@dataclass(frozen=True)
class Options:
    """What a training is told; agents/sac.toml has the same names and defaults."""

    env: str = "Pendulum-v1"  # an id of gymnasium, or module:id
    steps: int = 20_000  # environment steps in all, over all ranks
    seed: int = -1  # drawn when negative
    num_envs: int = 1  # in all, rounded up to a multiple of the ranks
    device: str = "auto"  # auto, cpu or cuda
    hidden: int = 256  # width of both hidden layers
    lr: float = 1e-3  # of all three, at the start; falls in a straight line …
    lr_end: float = 0.0  # … to this at the last step
    gamma: float = 0.99
    batch_size: int = 64  # in all, rounded up to a multiple of the ranks
    buffer_size: int = 100_000  # transitions kept, over all ranks
    learning_starts: int = 1_000  # steps of random actions before the first update
    train_every: int = 1  # steps between rounds of updates
    updates: int = 1  # updates in a round
    tau: float = 0.005  # how far the target critics move to the critics at an update
    temperature: float = 0.0  # what an action's entropy is worth; 0: found by learning
    target_entropy: float = 1.0  # then: entropy kept is this times minus the numbers in an action
    max_grad_norm: float = 1e3  # of the critics, and of the policy
    checkpoint_every: int = 5_000  # steps; the final state is always saved; 0: only that
    eval_every: int = 5_000  # steps; 0: no evaluation
    eval_episodes: int = 20
    log_every: int = 1_000  # steps

    def __post_init__(self) -> None:
        """Raises Refused, naming every number out of its range."""
        check_ranges(self, seed=(-1, np.inf), tau=(0, 1), target_entropy=(-np.inf, np.inf))


# networks


class Critics(SideBySide):
    """Two critics side by side. sizes: (numbers seen and acted, width, …, 1)."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(2, sizes)

    def forward(self, seen: Tensor, acted: Tensor) -> Tensor:
        """(batch, seen), (batch, acted) in [-1, 1] to (2, batch) values."""
        return super().forward(torch.cat([seen, acted], dim=-1)).squeeze(-1)


# collect


def collect(envs: Episodes, replay: Replay, policy: Policy, share: Floats) -> None:
    """Step the first len(share) environments once each, into the replay memory.

    share: (active, acted) in [-1, 1]. A row is (observation, observation reached, action in
    [-1, 1], reward, terminated); each lies within one episode, and a time limit is not stored as
    an end.
    """
    # what has met a NaN is named when the rows are looked at; an environment is never sent one
    np.nan_to_num(share, copy=False, nan=0.0)
    numbers = envs.seen.shape[1]
    for i, action in enumerate(policy.in_box(share)):
        row = replay.next_row()
        row[:numbers] = envs.seen[i]
        after, reward, terminated, _ = envs.step(i, action)
        row[numbers : 2 * numbers] = after
        row[2 * numbers : -2] = share[i]
        row[-2], row[-1] = reward, terminated


# learn


def soft_target(reward: Tensor, terminated: Tensor, value: Tensor, gamma: float) -> Tensor:
    """r + gamma * V(next), without V where the episode really ended. All (batch,) float32."""
    return reward + gamma * (1.0 - terminated) * value


class Learner:
    """Policy with temperature, critics, target critics. sizes: as the Actor's."""

    def __init__(self, o: Options, run: Run, sizes: Sequence[int]) -> None:
        self.o, self.run = o, run
        self.numbers, self.acts = sizes[0], sizes[-1] // 2
        values = (self.numbers + self.acts, *sizes[1:-1], 1)
        self.actor = Actor(sizes)
        # the temperature, as a logarithm: what an action's entropy is worth beside a reward
        first = torch.tensor(math.log(o.temperature or 1.0), device=run.device)
        self.log_worth = nn.Parameter(first)
        self.critics, self.target = Critics(values), Critics(values)
        # the actor first, to act by numpy
        both = nn.ModuleList([self.actor, nn.ParameterList([self.log_worth])])
        for module in (both, self.critics, self.target):
            module.to(run.device)
        self.own, self.values = (
            Descent(module, run, most=o.max_grad_norm) for module in (both, self.critics)
        )
        self.theta_target = flatten_parameters(self.target)
        with torch.no_grad():
            self.theta_target.copy_(self.values.theta)
        self.acting = self.own.theta.detach().cpu()  # the same memory on a CPU

    def learn(self, rows: Floats, noise: Floats, step: int) -> dict[str, float]:
        """Updates of all parts. Returns the mean losses. Raises Fault when one is not finite.

        rows: (updates, batch, row) as the collector wrote them. noise: (updates, 2, batch, acted),
        standard normal, for actions at the observations reached and at those acted on.
        """
        o, n = self.o, self.numbers
        batch, noises = (torch.from_numpy(x).to(self.run.device) for x in (rows, noise))
        # made anew: torch aligns its memory, so that sums come out the same in the next process
        seen, after = batch[..., :n].contiguous(), batch[..., n : 2 * n].contiguous()
        acted, reward, terminated = batch[..., 2 * n : -2], batch[..., -2], batch[..., -1]
        lr = straight(o.lr, o.lr_end, step / o.steps)
        totals = torch.zeros(len(LOSSES), device=self.run.device)
        for k in range(len(rows)):
            worth = self.log_worth.detach().exp()
            with torch.no_grad():
                action, log_prob = self.actor(after[k], noises[k, 0])
                value = self.target(after[k], action).amin(0) - worth * log_prob  # (batch,)
                goal = soft_target(reward[k], terminated[k], value, o.gamma)
            values = self.critics(seen[k], acted[k])  # (2, batch)
            value_loss = 2.0 * F.mse_loss(values, goal.expand_as(values))  # the sum of both
            value_norm = self.values.step(value_loss, lr)

            action, log_prob = self.actor(seen[k], noises[k, 1])
            value = torch.minimum(*self.critics(seen[k], action))  # (batch,)
            policy_loss, entropy = (worth * log_prob - value).mean(), -log_prob.detach().mean()
            loss = policy_loss
            if not o.temperature:
                loss = loss + self.log_worth * (entropy + o.target_entropy * self.acts)
            policy_norm = self.own.step(loss, lr, clipped=-1)  # all but the temperature
            with torch.no_grad():
                self.theta_target.lerp_(self.values.theta, o.tau)
            found = (value_loss, policy_loss, entropy, worth, value_norm, policy_norm)
            totals += torch.stack(found).detach()
        self.acting.copy_(self.own.theta.detach())
        return health.losses(LOSSES, totals / len(rows), step)

    def held(self) -> dict[str, Tensor]:
        """All vectors, by the names that a fault says."""
        state = self.state()
        for part in ("adam", "adam_critics"):
            state |= {f"{part} {name}": vector for name, vector in state.pop(part).items()}
        return state

    def state(self) -> dict[str, Any]:
        """All of it for a checkpoint, on the CPU."""
        return {
            "params": self.own.theta.detach().cpu(), "critics": self.values.theta.detach().cpu(),
            "target": self.theta_target.detach().cpu(),
            "adam": self.own.adam.state(), "adam_critics": self.values.adam.state(),
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, on whatever device."""
        with torch.no_grad():
            self.own.theta.copy_(state["params"])
            self.values.theta.copy_(state["critics"])
            self.theta_target.copy_(state["target"])
            self.acting.copy_(self.own.theta)
        self.own.adam.load(state["adam"])
        self.values.adam.load(state["adam_critics"])


# main


class Training:
    """All parts of one training, and what moves them to and from a checkpoint."""

    asks_every = 16

    def __init__(self, o: Options, run: Run) -> None:
        self.o, self.run, self.step, self.checked = o, run, 0, 0
        self.per_rank = -(-o.num_envs // run.world)
        self.total_envs = self.per_rank * run.world
        facts = environments.look(o.env, acts="box")
        self.low, self.high, numbers, acts = facts.low, facts.high, facts.numbers, len(facts.low)
        torch.manual_seed(seeds.derive_seed(o.seed, seeds.SEEDS_AGENT))
        self.sizes = (numbers, o.hidden, o.hidden, 2 * acts)
        self.learner = Learner(o, run, self.sizes)
        self.policy = Policy(self.learner.acting, self.sizes, self.low, self.high)
        seeds.seed_everything(o.seed, run.rank)
        self.rng = np.random.default_rng([o.seed, seeds.SEEDS_AGENT, run.rank])
        width = 2 * numbers + acts + 2
        self.replay = Replay(-(-o.buffer_size // run.world), width, rank=run.rank)
        index = range(run.rank * self.per_rank, (run.rank + 1) * self.per_rank)
        self.envs = Episodes(o.env, seed=o.seed, index=index, facts=facts)

    @property
    def ticks(self) -> int:
        """Steps of every environment, whole ones."""
        return self.step // self.total_envs

    def advance(self) -> dict[str, float]:
        """One step of every environment, and the rounds of updates that are due."""
        before = self.step
        self.collect()
        rounds = self.step // self.o.train_every - before // self.o.train_every
        ready = self.step >= max(self.o.learning_starts, self.total_envs)
        return self.learn(rounds) if rounds and ready else {}

    def collect(self) -> None:
        """Step every environment once; at the very end only as many as steps are left."""
        making = min(self.total_envs, self.o.steps - self.step)
        active = min(self.per_rank, max(0, making - self.run.rank * self.per_rank))
        shape = (self.per_rank, self.learner.acts)
        if self.step < self.o.learning_starts:
            share = self.rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        else:
            noise = self.rng.standard_normal(shape, np.float32)
            share = self.policy.sample(self.envs.seen, noise)
        collect(self.envs, self.replay, self.policy, share[:active])
        self.step += making

    def learn(self, rounds: int) -> dict[str, float]:
        """Rounds of updates on batches split over the ranks; the mean losses."""
        self.check_healthy(rows_only=True)
        updates, batch = rounds * self.o.updates, -(-self.o.batch_size // self.run.world)
        rows = self.replay.sample(self.rng, (updates, batch))
        noise = self.rng.standard_normal((updates, 2, batch, self.learner.acts), np.float32)
        return self.learner.learn(rows, noise, self.step)

    def evaluate(self) -> dict[str, float]:
        """Mean return of greedy episodes, on rank 0."""
        return evaluation.evaluate(self.run, self.o, self.policy, step=self.step)

    def check_healthy(self, *, rows_only: bool = False) -> None:
        """Raises Fault with the first cause: what an environment gave, else the parameters."""
        row = self.replay.first_bad(self.checked)
        self.checked = self.replay.count
        given = None if row is None else (row // self.per_rank + 1) * self.total_envs
        held = {} if rows_only else self.learner.held()
        health.check(self.run, self.step, given=given, held=held)

    def save(self, metrics: dict[str, float]) -> None:
        """Write a checkpoint of this step; metrics: measured for exactly these parameters."""
        self.check_healthy()
        state = {
            **self.learner.state(), "format": 1, "agent": "sac", "sizes": list(self.sizes),
            "low": self.low.tolist(), "high": self.high.tolist(),
            "rows": self.run.gather(self.replay.count),
        }  # fmt: skip
        checkpoint.save(self, state, metrics, memory=self.replay)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint. Raises Refused when it does not fit the options."""
        state = checkpoint.read_own(folder, "sac")
        checkpoint.go_on(self, folder, state, fits="env hidden num_envs buffer_size")
        self.learner.load(state)
        rows = state["rows"][self.run.rank]
        self.replay.load(folder, checkpoint.read_manifest(folder), rows)
        self.checked = self.replay.count


def greedy(state: dict[str, Any]) -> Policy:
    """The greedy policy of a checkpoint, from the contents of its model.pt."""
    low, high = (np.asarray(state[end], np.float32) for end in ("low", "high"))
    return Policy(state["params"], state["sizes"], low, high)


def train(o: Options, run: Run) -> Training:
    """Train to the end, or until a signal; the trained parts. Raises Refused, Fault, Stopped."""
    t = Training(o, run)
    if run.resume:
        t.load(run.resume)
    elif o.checkpoint_every:
        t.replay.check_disk(run.checkpoints)
    if o.checkpoint_every:
        t.replay.write_ahead(run.checkpoints)
    replay = f"{t.replay.size_bytes / 1e6:.0f} MB a rank, in memory and in checkpoints"
    drive(t, o, run, name="sac", more=f"envs {t.total_envs}  replay {replay}")
    return t


if __name__ == "__main__":
    launch(Options, train, greedy, sys.argv[1:])
