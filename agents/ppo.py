"""Proximal policy optimisation, for flat observations or pictures, discrete or continuous actions.

Sources: Schulman et al., "Proximal Policy Optimization Algorithms" (2017); the network for
pictures of Mnih et al. (2015); starting weights and other details after Huang et al., "The 37
Implementation Details of Proximal Policy Optimization" (2022); hyperparameters after
rl-baselines3-zoo.

Continuous actions are drawn from a Gaussian whose deviation does not depend on the observation,
in units of the box: -1 and 1 are its sides, so one `log_std_start` fits any box. What falls
outside is cut at the side only when it is given to the environment: every point of the box can be
reached, its sides too, and the Gaussian's probabilities stay those of what was drawn.

By hand:   python agents/ppo.py steps=100000 seed=1
Evaluate:  python agents/ppo.py evaluate=CHECKPOINT episodes=100 seed=0
"""

from __future__ import annotations

import math
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
from acceleration import Head, accelerated, check_compile
from advantages import gae, normalised
from environments import Facts
from episodes import Episodes
from launch import launch
from loop import drive
from networks import SMALLEST_PICTURE, convolutions, orthogonal, perceptron
from normalise import RewardScale, RunningMoments
from numpy.typing import NDArray
from options import Refused, check_ranges
from parameters import Descent, NumpyNetwork, flatten_parameters
from runtime import Run
from schedules import straight
from torch import Tensor, nn

Floats = NDArray[np.float32]
LOSSES = ("policy", "value", "entropy", "gradient_norm", "kl", "clip_fraction")

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


# networks


class Network(nn.Module):
    """(B, *shape) observations to logits or means (B, k), and values (B,).

    Of flat observations actor and critic learn apart; of pictures they share a trunk. log_std: (k,)
    of continuous actions, empty where they are discrete.
    """

    def __init__(
        self, facts: Facts, *, hidden: int, activation: str, log_std_start: float = 0.0
    ) -> None:
        super().__init__()
        self.facts, self.activation, outputs = facts, activation, facts.actions or len(facts.low)
        # a module's own parameters come first in its flat vector, before the actor's
        self.log_std = nn.Parameter(torch.full((len(facts.low),), log_std_start))
        self.sizes = (facts.numbers, hidden, hidden, outputs)
        if facts.image:
            self.trunk = picture_trunk(facts.shape)
            self.actor, self.critic = (
                orthogonal(Head(512, last), gain) for last, gain in ((outputs, 0.01), (1, 1.0))
            )
        else:
            self.trunk = nn.Identity()
            between, root = nn.Tanh if activation == "tanh" else nn.ReLU, math.sqrt(2)
            self.actor, self.critic = (
                perceptron((*self.sizes[:-1], last), between, (root, root, gain))
                for last, gain in ((outputs, 0.01), (1, 1.0))
            )

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Both at once."""
        seen = self.trunk(seen / 255.0 if self.facts.image else seen)
        return self.actor(seen), self.critic(seen).squeeze(1)


def picture_trunk(shape: tuple[int, ...]) -> nn.Sequential:
    """(B, channels, height, width) to (B, 512). Raises Refused for pictures too small."""
    if min(shape[1:]) < SMALLEST_PICTURE:
        raise Refused(f"pictures of {shape[1]} by {shape[2]} are too small; each side must be "
                      f"{SMALLEST_PICTURE} or more")  # fmt: skip
    layers, numbers = convolutions(shape, math.sqrt(2))
    return nn.Sequential(*layers, orthogonal(nn.Linear(numbers, 512), math.sqrt(2)), nn.ReLU())


def log_prob(outputs: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Of each action its log probability or density (B,), and the mean entropy.

    outputs: (B, k) logits, or means where log_std (k,) is not empty. actions: (B, 1) int64 chosen,
    or (B, k) drawn, before they are cut to the box.
    """
    k = len(log_std)
    if k == 0:
        logs = F.log_softmax(outputs, dim=1)
        return logs.gather(1, actions).squeeze(1), -(logs.exp() * logs).sum(1).mean()
    squares = ((actions - outputs) * torch.exp(-log_std)).square().sum(1)
    whole = log_std.sum() + 0.5 * k * math.log(2 * math.pi)
    return -0.5 * squares - whole, whole + 0.5 * k


class Policy:
    """What a network does: greedy actions when called, and what acting at random needs.

    flat: the network's flat vector on the CPU, from which numpy acts on flat observations;
    pictures go through the network where it is. moments: what observations are normalised by.
    """

    def __init__(self, network: Network, flat: Tensor, moments: RunningMoments | None) -> None:
        self.network, self.moments, self.facts = network, moments, network.facts
        low, high = self.facts.low, self.facts.high
        self.centre, self.half = low + (high - low) / 2, (high - low) / 2
        self.log_std: Floats = flat.numpy()[: len(low)]
        if self.facts.image:
            self.act = self._through
        else:
            self.act = NumpyNetwork(flat.numpy()[len(low) :], network.sizes, network.activation)

    @torch.no_grad()
    def _through(self, seen: NDArray[np.uint8]) -> Floats:
        on_device = torch.from_numpy(seen).to(self.network.log_std.device)
        outputs: Floats = self.network(on_device)[0].cpu().numpy()
        return outputs

    def normal(self, seen: NDArray[Any]) -> NDArray[Any]:
        """Observations as the network wants them."""
        return seen if self.moments is None else self.moments.apply(seen)

    def outputs(self, seen: NDArray[Any]) -> Floats:
        """(n, *shape) observations to (n, k) logits or means."""
        return self.act(self.normal(seen))

    def in_box(self, drawn: Floats) -> Floats:
        """Actions within the environment's box, from (n, k) in units of half of it."""
        return np.clip(self.centre + self.half * drawn, self.facts.low, self.facts.high)

    def __call__(self, seen: NDArray[Any]) -> NDArray[Any]:
        """(n, *shape) observations to n actions: the likeliest choice, or the mean."""
        outputs = self.outputs(seen)
        return outputs.argmax(1) if self.facts.actions else self.in_box(outputs)


def greedy(state: dict[str, Any]) -> Policy:
    """The greedy policy of what model.pt holds."""
    kept, moments = dict(state["network"]), None
    box = (kept.pop(side).numpy() for side in ("low", "high"))
    facts = Facts(
        tuple(kept.pop("shape")), kept.pop("image"), kept.pop("actions"), *box, exact=False
    )
    network = Network(facts, **kept)
    flat = flatten_parameters(network)
    with torch.no_grad():
        flat.copy_(state["params"])
    if state["observations"]:
        moments = RunningMoments(facts.shape)
        moments.load(state["observations"])
    return Policy(network, flat.detach(), moments)


# collect


class Rollout:
    """What a rank's n environments went through in `rollout` steps each, or fewer at the end."""

    def __init__(self, o: Options, n: int, facts: Facts) -> None:
        shape, kind = (o.rollout + 1, n), torch.uint8 if facts.image else torch.float32
        # torch aligns its memory, so that sums come out the same in the next process
        self.seen: NDArray[Any] = torch.zeros(*shape, *facts.shape, dtype=kind).numpy()
        numbers, kind = (1, torch.int64) if facts.actions else (len(facts.low), torch.float32)
        self.actions: NDArray[Any] = torch.zeros(o.rollout, n, numbers, dtype=kind).numpy()
        self.rewards: Floats = torch.zeros(o.rollout, n).numpy()
        self.terminated, self.truncated = np.zeros((2, o.rollout, n), np.bool_)
        self.limits: list[NDArray[Any]] = []  # observations reached at time limits, in order
        self.length = 0

    def collect(self, envs: Episodes, policy: Policy, rng: np.random.Generator, rows: int) -> None:
        """Step each environment `rows` times, by actions drawn from the policy."""
        self.length = rows
        self.limits.clear()
        discrete, shape = policy.facts.actions > 0, (rows, len(envs.envs))
        # the likeliest of logits with Gumbel noise is a draw by their probabilities
        noise = (
            rng.gumbel(size=(*shape, policy.facts.actions)).astype(np.float32) if discrete
            else rng.standard_normal((*shape, self.actions.shape[2]), np.float32)
            * np.exp(policy.log_std)
        )  # fmt: skip
        for t in range(rows):
            self.seen[t] = envs.seen
            drawn = policy.outputs(envs.seen) + noise[t]
            if discrete:
                given = drawn.argmax(1)
                self.actions[t, :, 0] = given
                given = given.tolist()
            else:
                self.actions[t] = drawn
                given = policy.in_box(drawn)
            for i, action in enumerate(given):
                after, self.rewards[t, i], real, limit = envs.step(i, action)
                self.terminated[t, i], self.truncated[t, i] = real, limit and not real
                if limit and not real:
                    self.limits.append(np.array(after, self.seen.dtype))
        self.seen[rows] = envs.seen

    def first_bad(self) -> int | None:
        """The first row of a reward or observation that is not finite."""
        rows = np.isfinite(self.rewards[: self.length]).all(1)
        finite = np.isfinite(self.seen[: self.length + 1]).reshape(self.length + 1, -1).all(1)
        rows &= finite[1:]
        rows[0] &= finite[0]
        limits = np.argwhere(self.truncated[: self.length])
        for (row, _), seen in zip(limits, self.limits, strict=True):
            rows[row] &= np.isfinite(seen).all()
        return None if rows.all() else int(rows.argmin())


# learn


class Batch(NamedTuple):
    """Samples to learn from, all (B, …) on the device.

    most: the policy's objective where its probability has moved too far; see `Learner.losses`.
    """

    seen: Tensor
    actions: Tensor
    old: Tensor  # log probabilities while collecting
    advantage: Tensor
    most: Tensor
    goal: Tensor  # what the critic should have said


class Learner:
    """The network, its flat parameters, the optimiser, and the policy that acts by them."""

    def __init__(self, o: Options, run: Run, facts: Facts) -> None:
        self.o, self.run, self.facts = o, run, facts
        self.network = Network(
            facts, hidden=o.hidden, activation=o.activation, log_std_start=o.log_std_start
        ).to(run.device)
        self.descent = Descent(self.network, run, most=o.max_grad_norm, eps=1e-5, tiny=0.0)
        self.theta = self.descent.theta
        self._acting = self.theta.detach().cpu()  # the same memory on a CPU
        self.moments = RunningMoments(facts.shape) if o.normalise_observations else None
        self.policy = Policy(self.network, self._acting, self.moments)
        self.losses_of = accelerated(self.losses, o, run.device)
        self.outputs_of = accelerated(self.network, o, run.device, compiles=False)

    @torch.no_grad()
    def batch(self, roll: Rollout, rewards: Floats, clip: float) -> Batch:
        """A rollout with its advantages, normalised over the ranks. rewards: (T, n), scaled."""
        o, (rows, n) = self.o, rewards.shape
        seen = roll.seen[: rows + 1].reshape(-1, *self.facts.shape)
        seen = np.concatenate([seen, np.stack(roll.limits)]) if roll.limits else seen
        seen = torch.from_numpy(self.policy.normal(seen)).to(self.run.device)
        actions = torch.from_numpy(roll.actions[:rows].reshape(rows * n, -1)).to(self.run.device)
        # one pass for all there is to know; in parts, for pictures take much memory on the way
        parts = [self.outputs_of(part) for part in seen.split(4096)]
        outputs, values = (torch.cat(each) for each in zip(*parts, strict=True))
        old, _ = log_prob(outputs[: rows * n], self.network.log_std, actions)
        value = values.cpu().numpy()
        terminated, truncated = roll.terminated[:rows], roll.truncated[:rows]
        reached = value[n : (rows + 1) * n].reshape(rows, n) * ~terminated
        reached[truncated] = value[(rows + 1) * n :]
        value = value[: rows * n].reshape(rows, n)
        advantage = gae(rewards, value, reached, terminated | truncated,
                        gamma=o.gamma, lam=o.gae_lambda)  # fmt: skip
        goal = torch.from_numpy((advantage + value).reshape(-1)).to(self.run.device)
        advantage = normalised(advantage, self.run).reshape(-1)
        advantage[np.abs(advantage) < o.min_advantage] = 0.0
        scaled = torch.from_numpy(advantage).to(self.run.device)
        most = scaled + clip * scaled.abs()
        return Batch(seen[: rows * n], actions, old, scaled, most, goal)

    def losses(self, b: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the policy, of the critic, the entropy, and log ratios (B,) of new to old.

        The clipped objective min(rA, clip(r, 1 - c, 1 + c) A) is min(rA, A + c |A|), whichever
        the sign of A.
        """
        outputs, values = self.network(b.seen)
        logs, entropy = log_prob(outputs, self.network.log_std, b.actions)
        moved = logs - b.old
        policy = -torch.minimum(moved.exp() * b.advantage, b.most).mean()
        return policy, F.mse_loss(values, b.goal), entropy, moved

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
            for part in zip(*(t[order].tensor_split(parts) for t in batch), strict=True):
                policy, value, entropy, moved = self.losses_of(Batch(*part))
                loss = policy + o.value_coef * value - o.entropy * entropy
                norm = self.descent.step(loss, lr)
                told += [policy.detach(), value.detach(), entropy.detach(), norm]
                ratios.append(moved.detach())
            moves = torch.cat(ratios)
            change = moves.exp() - 1.0
            far = torch.stack([(change - moves).mean(), (change.abs() > clip).float().mean()])
            self.run.average(far)
            if o.target_kl and float(far[0]) > o.target_kl:
                break
        means = torch.stack(told).view(-1, 4).mean(0)
        self.run.average(means)
        self._acting.copy_(self.theta.detach())
        tags = health.losses(LOSSES, torch.cat([means, far]), step)
        health.check(self.run, step, held=self.descent.held())
        return tags

    def state(self) -> dict[str, Any]:
        """All of it for a checkpoint, on the CPU."""
        f = self.facts
        return {
            **self.descent.state(),
            "observations": self.moments.state() if self.moments else {},
            "network": {
                "hidden": self.o.hidden, "activation": self.o.activation,
                "shape": list(f.shape), "image": f.image, "actions": f.actions,
                "low": torch.from_numpy(f.low), "high": torch.from_numpy(f.high),
            },
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, on whatever device."""
        self.descent.load(state)
        self._acting.copy_(self.theta.detach())
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
        self.rollout = Rollout(o, self.per_rank, facts)
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
        given = None if row is None else before + (row + 1) * self.total_envs
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
        more = {"format": 1, "agent": "ppo", "rewards": scale["moments"],
                "reward_sums": self.run.gather(scale["own"])}  # fmt: skip
        checkpoint.save(self, {**self.learner.state(), **more}, metrics)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint. Raises Refused when it does not fit the options."""
        state = checkpoint.read_own(folder, "ppo")
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


if __name__ == "__main__":
    launch(Options, train, greedy, sys.argv[1:])
