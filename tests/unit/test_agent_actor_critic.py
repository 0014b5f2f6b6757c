"""Actor, critic and the policy that acts by them: in numpy, in the box, and from a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import actor_critic  # noqa: E402
import options  # noqa: E402
from environments import Facts  # noqa: E402
from parameters import flatten_parameters  # noqa: E402

PICTURES = (2, 36, 40)


def facts_of(actions: int, box: int = 0, shape: tuple[int, ...] = (4,)) -> Facts:
    low = -np.arange(1, box + 1, dtype=np.float32)
    return Facts(shape, len(shape) > 1, actions, low, 3 * np.ones(box, np.float32), exact=True)


def network_of(facts: Facts, activation: str = "tanh") -> tuple[Any, Any]:
    """A network away from its start, where all actions are nearly alike, and its flat vector."""
    torch.manual_seed(0)
    network = actor_critic.Network(facts, hidden=16, activation=activation)
    flat = flatten_parameters(network)
    with torch.no_grad():
        flat.add_(torch.randn_like(flat), alpha=0.1)
    return network, flat


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("actions", "box"), [(3, 0), (0, 2)])
def test_numpy_acts_as_the_network_does_and_reads_it_anew(
    activation: str, actions: int, box: int
) -> None:
    network, flat = network_of(facts_of(actions, box), activation)
    policy = actor_critic.Policy(network, None)
    seen = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    for _ in range(2):
        outputs = network(torch.from_numpy(seen))[0].detach().numpy()
        kept = seen.copy()
        assert np.abs(policy.outputs(seen) - outputs).max() < 1e-5 and (seen == kept).all()
        assert (policy.log_std == network.log_std.detach().numpy()).all()
        assert len(policy.log_std) == box
        with torch.no_grad():
            flat.mul_(0.5)


def test_greedy_actions_are_the_likeliest_or_the_mean_within_the_box() -> None:
    seen = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    policy = actor_critic.Policy(network_of(facts_of(3))[0], None)
    assert (policy(seen) == policy.outputs(seen).argmax(1)).all()
    network, flat = network_of(facts_of(0, 2))
    with torch.no_grad():
        flat.mul_(3.0)
    policy = actor_critic.Policy(network, None)
    expected = np.clip([1.0, 0.5] + np.float32([2.0, 2.5]) * policy.outputs(seen), [-1, -2], 3)
    assert np.abs(policy(seen) - expected).max() < 1e-5
    assert (np.abs(policy.outputs(seen)) > 1).any()  # something was cut


def test_actor_and_critic_of_flat_observations_learn_apart() -> None:
    network, _ = network_of(facts_of(3))
    network(torch.randn(5, 4))[1].sum().backward()
    for weight, bias in network.trunk.layers:
        assert weight.grad[1].any() and not weight.grad[0].any()
        assert bias.grad[1].any() and not bias.grad[0].any()


@pytest.mark.parametrize("shape", [(4,), PICTURES])
def test_what_a_checkpoint_tells_gives_the_same_network(shape: tuple[int, ...]) -> None:
    network, flat = network_of(facts_of(0, 2, shape), "relu")
    again = actor_critic.rebuilt(actor_critic.described(network, 16), flat.detach().clone())
    seen = torch.rand(3, *shape)
    for one, other in zip(network(seen), again(seen), strict=True):
        assert torch.equal(one, other)
    assert again.activation == "relu" and again.facts.shape == shape
    assert (again.facts.low == network.facts.low).all()


def test_pictures_too_small_are_refused() -> None:
    with pytest.raises(options.Refused, match="pictures of 35 by 40 are too small"):
        actor_critic.picture_trunk((2, 35, 40), 512)
