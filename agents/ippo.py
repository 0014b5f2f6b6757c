"""Proximal policy optimisation for teams: one policy that every agent of a team acts by, alone.

Sources: Schulman et al., "Proximal Policy Optimization Algorithms" (2017); de Witt et al., "Is
Independent Learning All You Need in the StarCraft Multi-Agent Challenge?" (2020), each agent learns
from what it sees and is rewarded for itself; Yu et al., "The Surprising Effectiveness of PPO in
Cooperative Multi-Agent Games" (2022), parameters shared by the team, normalised values. An agent
sees flat observations, its actions are discrete. The return of an episode is the sum over agents.

By hand:   python agents/ippo.py env=mpe2.simple_spread_v3 seed=1
Evaluate:  python agents/ippo.py evaluate=CHECKPOINT episodes=100 seed=0
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import runtime  # noqa: F401  first: it sets how many threads torch and numpy start

# isort: split
import checkpoint
import evaluation
import health
import numpy as np
import seeds
import team_environments
import torch
from advantages import gae, normalised
from launch import launch
from loop import drive
from networks import orthogonal, perceptron
from normalise import RunningMoments
from numpy.typing import NDArray
from options import check_ranges
from parameters import Descent, NumpyNetwork, layers_of
from rollouts import first_bad
from runtime import Run
from schedules import straight
from surrogate import bound, gains
from teams import Teams, play_greedy
from torch import Tensor, nn

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
LOSSES = ("policy", "value", "entropy", "gradient_norm")

# options


@dataclass(frozen=True)
class Options:
    """What a training is told; agents/ippo.toml has the same names and defaults."""

    env: str = "mpe2.simple_spread_v3"  # a module with parallel_env, or module:function
    steps: int = 300_000  # steps of all agents at once, over all environments and ranks
    seed: int = -1  # drawn when negative
    num_envs: int = 16  # in all, rounded up to a multiple of the ranks
    device: str = "auto"  # auto, cpu or cuda
    hidden: int = 128  # width of both hidden layers
    agent_numbers: bool = True  # each agent also sees which one of the team it is
    lr: float = 2e-3  # at the start; falls in a straight line …
    lr_end: float = 0.0  # … to this at the last update
    gamma: float = 0.95
    gae_lambda: float = 0.95
    rollout: int = 50  # steps of each environment between updates
    batch_size: int = 600  # agents' steps in a minibatch, over all ranks
    epochs: int = 10  # times that each rollout is learned from
    clip: float = 0.2  # how far the probability of an action may go in one round of updates
    entropy: float = 0.01  # weight of the entropy
    value_coef: float = 0.5  # weight of the critic's squared error
    normalise_values: bool = True  # values are learned over the deviation of what was returned
    max_grad_norm: float = 0.5
    checkpoint_every: int = 50_000  # steps; the final state is always saved; 0: only that
    eval_every: int = 50_000  # steps; 0: no evaluation
    eval_episodes: int = 100
    log_every: int = 10_000  # steps

    def __post_init__(self) -> None:
        """Raises Refused, naming every number out of its range."""
        check_ranges(self, seed=(-1, np.inf))


# networks


class Network(nn.Module):
    """What all agents share. sizes: numbers in an observation, hidden, hidden, actions."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        gains = [2**0.5] * (len(sizes) - 1)
        # first, for acting reads it where the vector begins
        self.policy = perceptron(sizes, nn.Tanh, gains)
        orthogonal(self.policy[-1], 0.01)  # begins with nearly equal chances
        self.value = perceptron((*sizes[:-1], 1), nn.Tanh, gains)
        orthogonal(self.value[-1], 1.0)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, numbers) to (rows, actions) log-probabilities and (rows,) values."""
        return torch.log_softmax(self.policy(seen), dim=1), self.value(seen).squeeze(1)


class Policy:
    """The greedy policy of a flat vector of a Network's parameters."""

    def __init__(self, flat: Tensor, sizes: Sequence[int]) -> None:
        self.network = NumpyNetwork(layers_of(flat.numpy(), sizes), "tanh")
        self.numbers = sizes[0]

    def scores(self, seen: Floats) -> Floats:
        """(n, agents, width) of a team's observations to (n, agents, actions) logits."""
        n, agents, width = seen.shape
        rows = seen.reshape(n * agents, width)[:, : self.numbers]  # the agents' numbers come last
        return self.network(rows).reshape(n, agents, -1)

    def __call__(self, seen: Floats) -> NDArray[np.int64]:
        """(n, agents, width) to (n, agents) likeliest actions, counted from 0."""
        actions: NDArray[np.int64] = self.scores(seen).argmax(axis=2)
        return actions


# collect


class Rollout(NamedTuple):
    """T steps of n environments: arrays (T, n, agents, …). Who does not act gives no data."""

    seen: Floats  # (T + 1, n, agents, width)
    acting: Flags
    actions: NDArray[np.int64]
    rewards: Floats
    ended: Flags  # either way, and where nobody acts
    limits: NDArray[np.int64]  # (L, 3): t, environment and agent of each time limit …
    limits_seen: Floats  # … and what it reached (L, width)


def collect(
    envs: Teams, policy: Policy, rng: np.random.Generator, length: int, *, last: int
) -> Rollout:
    """Step every environment `length` times; last: how many of them in the last of these steps."""
    n, agents, width = envs.seen.shape
    shape = (length, n, agents)
    seen = np.empty((length + 1, n, agents, width), np.float32)
    acting, ended = np.empty(shape, np.bool_), np.empty(shape, np.bool_)
    actions, rewards = np.empty(shape, np.int64), np.empty(shape, np.float32)
    limits, limits_seen = [np.empty((0, 3), np.int64)], [np.empty((0, width), np.float32)]
    for t in range(length):
        active = n if t < length - 1 else last
        seen[t], acting[t] = envs.seen, envs.acting
        acting[t, active:] = False
        scores = policy.scores(envs.seen)
        # the largest of logits with such noise is a draw from their softmax
        actions[t] = (scores + rng.gumbel(size=scores.shape)).argmax(axis=2)
        told = envs.step(actions[t], active)
        rewards[t], ended[t] = told.rewards, told.terminated | told.truncated | ~acting[t]
        if told.truncated.any():
            limits.append(np.insert(np.argwhere(told.truncated), 0, t, axis=1))
            limits_seen.append(told.after[told.truncated])
    seen[length] = envs.seen
    return Rollout(seen, acting, actions, rewards, ended,
                   np.concatenate(limits), np.concatenate(limits_seen))  # fmt: skip


def first_bad_step(r: Rollout) -> int | None:
    """How many steps into the rollout something not finite was given, first."""
    return first_bad(r.rewards, r.seen, r.limits[:, 0], r.limits_seen)


# learn


class Rows(NamedTuple):
    """Steps of agents, of whichever environment and time: arrays (rows, …)."""

    seen: Floats  # (rows, numbers)
    actions: NDArray[np.int64]
    log_probs: Floats  # of the actions, by the policy that chose them
    advantages: Floats
    goals: Floats  # of the values


class Learner:
    """Parameters, the optimiser, the policy that reads them, and the scale of the values."""

    def __init__(self, o: Options, run: Run, sizes: Sequence[int]) -> None:
        self.o, self.run, self.numbers = o, run, sizes[0]
        self.network = Network(sizes).to(run.device)
        self.descent = Descent(self.network, run, most=o.max_grad_norm, eps=1e-5)
        self.theta = self.descent.theta
        self.returned = RunningMoments(())
        self._acting = self.theta.detach().cpu()  # the same memory on a CPU
        self.policy = Policy(self._acting, sizes)

    @torch.no_grad()
    def weigh(self, r: Rollout) -> Rows:
        """What there is to learn from a rollout: the steps of who acted. A collective call."""
        length, acting, here = len(r.acting), r.acting, r.seen[..., 0].size
        rows = np.concatenate([r.seen.reshape(here, -1), r.limits_seen])[:, : self.numbers]
        outs = self.network(torch.from_numpy(rows).to(self.run.device))
        log_probs, values = (out.cpu().numpy() for out in outs)
        values = values * np.float32(self.scale) + np.float32(self.returned.mean)
        seen_values = values[:here].reshape(length + 1, *acting.shape[1:])
        # a real end reached nothing more, a time limit what was seen there; all else the next step
        reached = np.where(r.ended, np.float32(0), seen_values[1:])
        reached[tuple(r.limits.T)] = values[here:]
        acted_on = np.where(acting, seen_values[:-1], np.float32(0))
        flat = (array.reshape(length, -1) for array in (r.rewards, acted_on, reached, r.ended))
        advantages = gae(*flat, gamma=self.o.gamma, lam=self.o.gae_lambda)
        advantages = advantages.reshape(acting.shape)[acting]
        goals = advantages + acted_on[acting]
        if self.o.normalise_values:
            self.returned.update(goals, self.run)
        goals = ((goals - self.returned.mean) / self.scale).astype(np.float32)
        actions, place = r.actions[acting], np.flatnonzero(acting)
        chosen = log_probs[place, actions]
        return Rows(rows[place], actions, chosen, normalised(advantages, self.run), goals)

    @property
    def scale(self) -> float:
        """Deviation of the returns so far: what the network's values are counted in."""
        return float(np.sqrt(self.returned.var + 1e-8))

    def learn(self, rows: Rows, rng: np.random.Generator, step: int) -> dict[str, float]:
        """Updates from some rows: the mean losses. A minibatch is shared out over the ranks.

        Ranks may have different numbers of rows, for agents end early; each row counts the same.
        Raises Fault when a loss or the gradient's norm is not finite.
        """
        o, run, mine = self.o, self.run, len(rows.actions)
        parts = max(1, -int(-run.reduce_sum(np.array([float(mine)]))[0] // o.batch_size))
        few, more = divmod(mine, parts)
        counts = run.reduce_sum(np.array([float(few + (k < more)) for k in range(parts)]))
        batch = [torch.from_numpy(array).to(run.device) for array in rows]
        lr = straight(o.lr, o.lr_end, step / o.steps)
        totals = torch.zeros(4, device=run.device)
        for _ in range(o.epochs):
            order = torch.from_numpy(rng.permutation(mine)).to(run.device)
            for chosen, count in zip(order.tensor_split(parts), counts.tolist(), strict=True):
                sums = loss_sums(self.network, [array[chosen] for array in batch], o.clip)
                policy, value, entropy = sums * (run.world / max(count, 1.0))
                loss = policy + o.value_coef * value - o.entropy * entropy
                norm = self.descent.step(loss, lr)
                totals += torch.stack((policy, value, entropy, norm)).detach()
        self._acting.copy_(self.theta.detach())
        totals /= o.epochs * parts
        run.average(totals)
        return health.losses(LOSSES, totals, step)

    def state(self) -> dict[str, Any]:
        """All of it for a checkpoint, on the CPU."""
        return {**self.descent.state(), "returned": self.returned.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, on whatever device."""
        self.descent.load(state)
        self._acting.copy_(self.theta.detach())
        self.returned.load(state["returned"])


def loss_sums(network: Network, batch: Sequence[Tensor], clip: float) -> Tensor:
    """Loss of the policy, loss of the values, and the entropy: sums over the rows. batch: Rows."""
    seen, actions, old, advantages, goals = batch
    log_probs, values = network(seen)
    moved = log_probs.gather(1, actions.unsqueeze(1)).squeeze(1) - old
    gained = gains(moved, advantages, bound(advantages, clip))
    entropy = -(log_probs.exp() * log_probs).sum()
    return torch.stack((-gained.sum(), 0.5 * (values - goals).square().sum(), entropy))


# main


class Training:
    """All parts of one training, and what moves them to and from a checkpoint."""

    asks_every = 1

    def __init__(self, o: Options, run: Run) -> None:
        self.o, self.run, self.step = o, run, 0
        self.per_rank = -(-o.num_envs // run.world)
        self.total_envs = self.per_rank * run.world
        facts = team_environments.look(o.env)
        self.agents = facts.agents
        numbers = facts.width if o.agent_numbers else facts.numbers
        torch.manual_seed(seeds.derive_seed(o.seed, seeds.SEEDS_AGENT))
        self.sizes = (numbers, o.hidden, o.hidden, facts.actions)
        self.learner = Learner(o, run, self.sizes)
        seeds.seed_everything(o.seed, run.rank)
        self.rng = np.random.default_rng([o.seed, seeds.SEEDS_AGENT, run.rank])
        index = range(run.rank * self.per_rank, (run.rank + 1) * self.per_rank)
        self.envs = Teams(o.env, seed=o.seed, index=index, facts=facts)

    @property
    def ticks(self) -> int:
        """Rollouts, whole ones or not."""
        return -(-self.step // (self.o.rollout * self.total_envs))

    def advance(self) -> dict[str, float]:
        """A rollout, and the updates from it; at the very end only the steps that are left."""
        making = min(self.o.rollout * self.total_envs, self.o.steps - self.step)
        length = -(-making // self.total_envs)
        last = making - (length - 1) * self.total_envs - self.run.rank * self.per_rank
        rollout = collect(self.envs, self.learner.policy, self.rng, length,
                          last=min(max(last, 0), self.per_rank))  # fmt: skip
        bad = first_bad_step(rollout)
        given = None if bad is None else min(self.step + bad * self.total_envs, self.o.steps)
        self.step += making
        health.check(self.run, self.step, given=given)
        return self.learner.learn(self.learner.weigh(rollout), self.rng, self.step)

    def evaluate(self) -> dict[str, float]:
        """Mean return of greedy episodes, summed over the agents, on rank 0."""
        return evaluation.evaluate(
            self.run, self.o, self.learner.policy, step=self.step, play=play_greedy
        )

    def save(self, metrics: dict[str, float]) -> None:
        """Write a checkpoint of this step; metrics: measured for exactly these parameters."""
        health.check(self.run, self.step, held=self.learner.descent.held())
        more = {"format": 1, "agent": "ippo", "sizes": list(self.sizes)}
        checkpoint.save(self, {**self.learner.state(), **more}, metrics)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint. Raises Refused when it does not fit the options."""
        state = checkpoint.read_own(folder, "ippo")
        fits = "env hidden num_envs agent_numbers normalise_values"
        checkpoint.go_on(self, folder, state, fits=fits, sizes=list(self.sizes))
        self.learner.load(state)


def train(o: Options, run: Run) -> Training:
    """Train to the end, or until a signal; the trained parts. Raises Refused, Fault, Stopped."""
    t = Training(o, run)
    if run.resume:
        t.load(run.resume)
    drive(t, o, run, name="ippo", more=f"envs {t.total_envs}  agents {t.agents}")
    return t


def greedy(state: dict[str, Any]) -> Policy:
    """The greedy policy of a checkpoint, from the contents of its model.pt."""
    return Policy(state["params"], state["sizes"])


if __name__ == "__main__":
    launch(Options, train, greedy, sys.argv[1:], play=play_greedy)
