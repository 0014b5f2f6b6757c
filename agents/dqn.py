"""Deep Q-learning with double estimates, for numbers or pictures and discrete actions.

Sources: Mnih et al., "Human-level control through deep reinforcement learning" (2015), also for
the network that sees pictures; van Hasselt et al., "Deep Reinforcement Learning with Double
Q-learning" (2016); targets over several steps: Sutton, "Learning to predict by the methods of
temporal differences" (1988); hyperparameters after rl-baselines3-zoo. The learning rate falls to
`lr_end`, and evaluation and checkpoints' users act by an average of the parameters, so that the
last parameters are good ones too (Polyak and Juditsky, "Acceleration of stochastic approximation
by averaging", 1992).

By hand:   python agents/dqn.py steps=50000 seed=1
Evaluate:  python agents/dqn.py evaluate=CHECKPOINT episodes=100 seed=0
Recipes:   dqn.toml; dqn_mountaincar.toml; dqn_atari.toml for Atari games
"""

from __future__ import annotations

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
from acceleration import accelerated, check_compile
from episodes import Episodes
from frames import Frames, memory_for
from launch import launch
from loop import drive
from networks import SMALLEST_PICTURE, convolutions, perceptron
from numpy.typing import NDArray
from options import Refused, check_ranges
from parameters import Descent, NumpyNetwork, flatten_parameters, layers_of
from replay import Batch, Windows
from runtime import Run
from schedules import straight
from torch import Tensor, nn

# options


@dataclass(frozen=True)
class Options:
    """What a training is told; agents/dqn.toml has the same names and defaults."""

    env: str = "CartPole-v1"  # an id of gymnasium, or module:id
    steps: int = 50_000  # environment steps in all, over all ranks
    seed: int = -1  # drawn when negative
    num_envs: int = 1  # in all, rounded up to a multiple of the ranks
    device: str = "auto"  # auto, cpu or cuda
    amp: bool = False  # bfloat16 within the forward passes of learning
    compile: str = "off"  # or a mode of torch.compile: default, reduce-overhead (CUDA graphs)
    hidden: int = 256  # width of both hidden layers; of the one behind the convolutions
    lr: float = 2.3e-3  # at the start; falls in a straight line …
    lr_end: float = 0.0  # … to this at the last step
    gamma: float = 0.99
    batch_size: int = 128  # in all, rounded up to a multiple of the ranks
    n_step: int = 1  # steps of which the rewards are summed before a value is taken
    buffer_size: int = 100_000  # transitions kept, over all ranks
    learning_starts: int = 1_000  # steps before the first update
    train_every: int = 256  # steps between rounds of updates
    updates: int = 64  # updates in a round
    target_every: int = 256  # steps between copies to the target network, at the next round
    double: bool = True  # double estimates: the online network chooses, the target one values
    loss: str = "huber"  # huber or squared, of an error
    max_grad_norm: float = 10.0
    average: float = 0.9994  # how much of the averaged parameters one update keeps
    eps_start: float = 1.0  # share of random actions, falls in a straight line …
    eps_end: float = 0.04  # … to this …
    eps_fraction: float = 0.16  # … over this share of the steps
    checkpoint_every: int = 5_000  # steps; the final state is always saved; 0: only that
    eval_every: int = 5_000  # steps; 0: no evaluation
    eval_episodes: int = 20
    log_every: int = 1_000  # steps

    def __post_init__(self) -> None:
        """Raises Refused, naming every number out of its range."""
        share = dict.fromkeys(["average", "eps_start", "eps_end", "eps_fraction"], (0.0, 1.0))
        check_ranges(self, seed=(-1, np.inf), n_step=(1, np.inf), **share)
        check_compile(self.compile)
        if self.loss not in ("huber", "squared"):
            raise Refused(f"loss is {self.loss!r}; it must be huber or squared")


def epsilon_at(step: int, o: Options) -> float:
    """Share of random actions at `step`, whatever the number of environments."""
    done = step / max(o.eps_fraction * o.steps, 1e-9)
    return straight(o.eps_start, o.eps_end, done)


# networks


class Scaled(nn.Module):
    """Bytes to numbers from 0 to 1."""

    def forward(self, pictures: Tensor) -> Tensor:
        """Any shape."""
        return pictures.float() / 255


def q_network(sizes: Sequence[int]) -> nn.Sequential:
    """Observations to (…, actions) values.

    sizes: (numbers, hidden, hidden, actions), or (frames, height, width, hidden, actions).
    """
    if len(sizes) < 5:
        return perceptron(sizes)
    layers, numbers = convolutions(sizes[:3])
    return nn.Sequential(Scaled(), *layers, *perceptron((numbers, *sizes[3:])))


class Policy:
    """The greedy policy of a flat vector of a q_network's parameters, which it reads anew."""

    def __init__(self, flat: Tensor, sizes: Sequence[int]) -> None:
        self.device, self.pictures = flat.device, len(sizes) == 5
        if self.pictures:
            self.network = q_network(sizes).to(flat.device)
            nn.utils.vector_to_parameters(flat, self.network.parameters())  # views of it
        else:
            self.values = NumpyNetwork(layers_of(flat.numpy(), sizes))

    def __call__(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """(n, …) observations to (n,) actions of the highest value, counted from 0."""
        if self.pictures:
            with torch.no_grad():
                values = self.network(torch.from_numpy(observations).to(self.device))
            return values.argmax(1).cpu().numpy()
        actions: NDArray[np.int64] = self.values(observations).argmax(axis=1)
        return actions


# collect


def collect(
    envs: Episodes, memory: Windows | Frames, policy: Policy, rng: np.random.Generator,
    *, epsilon: float, active: int, actions: int,
) -> None:  # fmt: skip
    """Step the first `active` environments once each, into the replay memory."""
    # numbers of Python, for often there is one environment only: 4 times quicker
    explore = [rng.random() < epsilon for _ in range(active)]
    choices = [int(rng.integers(actions)) for _ in range(active)]
    if not all(explore):
        best = policy(envs.seen).tolist()
        choices = [c if e else b for c, e, b in zip(choices, explore, best, strict=False)]
    for i, choice in enumerate(choices):
        memory.begin(i, envs.seen[i], choice)
        memory.end(i, *envs.step(i, choice))


# learn


def td_target(reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
    """Sum of gamma^k r_k, plus gamma^n V(reached). All (batch,) float32, as Batch has them."""
    return reward + discount * value


class Learner:
    """Online, target and averaged parameters, and the optimiser of the first."""

    def __init__(self, o: Options, run: Run, sizes: Sequence[int]) -> None:
        self.o, self.run = o, run
        self.online, self.target = q_network(sizes), q_network(sizes)
        self.online.to(run.device), self.target.to(run.device)
        self.descent = Descent(self.online, run, most=o.max_grad_norm)
        self.theta = self.descent.theta
        self.theta_target = flatten_parameters(self.target)
        self.theta_average = self.theta.detach().clone()
        with torch.no_grad():
            self.theta_target.copy_(self.theta)
        self.error = F.smooth_l1_loss if o.loss == "huber" else F.mse_loss
        self.losses_of = accelerated(self.losses, o, run.device)
        self.updates, self.copied_at = 0, 0
        acting = self.theta.detach()
        self._acting = acting if len(sizes) == 5 else acting.cpu()  # on a CPU the same memory
        self.policy = Policy(self._acting, sizes)

    def losses(self, b: Batch) -> tuple[Tensor]:
        """The error of the values predicted for one batch."""
        with torch.no_grad():
            values = self.target(b.after)
            if self.o.double:
                best = self.online(b.after).argmax(1, keepdim=True)
                value = values.gather(1, best).squeeze(1)
            else:
                value = values.amax(1)
            goal = td_target(b.reward, b.discount, value)
        predicted = self.online(b.seen).gather(1, b.choice).squeeze(1)
        return (self.error(predicted, goal),)

    def learn(self, batch: Batch, step: int) -> dict[str, float]:
        """One round of updates, one for each of the batches: the mean losses.

        Raises Fault when one is not finite.
        """
        o = self.o
        if step - self.copied_at >= o.target_every:
            self.copied_at = step
            with torch.no_grad():
                self.theta_target.copy_(self.theta)
        lr = straight(o.lr, o.lr_end, step / o.steps)
        told: list[Tensor] = []
        for part in zip(*batch, strict=True):
            (loss,) = self.losses_of(Batch(*part))
            told += [loss.detach(), self.descent.step(loss, lr)]
        rounds = len(batch.reward)
        self.updates += rounds
        # early on a plain mean, later one that forgets; once a round is as good and costs nothing
        kept = min(o.average**rounds, 1.0 - rounds / self.updates)
        with torch.no_grad():
            self.theta_average.lerp_(self.theta, 1.0 - kept)
            self._acting.copy_(self.theta)
        means = torch.stack(told).view(-1, 2).mean(0)
        return health.losses(("td", "gradient_norm"), means, step)

    def held(self) -> dict[str, Tensor]:
        """All vectors, by the names that a fault says."""
        return {**self.descent.held(), "averaged parameters": self.theta_average}

    def state(self) -> dict[str, Any]:
        """All of it for a checkpoint, on the CPU."""
        return {
            **self.descent.state(), "target": self.theta_target.detach().cpu(),
            "average": self.theta_average.cpu(),
            "updates": self.updates, "copied_at": self.copied_at,
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, on whatever device."""
        self.descent.load(state)
        with torch.no_grad():
            self.theta_target.copy_(state["target"])
            self.theta_average.copy_(state["average"])
            self._acting.copy_(self.theta)
        self.updates, self.copied_at = state["updates"], state["copied_at"]


# main


class Training:
    """All parts of one training, and what moves them to and from a checkpoint."""

    asks_every = 16

    def __init__(self, o: Options, run: Run) -> None:
        self.o, self.run, self.step, self.checked = o, run, 0, 0
        self.per_rank = -(-o.num_envs // run.world)
        self.total_envs = self.per_rank * run.world
        facts = environments.look(o.env, sees="any")
        if facts.image and min(facts.shape[1:]) < SMALLEST_PICTURE:
            raise Refused(f"env {o.env!r} has observations {facts.shape}; pictures are (frames, "
                          f"height, width), at least {SMALLEST_PICTURE} high and wide")  # fmt: skip
        torch.manual_seed(seeds.derive_seed(o.seed, seeds.SEEDS_AGENT))
        flat = (facts.numbers, o.hidden, o.hidden, facts.actions)
        self.sizes = (*facts.shape, o.hidden, facts.actions) if facts.image else flat
        self.learner = Learner(o, run, self.sizes)
        seeds.seed_everything(o.seed, run.rank)
        self.rng = np.random.default_rng([o.seed, seeds.SEEDS_AGENT, run.rank])
        index = range(run.rank * self.per_rank, (run.rank + 1) * self.per_rank)
        self.envs = Episodes(o.env, seed=o.seed, index=index, facts=facts)
        capacity = -(-o.buffer_size // run.world)
        self.memory = memory_for(self.envs.envs, facts, capacity,
                                 n_step=o.n_step, gamma=o.gamma, rank=run.rank)  # fmt: skip

    @property
    def ticks(self) -> int:
        """Steps of every environment, whole ones."""
        return self.step // self.total_envs

    def advance(self) -> dict[str, float]:
        """One step of every environment, and a round of updates when one is due."""
        before = self.step
        self.collect()
        rounds = self.step // self.o.train_every - before // self.o.train_every
        ready = self.step >= max(self.o.learning_starts, self.total_envs * self.o.n_step)
        return self.learn(rounds) if rounds and ready else {}

    def collect(self) -> None:
        """Step every environment once; at the very end only as many as steps are left."""
        making = min(self.total_envs, self.o.steps - self.step)
        active = min(self.per_rank, max(0, making - self.run.rank * self.per_rank))
        epsilon = epsilon_at(self.step, self.o)
        collect(self.envs, self.memory, self.learner.policy, self.rng,
                epsilon=epsilon, active=active, actions=self.sizes[-1])  # fmt: skip
        self.step += making

    def learn(self, rounds: int) -> dict[str, float]:
        """So many rounds of updates on batches split over the ranks; the mean losses."""
        self.check_healthy(rows_only=True)
        shape = (rounds * self.o.updates, -(-self.o.batch_size // self.run.world))
        batch = self.memory.sample(self.rng, shape, self.run.device)
        return self.learner.learn(batch, self.step)

    def evaluate(self) -> dict[str, float]:
        """Mean return of greedy episodes by the averaged parameters, on rank 0."""
        average = self.learner.theta_average
        policy = Policy(average if len(self.sizes) == 5 else average.cpu(), self.sizes)
        return evaluation.evaluate(self.run, self.o, policy, step=self.step)

    def check_healthy(self, *, rows_only: bool = False) -> None:
        """Raises Fault with the first cause: what an environment gave, else the parameters."""
        row, given = self.memory.first_bad(self.checked), None
        self.checked = self.memory.ring.count
        if row is not None:
            # a row a step, in turn, where windows do not wait for their end
            plain = isinstance(self.memory, Windows) and self.o.n_step == 1
            given = (row // self.per_rank + 1) * self.total_envs if plain else self.step
        held = {} if rows_only else self.learner.held()
        health.check(self.run, self.step, given=given, held=held)

    def save(self, metrics: dict[str, float]) -> None:
        """Write a checkpoint of this step; metrics: measured for exactly these parameters."""
        self.check_healthy()
        state = {
            **self.learner.state(), "format": 2, "agent": "dqn", "sizes": list(self.sizes),
            "rows": self.run.gather(self.memory.ring.count),
        }  # fmt: skip
        own = {f"open-rank{self.run.rank}.bin": self.memory.save_open()}
        checkpoint.save(self, state, metrics, memory=self.memory.ring, own=own)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint. Raises Refused when it does not fit the options."""
        state, rank = checkpoint.read_own(folder, "dqn", format=2), self.run.rank
        fits = "env hidden num_envs buffer_size n_step gamma"  # rows hold the last two
        playing = checkpoint.go_on(self, folder, state, fits=fits)
        self.learner.load(state)
        self.memory.ring.load(folder, checkpoint.read_manifest(folder), state["rows"][rank])
        self.checked = self.memory.ring.count
        self.memory.load_open((folder / f"open-rank{rank}.bin").read_bytes() if playing else b"")


def train(o: Options, run: Run) -> Training:
    """Train to the end, or until a signal; the trained parts. Raises Refused, Fault, Stopped."""
    t = Training(o, run)
    if run.resume:
        t.load(run.resume)
    elif o.checkpoint_every:
        t.memory.ring.check_disk(run.checkpoints)
    if o.checkpoint_every:
        t.memory.ring.write_ahead(run.checkpoints)
    replay = f"{t.memory.ring.size_bytes / 1e6:.0f} MB a rank, in memory and in checkpoints"
    drive(t, o, run, name="dqn", more=f"envs {t.total_envs}  replay {replay}")
    return t


def greedy(state: dict[str, Any]) -> Policy:
    """The greedy policy of a checkpoint, from the contents of its model.pt."""
    return Policy(state["average"], state["sizes"])


if __name__ == "__main__":
    launch(Options, train, greedy, sys.argv[1:])
