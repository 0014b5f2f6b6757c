"""Rollouts laid out for an LSTM: nothing crosses an end, and it is what a loop over steps gives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agents"))

import recurrent  # noqa: E402


def ends(length: int, n: int, share: float, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((length, n)) < share


class Over(torch.nn.Module):
    """An LSTM as `over_time` wants a network; counts what it is asked for."""

    def __init__(self, inward: int = 3, hidden: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.calls = torch.nn.LSTM(inward, hidden), 0

    def forward(self, rows: Any, state: Any, sizes: Any) -> Any:
        self.calls += 1
        return recurrent.through_lstm(self.lstm, rows, state, sizes)


def by_step(network: Over, x: Any, state: Any, ended: Any) -> Any:
    """(T, n, hidden): the same by a cell, step by step, put to zero after each end."""
    cell = torch.nn.LSTMCell(3, 5)
    for name, value in network.lstm.named_parameters():
        setattr(cell, name.removesuffix("_l0"), value)
    h, c = state
    out = []
    for t in range(len(x)):
        h, c = cell(x[t], (h, c))
        out.append(h)
        going = torch.from_numpy(~ended[t, :, None])
        h, c = h * going, c * going
    return torch.stack(out)


def packed(x: Any, state: Any, ended: Any, envs: Any) -> tuple[Any, Any, Any, Any]:
    """(rows, state, sizes) for `over_time`, and where the rows come from."""
    p = recurrent.pack(ended, envs)
    begins = state[:, p.start] * torch.from_numpy(p.start >= 0)[:, None]
    h, c = begins[:, None]
    return x.flatten(0, 1)[p.rows], (h, c), torch.from_numpy(p.sizes), p.rows


def test_pieces_are_laid_side_by_side_the_longest_first() -> None:
    ended = np.zeros((4, 2), bool)
    ended[0, 0] = ended[2, 0] = True  # pieces of 1, 2 and 1 steps; the other environment has 4
    p = recurrent.pack(ended, np.arange(2))
    assert p.sizes.tolist() == [4, 2, 1, 1]
    assert p.rows.tolist() == [1, 2, 0, 6, 3, 4, 5, 7]  # 2 * t + environment
    assert p.start.tolist() == [1, -1, 0, -1]


def test_without_an_end_it_is_the_rollout_as_it_was() -> None:
    for ended in (np.zeros((7, 3), bool), np.array([[False] * 3] * 6 + [[True] * 3])):
        p = recurrent.pack(ended, np.arange(3))
        assert p.rows.tolist() == list(range(21)) and p.sizes.tolist() == [3] * 7
        assert p.start.tolist() == [0, 1, 2]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("envs", [[0], [3, 1], [0, 1, 2, 3, 4]])
def test_every_step_is_there_once_and_none_crosses_an_end(share: float, envs: list[int]) -> None:
    ended = ends(40, 5, share)
    p = recurrent.pack(ended, np.array(envs))
    assert sorted(p.rows) == [5 * t + e for t in range(40) for e in sorted(envs)]
    assert (np.diff(p.sizes) <= 0).all() and p.sizes.sum() == len(p.rows)
    begin = 0
    for size, after in zip(p.sizes, p.sizes[1:], strict=False):
        here, there = p.rows[begin : begin + after], p.rows[begin + size : begin + size + after]
        assert (there == here + 5).all()  # the same environment, one step later
        assert not ended.reshape(-1)[here].any()
        begin += size
    first = p.rows[: p.sizes[0]]
    assert (p.start == np.where(first < 5, first % 5, -1)).all()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("segments", [0, 1, 3, 100])
@pytest.mark.parametrize("padded", [True, False])
def test_it_is_what_a_loop_over_steps_gives(
    share: float, segments: int, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "PAD_MOST", np.inf if padded else 0.0)
    ended, envs = ends(30, 6, share), np.array([4, 0, 2])
    torch.manual_seed(1)
    x, state = torch.randn(30, 6, 3), torch.randn(2, 6, 5)
    network = Over()
    expected = by_step(network, x, state, ended)
    weights = torch.randn(30, 6, 5)
    (expected * weights)[:, envs].sum().backward()
    gradients = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    rows, begins, sizes, at = packed(x, state, ended, envs)
    out = recurrent.over_time(network, rows, begins, sizes, segments)
    assert torch.allclose(out, expected.flatten(0, 1)[at], atol=1e-6)
    (out * weights.flatten(0, 1)[at]).sum().backward()
    for p, gradient in zip(network.parameters(), gradients, strict=True):
        assert torch.allclose(p.grad, gradient, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("episodes", "padded"), [(2, True), (50, False)])
def test_one_long_sequence_beside_short_ones_is_not_padded(episodes: int, padded: bool) -> None:
    ended = np.zeros((100, 2), bool)
    ended[:: 100 // episodes, 1] = True
    network, calls = Over(), []
    x, begins, sizes, _ = packed(torch.randn(100, 2, 3), torch.zeros(2, 2, 5), ended, np.arange(2))
    network.lstm.register_forward_pre_hook(lambda _, given: calls.append(given[0]))
    recurrent.over_time(network, x, begins, sizes, 0)
    (given,) = calls
    assert isinstance(given, torch.Tensor) == padded


def kept_bytes(segments: int) -> tuple[int, int]:
    """Bytes that the forward pass keeps for the gradient, and how often the network was asked."""
    network, kept = Over(3, 64), 0

    def count(tensor: Any) -> Any:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    x, state = torch.randn(256, 4, 3), torch.zeros(2, 4, 64)
    rows, begins, sizes, _ = packed(x, state, np.zeros((256, 4), bool), np.arange(4))
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        out = recurrent.over_time(network, rows, begins, sizes, segments)
    out.sum().backward()
    return kept, network.calls


def test_segments_keep_less_and_are_computed_twice() -> None:
    all_of_it, once = kept_bytes(0)
    pieces, twice = kept_bytes(16)
    assert (once, twice) == (1, 32)
    assert pieces < all_of_it / 8


def test_a_step_in_numpy_agrees_with_torch() -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 5)
    flat = torch.cat([p.detach().reshape(-1) for p in lstm.parameters()])
    flat = torch.cat([flat, torch.ones(7)])  # of other layers
    one = recurrent.NumpyLSTM(flat.numpy(), 3, 5)
    assert one.count == len(flat) - 7
    x = 3 * torch.randn(20, 4, 3)
    expected, (h, c) = lstm(x)
    state = np.zeros((2, 4, 5), np.float32)
    for t in range(20):
        assert np.abs(one(x[t].numpy(), state) - expected[t].detach().numpy()).max() < 1e-5
    assert np.abs(state - torch.cat([h, c]).detach().numpy()).max() < 1e-5
    flat.zero_()  # as after an update: it is read anew
    assert np.abs(one(x[0].numpy(), np.zeros((2, 4, 5), np.float32))).max() == 0.0
    flat.fill_(1e4)
    assert np.isfinite(one(x[0].numpy(), state)).all()
