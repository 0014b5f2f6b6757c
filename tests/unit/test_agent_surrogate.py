"""The clipped gain, and log probabilities with their entropies, beside torch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import surrogate  # noqa: E402


def test_choices_are_those_of_a_categorical_distribution() -> None:
    torch.manual_seed(0)
    logits, chosen = torch.randn(30, 3), torch.randint(0, 3, (30,))
    nll, negentropy = surrogate.choices(logits, chosen)
    expected = torch.distributions.Categorical(logits=logits)
    assert (nll + expected.log_prob(chosen)).abs().max() < 1e-5
    assert float(negentropy) == pytest.approx(-float(expected.entropy().sum()), rel=1e-5)


def test_densities_are_those_of_a_normal_distribution() -> None:
    torch.manual_seed(0)
    means, drawn, log_std = torch.randn(30, 3), torch.randn(30, 3), torch.tensor([-1.0, 0.0, 0.5])
    nll, negentropy = surrogate.densities(means, log_std, drawn)
    expected = torch.distributions.Normal(means, log_std.exp())
    assert (nll + expected.log_prob(drawn).sum(1)).abs().max() < 1e-4
    assert float(negentropy) == pytest.approx(-float(expected.entropy().sum()), rel=1e-5)


def test_gains_and_their_gradients_are_those_of_the_clipped_objective() -> None:
    torch.manual_seed(0)
    advantages = torch.randn(200)
    advantages[:5] = 0.0
    moved = (0.5 * torch.randn(200)).requires_grad_()
    found = surrogate.gains(moved, advantages, surrogate.bound(advantages, 0.2))
    (gradient,) = torch.autograd.grad(found.sum(), moved)
    ratio = moved.exp()
    expected = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    (by_paper,) = torch.autograd.grad(expected.sum(), moved)
    assert (found - expected).abs().max() < 1e-6 and (gradient - by_paper).abs().max() < 1e-6
    assert 20 < (gradient == 0).sum() < 150  # some are clipped, some are not
