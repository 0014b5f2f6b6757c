"""What a recurrent agent needs: rollouts laid out for an LSTM, less memory, and acting by numpy.

Source of the activations that are computed twice: Chen et al., "Training Deep Nets with Sublinear
Memory Cost" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.utils.checkpoint
from numpy.typing import NDArray
from parameters import layers_of
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Floats = NDArray[np.float32]
State = tuple[Tensor, Tensor]  # of an LSTM: what it gives and what it keeps, each (1, n, hidden)
PAD_MOST = 4.0  # times the rows that padding may make of them: beyond, it is slower on a CPU


class Pack(NamedTuple):
    """Some environments' steps cut into sequences, none of which goes on after an episode's end.

    They lie side by side, the longest first, as torch's packed sequences have it: the first step
    of each, then the second of those that have one, … Without an end within, that is the rollout
    as it was.
    """

    rows: NDArray[np.int64]
    """Which of the rollout's steps, counted over environments and then time."""
    sizes: NDArray[np.int64]
    """(longest,): how many sequences have a first, second, … step."""
    start: NDArray[np.int64]
    """(sequences,): the environment whose state a sequence begins with; -1: an episode's start."""


def pack(ended: NDArray[np.bool_], envs: NDArray[np.int64]) -> Pack:
    """How to lay out a rollout, so that an LSTM goes over it in one call, however many ends it has.

    ended: (T, n), whether a step ended its episode. envs: those of the n to take.
    """
    length, n = ended.shape
    cut = ended[:, envs]
    cut[-1] = True
    column, last = np.nonzero(cut.T)
    first = np.concatenate([[0], last[:-1] + 1]) % length
    order = np.argsort(first - last, kind="stable")
    env, first, steps = envs[column[order]], first[order], (last - first + 1)[order]
    sizes = len(steps) - np.cumsum(np.bincount(steps))[:-1]
    rows = [(first[:size] + t) * n + env[:size] for t, size in enumerate(sizes)]
    return Pack(np.concatenate(rows), sizes, np.where(first == 0, env, -1))


def through_lstm(lstm: nn.LSTM, x: Tensor, state: State, sizes: Tensor) -> tuple[Tensor, State]:
    """What an LSTM gives for packed rows, (rows, hidden), and the state of what goes on beyond.

    Sequences of different lengths are padded to a block where that adds little: up to 8 times
    quicker on a CPU.
    """
    steps, n = len(sizes), int(sizes[0])
    if not 1.0 < steps * n / len(x) <= PAD_MOST:
        packed, state = lstm(PackedSequence(x, sizes), state)
        return packed.data, state
    there = (torch.arange(n) < sizes.unsqueeze(1)).to(x.device)  # (steps, n), in the rows' order
    block = x.new_zeros(steps, n, x.shape[1])
    block[there] = x
    out, state = lstm(block, state)
    return out[there], state


@torch.no_grad()
def remember_up_to(longest: int, lstm: nn.LSTM) -> None:
    """Have its units remember for one step to so many at first, for tasks that ask for both.

    Source: Tallec and Ollivier, "Can recurrent neural networks warp time?" (2018).
    """
    hidden = lstm.hidden_size
    kept = torch.empty(hidden).uniform_(1.0, max(2.0, longest - 1.0)).log()
    lstm.bias_ih_l0[:hidden] = -kept
    lstm.bias_ih_l0[hidden : 2 * hidden] = kept
    lstm.bias_ih_l0[2 * hidden :] = 0.0
    lstm.bias_hh_l0.zero_()


class OverSequences(Protocol):
    """A network that takes packed rows, the state its sequences begin with, and their sizes."""

    def __call__(self, rows: Tensor, state: State, sizes: Tensor) -> tuple[Tensor, State]:
        """What it gives for each row, and the state of each sequence at its end."""


def over_time(
    network: OverSequences, rows: Tensor, state: State, sizes: Tensor, segments: int
) -> Tensor:
    """What `network` gives for packed rows, with a gradient.

    segments: pieces of time of which only the states between them are kept; what lies within is
    computed a second time when the gradient is. 0: all is kept.
    """
    if not segments:
        return network(rows, state, sizes)[0]
    outs, begin = [], 0
    for part in sizes.split(-(-len(sizes) // segments)):
        end, going = begin + int(part.sum()), int(part[0])
        state = (state[0][:, :going], state[1][:, :going])  # those that have ended come last
        out, state = torch.utils.checkpoint.checkpoint(
            network, rows[begin:end], state, part, use_reentrant=False, preserve_rng_state=False
        )
        outs.append(out)
        begin = end
    return torch.cat(outs)


class NumpyLSTM:
    """One step of an LSTM, of a vector that begins with its parameters in torch's order.

    Six times quicker than torch for the few rows of a step; the vector is read at each call.
    """

    def __init__(self, flat: Floats, inward: int, hidden: int) -> None:
        self.hidden, self.views, begin = hidden, [], 0
        for shape in ((4 * hidden, inward), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)):
            end = begin + int(np.prod(shape))
            self.views.append(flat[begin:end].reshape(shape).T)
            begin = end
        self.count = begin  # of its parameters

    def __call__(self, x: Floats, state: Floats) -> Floats:
        """(n, inward) to (n, hidden). state: (2, n, hidden), goes on to the next step."""
        h = self.hidden
        inward, across, bias, more = self.views
        z = x @ inward + state[0] @ across + (bias + more)  # in, forget, new, out: h columns each
        gate = 0.5 + 0.5 * np.tanh(0.5 * z)  # the logistic function, which cannot overflow so
        state[1] = gate[:, h : 2 * h] * state[1] + gate[:, :h] * np.tanh(z[:, 2 * h : 3 * h])
        state[0] = gate[:, 3 * h :] * np.tanh(state[1])
        return state[0]


class Actor:
    """A recurrent network, of a flat vector of its parameters, one step at a time, in numpy.

    The vector has a layer in the middle, an LSTM or a plain one, then the one before it and the
    heads. sizes: numbers in an observation, hidden, actions; one head more gives the value.
    """

    def __init__(self, flat: Floats, sizes: Sequence[int], *, recurrent: bool) -> None:
        numbers, hidden, actions = sizes
        self.lstm = NumpyLSTM(flat, hidden, hidden) if recurrent else None
        self.plain = layers_of(flat, (hidden, hidden))[0]
        count = self.lstm.count if self.lstm else hidden * (hidden + 1)
        self.inner, self.heads = layers_of(flat[count:], (numbers, hidden, actions + 1))

    def __call__(self, seen: Floats, state: Floats) -> Floats:
        """(n, numbers) to (n, actions + 1) logits and value. state: (2, n, hidden), goes on."""
        x = np.tanh(seen @ self.inner[0] + self.inner[1])
        x = self.lstm(x, state) if self.lstm else np.tanh(x @ self.plain[0] + self.plain[1])
        out: Floats = x @ self.heads[0] + self.heads[1]
        return out
