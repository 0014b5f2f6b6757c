"""Squashed Gaussians: their densities, and that all of any box is acted in."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import squashed  # noqa: E402


def test_log_probability_is_that_of_a_squashed_normal_distribution() -> None:
    torch.manual_seed(0)
    mean, log_std, noise = torch.randn(3, 7, 2, dtype=torch.float64)
    low, high = torch.tensor([-3.0, 0.0]), torch.tensor([7.0, 0.5])
    half, centre = (high - low) / 2, (high + low) / 2
    moves = [
        torch.distributions.TanhTransform(),
        torch.distributions.AffineTransform(centre, half),
    ]
    plain = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), moves
    )
    raw = mean + log_std.exp() * noise
    expected = plain.log_prob(centre + half * raw.tanh()).sum(-1)
    found = squashed.squashed_log_prob(raw, noise, log_std) - half.log().sum()
    assert (found - expected).abs().max() < 1e-9
    # far out, where 1 - tanh(x)^2 is 0 in float32, the logarithm is 2 * (log 2 - x)
    raw = torch.tensor([[30.0], [-30.0]])
    far = squashed.squashed_log_prob(raw, torch.zeros(2, 1), torch.zeros(2, 1))
    assert far.tolist() == pytest.approx([-0.918939 + 60 - 2 * 0.693147] * 2, rel=1e-6)


def test_policy_that_is_sure_reaches_the_very_ends_of_any_box() -> None:
    low, high = np.float32([-3, 0.1, -3e38, 5]), np.float32([7, 0.3, 3e38, 5])
    flat = torch.zeros(2 * 8 + 8)
    policy = squashed.Policy(flat, (2, 8), low, high)
    space = gymnasium.spaces.Box(low, high)
    seen = np.zeros((1, 2), np.float32)
    for mean, end in ((50.0, high), (-50.0, low), (0.0, (low + high) / 2)):
        flat[-8:-4] = mean
        assert (np.abs(policy(seen) - end) <= 1e-7 * np.abs(end)).all()
        assert space.contains(policy(seen)[0])
        noise = np.float32([[9, -9, 9, -9]])
        assert space.contains(policy.in_box(policy.sample(seen, noise))[0])
