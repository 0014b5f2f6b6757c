"""Proximal policy optimisation, for flat observations or pictures, discrete or continuous actions.

Sources: Schulman et al., "Proximal Policy Optimization Algorithms" (2017); details after Huang et
al., "The 37 Implementation Details of Proximal Policy Optimization" (2022); hyperparameters after
rl-baselines3-zoo. What it makes greater is in surrogate.py, its network in actor_critic.py.

By hand:   python agents/ppo.py steps=100000 seed=1
Evaluate:  python agents/ppo.py evaluate=CHECKPOINT episodes=100 seed=0
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
from acceleration import accelerated, check_compile
from actor_critic import Network, Policy, described, rebuilt
from advantages import gae, normalised
from environments import Facts
from episodes import Episodes
from launch import launch
from loop import drive
from normalise import RewardScale, RunningMoments
from numpy.typing import NDArray
from options import Refused, check_ranges
from parameters import Descent, flatten_parameters
from rollouts import Rollout
from runtime import Run
from schedules import straight
from surrogate import bound, choices, densities, gains
from torch import Tensor

Floats = NDArray[np.float32]
LOSSES = ("policy", "value", "entropy", "gradient_norm", "kl", "clip_fraction")
FORMAT = 2  # of checkpoints

# options


@dataclass(frozen=True)
class Options:
    """What a training is told; agents/ppo.toml has the same names and defaults."""

    env: str = "CartPole-v1"  # an id of gymnasium, or module:id
    steps: int = 100_000  # environment steps in all, over all ranks; whole steps of all num_envs
    seed: int = -1  # drawn when negative
    num_envs: int = 8  # in all, rounded up to a multiple of the ranks
    device: str = "auto"  # auto, cpu or cuda
    amp: bool = False  # bfloat16 within the forward passes of learning
    compile: str = "off"  # or a mode of torch.compile: default, reduce-overhead (CUDA graphs)
    hidden: int = 64  # width of both hidden layers, of actor and critic each; not for pictures
    activation: str = "tanh"  # tanh or relu; not for pictures
    rollout: int = 32  # steps of each environment between updates
    epochs: int = 20  # how often a rollout is learned from
    batch_size: int = 256  # most in one update, in all, rounded up to a multiple of the ranks
    lr: float = 1e-3  # at the start; falls in a straight line …
    lr_end: float = 0.0  # … to this at the last step
    clip: float = 0.2  # how far a probability may move, as a share, at the start; falls …
    clip_end: float = 0.0  # … to this at the last step
    gamma: float = 0.98
    gae_lambda: float = 0.8
    entropy: float = 0.0  # weight of the entropy, which keeps the policy random
    value_coef: float = 0.5  # weight of the critic's squared error
    max_grad_norm: float = 0.5
    target_kl: float = 0.0  # no more epochs once one has moved further than this; 0: off
    min_advantage: float = 0.0  # smaller normalised advantages teach the critic only; 0: off
    normalise_observations: bool = False  # by their running mean and deviation
    normalise_rewards: bool = False  # by the running deviation of their discounted sums
    log_std_start: float = 0.0  # of continuous actions, in units of half the box
    checkpoint_every: int = 10_000  # steps; the final state is always saved; 0: only that
    eval_every: int = 10_000  # steps; 0: no evaluation
    eval_episodes: int = 20
    log_every: int = 2_000  # steps

    def __post_init__(self) -> None:
        """Raises Refused, naming every number out of its range."""
        check_ranges(self, seed=(-1, np.inf), log_std_start=(-20, 5))
        check_compile(self.compile)
        if self.activation not in ("tanh", "relu"):
            raise Refused(f"activation is {self.activation!r}; it must be tanh or relu")


# learn


class Batch(NamedTuple):
    """Samples to learn from, all on the device."""

    seen: Tensor  # (B, *shape)
    actions: Tensor  # (B,) int64, or (B, k) as drawn
    old: Tensor  # (B,): minus the log probabilities while collecting
    advantage: Tensor  # (B,)
    most: Tensor  # (B,): what can be gained, as `surrogate.bound` has it
    goal: Tensor  # (B,): what the critic should have said


class Learner:
    """The network, its flat parameters, the optimiser, and the policy that acts by them."""

    def __init__(self, o: Options, run: Run, facts: Facts) -> None:
        self.o, self.run, self.facts = o, run, facts
        self.network = Network(
            facts, hidden=o.hidden, activation=o.activation, log_std_start=o.log_std_start
        ).to(run.device)
        self.descent = Descent(self.network, run, most=o.max_grad_norm, eps=1e-5, tiny=0.0)
        self.theta = self.descent.theta
        self.moments = RunningMoments(facts.shape) if o.normalise_observations else None
        self.acting, self._copied = self.network, None
        if run.device.type != "cpu" and not facts.image:  # numpy acts by a copy
            self.acting = copy.deepcopy(self.network).cpu()
            self._copied = flatten_parameters(self.acting)
        self.policy = Policy(self.acting, self.moments)
        self.losses_of = accelerated(self.losses, o, run.device)
        self.outputs_of = accelerated(self.network, o, run.device, compiles=False)

    def nll(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Minus each action's log probability or density (B,), minus the sum of the entropies."""
        if self.facts.actions:
            return choices(outputs, actions)
        return densities(outputs, self.network.log_std, actions)

    @torch.no_grad()
    def batch(self, roll: Rollout, rewards: Floats, clip: float) -> Batch:
        """A rollout with its advantages, normalised over the ranks. rewards: (T, n), scaled."""
        o, (rows, n), device = self.o, rewards.shape, self.run.device
        seen = roll.seen[: rows + 1].reshape(-1, *self.facts.shape)
        seen = np.concatenate([seen, np.stack(roll.limits)]) if roll.limits else seen
        seen = torch.from_numpy(self.policy.normal(seen)).to(device)
        actions = torch.from_numpy(roll.actions[:rows]).to(device).flatten(0, 1)
        # one pass for all there is to know; in parts, for pictures take much memory on the way
        parts = [self.outputs_of(part) for part in seen.split(4096)]
        outputs, values = (torch.cat(each) for each in zip(*parts, strict=True))
        old, _ = self.nll(outputs[: rows * n], actions)
        value = values.cpu().numpy()
        terminated, truncated = roll.terminated[:rows], roll.truncated[:rows]
        reached = value[n : (rows + 1) * n].reshape(rows, n) * ~terminated
        reached[truncated] = value[(rows + 1) * n :]
        value = value[: rows * n].reshape(rows, n)
        advantage = gae(rewards, value, reached, terminated | truncated,
                        gamma=o.gamma, lam=o.gae_lambda)  # fmt: skip
        goal = torch.from_numpy(advantage + value).to(device).flatten()
        advantage = normalised(advantage, self.run)
        advantage[np.abs(advantage) < o.min_advantage] = 0.0
        scaled = torch.from_numpy(advantage).to(device).flatten()
        return Batch(seen[: rows * n], actions, old, scaled, bound(scaled, clip), goal)

    def losses(self, b: Batch) -> tuple[Tensor, ...]:
        """The loss; what to tell: sum of gains, critic's loss, sum of negentropies, log ratios."""
        o = self.o
        outputs, values = self.network(b.seen)
        nll, negentropy = self.nll(outputs, b.actions)
        moved = b.old - nll
        gain = gains(moved, b.advantage, b.most).sum()
        error = F.mse_loss(values, b.goal)
        objective = torch.sub(gain, negentropy, alpha=o.entropy) if o.entropy else gain
        loss = torch.sub(o.value_coef * error, objective, alpha=1 / len(b.old))
        return loss, *(told.detach() for told in (gain, error, negentropy, moved))

    def learn(self, batch: Batch, rng: np.random.Generator, step: int) -> dict[str, float]:
        """Epochs of updates on the rollout; mean losses over ranks and updates by their tags.

        Raises Fault when one of them or a parameter is not finite, on every rank alike.
        """
        o, count = self.o, len(batch.old)
        parts = -(-count // -(-o.batch_size // self.run.world))
        clip = straight(o.clip, o.clip_end, step / o.steps)
        lr = straight(o.lr, o.lr_end, step / o.steps)
        told: list[Tensor] = []
        for _ in range(o.epochs):
            order = torch.from_numpy(rng.permutation(count)).to(self.run.device)
            ratios: list[Tensor] = []
            mixed = (t.index_select(0, order).tensor_split(parts) for t in batch)
            for part in zip(*mixed, strict=True):
                loss, *losses, moved = self.losses_of(Batch(*part))
                told += [*losses, self.descent.step(loss, lr)]
                ratios.append(moved)
            if o.target_kl and float(self.far(ratios, clip)[0]) > o.target_kl:
                break
        means = torch.stack(told).view(-1, 4).mean(0)
        means[[0, 2]] *= -parts / count  # sums over a part until now, of gains and of negentropies
        self.run.average(means)
        self.act_anew()
        tags = health.losses(LOSSES, torch.cat([means, self.far(ratios, clip)]), step)
        health.check(self.run, step, held=self.descent.held())
        return tags

    def far(self, ratios: list[Tensor], clip: float) -> Tensor:
        """How far an epoch has moved the policy (2,): divergence, share clipped; collective."""
        moved = torch.cat(ratios)
        change = moved.exp() - 1.0
        far = torch.stack([(change - moved).mean(), (change.abs() > clip).float().mean()])
        self.run.average(far)
        return far

    def act_anew(self) -> None:
        """The policy acts by the newest parameters."""
        if self._copied is not None:
            self._copied.data.copy_(self.theta.data)

    def state(self) -> dict[str, Any]:
        """All of it for a checkpoint, on the CPU."""
        return {
            **self.descent.state(),
            "observations": self.moments.state() if self.moments else {},
            "network": described(self.network, self.o.hidden),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, on whatever device."""
        self.descent.load(state)
        self.act_anew()
        if self.moments:
            self.moments.load(state["observations"])


# main


class Training:
    """All parts of one training, and what moves them to and from a checkpoint."""

    asks_every = 1  # a rollout at a time

    def __init__(self, o: Options, run: Run) -> None:
        self.o, self.run, self.step = o, run, 0
        self.per_rank = -(-o.num_envs // run.world)
        self.total_envs = self.per_rank * run.world
        facts = environments.look(o.env, acts="any", sees="any")
        if facts.image and o.normalise_observations:
            raise Refused("normalise_observations is for flat observations; pictures need none")
        torch.manual_seed(seeds.derive_seed(o.seed, seeds.SEEDS_AGENT))
        self.learner = Learner(o, run, facts)
        seeds.seed_everything(o.seed, run.rank)
        self.rng = np.random.default_rng([o.seed, seeds.SEEDS_AGENT, run.rank])
        self.rollout = Rollout(o.rollout, self.per_rank, facts)
        self.scale = RewardScale(self.per_rank, o.gamma) if o.normalise_rewards else None
        index = range(run.rank * self.per_rank, (run.rank + 1) * self.per_rank)
        self.envs = Episodes(o.env, seed=o.seed, index=index, facts=facts)

    @property
    def ticks(self) -> int:
        """Rollouts made."""
        return -(-self.step // (self.o.rollout * self.total_envs))

    def advance(self) -> dict[str, float]:
        """A rollout, shorter at the very end, and the updates on it."""
        o, roll, before = self.o, self.rollout, self.step
        rows = min(o.rollout, -(-(o.steps - before) // self.total_envs))
        roll.collect(self.envs, self.learner.policy, self.rng, rows)
        self.step += rows * self.total_envs
        row = roll.first_bad()
        given = None if row is None else before + row * self.total_envs
        health.check(self.run, self.step, given=given)
        rewards = roll.rewards[:rows]
        if self.scale:
            self.scale.update(rewards, (roll.terminated | roll.truncated)[:rows], self.run)
            rewards = self.scale.apply(rewards)
        batch = self.learner.batch(roll, rewards, straight(o.clip, o.clip_end, self.step / o.steps))
        if self.learner.moments:  # from the next rollout on: this one was acted on by the old ones
            self.learner.moments.update(
                roll.seen[:rows].reshape(-1, *roll.seen.shape[2:]), self.run
            )
        return self.learner.learn(batch, self.rng, self.step)

    def evaluate(self) -> dict[str, float]:
        """Mean return of greedy episodes, on rank 0."""
        return evaluation.evaluate(self.run, self.o, self.learner.policy, step=self.step)

    def save(self, metrics: dict[str, float]) -> None:
        """Write a checkpoint of this step; metrics: measured for exactly these parameters."""
        scale = self.scale.state() if self.scale else {"moments": {}, "own": []}
        more = {"format": FORMAT, "agent": "ppo", "rewards": scale["moments"],
                "reward_sums": self.run.gather(scale["own"])}  # fmt: skip
        checkpoint.save(self, {**self.learner.state(), **more}, metrics)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint. Raises Refused when it does not fit the options."""
        state = checkpoint.read_own(folder, "ppo", format=FORMAT)
        fits = "env hidden activation num_envs normalise_observations normalise_rewards"
        checkpoint.go_on(self, folder, state, fits=fits)
        self.learner.load(state)
        if self.scale:
            self.scale.load({"moments": state["rewards"]}, state["reward_sums"][self.run.rank])


def train(o: Options, run: Run) -> Training:
    """Train to the end, or until a signal; the trained parts. Raises Refused, Fault, Stopped."""
    t = Training(o, run)
    if run.resume:
        t.load(run.resume)
    drive(t, o, run, name="ppo", more=f"envs {t.total_envs}  rollout {o.rollout * t.total_envs}")
    return t


def greedy(state: dict[str, Any]) -> Policy:
    """The greedy policy of what model.pt holds. Raises Refused."""
    if state["format"] != FORMAT:
        raise Refused("a checkpoint of a version whose parameters had another order")
    network, moments = rebuilt(state["network"], state["params"]), None
    if state["observations"]:
        moments = RunningMoments(network.facts.shape)
        moments.load(state["observations"])
    return Policy(network, moments)


if __name__ == "__main__":
    launch(Options, train, greedy, sys.argv[1:])
