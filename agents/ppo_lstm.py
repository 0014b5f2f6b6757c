"""Proximal policy optimisation with a recurrent network, for tasks that ask for a memory.

Sources: Schulman et al., "Proximal Policy Optimization Algorithms" (2017); Hochreiter and
Schmidhuber, "Long Short-Term Memory" (1997); how long the units remember at first, Tallec and
Ollivier, "Can recurrent neural networks warp time?" (2018). Observations are flat, actions
discrete. A minibatch is a group of environments with all of their rollout, in order.

By hand:   python agents/ppo_lstm.py env=memory_task:Recall64-v0 seed=1
Evaluate:  python agents/ppo_lstm.py evaluate=CHECKPOINT episodes=100 seed=0
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
import environments
import evaluation
import health
import numpy as np
import seeds
import torch
from advantages import gae, normalised
from episodes import Episodes
from launch import launch
from loop import drive
from numpy.typing import NDArray
from options import check_ranges
from parameters import Descent
from recurrent import Actor, State, over_time, pack, remember_up_to, through_lstm
from rollouts import first_bad
from runtime import Run
from schedules import straight
from surrogate import bound, choices, gains
from torch import Tensor, nn

Floats = NDArray[np.float32]
LOSSES = ("policy", "value", "entropy", "gradient_norm")

# options


@dataclass(frozen=True)
class Options:
    """What a training is told; agents/ppo_lstm.toml has the same names and defaults."""

    env: str = "memory_task:Recall-v0"  # an id of gymnasium, or module:id
    steps: int = 200_000  # environment steps in all, over all ranks; whole steps of all num_envs
    seed: int = -1  # drawn when negative
    num_envs: int = 16  # in all, rounded up to a multiple of the ranks
    device: str = "auto"  # auto, cpu or cuda
    hidden: int = 64  # width of the layer before the LSTM, and of the LSTM
    recurrent: bool = True  # false: a plain layer in place of the LSTM, which remembers nothing
    rollout: int = 128  # steps of each environment between updates
    epochs: int = 4  # how often a rollout is learned from
    batch_size: int = 4  # environments whose rollouts make one update, in all; rounded up likewise
    checkpoint_segments: int = 0  # pieces of a rollout, computed twice to save memory; 0: off
    lr: float = 2e-3  # at the start; falls in a straight line …
    lr_end: float = 0.0  # … to this at the last step
    clip: float = 0.2  # how far a probability may move, as a share
    gamma: float = 0.99
    gae_lambda: float = 0.95
    entropy: float = 0.01  # weight of the entropy, which keeps the policy random
    value_coef: float = 0.5  # weight of the values' squared error
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
    """Flat observations to logits and a value, by way of an LSTM or of a plain layer.

    sizes: numbers in an observation, hidden, actions. longest: steps that the slowest units of the
    LSTM remember at first.
    """

    def __init__(self, sizes: Sequence[int], *, recurrent: bool, longest: int) -> None:
        super().__init__()
        numbers, hidden, actions = sizes
        # first, for a GPU reads an LSTM's parameters in place only where memory begins with them
        self.middle = nn.LSTM(hidden, hidden) if recurrent else nn.Linear(hidden, hidden)
        self.inner = nn.Linear(numbers, hidden)
        self.heads = nn.Linear(hidden, actions + 1)
        with torch.no_grad():
            self.heads.weight[:-1] *= 0.01  # begins with equal chances
            if isinstance(self.middle, nn.LSTM):
                remember_up_to(longest, self.middle)

    def forward(self, seen: Tensor, state: State, sizes: Tensor) -> tuple[Tensor, State]:
        """(rows, numbers) to (rows, actions + 1) and the state then; rows as `pack` has them.

        sizes: rows of each step of time. state: of the sequences that the first step has.
        """
        x = torch.tanh(self.inner(seen))
        if isinstance(self.middle, nn.LSTM):
            x, state = through_lstm(self.middle, x, state, sizes)
        else:
            x = torch.tanh(self.middle(x))
        return self.heads(x), state


class Policy(evaluation.Remembering):
    """The greedy policy of a flat vector of a Network's parameters."""

    def __init__(self, flat: Tensor, sizes: Sequence[int], *, recurrent: bool) -> None:
        self.actor, self.hidden = Actor(flat.numpy(), sizes, recurrent=recurrent), sizes[1]

    def begin(self, n: int) -> None:
        """So many episodes begin: nothing is remembered yet."""
        self.state = np.zeros((2, n, self.hidden), np.float32)

    def forget(self, i: int) -> None:
        """The i-th has ended, and another begins in its place."""
        self.state[:, i] = 0.0

    def __call__(self, seen: Floats) -> NDArray[np.int64]:
        """(n, numbers) observations to (n,) likeliest actions, counted from 0."""
        actions: NDArray[np.int64] = self.actor(seen, self.state)[:, :-1].argmax(axis=1)
        return actions


# collect


class Rollout(NamedTuple):
    """T steps of n environments. state: (2, n, hidden) before the first; all else (T, n, …)."""

    state: Floats
    seen: Floats  # (T, n, numbers)
    actions: NDArray[np.int64]
    log_probs: Floats  # of the actions, by the policy that chose them
    rewards: Floats
    ended: NDArray[np.bool_]
    values: Floats
    reached: Floats  # value of what each step reached, as `gae` wants it


def collect(
    envs: Episodes, actor: Actor, state: Floats, rng: np.random.Generator, length: int
) -> Rollout:
    """Step every environment `length` times. state: what the actor remembers; goes on.

    A time limit still has the value of what it reached, seen with the memory of its episode; a
    real end has none.
    """
    began, (n, numbers) = state.copy(), envs.seen.shape
    seen = np.empty((length, n, numbers), np.float32)
    actions = np.empty((length, n), np.int64)
    rewards, ended = np.empty((length, n), np.float32), np.empty((length, n), np.bool_)
    limited = np.zeros((length, n), np.float32)  # values at time limits
    out = np.empty((length + 1, n, len(actor.heads[1])), np.float32)
    # the largest of logits with such noise is a draw from their softmax
    noise = rng.gumbel(size=(length, n, out.shape[-1] - 1)).astype(np.float32)
    for t in range(length):
        seen[t] = envs.seen
        out[t] = actor(envs.seen, state)
        actions[t] = (out[t, :, :-1] + noise[t]).argmax(axis=1)
        stepped = envs.step_all(actions[t])
        rewards[t] = stepped.rewards
        ended[t] = stepped.terminated | stepped.truncated
        if ended[t].any():
            at = np.flatnonzero(stepped.truncated & ~stepped.terminated)
            if len(at):
                limited[t, at] = actor(stepped.after[at], state[:, at])[:, -1]
            state[:, ended[t]] = 0.0
    out[length] = actor(envs.seen, state.copy())
    log_probs = torch.log_softmax(torch.from_numpy(out[:-1, :, :-1]), -1).numpy()
    chosen = np.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]
    values = out[..., -1]
    reached = np.where(ended, limited, values[1:])
    return Rollout(began, seen, actions, chosen, rewards, ended, values[:-1], reached)


# learn


def ppo_losses(out: Tensor, known: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of the policy, loss of the values, and the entropy: means over the rows.

    out: (rows, actions + 1) logits and value. known: (4, rows) actions, their log-probabilities
    when chosen, advantages, returns.
    """
    actions, old, advantages, returns = known
    nll, negentropy = choices(out[:, :-1], actions.long())
    policy = -gains(-nll - old, advantages, bound(advantages, clip)).mean()
    value = 0.5 * (out[:, -1] - returns).square().mean()
    return policy, value, -negentropy / len(nll)


class Learner:
    """Parameters, the optimiser, and the actor that reads them."""

    def __init__(self, o: Options, run: Run, sizes: Sequence[int]) -> None:
        self.o, self.run = o, run
        self.network = Network(sizes, recurrent=o.recurrent, longest=o.rollout).to(run.device)
        self.descent = Descent(self.network, run, most=o.max_grad_norm, eps=1e-5)
        self.theta = self.descent.theta
        self._acting = self.theta.detach().cpu()  # the same memory on a CPU
        self.actor = Actor(self._acting.numpy(), sizes, recurrent=o.recurrent)

    def learn(self, r: Rollout, rng: np.random.Generator, step: int) -> dict[str, float]:
        """Updates from a rollout: the mean losses. rng: draws which environments go together.

        Raises Fault when a loss or the gradient's norm is not finite.
        """
        o, device, n = self.o, self.run.device, r.ended.shape[1]
        advantages = gae(r.rewards, r.values, r.reached, r.ended, gamma=o.gamma, lam=o.gae_lambda)
        scaled = normalised(advantages, self.run)
        known = np.stack([r.actions.astype(np.float32), r.log_probs, scaled, advantages + r.values])
        # torch copies the rows it takes, into memory it aligns: sums come out the same again
        seen = torch.from_numpy(r.seen).to(device).flatten(0, 1)  # (T * n, numbers)
        numbers = torch.from_numpy(known).to(device).flatten(1)  # (4, T * n)
        state = torch.from_numpy(r.state).to(device)
        group = -(-o.batch_size // self.run.world)
        lr = straight(o.lr, o.lr_end, step / o.steps)
        totals, updates = torch.zeros(4, device=device), 0
        for _ in range(o.epochs):
            for envs in np.split(rng.permutation(n), range(group, n, group)):
                p = pack(r.ended, envs)
                rows, start = (torch.from_numpy(a).to(device) for a in (p.rows, p.start))
                h, c = (state[:, start] * (start >= 0).unsqueeze(1)).unsqueeze(1)
                sizes = torch.from_numpy(p.sizes)  # on a CPU, as torch wants it
                totals += self.update(seen[rows], (h, c), sizes, numbers[:, rows], lr)
                updates += 1
        self._acting.copy_(self.theta.detach())
        self.run.average(totals)
        return health.losses(LOSSES, totals / updates, step)

    def update(self, seen: Tensor, state: State, sizes: Tensor, known: Tensor, lr: float) -> Tensor:
        """One step of the optimiser. Returns (4,): the losses, entropy and gradient's norm."""
        out = over_time(self.network, seen, state, sizes, self.o.checkpoint_segments)
        policy, value, entropy = ppo_losses(out, known, self.o.clip)
        loss = policy + self.o.value_coef * value - self.o.entropy * entropy
        norm = self.descent.step(loss, lr)
        return torch.stack((policy, value, entropy, norm)).detach()

    def load(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint has, on whatever device."""
        self.descent.load(state)
        self._acting.copy_(self.theta.detach())


# main


class Training:
    """All parts of one training, and what moves them to and from a checkpoint."""

    asks_every = 1

    def __init__(self, o: Options, run: Run) -> None:
        self.o, self.run, self.step = o, run, 0
        self.per_rank = -(-o.num_envs // run.world)
        self.total_envs = self.per_rank * run.world
        facts = environments.look(o.env)
        torch.manual_seed(seeds.derive_seed(o.seed, seeds.SEEDS_AGENT))
        self.sizes = (facts.numbers, o.hidden, facts.actions)
        self.learner = Learner(o, run, self.sizes)
        seeds.seed_everything(o.seed, run.rank)
        self.rng = np.random.default_rng([o.seed, seeds.SEEDS_AGENT, run.rank])
        index = range(run.rank * self.per_rank, (run.rank + 1) * self.per_rank)
        self.envs = Episodes(o.env, seed=o.seed, index=index, facts=facts)
        self.state = torch.zeros(2, self.per_rank, o.hidden).numpy()  # of the acting network

    @property
    def ticks(self) -> int:
        """Rollouts, whole ones."""
        return self.step // (self.total_envs * self.o.rollout)

    def advance(self) -> dict[str, float]:
        """One rollout, the last one shorter, and what is learned from it."""
        before = self.step
        length = min(self.o.rollout, -(-(self.o.steps - before) // self.total_envs))
        r = collect(self.envs, self.learner.actor, self.state, self.rng, length)
        self.step += length * self.total_envs
        self.check_healthy(r, before)
        return self.learner.learn(r, self.rng, self.step)

    def evaluate(self) -> dict[str, float]:
        """Mean return of greedy episodes, on rank 0."""
        theta = self.learner.theta.detach().cpu()
        policy = Policy(theta, self.sizes, recurrent=self.o.recurrent)
        return evaluation.evaluate(self.run, self.o, policy, step=self.step)

    def check_healthy(self, r: Rollout | None = None, before: int = 0) -> None:
        """Raises Fault with the first cause: what an environment gave, else the parameters."""
        given = None
        if r is not None:
            bad = first_bad(r.rewards, np.concatenate([r.seen, self.envs.seen[None]]))
            given = None if bad is None else before + bad * self.total_envs
        health.check(self.run, self.step, given=given, held=self.learner.descent.held())

    def save(self, metrics: dict[str, float]) -> None:
        """Write a checkpoint of this step; metrics: measured for exactly these parameters."""
        self.check_healthy()
        state = {
            **self.learner.descent.state(), "format": 1, "agent": "ppo_lstm",
            "sizes": list(self.sizes), "recurrent": self.o.recurrent,
            "remembered": self.run.gather(torch.from_numpy(self.state)),
        }  # fmt: skip
        checkpoint.save(self, state, metrics)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint. Raises Refused when it does not fit the options."""
        state = checkpoint.read_own(folder, "ppo_lstm")
        playing = checkpoint.go_on(self, folder, state, fits="env hidden recurrent num_envs")
        self.learner.load(state)
        if playing:  # new episodes have nothing to remember
            self.state[:] = state["remembered"][self.run.rank].numpy()


def train(o: Options, run: Run) -> Training:
    """Train to the end, or until a signal; the trained parts. Raises Refused, Fault, Stopped."""
    t = Training(o, run)
    if run.resume:
        t.load(run.resume)
    drive(t, o, run, name="ppo_lstm", more=f"envs {t.total_envs}")
    return t


def greedy(state: dict[str, Any]) -> Policy:
    """The greedy policy of the contents of model.pt."""
    return Policy(state["params"], state["sizes"], recurrent=state["recurrent"])


if __name__ == "__main__":
    launch(Options, train, greedy, sys.argv[1:])
